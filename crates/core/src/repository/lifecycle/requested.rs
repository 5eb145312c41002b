//! Models that are asked for one by one, beside those of the sources.
//!
//! Their files are looked at once, when they are asked for, and their versions stay as they were
//! loaded. Either all that was asked for becomes ready, or nothing of it stays.

use std::collections::BTreeSet;
use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::control::Completion;
use super::{LifecycleManager, Model, VersionKey};
use crate::config::{SourceConfig, VersionPolicy};
use crate::repository::source::{self, DiscoveredModel};
use crate::repository::version::{Version, become_state};
use crate::repository::{LoadedModel, State, policy};
use tensorserve_platform::{Completeness, Platforms};
use tensorserve_tensor::error::{Code, Error, Result};

/// Why a model is there.
pub(super) enum Origin {
    /// A source has it.
    Sources,
    /// It was asked for by someone who waits for it, at most until then.
    Awaited(Completion, Instant),
    /// It was asked for, and came.
    Asked,
}

/// A model that was taken away, and of which something is in memory still.
pub(super) struct Leaving {
    life: u64,
    /// Versions that are loading, held by requests, or being unloaded.
    versions: usize,
    completion: Completion,
}

impl Leaving {
    pub(super) fn new(life: u64, versions: usize, completion: Completion) -> Self {
        Leaving { life, versions, completion }
    }

    pub(super) fn has_left(&self) -> bool {
        self.versions == 0
    }
}

impl LifecycleManager {
    /// Begins to load a model that was asked for.
    pub(super) fn ask_for(
        &mut self,
        source: &SourceConfig,
        deadline: Instant,
        by: &Arc<str>,
        completion: Completion,
    ) {
        let model = self.find(source).and_then(|found| {
            let name = Arc::from(found.name.as_str());
            self.claim(&name)?;
            let wanted = wanted(&found)?;
            self.lives += 1;
            let mut model = Model::new(&found, self.lives);
            for number in wanted {
                let folder = found.versions.get(&number).cloned().unwrap_or_default();
                check(&folder, &self.shared.platforms, found.config.platform)?;
                let mut version = Version::new(folder);
                version.by = Arc::clone(by);
                model.versions.insert(number, loadable(version));
            }
            Ok((name, model))
        });
        match model {
            Ok((name, mut model)) => {
                let (shown, path) = (name.to_string(), model.source.clone());
                let loaded = LoadedModel { name: shown.clone(), path };
                self.shared.board().asked.insert(shown, (loaded, false));
                model.origin = Origin::Awaited(completion, deadline);
                self.models.insert(name, model);
            }
            Err(error) => completion.finish(Err(error)),
        }
    }

    /// The one model that `source` means.
    fn find(&self, source: &SourceConfig) -> Result<DiscoveredModel> {
        let mut discovery = source::discover(source, &self.shared.platforms)?;
        let path = source.path.display();
        match (discovery.models.pop(), discovery.models.len()) {
            (Some(found), 0) => Ok(found),
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

    /// Sees to it that no model has that name.
    fn claim(&mut self, name: &Arc<str>) -> Result<()> {
        let Some(model) = self.models.get(name) else {
            return Ok(());
        };
        let is_taken = model.is_alive() || self.offline.contains(name);
        if is_taken || self.predecessors.contains_key(name) {
            let message = format!("model {name} is there already");
            return Err(Error::new(Code::AlreadyExists, message));
        }
        self.models.remove(name);
        Ok(())
    }

    /// Tells those who asked for models how that went, where it is known.
    pub(super) fn answer_loads(&mut self) {
        let now = Instant::now();
        let mut known = Vec::new();
        for (name, model) in &self.models {
            if let Origin::Awaited(_, deadline) = model.origin
                && let Some(outcome) = outcome(name, model, now >= deadline)
            {
                known.push((Arc::clone(name), outcome));
            }
        }
        for (name, outcome) in known {
            if let Some(completion) = self.settle(&name, outcome.is_ok()) {
                completion.finish(outcome);
            }
        }
    }

    /// Keeps a model that is ready, takes any other away, and returns who waits for it.
    fn settle(&mut self, name: &str, is_ready: bool) -> Option<Completion> {
        let origin = if is_ready {
            if let Some((_, shown)) = self.shared.board().asked.get_mut(name) {
                *shown = true;
            }
            mem::replace(&mut self.models.get_mut(name)?.origin, Origin::Asked)
        } else {
            self.take_away(name)?.0.origin
        };
        match origin {
            Origin::Awaited(completion, _) => Some(completion),
            Origin::Sources | Origin::Asked => None,
        }
    }

    /// The next moment when someone gives up waiting for a model.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self.models.values().filter_map(|model| match model.origin {
            Origin::Awaited(_, deadline) => Some(deadline),
            Origin::Sources | Origin::Asked => None,
        });
        deadlines.chain(self.returning.iter().map(|returning| returning.deadline)).min()
    }

    /// Takes a model that was asked for away. `completion` is given when nothing of it is in memory.
    pub(super) fn take_back(&mut self, name: &str, by: &Arc<str>, completion: Completion) {
        let is_asked = |model: &Model| !model.is_of_sources();
        let Some((model, versions)) =
            self.models.get(name).is_some_and(is_asked).then(|| self.take_away(name)).flatten()
        else {
            let message = format!("no model {name} was loaded by request");
            completion.finish(Err(Error::not_found(message)));
            return;
        };
        if let Origin::Awaited(completion, _) = model.origin {
            let message = format!("model {name} was unloaded before it was ready");
            completion.finish(Err(Error::new(Code::Aborted, message)));
        }
        self.note_change(name, None, "unload", by);
        self.leaving.push(Leaving { life: model.life, versions, completion });
    }

    /// Takes a model off the list, and returns it with the number of its versions that are in
    /// memory still.
    fn take_away(&mut self, name: &str) -> Option<(Model, usize)> {
        let (name, mut model) = self.models.remove_entry(name)?;
        self.shared.publish(&name, Vec::new(), &model.config);
        let mut board = self.shared.board();
        board.models.remove(&*name);
        board.asked.remove(&*name);
        drop(board);
        let mut in_memory = 0;
        for (&number, version) in &mut model.versions {
            match version.state {
                State::Loading | State::Warming | State::Ready | State::Draining => in_memory += 1,
                State::Found(_) | State::Gone | State::Failed(_) => {}
            }
            if let Some(servable) = version.servable.take() {
                let key =
                    VersionKey { model: Arc::clone(&name), version: number, life: model.life };
                self.parting.push((key, servable));
            }
        }
        Some((model, in_memory))
    }

    /// Notes that a version is out of memory.
    pub(super) fn left(&mut self, key: &VersionKey) {
        for leaving in self.leaving.iter_mut().filter(|leaving| leaving.life == key.life) {
            leaving.versions = leaving.versions.saturating_sub(1);
        }
    }

    /// Tells those who took models away that these have left.
    pub(super) fn answer_unloads(&mut self) {
        let all = mem::take(&mut self.leaving).into_iter();
        let (left, leaving) = all.partition(Leaving::has_left);
        self.leaving = leaving;
        let left: Vec<Leaving> = left;
        for leaving in left {
            leaving.completion.finish(Ok(()));
        }
    }
}

/// The versions to load of those that were found.
fn wanted(found: &DiscoveredModel) -> Result<BTreeSet<i64>> {
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

fn loadable(mut version: Version) -> Version {
    version.aspired = true;
    version.complete = true;
    become_state(&mut version, State::Found("to be loaded".to_owned()));
    version
}

/// How the load of a model went; nothing while it is under way.
fn outcome(name: &str, model: &Model, is_late: bool) -> Option<Result<()>> {
    let mut versions = model.versions.values();
    if let Some(error) = versions.clone().find_map(Version::failure) {
        return Some(Err(error.duplicate()));
    }
    if versions.all(|version| matches!(version.state, State::Ready)) {
        return Some(Ok(()));
    }
    is_late.then(|| {
        let message = format!("model {name} was not loaded in the time there was");
        Err(Error::new(Code::DeadlineExceeded, message))
    })
}
