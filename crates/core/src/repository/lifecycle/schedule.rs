//! When sources are scanned and files are checked, and which warnings about them are logged once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How often files of versions that wait are checked, at least: those that are just being copied do not wait for a long
/// interval of the sources.
const FILES_INTERVAL: Duration = Duration::from_secs(1);

/// Lines that are remembered not to be logged again.
const MOST_LINES: usize = 1000;

/// When to scan the sources, and to check the files of versions that wait.
pub(super) struct ScanSchedule {
    /// How often the sources are scanned; `None` if only when they change.
    interval: Option<Duration>,
    /// When the sources are due, if they are scanned by time.
    sources_at: Option<Instant>,
    /// The sources, and not only files, are due at `next`.
    includes_sources: bool,
    next: Instant,
}

impl ScanSchedule {
    /// Both are due now.
    pub(super) fn new(interval: Option<Duration>) -> Self {
        ScanSchedule { interval, sources_at: None, includes_sources: true, next: Instant::now() }
    }

    /// The next time that something is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Makes a scan of the sources due.
    pub(super) fn scan_sources_now(&mut self) {
        self.includes_sources = true;
        self.next = Instant::now();
    }

    /// Makes a check of files due.
    pub(super) fn check_files_now(&mut self) {
        self.next = Instant::now();
    }

    /// Whether something is due.
    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Whether the sources are to be scanned, and not only files to be checked.
    pub(super) fn includes_sources(&self) -> bool {
        self.includes_sources
    }

    /// What was due is done.
    pub(super) fn done(&mut self) {
        let now = Instant::now();
        if self.includes_sources {
            self.sources_at = self.interval.map(|interval| now + interval);
        }
        let files_at = now + FILES_INTERVAL;
        self.includes_sources = self.sources_at.is_some_and(|at| at <= files_at);
        self.next = self.sources_at.map_or(files_at, |at| at.min(files_at));
    }
}

/// Warnings that were logged, and are not repeated at every scan.
#[derive(Default)]
pub(super) struct LoggedOnce(BTreeSet<String>);

impl LoggedOnce {
    /// Logs a warning, unless it was logged before.
    pub(super) fn warn(&mut self, line: String) {
        if self.0.len() >= MOST_LINES {
            self.0.clear();
        }
        if !self.0.contains(&line) {
            log::warn!("{line}");
            self.0.insert(line);
        }
    }

    /// Forgets what was logged.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
