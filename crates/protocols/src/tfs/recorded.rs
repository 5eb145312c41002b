//! Recorded requests that a new version is tried with: those beside the versions, and those of the request log.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

use prost::Message;

use super::warm_up::{self, WarmUpRecords, file_of};
use tensorserve_core::comparison::NamedOutputs;
use tensorserve_core::engine::{ModelHandle, TrialRequest, TrialRequests, TrialSources};
use tensorserve_proto::serving::PredictionLog;
use tensorserve_proto::serving::prediction_log::LogType;
use tensorserve_tensor::error::Result;

/// The most bytes of requests from the log that are kept: they are in memory while the trial runs.
const MOST_BYTES: usize = 256 << 20;

/// A request of a file of `PredictionLog`s.
pub struct LoggedPrediction {
    /// Its file and number, for messages.
    pub source: String,
    /// The request.
    pub record: PredictionLog,
    /// The most bytes that examples with their context may take.
    pub max_bytes: usize,
}

impl TrialRequest for LoggedPrediction {
    fn source(&self) -> &str {
        &self.source
    }

    fn outputs(&self, version: &ModelHandle, deadline: Instant) -> Result<NamedOutputs> {
        warm_up::outputs(version, &self.record, self.max_bytes, deadline)
    }
}

/// The requests beside the new version, those beside the old one, and the newest of the log, up to as many as are
/// wanted.
///
/// # Errors
/// If a file beside a version cannot be read. What cannot be read of the log is noted.
pub(super) fn requests(sources: &TrialSources<'_>, max_bytes: usize) -> Result<TrialRequests> {
    let mut all = Vec::new();
    for folder in sources.folders {
        beside(folder, sources.most, &mut all).map_err(|error| error.context(folder.display()))?;
    }
    let mut notes = Vec::new();
    for path in sources.logs {
        if all.len() >= sources.most {
            break;
        }
        let wanted = sources.most - all.len();
        if let Err(error) = newest(path, sources.model, wanted, &mut all) {
            notes.push(format!("{}: the rest is left out: {error}", path.display()));
        }
    }
    let request = |(source, record)| -> Box<dyn TrialRequest> {
        Box::new(LoggedPrediction { source, record, max_bytes })
    };
    Ok(TrialRequests { requests: all.into_iter().map(request).collect(), notes })
}

type Sourced = (String, PredictionLog);

/// Adds the recorded requests beside a version.
fn beside(folder: &Path, most: usize, all: &mut Vec<Sourced>) -> Result<()> {
    let Some(mut records) = WarmUpRecords::open(&file_of(folder))? else {
        return Ok(());
    };
    while let Some(sourced) = records.next_request()? {
        if all.len() < most {
            all.push(sourced);
        }
    }
    Ok(())
}

/// Adds the last requests to `model` in a file of a request log, up to `wanted`. What is before an error counts.
fn newest(path: &Path, model: &str, wanted: usize, all: &mut Vec<Sourced>) -> Result<()> {
    let Some(records) = WarmUpRecords::open(path)? else {
        return Ok(()); // It was removed in this moment.
    };
    let (mut records, mut kept, mut bytes) = (records.without_limit(), VecDeque::new(), 0);
    let outcome = loop {
        let (source, request) = match records.next_request() {
            Ok(Some(sourced)) => sourced,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        if model_of(&request).is_none_or(|named| named != model) {
            continue;
        }
        let size = request.encoded_len();
        bytes += size;
        kept.push_back((source, request, size));
        while kept.len() > wanted || bytes > MOST_BYTES {
            bytes -= kept.pop_front().map_or(0, |(_, _, size)| size);
        }
    };
    all.extend(kept.into_iter().map(|(source, request, _)| (source, request)));
    outcome
}

/// The model that a logged request was for.
fn model_of(log: &PredictionLog) -> Option<&str> {
    let spec = match log.log_type.as_ref()? {
        LogType::PredictLog(log) => log.request.as_ref()?.model_spec.as_ref(),
        LogType::ClassifyLog(log) => log.request.as_ref()?.model_spec.as_ref(),
        LogType::RegressLog(log) => log.request.as_ref()?.model_spec.as_ref(),
        LogType::MultiInferenceLog(log) => log.request.as_ref()?.tasks.first()?.model_spec.as_ref(),
        LogType::SessionRunLog(_) | LogType::PredictStreamedLog(_) => None,
    };
    spec.map(|spec| spec.name.as_str())
}
