//! Requests of a request log, with their spacing.

use std::collections::BTreeMap;
use std::path::PathBuf;

use prost::Message;

use super::payload::{LoadInputs, LoadProtocol, PREDICT, PayloadBody, model_spec};
use super::target::ModelTarget;
use crate::cli::warmup;
use tensorserve_proto::serving::prediction_log::LogType;
use tensorserve_proto::serving::{ModelSpec, PredictionLog};
use tensorserve_proto::tensor_from_proto;
use tensorserve_protocols::tfs::warm_up::kind_of;
use tensorserve_tensor::error::{Error, Result};

/// Methods of gRPC besides Predict.
const CLASSIFY: &str = "/tensorflow.serving.PredictionService/Classify";
const REGRESS: &str = "/tensorflow.serving.PredictionService/Regress";
const MULTI_INFERENCE: &str = "/tensorflow.serving.PredictionService/MultiInference";

/// Nanoseconds of a second, which is what a log tells apart.
const SECOND: u64 = 1_000_000_000;

/// A request of a log.
pub(super) struct LoggedRequest {
    /// The path of its method, if it is not the one of the protocol.
    pub(super) path: Option<&'static str>,
    pub(super) body: PayloadBody,
}

/// All requests of logs, and when they are due, in nanoseconds from the first.
pub(super) struct Replay {
    pub(super) requests: Vec<LoggedRequest>,
    pub(super) times: Vec<u64>,
}

impl Replay {
    /// Reads logs, in which times are whole seconds: the requests of one second are spread over it evenly. `speed` is
    /// how many times as fast they follow each other.
    ///
    /// # Errors
    /// If a log cannot be read, or a request cannot be sent with the protocol.
    pub(super) fn read(
        logs: &[PathBuf],
        protocol: LoadProtocol,
        target: &ModelTarget,
        speed: f64,
    ) -> Result<Self> {
        if !(speed > 0.0 && speed.is_finite()) {
            return Err(Error::invalid("--speed must be above 0"));
        }
        let mut seconds: BTreeMap<i64, Vec<LoggedRequest>> = BTreeMap::new();
        for path in logs {
            let place = path.display().to_string();
            let mut records = warmup::open(path)?.without_limit();
            let mut number = 0;
            while let Some(record) = records.next().map_err(|error| error.context(&place))? {
                number += 1;
                let second =
                    record.log_metadata.as_ref().map_or(0, |metadata| metadata.timestamp_secs);
                let request = request_of(record, protocol, target)
                    .map_err(|error| error.context(format!("{place}: record {number}")))?;
                seconds.entry(second).or_default().push(request);
            }
        }
        let first = seconds.keys().next().copied().unwrap_or(0);
        let (mut requests, mut times) = (Vec::new(), Vec::new());
        for (second, of_second) in seconds {
            let start =
                u64::try_from(second.saturating_sub(first)).unwrap_or(0).saturating_mul(SECOND);
            let count = of_second.len() as u64;
            for (index, request) in (0u64..).zip(of_second) {
                times.push(scaled(start.saturating_add(SECOND * index / count), speed));
                requests.push(request);
            }
        }
        if requests.is_empty() {
            return Err(Error::invalid("--replay: the logs have no requests"));
        }
        Ok(Replay { requests, times })
    }
}

// A log of months has fewer nanoseconds than 2^53.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn scaled(nanoseconds: u64, speed: f64) -> u64 {
    (nanoseconds as f64 / speed) as u64
}

fn request_of(
    record: PredictionLog,
    protocol: LoadProtocol,
    target: &ModelTarget,
) -> Result<LoggedRequest> {
    if protocol == LoadProtocol::Grpc {
        let (path, message) = grpc_call(record, target)?;
        return Ok(LoggedRequest { path: Some(path), body: PayloadBody::text(message) });
    }
    let kind = kind_of(&record);
    let Some(LogType::PredictLog(log)) = record.log_type else {
        let message = format!("a {kind} record can be replayed with --protocol grpc only");
        return Err(Error::invalid(message));
    };
    let request = log.request.ok_or_else(|| without_request(kind))?;
    let signature = request.model_spec.unwrap_or_default().signature_name;
    let tensors = request.inputs.iter();
    let tensors = tensors.map(|(alias, tensor)| Ok((alias.clone(), tensor_from_proto(tensor)?)));
    let inputs = LoadInputs { signature, tensors: tensors.collect::<Result<_>>()? };
    Ok(LoggedRequest { path: None, body: inputs.body(protocol, target)? })
}

fn without_request(kind: &str) -> Error {
    Error::invalid(format!("a {kind} record without a request"))
}

/// The call of a recorded request: the path of its method, and its message, for the model and the version of `target`.
///
/// # Errors
/// If the record has no request that can be sent.
pub(in crate::cli) fn grpc_call(
    record: PredictionLog,
    target: &ModelTarget,
) -> Result<(&'static str, Vec<u8>)> {
    let kind = kind_of(&record);
    let spec = model_spec(target)?;
    let named = |old: Option<ModelSpec>| {
        let signature_name = old.unwrap_or_default().signature_name;
        Some(ModelSpec { signature_name, ..spec.clone() })
    };
    let missing = || without_request(kind);
    Ok(match record.log_type {
        Some(LogType::PredictLog(log)) => {
            let mut request = log.request.ok_or_else(missing)?;
            request.model_spec = named(request.model_spec.take());
            (PREDICT, request.encode_to_vec())
        }
        Some(LogType::ClassifyLog(log)) => {
            let mut request = log.request.ok_or_else(missing)?;
            request.model_spec = named(request.model_spec.take());
            (CLASSIFY, request.encode_to_vec())
        }
        Some(LogType::RegressLog(log)) => {
            let mut request = log.request.ok_or_else(missing)?;
            request.model_spec = named(request.model_spec.take());
            (REGRESS, request.encode_to_vec())
        }
        Some(LogType::MultiInferenceLog(log)) => {
            let mut request = log.request.ok_or_else(missing)?;
            for task in &mut request.tasks {
                task.model_spec = named(task.model_spec.take());
            }
            (MULTI_INFERENCE, request.encode_to_vec())
        }
        Some(LogType::SessionRunLog(_) | LogType::PredictStreamedLog(_)) | None => {
            return Err(Error::invalid(format!("a {kind} record cannot be replayed")));
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use tensorserve_codec::tfrecord;
    use tensorserve_proto::serving::{
        ClassificationRequest, ClassifyLog, LogMetadata, PredictLog, PredictRequest,
    };
    use tensorserve_proto::{Form, tensor_to_proto};
    use tensorserve_tensor::{Shape, Tensor, aligned_vec};

    fn target() -> ModelTarget {
        ModelTarget {
            server: "http://h".into(),
            scheme: "http",
            authority: "h".into(),
            prefix: String::new(),
            address: ([127, 0, 0, 1], 1).into(),
            model: "m".into(),
            version: None,
        }
    }

    fn predict(second: i64, value: f32) -> PredictionLog {
        let mut values = aligned_vec::<f32>(1);
        values.push(value);
        let tensor = Tensor::from_vec(Shape::vector(1), values).expect("a tensor");
        let inputs = [("x".to_owned(), tensor_to_proto(&tensor, Form::Content))].into();
        let request = PredictRequest { inputs, ..PredictRequest::default() };
        let log = PredictLog { request: Some(request), response: None };
        log_of(second, LogType::PredictLog(log))
    }

    fn log_of(second: i64, log_type: LogType) -> PredictionLog {
        let metadata = LogMetadata { timestamp_secs: second, ..LogMetadata::default() };
        PredictionLog { log_metadata: Some(metadata), log_type: Some(log_type) }
    }

    fn read(logs: &[PredictionLog], protocol: LoadProtocol, speed: f64) -> Result<Replay> {
        let root = tempfile::tempdir().expect("a directory");
        let (path, mut file) = (root.path().join("log"), Vec::new());
        logs.iter().for_each(|log| tfrecord::append(&log.encode_to_vec(), &mut file));
        fs::write(&path, file).expect("written");
        Replay::read(&[path], protocol, &target(), speed)
    }

    #[test]
    fn requests_keep_their_spacing() {
        let logs = [predict(100, 1.0), predict(102, 3.0), predict(100, 2.0), predict(102, 4.0)];
        let replay = read(&logs, LoadProtocol::V1, 1.0).expect("a log");
        assert_eq!(replay.times, [0, 500_000_000, 2_000_000_000, 2_500_000_000]);
        let bodies: Vec<String> =
            replay.requests.iter().map(|request| request.body.shown()).collect();
        assert_eq!(bodies[0], "{\"inputs\": {\"x\": [1.0]}}");
        assert_eq!(bodies[3], "{\"inputs\": {\"x\": [4.0]}}");
        let faster = read(&logs, LoadProtocol::V2Raw, 4.0).expect("a log");
        assert_eq!(faster.times, [0, 125_000_000, 500_000_000, 625_000_000]);
    }

    #[test]
    fn what_cannot_be_replayed_is_refused() {
        let request = ClassificationRequest::default();
        let log = ClassifyLog { request: Some(request), response: None };
        let classify = [log_of(1, LogType::ClassifyLog(log))];
        let replay = read(&classify, LoadProtocol::Grpc, 1.0).expect("a log");
        assert_eq!(replay.requests[0].path, Some(CLASSIFY));
        let refused = |logs: &[PredictionLog], speed| {
            read(logs, LoadProtocol::V1, speed).err().expect("refused").to_string()
        };
        assert!(
            refused(&classify, 1.0)
                .contains("record 1: a classify record can be replayed with --protocol grpc")
        );
        assert!(refused(&[], 1.0).contains("no requests"));
        assert!(refused(&[predict(1, 1.0)], 0.0).contains("--speed"));
    }
}
