//! The runs of a pool that may never end, which a thread watches.
//!
//! When a run takes much longer than usual, its thread no longer counts and has a low priority: another one takes
//! its place, so that the requests of other models do not wait for it. While a version has the most such runs, no
//! further one begins. A run that does not end at its deadline is *given up*: its thread gets the lowest
//! priority, and ends whenever the run does.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::runaways::{GRACE, Runaways};
use super::task::WaitingTask;
use super::{BatcherShared, QueueInner};
use tensorserve_os::{self as os, ThreadId, ThreadPriority};

/// A run is overdue after this many times the usual time, …
const OVERDUE_TIMES: u32 = 10;
/// … but not before this, …
const OVERDUE_AFTER: Duration = Duration::from_millis(100);
/// … nor before this where the usual time is not known.
const OVERDUE_UNKNOWN: Duration = Duration::from_secs(1);

/// The runs of the threads of a pool.
#[derive(Default)]
pub(super) struct Watched {
    runs: Vec<WatchedRun>,
    next_number: u64,
    /// When the watching thread looks next.
    pub(super) looks_at: Option<Instant>,
    /// Threads that take batches, without those with overdue runs.
    pub(super) threads: usize,
    /// Names of threads that have been given.
    pub(super) named: usize,
    pub(super) is_started: bool,
}

/// A run of such a thread.
pub(super) struct WatchedRun {
    number: u64,
    runaways: Arc<Runaways>,
    thread: ThreadId,
    overdue_at: Instant,
    /// When it has had its time; `None` without a deadline.
    given_up_at: Option<Instant>,
    is_overdue: bool,
    is_given_up: bool,
}

impl WatchedRun {
    /// The run of `batch`, which this thread begins.
    pub(super) fn of(inner: &QueueInner, batch: &[WaitingTask]) -> Self {
        let now = Instant::now();
        let usual = inner.cost.predict(batch.iter().map(WaitingTask::size).sum());
        let patience = usual.map_or(OVERDUE_UNKNOWN, |usual| {
            usual.saturating_mul(OVERDUE_TIMES).max(OVERDUE_AFTER)
        });
        let deadlines = batch.iter().map(|waiter| waiter.task.deadline);
        let last = deadlines.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
        WatchedRun {
            number: 0,
            runaways: Arc::clone(&inner.runaways),
            thread: os::thread_id(),
            overdue_at: now.checked_add(patience).unwrap_or(now + OVERDUE_UNKNOWN),
            given_up_at: last.map(|deadline| deadline + GRACE),
            is_overdue: false,
            is_given_up: false,
        }
    }

    /// When it changes next.
    fn due(&self) -> Option<Instant> {
        match (self.is_overdue, self.is_given_up) {
            (false, _) => Some(self.overdue_at),
            (true, false) => self.given_up_at,
            (true, true) => None,
        }
    }
}

impl Watched {
    /// Adds a run that begins. Returns its number, and whether the watching thread must be woken.
    pub(super) fn begin(&mut self, run: WatchedRun) -> (u64, bool) {
        let is_sooner = self.looks_at.is_none_or(|looks_at| run.overdue_at < looks_at);
        let number = self.next_number;
        self.next_number += 1;
        self.runs.push(WatchedRun { number, ..run });
        (number, is_sooner)
    }

    /// Removes the run that this thread has ended. Returns whether another thread has taken its place.
    pub(super) fn end(&mut self, shared: &BatcherShared, number: u64) -> bool {
        let Some(place) = self.runs.iter().position(|run| run.number == number) else {
            return false;
        };
        let run = self.runs.swap_remove(place);
        if !run.is_overdue {
            return false;
        }
        run.runaways.remove_overdue();
        if run.is_given_up {
            shared.given_up.fetch_sub(1, Relaxed);
            run.runaways.take_back();
        }
        true
    }

    /// Finds runs that are overdue, and those to give up. Returns whether there is one to give up.
    pub(super) fn look(&mut self, shared: &BatcherShared, now: Instant) -> bool {
        let mut gives_up = false;
        for run in &mut self.runs {
            if !run.is_overdue && run.overdue_at <= now {
                run.is_overdue = true;
                // It ends with this run, or it would not be here.
                os::lower_priority_of(run.thread, ThreadPriority::Low);
                run.runaways.add_overdue();
                self.threads = self.threads.saturating_sub(1);
            }
            if run.is_overdue && !run.is_given_up && run.given_up_at.is_some_and(|at| at <= now) {
                run.is_given_up = true;
                gives_up = true;
                shared.given_up.fetch_add(1, Relaxed);
                run.runaways.give_up();
                os::lower_priority_of(run.thread, ThreadPriority::Lowest);
            }
        }
        self.looks_at = self.runs.iter().filter_map(WatchedRun::due).min();
        gives_up
    }
}
