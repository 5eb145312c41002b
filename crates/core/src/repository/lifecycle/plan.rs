//! The next action on one model: pure functions of a snapshot of its entry.

use std::time::Instant;

use crate::config::VersionTransition;
use crate::repository::policy::{Phase, TransitionStep, VersionSnapshot, next_transition_step};

/// What decides about the next action on one model.
#[derive(Clone, Debug)]
pub(super) struct ModelSnapshot {
    pub(super) transition: VersionTransition,
    /// Versions of the present incarnation.
    pub(super) versions: Vec<VersionSnapshot>,
    /// Versions of earlier incarnations that are in memory. Those that are ready, the
    /// predecessors, serve until the present incarnation can.
    pub(super) former: Vec<VersionSnapshot>,
    /// Requests do not get yet what the model serves now.
    pub(super) must_publish: bool,
    /// The deadline of the request that loads it.
    pub(super) load_deadline: Option<Instant>,
    /// The deadline of the request that returns it to service, once the sources have been scanned
    /// for it.
    pub(super) return_deadline: Option<Instant>,
    /// A request that unloads it has nothing left to wait for.
    pub(super) unload_is_done: bool,
}

/// What all models share.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlanLimits {
    pub(super) now: Instant,
    /// Fewer loads and unloads are under way than `load_threads`.
    pub(super) has_free_thread: bool,
    /// The memory of all models, if it is limited.
    pub(super) memory: Option<ModelMemory>,
}

/// The memory of all models, in bytes, by estimate.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelMemory {
    pub(super) limit: u64,
    /// What versions in memory take, also those on their way there.
    pub(super) used: u64,
    /// The part of it that will be released without another decision.
    pub(super) leaving: u64,
}

/// One action on one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Let requests get what the model serves now.
    Publish,
    /// Load this version.
    Load(i64),
    /// Do not load this version: it does not fit into memory.
    Refuse(i64, NoRoom),
    /// Stop serving this version.
    Drain(i64),
    /// Stop serving the predecessors.
    DrainPredecessors,
    /// Release the memory of this version.
    Unload(i64),
    /// Release the memory of the version of an earlier incarnation at this index.
    UnloadFormer(usize),
    /// This version is not aspired, and never served: it is as good as unloaded.
    Discard(i64),
    /// The request that loads the model has an outcome.
    CompleteLoad(LoadOutcome),
    /// The request that returns the model to service has an outcome.
    CompleteReturn(ReturnOutcome),
    /// Requests that unload the model have succeeded.
    CompleteUnloads,
}

/// How a version does not fit into memory. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoRoom {
    pub(super) needed: u64,
    /// What versions take that will stay in memory.
    pub(super) staying: u64,
    pub(super) limit: u64,
    /// The version would fit if the model's other versions were unloaded first.
    pub(super) fits_alone: bool,
}

/// The outcome of a request that loads a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadOutcome {
    /// All of its versions are ready.
    Ready,
    /// This version has failed.
    Failed(i64),
    /// The deadline has passed.
    Late,
}

/// The outcome of a request that returns a model to service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReturnOutcome {
    /// A version is ready, and the others are or have failed.
    Ready,
    /// No source has a version of it.
    NoVersion,
    /// No version is ready, and this one has failed.
    Failed(i64),
    /// No version is ready or has failed; this one waits for files.
    Incomplete(i64),
    /// The deadline has passed.
    Late,
}

/// The next action, if there is one now. Each makes a change after which it is not next any more.
pub(super) fn next_action(model: &ModelSnapshot, limits: &PlanLimits) -> Option<Action> {
    if model.must_publish {
        // Requests see each change before the next one is made.
        return Some(Action::Publish);
    }
    next_unload(model)
        .or_else(|| next_swap(model, limits))
        .or_else(|| next_discard(model))
        .or_else(|| next_completion(model, limits.now))
}

fn is_ready(version: &VersionSnapshot) -> bool {
    version.phase == Phase::Ready
}

fn is_drained(version: &VersionSnapshot) -> bool {
    version.phase == Phase::Drained
}

/// Whether a version is not aspired and has never been in memory.
fn is_useless(version: &VersionSnapshot) -> bool {
    let phase = version.phase;
    let is_waiting = matches!(phase, Phase::Unchecked | Phase::Incomplete | Phase::Loadable);
    !version.aspired && (is_waiting || phase == Phase::Failed)
}

fn next_unload(model: &ModelSnapshot) -> Option<Action> {
    if let Some(drained) = model.versions.iter().find(|v| is_drained(v)) {
        return Some(Action::Unload(drained.version));
    }
    model.former.iter().position(is_drained).map(Action::UnloadFormer)
}

/// The next step from versions that serve to those that should.
fn next_swap(model: &ModelSnapshot, limits: &PlanLimits) -> Option<Action> {
    let has_predecessors = model.former.iter().any(is_ready);
    if has_predecessors && model.versions.iter().any(is_ready) {
        return Some(Action::DrainPredecessors);
    }
    let number = match next_transition_step(&model.versions, model.transition)? {
        TransitionStep::Drain(number) => return Some(Action::Drain(number)),
        TransitionStep::Load(number) => number,
    };
    if !limits.has_free_thread {
        return None;
    }
    // Where memory counts more than that the model can be used, what it had from another source
    // goes before it is loaded from the new one.
    if model.transition == VersionTransition::ResourcePreserving {
        if has_predecessors {
            return Some(Action::DrainPredecessors);
        }
        if !model.former.is_empty() {
            return None;
        }
    }
    admit(model, number, limits.memory)
}

/// Whether a version may be loaded now, or later (`None`), or not.
fn admit(model: &ModelSnapshot, number: i64, memory: Option<ModelMemory>) -> Option<Action> {
    let Some(ModelMemory { limit, used, leaving }) = memory else {
        return Some(Action::Load(number));
    };
    let needed = model.versions.iter().find(|v| v.version == number)?.bytes;
    let staying = used.saturating_sub(leaving);
    if staying.saturating_add(needed) > limit {
        let all = model.versions.iter().chain(&model.former);
        let own: u64 = all.filter(|v| v.phase.is_in_memory()).map(|v| v.bytes).sum();
        let without_own = staying.saturating_sub(own).saturating_add(needed);
        let fits_alone = own > 0 && without_own <= limit;
        return Some(Action::Refuse(number, NoRoom { needed, staying, limit, fits_alone }));
    }
    let fits = used.saturating_add(needed) <= limit;
    fits.then_some(Action::Load(number))
}

fn next_discard(model: &ModelSnapshot) -> Option<Action> {
    model.versions.iter().find(|v| is_useless(v)).map(|v| Action::Discard(v.version))
}

fn next_completion(model: &ModelSnapshot, now: Instant) -> Option<Action> {
    if model.unload_is_done {
        return Some(Action::CompleteUnloads);
    }
    let load = model.load_deadline.and_then(|deadline| load_outcome(model, now >= deadline));
    if let Some(outcome) = load {
        return Some(Action::CompleteLoad(outcome));
    }
    let outcome = model.return_deadline.and_then(|at| return_outcome(model, now >= at));
    outcome.map(Action::CompleteReturn)
}

/// How the load of a requested model went; `None` while it is under way.
fn load_outcome(model: &ModelSnapshot, is_late: bool) -> Option<LoadOutcome> {
    if let Some(failed) = model.versions.iter().find(|v| v.phase == Phase::Failed) {
        return Some(LoadOutcome::Failed(failed.version));
    }
    if model.versions.iter().all(|v| v.phase == Phase::Ready) {
        return Some(LoadOutcome::Ready);
    }
    is_late.then_some(LoadOutcome::Late)
}

/// How the return of a model to service went; `None` while it is under way.
fn return_outcome(model: &ModelSnapshot, is_late: bool) -> Option<ReturnOutcome> {
    let aspired = || model.versions.iter().filter(|v| v.aspired);
    let Some(first) = aspired().next() else {
        return Some(ReturnOutcome::NoVersion);
    };
    if !aspired().all(|v| v.phase.is_settled(v.aspired)) {
        return is_late.then_some(ReturnOutcome::Late);
    }
    if aspired().any(|v| v.phase == Phase::Ready) {
        return Some(ReturnOutcome::Ready);
    }
    if let Some(failed) = aspired().find(|v| v.phase == Phase::Failed) {
        return Some(ReturnOutcome::Failed(failed.version));
    }
    Some(ReturnOutcome::Incomplete(first.version))
}

#[cfg(test)]
mod tests;
