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

/// After each request the trial rests at least this many times as long as it has run: requests of clients come first.
const SHORTEST_REST: u32 = 3;

/// So many times as long if the trial still ends within about [`UNHURRIED`]: the fewer requests of clients find a run
/// of the trial on their CPU, the less of it their latencies show.
const LONGEST_REST: u32 = 39;

/// What a trial may take if its requests run quickly.
const UNHURRIED: Duration = Duration::from_secs(30);

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
        let (began, count) = (Instant::now(), recorded.requests.len());
        let mut trial = VersionTrial::new(&self.old, &self.new, &self.release.rules);
        trial.run(&recorded.requests, |took| {
            let goes_on = || !self.is_cancelled.load(Relaxed) && !shared.board().stopped;
            thread::sleep(rest(took, count));
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

/// How long a trial of `count` requests rests after one that took so long.
fn rest(took: Duration, count: usize) -> Duration {
    let unhurried = UNHURRIED / u32::try_from(count.max(1)).unwrap_or(u32::MAX);
    (took * LONGEST_REST).min(unhurried).max(took * SHORTEST_REST)
}

const NO_REQUESTS: &str = "there are no recorded requests to try it with: set request_log, or put recorded requests beside \
     a version (`tensorserve warmup record`)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_rests_more_the_less_time_it_needs() {
        let rest_of = |micros, count| rest(Duration::from_micros(micros), count).as_micros();
        assert_eq!(rest_of(200, 1000), 39 * 200, "quick runs");
        assert_eq!(rest_of(5_000, 1000), 30_000, "as much as half a minute allows");
        assert_eq!(rest_of(100_000, 1000), 3 * 100_000, "slow runs");
        assert_eq!(rest_of(100_000, 10), 30_000_000 / 10, "few of them");
        assert_eq!(rest_of(0, 0), 0);
    }
}
