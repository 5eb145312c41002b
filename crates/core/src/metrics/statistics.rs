//! The totals of a signature since its version was loaded.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{cell, nanos};

/// A number of events, and the time that they took together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// How many there were.
    pub count: u64,
    /// Their time in nanoseconds.
    pub nanoseconds: u64,
}

impl Total {
    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Total) -> Total {
        let nanoseconds = self.nanoseconds.saturating_add(other.nanoseconds);
        Total { count: self.count.saturating_add(other.count), nanoseconds }
    }
}

/// The totals of a signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests that succeeded, from the arrival of their heads to the end of their responses' encoding.
    pub succeeded: Total,
    /// Requests that failed.
    pub failed: Total,
    /// Waits of requests for their batches.
    pub queued: Total,
    /// Runs of the model.
    pub runs: Total,
    /// Rows of all runs.
    pub rows: u64,
    /// When a request succeeded last, in milliseconds since 1970; 0 if none has.
    pub last_success: u64,
}

impl Statistics {
    /// The sum of two signatures.
    #[must_use]
    pub fn plus(self, other: Statistics) -> Statistics {
        Statistics {
            succeeded: self.succeeded.plus(other.succeeded),
            failed: self.failed.plus(other.failed),
            queued: self.queued.plus(other.queued),
            runs: self.runs.plus(other.runs),
            rows: self.rows.saturating_add(other.rows),
            last_success: self.last_success.max(other.last_success),
        }
    }
}

/// What is counted for [`Statistics`] alone.
#[derive(Default)]
pub(super) struct MoreCounts {
    failed_nanoseconds: AtomicU64,
    last_success: AtomicU64,
}

impl MoreCounts {
    pub(super) fn succeeded(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        cell::show(&self.last_success, u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    }

    pub(super) fn failed(&self, time: Duration) {
        self.failed_nanoseconds.fetch_add(nanos(time), Relaxed);
    }

    pub(super) fn failed_nanoseconds(&self) -> u64 {
        self.failed_nanoseconds.load(Relaxed)
    }

    pub(super) fn last_success(&self) -> u64 {
        self.last_success.load(Relaxed)
    }
}
