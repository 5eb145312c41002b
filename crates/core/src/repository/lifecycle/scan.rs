//! What is there: looks at the sources, and brings the list of models and versions up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::LifecycleManager;
use super::entry::{ModelEntry, Origin};
use crate::config::VersionPolicy;
use crate::repository::journal::WATCH;
use crate::repository::source::{self, DiscoveredModel, Discovery, Fingerprint};
use crate::repository::version::{Version, check_completeness};
use crate::repository::{State, policy};

/// Files that have not changed for this long are no copy under way.
const SETTLED: Duration = Duration::from_secs(3);

/// Models of which nobody can say at this look whether they are there.
#[derive(Default)]
struct Unknown {
    /// Sources without a name that could not be read: any model of theirs could be.
    sources: BTreeSet<PathBuf>,
    models: BTreeSet<String>,
}

impl Unknown {
    fn covers(&self, name: &str, model: &ModelEntry) -> bool {
        self.models.contains(name) || self.sources.contains(&model.source)
    }
}

impl LifecycleManager {
    /// Looks at all sources.
    pub(super) fn scan_sources(&mut self) {
        self.has_scanned = true;
        self.is_shown = false;
        let shared = Arc::clone(&self.shared);
        let mut there: BTreeMap<String, DiscoveredModel> = BTreeMap::new();
        let mut unknown = Unknown::default();
        for source in &self.sources.clone() {
            let path = &source.path;
            let discovery = match source::discover(source, &shared.platforms) {
                Ok(discovery) => discovery,
                Err(error) => {
                    match &source.name {
                        Some(name) => drop(unknown.models.insert(name.clone())),
                        None => drop(unknown.sources.insert(path.clone())),
                    }
                    self.logged.warn(format!("{error}; what is loaded from it stays"));
                    self.problem(path, Some(error.to_string()));
                    continue;
                }
            };
            let Discovery { models, unreadable, empty, notes } = discovery;
            notes.into_iter().for_each(|note| self.logged.warn(note));
            unknown.models.extend(unreadable);
            let nothing = models.iter().all(|found| found.versions.is_empty());
            self.problem(path, nothing.then(|| "no model is there".to_owned()));
            self.add(models, &mut there);
            for name in empty {
                let model = self.models.get(name.as_str());
                if model.is_some_and(|model| model.source == *path) {
                    let (config, versions) = (source.model.clone(), BTreeMap::new());
                    let found = DiscoveredModel {
                        name: name.clone(),
                        source: path.clone(),
                        versions,
                        config,
                    };
                    there.entry(name).or_insert(found);
                }
            }
        }
        self.update(there, &unknown);
        let names: Vec<Arc<str>> = self.models.keys().cloned().collect();
        names.iter().for_each(|name| self.apply_batching(name));
        self.models.values_mut().for_each(|entry| entry.awaits_scan = false);
        if let Some(reload) = &mut self.reload {
            reload.is_scanned = true;
        }
    }

    /// Adds what one source has; a model that an earlier one has too counts there.
    fn add(&mut self, models: Vec<DiscoveredModel>, there: &mut BTreeMap<String, DiscoveredModel>) {
        for found in models {
            if there.contains_key(&found.name) {
                self.logged
                    .warn(format!("model {:?} is there twice; the first counts", found.name));
                continue;
            }
            there.insert(found.name.clone(), found);
        }
    }

    /// Puts a source's problem on the board, or takes it off. A source whose models still serve
    /// has none.
    fn problem(&mut self, path: &Path, problem: Option<String>) {
        let serves = |version: &Version| version.is_ready() && version.folder.starts_with(path);
        let stays = problem.is_some() && self.configured_versions().any(serves);
        let path = path.display().to_string();
        match problem {
            Some(problem) if !stays => self.problems.insert(path, problem),
            _ => self.problems.remove(&path),
        };
    }

    /// Brings the list of models and versions up to date with what is there.
    fn update(&mut self, there: BTreeMap<String, DiscoveredModel>, unknown: &Unknown) {
        for (name, entry) in &mut self.models {
            let is_there = there.contains_key(&**name) || unknown.covers(name, entry);
            if entry.is_configured() && !is_there {
                entry.withdraw();
            }
        }
        for (name, mut found) in there {
            let name: Arc<str> = name.into();
            if self.models.get(&name).is_some_and(|entry| entry.origin == Origin::Request) {
                self.logged.warn(format!("model {name} was loaded by request, and that one stays"));
                continue;
            }
            if self.models.get(&name).is_some_and(|model| {
                model.is_configured()
                    && model.source != found.source
                    && unknown.sources.contains(&model.source)
            }) {
                continue; // It may still be in the source that can not be read.
            }
            self.entry(&name).overrides.apply(&mut found.config);
            self.entry(&name).adopt(found.source, found.config);
            let Some(model) = self.models.get_mut(&name) else {
                continue;
            };
            let ready = model.versions.values().any(|v| matches!(v.state, State::Ready));
            if found.versions.is_empty() && ready {
                // An emptied folder looks like a mistake, or like storage that went away.
                self.logged.warn(format!(
                    "model {name} has no version on disk any more; the loaded one stays"
                ));
                continue;
            }
            if model.is_out_of_service {
                continue;
            }
            update_versions(model, found.versions);
            if let VersionPolicy::Specific(wanted) = &model.config.policy {
                let missing =
                    wanted.iter().filter(|v| !model.versions.get(v).is_some_and(|v| v.aspired));
                let missing: Vec<String> = missing.map(i64::to_string).collect();
                if !missing.is_empty() {
                    self.logged
                        .warn(format!("model {name}: version {} is not there", missing.join(", ")));
                }
            }
        }
        let unused = |entry: &&mut ModelEntry| entry.is_configured() && !entry.is_in_use();
        for entry in self.models.values_mut().filter(unused) {
            entry.remove();
        }
    }

    /// Finds out, of versions that wait or have failed, whether they can be loaded now.
    pub(super) fn check_files(&mut self) {
        self.is_shown = false;
        let shared = Arc::clone(&self.shared);
        let now = Instant::now();
        // The files of those that were asked for were looked at then.
        for model in self.models.values_mut().filter(|model| model.is_configured()) {
            let named = model.config.platform;
            for version in model.versions.values_mut().filter(|v| v.aspired) {
                let waits = matches!(version.state, State::Found(_));
                let failed = matches!(version.state, State::Failed(_));
                if !waits && !failed {
                    continue;
                }
                let seen = Fingerprint::of(&version.folder);
                let changed = version.seen.replace(seen) != Some(seen);
                let retries = version.attempts <= shared.config.max_load_retries;
                if failed && changed {
                    version.attempts = 0;
                } else if failed && !(retries && now >= version.retry_at) {
                    continue;
                }
                version.changing = changed && !seen.is_settled(SETTLED);
                if version.changing {
                    version.complete = false;
                    version.set_state(State::Found("its files still change".to_owned()));
                    continue;
                }
                let platform = shared.platforms.of_version(&version.folder, named);
                check_completeness(version, platform.map(|p| &**p));
            }
        }
    }
}

/// Adds new versions, notes vanished ones, and marks those that should be served.
fn update_versions(model: &mut ModelEntry, found: BTreeMap<i64, PathBuf>) {
    let there: BTreeSet<i64> = found.keys().copied().collect();
    let aspired = policy::aspired(&there, &model.config.policy);
    for (number, folder) in found {
        match model.versions.get_mut(&number) {
            Some(version) => version.folder = folder,
            // One that is not wanted is nothing to anyone.
            None if !aspired.contains(&number) => {}
            None => {
                model.versions.insert(number, Version::new(folder));
            }
        }
    }
    for (number, version) in &mut model.versions {
        if version.aspired && !aspired.contains(number) {
            version.by = WATCH.into();
        }
        version.aspired = aspired.contains(number);
        if version.aspired && matches!(version.state, State::Gone) {
            version.complete = false;
            version.seen = None;
            version.set_state(State::Found("wanted again".to_owned()));
        }
    }
}
