//! One entry: its objects are read, run, written and published, by one thread.

use std::collections::VecDeque;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use bytes::Bytes;

use crate::batch::{Batch, BatchOutput, BatchRunner};
use crate::dead_letters;
use crate::job::{Job, OnBadRecord, retried};
use crate::model::Model;
use crate::parts;
use crate::plan::{Entry, Plan, PlannedObject};
use crate::pool::{Pending, Pool};
use crate::progress::{Progress, SlowObject};
use crate::sdk;
use crate::source::{BatchSource, read_whole};
use crate::state::{Marker, ObjectOutcome, State};
use tensorserve_records::write::{self, RecordWriter};
use tensorserve_store::objects::{Draft, Place};
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
    /// Lanes end as soon as they can.
    pub(crate) stop: Arc<AtomicBool>,
}

/// A batch that is being run.
struct UnderWay {
    batch: Arc<Batch>,
    output: Pending<Result<BatchOutput>>,
}

/// The output of an object that is being written.
struct ObjectWriter<'s> {
    shared: &'s Shared,
    key: &'s str,
    writer: Box<dyn RecordWriter>,
    draft: Draft,
    outcome: ObjectOutcome,
    started: Instant,
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

    fn out_key(&self, key: &str) -> String {
        format!("{key}{}", self.job.frozen.output_suffix)
    }

    fn check_stop(&self) -> Result<()> {
        if self.stop.load(Relaxed) {
            return Err(interrupted());
        }
        let counted = (self.progress.bad.load(Relaxed), self.progress.records.load(Relaxed));
        if self.job.bad_limit.is_exceeded(counted.0, counted.1) {
            return Err(Error::new(
                Code::OutOfRange,
                format!(
                    "{} of {} records are bad, more than --max-bad-records allows",
                    counted.0, counted.1
                ),
            ));
        }
        Ok(())
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
            let mut file = BufWriter::new(out.draft.file());
            let model = self.model.as_ref();
            let (payloads, _) = sdk::transform(&self.job, exact, model, &content, &mut file)?;
            file.flush().map_err(|e| write_failed(&e))?;
            drop(file);
            out.outcome.records = payloads;
            self.progress.records.fetch_add(payloads, Relaxed);
            return out.publish(&key);
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
            let output = output.wait()??;
            Progress::spent(&self.progress.waiting, start);
            out.write(&batch, &output, letters)?;
        }
        out.publish(&key)
    }

    fn submit(&self, batch: Batch) -> UnderWay {
        let (batch, runner) = (Arc::new(batch), Arc::clone(&self.runner));
        let shared = Arc::clone(&batch);
        UnderWay { batch, output: self.pool.submit(move || runner.run(&shared)) }
    }

    /// Processes objects that are a record each, as batches over all of them.
    fn files(&self, entry: &Entry, letters: &mut Vec<u8>) -> Result<Vec<ObjectOutcome>> {
        let mut outcomes: Vec<Option<ObjectOutcome>> = vec![None; entry.objects.len()];
        let (mut contents, mut positions) = (Vec::new(), Vec::new());
        let started = Instant::now();
        for (position, object) in entry.objects.iter().enumerate() {
            self.check_stop()?;
            match self.retried(object, || read_whole(&self.job, &self.input, object)) {
                Ok(content) => {
                    contents.push(content);
                    positions.push(position);
                }
                Err(error) => {
                    if let Some(outcome) = outcomes.get_mut(position) {
                        *outcome = Some(failure(object, &error));
                    }
                }
            }
        }
        Progress::spent(&self.progress.reading, started);
        let batches = self.batches_of(contents);
        let mut under_way: Vec<UnderWay> =
            batches.into_iter().map(|batch| self.submit(batch)).collect();
        let mut positions = positions.into_iter();
        for UnderWay { batch, output } in under_way.drain(..) {
            let start = Instant::now();
            let output = output.wait()?;
            Progress::spent(&self.progress.waiting, start);
            self.check_stop()?;
            for index in 0..batch.len() {
                let Some(position) = positions.next() else {
                    break;
                };
                let Some(object) = entry.objects.get(position) else {
                    break;
                };
                let outcome = match &output {
                    Ok(output) => self.file(object, &batch, index, output, letters, started),
                    Err(error) => Err(Error::new(error.code(), error.message().to_owned())),
                };
                let outcome = outcome.unwrap_or_else(|error| failure(object, &error));
                self.progress.bytes.fetch_add(object.size, Relaxed);
                if let Some(kept) = outcomes.get_mut(position) {
                    *kept = Some(outcome);
                }
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// Files as batches: at most as many, and as many bytes, as a batch may have.
    fn batches_of(&self, contents: Vec<Bytes>) -> Vec<Batch> {
        let frozen = &self.job.frozen;
        let (mut batches, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0_usize);
        for content in contents {
            let is_full = batch.len() >= frozen.batch_rows
                || bytes + content.len() > frozen.max_payload_bytes;
            if is_full && !batch.is_empty() {
                batches.push(Batch::files(&self.job, std::mem::take(&mut batch)));
                bytes = 0;
            }
            bytes += content.len();
            batch.push(content);
        }
        if !batch.is_empty() {
            batches.push(Batch::files(&self.job, batch));
        }
        batches
    }

    /// Publishes the output of an object that is a record.
    fn file(
        &self,
        object: &PlannedObject,
        batch: &Batch,
        index: usize,
        output: &BatchOutput,
        letters: &mut Vec<u8>,
        started: Instant,
    ) -> Result<ObjectOutcome> {
        let mut out = ObjectWriter::new(self, object)?;
        out.started = started;
        out.write_one(batch, index, output, letters)?;
        if self.job.on_bad != OnBadRecord::Null && output.error_of(index).is_some() {
            // An output without a record would look like an empty answer.
            out.outcome.bad = 1;
            return Ok(out.outcome);
        }
        out.publish(&self.out_key(&object.key))
    }

    fn retried<T>(&self, object: &PlannedObject, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        retried(self.job.retries, attempt, |error| {
            log::warn!("{}: {error}; it is tried again", object.key);
        })
    }
}

impl<'s> ObjectWriter<'s> {
    fn new(shared: &'s Shared, object: &'s PlannedObject) -> Result<Self> {
        let mut draft = shared.output.draft()?;
        let file = draft.file().try_clone().map_err(|e| write_failed(&e))?;
        let writer = write::writer(shared.job.output, file, shared.job.npy_dtype)?;
        let outcome = ObjectOutcome {
            key: object.key.clone(),
            tag: object.tag.clone(),
            ..ObjectOutcome::default()
        };
        let started = Instant::now();
        Ok(ObjectWriter { shared, key: &object.key, writer, draft, outcome, started })
    }

    /// Writes the outputs of a batch.
    fn write(&mut self, batch: &Batch, output: &BatchOutput, letters: &mut Vec<u8>) -> Result<()> {
        if output.bad.is_empty() {
            let start = Instant::now();
            let outputs: Vec<&[u8]> = output.outputs().flatten().collect();
            self.writer.write(&outputs)?;
            self.count(batch.len());
            Progress::spent(&self.shared.progress.writing, start);
            return Ok(());
        }
        for index in 0..batch.len() {
            self.write_one(batch, index, output, letters)?;
        }
        Ok(())
    }

    fn count(&mut self, records: usize) {
        let records = u64::try_from(records).unwrap_or(0);
        self.outcome.records += records;
        self.shared.progress.records.fetch_add(records, Relaxed);
    }

    /// Writes the output of one record, or does with a bad one what the job says.
    fn write_one(
        &mut self,
        batch: &Batch,
        index: usize,
        output: &BatchOutput,
        letters: &mut Vec<u8>,
    ) -> Result<()> {
        self.count(1);
        let Some(error) = output.error_of(index) else {
            return match output.output(index) {
                Some(output) => self.writer.write(&[output]),
                None => Err(Error::internal("a record has neither an output nor an error")),
            };
        };
        let Some(&place) = batch.places.get(index) else {
            return Ok(());
        };
        let (shared, record) = (self.shared, batch.record(index));
        if shared.job.on_bad == OnBadRecord::Fail {
            let shown = shown(&record);
            let message = dead_letters::described(place, error.message());
            return Err(Error::new(Code::InvalidArgument, format!("{message}{shown}")));
        }
        self.outcome.bad += 1;
        shared.progress.bad.fetch_add(1, Relaxed);
        let reason = dead_letters::described(place, error.message());
        shared.progress.failed_with(self.key, &reason);
        match shared.job.on_bad {
            OnBadRecord::Null => self.writer.write(&[shared.job.null_output()?]),
            OnBadRecord::DeadLetter => {
                dead_letters::append(self.key, place, error.message(), &record, letters);
                Ok(())
            }
            OnBadRecord::Skip | OnBadRecord::Fail => Ok(()),
        }
    }

    /// Publishes the output, unless a run that was killed has done so before.
    fn publish(self, key: &str) -> Result<ObjectOutcome> {
        let ObjectWriter { shared, key: object, writer, mut draft, mut outcome, started } = self;
        let start = Instant::now();
        writer.finish()?;
        (outcome.out_bytes, outcome.crc32c) = checksum(draft.file())?;
        if !is_published(&shared.output, key, &outcome)? {
            draft.publish(key)?;
        }
        Progress::spent(&shared.progress.publishing, start);
        shared.progress.out_bytes.fetch_add(outcome.out_bytes, Relaxed);
        shared.progress.took(SlowObject {
            object: object.to_owned(),
            seconds: started.elapsed().as_secs_f64(),
            bytes: outcome.out_bytes,
            records: outcome.records,
        });
        Ok(outcome)
    }
}

/// Whether the output has these bytes already: a run was killed before it could mark them.
fn is_published(output: &Place, key: &str, outcome: &ObjectOutcome) -> Result<bool> {
    let found = output.head(key)?;
    if found.is_none_or(|found| found.size != outcome.out_bytes) {
        return Ok(false);
    }
    let published = output.read(key, None, None)?;
    let found = parts::checksum_of(published, (0, 0));
    Ok(found.is_ok_and(|found| found == (outcome.out_bytes, outcome.crc32c)))
}

/// The length and the CRC-32C of a file.
fn checksum(file: &mut std::fs::File) -> Result<(u64, u32)> {
    file.seek(SeekFrom::Start(0)).map_err(|e| write_failed(&e))?;
    parts::checksum_of(file, (0, 0)).map_err(|e| write_failed(&e))
}

fn write_failed(error: &io::Error) -> Error {
    Error::new(Code::FailedPrecondition, format!("the output cannot be written: {error}"))
}

/// The start of a record, for a message.
fn shown(record: &[u8]) -> String {
    let start = record.get(..record.len().min(200)).unwrap_or_default();
    match std::str::from_utf8(start) {
        Ok(text) if !text.is_empty() && !text.chars().any(char::is_control) => {
            format!("; the record begins with {text:?}")
        }
        _ => String::new(),
    }
}

fn failure(object: &PlannedObject, error: &Error) -> ObjectOutcome {
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
