//! Loads and unloads, each on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use crossbeam::channel::Sender;

use super::VersionKey;
use super::control::ManagerEvent;
use crate::config::ModelConfig;
use crate::repository::RepositoryShared;
use crate::repository::servable::{Servable, VersionLoad};
use crate::repository::stores::{FolderLease, StoreFetch};
use tensorserve_tensor::error::{Error, Result};

/// Starts threads that load and unload, and counts them.
pub(super) struct LoadThreads {
    shared: Arc<RepositoryShared>,
    /// Where they report to.
    reports: Sender<ManagerEvent>,
    /// Loads and unloads under way.
    running: usize,
}

/// The load of one version.
pub(super) struct LoadJob {
    pub(super) key: VersionKey,
    pub(super) folder: PathBuf,
    pub(super) config: ModelConfig,
    /// How many threads within an operation suited earlier versions.
    pub(super) threads: Option<usize>,
}

impl LoadThreads {
    pub(super) fn new(shared: Arc<RepositoryShared>, reports: Sender<ManagerEvent>) -> Self {
        LoadThreads { shared, reports, running: 0 }
    }

    /// Whether another load may begin.
    pub(super) fn has_free(&self) -> bool {
        self.running < self.shared.config.load_threads
    }

    /// Whether no load and no unload is under way.
    pub(super) fn are_idle(&self) -> bool {
        self.running == 0
    }

    /// One of them has reported its end.
    pub(super) fn ended(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// Begins to load a version.
    pub(super) fn load(&mut self, job: LoadJob) {
        let (shared, reports) = (Arc::clone(&self.shared), self.reports.clone());
        let VersionKey { model, version, .. } = &job.key;
        log::debug!("{model} version {version}: loading from {}", job.folder.display());
        self.running += 1;
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

    /// Begins to release the memory of a version that no request holds.
    pub(super) fn unload(&mut self, (key, servable): (VersionKey, Arc<Servable>)) {
        let reports = self.reports.clone();
        self.running += 1;
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
        let platform = shared.platforms.of_version(&self.folder, self.config.platform);
        let platform = platform.ok_or_else(|| Error::not_found("its files are no longer there"))?;
        let lease = self.lease(shared)?;
        let load = VersionLoad {
            model: &self.key.model,
            version: self.key.version,
            folder: &self.folder,
            platform: &**platform,
            config: &self.config,
            batcher: &shared.batcher,
            workers: &shared.workers,
            step_threads: &shared.step_threads,
            max_tensor_bytes: shared.max_tensor_bytes,
            cache: shared.cache.as_ref(),
            metrics: &shared.metrics,
            threads: self.threads,
            files: &*shared.files,
            lease,
        };
        load.run(|| drop(reports.send(ManagerEvent::Warming(self.key.clone()))))
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
