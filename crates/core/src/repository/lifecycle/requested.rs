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
use super::plan::LoadOutcome;
use crate::config::{SourceConfig, VersionPolicy};
use crate::repository::source::{self, DiscoveredModel, Fingerprint};
use crate::repository::version::{FileCheck, Version};
use crate::repository::{State, policy};
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
            Err(error) => self.outcomes.push((completion, Err(error))),
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

    /// Completes the request that loads a model. Of a load that fails nothing stays.
    pub(super) fn complete_load(&mut self, name: &Arc<str>, outcome: LoadOutcome) {
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        let Some(Waiter { completion, .. }) = entry.load_waiter.take() else {
            return;
        };
        let failure = match outcome {
            LoadOutcome::Ready => {
                self.outcomes.push((completion, Ok(())));
                return;
            }
            LoadOutcome::Failed(number) => entry.failure(number),
            LoadOutcome::Late => {
                let message = format!("model {name} was not loaded in the time there was");
                Error::new(Code::DeadlineExceeded, message)
            }
        };
        entry.remove();
        self.outcomes.push((completion, Err(failure)));
    }

    /// Unloads a model that was loaded by request; its name is free at once. Done when nothing of
    /// it is in memory.
    pub(super) fn unload_model(&mut self, name: &str, by: &Arc<str>, completion: Completion) {
        let requested = self.models.get_mut(name).filter(|entry| entry.origin == Origin::Request);
        let Some(entry) = requested else {
            let message = format!("no model {name} was loaded by request");
            self.outcomes.push((completion, Err(Error::not_found(message))));
            return;
        };
        entry.wait_for_unload(completion);
        entry.add_event("unload", None, by);
        let waiters = entry.take_ready_waiters();
        entry.remove();
        self.abort(name, waiters);
    }

    /// Fails requests that wait for a model to be ready, because it is unloaded.
    pub(super) fn abort(&mut self, name: &str, waiters: impl Iterator<Item = Completion>) {
        for completion in waiters {
            let message = format!("model {name} was unloaded before it was ready");
            self.outcomes.push((completion, Err(Error::new(Code::Aborted, message))));
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
    version.files = FileCheck::Complete;
    version.seen = Some(Fingerprint::of(&version.folder));
    version.set_state(State::Found("to be loaded".to_owned()));
    version
}
