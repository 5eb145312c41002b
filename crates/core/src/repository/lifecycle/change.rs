//! What operators change of a model while the server runs: out of service and back, labels,
//! batching.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::LifecycleManager;
use super::control::Completion;
use super::entry::{ModelEntry, Waiter};
use super::overrides::set_label;
use crate::config::BatchConfig;
use crate::repository::ChangeRequest;
use crate::repository::journal::LifecycleEvent;
use crate::repository::version::Version;
use tensorserve_tensor::error::{Code, Error, Result};

/// Labels that one model can have.
const MOST_LABELS: usize = 64;

impl LifecycleManager {
    /// Changes a model, at the request of the user `by`.
    pub(super) fn change_model(
        &mut self,
        name: &str,
        change: ChangeRequest,
        by: &Arc<str>,
        completion: Completion,
    ) {
        let Some(entry) = self.models.get(name).filter(|entry| !entry.is_removed()) else {
            completion.finish(Err(Error::not_found(format!("there is no model {name}"))));
            return;
        };
        let name = Arc::clone(&entry.name);
        let outcome = match change {
            ChangeRequest::TakeOutOfService => {
                return self.take_out_of_service(&name, by, completion);
            }
            ChangeRequest::ReturnToService(deadline) => {
                let waiter = Waiter { deadline, completion };
                return self.return_to_service(&name, by, waiter);
            }
            ChangeRequest::SetLabel(label, version) => self.set_label(&name, &label, version, by),
            ChangeRequest::SetBatching(batching) => self.set_batching(&name, &batching, by),
        };
        completion.finish(outcome);
    }

    /// Records that an operator has changed a model.
    pub(super) fn record_change(
        &self,
        model: &str,
        version: Option<i64>,
        what: &'static str,
        by: &Arc<str>,
    ) {
        let (at, who) = (SystemTime::now(), Arc::clone(by));
        let event = LifecycleEvent { at, version, what, took: None, who, error: None };
        self.shared.journal.record(model, event);
    }

    /// Unloads a model of a source until it is returned to service. Done when nothing of it is in
    /// memory.
    fn take_out_of_service(&mut self, name: &Arc<str>, by: &Arc<str>, completion: Completion) {
        let Some(entry) = self.models.get_mut(name).filter(|entry| entry.is_configured()) else {
            let message = format!("model {name} was loaded by request, and is no source's");
            completion.finish(Err(Error::new(Code::FailedPrecondition, message)));
            return;
        };
        for version in entry.versions.values_mut() {
            version.aspired = false;
            version.by = Arc::clone(by);
        }
        entry.is_out_of_service = true;
        entry.abort_waiters();
        entry.wait_for_unload(completion);
        let must_publish = entry.drain_predecessors();
        self.shared.board().offline.insert(name.to_string());
        if must_publish {
            self.publish(name);
        }
        self.record_change(name, None, "unload", by);
        log::info!("{name}: taken out of service");
    }

    /// Returns a model to service. Done when it is ready, or has failed.
    fn return_to_service(&mut self, name: &Arc<str>, by: &Arc<str>, waiter: Waiter) {
        let Some(entry) = self.models.get_mut(name).filter(|entry| entry.is_out_of_service) else {
            let message = format!("model {name} is there already");
            waiter.completion.finish(Err(Error::new(Code::AlreadyExists, message)));
            return;
        };
        entry.is_out_of_service = false;
        entry.versions.values_mut().for_each(|version| version.by = Arc::clone(by));
        entry.return_waiter = Some(waiter);
        self.shared.board().offline.remove(&**name);
        // The sources say which of its versions are aspired.
        self.scans_sources = true;
        self.next_scan = Instant::now();
        self.record_change(name, None, "load", by);
        log::info!("{name}: put back into service");
    }

    /// Completes requests that return models to service, where the outcome is known. Called after
    /// the sources were scanned.
    pub(super) fn complete_returns(&mut self) {
        let now = Instant::now();
        for entry in self.models.values_mut() {
            let Some(waiter) = entry.return_waiter.take() else {
                continue;
            };
            match return_outcome(entry, now >= waiter.deadline) {
                Some(outcome) => waiter.completion.finish(outcome),
                None => entry.return_waiter = Some(waiter),
            }
        }
    }

    fn set_label(
        &mut self,
        name: &Arc<str>,
        label: &str,
        version: Option<i64>,
        by: &Arc<str>,
    ) -> Result<()> {
        let Some(entry) = self.models.get_mut(name) else {
            return Ok(());
        };
        check_label(entry, label, version)?;
        if entry.is_configured() {
            entry.overrides.set_label(&entry.config, label, version);
        }
        set_label(&mut entry.config, label, version);
        self.publish(name);
        self.record_change(name, version, "label", by);
        Ok(())
    }

    fn set_batching(
        &mut self,
        name: &Arc<str>,
        batching: &BatchConfig,
        by: &Arc<str>,
    ) -> Result<()> {
        let Some(entry) = self.models.get_mut(name) else {
            return Ok(());
        };
        if entry.is_configured() {
            entry.overrides.set_batching(&entry.config, batching);
        }
        (entry.config.batching, entry.config.batching_file) = (batching.clone(), false);
        self.apply_batching();
        self.record_change(name, None, "batching", by);
        Ok(())
    }
}

fn check_label(entry: &ModelEntry, label: &str, version: Option<i64>) -> Result<()> {
    let (name, labels) = (&entry.name, &entry.config.labels);
    let Some(number) = version else {
        let missing = || Error::not_found(format!("model {name} has no label {label:?}"));
        return labels.contains_key(label).then_some(()).ok_or_else(missing);
    };
    if !entry.versions.get(&number).is_some_and(Version::is_ready) {
        let message = format!("version {number} of model {name} is not available: no label for it");
        return Err(Error::new(Code::FailedPrecondition, message));
    }
    if !labels.contains_key(label) && labels.len() >= MOST_LABELS {
        let message = format!("model {name} has {MOST_LABELS} labels already, which is the most");
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    Ok(())
}

/// How the return of a model to service went; nothing while it is under way.
fn return_outcome(entry: &ModelEntry, is_late: bool) -> Option<Result<()>> {
    let name = &entry.name;
    let aspired = || entry.versions.values().filter(|version| version.aspired);
    if aspired().next().is_none() {
        return Some(Err(Error::not_found(format!("no source has a version of model {name}"))));
    }
    if !aspired().all(Version::is_settled) {
        return is_late.then(|| {
            let message = format!("model {name} is still being loaded");
            Err(Error::new(Code::DeadlineExceeded, message))
        });
    }
    if aspired().any(Version::is_ready) {
        return Some(Ok(()));
    }
    let failure = aspired().find_map(Version::failure).map(Error::duplicate);
    let waits = || {
        let state = aspired().next().map_or(String::new(), |version| version.state.to_string());
        Error::unavailable(format!("model {name}: {state}"))
    };
    Some(Err(failure.unwrap_or_else(waits)))
}
