//! Everything that the lifecycle manager keeps about one model.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::VersionKey;
use super::control::Completion;
use super::overrides::Overrides;
use crate::config::ModelConfig;
use crate::repository::State;
use crate::repository::servable::Servable;
use crate::repository::version::Version;
use tensorserve_tensor::error::{Code, Error};

/// Sources of one model whose thread counts are remembered.
const MOST_HINTS: usize = 16;

/// Why a model is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A source has it.
    Source,
    /// A request has loaded it, or is loading it.
    Request,
    /// It is not there any more. Versions of it may still be in memory, and what is remembered of
    /// it serves its next load.
    Removed,
}

/// One model: where it comes from, its settings, its versions, and who waits for them.
pub(super) struct ModelEntry {
    pub(super) name: Arc<str>,
    pub(super) origin: Origin,
    /// The path of the source that has the versions.
    pub(super) source: PathBuf,
    /// Increases whenever the versions come from another source or another request. Versions with
    /// the same number in two incarnations are different versions.
    pub(super) incarnation: u64,
    /// The settings that its source has for it, with the operators' overrides.
    pub(super) config: ModelConfig,
    pub(super) overrides: Overrides,
    /// An operator has taken it out of service.
    pub(super) is_out_of_service: bool,
    /// The versions of the present incarnation.
    pub(super) versions: BTreeMap<i64, Version>,
    /// Versions of earlier incarnations, until their memory is released.
    pub(super) former: Vec<FormerVersion>,
    /// The request that loads it.
    pub(super) load_waiter: Option<Waiter>,
    /// The request that returns it to service.
    pub(super) return_waiter: Option<Waiter>,
    /// Requests that unload it.
    pub(super) unload_waiters: Vec<UnloadWaiter>,
    /// How many threads within an operation suited its versions, by source.
    thread_hints: BTreeMap<PathBuf, usize>,
}

/// A version of an earlier incarnation.
pub(super) struct FormerVersion {
    pub(super) key: VersionKey,
    /// What it takes in memory, in bytes, by estimate.
    pub(super) bytes: u64,
    pub(super) stage: FormerStage,
}

/// What still happens to a version of an earlier incarnation.
pub(super) enum FormerStage {
    /// It is being loaded, and will be unloaded without having served.
    Loading,
    /// It serves until the present incarnation has a ready version: a predecessor.
    Serving(Arc<Servable>),
    /// It gets no new requests; those in flight finish.
    Draining(Arc<Servable>),
    /// Its memory is being released.
    Unloading,
}

impl FormerVersion {
    /// Whether it serves until the present incarnation can.
    pub(super) fn is_predecessor(&self) -> bool {
        matches!(self.stage, FormerStage::Serving(_))
    }

    /// Whether it drains, and no request holds it any more.
    pub(super) fn can_be_unloaded(&self) -> bool {
        match &self.stage {
            FormerStage::Draining(servable) => servable.is_idle(),
            FormerStage::Loading | FormerStage::Serving(_) | FormerStage::Unloading => false,
        }
    }
}

/// A request that waits for a model to become ready.
pub(super) struct Waiter {
    pub(super) deadline: Instant,
    pub(super) completion: Completion,
}

/// A request that waits until versions are out of memory.
pub(super) struct UnloadWaiter {
    pub(super) remaining: BTreeSet<VersionKey>,
    pub(super) completion: Completion,
}

impl ModelEntry {
    /// A model of which nothing is known yet.
    pub(super) fn new(name: Arc<str>) -> Self {
        ModelEntry {
            name,
            origin: Origin::Removed,
            source: PathBuf::new(),
            incarnation: 0,
            config: ModelConfig::default(),
            overrides: Overrides::default(),
            is_out_of_service: false,
            versions: BTreeMap::new(),
            former: Vec::new(),
            load_waiter: None,
            return_waiter: None,
            unload_waiters: Vec::new(),
            thread_hints: BTreeMap::new(),
        }
    }

    /// Begins another incarnation, without versions. Ready versions of the one before stay as
    /// predecessors.
    pub(super) fn begin_incarnation(
        &mut self,
        origin: Origin,
        source: PathBuf,
        config: ModelConfig,
    ) {
        self.retire_versions();
        self.incarnation += 1;
        self.origin = origin;
        self.source = source;
        self.config = config;
    }

    /// Takes all versions away: nothing of the model serves any more.
    pub(super) fn remove(&mut self) {
        self.origin = Origin::Removed;
        self.retire_versions();
        self.drain_predecessors();
    }

    /// Makes every version in memory one of an earlier incarnation, and drops the others.
    fn retire_versions(&mut self) {
        for (number, version) in mem::take(&mut self.versions) {
            let stage = match (version.state, version.servable) {
                (State::Loading | State::Warming, _) => FormerStage::Loading,
                (State::Ready, Some(servable)) => FormerStage::Serving(servable),
                (State::Draining, Some(servable)) => FormerStage::Draining(servable),
                (State::Draining, None) => FormerStage::Unloading,
                (State::Ready, None) | (State::Found(_) | State::Failed(_) | State::Gone, _) => {
                    continue;
                }
            };
            let (key, bytes) = (self.key(number), version.bytes.unwrap_or(0));
            self.former.push(FormerVersion { key, bytes, stage });
        }
    }

    /// No new request gets the predecessors. False if there are none.
    pub(super) fn drain_predecessors(&mut self) -> bool {
        let mut any = false;
        for former in &mut self.former {
            if let FormerStage::Serving(servable) = &former.stage {
                former.stage = FormerStage::Draining(Arc::clone(servable));
                any = true;
            }
        }
        any
    }

    /// What requests get: its ready versions, ascending, or as long as there are none, the
    /// predecessors.
    pub(super) fn servables(&self) -> Vec<Arc<Servable>> {
        let ready = self.versions.values().filter(|version| version.is_ready());
        let ready: Vec<_> = ready.filter_map(|version| version.servable.clone()).collect();
        if !ready.is_empty() {
            return ready;
        }
        let predecessors = self.former.iter().filter_map(|former| match &former.stage {
            FormerStage::Serving(servable) => Some(Arc::clone(servable)),
            FormerStage::Loading | FormerStage::Draining(_) | FormerStage::Unloading => None,
        });
        predecessors.collect()
    }

    /// Whether versions of an earlier incarnation serve until the present one can.
    pub(super) fn has_predecessors(&self) -> bool {
        self.former.iter().any(FormerVersion::is_predecessor)
    }

    /// Whether a version of the present incarnation serves.
    pub(super) fn has_ready_version(&self) -> bool {
        self.versions.values().any(Version::is_ready)
    }

    /// Whether a source has it.
    pub(super) fn is_configured(&self) -> bool {
        self.origin == Origin::Source
    }

    /// Whether neither a source has it nor a request.
    pub(super) fn is_removed(&self) -> bool {
        self.origin == Origin::Removed
    }

    /// Whether there is a reason to keep its name from others: a version that is in memory, waits
    /// to be loaded or should be, predecessors, or an operator who has taken it out of service.
    pub(super) fn is_in_use(&self) -> bool {
        let is_alive = |v: &Version| v.aspired || !matches!(v.state, State::Gone);
        let is_alive = self.versions.values().any(is_alive);
        !self.is_removed() && (is_alive || self.is_out_of_service || self.has_predecessors())
    }

    /// Whether nothing of it is in memory and nobody waits for it: what is left is what is
    /// remembered of it.
    pub(super) fn is_dormant(&self) -> bool {
        let waits = self.return_waiter.is_some() || !self.unload_waiters.is_empty();
        self.is_removed() && self.former.is_empty() && !waits
    }

    /// Whether anything is remembered that serves its next load; thread counts are only where
    /// `has_room`.
    pub(super) fn is_remembered(&self, has_room: bool) -> bool {
        !self.overrides.is_empty() || (has_room && !self.thread_hints.is_empty())
    }

    /// What identifies a version of the present incarnation.
    pub(super) fn key(&self, version: i64) -> VersionKey {
        VersionKey { model: Arc::clone(&self.name), incarnation: self.incarnation, version }
    }

    /// The version, if it is one of the present incarnation.
    pub(super) fn version_mut(&mut self, key: &VersionKey) -> Option<&mut Version> {
        if key.incarnation != self.incarnation {
            return None;
        }
        self.versions.get_mut(&key.version)
    }

    /// Versions of the present incarnation that are in memory, or on their way there.
    pub(super) fn in_memory(&self) -> impl Iterator<Item = (i64, &Version)> {
        let versions = self.versions.iter().map(|(&number, version)| (number, version));
        versions.filter(|(_, version)| version.is_in_memory())
    }

    /// A request waits until everything of the present incarnation is out of memory.
    pub(super) fn wait_for_unload(&mut self, completion: Completion) {
        let remaining = self.in_memory().map(|(number, _)| self.key(number)).collect();
        self.unload_waiters.push(UnloadWaiter { remaining, completion });
    }

    /// A request that waits for it to be ready waits in vain, because it is unloaded.
    pub(super) fn abort_waiters(&mut self) {
        for waiter in self.load_waiter.take().into_iter().chain(self.return_waiter.take()) {
            let message = format!("model {} was unloaded before it was ready", self.name);
            waiter.completion.finish(Err(Error::new(Code::Aborted, message)));
        }
    }

    /// A version is out of memory.
    pub(super) fn version_released(&mut self, key: &VersionKey) {
        self.former.retain(|former| former.key != *key);
        for waiter in &mut self.unload_waiters {
            waiter.remaining.remove(key);
        }
    }

    /// How many threads within an operation suited the versions from the present source.
    pub(super) fn thread_hint(&self) -> Option<usize> {
        self.thread_hints.get(&self.source).copied()
    }

    /// Remembers how many threads within an operation suited a version from the present source.
    pub(super) fn remember_threads(&mut self, threads: usize) {
        if self.thread_hints.len() >= MOST_HINTS {
            self.thread_hints.clear();
        }
        self.thread_hints.insert(self.source.clone(), threads);
    }
}
