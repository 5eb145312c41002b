//! Entries whose objects are a record each: they are read, run and published together.

use std::time::Instant;

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use crate::batch::{Batch, BatchOutput};
use crate::entry::{Shared, UnderWay, failure};
use crate::job::OnBadRecord;
use crate::output::{CompleteOutput, ObjectWriter};
use crate::plan::{Entry, PlannedObject};
use crate::progress::Progress;
use crate::source::read_whole;
use crate::state::ObjectOutcome;
use tensorserve_tensor::error::{Error, Result};

/// What has become of a file before its output is published.
enum Written<'s> {
    /// It has an output.
    Complete(CompleteOutput<'s>),
    /// It has failed, or has none.
    Ended(ObjectOutcome),
}

/// The file of all outputs of an entry, as an object.
fn part_of(entry: &Entry) -> PlannedObject {
    let key = format!("part-{:09}.jsonl", entry.entry);
    PlannedObject { key, size: 0, tag: String::new() }
}

impl Shared {
    /// Processes objects that are a record each, as batches over all of them.
    pub(crate) fn files(&self, entry: &Entry, letters: &mut Vec<u8>) -> Result<Vec<ObjectOutcome>> {
        let started = Instant::now();
        self.check_stop()?;
        let contents = self.input.map(entry.objects.iter().collect(), |object| {
            self.retried(object, || read_whole(&self.job, &self.input, object))
        });
        Progress::spent(&self.progress.reading, started);
        let mut outcomes = Vec::with_capacity(entry.objects.len());
        let (mut objects, mut read) = (Vec::new(), Vec::new());
        for (object, content) in entry.objects.iter().zip(contents) {
            match content {
                Ok(content) => {
                    objects.push(object);
                    read.push(content);
                }
                Err(error) => outcomes.push(failure(object, &error)),
            }
        }
        let part = self.job.frozen.combine_outputs.then(|| part_of(entry));
        let mut combined = part.as_ref().map(|part| ObjectWriter::new(self, part)).transpose()?;
        let batches = self.batches_of(read);
        let under_way: Vec<UnderWay> =
            batches.into_iter().map(|batch| self.submit(batch)).collect();
        let mut objects = objects.as_slice();
        for UnderWay { batch, output } in under_way {
            let start = Instant::now();
            let output = output.wait()?;
            Progress::spent(&self.progress.waiting, start);
            self.check_stop()?;
            let (of_batch, rest) = objects.split_at(batch.len().min(objects.len()));
            objects = rest;
            outcomes.extend(match &mut combined {
                Some(out) => self.combine(of_batch, &batch, &output, letters, out),
                None => self.batch_of_files(of_batch, &batch, &output, letters, started),
            });
        }
        if let (Some(mut out), Some(part)) = (combined, &part) {
            out.started = started;
            if let Err(error) = out.publish(part.key.clone()) {
                return Ok(entry.objects.iter().map(|object| failure(object, &error)).collect());
            }
        }
        Ok(outcomes)
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

    /// Writes and publishes the outputs of a batch.
    fn batch_of_files(
        &self,
        objects: &[&PlannedObject],
        batch: &Batch,
        output: &Result<BatchOutput>,
        letters: &mut Vec<u8>,
        started: Instant,
    ) -> Vec<ObjectOutcome> {
        let start = Instant::now();
        let (mut outcomes, mut complete) = (Vec::new(), Vec::new());
        let mut published = Vec::new();
        for (index, object) in objects.iter().enumerate() {
            let written = match output {
                Ok(output) => self.write_file(object, batch, index, output, letters, started),
                Err(error) => Err(Error::new(error.code(), error.message().to_owned())),
            };
            match written {
                Ok(Written::Complete(output)) => {
                    complete.push(output);
                    published.push(*object);
                }
                Ok(Written::Ended(outcome)) => outcomes.push(outcome),
                Err(error) => outcomes.push(failure(object, &error)),
            }
            self.progress.bytes.fetch_add(object.size, Relaxed);
        }
        Progress::spent(&self.progress.writing, start);
        for (object, outcome) in published.into_iter().zip(self.publish(complete)) {
            outcomes.push(outcome.unwrap_or_else(|error| failure(object, &error)));
        }
        outcomes
    }

    /// Writes the outputs of a batch into one that they share.
    fn combine<'s>(
        &'s self,
        objects: &[&'s PlannedObject],
        batch: &Batch,
        output: &Result<BatchOutput>,
        letters: &mut Vec<u8>,
        out: &mut ObjectWriter<'s>,
    ) -> Vec<ObjectOutcome> {
        let start = Instant::now();
        let mut outcome_of = |(index, object): (usize, &&'s PlannedObject)| {
            out.combine(object);
            self.progress.bytes.fetch_add(object.size, Relaxed);
            let written = match output {
                Ok(output) => out.write_one(batch, index, output, letters),
                Err(error) => Err(Error::new(error.code(), error.message().to_owned())),
            };
            if let Err(error) = written {
                return failure(object, &error);
            }
            let is_bad = output.as_ref().is_ok_and(|output| output.error_of(index).is_some());
            ObjectOutcome {
                key: object.key.clone(),
                tag: object.tag.clone(),
                records: 1,
                bad: u64::from(is_bad),
                ..ObjectOutcome::default()
            }
        };
        let outcomes = objects.iter().enumerate().map(&mut outcome_of).collect();
        Progress::spent(&self.progress.writing, start);
        outcomes
    }

    fn write_file<'s>(
        &'s self,
        object: &'s PlannedObject,
        batch: &Batch,
        index: usize,
        output: &BatchOutput,
        letters: &mut Vec<u8>,
        started: Instant,
    ) -> Result<Written<'s>> {
        let mut out = ObjectWriter::new(self, object)?;
        out.started = started;
        out.write_one(batch, index, output, letters)?;
        if self.job.on_bad != OnBadRecord::Null && output.error_of(index).is_some() {
            // An output without a record would look like an empty answer.
            return Ok(Written::Ended(out.without_output()));
        }
        out.complete(self.out_key(&object.key)).map(Written::Complete)
    }
}
