//! One entry: its objects are read, run, written and published, by one thread.

use std::collections::VecDeque;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::files::NO_IMAGE;
use crate::output::{ObjectWriter, write_failed};
use crate::parts;
use crate::plan::{Entry, PlannedObject};
use crate::progress::{Progress, ReadCount};
use crate::sdk;
use crate::shared::{Shared, UnderWay, failure};
use crate::source::{BatchSource, read_whole};
use crate::state::{Marker, ObjectOutcome};
use tensorserve_tensor::error::Result;

impl Shared {
    /// Processes an entry and marks it.
    ///
    /// # Errors
    /// If the whole run must end: it was stopped, there are too many bad records, or the state cannot be
    /// written. What is wrong with an object is in the marker.
    pub(crate) fn process(&self, entry: &Entry) -> Result<Marker> {
        let mut letters = Vec::new();
        let marker = match self.job.batches_objects() {
            true => self.files(entry, &mut letters)?,
            false => {
                let objects = self.each_object(entry, &mut letters)?;
                Marker { entry: entry.entry, objects, combined: None }
            }
        };
        if !letters.is_empty() {
            let place = self.dead_letters.as_ref();
            self.state.put_dead_letters(place, entry.entry, &letters)?;
        }
        let failed = marker.objects.iter().filter(|object| object.error.is_some());
        for object in failed.clone() {
            let why = object.error.as_deref().unwrap_or_default();
            log::error!("{}: {why}", object.key);
            self.progress.failed_with(&object.key, why);
        }
        let failures = u64::try_from(failed.count()).unwrap_or(0);
        self.progress.failed.fetch_add(failures, Relaxed);
        let left_out = marker.objects.iter().filter(|object| object.skipped);
        let skips = u64::try_from(left_out.clone().count()).unwrap_or(0);
        let mut objects = u64::try_from(marker.objects.len()).unwrap_or(0) - failures - skips;
        if failures > 0 {
            self.progress.objects.fetch_add(objects, Relaxed);
            left_out.for_each(|object| self.progress.skips_one(&object.key, NO_IMAGE));
            self.state.mark_failed(&marker)?;
            return Ok(marker);
        }
        self.state.mark_done(&marker)?;
        left_out.for_each(|object| self.progress.skips_one(&object.key, NO_IMAGE));
        if entry.range.is_some() {
            let key = self.out_key(entry.objects.first().map_or("", |object| &object.key));
            let is_joined = parts::join(&self.plan, entry, &self.state, &self.output, &key)?;
            objects = u64::from(is_joined && self.is_newly_joined(entry));
        }
        self.progress.objects.fetch_add(objects, Relaxed);
        Ok(marker)
    }

    /// Processes the objects of an entry one after the other.
    fn each_object(&self, entry: &Entry, letters: &mut Vec<u8>) -> Result<Vec<ObjectOutcome>> {
        let mut outcomes = Vec::with_capacity(entry.objects.len());
        for object in &entry.objects {
            let before = letters.len();
            let count = ReadCount::new(&self.progress, self.object_bytes(entry, object));
            let done = self.retried(object, || {
                letters.truncate(before);
                count.restart();
                let done = self.object(entry, object, &count, letters);
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
            count.complete();
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
        count: &Arc<ReadCount>,
        letters: &mut Vec<u8>,
    ) -> Result<ObjectOutcome> {
        let key = match entry.range {
            Some(_) => parts::key(entry.entry),
            None => self.out_key(&object.key),
        };
        let mut out = ObjectWriter::new(self, object)?;
        out.is_range = entry.range.is_some();
        if let Some(exact) = self.job.frozen.sdk_exact {
            let start = Instant::now();
            let content = read_whole(&self.job, &self.input, object, Some(count))?;
            let mut file = BufWriter::new(out.file());
            let model = self.model.as_ref();
            let (payloads, _) = sdk::transform(&self.job, exact, model, &content, &mut file)?;
            file.flush().map_err(|e| write_failed(&e))?;
            drop(file);
            self.progress.ran.fetch_add(payloads, Relaxed);
            out.count(payloads);
            out.own += start.elapsed();
            return out.publish(key);
        }
        let (model, range) = (self.model.as_ref(), entry.range);
        let mut source =
            BatchSource::open(&self.job, model, &self.input, object, range, Some(count))?;
        // Enough that no thread waits, and few, since each holds a batch in memory.
        let most = self.pool.threads() + 1;
        let mut under_way: VecDeque<UnderWay> = VecDeque::new();
        let mut is_ended = false;
        loop {
            self.check_stop()?;
            while !is_ended && under_way.len() < most {
                let start = Instant::now();
                let batch = source.next()?;
                out.own += Progress::spent(&self.progress.reading, start);
                match batch {
                    Some(batch) => under_way.push_back(self.submit(batch)),
                    None => is_ended = true,
                }
            }
            let Some(run) = under_way.pop_front() else {
                break;
            };
            let output = self.pool.wait(&run.output, &self.progress.waiting)??;
            let start = Instant::now();
            out.write(&run.batch, &output, letters)?;
            out.own += run.ran() + start.elapsed();
        }
        out.publish(key)
    }
}
