//! Runs entries of a plan: threads take them one after the other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::batch::RecordRunner;
use crate::job::Job;
use crate::model::Model;
use crate::parts;
use crate::plan::{Entry, Plan};
use crate::pool::{BatchThreads, Pool};
use crate::progress::Progress;
use crate::shared::Shared;
use crate::state::{Marker, ObjectOutcome, State};
use tensorserve_store::objects::Place;
use tensorserve_tensor::error::{Code, Error, Result};

/// Everything that a run needs.
pub struct Run {
    /// The job.
    pub job: Arc<Job>,
    /// Its plan.
    pub plan: Plan,
    /// The place of the objects of the plan.
    pub input: Place,
    /// The place of the outputs and of the state.
    pub output: Place,
    /// The state, in which the job and the plan are.
    pub state: State,
    /// Where dead letters go, if not into the state.
    pub dead_letters: Option<Place>,
    /// The model.
    pub model: Arc<dyn Model>,
    /// No other run has worked on this plan, nor does one now.
    pub is_first: bool,
    /// The counters.
    pub progress: Arc<Progress>,
    /// Ends the run as soon as possible when it becomes true.
    pub stop: Arc<AtomicBool>,
}

/// The entries of a run.
pub enum EntryFeed {
    /// The entries with these numbers.
    List(Vec<usize>),
    /// The entries whose numbers arrive, until the sender is dropped.
    Channel(Receiver<usize>),
}

/// How a run has ended.
#[derive(Debug, Default)]
pub struct RunOutcome {
    /// The run was interrupted.
    pub is_interrupted: bool,
    /// The objects that failed.
    pub failed: Vec<ObjectOutcome>,
    /// The time that the model's threads were busy, in nanoseconds.
    pub busy: u64,
}

impl Run {
    /// Runs entries; `each` is called with what each has become.
    ///
    /// # Errors
    /// If the run had to end before its time: the state cannot be written, or there are too many bad
    /// records.
    pub fn run(self, feed: EntryFeed, each: &(dyn Fn(&Marker) + Sync)) -> Result<RunOutcome> {
        let runner = RecordRunner::new(Arc::clone(&self.job), Arc::clone(&self.model));
        let is_here = self.input.is_local() && self.output.is_local();
        let workers = if is_here { BatchThreads::Entry } else { BatchThreads::Pool };
        let pool = Pool::new(self.job.concurrency, workers)?;
        let shared = Shared {
            state: self.state,
            runner: Arc::new(runner),
            pool,
            job: self.job,
            plan: self.plan,
            input: self.input,
            output: self.output,
            dead_letters: self.dead_letters,
            model: self.model,
            progress: self.progress,
            is_first: self.is_first,
            joined: Mutex::default(),
            exceeded: OnceLock::new(),
            stop: self.stop,
        };
        shared.run_entries(feed, each)
    }
}

impl Shared {
    fn run_entries(&self, feed: EntryFeed, each: &(dyn Fn(&Marker) + Sync)) -> Result<RunOutcome> {
        let (fatal, failed) = (Mutex::new(None), Mutex::new(Vec::new()));
        let numbers = match feed {
            EntryFeed::Channel(numbers) => numbers,
            EntryFeed::List(list) => {
                let (sender, numbers) = bounded(list.len());
                for number in list {
                    // There is room for all.
                    let _ = sender.send(number);
                }
                numbers
            }
        };
        // It is disconnected when the last thread has no more entries.
        let (busy, idle) = bounded::<()>(0);
        // Not a stage: there is no work left.
        let idling = AtomicU64::new(0);
        let take_entries = |_busy: Sender<()>| {
            while let Some(number) = self.pool.receive(&numbers, &idling) {
                if self.stop.load(Relaxed) {
                    return;
                }
                let done = self.numbered(number).and_then(|entry| self.process(entry));
                match done {
                    Ok(marker) => {
                        each(&marker);
                        let objects = marker.objects.into_iter();
                        let wrong = objects.filter(|object| object.error.is_some());
                        failed.lock().unwrap_or_else(PoisonError::into_inner).extend(wrong);
                    }
                    Err(error) => {
                        // The others end as soon as they can; their errors say only that.
                        self.stop.store(true, Relaxed);
                        let mut fatal = fatal.lock().unwrap_or_else(PoisonError::into_inner);
                        fatal.get_or_insert(error);
                        return;
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..self.pool.entry_threads() {
                let (busy, idle, idling) = (busy.clone(), &idle, &idling);
                let take_entries = &take_entries;
                scope.spawn(move || {
                    take_entries(busy);
                    // The others may have batches to run.
                    self.pool.receive(idle, idling);
                });
            }
            drop(busy);
        });
        let fatal = fatal.into_inner().unwrap_or_else(PoisonError::into_inner);
        let is_interrupted = self.stop.load(Relaxed)
            && fatal.as_ref().is_none_or(|error| error.code() == Code::Cancelled);
        if let Some(error) = fatal.filter(|_| !is_interrupted) {
            return Err(error);
        }
        if !is_interrupted {
            self.join_rest()?;
        }
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(RunOutcome { is_interrupted, failed, busy: self.runner.busy() })
    }

    fn numbered(&self, number: usize) -> Result<&Entry> {
        self.plan.entries.get(number).ok_or_else(|| {
            let count = self.plan.entries.len();
            Error::invalid(format!("there is no entry {number}: the plan has {count}"))
        })
    }

    /// Joins objects whose parts were all done before this run, or by it.
    fn join_rest(&self) -> Result<()> {
        if self.plan.ranges() == 0 {
            return Ok(());
        }
        // One listing in place of several requests for each range: usually all are joined.
        let left = parts::left(&self.output)?;
        let is_left =
            |entry: &&Entry| entry.range.is_some() && left.contains(&parts::key(entry.entry));
        let mut seen = BTreeSet::new();
        for entry in self.plan.entries.iter().filter(is_left) {
            let Some(object) = entry.objects.first() else {
                continue;
            };
            if !seen.insert(&object.key) {
                continue;
            }
            let key = format!("{}{}", object.key, self.job.frozen.output_suffix);
            parts::join(&self.plan, entry, &self.state, &self.output, &key)?;
        }
        Ok(())
    }
}
