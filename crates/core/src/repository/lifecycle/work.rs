//! Loads and unloads, on threads of their own, and how they end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::control::ManagerEvent;
use super::entry::ModelEntry;
use super::{LifecycleManager, VersionKey, policy};
use crate::repository::State;
use crate::repository::servable::{Load, Servable};
use tensorserve_tensor::error::{Error, Result};

impl LifecycleManager {
    /// Begins to load a version.
    pub(super) fn start_load(&mut self, name: &Arc<str>, number: i64) {
        let shared = Arc::clone(&self.shared);
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        entry.load_attempted(number);
        let Some(version) = entry.versions.get_mut(&number) else {
            return;
        };
        version.set_state(State::Loading);
        let (folder, config) = (version.folder.clone(), entry.config.clone());
        let (threads, key) = (entry.thread_hint(), entry.key(number));
        let (name, reports) = (Arc::clone(name), self.reports.clone());
        log::debug!("{name} version {number}: loading from {}", folder.display());
        let load = move || {
            let start = Instant::now();
            let loaded = catch_unwind(AssertUnwindSafe(|| {
                let platform = shared.platforms.of_version(&folder, config.platform);
                let platform = platform.ok_or_else(|| Error::not_found("the model is gone"))?;
                let load = Load {
                    model: &name,
                    version: number,
                    folder: &folder,
                    platform: &**platform,
                    config: &config,
                    batcher: &shared.batcher,
                    workers: &shared.workers,
                    step_threads: &shared.step_threads,
                    max_tensor_bytes: shared.max_tensor_bytes,
                    metrics: &shared.metrics,
                    threads,
                    files: &*shared.files,
                };
                let warming = || drop(reports.send(ManagerEvent::Warming(key.clone())));
                load.run(warming)
            }));
            let loaded = loaded.unwrap_or_else(|_| {
                shared.metrics.panicked();
                Err(Error::internal("loading it met a bug; see the log"))
            });
            let time = loaded.is_ok().then(|| start.elapsed());
            shared.metrics.load_ended(&folder.to_string_lossy(), time);
            let _ = reports.send(ManagerEvent::Loaded(key, loaded, start.elapsed()));
        };
        self.working += 1;
        spawn("load", load);
    }

    /// A load has ended, after this time.
    pub(super) fn load_ended(
        &mut self,
        key: &VersionKey,
        outcome: Result<Arc<Servable>>,
        time: Duration,
    ) {
        self.working -= 1;
        let (name, number) = (&key.model, key.version);
        let servable = match outcome {
            Ok(servable) => servable,
            Err(error) => {
                self.memory_released(key);
                return self.load_failed(key, error);
            }
        };
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        if entry.version_loaded(key, servable) {
            // They may have changed while it was loaded.
            self.apply_batching(name);
            // Requests get it before anything else is done.
            self.carry_out_actions(std::slice::from_ref(name));
            log::info!("{name} version {number}: ready after {} ms", time.as_millis());
        }
    }

    /// A version cannot be loaded, or there is no room for it.
    pub(super) fn load_failed(&mut self, key: &VersionKey, error: Error) {
        let (name, number) = (&key.model, key.version);
        self.shared.metrics.load_failed(name);
        let serves = |entry: &ModelEntry| entry.has_ready_version() || entry.has_predecessors();
        let serves = self.models.get(name).is_some_and(serves);
        let consequence = if serves { "; the version that serves stays" } else { "" };
        log::error!("{name} version {number}: could not be loaded{consequence}: {error}");
        if let Some(cause) = std::error::Error::source(&error) {
            log::debug!("{name} version {number}: {cause}");
        }
        let first = self.shared.config.load_retry_interval;
        if let Some(version) = self.version(key) {
            version.retry_at = Instant::now() + policy::retry_delay(version.attempts, first);
            version.set_state(State::Failed(error));
        }
    }

    /// Begins to release the memory of a version that nobody else holds.
    pub(super) fn start_unload(&mut self, drained: Option<(VersionKey, Arc<Servable>)>) {
        let Some((key, servable)) = drained else {
            return;
        };
        let reports = self.reports.clone();
        self.working += 1;
        spawn("unload", move || {
            drop(servable);
            let _ = reports.send(ManagerEvent::Unloaded(key));
        });
    }

    /// The memory of a version is released.
    pub(super) fn unload_ended(&mut self, key: &VersionKey) {
        self.working -= 1;
        self.memory_released(key);
        if let Some(version) = self.version(key) {
            version.set_state(State::Gone);
            if version.aspired {
                // It became aspired again while it drained.
                self.schedule.scan_sources_now();
            }
        }
        log::info!("{} version {}: unloaded", key.model, key.version);
    }
}

/// Runs `work` on a thread of its own; on this one if there can be no other.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    let slot = Arc::new(Mutex::new(Some(work)));
    let inside = Arc::clone(&slot);
    let take = |slot: &Mutex<Option<_>>| slot.lock().unwrap_or_else(PoisonError::into_inner).take();
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
