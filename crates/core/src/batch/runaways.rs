//! Runs that do not end: what is known of those of a version, and a run on a thread that can be given up.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::QueueInner;
use super::guards::lock;
use super::task::{expired_in_run, failed};
use tensorserve_os::{self as os, ThreadPriority};
use tensorserve_platform::RunOptions;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Error, Result};

/// With this many runs that are given up a version refuses requests, or with as many as may be overdue, if those are
/// fewer.
const MOST_GIVEN_UP: usize = 4;

/// The fewest runs of a version that may be overdue.
const FEWEST_OVERDUE: usize = 2;

/// How long after its deadline a run may end by itself. Then its thread is given up.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// The runs of a version that take much longer than usual, or do not end.
#[derive(Debug)]
pub struct Runaways {
    /// The model and the version, for messages.
    version: String,
    /// With this many overdue runs no further one begins.
    most: usize,
    /// Runs whose threads are replaced by others meanwhile.
    overdue: AtomicUsize,
    /// Runs, also outside of the queues, whose deadline is over, and which do not end.
    given_up: AtomicUsize,
}

impl Runaways {
    /// None, of the version that messages call `version`, of which as many may be overdue as there are batch
    /// threads.
    #[must_use]
    pub fn new(version: String, threads: usize) -> Self {
        let (most, overdue, given_up) = (threads.max(FEWEST_OVERDUE), 0.into(), 0.into());
        Runaways { version, most, overdue, given_up }
    }

    /// With this many runs that are given up the version refuses requests.
    fn most_given_up(&self) -> usize {
        self.most.min(MOST_GIVEN_UP)
    }

    /// Runs whose threads are given up.
    #[must_use]
    pub fn given_up(&self) -> usize {
        self.given_up.load(Relaxed)
    }

    /// Why the version refuses requests, if it does.
    #[must_use]
    pub fn refusal(&self) -> Option<Error> {
        let (count, version) = (self.given_up(), &self.version);
        (count >= self.most_given_up()).then(|| {
            Error::unavailable(format!(
                "{count} runs of {version} have not ended at their deadlines, and cannot be ended: the \
                 version takes no requests until one of these runs ends, or the version is loaded again; \
                 with isolation = \"process\", such runs are ended"
            ))
        })
    }

    /// Whether as many runs are overdue as may be.
    pub(super) fn are_most(&self) -> bool {
        self.overdue.load(Relaxed) >= self.most
    }

    pub(super) fn add_overdue(&self) {
        self.overdue.fetch_add(1, Relaxed);
    }

    pub(super) fn remove_overdue(&self) {
        self.overdue.fetch_sub(1, Relaxed);
    }

    pub(super) fn give_up(&self) {
        let count = self.given_up.fetch_add(1, Relaxed) + 1;
        let (version, most) = (&self.version, self.most_given_up());
        log::error!(
            "a run of {version} does not end, and its thread is given up ({count} so far; the version refuses \
             requests from {most} on)"
        );
    }

    pub(super) fn take_back(&self) {
        self.given_up.fetch_sub(1, Relaxed);
        log::info!("a run of {} that was given up has ended", self.version);
    }
}

/// Where a run on a thread of its own is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    Ended,
    GivenUp,
}

impl QueueInner {
    /// Runs the signature outside of the queue, and measures the run. One that may never end takes place on
    /// a thread of its own, which is given up some time after the timeout. Blocks.
    ///
    /// # Errors
    /// What the model reports; [`Code::DeadlineExceeded`](tensorserve_tensor::error::Code) of a run that
    /// is given up.
    pub(super) fn run_apart(
        self: &Arc<Self>,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<(Vec<Tensor>, Duration)> {
        if !self.traits.unbounded {
            let started = Instant::now();
            return Ok((self.run.run(inputs, options)?, started.elapsed()));
        }
        if let Some(refusal) = self.runaways.refusal() {
            return Err(refusal);
        }
        let stage = Arc::new(Mutex::new((Stage::Running, None)));
        let (sender, outcome) = mpsc::sync_channel(1);
        let (inner, inputs, its_stage) = (Arc::clone(self), inputs.to_vec(), Arc::clone(&stage));
        let work = move || {
            lock(&its_stage).1 = Some(os::thread_id());
            let started = Instant::now();
            let run = std::panic::AssertUnwindSafe(|| inner.run.run(&inputs, options));
            let outcome = std::panic::catch_unwind(run).unwrap_or_else(|_| Err(failed()));
            let _ = sender.send(outcome.map(|outputs| (outputs, started.elapsed())));
            let mut stage = lock(&its_stage);
            match stage.0 {
                Stage::GivenUp => inner.runaways.take_back(),
                Stage::Running | Stage::Ended => stage.0 = Stage::Ended,
            }
        };
        let spawned = thread::Builder::new().name("run".to_owned()).spawn(work);
        spawned.map_err(|error| {
            Error::internal("a thread for a run could not be started").with_source(error)
        })?;
        let limit = options.timeout.map_or(Duration::MAX, |timeout| timeout.saturating_add(GRACE));
        match outcome.recv_timeout(limit) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => Err(failed()),
            Err(RecvTimeoutError::Timeout) => {
                let mut stage = lock(&stage);
                if stage.0 == Stage::Running {
                    stage.0 = Stage::GivenUp;
                    self.runaways.give_up();
                    stage
                        .1
                        .iter()
                        .for_each(|thread| os::lower_priority_of(*thread, ThreadPriority::Lowest));
                }
                Err(expired_in_run())
            }
        }
    }
}
