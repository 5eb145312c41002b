//! Everything that the lifecycle manager keeps about one model, and how it changes.

use std::collections::BTreeMap;
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::SystemTime;

use super::VersionKey;
use super::control::Completion;
use super::former::{FormerStage, FormerVersions};
use super::overrides::Overrides;
use super::plan::ModelSnapshot;
use super::tried::{LoadedStep, TrialJob};
use super::waiters::Waiters;
use super::work::LoadJob;
use crate::config::{ModelConfig, VersionPolicy};
use crate::repository::board::{ModelOrigin, ModelStatus};
use crate::repository::held::HeldVersions;
use crate::repository::journal::{LifecycleEvent, WATCH};
use crate::repository::policy::VersionSnapshot;
use crate::repository::servable::Servable;
use crate::repository::version::{FileCheck, Standing, Version};
use crate::repository::{VersionState, VersionStatus};
use tensorserve_tensor::error::Error;

/// Sources of one model whose thread counts are remembered.
const MOST_HINTS: usize = 16;

/// Unloaded versions of a model that readers still see.
const MOST_UNLOADED: usize = 16;

/// Why a model is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A source has it.
    Source,
    /// A request has loaded it, or is loading it.
    Request,
    /// The model is not there any more. Versions of it may still be in memory, and what is remembered of it serves its
    /// next load.
    Removed,
}

/// One model: where it comes from, its settings, its versions, and the requests that wait for it.
pub(super) struct ModelEntry {
    name: Arc<str>,
    pub(super) origin: Origin,
    /// The path of the source that has the versions.
    pub(super) source: PathBuf,
    /// Increases whenever the versions come from another source or another request. Versions with
    /// the same number in two incarnations are different versions.
    incarnation: u64,
    /// The settings that its source has for it, with the operators' overrides.
    pub(super) config: ModelConfig,
    pub(super) overrides: Overrides,
    /// An operator has taken it out of service.
    pub(super) is_out_of_service: bool,
    /// The versions of the present incarnation.
    pub(super) versions: BTreeMap<i64, Version>,
    former: FormerVersions,
    /// Requests do not get yet what it serves now.
    must_publish: bool,
    pub(super) waiters: Waiters,
    /// How many threads within an operation suited its versions, by source.
    thread_hints: BTreeMap<PathBuf, usize>,
    /// Its lifecycle events since they were last taken, without those of present versions.
    events: Vec<LifecycleEvent>,
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
            former: FormerVersions::default(),
            must_publish: false,
            waiters: Waiters::default(),
            thread_hints: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    /// Its name.
    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// What decides about the next action on it.
    pub(super) fn snapshot(&self) -> ModelSnapshot {
        let versions = self.versions.iter().map(|(&number, version)| version.snapshot(number));
        ModelSnapshot {
            transition: self.config.transition,
            versions: versions.collect(),
            former: self.former.snapshots().collect(),
            must_publish: self.must_publish,
            load_deadline: self.waiters.load_deadline(),
            return_deadline: self.waiters.return_deadline(),
            unload_is_done: self.waiters.has_done_unload(),
        }
    }

    /// Takes over what a source has of it: its settings, and where its versions come from.
    pub(super) fn adopt(&mut self, source: PathBuf, mut config: ModelConfig) {
        self.overrides.apply(&mut config);
        if !self.is_configured() || self.source != source {
            return self.begin_incarnation(Origin::Source, source, config);
        }
        // Labels, the log and traffic are published with the versions.
        self.must_publish |= self.config.labels != config.labels || self.config.log != config.log;
        self.must_publish |= self.config.traffic != config.traffic;
        self.config = config;
    }

    /// Takes over which versions its source has, by number with their directories: adds those that
    /// are aspired, and finds out of each whether it is. Those that are `held` are not, and others take their place.
    pub(super) fn adopt_versions(&mut self, found: BTreeMap<i64, PathBuf>, held: &HeldVersions) {
        let aspired = self.aspired(&found, held);
        for (number, folder) in found {
            match self.versions.get_mut(&number) {
                // One in memory keeps the directory that it was loaded from.
                Some(version) if version.is_in_memory() => {}
                Some(version) => version.folder = folder,
                // One that is not aspired, and never was, is of no interest.
                None if !aspired.contains(&number) => {}
                None => drop(self.versions.insert(number, Version::new(folder))),
            }
        }
        for (number, version) in &mut self.versions {
            let is_aspired = aspired.contains(number) || version.standing == Standing::HeldBefore;
            if version.aspired && !is_aspired {
                version.by = WATCH.into();
            }
            version.aspired = is_aspired;
            if is_aspired && matches!(version.state, VersionState::Unloaded) {
                version.files = FileCheck::Pending;
                version.seen = None;
                version.set_state(VersionState::Found(
                    "its files have not been checked again yet".to_owned(),
                ));
            }
        }
    }

    /// Versions that its policy names, and that are not there.
    pub(super) fn missing_versions(&self) -> Vec<i64> {
        let VersionPolicy::Specific(named) = &self.config.policy else {
            return Vec::new();
        };
        let is_there = |number: &&i64| self.versions.get(number).is_some_and(|v| v.aspired);
        named.iter().filter(|number| !is_there(number)).copied().collect()
    }

    /// Begins another incarnation, without versions. Ready versions of the one before stay as
    /// predecessors.
    pub(super) fn begin_incarnation(
        &mut self,
        origin: Origin,
        source: PathBuf,
        config: ModelConfig,
    ) {
        self.must_publish |= !self.servables().is_empty();
        self.retire_versions();
        self.incarnation += 1;
        self.origin = origin;
        self.source = source;
        self.config = config;
    }

    /// Takes all versions away: nothing of the model serves any more, and its name is free.
    pub(super) fn remove(&mut self) {
        self.origin = Origin::Removed;
        self.is_out_of_service = false;
        self.retire_versions();
        self.drain_predecessors();
    }

    /// No source has it any more: none of its versions is aspired.
    pub(super) fn withdraw(&mut self) {
        self.versions.values_mut().for_each(|version| version.aspired = false);
        self.is_out_of_service = false;
        self.overrides = Overrides::default();
        self.drain_predecessors();
    }

    /// The user `by` takes it out of service: none of its versions is aspired until it is returned.
    pub(super) fn take_out_of_service(&mut self, by: &Arc<str>) {
        for version in self.versions.values_mut() {
            version.aspired = false;
            version.by = Arc::clone(by);
        }
        self.is_out_of_service = true;
        self.drain_predecessors();
    }

    /// Makes every version in memory one of an earlier incarnation, and drops the others.
    fn retire_versions(&mut self) {
        for (number, mut version) in mem::take(&mut self.versions) {
            self.events.extend(version.take_events(number));
            let (key, bytes) = (self.key(number), version.memory_estimate());
            let stage = match (version.state, version.servable) {
                (VersionState::Loading | VersionState::Warming, _) => FormerStage::Loading,
                (VersionState::Trial | VersionState::Held(_), Some(servable)) => {
                    version.trial_is_cancelled.store(true, Relaxed);
                    FormerStage::Draining(servable)
                }
                (VersionState::Ready, Some(servable)) => FormerStage::Serving(servable),
                (VersionState::Draining, Some(servable)) => FormerStage::Draining(servable),
                (VersionState::Draining, None) => FormerStage::Unloading,
                (VersionState::Ready | VersionState::Trial | VersionState::Held(_), None)
                | (VersionState::Found(_) | VersionState::Failed(_) | VersionState::Unloaded, _) => {
                    continue;
                }
            };
            self.former.add(key, bytes, stage);
        }
    }

    /// No new request gets the predecessors.
    pub(super) fn drain_predecessors(&mut self) {
        // Requests get them only where the present incarnation has nothing of its own.
        let are_published = !self.has_ready_version();
        self.must_publish |= self.former.drain_predecessors() && are_published;
    }

    /// Its servables, or what is published with them, have changed.
    pub(super) fn publish_later(&mut self) {
        self.must_publish = true;
    }

    /// What requests get from now on: its ready versions, ascending, or as long as there are none,
    /// the predecessors.
    pub(super) fn publish(&mut self) -> Vec<Arc<Servable>> {
        self.must_publish = false;
        self.servables()
    }

    pub(super) fn servables(&self) -> Vec<Arc<Servable>> {
        let ready = self.versions.values().filter(|version| version.is_ready());
        let ready: Vec<_> = ready.filter_map(|version| version.servable.clone()).collect();
        if !ready.is_empty() {
            return ready;
        }
        self.former.predecessors().cloned().collect()
    }

    /// Begins to load a version. `None` if it is not one of the present incarnation.
    pub(super) fn begin_load(&mut self, number: i64) -> Option<LoadJob> {
        let key = self.key(number);
        let version = self.versions.get_mut(&number)?;
        version.set_state(VersionState::Loading);
        let (folder, checked) = (version.folder.clone(), version.seen);
        let (config, threads) = (self.config.clone(), self.thread_hint());
        Some(LoadJob { key, folder, config, checked, threads })
    }

    /// A version is loaded. It serves from now on, unless it is of an earlier incarnation or has to pass a trial,
    /// which it need not if `may_be_tried` is not set.
    pub(super) fn version_loaded(
        &mut self,
        key: &VersionKey,
        servable: Arc<Servable>,
        may_be_tried: bool,
    ) -> LoadedStep {
        let threads = servable.threads();
        let is_released = self.versions.get(&key.version).is_some_and(|it| it.is_released);
        let old = self.to_be_replaced_by(key.version).filter(|_| may_be_tried && !is_released);
        let release = self.config.release.clone();
        let log = self.config.log.clone();
        let Some(version) = self.version_mut(key) else {
            self.former.loaded(key, servable);
            return LoadedStep::Former;
        };
        version.servable = Some(Arc::clone(&servable));
        version.attempts = 0;
        version.trial = None;
        let step = match old {
            Some(old) => {
                version.trial_is_cancelled = Arc::default();
                let is_cancelled = Arc::clone(&version.trial_is_cancelled);
                let job = TrialJob::new(key.clone(), (old, servable), (release, log), is_cancelled);
                version.set_state(VersionState::Trial);
                LoadedStep::OnTrial(Box::new(job))
            }
            None => {
                version.set_state(VersionState::Ready);
                self.must_publish = true;
                LoadedStep::Serves
            }
        };
        self.remember_threads(threads);
        step
    }

    /// A version gets no new requests.
    pub(super) fn drain(&mut self, number: i64) {
        if let Some(version) = self.versions.get_mut(&number) {
            version.set_state(VersionState::Draining);
            self.must_publish = true;
        }
    }

    /// A version that is not in memory, and not aspired, counts as unloaded.
    pub(super) fn discard(&mut self, number: i64) {
        if let Some(version) = self.versions.get_mut(&number) {
            version.set_state(VersionState::Unloaded);
        }
    }

    /// Gives a drained version away, to be unloaded.
    pub(super) fn take_drained(&mut self, number: i64) -> Option<(VersionKey, Arc<Servable>)> {
        let servable = self.versions.get_mut(&number)?.servable.take()?;
        Some((self.key(number), servable))
    }

    /// Gives the drained version of an earlier incarnation at `index` away, to be unloaded.
    pub(super) fn take_former(&mut self, index: usize) -> Option<(VersionKey, Arc<Servable>)> {
        self.former.take_drained(index)
    }

    /// A version is out of memory.
    pub(super) fn version_released(&mut self, key: &VersionKey) {
        self.former.released(key);
        self.waiters.released(key);
    }

    /// A request waits until everything of the present incarnation is out of memory.
    pub(super) fn wait_for_unload(&mut self, completion: Completion) {
        let remaining = self.in_memory().map(|(number, _)| self.key(number)).collect();
        self.waiters.wait_for_unload(remaining, completion);
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
        let is_alive = |v: &Version| v.aspired || !matches!(v.state, VersionState::Unloaded);
        let is_alive = self.versions.values().any(is_alive) || self.has_predecessors();
        !self.is_removed() && (is_alive || self.is_out_of_service)
    }

    /// Whether nothing is left to do for it: nothing of it is in memory, no request waits for it.
    /// What is left is what is remembered of it.
    pub(super) fn is_dormant(&self) -> bool {
        let is_idle = self.former.is_empty() && self.waiters.is_empty();
        self.is_removed() && is_idle && !self.must_publish
    }

    /// Whether anything is remembered that serves its next load; thread counts are only where
    /// `has_room`.
    pub(super) fn is_remembered(&self, has_room: bool) -> bool {
        !self.overrides.is_empty() || (has_room && !self.thread_hints.is_empty())
    }

    /// Whether a version of the present incarnation serves.
    pub(super) fn has_ready_version(&self) -> bool {
        self.versions.values().any(Version::is_ready)
    }

    /// Whether a version of any incarnation serves.
    pub(super) fn serves(&self) -> bool {
        self.has_ready_version() || self.has_predecessors()
    }

    /// Whether versions of an earlier incarnation serve until the present one can.
    pub(super) fn has_predecessors(&self) -> bool {
        self.former.predecessors().next().is_some()
    }

    /// Whether requests may still hold a version that is to be unloaded.
    pub(super) fn is_draining(&self) -> bool {
        let drains =
            |v: &Version| matches!(v.state, VersionState::Draining) && v.servable.is_some();
        self.versions.values().any(drains) || self.former.is_draining()
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

    /// Why a version has failed.
    pub(super) fn failure(&self, number: i64) -> Error {
        let failure = self.versions.get(&number).and_then(Version::failure);
        let unknown = || Error::internal(format!("model {} version {number} failed", self.name));
        failure.map_or_else(unknown, Error::duplicate)
    }

    /// Every version of it that is in memory, or on its way there.
    pub(super) fn memory(&self) -> impl Iterator<Item = VersionSnapshot> {
        let own = self.in_memory().map(|(number, version)| version.snapshot(number));
        own.chain(self.former.snapshots())
    }

    /// Versions of the present incarnation that are in memory, or on their way there.
    fn in_memory(&self) -> impl Iterator<Item = (i64, &Version)> {
        let versions = self.versions.iter().map(|(&number, version)| (number, version));
        versions.filter(|(_, version)| version.is_in_memory())
    }

    /// What readers see of it; `None` if it is not there any more.
    pub(super) fn status(&self) -> Option<ModelStatus> {
        let origin = match self.origin {
            Origin::Source => ModelOrigin::Source,
            Origin::Request if self.waiters.load_deadline().is_some() => ModelOrigin::Loading,
            Origin::Request => ModelOrigin::Loaded,
            Origin::Removed => return None,
        };
        let versions = self.versions.iter().map(|(&number, version)| {
            let (state, since) = (version.state.clone(), version.since);
            let servable = version.servable.as_ref();
            let runaways = servable.map(|servable| Arc::clone(servable.runaways()));
            let executable = servable.map(|servable| servable.executable());
            let trial = version.trial.clone();
            let is_held_before = version.standing == Standing::HeldBefore;
            let version = number;
            let status = VersionStatus {
                version,
                state,
                since,
                runaways,
                is_held_before,
                trial,
                executable,
            };
            (number, status)
        });
        let (source, is_out_of_service) = (self.source.clone(), self.is_out_of_service);
        Some(ModelStatus { origin, source, is_out_of_service, versions: versions.collect() })
    }

    /// The user `by` has requested something of it, or of one version.
    pub(super) fn add_event(&mut self, what: &'static str, version: Option<i64>, by: &Arc<str>) {
        let (at, who) = (SystemTime::now(), Arc::clone(by));
        self.events.push(LifecycleEvent { at, version, what, took: None, who, error: None });
    }

    /// Its lifecycle events since the last call, the oldest first.
    pub(super) fn take_events(&mut self) -> Vec<LifecycleEvent> {
        let mut events = mem::take(&mut self.events);
        for (&number, version) in &mut self.versions {
            events.extend(version.take_events(number));
        }
        events.sort_by_key(|event| event.at);
        events
    }

    /// Drops the oldest of its unloaded versions.
    pub(super) fn forget_unloaded(&mut self) {
        let past = self.versions.iter().filter(|(_, version)| is_past(version));
        let past: Vec<i64> = past.map(|(&number, _)| number).collect();
        for number in past.iter().take(past.len().saturating_sub(MOST_UNLOADED)) {
            self.versions.remove(number);
        }
    }

    /// How many threads within an operation suited the versions from the present source.
    fn thread_hint(&self) -> Option<usize> {
        self.thread_hints.get(&self.source).copied()
    }

    /// Remembers how many threads within an operation suited a version from the present source.
    fn remember_threads(&mut self, threads: usize) {
        if self.thread_hints.len() >= MOST_HINTS {
            self.thread_hints.clear();
        }
        self.thread_hints.insert(self.source.clone(), threads);
    }
}

/// Whether a version is unloaded for good.
fn is_past(version: &Version) -> bool {
    matches!(version.state, VersionState::Unloaded) && !version.aspired
}

#[cfg(test)]
mod tests;
