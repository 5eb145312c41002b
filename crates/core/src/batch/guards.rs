//! Counters of what is in progress, and locks, which are right also after a panic.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::metrics::QueueMetrics;

/// Increments a counter until dropped.
#[derive(Debug)]
pub(super) struct CountGuard<'a>(&'a AtomicUsize);

impl<'a> CountGuard<'a> {
    pub(super) fn new(counter: &'a AtomicUsize) -> Self {
        counter.fetch_add(1, Relaxed);
        CountGuard::counted(counter)
    }

    /// A guard for a counter that is incremented already.
    pub(super) fn counted(counter: &'a AtomicUsize) -> Self {
        CountGuard(counter)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A run in progress.
pub(super) struct BusyGuard<'a> {
    metrics: &'a QueueMetrics,
    started: Instant,
    has_ended: bool,
}

impl<'a> BusyGuard<'a> {
    pub(super) fn new(metrics: &'a QueueMetrics) -> Self {
        let started = Instant::now();
        metrics.begins(started);
        BusyGuard { metrics, started, has_ended: false }
    }

    /// Ends the run. Returns when it began, and how long it took.
    pub(super) fn end(&mut self) -> (Instant, Duration) {
        let ended = Instant::now();
        self.has_ended = true;
        self.metrics.ends(ended);
        (self.started, ended.saturating_duration_since(self.started))
    }
}

impl Drop for BusyGuard<'_> {
    /// The run has failed, or panicked.
    fn drop(&mut self) {
        if !self.has_ended {
            self.end();
        }
    }
}

/// Locks a mutex, also one that a thread has left locked in a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
