//! The requests of logs, one after another.

use std::path::PathBuf;

use super::answers::{AnswerKind, AnswerTensors, recorded};
use crate::cli::bench::replay::grpc_call;
use crate::cli::bench::target::ModelTarget;
use crate::cli::warmup;
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
    /// The logs that are still to be read, the next one last, and how many records of each.
    logs: Vec<(PathBuf, u64)>,
    open: Option<OpenLog>,
    /// The number of the last request.
    number: u64,
}

/// A log that is being read.
struct OpenLog {
    place: String,
    records: WarmUpRecords,
    /// The number of the last record, and of the last one that is wanted.
    record: u64,
    last: u64,
}

impl<'t> ReplayRequests<'t> {
    /// Those of all logs, and how many they are, each of which can be sent and, if that is wanted, verified. A server
    /// that logs what is replayed makes a log longer: what it adds is left out.
    ///
    /// # Errors
    /// As [`ReplayRequests::next`]; if there are none.
    pub(super) fn checked(
        paths: &[PathBuf],
        target: &'t ModelTarget,
        verifies: bool,
    ) -> Result<(Self, u64)> {
        let (mut logs, mut total) = (Vec::new(), 0);
        for path in paths.iter().rev() {
            let mut all = ReplayRequests::of(vec![(path.clone(), u64::MAX)], target, verifies);
            while all.next()?.is_some() {}
            logs.push((path.clone(), all.number));
            total += all.number;
        }
        if total == 0 {
            return Err(Error::invalid("the logs have no requests"));
        }
        Ok((ReplayRequests::of(logs, target, verifies), total))
    }

    fn of(logs: Vec<(PathBuf, u64)>, target: &'t ModelTarget, verifies: bool) -> Self {
        ReplayRequests { target, verifies, logs, open: None, number: 0 }
    }

    /// The next request; `None` after the last.
    ///
    /// # Errors
    /// If a log cannot be read, or a record cannot be sent or, if that is wanted, has no response.
    pub(super) fn next(&mut self) -> Result<Option<ReplayRequest>> {
        loop {
            if self.open.is_none() {
                let Some((path, last)) = self.logs.pop() else { return Ok(None) };
                let place = path.display().to_string();
                let records = warmup::open(&path)?.without_limit();
                self.open = Some(OpenLog { place, records, record: 0, last });
            }
            let Some(log) = &mut self.open else { return Ok(None) };
            log.record += 1;
            let source = format!("{} record {}", log.place, log.record);
            let is_wanted = log.record <= log.last;
            let read = || log.records.next().map_err(|error| error.context(&source));
            match is_wanted.then(read).transpose()?.flatten() {
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
