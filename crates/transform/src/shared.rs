//! What all entry threads share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::batch::{Batch, BatchText, RecordRunner};
use crate::job::{Job, retried};
use crate::model::Model;
use crate::plan::{Entry, Plan, PlannedObject};
use crate::pool::{Pending, Pool};
use crate::progress::Progress;
use crate::report::counted;
use crate::state::{ObjectOutcome, State};
use tensorserve_store::objects::Place;
use tensorserve_tensor::error::{Code, Error, Result};

/// What all entry threads share.
pub(crate) struct Shared {
    pub(crate) job: Arc<Job>,
    pub(crate) plan: Plan,
    pub(crate) input: Place,
    pub(crate) output: Place,
    /// Where dead letters go, if not into the state.
    pub(crate) dead_letters: Option<Place>,
    pub(crate) state: State,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) runner: Arc<RecordRunner>,
    pub(crate) pool: Pool,
    pub(crate) progress: Arc<Progress>,
    /// No other run has worked on this plan: its outputs are not there yet.
    pub(crate) is_first: bool,
    /// Entries whose objects were joined, by the number of the first range: two threads that end the last ranges of an
    /// object at the same time may both join it, and it is one object.
    pub(crate) joined: Mutex<BTreeSet<usize>>,
    /// Why the run must end: there are too many bad records. An object that ends for it takes back what
    /// it has counted.
    pub(crate) exceeded: OnceLock<String>,
    /// Entry threads end as soon as they can.
    pub(crate) stop: Arc<AtomicBool>,
}

/// A batch that is being run.
pub(crate) struct UnderWay {
    pub(crate) batch: Arc<Batch>,
    pub(crate) output: Pending<Result<BatchText>>,
    /// Nanoseconds that its run took; known when the output is there.
    ran: Arc<AtomicU64>,
}

impl UnderWay {
    /// How long its run took, without the time in the queue. Zero before the output is there.
    pub(crate) fn ran(&self) -> Duration {
        Duration::from_nanos(self.ran.load(Relaxed))
    }
}

impl Shared {
    pub(crate) fn out_key(&self, key: &str) -> String {
        format!("{key}{}", self.job.frozen.output_suffix)
    }

    /// Whether the object that `entry` is a range of counts as done now that it is joined: once.
    pub(crate) fn is_newly_joined(&self, entry: &Entry) -> bool {
        let first = self.plan.parts_of(entry).map(|part| part.entry).next();
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        first.is_some_and(|first| joined.insert(first))
    }

    pub(crate) fn check_stop(&self) -> Result<()> {
        if self.stop.load(Relaxed) {
            return Err(interrupted());
        }
        let (bad, records) = (self.progress.bad.load(Relaxed), self.progress.records.load(Relaxed));
        if self.job.bad_limit.is_exceeded(bad, records) {
            let are = if bad == 1 { "is" } else { "are" };
            let records = counted(records, "record");
            let why = format!("{bad} of {records} {are} bad, more than --max-bad-records allows");
            let _ = self.exceeded.set(why);
        }
        match self.exceeded.get() {
            Some(why) => Err(Error::new(Code::OutOfRange, why.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn submit(&self, batch: Batch) -> UnderWay {
        let (batch, runner) = (Arc::new(batch), Arc::clone(&self.runner));
        let (shared, progress) = (Arc::clone(&batch), Arc::clone(&self.progress));
        let ran = Arc::new(AtomicU64::new(0));
        let time = Arc::clone(&ran);
        let run = move || {
            let start = Instant::now();
            let output = runner.run(&shared);
            Progress::spent(&time, start);
            progress.ran.fetch_add(u64::try_from(shared.len()).unwrap_or(0), Relaxed);
            output
        };
        UnderWay { batch, output: self.pool.submit(run), ran }
    }

    pub(crate) fn retried<T>(
        &self,
        object: &PlannedObject,
        attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        retried(self.job.retries, attempt, |error| {
            log::warn!("{}: {error}; it is tried again", object.key);
        })
    }
}

pub(crate) fn failure(object: &PlannedObject, error: &Error) -> ObjectOutcome {
    ObjectOutcome {
        key: object.key.clone(),
        tag: object.tag.clone(),
        error: Some(error.message().to_owned()),
        ..ObjectOutcome::default()
    }
}

/// The error of a run that was stopped.
pub(crate) fn interrupted() -> Error {
    Error::new(Code::Cancelled, "interrupted")
}
