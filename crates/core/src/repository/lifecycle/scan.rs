//! Brings the entries up to date with what is on disk.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::LifecycleManager;
use super::disk::Disk;
use super::reconcile::{CheckedFiles, FileStep, Reconciliation, next_file_step};
use super::sources::SourceScan;
use crate::repository::files::{self, Fingerprint};
use crate::repository::stores::StoreFetch;
use crate::repository::version::{FileCheck, Standing, Version};
use crate::repository::{RepositoryShared, VersionState};

/// Files that have not changed for this long are no copy under way.
const QUIET: Duration = Duration::from_secs(3);

impl LifecycleManager {
    /// Scans all sources, and reconciles the entries with what is there.
    pub(super) fn scan_sources(&mut self) {
        let shared = &self.shared;
        let mut scan = self.sources.scan(&self.disk, shared, &self.models, &mut self.logged);
        let present = self.models.iter().filter(|(_, entry)| !entry.is_removed());
        let present = present.map(|(name, _)| Arc::clone(name));
        let names: BTreeSet<Arc<str>> = present.chain(scan.names()).collect();
        for name in &names {
            self.reconcile(name, &mut scan);
            self.apply_batching(name);
        }
        self.is_shown = false;
    }

    /// Reconciles the entry of one model with what the scan found.
    fn reconcile(&mut self, name: &Arc<str>, scan: &mut SourceScan) {
        let shared = Arc::clone(&self.shared);
        let entry = self.entry(name);
        entry.waiters.scanned();
        let mut warning = None;
        match scan.take(name, entry) {
            (Reconciliation::Withdraw, _) => entry.withdraw(),
            (Reconciliation::KeepRequested, _) => {
                warning = Some(format!(
                    "a source has a model {name}, but a model of that name was loaded by request; \
                     the loaded one stays"
                ));
            }
            (Reconciliation::AdoptSettings, Some(found)) => entry.adopt(found.source, found.config),
            (Reconciliation::AdoptSettingsOfEmptied, Some(found)) => {
                entry.adopt(found.source, found.config);
                warning = Some(format!(
                    "model {name} has no version on disk any more; the loaded version stays"
                ));
            }
            (Reconciliation::Adopt, Some(found)) => {
                entry.adopt(found.source, found.config);
                entry.adopt_versions(found.versions, &shared.held);
                let missing = entry.missing_versions();
                if !missing.is_empty() {
                    let missing: Vec<String> = missing.iter().map(i64::to_string).collect();
                    let missing = missing.join(", ");
                    warning = Some(format!("model {name}: version {missing} not found"));
                }
            }
            (Reconciliation::Keep, _) | (_, None) => {}
        }
        if entry.is_configured() && !entry.is_in_use() {
            entry.remove();
        }
        if let Some(warning) = warning {
            self.logged.warn(warning);
        }
    }

    /// Finds out, of versions that wait or have failed, whether they can be loaded now.
    pub(super) fn check_files(&mut self) {
        // The files of requested models are checked only when they are requested.
        for entry in self.models.values_mut().filter(|entry| entry.is_configured()) {
            let platform = entry.config.platform;
            let wanted = |it: &&mut Version| it.aspired && it.standing == Standing::Wanted;
            for version in entry.versions.values_mut().filter(wanted) {
                if matches!(version.state, VersionState::Found(_) | VersionState::Failed(_)) {
                    check_files_of(version, platform, &self.shared, &self.disk);
                }
            }
        }
        self.is_shown = false;
    }
}

/// Finds out whether a version can be loaded now. `platform` is the one that its settings name.
fn check_files_of(
    version: &mut Version,
    platform: Option<&'static str>,
    shared: &RepositoryShared,
    disk: &Disk,
) {
    let is_whole = match shared.stores.fetch(&version.folder) {
        StoreFetch::Local => false,
        StoreFetch::Whole => true,
        StoreFetch::Pending(what) => return version.is_fetched_later(what),
        StoreFetch::Failed(error) => return version.fetch_failed(error),
    };
    let Some(seen) = disk.read(&version.folder, Fingerprint::of) else {
        return;
    };
    let have_changed = version.seen.replace(seen) != Some(seen);
    let has_failed = version.failure().is_some();
    if has_failed && have_changed {
        version.attempts = 0;
    }
    let may_retry = version.attempts <= shared.config.max_load_retries;
    let step = next_file_step(CheckedFiles {
        has_failed,
        have_changed,
        are_quiet: is_whole || seen.is_settled(QUIET),
        retry_is_due: may_retry && Instant::now() >= version.retry_at,
    });
    match step {
        FileStep::Leave => {}
        FileStep::Wait => {
            version.files = FileCheck::Pending;
            version.set_state(VersionState::Found("its files are still changing".to_owned()));
        }
        FileStep::Check => {
            let platforms = shared.platforms.clone();
            let check = move |folder: &Path| files::check(folder, &platforms, platform);
            if let Some(completeness) = disk.read(&version.folder, check) {
                version.checked(completeness);
            }
        }
    }
}
