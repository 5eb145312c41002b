//! The trial of a loaded version, on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::VersionKey;
use crate::config::{LogConfig, ReleaseConfig};
use crate::repository::servable::Servable;
use crate::repository::trial::{TrialReport, TrialSources, VersionTrial};
use crate::repository::{ModelHandle, RepositoryShared};
use crate::request_log::log_files;
use tensorserve_os as os;

/// The longest trial. What has run by then decides.
const LONGEST_TRIAL: Duration = Duration::from_secs(120);

/// After each request the trial rests this many times as long as it has run: requests of clients come first.
const REST: u32 = 3;

/// How long a trial waits until sampled requests are written to the request log.
const LOG_PATIENCE: Duration = Duration::from_secs(5);

/// What becomes of a version that is loaded.
pub(super) enum LoadedStep {
    /// It is of an earlier incarnation: it is unloaded.
    Former,
    /// It serves.
    Serves,
    /// It has to pass a trial first.
    OnTrial(Box<TrialJob>),
}

/// The trial of a version.
pub(super) struct TrialJob {
    key: VersionKey,
    old: ModelHandle,
    new: ModelHandle,
    release: ReleaseConfig,
    log: LogConfig,
    is_cancelled: Arc<AtomicBool>,
}

impl TrialJob {
    pub(super) fn new(
        key: VersionKey,
        (old, new): (Arc<Servable>, Arc<Servable>),
        (release, log): (ReleaseConfig, LogConfig),
        is_cancelled: Arc<AtomicBool>,
    ) -> Self {
        let handle = |servable| ModelHandle { servable, log: None, traffic: None };
        TrialJob { key, old: handle(old), new: handle(new), release, log, is_cancelled }
    }

    /// Drops both versions.
    pub(super) fn into_key(self) -> VersionKey {
        self.key
    }

    /// Runs recorded requests on both versions, at low priority. Blocks.
    pub(super) fn run(&self, shared: &RepositoryShared) -> TrialReport {
        os::lower_priority();
        let VersionKey { model, version, .. } = &self.key;
        let old = self.old.version();
        log::info!("{model} version {version}: on trial against version {old}");
        shared.logs.flush(LOG_PATIENCE);
        let logs = log_files(&self.log, model);
        let sources = TrialSources {
            model,
            folders: &[self.new.folder(), self.old.folder()],
            logs: &logs,
            most: self.release.most_requests,
        };
        let recorded = match shared.files.recorded(&sources) {
            Ok(recorded) => recorded,
            Err(error) => return TrialReport::refused(error.to_string()),
        };
        if recorded.requests.is_empty() {
            let mut report = TrialReport::refused(NO_REQUESTS);
            report.notes = recorded.notes;
            return report;
        }
        let began = Instant::now();
        let mut trial = VersionTrial::new(&self.old, &self.new, &self.release.rules);
        trial.run(&recorded.requests, |took| {
            let goes_on = || !self.is_cancelled.load(Relaxed) && !shared.board().stopped;
            thread::sleep(took * REST);
            goes_on() && began.elapsed() < LONGEST_TRIAL
        });
        let mut report = trial.report();
        report.notes = recorded.notes;
        if self.is_cancelled.load(Relaxed) {
            report.against.push("the trial was given up".to_owned());
        }
        report
    }
}

const NO_REQUESTS: &str = "there are no recorded requests to try it with: set request_log, or put recorded requests beside \
     a version (`tensorserve warmup record`)";
