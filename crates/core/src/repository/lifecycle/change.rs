//! What operators change of a model while the server runs: in or out of service, labels, batching.

use std::sync::Arc;

use super::LifecycleManager;
use super::control::Completion;
use super::entry::ModelEntry;
use super::overrides::set_label;
use super::plan::ReturnOutcome;
use super::waiters::ReadyWaiter;
use crate::repository::ChangeRequest;
use crate::repository::version::Version;
use tensorserve_tensor::error::{Code, Error, Result};

/// Labels that one model can have.
const MOST_LABELS: usize = 64;

impl LifecycleManager {
    /// Changes a model at the request of the user `by`.
    pub(super) fn change_model(
        &mut self,
        name: &Arc<str>,
        change: ChangeRequest,
        by: &Arc<str>,
        completion: Completion,
    ) {
        let Some(entry) = self.models.get_mut(name).filter(|entry| !entry.is_removed()) else {
            let error = Error::not_found(format!("there is no model {name}"));
            self.outcomes.push((completion, Err(error)));
            return;
        };
        match change {
            ChangeRequest::TakeOutOfService => {
                self.take_out_of_service(name, by, completion);
            }
            ChangeRequest::ReturnToService(deadline) => {
                self.return_to_service(name, by, ReadyWaiter { deadline, completion });
            }
            ChangeRequest::SetLabel(label, version) => {
                let outcome = change_label(name, entry, &label, version, by);
                self.outcomes.push((completion, outcome));
            }
            ChangeRequest::Release(version) => {
                let outcome = self.release(name, version, by);
                self.outcomes.push((completion, outcome));
            }
            ChangeRequest::Drop(version) => {
                let outcome = self.drop_version(name, version, by);
                self.outcomes.push((completion, outcome));
            }
            ChangeRequest::SetBatching(batching) => {
                if entry.is_configured() {
                    entry.overrides.set_batching(&entry.config, &batching);
                }
                (entry.config.batching, entry.config.batching_file) = (*batching, false);
                entry.add_event("batching", None, by);
                self.apply_batching(name);
                self.outcomes.push((completion, Ok(())));
            }
        }
    }

    /// Unloads a model of a source until it is returned to service. Done when nothing of it is in
    /// memory.
    fn take_out_of_service(&mut self, name: &Arc<str>, by: &Arc<str>, completion: Completion) {
        let Some(entry) = self.models.get_mut(name).filter(|entry| entry.is_configured()) else {
            let message = format!("model {name} was loaded by request, not from a source");
            let error = Error::new(Code::FailedPrecondition, message);
            self.outcomes.push((completion, Err(error)));
            return;
        };
        entry.wait_for_unload(completion);
        entry.take_out_of_service(by);
        entry.add_event("unload", None, by);
        let waiting = entry.waiters.take_return();
        self.abort(name, waiting);
        log::info!("{name}: taken out of service");
    }

    /// Returns a model to service. Done when it is ready, or has failed.
    fn return_to_service(&mut self, name: &Arc<str>, by: &Arc<str>, waiter: ReadyWaiter) {
        let Some(entry) = self.models.get_mut(name).filter(|entry| entry.is_out_of_service) else {
            let message = format!("model {name} already exists and is in service");
            let error = Error::new(Code::AlreadyExists, message);
            self.outcomes.push((waiter.completion, Err(error)));
            return;
        };
        entry.is_out_of_service = false;
        entry.versions.values_mut().for_each(|version| version.by = Arc::clone(by));
        entry.waiters.wait_for_return(waiter);
        entry.add_event("load", None, by);
        self.sources.schedule.scan_sources_now();
        log::info!("{name}: returned to service");
    }

    /// Fails a request that waits for a model to be ready, because the model is unloaded.
    pub(super) fn abort(&mut self, name: &str, waiting: Option<Completion>) {
        let message = format!("model {name} was unloaded before it was ready");
        let abort = |completion| (completion, Err(Error::new(Code::Aborted, message)));
        self.outcomes.extend(waiting.map(abort));
    }
}

/// The outcome of a request that returns a model to service.
pub(super) fn return_result(name: &str, entry: &ModelEntry, outcome: ReturnOutcome) -> Result<()> {
    match outcome {
        ReturnOutcome::Ready => Ok(()),
        ReturnOutcome::NoVersion => {
            Err(Error::not_found(format!("no source has a version of model {name}")))
        }
        ReturnOutcome::Failed(number) => Err(entry.failure(number)),
        ReturnOutcome::Incomplete(number) => {
            let state = entry.versions.get(&number).map(|version| version.state.to_string());
            let state = state.unwrap_or_default();
            Err(Error::unavailable(format!("model {name} version {number}: {state}")))
        }
        ReturnOutcome::Late => {
            let message = format!("model {name} is still being loaded");
            Err(Error::new(Code::DeadlineExceeded, message))
        }
    }
}

/// Sets a label to a version, or (`None`) removes it.
fn change_label(
    name: &str,
    entry: &mut ModelEntry,
    label: &str,
    version: Option<i64>,
    by: &Arc<str>,
) -> Result<()> {
    check_label(name, entry, label, version)?;
    if entry.is_configured() {
        entry.overrides.set_label(&entry.config, label, version);
    }
    set_label(&mut entry.config, label, version);
    entry.publish_later();
    entry.add_event("label", version, by);
    Ok(())
}

fn check_label(name: &str, entry: &ModelEntry, label: &str, version: Option<i64>) -> Result<()> {
    let labels = &entry.config.labels;
    let Some(number) = version else {
        let missing = || Error::not_found(format!("model {name} has no label {label:?}"));
        return labels.contains_key(label).then_some(()).ok_or_else(missing);
    };
    if !entry.versions.get(&number).is_some_and(Version::is_ready) {
        let message = format!(
            "label {label:?} cannot be set: version {number} of model {name} is not available"
        );
        return Err(Error::new(Code::FailedPrecondition, message));
    }
    if !labels.contains_key(label) && labels.len() >= MOST_LABELS {
        let message = format!(
            "label {label:?} cannot be set: model {name} already has {MOST_LABELS} labels, the \
             most allowed"
        );
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    Ok(())
}
