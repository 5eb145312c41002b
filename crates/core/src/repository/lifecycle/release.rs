//! Gated releases: a version that is loaded beside one that serves takes traffic once it has passed a trial, and gives it
//! back if live requests fail soon after.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::entry::ModelEntry;
use super::{LifecycleManager, VersionKey};
use crate::repository::VersionState;
use crate::repository::held::HeldVersions;
use crate::repository::policy;
use crate::repository::servable::Servable;
use crate::repository::trial::TrialReport;
use crate::repository::version::{FileCheck, Standing, Version};
use crate::repository::watch::{LiveComparison, ReleaseWatch};
use tensorserve_tensor::error::{Code, Error, Result};

/// How often live requests of new versions are looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);

impl ModelEntry {
    /// The version whose place the version `number` is to take, if it has to pass a trial for that. One with a lower
    /// number served before, or is what the operator goes back to.
    pub(super) fn to_be_replaced_by(&self, number: i64) -> Option<Arc<Servable>> {
        if !self.config.release.is_gated || !self.is_configured() {
            return None;
        }
        self.servables().pop().filter(|serving| serving.version() < number)
    }

    /// The version, if it is held, or its state is one of those that are allowed, too.
    fn held_version(
        &mut self,
        number: i64,
        is_allowed: impl Fn(&VersionState) -> bool,
    ) -> Result<&mut Version> {
        let name = Arc::clone(self.name());
        let Some(version) = self.versions.get_mut(&number) else {
            return Err(Error::not_found(format!("model {name} has no version {number}")));
        };
        if !is_allowed(&version.state) && version.standing == Standing::Wanted {
            let state = version.state.on_one_line();
            let message = format!("version {number} of model {name} is not held: it is {state}");
            return Err(Error::new(Code::FailedPrecondition, message));
        }
        Ok(version)
    }

    /// The versions that the policy wants of those that were `found`, without those that may not be loaded.
    pub(super) fn aspired(
        &mut self,
        found: &BTreeMap<i64, PathBuf>,
        held: &HeldVersions,
    ) -> BTreeSet<i64> {
        if !self.config.release.is_gated {
            self.release_all(held);
        }
        for (_, version) in self.versions.iter_mut().filter(|(it, _)| !found.contains_key(it)) {
            // Another version may get its number.
            let is_held = matches!(version.state, VersionState::Held(_));
            if is_held || version.standing != Standing::Wanted {
                version.standing = Standing::Wanted;
                held.forget(&version.folder);
            }
        }
        let may_be_loaded = |number: &i64| {
            self.versions.get(number).is_none_or(|it| it.standing == Standing::Wanted)
        };
        let mut there: BTreeSet<i64> = found.keys().copied().filter(may_be_loaded).collect();
        let mut seen = BTreeSet::new();
        loop {
            let aspired = policy::aspired(&there, &self.config.policy);
            let is_gated = self.config.release.is_gated;
            let mut new = aspired.iter().copied().filter(|it| !self.versions.contains_key(it));
            let new = new.find(|number| is_gated && seen.insert(*number));
            let Some((number, folder)) = new.and_then(|it| Some((it, found.get(&it)?))) else {
                return aspired;
            };
            if let Some(why) = held.reason(folder) {
                let path = folder.display();
                log::warn!("{path}: not loaded: it was held before the server was started: {why}");
                there.remove(&number);
                self.versions.insert(number, Version::held_before(folder.clone(), &why));
            }
        }
    }

    /// Releases are not gated any more: what is held serves.
    fn release_all(&mut self, held: &HeldVersions) {
        let mut is_changed = false;
        for version in self.versions.values_mut() {
            if version.standing == Standing::HeldBefore {
                (version.standing, version.files) = (Standing::Wanted, FileCheck::Pending);
                held.forget(&version.folder);
            }
            if matches!(version.state, VersionState::Held(_)) && version.aspired {
                version.set_state(VersionState::Ready);
                held.forget(&version.folder);
                is_changed = true;
            }
        }
        if is_changed {
            self.publish_later();
        }
    }

    /// Ends trials of versions that are not to be served any more.
    pub(super) fn cancel_useless_trials(&self) {
        let on_trial = |version: &&Version| matches!(version.state, VersionState::Trial);
        for version in self.versions.values().filter(on_trial).filter(|it| !it.aspired) {
            version.trial_is_cancelled.store(true, Relaxed);
        }
    }

    /// A version has passed its trial. It serves from now on, and is watched.
    fn accept(&mut self, key: &VersionKey) {
        let old = self.servables().pop();
        let time = self.config.release.watch;
        let Some(version) = self.version_mut(key) else {
            return;
        };
        if let (Some(old), Some(new)) = (&old, &version.servable)
            && !time.is_zero()
        {
            let rules = version.trial.as_ref().map(|trial| trial.live.clone());
            version.watch = Some(ReleaseWatch::begin(old, new, rules.unwrap_or_default(), time));
        }
        version.set_state(VersionState::Ready);
        self.publish_later();
    }

    /// What live requests say against versions that are watched, by number. Those whose time is over are watched no
    /// more.
    fn watched(&mut self, now: Instant) -> Vec<(i64, Option<String>)> {
        let max_slowdown = self.config.release.rules.max_slowdown;
        let mut found = Vec::new();
        for (&number, version) in &mut self.versions {
            let Some(watch) = &version.watch else {
                continue;
            };
            let servable = version.servable.as_ref().filter(|_| version.state.is_ready());
            let against = servable.and_then(|it| watch.against(it, max_slowdown));
            if against.is_some() || watch.is_over(now) || servable.is_none() {
                version.watch = None;
                found.push((number, against));
            }
        }
        if !found.is_empty() {
            // Requests hold on to the version before.
            self.publish_later();
        }
        found
    }

    /// What compares answers of a version that is watched.
    pub(super) fn live_comparison(&self) -> Option<Arc<LiveComparison>> {
        let mut watches = self.versions.values().rev().filter_map(|version| version.watch.as_ref());
        watches.next()?.live.clone()
    }

    /// A version gets no more requests, but stays loaded. False if no other version could answer them.
    fn hold(&mut self, number: i64, why: &str, held: &HeldVersions) -> bool {
        let others = self.versions.iter().filter(|(other, _)| **other != number);
        if !others.map(|(_, version)| version).any(Version::is_ready) {
            return false;
        }
        let Some(version) = self.versions.get_mut(&number) else {
            return false;
        };
        let mut report = version.trial.as_deref().cloned().unwrap_or_default();
        report.against.push(why.to_owned());
        version.trial = Some(Arc::new(report));
        held.remember(&version.folder, why);
        version.set_state(VersionState::Held(why.to_owned()));
        self.publish_later();
        true
    }
}

impl LifecycleManager {
    /// The trial of a version has ended.
    pub(super) fn judged(&mut self, key: &VersionKey, report: TrialReport) {
        let (name, number) = (&key.model, key.version);
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        let on_trial = |version: &&mut Version| matches!(version.state, VersionState::Trial);
        let Some(version) = entry.version_mut(key).filter(on_trial) else {
            return;
        };
        let (why, requests) = (report.summary(), report.requests);
        version.trial = Some(Arc::new(report));
        if why.is_empty() {
            entry.accept(key);
            self.serve(name);
            return log::info!(
                "{name} version {number}: passed its trial with {requests} recorded requests; ready"
            );
        }
        log::error!("{name} version {number}: held, the version that is being served stays: {why}");
        self.shared.held.remember(&version.folder, &why);
        version.set_state(VersionState::Held(why));
    }

    /// Holds new versions that live requests say something against.
    pub(super) fn check_watches(&mut self) {
        if self.watched_at.elapsed() < WATCH_INTERVAL {
            return;
        }
        let now = Instant::now();
        self.watched_at = now;
        let held = &self.shared.held;
        for (name, entry) in &mut self.models {
            for (number, against) in entry.watched(now) {
                self.is_shown = false;
                let Some(why) = against else {
                    continue;
                };
                match entry.hold(number, &why, held) {
                    true => log::error!(
                        "{name} version {number}: held, the version before serves again: {why}"
                    ),
                    false => {
                        log::error!("{name} version {number}: no other version could serve: {why}")
                    }
                }
            }
        }
    }

    /// Lets a held version serve. One that was held before the server was started is loaded first.
    pub(super) fn release(&mut self, name: &Arc<str>, number: i64, by: &Arc<str>) -> Result<()> {
        let entry = self.entry(name);
        let version = entry.held_version(number, |state| matches!(state, VersionState::Held(_)))?;
        version.by = Arc::clone(by);
        version.is_released = true;
        let folder = version.folder.clone();
        match version.standing {
            Standing::Wanted => version.set_state(VersionState::Ready),
            Standing::HeldBefore | Standing::Dropped => {
                version.standing = Standing::Wanted;
                version.files = FileCheck::Pending;
            }
        }
        entry.publish_later();
        entry.add_event("release", Some(number), by);
        self.shared.held.forget(&folder);
        self.sources.schedule.scan_sources_now();
        Ok(())
    }

    /// Unloads a version that is held or on trial. It is not loaded again.
    pub(super) fn drop_version(
        &mut self,
        name: &Arc<str>,
        number: i64,
        by: &Arc<str>,
    ) -> Result<()> {
        let may_be_dropped =
            |state: &VersionState| matches!(state, VersionState::Held(_) | VersionState::Trial);
        let entry = self.entry(name);
        let version = entry.held_version(number, may_be_dropped)?;
        version.by = Arc::clone(by);
        (version.standing, version.aspired) = (Standing::Dropped, false);
        let folder = version.folder.clone();
        // Until the next scan finds what is to be served instead: the version that serves must not go.
        if let Some(serving) = entry.versions.values_mut().rev().find(|version| version.is_ready())
        {
            serving.aspired = true;
        }
        entry.add_event("drop", Some(number), by);
        self.shared.held.remember(&folder, &format!("{by} dropped it"));
        self.sources.schedule.scan_sources_now();
        Ok(())
    }
}
