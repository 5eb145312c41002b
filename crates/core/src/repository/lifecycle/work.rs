//! Loads and unloads, on threads of their own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use super::control::ManagerEvent;
use super::{LifecycleManager, VersionKey};
use crate::repository::State;
use crate::repository::servable::{Load, Servable};
use crate::repository::version::become_state;
use tensorserve_tensor::error::Error;

impl LifecycleManager {
    /// Begins to load a version. False if that has to wait.
    pub(super) fn start_load(&mut self, name: &Arc<str>, number: i64) -> bool {
        match self.admit(name, number) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                self.refuse(name, number, error);
                return true;
            }
        }
        let shared = Arc::clone(&self.shared);
        let Some(model) = self.models.get_mut(name) else {
            return false;
        };
        let Some(version) = model.versions.get_mut(&number) else {
            return false;
        };
        become_state(version, State::Loading);
        version.attempts += 1;
        let folder = version.folder.clone();
        let config = model.config.clone();
        let (threads, key) = (model.thread_hint(), model.key(number));
        let (name, report) = (Arc::clone(name), self.report.clone());
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
                let warming = || drop(report.send(ManagerEvent::Warming(key.clone())));
                load.run(warming)
            }));
            let loaded = loaded.unwrap_or_else(|_| {
                shared.metrics.panicked();
                Err(Error::internal("loading it met a bug; see the log"))
            });
            let time = loaded.is_ok().then(|| start.elapsed());
            shared.metrics.load_ended(&folder.to_string_lossy(), time);
            let _ = report.send(ManagerEvent::Loaded(key, loaded, start.elapsed()));
        };
        self.working += 1;
        self.spawn("load", load);
        true
    }

    /// Notes that a version can not be loaded, before anything of it was read.
    fn refuse(&mut self, name: &Arc<str>, number: i64, error: Error) {
        let Some(model) = self.models.get_mut(name) else {
            return;
        };
        if let Some(version) = model.versions.get_mut(&number) {
            version.attempts += 1;
        }
        let key = model.key(number);
        self.shared.metrics.load_failed(name);
        self.fail(&key, error);
    }

    /// Runs `work` on a thread of its own; on this one if there can be no other.
    pub(super) fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) {
        let slot = Arc::new(Mutex::new(Some(work)));
        let inside = Arc::clone(&slot);
        let take =
            |slot: &Mutex<Option<_>>| slot.lock().unwrap_or_else(PoisonError::into_inner).take();
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

    pub(super) fn start_drain(&mut self, name: &Arc<str>, number: i64) {
        if let Some(model) = self.models.get_mut(name)
            && let Some(version) = model.versions.get_mut(&number)
        {
            become_state(version, State::Draining);
            log::info!("{name} version {number}: no longer served");
        }
        self.publish(name);
    }

    /// Unloads draining versions that no request holds any more.
    pub(super) fn finish_drains(&mut self) {
        let mut free = Vec::new();
        for entry in self.models.values_mut() {
            let incarnation = entry.incarnation;
            for (&version, it) in &mut entry.versions {
                let draining = matches!(it.state, State::Draining);
                if draining && it.servable.as_ref().is_some_and(Servable::is_idle) {
                    let model = Arc::clone(&entry.name);
                    let key = VersionKey { model, incarnation, version };
                    free.extend(it.servable.take().map(|servable| (key, servable)));
                }
            }
        }
        for (key, servable) in free {
            self.unload(key, servable);
        }
    }

    /// Unloads a version that nobody else holds.
    pub(super) fn unload(&mut self, key: VersionKey, servable: Arc<Servable>) {
        let report = self.report.clone();
        self.working += 1;
        self.spawn("unload", move || {
            drop(servable);
            let _ = report.send(ManagerEvent::Unloaded(key));
        });
    }
}
