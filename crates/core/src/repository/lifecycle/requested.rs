//! Models that are asked for one by one, beside those of the sources.
//!
//! Their files are looked at once, when they are asked for, and their versions stay as they were
//! loaded. Either all that was asked for becomes ready, or nothing of it stays.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::LifecycleManager;
use super::control::Completion;
use super::entry::{ModelEntry, Origin, Waiter};
use crate::config::{SourceConfig, VersionPolicy};
use crate::repository::source::{self, DiscoveredModel};
use crate::repository::version::{Version, become_state};
use crate::repository::{LoadedModel, State, policy};
use tensorserve_platform::{Completeness, Platforms};
use tensorserve_tensor::error::{Code, Error, Result};

impl LifecycleManager {
    /// Begins to load a model at the request of the user `by`.
    pub(super) fn load_model(
        &mut self,
        source: &SourceConfig,
        deadline: Instant,
        by: &Arc<str>,
        completion: Completion,
    ) {
        match self.begin_load_of_model(source, by) {
            Ok(entry) => entry.load_waiter = Some(Waiter { deadline, completion }),
            Err(error) => completion.finish(Err(error)),
        }
    }

    fn begin_load_of_model(
        &mut self,
        source: &SourceConfig,
        by: &Arc<str>,
    ) -> Result<&mut ModelEntry> {
        let discovered = self.discover_one(source)?;
        let name: Arc<str> = discovered.name.as_str().into();
        if self.models.get(&name).is_some_and(ModelEntry::is_in_use) {
            let message = format!("model {name} is there already");
            return Err(Error::new(Code::AlreadyExists, message));
        }
        let mut versions = BTreeMap::new();
        for number in requested_versions(&discovered)? {
            let folder = discovered.versions.get(&number).cloned().unwrap_or_default();
            check(&folder, &self.shared.platforms, discovered.config.platform)?;
            versions.insert(number, loadable(folder, by));
        }
        let (shown, path) = (name.to_string(), discovered.source.clone());
        let loaded = LoadedModel { name: shown.clone(), path };
        self.shared.board().asked.insert(shown, (loaded, false));
        let entry = self.entry(&name);
        entry.begin_incarnation(Origin::Request, discovered.source, discovered.config);
        entry.versions = versions;
        Ok(entry)
    }

    /// The one model that `source` means.
    fn discover_one(&self, source: &SourceConfig) -> Result<DiscoveredModel> {
        let mut discovery = source::discover(source, &self.shared.platforms)?;
        let path = source.path.display();
        match (discovery.models.pop(), discovery.models.len()) {
            (Some(discovered), 0) => Ok(discovered),
            (Some(_), others) => {
                let count = others + 1;
                Err(Error::invalid(format!("{path} holds {count} models; name the folder of one")))
            }
            (None, _) => match discovery.notes.pop_first() {
                Some(note) => Err(Error::invalid(note)),
                None => Err(Error::not_found(format!("{path} holds no model"))),
            },
        }
    }

    /// Completes requests that load models, where the outcome is known.
    pub(super) fn complete_loads(&mut self) {
        let now = Instant::now();
        let awaited = self.models.values().filter(|entry| entry.load_waiter.is_some());
        let names: Vec<Arc<str>> = awaited.map(|entry| Arc::clone(&entry.name)).collect();
        for name in names {
            let Some(entry) = self.models.get_mut(&name) else {
                continue;
            };
            let Some(waiter) = entry.load_waiter.take() else {
                continue;
            };
            let Some(outcome) = load_outcome(entry, now >= waiter.deadline) else {
                entry.load_waiter = Some(waiter);
                continue;
            };
            if outcome.is_err() {
                self.remove(&name);
            } else if let Some((_, is_ready)) = self.shared.board().asked.get_mut(&*name) {
                *is_ready = true;
            }
            waiter.completion.finish(outcome);
        }
    }

    /// Unloads a model that was loaded by request. Done when nothing of it is in memory.
    pub(super) fn unload_model(&mut self, name: &str, by: &Arc<str>, completion: Completion) {
        let requested = self.models.get_mut(name).filter(|entry| entry.origin == Origin::Request);
        let Some(entry) = requested else {
            let message = format!("no model {name} was loaded by request");
            completion.finish(Err(Error::not_found(message)));
            return;
        };
        entry.abort_waiters();
        entry.wait_for_unload(completion);
        let name = Arc::clone(&entry.name);
        self.remove(&name);
        self.record_change(&name, None, "unload", by);
    }

    /// Takes a requested model away: its name is free at once.
    fn remove(&mut self, name: &Arc<str>) {
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        entry.remove();
        self.publish(name);
        let mut board = self.shared.board();
        board.models.remove(&**name);
        board.asked.remove(&**name);
    }

    /// Completes requests that unload models, where nothing of them is in memory any more.
    pub(super) fn complete_unloads(&mut self) {
        for entry in self.models.values_mut() {
            for waiter in entry.unload_waiters.extract_if(.., |w| w.remaining.is_empty()) {
                waiter.completion.finish(Ok(()));
            }
        }
    }
}

/// The versions to load of those that are there.
fn requested_versions(found: &DiscoveredModel) -> Result<BTreeSet<i64>> {
    let there: BTreeSet<i64> = found.versions.keys().copied().collect();
    let wanted = policy::aspired(&there, &found.config.policy);
    let (name, path) = (&found.name, found.source.display());
    if let VersionPolicy::Specific(all) = &found.config.policy
        && let Some(missing) = all.iter().find(|version| !there.contains(version))
    {
        return Err(Error::not_found(format!("model {name}: no version {missing} in {path}")));
    }
    if wanted.is_empty() {
        return Err(Error::not_found(format!("model {name}: no version in {path}")));
    }
    Ok(wanted)
}

/// Checks that all files of a version are there. Whoever asks for a model has put them there.
fn check(folder: &Path, platforms: &Platforms, named: Option<&str>) -> Result<()> {
    let path = folder.display();
    let Some(platform) = platforms.of_version(folder, named) else {
        let message = format!("{path} holds no model of a known kind, such as saved_model.pb");
        return Err(Error::not_found(message));
    };
    match platform.check(folder) {
        Completeness::Complete => Ok(()),
        Completeness::Missing(what) => {
            Err(Error::new(Code::FailedPrecondition, format!("{path}: {what} is missing")))
        }
        Completeness::Broken(error) => Err(error),
    }
}

/// A version whose files have been checked.
fn loadable(folder: PathBuf, by: &Arc<str>) -> Version {
    let mut version = Version::new(folder);
    version.by = Arc::clone(by);
    version.aspired = true;
    version.complete = true;
    become_state(&mut version, State::Found("to be loaded".to_owned()));
    version
}

/// How the load of a requested model went; nothing while it is under way.
fn load_outcome(entry: &ModelEntry, is_late: bool) -> Option<Result<()>> {
    let mut versions = entry.versions.values();
    if let Some(error) = versions.clone().find_map(Version::failure) {
        return Some(Err(error.duplicate()));
    }
    if versions.all(Version::is_ready) {
        return Some(Ok(()));
    }
    is_late.then(|| {
        let message = format!("model {} was not loaded in the time there was", entry.name);
        Err(Error::new(Code::DeadlineExceeded, message))
    })
}
