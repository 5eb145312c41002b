//! Loads and unloads, each on a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;

use super::VersionKey;
use super::control::ManagerEvent;
use super::tried::TrialJob;
use crate::config::ModelConfig;
use crate::receipt::digest;
use crate::repository::RepositoryShared;
use crate::repository::files::{FilesInUse, Fingerprint};
use crate::repository::servable::{Servable, VersionLoad};
use crate::repository::stores::{FolderLease, StoreFetch};
use crate::repository::trial::TrialReport;
use tensorserve_tensor::error::{Error, Result};

/// Starts threads that load and unload, and counts them.
pub(super) struct LoadThreads {
    shared: Arc<RepositoryShared>,
    /// Where they report to.
    reports: Sender<ManagerEvent>,
    running: Turns,
}

/// Loads and unloads under way, each since when.
#[derive(Default)]
struct Turns {
    running: BTreeMap<VersionKey, Instant>,
    /// Loads and unloads that have taken longer than a turn may. They hang, as far as one can tell: others go on
    /// without them.
    late: BTreeSet<VersionKey>,
}

/// The most late loads and unloads that others go on without: each has a thread.
const MOST_LATE: usize = 16;

impl Turns {
    fn begin(&mut self, key: &VersionKey) {
        self.running.insert(key.clone(), Instant::now());
    }

    fn end(&mut self, key: &VersionKey) {
        self.running.remove(key);
        self.late.remove(key);
    }

    /// Whether one more may begin, where `most` may be under way beside those that have taken longer than
    /// `longest` at the time `now`.
    fn has_free(&mut self, now: Instant, most: usize, longest: Duration) -> bool {
        if self.running.len() - self.late.len() < most {
            return true;
        }
        for (key, began) in &self.running {
            let time = now.saturating_duration_since(*began);
            let has_room = self.late.len() < MOST_LATE;
            if time >= longest && has_room && self.late.insert(key.clone()) {
                log::warn!(
                    "{} version {}: its load or unload has taken {} s so far; other versions no longer wait for it",
                    key.model,
                    key.version,
                    time.as_secs()
                );
            }
        }
        self.running.len() - self.late.len() < most
    }
}

/// The load of one version.
pub(super) struct LoadJob {
    pub(super) key: VersionKey,
    pub(super) folder: PathBuf,
    pub(super) config: ModelConfig,
    /// What its files looked like when they were checked.
    pub(super) checked: Option<Fingerprint>,
    /// How many threads within an operation suited earlier versions.
    pub(super) threads: Option<usize>,
}

impl LoadThreads {
    pub(super) fn new(shared: Arc<RepositoryShared>, reports: Sender<ManagerEvent>) -> Self {
        LoadThreads { shared, reports, running: Turns::default() }
    }

    /// Whether another load may begin.
    pub(super) fn has_free(&mut self) -> bool {
        let config = &self.shared.config;
        self.running.has_free(Instant::now(), config.load_threads, config.longest_turn)
    }

    /// Whether no load and no unload is under way.
    pub(super) fn are_idle(&self) -> bool {
        self.running.running.is_empty()
    }

    /// One of them has reported its end.
    pub(super) fn ended(&mut self, key: &VersionKey) {
        self.running.end(key);
    }

    /// Begins to load a version.
    pub(super) fn load(&mut self, job: LoadJob) {
        let (shared, reports) = (Arc::clone(&self.shared), self.reports.clone());
        let VersionKey { model, version, .. } = &job.key;
        log::debug!("{model} version {version}: loading from {}", job.folder.display());
        self.running.begin(&job.key);
        spawn("load", move || {
            let start = Instant::now();
            let loaded = catch_unwind(AssertUnwindSafe(|| job.run(&shared, &reports)));
            let loaded = loaded.unwrap_or_else(|_| {
                shared.metrics.panicked();
                Err(Error::internal("internal error during the load; see the server log"))
            });
            let time = loaded.is_ok().then(|| start.elapsed());
            shared.metrics.load_ended(&job.folder.to_string_lossy(), time);
            let _ = reports.send(ManagerEvent::Loaded(job.key, loaded, start.elapsed()));
        });
    }

    /// Begins the trial of a loaded version. It is no load: others do not wait for it.
    pub(super) fn try_version(&self, job: TrialJob) {
        let (shared, reports) = (Arc::clone(&self.shared), self.reports.clone());
        spawn("trial", move || {
            let tried = catch_unwind(AssertUnwindSafe(|| job.run(&shared)));
            let report = tried.unwrap_or_else(|_| {
                shared.metrics.panicked();
                TrialReport::refused("internal error during the trial; see the server log")
            });
            // Before the report, so that neither version is held any more when it arrives.
            let key = job.into_key();
            let _ = reports.send(ManagerEvent::Judged(key, Box::new(report)));
        });
    }

    /// Begins to release the memory of a version that no request holds.
    pub(super) fn unload(&mut self, (key, servable): (VersionKey, Arc<Servable>)) {
        let reports = self.reports.clone();
        self.running.begin(&key);
        spawn("unload", move || {
            drop(servable);
            let _ = reports.send(ManagerEvent::Unloaded(key));
        });
    }
}

impl LoadJob {
    /// Loads and warms the version. Blocks for as long as that takes.
    fn run(
        &self,
        shared: &RepositoryShared,
        reports: &Sender<ManagerEvent>,
    ) -> Result<Arc<Servable>> {
        let lease = self.lease(shared)?;
        let named = self.config.platform;
        let platform = shared.platforms.of_version(&self.folder, named);
        let platform = platform.ok_or_else(|| Error::not_found("its files are no longer there"))?;
        let runs_own_code = platform.info.must_be_named || self.config.code.is_some();
        let found_by = (&shared.platforms, named);
        let files = FilesInUse::begin(&self.folder, self.checked, found_by, runs_own_code)?;
        let digest = self.config.receipts.then(|| digest::of_version(&self.folder)).transpose()?;
        let load = VersionLoad {
            model: &self.key.model,
            version: self.key.version,
            folder: &self.folder,
            platform,
            config: &self.config,
            batcher: &shared.batcher,
            workers: &shared.workers,
            step_threads: &shared.step_threads,
            max_tensor_bytes: shared.max_tensor_bytes,
            second_look: shared.config.second_look,
            cache: shared.cache.as_ref(),
            metrics: &shared.metrics,
            threads: self.threads,
            files: &*shared.files,
            digest,
            lease,
        };
        files.end(load.run(|| drop(reports.send(ManagerEvent::Warming(self.key.clone())))))
    }
}

impl LoadJob {
    /// Keeps the files of a version from a store in the cache.
    fn lease(&self, shared: &RepositoryShared) -> Result<Option<FolderLease>> {
        let lease = shared.stores.lease(&self.folder);
        let is_local = matches!(shared.stores.fetch(&self.folder), StoreFetch::Local);
        if lease.is_none() && !is_local {
            return Err(Error::unavailable(
                "its files were removed from the cache; they are fetched again",
            ));
        }
        Ok(lease)
    }
}

fn take<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Runs `work` on a thread of its own, or on this one if no other can be started.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let slot = Arc::new(Mutex::new(Some(work)));
    let inside = Arc::clone(&slot);
    let thread = thread::Builder::new().name(name.to_owned());
    let spawned = thread.spawn(move || {
        if let Some(work) = take(&inside) {
            work();
        }
    });
    if spawned.is_err()
        && let Some(work) = take(&slot)
    {
        work();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_too_long_keeps_nobody_waiting() {
        let key = |version| VersionKey { model: "m".into(), incarnation: 0, version };
        let (longest, mut turns) = (Duration::from_secs(60), Turns::default());
        turns.begin(&key(1));
        turns.begin(&key(2));
        let now = Instant::now();
        assert!(!turns.has_free(now, 2, longest) && turns.has_free(now, 3, longest));
        let later = now + longest;
        assert!(turns.has_free(later, 2, longest));
        // Loads that begin now have turns of their own.
        turns.running.insert(key(3), later);
        turns.running.insert(key(4), later);
        assert!(!turns.has_free(later, 2, longest));
        turns.end(&key(1));
        assert!(!turns.has_free(later, 2, longest), "it was not counted");
        turns.end(&key(3));
        assert!(turns.has_free(later, 2, longest));
    }

    #[test]
    fn only_so_many_hang_beside_others() {
        let (longest, mut turns) = (Duration::ZERO, Turns::default());
        let mut begun = 0;
        while turns.has_free(Instant::now(), 2, longest) {
            begun += 1;
            turns.begin(&VersionKey { model: "m".into(), incarnation: 0, version: begun });
        }
        assert_eq!(begun, 2 + MOST_LATE as i64);
    }
}
