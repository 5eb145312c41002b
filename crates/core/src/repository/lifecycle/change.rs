//! What operators change of a model while the server runs: out of service and back, labels,
//! batching.

use std::sync::Arc;

use super::LifecycleManager;
use super::control::Completion;
use super::entry::{ModelEntry, Waiter};
use super::overrides::set_label;
use super::plan::ReturnOutcome;
use crate::config::BatchConfig;
use crate::repository::ChangeRequest;
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
            let error = Error::not_found(format!("there is no model {name}"));
            self.outcomes.push((completion, Err(error)));
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
        self.outcomes.push((completion, outcome));
    }

    /// Unloads a model of a source until it is returned to service. Done when nothing of it is in
    /// memory.
    fn take_out_of_service(&mut self, name: &Arc<str>, by: &Arc<str>, completion: Completion) {
        let Some(entry) = self.models.get_mut(name).filter(|entry| entry.is_configured()) else {
            let message = format!("model {name} was loaded by request, and is no source's");
            let error = Error::new(Code::FailedPrecondition, message);
            self.outcomes.push((completion, Err(error)));
            return;
        };
        for version in entry.versions.values_mut() {
            version.aspired = false;
            version.by = Arc::clone(by);
        }
        entry.is_out_of_service = true;
        entry.wait_for_unload(completion);
        entry.drain_predecessors();
        entry.add_event("unload", None, by);
        let waiters = entry.take_ready_waiters();
        self.abort(name, waiters);
        log::info!("{name}: taken out of service");
    }

    /// Returns a model to service. Done when it is ready, or has failed.
    fn return_to_service(&mut self, name: &Arc<str>, by: &Arc<str>, waiter: Waiter) {
        let Some(entry) = self.models.get_mut(name).filter(|entry| entry.is_out_of_service) else {
            let message = format!("model {name} is there already");
            let error = Error::new(Code::AlreadyExists, message);
            self.outcomes.push((waiter.completion, Err(error)));
            return;
        };
        entry.is_out_of_service = false;
        entry.versions.values_mut().for_each(|version| version.by = Arc::clone(by));
        entry.return_waiter = Some(waiter);
        entry.awaits_scan = true;
        entry.add_event("load", None, by);
        self.schedule.scan_sources_now();
        log::info!("{name}: put back into service");
    }

    /// Completes the request that returns a model to service.
    pub(super) fn complete_return(&mut self, name: &Arc<str>, outcome: ReturnOutcome) {
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        let Some(Waiter { completion, .. }) = entry.return_waiter.take() else {
            return;
        };
        let outcome = match outcome {
            ReturnOutcome::Ready => Ok(()),
            ReturnOutcome::NoVersion => {
                Err(Error::not_found(format!("no source has a version of model {name}")))
            }
            ReturnOutcome::Failed(number) => Err(entry.failure(number)),
            ReturnOutcome::Incomplete(number) => {
                let state = entry.versions.get(&number).map(|version| version.state.to_string());
                let state = state.unwrap_or_default();
                Err(Error::unavailable(format!("model {name}: {state}")))
            }
            ReturnOutcome::Late => {
                let message = format!("model {name} is still being loaded");
                Err(Error::new(Code::DeadlineExceeded, message))
            }
        };
        self.outcomes.push((completion, outcome));
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
        entry.publish_later();
        entry.add_event("label", version, by);
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
        entry.add_event("batching", None, by);
        self.apply_batching(name);
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
