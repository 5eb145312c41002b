//! Recorded requests, which warm up a version before it is ready: the TFRecord file
//! `assets.extra/tf_serving_warmup_requests` of `PredictionLog`s in its directory.
//!
//! A record is decoded like a request over gRPC, but runs on the thread that loads the version. Limits
//! and messages are those of the reference's `servables/tensorflow/saved_model_warmup{,_util}.cc`.

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use prost::Message;

use super::{TfsAnswer, grpc, inference, record};
use tensorserve_codec::tfrecord::TfRecordReader;
use tensorserve_core::comparison::NamedOutputs;
use tensorserve_core::engine::{InferRequest, InferResponse, Method, ModelHandle, Resolver};
use tensorserve_os::files;
use tensorserve_proto::Form;
use tensorserve_proto::serving::prediction_log::LogType;
use tensorserve_proto::serving::{
    InferenceTask, Input, ModelSpec, PredictLog, PredictRequest, PredictionLog,
};
use tensorserve_tensor::error::{Code, Error, Result};

/// The path of the file in a version's directory.
const FOLDER: &str = "assets.extra";
const FILE: &str = "tf_serving_warmup_requests";

/// The most records of a warm-up file.
pub const MOST_RECORDS: usize = 1000;

/// The largest size of a protocol buffer message.
const LONGEST_RECORD: usize = i32::MAX as usize;

/// The most bytes of a malformed record that an error quotes.
const LONGEST_SHOWN: usize = 64;

/// The file with the recorded requests of the version in `folder`.
#[must_use]
pub fn file_of(folder: &Path) -> PathBuf {
    folder.join(FOLDER).join(FILE)
}

/// Whether the file does not exist. A model that is itself a file has none.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Runs the recorded requests of the version in `folder`, if any, each `times` times. Examples with
/// their context may take `max_bytes`.
///
/// # Errors
/// The first error of a request or of the file.
pub fn run_file(handle: &ModelHandle, folder: &Path, times: usize, max_bytes: usize) -> Result<()> {
    let Some(mut records) = WarmUpRecords::open(&file_of(folder))? else {
        return Ok(());
    };
    let started = Instant::now();
    let outcome = run_all(handle, &mut records, times, max_bytes);
    let code = outcome.as_ref().err().map(Error::code);
    let (count, time) = (records.count, started.elapsed());
    handle.version_metrics().warmed_up(&folder.to_string_lossy(), code, time, count as u64);
    outcome?;
    let (model, version) = (handle.model(), handle.version());
    log::info!("{model} version {version}: warmed up with {count} recorded requests");
    Ok(())
}

fn run_all(
    handle: &ModelHandle,
    records: &mut WarmUpRecords,
    times: usize,
    max_bytes: usize,
) -> Result<()> {
    while let Some(record) = records.next()? {
        for _ in 0..times {
            let ran = run(handle, &record, max_bytes);
            ran.map_err(|error| error.context(format!("warm-up record {}", records.count)))?;
        }
    }
    Ok(())
}

/// Reads the records of a file, one at a time.
pub struct WarmUpRecords {
    path: PathBuf,
    reader: TfRecordReader<BufReader<File>>,
    count: usize,
    /// The most records that the file may have.
    most: usize,
}

/// The name of a record's request type.
#[must_use]
pub fn kind_of(record: &PredictionLog) -> &'static str {
    match &record.log_type {
        None => "empty",
        Some(LogType::PredictLog(_)) => "predict",
        Some(LogType::ClassifyLog(_)) => "classify",
        Some(LogType::RegressLog(_)) => "regress",
        Some(LogType::MultiInferenceLog(_)) => "multi_inference",
        Some(LogType::SessionRunLog(_)) => "session_run",
        Some(LogType::PredictStreamedLog(_)) => "predict_streamed",
    }
}

impl WarmUpRecords {
    /// Opens a warm-up file, which has at most [`MOST_RECORDS`]; `None` if it does not exist.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        // A link may lead anywhere, as in TensorFlow Serving: to the log of another version, for example.
        let file = match files::open(path) {
            Ok(file) => file,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => {
                let message = format!("{} cannot be read: {error}", path.display());
                return Err(Error::new(Code::of_io(&error), message).with_source(error));
            }
        };
        let reader = TfRecordReader::new(BufReader::new(file), LONGEST_RECORD);
        Ok(Some(WarmUpRecords { path: path.to_owned(), reader, count: 0, most: MOST_RECORDS }))
    }

    /// Removes the limit on records, for a request log.
    #[must_use]
    pub fn without_limit(self) -> Self {
        WarmUpRecords { most: usize::MAX, ..self }
    }

    /// The next record; `None` after the last.
    ///
    /// # Errors
    /// If the file is not a TFRecord file, a record is not a `PredictionLog`, or there are too many.
    #[allow(clippy::should_implement_trait)] // An iterator of results would not stop at an error.
    pub fn next(&mut self) -> Result<Option<PredictionLog>> {
        let mut bytes = Vec::new();
        if !self.reader.next(&mut bytes).map_err(damaged)? {
            return Ok(None);
        }
        let path = self.path.display();
        if self.count == self.most {
            let most = self.most;
            let message =
                format!("Number of warmup records exceeds the maximum ({most}) at {path}");
            return Err(Error::invalid(message));
        }
        self.count += 1;
        let bytes = Bytes::from(bytes);
        let record = PredictionLog::decode(bytes.clone()).map_err(|e| {
            let shown = bytes.get(..LONGEST_SHOWN).unwrap_or(&bytes).escape_ascii();
            let message = format!("Failed to parse warmup record: {shown} from {path}");
            Error::invalid(message).with_source(e)
        })?;
        Ok(Some(record))
    }

    /// The next record that can be run, without its response, and where it stands (`PATH record 3`); `None` after the
    /// last.
    ///
    /// # Errors
    /// As [`WarmUpRecords::next`].
    pub fn next_request(&mut self) -> Result<Option<(String, PredictionLog)>> {
        while let Some(log) = self.next()? {
            if let Some(request) = record::request_of(log) {
                let source = format!("{} record {}", self.path.display(), self.count);
                return Ok(Some((source, request)));
            }
        }
        Ok(None)
    }
}

fn damaged(error: Error) -> Error {
    if error.code() != Code::DataLoss {
        return error;
    }
    let message = format!("{error}. Please verify your warmup data is in TFRecord format.");
    Error::new(Code::DataLoss, message)
}

/// Runs one recorded request on `version`; its model spec is ignored. An empty record is skipped.
///
/// # Errors
/// The errors of the request, and [`Code::Unimplemented`] for types that cannot be run.
pub fn run(version: &ModelHandle, record: &PredictionLog, max_bytes: usize) -> Result<()> {
    respond(&RecordedRunner::warm_up(version), record, max_bytes, |_| ()).map(drop)
}

/// Runs one recorded request on `version` as [`run`] does, until `deadline` at most. Returns all outputs of its signature
/// by name, whichever the request asks for; with the name of the signature before it, if there are several
/// (`classify/scores`).
///
/// # Errors
/// As [`run`].
pub fn outputs(
    version: &ModelHandle,
    record: &PredictionLog,
    max_bytes: usize,
    deadline: Instant,
) -> Result<NamedOutputs> {
    let mut record = record.clone();
    if let Some(LogType::PredictLog(PredictLog { request: Some(request), .. })) =
        &mut record.log_type
    {
        request.output_filter.clear();
    }
    let runner = RecordedRunner { version, deadline: Some(deadline) };
    respond(&runner, &record, max_bytes, named_outputs).map(Option::unwrap_or_default)
}

fn named_outputs(response: &InferResponse) -> NamedOutputs {
    let mut all = Vec::new();
    for run in &response.runs {
        let Some(signature) = response.version.signatures().get(run.signature) else { continue };
        for (spec, tensor) in signature.outputs.iter().zip(&run.outputs) {
            let name = match response.runs.len() {
                1 => spec.alias.clone(),
                _ => format!("{}/{}", signature.name, spec.alias),
            };
            all.push((name, tensor.clone()));
        }
    }
    all
}

/// How recorded requests run.
struct RecordedRunner<'v> {
    version: &'v ModelHandle,
    /// `None` for the warm-up.
    deadline: Option<Instant>,
}

impl<'v> RecordedRunner<'v> {
    fn warm_up(version: &'v ModelHandle) -> Self {
        RecordedRunner { version, deadline: None }
    }

    fn infer<C, T>(
        &self,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)>,
        encode: impl FnOnce(C, InferResponse) -> Result<T>,
    ) -> Result<T> {
        match self.deadline {
            Some(deadline) => self.version.infer_aside(deadline, decode, encode),
            None => self.version.infer_for_warm_up(decode, encode),
        }
    }
}

/// What `take` makes of the response to a recorded request; `None` for a record without one.
fn respond<T>(
    runner: &RecordedRunner<'_>,
    record: &PredictionLog,
    max_bytes: usize,
    take: impl FnOnce(&InferResponse) -> T,
) -> Result<Option<T>> {
    match &record.log_type {
        None => Ok(None),
        Some(LogType::PredictLog(log)) => predict(runner, log.request.as_ref(), take).map(Some),
        Some(LogType::ClassifyLog(log)) => {
            let request = log.request.as_ref();
            let spec = request.and_then(|request| request.model_spec.as_ref());
            let input = request.and_then(|request| request.input.as_ref());
            on_examples(runner, Method::Classify, spec, input, max_bytes, take).map(Some)
        }
        Some(LogType::RegressLog(log)) => {
            let request = log.request.as_ref();
            let spec = request.and_then(|request| request.model_spec.as_ref());
            let input = request.and_then(|request| request.input.as_ref());
            on_examples(runner, Method::Regress, spec, input, max_bytes, take).map(Some)
        }
        Some(LogType::MultiInferenceLog(log)) => {
            let tasks = log.request.as_ref().map_or(&[][..], |request| &request.tasks);
            let input = log.request.as_ref().and_then(|request| request.input.as_ref());
            multi_inference(runner, tasks, input, max_bytes, take)
        }
        Some(LogType::SessionRunLog(_)) => Err(unsupported(5)),
        Some(LogType::PredictStreamedLog(_)) => Err(unsupported(7)),
    }
}

/// The error for a record of this type, by its field number.
fn unsupported(kind: u8) -> Error {
    let message = format!("Unsupported log_type for warmup: {kind}");
    Error::new(Code::Unimplemented, message)
}

fn predict<T>(
    runner: &RecordedRunner<'_>,
    request: Option<&PredictRequest>,
    take: impl FnOnce(&InferResponse) -> T,
) -> Result<T> {
    let request = request.cloned().unwrap_or_default();
    let decode = |resolver: &mut Resolver<'_>| {
        grpc::decode_predict_for(resolver, runner.version.clone(), request, Form::Content)
    };
    runner.infer(decode, |_, response| Ok(take(&response)))
}

fn on_examples<T>(
    runner: &RecordedRunner<'_>,
    method: Method,
    spec: Option<&ModelSpec>,
    input: Option<&Input>,
    max_bytes: usize,
    take: impl FnOnce(&InferResponse) -> T,
) -> Result<T> {
    let decode = |resolver: &mut Resolver<'_>| {
        inference::decode_examples(resolver, runner.version.clone(), spec, input, method, max_bytes)
    };
    runner.infer(decode, |form, response| {
        let taken = take(&response);
        TfsAnswer::read(form, response).map(|_| taken)
    })
}

fn multi_inference<T>(
    runner: &RecordedRunner<'_>,
    tasks: &[InferenceTask],
    input: Option<&Input>,
    max_bytes: usize,
    take: impl FnOnce(&InferResponse) -> T,
) -> Result<Option<T>> {
    if tasks.is_empty() {
        return inference::tensor_of(input, max_bytes).map(|_| None);
    }
    let decode = |resolver: &mut Resolver<'_>| {
        inference::decode_tasks(resolver, runner.version.clone(), tasks, input, max_bytes)
    };
    runner.infer(decode, |form, response| {
        let taken = take(&response);
        inference::encode_tasks(form, response).map(|_| Some(taken))
    })
}
