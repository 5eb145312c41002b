//! The requests of logs, one after another.

use std::path::PathBuf;

use super::answers::{AnswerKind, AnswerTensors, recorded};
use crate::cli::bench::replay::grpc_call;
use crate::cli::bench::target::ModelTarget;
use tensorserve_proto::serving::PredictionLog;
use tensorserve_proto::serving::model_spec::VersionChoice;
use tensorserve_protocols::tfs::warm_up::{WarmUpRecords, kind_of};
use tensorserve_tensor::error::{Error, Result};

/// A request as it is sent, and what its record says of its answer.
pub(super) struct ReplayRequest {
    /// Counted from 1, over all logs.
    pub(super) number: u64,
    /// The log, and the number of the record in it.
    pub(super) source: String,
    pub(super) path: &'static str,
    pub(super) message: Vec<u8>,
    pub(super) kind: AnswerKind,
    /// The version that answered it then.
    pub(super) version: Option<i64>,
    /// The recorded response, if it is wanted.
    pub(super) recorded: Option<AnswerTensors>,
}

/// Reads logs.
pub(super) struct ReplayRequests<'t> {
    target: &'t ModelTarget,
    /// Responses are wanted.
    verifies: bool,
    /// The logs that are still to be read, the next one last.
    logs: Vec<PathBuf>,
    open: Option<(String, WarmUpRecords)>,
    /// The number of the last record of the open log, and of the last request of all.
    record: u64,
    number: u64,
}

impl<'t> ReplayRequests<'t> {
    pub(super) fn new(logs: &[PathBuf], target: &'t ModelTarget, verifies: bool) -> Self {
        let logs = logs.iter().rev().cloned().collect();
        ReplayRequests { target, verifies, logs, open: None, record: 0, number: 0 }
    }

    /// How many requests the logs have, each of which can be sent and, if that is wanted, verified.
    ///
    /// # Errors
    /// As [`ReplayRequests::next`]; if there are none.
    pub(super) fn check(mut self) -> Result<u64> {
        while self.next()?.is_some() {}
        if self.number == 0 {
            return Err(Error::invalid("the logs have no requests"));
        }
        Ok(self.number)
    }

    /// The next request; `None` after the last.
    ///
    /// # Errors
    /// If a log cannot be read, or a record cannot be sent or, if that is wanted, has no response.
    pub(super) fn next(&mut self) -> Result<Option<ReplayRequest>> {
        loop {
            if self.open.is_none() {
                let Some(path) = self.logs.pop() else { return Ok(None) };
                let place = path.display().to_string();
                let missing = || Error::not_found(format!("{place}: there is no such file"));
                let records = WarmUpRecords::open(&path)?.ok_or_else(missing)?.without_limit();
                self.open = Some((place, records));
                self.record = 0;
            }
            let Some((place, records)) = &mut self.open else { return Ok(None) };
            self.record += 1;
            let source = format!("{place} record {}", self.record);
            match records.next().map_err(|error| error.context(&source))? {
                Some(record) => {
                    self.number += 1;
                    let request = self.request(source.clone(), record);
                    return request.map(Some).map_err(|error| error.context(source));
                }
                None => self.open = None,
            }
        }
    }

    fn request(&self, source: String, record: PredictionLog) -> Result<ReplayRequest> {
        let what = kind_of(&record);
        let unknown = || Error::invalid(format!("a {what} record cannot be replayed"));
        let kind = AnswerKind::of(&record).ok_or_else(unknown)?;
        let recorded = match self.verifies {
            true => Some(recorded(&record)?.ok_or_else(without_response)?),
            false => None,
        };
        let version = logged_version(&record);
        let (path, message) = grpc_call(record, self.target)?;
        let number = self.number;
        Ok(ReplayRequest { number, source, path, message, kind, version, recorded })
    }
}

fn without_response() -> Error {
    Error::invalid(
        "there is no response to compare with: log requests of a server with the setting request_log, whose records have \
         one, as `tensorserve warmup record` writes none",
    )
}

fn logged_version(record: &PredictionLog) -> Option<i64> {
    let spec = record.log_metadata.as_ref()?.model_spec.as_ref()?;
    match spec.version_choice.as_ref()? {
        VersionChoice::Version(version) => Some(*version),
        VersionChoice::VersionLabel(_) => None,
    }
}
