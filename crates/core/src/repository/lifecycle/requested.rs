//! Models that requests load one by one, beside those of the sources.
//!
//! Their files are checked once, when they are requested, and their versions stay as they were
//! loaded. Either every requested version becomes ready, or nothing of the model stays.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::LifecycleManager;
use super::control::{Completion, ManagerEvent};
use super::disk::Disk;
use super::entry::{ModelEntry, Origin};
use super::found::{CheckedVersion, RequestedModel};
use super::plan::LoadOutcome;
use super::waiters::ReadyWaiter;
use super::work::spawn;
use crate::config::SourceConfig;
use crate::repository::files::{Fingerprint, check_whole};
use crate::repository::source::{DiscoveredModel, Discovery, no_response};
use crate::repository::stores::Scanned;
use crate::repository::version::{FileCheck, Version};
use crate::repository::{RepositoryShared, VersionState};
use tensorserve_platform::Platforms;
use tensorserve_tensor::error::{Code, Error, Result};

impl LifecycleManager {
    /// Begins to load a model at the request of the user `by`. Its files are found on a thread of its own, so that a
    /// file system that is slow or hangs keeps no other model waiting.
    pub(super) fn load_model(
        &self,
        source: Box<SourceConfig>,
        by: Arc<str>,
        (deadline, completion): (Instant, Completion),
    ) {
        let (disk, shared) = (self.disk.clone(), Arc::clone(&self.shared));
        spawn("request", move || {
            let found = find_requested(&source, &disk, &shared);
            disk.report(ManagerEvent::Requested(found.map(Box::new), deadline, by, completion));
        });
    }

    /// The files of a requested model have been found, or not.
    pub(super) fn add_requested(
        &mut self,
        found: Result<Box<RequestedModel>>,
        by: &Arc<str>,
        waiter: ReadyWaiter,
    ) {
        match found.and_then(|found| self.add_found(*found, by)) {
            Ok(entry) => entry.waiters.wait_for_load(waiter),
            Err(error) => self.outcomes.push((waiter.completion, Err(error))),
        }
    }

    fn add_found(&mut self, found: RequestedModel, by: &Arc<str>) -> Result<&mut ModelEntry> {
        let RequestedModel { discovered, versions } = found;
        let name: Arc<str> = discovered.name.as_str().into();
        if self.models.get(&name).is_some_and(ModelEntry::is_in_use) {
            let message = format!("model {name} already exists");
            return Err(Error::new(Code::AlreadyExists, message));
        }
        let entry = self.entry(&name);
        entry.begin_incarnation(Origin::Request, discovered.source, discovered.config);
        let versions = versions.into_iter();
        entry.versions = versions.map(|(number, it)| (number, loadable(it, by))).collect();
        Ok(entry)
    }

    /// Unloads a model that was loaded by request; its name is free at once. Done when nothing of
    /// it is in memory.
    pub(super) fn unload_model(&mut self, name: &Arc<str>, by: &Arc<str>, completion: Completion) {
        let requested = self.models.get_mut(name).filter(|entry| entry.origin == Origin::Request);
        let Some(entry) = requested else {
            let message = format!("no model {name} was loaded by request");
            self.outcomes.push((completion, Err(Error::not_found(message))));
            return;
        };
        entry.wait_for_unload(completion);
        entry.remove();
        entry.add_event("unload", None, by);
        let waiting = entry.waiters.take_load();
        self.abort(name, waiting);
    }
}

/// The one model that `source` holds, with the versions to load.
fn find_requested(
    source: &SourceConfig,
    disk: &Disk,
    shared: &RepositoryShared,
) -> Result<RequestedModel> {
    let discovery = match disk.discover_source(source, shared) {
        Scanned::Found(discovery) => discovery,
        Scanned::Failed(error) => return Err(error),
        Scanned::Pending(what) => {
            return Err(Error::unavailable(format!("{}: {what}", source.path.display())));
        }
    };
    let discovered = discover_one(discovery, source)?;
    let mut versions = BTreeMap::new();
    for number in discovered.requested_versions()? {
        let folder = discovered.versions.get(&number).cloned().unwrap_or_default();
        let (platforms, named) = (shared.platforms.clone(), discovered.config.platform);
        let check = move |folder: &Path| check_files(folder, &platforms, named);
        let seen = disk.read(&folder, check).unwrap_or_else(|| Err(no_response(&folder)))?;
        versions.insert(number, CheckedVersion { folder, seen });
    }
    Ok(RequestedModel { discovered, versions })
}

/// The outcome of a request that loads a model.
pub(super) fn load_result(name: &str, entry: &ModelEntry, outcome: LoadOutcome) -> Result<()> {
    match outcome {
        LoadOutcome::Ready => Ok(()),
        LoadOutcome::Failed(number) => Err(entry.failure(number)),
        LoadOutcome::Late => {
            let message = format!("model {name} was not loaded before the deadline");
            Err(Error::new(Code::DeadlineExceeded, message))
        }
    }
}

/// The one model that `source` holds.
fn discover_one(mut discovery: Discovery, source: &SourceConfig) -> Result<DiscoveredModel> {
    let path = source.path.display();
    match (discovery.models.pop(), discovery.models.len()) {
        (Some(discovered), 0) => Ok(discovered),
        (Some(_), others) => {
            let count = others + 1;
            Err(Error::invalid(format!(
                "{path} contains {count} models: give the directory of one model"
            )))
        }
        (None, _) => match discovery.notes.pop_first() {
            Some(note) => Err(Error::invalid(note)),
            None => Err(Error::not_found(format!("{path} contains no model"))),
        },
    }
}

/// Checks that all files of a version are there, and returns what they look like. Unlike a source, a
/// request does not wait for them.
fn check_files(folder: &Path, platforms: &Platforms, named: Option<&str>) -> Result<Fingerprint> {
    check_whole(folder, platforms, named)?;
    Ok(Fingerprint::of(folder))
}

/// A version whose files have been checked.
fn loadable(checked: CheckedVersion, by: &Arc<str>) -> Version {
    let mut version = Version::new(checked.folder);
    version.by = Arc::clone(by);
    version.aspired = true;
    version.files = FileCheck::Complete;
    version.seen = Some(checked.seen);
    version.set_state(VersionState::Found("to be loaded".to_owned()));
    version
}
