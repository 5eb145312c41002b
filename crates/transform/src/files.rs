//! Entries whose objects are a record each: they are read, run and published together.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::batch::{Batch, BatchText};
use crate::images;
use crate::job::{OnBadRecord, RecordType};
use crate::output::{CompleteOutput, ObjectWriter};
use crate::plan::{Entry, PlannedObject};
use crate::progress::{Progress, SlowObject};
use crate::shared::{Shared, failure};
use crate::source::read_whole;
use crate::state::{Marker, ObjectOutcome};
use tensorserve_tensor::error::Result;

/// Outputs that are published together: each holds a file descriptor until then.
const PUBLISHED_TOGETHER: usize = 64;

/// What has become of a file before its output is published.
enum Written<'s> {
    /// The file has an output.
    Complete(CompleteOutput<'s>),
    /// The file has failed, or has no output.
    Ended(ObjectOutcome),
}

/// The file of all outputs of an entry, as an object.
fn part_of(entry: &Entry) -> PlannedObject {
    let key = format!("part-{:09}.jsonl", entry.entry);
    PlannedObject { key, size: 0, tag: String::new() }
}

/// Why an object is left out by a job that takes images.
pub(crate) const NO_IMAGE: &str = "neither its name nor its content is that of an image";

/// The outcome of an object that is left out.
fn skipped(object: &PlannedObject) -> ObjectOutcome {
    let (key, tag) = (object.key.clone(), object.tag.clone());
    ObjectOutcome { key, tag, skipped: true, ..ObjectOutcome::default() }
}

/// Objects that are run together, and their contents.
#[derive(Default)]
struct FileBatch<'e> {
    objects: Vec<&'e PlannedObject>,
    contents: Vec<Bytes>,
    /// How long each took to read.
    read: Vec<Duration>,
}

/// An object of a batch that has been run.
#[derive(Clone, Copy)]
struct RunFile<'s> {
    object: &'s PlannedObject,
    /// Its index in the batch.
    index: usize,
    /// The time of its reading, and its share of that of the run.
    own: Duration,
}

impl<'s> RunFile<'s> {
    /// The objects of a batch.
    fn all(objects: &[&'s PlannedObject], read: &[Duration], ran: Duration) -> Vec<RunFile<'s>> {
        let share = ran / u32::try_from(objects.len()).unwrap_or(u32::MAX).max(1);
        let each = objects.iter().zip(read).enumerate();
        each.map(|(index, (object, read))| RunFile { object, index, own: *read + share }).collect()
    }
}

impl Shared {
    /// Processes objects that are a record each, as batches over all of them.
    pub(crate) fn files(&self, entry: &Entry, letters: &mut Vec<u8>) -> Result<Marker> {
        self.check_stop()?;
        let mut outcomes = Vec::with_capacity(entry.objects.len());
        let batches = self.read_batches(entry, &mut outcomes);
        let under_way: Vec<_> = batches
            .into_iter()
            .map(|FileBatch { objects, contents, read }| {
                (objects, read, self.submit(Batch::files(&self.job, contents)))
            })
            .collect();
        let part = self.job.frozen.combine_outputs.then(|| part_of(entry));
        let mut combined = part.as_ref().map(|part| ObjectWriter::new(self, part)).transpose()?;
        if let Some(out) = &mut combined {
            out.is_combined = true;
        }
        let mut complete = Vec::new();
        for (objects, read, run) in under_way {
            let output = self.pool.wait(&run.output, &self.progress.waiting)?;
            self.check_stop()?;
            let bytes = objects.iter().map(|object| object.size).sum();
            self.progress.bytes.fetch_add(bytes, Relaxed);
            let output = match output {
                Ok(output) => output,
                Err(error) => {
                    outcomes.extend(objects.into_iter().map(|object| failure(object, &error)));
                    continue;
                }
            };
            let files = RunFile::all(&objects, &read, run.ran());
            if let Some(out) = &mut combined {
                outcomes.extend(self.combine(&files, &run.batch, &output, letters, out));
                continue;
            }
            for file in files {
                match self.write_file(file, &run.batch, &output, letters) {
                    Ok(Written::Complete(output)) => complete.push((file.object, output)),
                    Ok(Written::Ended(outcome)) => outcomes.push(outcome),
                    Err(error) => outcomes.push(failure(file.object, &error)),
                }
                if complete.len() >= PUBLISHED_TOGETHER {
                    self.publish_files(&mut complete, &mut outcomes);
                }
            }
        }
        self.publish_files(&mut complete, &mut outcomes);
        let mut marker = Marker { entry: entry.entry, objects: outcomes, combined: None };
        if let (Some(out), Some(part)) = (combined, &part) {
            match out.publish(part.key.clone()) {
                Ok(published) => marker.combined = Some(published),
                Err(error) => {
                    let failed = |object| failure(object, &error);
                    marker.objects = entry.objects.iter().map(failed).collect();
                }
            }
        }
        Ok(marker)
    }

    /// Reads the objects of an entry, in batches that depend on the plan alone: an object that cannot be
    /// read is missing in its batch.
    fn read_batches<'e>(
        &self,
        entry: &'e Entry,
        outcomes: &mut Vec<ObjectOutcome>,
    ) -> Vec<FileBatch<'e>> {
        let start = Instant::now();
        let contents = self.input.map(entry.objects.iter().collect(), |object| {
            let start = Instant::now();
            let content = self.retried(object, || read_whole(&self.job, &self.input, object, None));
            content.map(|content| (content, start.elapsed()))
        });
        let most_bytes = u64::try_from(self.job.frozen.max_payload_bytes).unwrap_or(u64::MAX);
        let (mut batches, mut batch) = (Vec::new(), FileBatch::default());
        let (mut count, mut bytes) = (0, 0);
        for (object, content) in entry.objects.iter().zip(contents) {
            let is_full = count >= self.job.frozen.batch_rows || bytes + object.size > most_bytes;
            if is_full && count > 0 {
                batches.push(std::mem::take(&mut batch));
                (count, bytes) = (0, 0);
            }
            (count, bytes) = (count + 1, bytes + object.size);
            match content {
                Ok((content, _)) if self.is_no_image(object, &content) => {
                    outcomes.push(skipped(object));
                }
                Ok((content, read)) => {
                    batch.objects.push(object);
                    batch.contents.push(content);
                    batch.read.push(read);
                }
                Err(error) => outcomes.push(failure(object, &error)),
            }
        }
        batches.push(batch);
        batches.retain(|batch| !batch.objects.is_empty());
        Progress::spent(&self.progress.reading, start);
        batches
    }

    /// Whether the job takes images, and neither the name nor the content of an object is that of one. Handlers
    /// get everything: only they know what they read.
    fn is_no_image(&self, object: &PlannedObject, content: &[u8]) -> bool {
        self.job.records == RecordType::Image
            && !self.model.has_handlers()
            && !images::is_named(&object.key)
            && !images::is_image(content)
    }

    /// Writes the outputs of a batch into one that they share.
    fn combine<'s>(
        &'s self,
        files: &[RunFile<'s>],
        batch: &Batch,
        output: &BatchText,
        letters: &mut Vec<u8>,
        out: &mut ObjectWriter<'s>,
    ) -> Vec<ObjectOutcome> {
        let start = Instant::now();
        let mut outcome_of = |&RunFile { object, index, own }: &RunFile<'s>| {
            let writing = Instant::now();
            out.combine(object);
            if let Err(error) = out.write_one(batch, index, output, letters) {
                return failure(object, &error);
            }
            let written = output.output(index).map_or(0, <[u8]>::len);
            self.progress.took(SlowObject {
                object: object.key.clone(),
                seconds: (own + writing.elapsed()).as_secs_f64(),
                bytes: u64::try_from(written).unwrap_or(u64::MAX),
                records: 1,
            });
            ObjectOutcome {
                key: object.key.clone(),
                tag: object.tag.clone(),
                records: 1,
                bad: u64::from(output.error_of(index).is_some()),
                ..ObjectOutcome::default()
            }
        };
        let outcomes = files.iter().map(&mut outcome_of).collect();
        Progress::spent(&self.progress.writing, start);
        outcomes
    }

    /// Publishes outputs, and notes what has become of their objects.
    fn publish_files<'s>(
        &self,
        complete: &mut Vec<(&PlannedObject, CompleteOutput<'s>)>,
        outcomes: &mut Vec<ObjectOutcome>,
    ) {
        let (objects, outputs): (Vec<_>, Vec<_>) = complete.drain(..).unzip();
        for (object, outcome) in objects.into_iter().zip(self.publish(outputs)) {
            outcomes.push(outcome.unwrap_or_else(|error| failure(object, &error)));
        }
    }

    fn write_file<'s>(
        &'s self,
        RunFile { object, index, own }: RunFile<'s>,
        batch: &Batch,
        output: &BatchText,
        letters: &mut Vec<u8>,
    ) -> Result<Written<'s>> {
        let start = Instant::now();
        let mut out = ObjectWriter::new(self, object)?;
        out.write_one(batch, index, output, letters)?;
        if self.job.on_bad != OnBadRecord::Null && output.error_of(index).is_some() {
            // An output without a record would look like an empty answer.
            return Ok(Written::Ended(out.without_output()));
        }
        out.own = own + start.elapsed();
        let complete = out.complete(self.out_key(&object.key)).map(Written::Complete);
        Progress::spent(&self.progress.writing, start);
        complete
    }
}
