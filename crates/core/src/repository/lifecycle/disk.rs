//! Reads directories of models without waiting for a file system that hangs.
//!
//! A network file system whose server is gone, or a FUSE file system whose daemon is, blocks whoever
//! touches it, for hours or for ever. So each read has a thread of its own, and a limit of time. A path
//! that does not respond is left alone until the read that hangs has ended; what is loaded from there
//! stays loaded, and other models get their new versions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, bounded};

use super::control::ManagerEvent;
use super::work::spawn;
use crate::config::{SourceConfig, is_store_url};
use crate::repository::RepositoryShared;
use crate::repository::source::{self, Discovery, no_response};
use crate::repository::stores::{Scanned, discover_in_store};
use tensorserve_platform::Platforms;
use tensorserve_tensor::error::Result;

/// How long a read may take before its path counts as hanging.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long the scan of a source may take in which nothing hangs: one of thousands of models on a slow
/// file system.
const SLOW_SCAN: Duration = Duration::from_secs(60);

/// The levels of directories below a source: models, and their versions.
const LEVELS: u32 = 2;

/// Reads the disk with limits of time.
#[derive(Clone)]
pub(super) struct Disk {
    state: Arc<Mutex<DiskState>>,
    reports: Sender<ManagerEvent>,
}

#[derive(Default)]
struct DiskState {
    /// Paths with a read that has not ended in time.
    hanging: BTreeSet<PathBuf>,
    /// Paths with a read that took longer than allowed, and how long the next one may take.
    slow: BTreeMap<PathBuf, Duration>,
}

/// A read that has begun.
struct PendingRead<T> {
    outcome: Receiver<T>,
    patience: Duration,
}

impl Disk {
    /// `reports` is told when a path responds again.
    pub(super) fn new(reports: Sender<ManagerEvent>) -> Self {
        Disk { state: Arc::default(), reports }
    }

    /// Tells the lifecycle manager what was found.
    pub(super) fn report(&self, event: ManagerEvent) {
        let _ = self.reports.send(event);
    }

    /// The models and versions in a source.
    ///
    /// # Errors
    /// If its directory cannot be read, or does not respond.
    fn discover(&self, source: &SourceConfig, platforms: &Platforms) -> Result<Discovery> {
        let path = &source.path;
        if self.hangs(path) {
            return Err(no_response(path));
        }
        let scan = self.begin_scan(source, platforms);
        if let Ok(discovery) = scan.outcome.recv_timeout(scan.patience) {
            return discovery;
        }
        let scan = match self.find_hanging(path, LEVELS) {
            true if self.hangs(path) => return Err(no_response(path)),
            true => self.begin_scan(source, platforms),
            false => scan,
        };
        scan.outcome.recv_timeout(SLOW_SCAN).unwrap_or_else(|_| Err(no_response(path)))
    }

    /// The models and versions in a source, which may be in a store.
    pub(super) fn discover_source(
        &self,
        source: &SourceConfig,
        shared: &RepositoryShared,
    ) -> Scanned {
        let discover = |local: &SourceConfig| self.discover(local, &shared.platforms);
        match is_store_url(&source.path) {
            true => discover_in_store(source, &*shared.stores, discover),
            false => discover(source).into(),
        }
    }

    /// What `work` finds at `path`; `None` if that does not respond.
    pub(super) fn read<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> Option<T> {
        if self.hangs(path) {
            return None;
        }
        let read = self.begin(path, work);
        if let Ok(found) = read.outcome.recv_timeout(read.patience) {
            return Some(found);
        }
        // The thread reports under the same lock, so that it sees whether this one still waits.
        let mut state = lock(&self.state);
        if let Ok(found) = read.outcome.try_recv() {
            return Some(found);
        }
        log::warn!("{}; what is loaded from there stays loaded", no_response(path));
        state.hanging.insert(path.to_owned());
        drop(read);
        None
    }

    fn begin_scan(
        &self,
        source: &SourceConfig,
        platforms: &Platforms,
    ) -> PendingRead<Result<Discovery>> {
        let (source, platforms) = (source.clone(), platforms.clone());
        let hanging = lock(&self.state).hanging.clone();
        let path = source.path.clone();
        self.begin(&path, move |_| source::discover(&source, &platforms, &hanging))
    }

    /// Looks at each path below `path` by itself. Returns whether there is one that hangs.
    fn find_hanging(&self, path: &Path, levels: u32) -> bool {
        let Some(inside) = self.read(path, entries) else {
            return true;
        };
        let mut found = false;
        if levels > 0 {
            for entry in &inside {
                found |= self.find_hanging(entry, levels - 1);
            }
        }
        found
    }

    fn begin<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> PendingRead<T> {
        let (sender, outcome) = bounded(1);
        let patience = lock(&self.state).slow.get(path).copied().unwrap_or(PATIENCE);
        let (state, reports, path) =
            (Arc::clone(&self.state), self.reports.clone(), path.to_owned());
        let start = Instant::now();
        spawn("disk", move || {
            let found = work(&path);
            let mut state = lock(&state);
            if sender.send(found).is_ok() {
                return;
            }
            if state.hanging.remove(&path) {
                log::info!("{} responds again", path.display());
                state.slow.insert(path, (2 * start.elapsed()).min(SLOW_SCAN));
            }
            let _ = reports.send(ManagerEvent::DiskResponds);
        });
        PendingRead { outcome, patience }
    }

    /// Whether `path`, or a directory that it is in, does not respond.
    fn hangs(&self, path: &Path) -> bool {
        lock(&self.state).hanging.iter().any(|hanging| path.starts_with(hanging))
    }
}

fn lock(state: &Mutex<DiskState>) -> MutexGuard<'_, DiskState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entries of a directory; none of a file.
fn entries(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam::channel::unbounded;
    use std::time::Duration;

    #[test]
    fn a_path_that_hangs_is_left_alone_until_it_responds() {
        let (reports, events) = unbounded();
        let disk = Disk::new(reports);
        let (release, wait) = bounded::<()>(0);
        let (hangs, inside) = (Path::new("/hangs"), Path::new("/hangs/1"));
        assert_eq!(disk.read(hangs, move |_| wait.recv().is_ok()), None);
        // Neither it nor anything in it is touched.
        assert_eq!(disk.read(hangs, |_| 1), None);
        assert_eq!(disk.read(inside, |_| 1), None);
        assert_eq!(disk.read(Path::new("/other"), |_| 1), Some(1));
        release.send(()).expect("the read still waits");
        let event = events.recv_timeout(Duration::from_secs(10)).expect("a report");
        assert!(matches!(event, ManagerEvent::DiskResponds));
        assert_eq!(disk.read(inside, |_| 1), Some(1));
        // It may take as long again.
        assert!(lock(&disk.state).slow.get(hangs).is_some_and(|slow| *slow >= 2 * PATIENCE));
    }
}
