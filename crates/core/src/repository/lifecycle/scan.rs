//! What is on disk: scans the sources, checks files, and brings the entries up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::LifecycleManager;
use super::entry::ModelEntry;
use super::reconcile::{
    CheckedFiles, Discovered, FileStep, Reconciliation, ScannedModel, next_file_step, reconcile,
};
use crate::config::SourceConfig;
use crate::repository::source::{self, DiscoveredModel, Discovery, Fingerprint};
use crate::repository::version::{FileCheck, Version};
use crate::repository::{Shared, State};

/// Files that have not changed for this long are no copy under way.
const QUIET: Duration = Duration::from_secs(3);

/// What one scan of all sources found.
#[derive(Default)]
struct Scan {
    /// By name; of two sources with a model of the same name, the first counts.
    models: BTreeMap<String, DiscoveredModel>,
    /// Sources without a name that could not be read: any model could be in them.
    unreadable_sources: BTreeSet<PathBuf>,
    /// Names of models that could not be read.
    unreadable_models: BTreeSet<String>,
}

impl LifecycleManager {
    /// Scans all sources, and reconciles the entries with what is there.
    pub(super) fn scan_sources(&mut self) {
        let mut scan = Scan::default();
        for source in &self.sources.clone() {
            self.scan_source(source, &mut scan);
        }
        let discovered = scan.models.keys().map(|name| Arc::from(name.as_str()));
        let names: BTreeSet<Arc<str>> = self.models.keys().cloned().chain(discovered).collect();
        for name in &names {
            self.reconcile(name, &mut scan);
            self.apply_batching(name);
        }
        self.has_scanned = true;
        self.is_shown = false;
        if let Some(reload) = &mut self.reload {
            reload.is_scanned = true;
        }
    }

    fn scan_source(&mut self, source: &SourceConfig, scan: &mut Scan) {
        let path = &source.path;
        let discovery = match source::discover(source, &self.shared.platforms) {
            Ok(discovery) => discovery,
            Err(error) => {
                match &source.name {
                    Some(name) => drop(scan.unreadable_models.insert(name.clone())),
                    None => drop(scan.unreadable_sources.insert(path.clone())),
                }
                self.logged.warn(format!("{error}; what is loaded from it stays"));
                self.set_problem(path, Some(error.to_string()));
                return;
            }
        };
        let Discovery { models, unreadable, empty, notes } = discovery;
        notes.into_iter().for_each(|note| self.logged.warn(note));
        scan.unreadable_models.extend(unreadable);
        let is_empty = models.iter().all(|found| found.versions.is_empty());
        self.set_problem(path, is_empty.then(|| "no model is there".to_owned()));
        for found in models {
            let name = found.name.clone();
            if scan.models.contains_key(&name) {
                self.logged.warn(format!("model {name:?} is there twice; the first counts"));
                continue;
            }
            scan.models.insert(name, found);
        }
        // A folder without versions is a model only if it was one before.
        let is_known = |entry: &ModelEntry| entry.is_configured() && entry.source == *path;
        for name in empty {
            if self.models.get(name.as_str()).is_some_and(is_known) {
                let (source, config) = (path.clone(), source.model.clone());
                let versions = BTreeMap::new();
                let emptied = DiscoveredModel { name: name.clone(), source, versions, config };
                scan.models.entry(name).or_insert(emptied);
            }
        }
    }

    /// Records why a source cannot be used, or that it can. A source whose models still serve has
    /// no problem.
    fn set_problem(&mut self, path: &Path, problem: Option<String>) {
        let serves = |version: &Version| version.is_ready() && version.folder.starts_with(path);
        let stays = problem.is_some() && self.configured_versions().any(serves);
        let path = path.display().to_string();
        match problem {
            Some(problem) if !stays => self.problems.insert(path, problem),
            _ => self.problems.remove(&path),
        };
    }

    /// Reconciles the entry of one model with what the scan found.
    fn reconcile(&mut self, name: &Arc<str>, scan: &mut Scan) {
        let found = scan.models.remove(&**name);
        let entry = self.entry(name);
        entry.awaits_scan = false;
        let reconciliation = reconcile(&ScannedModel {
            origin: entry.origin,
            source: &entry.source,
            has_ready_version: entry.has_ready_version(),
            is_out_of_service: entry.is_out_of_service,
            discovered: found.as_ref().map(|found| Discovered {
                source: &found.source,
                has_versions: !found.versions.is_empty(),
            }),
            source_is_unreadable: scan.unreadable_sources.contains(&entry.source),
            model_is_unreadable: scan.unreadable_models.contains(&**name),
        });
        match (reconciliation, found) {
            (Reconciliation::Withdraw, _) => entry.withdraw(),
            (Reconciliation::KeepRequested, _) => {
                self.logged.warn(format!("model {name} was loaded by request, and that one stays"));
            }
            (Reconciliation::AdoptSettings, Some(found)) => entry.adopt(found.source, found.config),
            (Reconciliation::AdoptSettingsOfEmptied, Some(found)) => {
                entry.adopt(found.source, found.config);
                self.logged.warn(format!(
                    "model {name} has no version on disk any more; the loaded one stays"
                ));
            }
            (Reconciliation::Adopt, Some(found)) => {
                entry.adopt(found.source, found.config);
                entry.adopt_versions(found.versions);
                let missing = entry.missing_versions();
                if !missing.is_empty() {
                    let missing: Vec<String> = missing.iter().map(i64::to_string).collect();
                    let missing = missing.join(", ");
                    self.logged.warn(format!("model {name}: version {missing} is not there"));
                }
            }
            (Reconciliation::Keep, _) | (_, None) => {}
        }
        let entry = self.entry(name);
        if entry.is_configured() && !entry.is_in_use() {
            entry.remove();
        }
    }

    /// Finds out, of versions that wait or have failed, whether they can be loaded now.
    pub(super) fn check_files(&mut self) {
        self.is_shown = false;
        // The files of requested models are checked only when they are requested.
        for entry in self.models.values_mut().filter(|entry| entry.is_configured()) {
            let platform = entry.config.platform;
            for version in entry.versions.values_mut().filter(|version| version.aspired) {
                if matches!(version.state, State::Found(_) | State::Failed(_)) {
                    check_files_of(version, platform, &self.shared);
                }
            }
        }
    }
}

/// Finds out whether a version can be loaded now. `platform` is the one that its settings name.
fn check_files_of(version: &mut Version, platform: Option<&str>, shared: &Shared) {
    let seen = Fingerprint::of(&version.folder);
    let have_changed = version.seen.replace(seen) != Some(seen);
    let has_failed = version.failure().is_some();
    if has_failed && have_changed {
        version.attempts = 0;
    }
    let may_retry = version.attempts <= shared.config.max_load_retries;
    let step = next_file_step(CheckedFiles {
        has_failed,
        have_changed,
        are_quiet: seen.is_settled(QUIET),
        retry_is_due: may_retry && Instant::now() >= version.retry_at,
    });
    match step {
        FileStep::Leave => {}
        FileStep::Wait => {
            version.files = FileCheck::Pending;
            version.set_state(State::Found("its files still change".to_owned()));
        }
        FileStep::Check => {
            let platform = shared.platforms.of_version(&version.folder, platform);
            version.check_completeness(platform.map(|platform| &**platform));
        }
    }
}
