//! A batch of records, and how it is run: the records that a model refuses are found by halving.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use bytes::Bytes;

use crate::job::{InputFormat, Job, OnBadRecord, RecordType, is_passing, retried};
use crate::model::{Model, Payload};
use crate::rows::{Rows, one_line};
use tensorserve_codec::formats::{CsvForm, PayloadFormat, RecordFormat};
use tensorserve_codec::row_text::OutputText;
use tensorserve_codec::table::Header;
use tensorserve_records::split::{Chunk, Split};
use tensorserve_tensor::error::{Error, Result};

/// Consecutive records.
#[derive(Debug)]
pub struct Batch {
    pub(crate) records: Records,
    /// Where each record is in its object; `None` if `records` tells.
    pub(crate) places: Option<Vec<RecordPlace>>,
    /// The record of CSV with the names of columns, with which its object begins.
    pub(crate) header: Option<Bytes>,
}

/// The place of a record in its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Its line, or its number, from 1.
    pub line: u64,
    /// Its first byte, if known.
    pub offset: Option<u64>,
}

/// The records of a batch.
#[derive(Debug)]
pub(crate) enum Records {
    /// Lines of comma-separated values.
    Csv(Chunk),
    /// Lines of JSON.
    JsonLines(Chunk),
    /// Records of `tf.Example`, in their frames.
    Examples(Chunk),
    /// Image files.
    Images(Vec<Bytes>),
    /// Requests of their own.
    Documents(Vec<Bytes>),
    /// Rows of an array, which is complete.
    Npy(Bytes),
}

impl Batch {
    /// The records of a chunk, as `of` holds them.
    pub(crate) fn lines(chunk: Chunk, of: impl FnOnce(Chunk) -> Records) -> Self {
        let place = |line, offset| RecordPlace { line, offset: Some(offset) };
        let places = chunk.records.iter().map(|record| place(record.line, record.offset)).collect();
        Batch { records: of(chunk), places: Some(places), header: None }
    }

    pub(crate) fn json_lines(chunk: Chunk) -> Self {
        Batch::of_chunk(Records::JsonLines(chunk))
    }

    /// Records that are a chunk.
    pub(crate) fn of_chunk(records: Records) -> Self {
        Batch { records, places: None, header: None }
    }

    /// Where record `index` is in its object.
    pub(crate) fn place(&self, index: usize) -> Option<RecordPlace> {
        if let Some(places) = &self.places {
            return places.get(index).copied();
        }
        let record = self.chunk()?.records.get(index)?;
        Some(RecordPlace { line: record.line, offset: Some(record.offset) })
    }

    fn chunk(&self) -> Option<&Chunk> {
        match &self.records {
            Records::Csv(chunk) | Records::JsonLines(chunk) | Records::Examples(chunk) => {
                Some(chunk)
            }
            Records::Images(_) | Records::Documents(_) | Records::Npy(_) => None,
        }
    }

    /// Files that are a record each.
    pub(crate) fn files(job: &Job, files: Vec<Bytes>) -> Self {
        let places = Some(vec![RecordPlace { line: 1, offset: Some(0) }; files.len()]);
        let records = match job.records {
            RecordType::Image => Records::Images(files),
            RecordType::Csv
            | RecordType::JsonLines
            | RecordType::Examples
            | RecordType::Npy
            | RecordType::Document => Records::Documents(files),
        };
        Batch { records, places, header: None }
    }

    /// The number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        let of_chunk = || self.chunk().map_or(0, |chunk| chunk.records.len());
        self.places.as_ref().map_or_else(of_chunk, Vec::len)
    }

    /// The bytes of lines or records of its object that it has; `None` if they are no part of it.
    #[must_use]
    pub fn bytes(&self) -> Option<usize> {
        let records = &self.chunk()?.records;
        let (first, last) = (records.first()?, records.last()?);
        Some(last.framed_end - first.framed_start)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Record `index` as text, for people.
    #[must_use]
    pub fn shown(&self, index: usize) -> String {
        let record = self.record(index);
        let text = match &self.records {
            Records::Images(_) | Records::Examples(_) | Records::Npy(_) => None,
            Records::Csv(_) | Records::JsonLines(_) | Records::Documents(_) => {
                std::str::from_utf8(&record).ok()
            }
        };
        match text {
            Some(text) => text.chars().take(300).collect(),
            None => format!("{} bytes", record.len()),
        }
    }

    /// The bytes of record `index`, for a message; empty for a row of an array.
    pub(crate) fn record(&self, index: usize) -> Bytes {
        match &self.records {
            Records::Csv(chunk) | Records::JsonLines(chunk) | Records::Examples(chunk) => {
                let span = chunk.records.get(index);
                span.map(|span| chunk.bytes.slice(span.start..span.end)).unwrap_or_default()
            }
            Records::Images(files) | Records::Documents(files) => {
                files.get(index).cloned().unwrap_or_default()
            }
            Records::Npy(_) => Bytes::new(),
        }
    }

    /// Whether its records can be run apart.
    fn divides(&self) -> bool {
        match self.records {
            Records::Npy(_) => false,
            Records::Csv(_)
            | Records::JsonLines(_)
            | Records::Examples(_)
            | Records::Images(_)
            | Records::Documents(_) => true,
        }
    }
}

/// The outputs of a batch.
#[derive(Debug, Default)]
pub struct BatchText {
    /// The text of all outputs.
    text: Vec<u8>,
    /// The output of each record in it; none for a bad one.
    spans: Vec<Option<Range<usize>>>,
    /// The records that have none, and why.
    pub(crate) bad: Vec<(usize, Error)>,
}

impl BatchText {
    /// The output of each record, in order; `None` for a bad one.
    pub fn outputs(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let text = |span: &Range<usize>| self.text.get(span.clone()).unwrap_or_default();
        self.spans.iter().map(move |span| span.as_ref().map(text))
    }

    /// The bad records, and what is wrong with them.
    pub fn errors(&self) -> impl Iterator<Item = (usize, &Error)> {
        self.bad.iter().map(|(index, error)| (*index, error))
    }

    /// The output of record `index`; `None` for a bad one.
    pub(crate) fn output(&self, index: usize) -> Option<&[u8]> {
        let span = self.spans.get(index)?.as_ref()?;
        self.text.get(span.clone())
    }

    /// Why record `index` has no output. If bad records fail their object, those behind the first one were
    /// not run.
    pub(crate) fn error_of(&self, index: usize) -> Option<&Error> {
        let at = self.bad.binary_search_by_key(&index, |bad| bad.0).ok()?;
        self.bad.get(at).map(|bad| &bad.1)
    }

    fn push(&mut self, output: &[u8]) {
        let start = self.text.len();
        self.text.extend_from_slice(output);
        self.spans.push(Some(start..self.text.len()));
    }

    fn push_bad(&mut self, error: Error) {
        self.bad.push((self.spans.len(), error));
        self.spans.push(None);
    }
}

/// Runs batches on a model. Shared by all threads.
pub struct RecordRunner {
    job: Arc<Job>,
    model: Arc<dyn Model>,
    /// Responses of this model have no row for each record: records are run one at a time.
    is_one_at_a_time: AtomicBool,
    /// The time that all runs have taken, in nanoseconds.
    busy: AtomicU64,
}

/// Why a batch has no output: not for its records.
pub type BatchFailure = Error;

impl RecordRunner {
    /// A runner for a job.
    #[must_use]
    pub fn new(job: Arc<Job>, model: Arc<dyn Model>) -> Self {
        let busy = AtomicU64::new(0);
        RecordRunner { job, model, is_one_at_a_time: AtomicBool::new(false), busy }
    }

    /// The time that all runs have taken, in nanoseconds.
    #[must_use]
    pub fn busy(&self) -> u64 {
        self.busy.load(Relaxed)
    }

    /// The request for record `index` alone.
    ///
    /// # Errors
    /// If the input filter cannot apply.
    pub fn payload_of(&self, batch: &Batch, index: usize) -> Result<Payload> {
        self.payload(batch, index..index + 1)
    }

    /// Runs a batch. Bad records are in the output, unless they fail the object: then only the first one
    /// is looked for.
    ///
    /// # Errors
    /// If the model is not available, or the batch cannot be divided to find the record at fault.
    pub fn run(&self, batch: &Batch) -> Result<BatchText, BatchFailure> {
        let start = Instant::now();
        let mut output = BatchText::default();
        output.spans.reserve(batch.len());
        let done = self.run_pieces(batch, &mut output);
        self.busy.fetch_add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(0), Relaxed);
        done.map(|()| output)
    }

    /// Runs the batch, then halves of what fails, until the records at fault are found.
    fn run_pieces(&self, batch: &Batch, output: &mut BatchText) -> Result<(), BatchFailure> {
        let step = if self.runs_alone(batch) { 1 } else { batch.len().max(1) };
        let mut pieces: Vec<Range<usize>> = Vec::new();
        let mut start = 0;
        while start < batch.len() {
            pieces.push(start..batch.len().min(start + step));
            start += step;
        }
        pieces.reverse();
        while let Some(piece) = pieces.pop() {
            let error = match self.attempt(batch, piece.clone(), output) {
                Ok(()) => continue,
                Err(error) => error,
            };
            if is_passing(error.code()) || !batch.divides() {
                return Err(error);
            }
            if piece.len() > 1 {
                let middle = piece.start + piece.len() / 2;
                pieces.push(middle..piece.end);
                pieces.push(piece.start..middle);
                continue;
            }
            output.push_bad(error);
            // The object has failed, unless the other records are objects of their own.
            if self.job.on_bad == OnBadRecord::Fail && !self.job.is_documents() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn runs_alone(&self, batch: &Batch) -> bool {
        match batch.records {
            Records::Documents(_) => true,
            Records::Images(_) => self.model.has_handlers() || self.is_one_at_a_time.load(Relaxed),
            Records::Csv(_) | Records::JsonLines(_) | Records::Examples(_) => {
                self.is_one_at_a_time.load(Relaxed)
            }
            Records::Npy(_) => false,
        }
    }

    /// Runs records; what may pass is tried again.
    fn attempt(
        &self,
        batch: &Batch,
        piece: Range<usize>,
        output: &mut BatchText,
    ) -> Result<(), BatchFailure> {
        let length = (output.text.len(), output.spans.len());
        let attempt = || {
            let done = self.run_once(batch, piece.clone(), output);
            if done.is_err() {
                output.text.truncate(length.0);
                output.spans.truncate(length.1);
            }
            done
        };
        retried(self.job.retries, attempt, |_| ())
    }

    fn run_once(&self, batch: &Batch, piece: Range<usize>, output: &mut BatchText) -> Result<()> {
        let payload = self.payload(batch, piece.clone())?;
        if matches!(batch.records, Records::Documents(_)) {
            let document = self.model.document(payload)?;
            // The output of an object that is one document is that document.
            let is_own_output = self.job.is_documents()
                && self.job.shaping.keeps_predictions()
                && !self.job.frozen.combine_outputs;
            let line = match is_own_output {
                true => document.trim_ascii_end().to_vec(),
                false => one_line(&document),
            };
            return self.push(batch, piece.start, &line, output);
        }
        let (first, count) = (piece.start, piece.len());
        let error = match self.model.rows(payload.clone(), self.job.lines) {
            Ok(response) if self.push_rows(batch, piece, &response, output)? => return Ok(()),
            Ok(_) => {
                self.is_one_at_a_time.fetch_or(count > 1, Relaxed);
                let records = if count == 1 { "record" } else { "records" };
                Error::invalid(format!(
                    "the response to {count} {records} does not have a row for each"
                ))
            }
            Err(error) => error,
        };
        // Outputs without rows, or with several for one record, are written whole.
        if count == 1 && self.job.lines == RecordFormat::Json {
            let document = self.model.document(payload).map_err(|_| error)?;
            return self.push(batch, first, &one_line(&document), output);
        }
        Err(error)
    }

    /// Adds the rows of a response. Returns whether it has one for each record.
    fn push_rows(
        &self,
        batch: &Batch,
        piece: Range<usize>,
        response: &OutputText,
        output: &mut BatchText,
    ) -> Result<bool> {
        let count = piece.len();
        let found;
        let (text, spans) = match response {
            OutputText::Rows(rows) if rows.rows.len() == count => (&rows.text[..], &rows.rows),
            OutputText::Text(text) => match Rows::of(text, count) {
                Some(rows) => {
                    found = rows;
                    (&found.text[..], &found.spans)
                }
                // What a handler answers to one record is the output of that.
                None if count == 1 => {
                    return self.push(batch, piece.start, &one_line(text), output).map(|()| true);
                }
                None => return Ok(false),
            },
            OutputText::Rows(_) => return Ok(false),
        };
        if self.job.shaping.keeps_predictions() {
            let base = output.text.len();
            output.text.extend_from_slice(text);
            let shifted = spans.iter().map(|span| Some(span.start + base..span.end + base));
            output.spans.extend(shifted);
            return Ok(true);
        }
        for (index, span) in piece.zip(spans) {
            self.push(batch, index, text.get(span.clone()).unwrap_or_default(), output)?;
        }
        Ok(true)
    }

    /// Adds the output of a record, joined and filtered as the job says.
    fn push(
        &self,
        batch: &Batch,
        index: usize,
        prediction: &[u8],
        output: &mut BatchText,
    ) -> Result<()> {
        let shaping = &self.job.shaping;
        if shaping.keeps_predictions() {
            output.push(prediction);
            return Ok(());
        }
        let record = batch.record(index);
        output.push(&shaping.output(&record, prediction)?);
        Ok(())
    }

    /// The request for records of a batch.
    fn payload(&self, batch: &Batch, piece: Range<usize>) -> Result<Payload> {
        let records = |body: Bytes, format| Payload::Records { body, format };
        Ok(match &batch.records {
            Records::Images(files) if files.len() > 1 || !self.model.has_handlers() => {
                Payload::Images(files.get(piece).unwrap_or_default().to_vec())
            }
            Records::Images(files) | Records::Documents(files) => {
                Payload::Document(files.get(piece.start).cloned().unwrap_or_default())
            }
            Records::Npy(array) => records(array.clone(), PayloadFormat::Npy),
            Records::Examples(chunk) => records(framed(chunk, piece), PayloadFormat::Examples),
            Records::JsonLines(chunk) => match self.job.shaping.keeps_inputs() {
                true => records(framed(chunk, piece), PayloadFormat::JsonLines),
                false => records(self.filtered(chunk, piece)?, PayloadFormat::JsonLines),
            },
            Records::Csv(chunk) => {
                let text = match self.job.shaping.keeps_inputs() {
                    true => framed(chunk, piece),
                    false => self.filtered(chunk, piece)?,
                };
                // What is filtered is a line.
                let is_multiline = self.job.shaping.keeps_inputs()
                    && self.job.input == InputFormat::Split(Split::Csv);
                let (header, text) = match &batch.header {
                    Some(header) => {
                        let header = self.job.shaping.input(header)?;
                        (Header::Present, [&header[..], b"\n", &text].concat().into())
                    }
                    None => (Header::Absent, text),
                };
                records(text, PayloadFormat::Csv(CsvForm { header, is_multiline }))
            }
        })
    }

    /// The records with the input filter applied, a line each.
    fn filtered(&self, chunk: &Chunk, piece: Range<usize>) -> Result<Bytes> {
        let mut text = Vec::new();
        for span in chunk.records.get(piece).unwrap_or_default() {
            let record = chunk.bytes.get(span.start..span.end).unwrap_or_default();
            text.extend_from_slice(&self.job.shaping.input(record)?);
            text.push(b'\n');
        }
        Ok(text.into())
    }
}

/// The text of consecutive records as it is in the object.
fn framed(chunk: &Chunk, piece: Range<usize>) -> Bytes {
    let records = chunk.records.get(piece).unwrap_or_default();
    match (records.first(), records.last()) {
        (Some(first), Some(last)) => chunk.bytes.slice(first.framed_start..last.framed_end),
        _ => Bytes::new(),
    }
}
