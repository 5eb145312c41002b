//! One entry: its objects are read, run, written and published, by one thread.

use std::collections::VecDeque;
use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::batch::{Batch, BatchOutput, BatchRunner};
use crate::job::{Job, retried};
use crate::model::Model;
use crate::output::{ObjectWriter, write_failed};
use crate::parts;
use crate::plan::{Entry, Plan, PlannedObject};
use crate::pool::{Pending, Pool};
use crate::progress::Progress;
use crate::sdk;
use crate::source::{BatchSource, read_whole};
use crate::state::{Marker, ObjectOutcome, State};
use tensorserve_store::objects::Place;
use tensorserve_tensor::error::{Code, Error, Result};

/// What all lanes share.
pub(crate) struct Shared {
    pub(crate) job: Arc<Job>,
    pub(crate) plan: Plan,
    pub(crate) input: Place,
    pub(crate) output: Place,
    /// Where dead letters go, if not into the state.
    pub(crate) dead_letters: Option<Place>,
    pub(crate) state: State,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) runner: Arc<BatchRunner>,
    pub(crate) pool: Pool,
    pub(crate) progress: Arc<Progress>,
    /// No other run has worked on this plan: its outputs are not there yet.
    pub(crate) is_first: bool,
    /// Why the run must end: there are too many bad records. An object that ends for it takes back what
    /// it has counted.
    pub(crate) exceeded: OnceLock<String>,
    /// Lanes end as soon as they can.
    pub(crate) stop: Arc<AtomicBool>,
}

/// A batch that is being run.
pub(crate) struct UnderWay {
    pub(crate) batch: Arc<Batch>,
    pub(crate) output: Pending<Result<BatchOutput>>,
}

impl Shared {
    /// Processes an entry and marks it.
    ///
    /// # Errors
    /// If the whole run must end: it was stopped, there are too many bad records, or the state cannot be
    /// written. What is wrong with an object is in the marker.
    pub(crate) fn process(&self, entry: &Entry) -> Result<Marker> {
        let mut letters = Vec::new();
        let objects = match self.is_files() {
            true => self.files(entry, &mut letters)?,
            false => self.each_object(entry, &mut letters)?,
        };
        if !letters.is_empty() {
            let place = self.dead_letters.as_ref();
            self.state.put_dead_letters(place, entry.entry, &letters)?;
        }
        let marker = Marker { entry: entry.entry, objects };
        let failed = marker.objects.iter().filter(|object| object.error.is_some());
        for object in failed.clone() {
            let why = object.error.as_deref().unwrap_or_default();
            log::error!("{}: {why}", object.key);
            self.progress.failed_with(&object.key, why);
        }
        let failures = u64::try_from(failed.count()).unwrap_or(0);
        self.progress.failed.fetch_add(failures, Relaxed);
        let mut objects = u64::try_from(marker.objects.len()).unwrap_or(0) - failures;
        if failures > 0 {
            self.progress.objects.fetch_add(objects, Relaxed);
            self.state.mark_failed(&marker)?;
            return Ok(marker);
        }
        self.state.mark_done(&marker)?;
        if entry.range.is_some() {
            let key = self.out_key(entry.objects.first().map_or("", |object| &object.key));
            let is_joined = parts::join(&self.plan, entry, &self.state, &self.output, &key)?;
            objects = u64::from(is_joined);
        }
        self.progress.objects.fetch_add(objects, Relaxed);
        Ok(marker)
    }

    /// Whether objects are records, which are batched over objects.
    fn is_files(&self) -> bool {
        self.job.is_documents() && self.job.frozen.sdk_exact.is_none()
    }

    pub(crate) fn out_key(&self, key: &str) -> String {
        format!("{key}{}", self.job.frozen.output_suffix)
    }

    pub(crate) fn check_stop(&self) -> Result<()> {
        if self.stop.load(Relaxed) {
            return Err(interrupted());
        }
        let (bad, records) = (self.progress.bad.load(Relaxed), self.progress.records.load(Relaxed));
        if self.job.bad_limit.is_exceeded(bad, records) {
            let why =
                format!("{bad} of {records} records are bad, more than --max-bad-records allows");
            let _ = self.exceeded.set(why);
        }
        match self.exceeded.get() {
            Some(why) => Err(Error::new(Code::OutOfRange, why.clone())),
            None => Ok(()),
        }
    }

    /// Processes the objects of an entry one after the other.
    fn each_object(&self, entry: &Entry, letters: &mut Vec<u8>) -> Result<Vec<ObjectOutcome>> {
        let mut outcomes = Vec::with_capacity(entry.objects.len());
        for object in &entry.objects {
            let before = letters.len();
            let done = self.retried(object, || {
                letters.truncate(before);
                let done = self.object(entry, object, letters);
                // Nothing is tried again once the run is to end.
                done.map_err(|error| self.check_stop().err().unwrap_or(error))
            });
            let outcome = match done {
                Ok(outcome) => outcome,
                Err(error) => {
                    self.check_stop()?;
                    letters.truncate(before);
                    failure(object, &error)
                }
            };
            self.progress.bytes.fetch_add(self.object_bytes(entry, object), Relaxed);
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    fn object_bytes(&self, entry: &Entry, object: &PlannedObject) -> u64 {
        entry.range.map_or(object.size, |range| range.end - range.start)
    }

    /// Processes an object, or a range of one.
    fn object(
        &self,
        entry: &Entry,
        object: &PlannedObject,
        letters: &mut Vec<u8>,
    ) -> Result<ObjectOutcome> {
        let key = match entry.range {
            Some(_) => parts::key(entry.entry),
            None => self.out_key(&object.key),
        };
        let mut out = ObjectWriter::new(self, object)?;
        if let Some(exact) = self.job.frozen.sdk_exact {
            let content = read_whole(&self.job, &self.input, object)?;
            let mut file = BufWriter::new(out.file());
            let model = self.model.as_ref();
            let (payloads, _) = sdk::transform(&self.job, exact, model, &content, &mut file)?;
            file.flush().map_err(|e| write_failed(&e))?;
            drop(file);
            out.count(payloads);
            return out.publish(key);
        }
        let mut source = BatchSource::open(&self.job, &self.input, object, entry.range)?;
        // Enough that no thread waits, and few, since each holds a batch in memory.
        let most = self.pool.threads() + 1;
        let mut under_way: VecDeque<UnderWay> = VecDeque::new();
        let mut is_ended = false;
        loop {
            self.check_stop()?;
            while !is_ended && under_way.len() < most {
                let start = Instant::now();
                let batch = source.next()?;
                Progress::spent(&self.progress.reading, start);
                match batch {
                    Some(batch) => under_way.push_back(self.submit(batch)),
                    None => is_ended = true,
                }
            }
            let Some(UnderWay { batch, output }) = under_way.pop_front() else {
                break;
            };
            let start = Instant::now();
            let output = self.pool.wait(&output)??;
            Progress::spent(&self.progress.waiting, start);
            out.write(&batch, &output, letters)?;
        }
        out.publish(key)
    }

    pub(crate) fn submit(&self, batch: Batch) -> UnderWay {
        let (batch, runner) = (Arc::new(batch), Arc::clone(&self.runner));
        let shared = Arc::clone(&batch);
        UnderWay { batch, output: self.pool.submit(move || runner.run(&shared)) }
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
