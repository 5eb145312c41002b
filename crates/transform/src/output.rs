//! The outputs of objects: written as drafts, and published when they are complete.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::batch::{Batch, BatchText, RecordPlace};
use crate::content;
use crate::dead_letters;
use crate::job::OnBadRecord;
use crate::plan::PlannedObject;
use crate::progress::{Progress, SlowObject};
use crate::shared::Shared;
use crate::state::ObjectOutcome;
use tensorserve_codec::json::write as json;
use tensorserve_records::write::{self, RecordWriter};
use tensorserve_store::objects::{Draft, Place};
use tensorserve_tensor::error::{Code, Error, Result};

/// The output of an object that is being written.
pub(crate) struct ObjectWriter<'s> {
    shared: &'s Shared,
    key: &'s str,
    /// Outputs are written as lines of JSON with their object.
    pub(crate) is_combined: bool,
    writer: Box<dyn RecordWriter>,
    draft: Draft,
    outcome: ObjectOutcome,
    counted: Counted<'s>,
    /// The time of the work on it so far.
    pub(crate) own: Duration,
    /// It is the output of a range of the object.
    pub(crate) is_range: bool,
}

/// The output of an object that is complete.
pub(crate) struct CompleteOutput<'s> {
    /// The key to publish it as.
    key: String,
    draft: Draft,
    pub(crate) outcome: ObjectOutcome,
    counted: Counted<'s>,
    /// The time of the work on it so far; `None` for an output of several objects, whose times are noted each.
    own: Option<Duration>,
    is_range: bool,
}

/// Records that were counted for an output. They do not count if it is never published: another attempt
/// counts them again.
struct Counted<'s> {
    progress: &'s Progress,
    records: u64,
    bad: u64,
}

impl Counted<'_> {
    fn add(&mut self, records: u64, bad: u64) {
        self.records += records;
        self.bad += bad;
        self.progress.records.fetch_add(records, Relaxed);
        self.progress.bad.fetch_add(bad, Relaxed);
    }

    fn keep(mut self) {
        (self.records, self.bad) = (0, 0);
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.progress.records.fetch_sub(self.records, Relaxed);
        self.progress.bad.fetch_sub(self.bad, Relaxed);
    }
}

impl<'s> ObjectWriter<'s> {
    pub(crate) fn new(shared: &'s Shared, object: &'s PlannedObject) -> Result<Self> {
        let mut draft = shared.output.draft()?;
        let file = draft.file().try_clone().map_err(|e| write_failed(&e))?;
        let writer = write::writer(shared.job.output, file, shared.job.npy_dtype)?;
        let outcome = ObjectOutcome {
            key: object.key.clone(),
            tag: object.tag.clone(),
            ..ObjectOutcome::default()
        };
        let counted = Counted { progress: &shared.progress, records: 0, bad: 0 };
        Ok(ObjectWriter {
            shared,
            key: &object.key,
            is_combined: false,
            writer,
            draft,
            outcome,
            counted,
            own: Duration::ZERO,
            is_range: false,
        })
    }

    /// The next outputs are those of this object.
    pub(crate) fn combine(&mut self, object: &'s PlannedObject) {
        self.key = &object.key;
    }

    fn put(&mut self, output: &[u8]) -> Result<()> {
        if !self.is_combined {
            return self.writer.write(&[output]);
        }
        let mut line = b"{\"object\":".to_vec();
        json::string(self.key.as_bytes(), &mut line);
        line.extend_from_slice(b",\"output\":");
        line.extend_from_slice(output);
        line.push(b'}');
        self.writer.write(&[&line])
    }

    /// The file, for what writes bytes and no records.
    pub(crate) fn file(&mut self) -> &mut File {
        self.draft.file()
    }

    /// Writes the outputs of a batch.
    pub(crate) fn write(
        &mut self,
        batch: &Batch,
        output: &BatchText,
        letters: &mut Vec<u8>,
    ) -> Result<()> {
        if output.bad.is_empty() {
            let start = Instant::now();
            let outputs: Vec<&[u8]> = output.outputs().flatten().collect();
            self.writer.write(&outputs)?;
            self.count(u64::try_from(batch.len()).unwrap_or(0));
            Progress::spent(&self.shared.progress.writing, start);
            return Ok(());
        }
        for index in 0..batch.len() {
            self.write_one(batch, index, output, letters)?;
        }
        Ok(())
    }

    /// Counts records that have been run.
    pub(crate) fn count(&mut self, records: u64) {
        self.outcome.records += records;
        self.counted.add(records, 0);
    }

    /// Writes the output of one record, or does with a bad one what the job says.
    pub(crate) fn write_one(
        &mut self,
        batch: &Batch,
        index: usize,
        output: &BatchText,
        letters: &mut Vec<u8>,
    ) -> Result<()> {
        let Some(error) = output.error_of(index) else {
            let missing = || Error::internal("a record has neither an output nor an error");
            self.put(output.output(index).ok_or_else(missing)?)?;
            self.count(1);
            return Ok(());
        };
        let Some(place) = batch.place(index) else {
            return Ok(());
        };
        let (shared, record) = (self.shared, batch.record(index));
        if shared.job.on_bad == OnBadRecord::Fail {
            let shown = shown(&record);
            let message = self.described(place, error);
            return Err(Error::new(Code::InvalidArgument, format!("{message}{shown}")));
        }
        self.count(1);
        self.outcome.bad += 1;
        self.counted.add(0, 1);
        let reason = self.described(place, error);
        shared.progress.failed_with(self.key, &reason);
        match shared.job.on_bad {
            OnBadRecord::Null => self.put(shared.job.null_output()?),
            OnBadRecord::DeadLetter => {
                let reason = dead_letters::without_nodes(error.message());
                dead_letters::append(self.key, place, &reason, &record, letters);
                Ok(())
            }
            OnBadRecord::Skip | OnBadRecord::Fail => Ok(()),
        }
    }

    /// What is wrong with a record, and where it is in its object, unless it is the object.
    fn described(&self, place: RecordPlace, error: &Error) -> String {
        let reason = dead_letters::without_nodes(error.message());
        match self.shared.job.is_documents() {
            true => reason.into_owned(),
            false => dead_letters::described(place, &reason),
        }
    }

    /// Keeps what was counted, and publishes nothing.
    pub(crate) fn without_output(self) -> ObjectOutcome {
        self.counted.keep();
        self.outcome
    }

    /// Completes the output, to be published as `key`.
    pub(crate) fn complete(self, key: String) -> Result<CompleteOutput<'s>> {
        let start = Instant::now();
        let ObjectWriter {
            writer,
            mut draft,
            mut outcome,
            counted,
            own,
            is_combined,
            is_range,
            ..
        } = self;
        writer.finish()?;
        (outcome.out_bytes, outcome.crc32c) = checksum(draft.file())?;
        let own = (!is_combined).then(|| own + start.elapsed());
        Ok(CompleteOutput { key, draft, outcome, counted, own, is_range })
    }

    /// Completes and publishes the output.
    pub(crate) fn publish(self, key: String) -> Result<ObjectOutcome> {
        let shared = self.shared;
        let complete = self.complete(key)?;
        let published = shared.publish(vec![complete]).pop();
        published.unwrap_or_else(|| Err(Error::internal("an output is missing")))
    }
}

/// An output that is being published.
struct WaitingOutput<'s> {
    outcome: ObjectOutcome,
    counted: Counted<'s>,
    own: Option<Duration>,
    is_range: bool,
    /// The version that a run that was killed has published.
    published: Result<Option<String>>,
}

impl Shared {
    /// Publishes outputs, but for those that a run that was killed has published. Returns what has
    /// become of each.
    pub(crate) fn publish(&self, outputs: Vec<CompleteOutput<'_>>) -> Vec<Result<ObjectOutcome>> {
        let start = Instant::now();
        let published: Vec<Result<Option<String>>> = match self.is_first {
            true => outputs.iter().map(|_| Ok(None)).collect(),
            false => self.output.map(outputs.iter().collect(), |output: &CompleteOutput<'_>| {
                published(&self.output, &output.key, &output.outcome)
            }),
        };
        let (mut drafts, mut waiting) = (Vec::new(), Vec::new());
        for (output, published) in outputs.into_iter().zip(published) {
            let CompleteOutput { key, draft, outcome, counted, own, is_range } = output;
            if let Ok(None) = published {
                drafts.push((key, draft));
            }
            waiting.push(WaitingOutput { outcome, counted, own, is_range, published });
        }
        let mut done = self.output.publish_all(drafts).into_iter();
        let spent = Progress::spent(&self.progress.publishing, start);
        let share = spent / u32::try_from(waiting.len()).unwrap_or(u32::MAX).max(1);
        let outcome_of = |waiting: WaitingOutput<'_>| {
            let WaitingOutput { mut outcome, counted, own, is_range, published } = waiting;
            let tag = match published? {
                Some(tag) => tag,
                None => {
                    let missing = || Err(Error::internal("an output is missing"));
                    done.next().unwrap_or_else(missing)?.tag
                }
            };
            counted.keep();
            self.progress.out_bytes.fetch_add(outcome.out_bytes, Relaxed);
            if let Some(own) = own {
                self.note_time(&outcome, own + share, is_range);
            }
            outcome.out_tag = Some(tag);
            Ok(outcome)
        };
        waiting.into_iter().map(outcome_of).collect()
    }

    /// Notes how long the work on an object, or on a range of one, took.
    fn note_time(&self, outcome: &ObjectOutcome, own: Duration, is_range: bool) {
        let object = SlowObject {
            object: outcome.key.clone(),
            seconds: own.as_secs_f64(),
            bytes: outcome.out_bytes,
            records: outcome.records,
        };
        match is_range {
            true => self.progress.range_took(object),
            false => self.progress.took(object),
        }
    }
}

/// The version of an output that has these bytes already, as a run that was killed before it could mark them
/// has left it; `None` for any other.
fn published(output: &Place, key: &str, outcome: &ObjectOutcome) -> Result<Option<String>> {
    let Some(found) = output.head(key)? else {
        return Ok(None);
    };
    let is_same = content::has_content(output, &found, (outcome.out_bytes, outcome.crc32c))?;
    Ok(is_same.then_some(found.tag))
}

/// The length and the CRC-32C of a file.
fn checksum(file: &mut File) -> Result<(u64, u32)> {
    file.seek(SeekFrom::Start(0)).map_err(|e| write_failed(&e))?;
    content::checksum_of(file, (0, 0)).map_err(|e| write_failed(&e))
}

pub(crate) fn write_failed(error: &io::Error) -> Error {
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
