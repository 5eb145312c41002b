//! What people change of models while the server runs: taken out of service and put back, labels,
//! batching. It lasts until the server ends, or the sources say something else than they did when
//! it was changed; nothing on disk is written.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::control::Completion;
use super::requested::Leaving;
use super::{LifecycleManager, Model};
use crate::config::{BatchConfig, ModelConfig};
use crate::repository::journal::LifecycleEvent;
use crate::repository::version::Version;
use crate::repository::{ChangeRequest, State};
use tensorserve_tensor::error::{Code, Error, Result};

/// Labels that one model can be given.
const MOST_LABELS: usize = 64;

/// What was changed of a model, and what its source said then.
#[derive(Default)]
pub(super) struct Changed {
    labels: BTreeMap<String, Was<Option<i64>>>,
    batching: Option<Was<(BatchConfig, bool)>>,
}

struct Was<T> {
    was: T,
    is: T,
}

impl Changed {
    /// Puts what was changed in the place of what the source says, where that is the same still.
    pub(super) fn apply(&mut self, config: &mut ModelConfig) {
        self.labels.retain(|label, change| config.labels.get(label).copied() == change.was);
        for (label, change) in &self.labels {
            set_label(config, label, change.is);
        }
        let said = (config.batching.clone(), config.batching_file);
        self.batching = self.batching.take().filter(|change| change.was == said);
        if let Some(change) = &self.batching {
            (config.batching, config.batching_file) = change.is.clone();
        }
    }
}

fn set_label(config: &mut ModelConfig, label: &str, version: Option<i64>) {
    match version {
        Some(version) => drop(config.labels.insert(label.to_owned(), version)),
        None => drop(config.labels.remove(label)),
    }
}

/// Who waits for a model that is put back.
pub(super) struct Returning {
    model: Arc<str>,
    pub(super) deadline: Instant,
    completion: Completion,
}

impl LifecycleManager {
    /// Changes something of a model, because `by` wants it.
    pub(super) fn change(
        &mut self,
        name: &str,
        change: ChangeRequest,
        by: &Arc<str>,
        completion: Completion,
    ) {
        let Some((name, _)) = self.models.get_key_value(name) else {
            completion.finish(Err(Error::not_found(format!("there is no model {name}"))));
            return;
        };
        let name = Arc::clone(name);
        let outcome = match change {
            ChangeRequest::TakeOutOfService => return self.take_out(&name, by, completion),
            ChangeRequest::ReturnToService(deadline) => {
                return self.put_back(&name, deadline, by, completion);
            }
            ChangeRequest::SetLabel(label, version) => self.label(&name, &label, version, by),
            ChangeRequest::SetBatching(batching) => self.rebatch(&name, *batching, by),
        };
        completion.finish(outcome);
    }

    pub(super) fn note_change(
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

    /// Takes a model that a source has out of service. `completion` is given when nothing of it is in
    /// memory.
    fn take_out(&mut self, name: &Arc<str>, by: &Arc<str>, completion: Completion) {
        let Some(model) = self.models.get_mut(name).filter(|model| model.is_of_sources()) else {
            let message = format!("model {name} was loaded by request, and is no source's");
            completion.finish(Err(Error::new(Code::FailedPrecondition, message)));
            return;
        };
        let mut versions = 0;
        for version in model.versions.values_mut() {
            version.aspired = false;
            version.by = Arc::clone(by);
            match version.state {
                State::Loading | State::Warming | State::Ready | State::Draining => versions += 1,
                State::Found(_) | State::Gone | State::Failed(_) => {}
            }
        }
        let life = model.life;
        self.leaving.push(Leaving::new(life, versions, completion));
        self.offline.insert(Arc::clone(name));
        self.shared.board().offline.insert(name.to_string());
        self.fail_returns(name);
        if self.predecessors.contains_key(name) {
            self.part_with_predecessors(name);
            self.publish(name);
        }
        self.note_change(name, None, "unload", by);
        log::info!("{name}: taken out of service");
    }

    /// Whoever waits for a model to be back waits in vain: it is taken out again.
    fn fail_returns(&mut self, name: &Arc<str>) {
        let all = mem::take(&mut self.returning);
        for returning in all {
            if returning.model != *name {
                self.returning.push(returning);
                continue;
            }
            let message = format!("model {name} was unloaded before it was ready");
            returning.completion.finish(Err(Error::new(Code::Aborted, message)));
        }
    }

    /// Puts back what was taken out of service. `completion` is given when it is ready.
    fn put_back(
        &mut self,
        name: &Arc<str>,
        deadline: Instant,
        by: &Arc<str>,
        completion: Completion,
    ) {
        if !self.offline.remove(name) {
            let message = format!("model {name} is there already");
            completion.finish(Err(Error::new(Code::AlreadyExists, message)));
            return;
        }
        self.shared.board().offline.remove(&**name);
        if let Some(model) = self.models.get_mut(name) {
            model.versions.values_mut().for_each(|version| version.by = Arc::clone(by));
        }
        // The sources say which of its versions are wanted.
        self.looks = true;
        self.next_look = Instant::now();
        self.returning.push(Returning { model: Arc::clone(name), deadline, completion });
        self.note_change(name, None, "load", by);
        log::info!("{name}: put back into service");
    }

    /// Tells those who put models back how that went, where it is known. Called after the sources
    /// were looked at.
    pub(super) fn answer_returns(&mut self) {
        let now = Instant::now();
        for returning in mem::take(&mut self.returning) {
            let model = self.models.get(&returning.model);
            match outcome(&returning.model, model, now >= returning.deadline) {
                Some(outcome) => returning.completion.finish(outcome),
                None => self.returning.push(returning),
            }
        }
    }

    fn label(
        &mut self,
        name: &Arc<str>,
        label: &str,
        version: Option<i64>,
        by: &Arc<str>,
    ) -> Result<()> {
        let Some(model) = self.models.get_mut(name) else {
            return Ok(());
        };
        check_label(name, model, label, version)?;
        if model.is_of_sources() {
            let was = model.config.labels.get(label).copied();
            let changed = self.changed.entry(Arc::clone(name)).or_default();
            let change = changed.labels.entry(label.to_owned()).or_insert(Was { was, is: None });
            change.is = version;
        }
        set_label(&mut model.config, label, version);
        self.publish(name);
        self.note_change(name, version, "label", by);
        Ok(())
    }

    fn rebatch(&mut self, name: &Arc<str>, batching: BatchConfig, by: &Arc<str>) -> Result<()> {
        let Some(model) = self.models.get_mut(name) else {
            return Ok(());
        };
        let config = &mut model.config;
        let was = (config.batching.clone(), config.batching_file);
        (config.batching, config.batching_file) = (batching.clone(), false);
        if model.is_of_sources() {
            let changed = self.changed.entry(Arc::clone(name)).or_default();
            let change = changed.batching.get_or_insert(Was { was: was.clone(), is: was });
            change.is = (batching, false);
        }
        self.apply_batching();
        self.note_change(name, None, "batching", by);
        Ok(())
    }
}

fn check_label(name: &str, model: &Model, label: &str, version: Option<i64>) -> Result<()> {
    let labels = &model.config.labels;
    let Some(number) = version else {
        let missing = || Error::not_found(format!("model {name} has no label {label:?}"));
        return labels.contains_key(label).then_some(()).ok_or_else(missing);
    };
    if !model.versions.get(&number).is_some_and(Version::is_ready) {
        let message = format!("version {number} of model {name} is not available: no label for it");
        return Err(Error::new(Code::FailedPrecondition, message));
    }
    if !labels.contains_key(label) && labels.len() >= MOST_LABELS {
        let message = format!("model {name} has {MOST_LABELS} labels already, which is the most");
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    Ok(())
}

/// How the return of a model went; nothing while it is under way.
fn outcome(name: &str, model: Option<&Model>, is_late: bool) -> Option<Result<()>> {
    let wanted = || model.into_iter().flat_map(|m| m.versions.values()).filter(|v| v.aspired);
    if wanted().next().is_none() {
        return Some(Err(Error::not_found(format!("no source has a version of model {name}"))));
    }
    if !wanted().all(Version::is_settled) {
        return is_late.then(|| {
            let message = format!("model {name} is still being loaded");
            Err(Error::new(Code::DeadlineExceeded, message))
        });
    }
    if wanted().any(Version::is_ready) {
        return Some(Ok(()));
    }
    let failure = wanted().find_map(Version::failure).map(Error::duplicate);
    let waits = || {
        let state = wanted().next().map_or(String::new(), |version| version.state.to_string());
        Error::unavailable(format!("model {name}: {state}"))
    };
    Some(Err(failure.unwrap_or_else(waits)))
}
