//! The sources: what is configured, when they are scanned, and what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::control::Completion;
use super::disk::Disk;
use super::entry::ModelEntry;
use super::reconcile::{Discovered, Reconciliation, ScannedModel, reconcile};
use super::schedule::{LoggedOnce, ScanSchedule};
use crate::config::{SourceConfig, is_store_url};
use crate::repository::RepositoryShared;
use crate::repository::source::{DiscoveredModel, Discovery};
use crate::repository::stores::Scanned;
use crate::repository::version::Version;

/// The configured sources.
pub(super) struct Sources {
    configured: Vec<SourceConfig>,
    /// The sources that cannot be used, by path, and why.
    problems: BTreeMap<String, String>,
    /// When sources are scanned, and files are checked.
    pub(super) schedule: ScanSchedule,
    /// The sources have been scanned since the server started.
    has_been_scanned: bool,
    /// The request that has replaced the sources.
    replacement: Option<Replacement>,
}

/// A request that has replaced the sources.
struct Replacement {
    completion: Completion,
    /// The new sources have been scanned.
    is_scanned: bool,
}

/// What one scan of all sources found.
#[derive(Default)]
pub(super) struct SourceScan {
    /// By name; of two sources with a model of the same name, the first counts.
    models: BTreeMap<String, DiscoveredModel>,
    /// Sources without a name that could not be read: any model could be in them.
    unreadable_sources: BTreeSet<PathBuf>,
    /// Names of models that could not be read.
    unreadable_models: BTreeSet<String>,
}

/// All models, by name.
pub(super) type ModelEntries = BTreeMap<Arc<str>, ModelEntry>;

impl Sources {
    pub(super) fn new(configured: Vec<SourceConfig>, interval: Option<Duration>) -> Self {
        Sources {
            configured,
            problems: BTreeMap::new(),
            schedule: ScanSchedule::new(interval),
            has_been_scanned: false,
            replacement: None,
        }
    }

    /// Replaces the sources. Returns the request that has replaced them before, if that is not
    /// done yet.
    pub(super) fn replace(
        &mut self,
        configured: Vec<SourceConfig>,
        completion: Completion,
    ) -> Option<Completion> {
        self.configured = configured;
        self.problems.clear();
        self.schedule.scan_sources_now();
        let replacement = Replacement { completion, is_scanned: false };
        self.replacement.replace(replacement).map(|earlier| earlier.completion)
    }

    /// Whether they have been scanned since the server started.
    pub(super) fn have_been_scanned(&self) -> bool {
        self.has_been_scanned
    }

    /// Whether a request has replaced them, and the new ones have been scanned.
    pub(super) fn are_replaced(&self) -> bool {
        self.replacement.as_ref().is_some_and(|replacement| replacement.is_scanned)
    }

    /// The request that has replaced them.
    pub(super) fn take_replacement(&mut self) -> Option<Completion> {
        self.replacement.take().map(|replacement| replacement.completion)
    }

    /// The sources that cannot be used, by path, and why.
    pub(super) fn problems(&self) -> &BTreeMap<String, String> {
        &self.problems
    }

    /// The name that the source at `path` gives its model.
    pub(super) fn name_of(&self, path: &str) -> Option<&str> {
        let source = self.configured.iter().find(|s| s.path.display().to_string() == path)?;
        source.name.as_deref()
    }

    /// Finds out which models and versions are there. Reads the disk.
    pub(super) fn scan(
        &mut self,
        disk: &Disk,
        shared: &RepositoryShared,
        models: &ModelEntries,
        logged: &mut LoggedOnce,
    ) -> SourceScan {
        let mut scan = SourceScan::default();
        let mut are_complete = true;
        for source in &self.configured {
            let scanned = disk.discover_source(source, shared);
            are_complete &= !matches!(scanned, Scanned::Pending(_));
            let problem = scan.add_source(source, scanned, models, logged);
            // A source whose models still serve has no problem.
            let problem = problem.filter(|_| !serves(models, &source.path));
            let path = source.path.display().to_string();
            match problem {
                Some(problem) => self.problems.insert(path, problem),
                None => self.problems.remove(&path),
            };
        }
        // Of a store that is listed for the first time, nothing is known yet.
        self.has_been_scanned |= are_complete;
        if let Some(replacement) = &mut self.replacement {
            replacement.is_scanned |= are_complete;
        }
        scan
    }
}

/// Whether a version from below `path` serves.
fn serves(models: &ModelEntries, path: &Path) -> bool {
    let configured = models.values().filter(|entry| entry.is_configured());
    configured.into_iter().any(|entry| {
        // Versions from a store are loaded from the cache.
        let is_from = |version: &Version| {
            version.folder.starts_with(path) || (is_store_url(path) && entry.source == path)
        };
        entry.versions.values().any(|version| version.is_ready() && is_from(version))
    })
}

impl SourceScan {
    /// Adds what one source has. Returns why it cannot be used.
    fn add_source(
        &mut self,
        source: &SourceConfig,
        scanned: Scanned,
        models: &ModelEntries,
        logged: &mut LoggedOnce,
    ) -> Option<String> {
        let path = &source.path;
        let discovery = match scanned {
            Scanned::Found(discovery) => discovery,
            Scanned::Pending(what) => {
                self.cannot_read(source);
                return Some(what);
            }
            Scanned::Failed(error) => {
                self.cannot_read(source);
                if is_store_url(path) {
                    // The stores log what is wrong with them, after their location.
                    let location = format!("{}: ", path.display());
                    let why = error.message().strip_prefix(&location);
                    return Some(why.unwrap_or(error.message()).to_owned());
                }
                logged.warn(format!("{error}; versions loaded from it stay loaded"));
                return Some(error.to_string());
            }
        };
        let Discovery { models: discovered, unreadable, empty, notes } = discovery;
        notes.into_iter().for_each(|note| logged.warn(note));
        self.unreadable_models.extend(unreadable);
        let is_empty = discovered.iter().all(|found| found.versions.is_empty());
        for found in discovered {
            let name = found.name.clone();
            if self.models.contains_key(&name) {
                logged.warn(format!(
                    "two sources contain a model {name:?}; the first source is used"
                ));
                continue;
            }
            self.models.insert(name, found);
        }
        // A directory without versions is a model only if it was one before.
        let is_known = |entry: &ModelEntry| entry.is_configured() && entry.source == *path;
        for name in empty {
            if models.get(name.as_str()).is_some_and(is_known) {
                let (source, config) = (path.clone(), source.model.clone());
                let versions = BTreeMap::new();
                let emptied = DiscoveredModel { name: name.clone(), source, versions, config };
                self.models.entry(name).or_insert(emptied);
            }
        }
        is_empty.then(|| "no model found".to_owned())
    }

    /// Remembers that nothing is known about the models of a source.
    fn cannot_read(&mut self, source: &SourceConfig) {
        match &source.name {
            Some(name) => drop(self.unreadable_models.insert(name.clone())),
            None => drop(self.unreadable_sources.insert(source.path.clone())),
        }
    }

    /// The names of the models that were found.
    pub(super) fn names(&self) -> impl Iterator<Item = Arc<str>> {
        self.models.keys().map(|name| Arc::from(name.as_str()))
    }

    /// Takes out what was found of a model, and finds out what it means for its entry.
    pub(super) fn take(
        &mut self,
        name: &str,
        entry: &ModelEntry,
    ) -> (Reconciliation, Option<DiscoveredModel>) {
        let found = self.models.remove(name);
        let reconciliation = reconcile(&ScannedModel {
            origin: entry.origin,
            source: &entry.source,
            has_ready_version: entry.has_ready_version(),
            is_out_of_service: entry.is_out_of_service,
            discovered: found.as_ref().map(|found| Discovered {
                source: &found.source,
                has_versions: !found.versions.is_empty(),
            }),
            source_is_unreadable: self.unreadable_sources.contains(&entry.source),
            model_is_unreadable: self.unreadable_models.contains(name),
        });
        (reconciliation, found)
    }
}
