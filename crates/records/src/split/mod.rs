//! Objects as sequences of records.
//!
//! A [`Splitter`] hands out [`Chunk`]s of consecutive records without copying them. How the records
//! are divided into chunks depends on the object's content and the two limits alone, never on how
//! the source returns its bytes, so a job that is resumed forms the same chunks again.

use std::fmt;
use std::io::Read;

use bytes::Bytes;
use tensorserve_codec::tfrecord;
use tensorserve_tensor::error::{Error, Result};

use self::input::Input;
use self::limit::Limit;

pub(crate) mod input;
mod limit;
mod recordio;
#[cfg(test)]
mod tests;
mod text;
mod tf;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The most spans for which a chunk reserves memory before they are found.
const EXPECTED_RECORDS: usize = 4096;

/// How an object is split into records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Not at all: the object is one record. An empty object is one empty record.
    None,
    /// At line feeds.
    Line,
    /// At line feeds that are not in a quoted field (RFC 4180).
    Csv,
    /// At line feeds; each line is a JSON value.
    JsonLines,
    /// TensorFlow's format, whose checksums are verified.
    TfRecord,
    /// The format of MXNet and of SageMaker's own algorithms.
    RecordIo,
}

impl Split {
    const ALL: [Split; 6] =
        [Split::None, Split::Line, Split::Csv, Split::JsonLines, Split::TfRecord, Split::RecordIo];

    /// The split with this name, as [`fmt::Display`] writes it, in either case; `jsonlines` is
    /// `jsonl`. SageMaker's `SplitType` has the same names.
    ///
    /// # Errors
    /// [`Error::invalid`] for another name.
    pub fn parse(name: &str) -> Result<Split> {
        if name.eq_ignore_ascii_case("jsonlines") {
            return Ok(Split::JsonLines);
        }
        let mut all = Split::ALL.into_iter();
        all.find(|one| one.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            Error::invalid(format!(
                "split {name:?} is unknown: use none, line, csv, jsonl, tfrecord or recordio"
            ))
        })
    }

    fn name(self) -> &'static str {
        match self {
            Split::None => "none",
            Split::Line => "line",
            Split::Csv => "csv",
            Split::JsonLines => "jsonl",
            Split::TfRecord => "tfrecord",
            Split::RecordIo => "recordio",
        }
    }

    fn is_text(self) -> bool {
        matches!(self, Split::Line | Split::Csv | Split::JsonLines)
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How to split, and within which limits.
#[derive(Clone, Copy, Debug)]
pub struct SplitOptions {
    /// The format.
    pub split: Split,
    /// The most bytes of one record, without its line ending or framing.
    pub max_record_bytes: usize,
    /// Whether lines of white space are records. They are counted in any case.
    pub keep_blank_lines: bool,
}

/// A record within [`Chunk::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSpan {
    /// Where the content starts. The content of a RecordIO record of several parts is a copy behind
    /// all framed records; every other content is between `framed_start` and `framed_end`.
    pub start: usize,
    /// Where the content ends, without line ending and framing.
    pub end: usize,
    /// Where the record starts with its framing.
    pub framed_start: usize,
    /// Where the record ends with its line ending or framing.
    pub framed_end: usize,
    /// The record's first line, from 1; for a binary format, the number of the record, from 1. In a
    /// range of an object ([`crate::range`]) that is not the first, lines are counted from the start
    /// of the range, because the lines before it are unknown.
    pub line: u64,
    /// The byte of the decompressed object at which the framed record starts.
    pub offset: u64,
}

/// Consecutive records.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The records with line endings and framing, as they are in the object. Blank lines between
    /// records are included.
    pub bytes: Bytes,
    /// The records, at least one.
    pub records: Vec<RecordSpan>,
}

impl Chunk {
    /// The content of a record of this chunk, without a copy.
    #[must_use]
    pub fn content(&self, record: &RecordSpan) -> Bytes {
        if record.start > record.end || record.end > self.bytes.len() {
            return Bytes::new(); // A record of another chunk.
        }
        self.bytes.slice(record.start..record.end)
    }
}

/// Splits a source into chunks of records.
pub struct Splitter<R> {
    input: Input<R>,
    options: SplitOptions,
    limit: Limit,
    /// The line or the number of the next record.
    next_line: u64,
    state: SplitterState,
}

enum SplitterState {
    /// At the first byte of the source.
    Start,
    Running,
    Done,
    Failed(Error),
}

/// A record in the buffer, and the line after it.
struct FoundRecord {
    span: RecordSpan,
    /// Whether the content is in the buffer for joined contents.
    is_joined: bool,
    next_line: u64,
}

impl<R: Read> Splitter<R> {
    /// A splitter of the decompressed object that `source` gives.
    pub fn new(source: R, options: SplitOptions) -> Self {
        Splitter {
            input: Input::new(source),
            options,
            limit: Limit { bytes: options.max_record_bytes },
            next_line: 1,
            state: SplitterState::Start,
        }
    }

    /// Sets the position in the object of the first byte that the source gives: the number of its
    /// line or record, from 1, and the byte. By default, this is the start of the object, where a
    /// byte order mark is skipped.
    #[must_use]
    pub fn starting_at(mut self, line: u64, offset: u64) -> Self {
        self.next_line = line;
        self.input.set_offset(offset);
        self
    }

    /// The next records; `None` at the end of the object. At most `max_records`, which together with
    /// their framing and the blank lines between them take at most `max_bytes`, but at least one.
    ///
    /// # Errors
    /// If a record is damaged or too long, or the source fails. The records before have been
    /// returned then, and every later call returns the same error.
    pub fn next_chunk(&mut self, max_records: usize, max_bytes: usize) -> Result<Option<Chunk>> {
        match &self.state {
            SplitterState::Done => return Ok(None),
            SplitterState::Failed(error) => return Err(error.duplicate()),
            SplitterState::Start | SplitterState::Running => {}
        }
        self.input.expect(max_bytes);
        let mut records = Vec::with_capacity(max_records.min(EXPECTED_RECORDS));
        let mut joined = Joined::default();
        if let Err(error) = self.collect(max_records, max_bytes, &mut records, &mut joined) {
            self.state = SplitterState::Failed(error.duplicate());
            if records.is_empty() {
                return Err(error);
            }
        }
        let Some(last) = records.last() else {
            self.state = SplitterState::Done;
            return Ok(None);
        };
        let bytes = joined.behind(self.input.take(last.framed_end), &mut records);
        Ok(Some(Chunk { bytes, records }))
    }

    /// Takes the first record of the object if `is_taken` says so of its content; else it is the first of the next
    /// chunk. `None` also if there are no records.
    ///
    /// # Errors
    /// As [`Splitter::next_chunk`], and those of `is_taken`.
    pub fn take_first(
        &mut self,
        is_taken: impl FnOnce(&[u8]) -> Result<bool>,
    ) -> Result<Option<Bytes>> {
        if matches!(self.state, SplitterState::Start) {
            self.state = SplitterState::Running;
            self.skip_byte_order_mark()?;
        }
        let Some(found) = self.find(0, usize::MAX, &mut Vec::new())? else { return Ok(None) };
        let RecordSpan { start, end, framed_end, .. } = found.span;
        if !is_taken(self.input.slice(start, end))? {
            return Ok(None);
        }
        self.next_line = found.next_line;
        let bytes = self.input.take(framed_end);
        Ok(Some(bytes.slice(start.min(bytes.len())..end.min(bytes.len()))))
    }

    /// Finds the records of a chunk, which start with the buffer.
    fn collect(
        &mut self,
        max_records: usize,
        max_bytes: usize,
        records: &mut Vec<RecordSpan>,
        joined: &mut Joined,
    ) -> Result<()> {
        if matches!(self.state, SplitterState::Start) {
            self.state = SplitterState::Running;
            self.skip_byte_order_mark()?;
        }
        let mut at = 0;
        while records.len() < max_records.max(1) {
            let joined_before = joined.bytes.len();
            let Some(found) = self.find(at, max_bytes, &mut joined.bytes)? else {
                break;
            };
            if at > 0 && found.span.framed_end > max_bytes {
                joined.bytes.truncate(joined_before);
                break;
            }
            if found.is_joined {
                joined.records.push(records.len());
            }
            at = found.span.framed_end;
            self.next_line = found.next_line;
            records.push(found.span);
        }
        Ok(())
    }

    fn skip_byte_order_mark(&mut self) -> Result<()> {
        if !self.options.split.is_text() || self.input.offset_of(0) > 0 {
            return Ok(());
        }
        let is_long = self.input.fill_to(BYTE_ORDER_MARK.len())?;
        if is_long && self.input.bytes().starts_with(BYTE_ORDER_MARK) {
            self.input.skip(BYTE_ORDER_MARK.len());
        }
        Ok(())
    }

    /// The record that starts at `at` in the buffer.
    fn find(
        &mut self,
        at: usize,
        max_bytes: usize,
        joined: &mut Vec<u8>,
    ) -> Result<Option<FoundRecord>> {
        let (line, limit) = (self.next_line, self.limit);
        match self.options.split {
            Split::Line | Split::JsonLines | Split::Csv => self.find_text(at, max_bytes),
            Split::None => self.find_whole(),
            Split::TfRecord => {
                let end = tf::record(&mut self.input, at, line, limit)?;
                Ok(end.map(|end| {
                    let framed_end = end + tfrecord::CHECKSUM;
                    self.found(at, at + tfrecord::HEADER, end, framed_end, line, 1)
                }))
            }
            Split::RecordIo => {
                let record = recordio::record(&mut self.input, at, line, limit, joined)?;
                Ok(record.map(|record| {
                    let recordio::Record { start, end, is_joined, framed_end } = record;
                    FoundRecord { is_joined, ..self.found(at, start, end, framed_end, line, 1) }
                }))
            }
        }
    }

    fn found(
        &self,
        framed_start: usize,
        start: usize,
        end: usize,
        framed_end: usize,
        line: u64,
        lines: u64,
    ) -> FoundRecord {
        let offset = self.input.offset_of(framed_start);
        let span = RecordSpan { start, end, framed_start, framed_end, line, offset };
        FoundRecord { span, is_joined: false, next_line: line.saturating_add(lines) }
    }

    /// The first record at or after `at`, which is line `self.next_line`. Blank lines at the start of
    /// the buffer leave it, so that memory does not grow with them.
    fn find_text(&mut self, mut at: usize, max_bytes: usize) -> Result<Option<FoundRecord>> {
        let mut number = self.next_line;
        let is_csv = self.options.split == Split::Csv;
        loop {
            let (input, limit) = (&mut self.input, self.limit);
            let line = if is_csv {
                text::csv(input, at, number, limit)?
            } else {
                text::line(input, at, number, limit)?
            };
            let Some(line) = line else {
                return Ok(None);
            };
            let content = self.input.slice(at, line.end);
            if self.options.keep_blank_lines || !content.trim_ascii_start().is_empty() {
                return Ok(Some(self.found(at, at, line.end, line.framed_end, number, line.lines)));
            }
            number = number.saturating_add(line.lines);
            if at == 0 {
                self.input.skip(line.framed_end);
                self.next_line = number;
            } else if line.framed_end > max_bytes {
                return Ok(None);
            } else {
                at = line.framed_end;
            }
        }
    }

    /// The whole object, once.
    fn find_whole(&mut self) -> Result<Option<FoundRecord>> {
        if matches!(self.state, SplitterState::Done) {
            return Ok(None);
        }
        while self.input.more()? {
            if self.input.bytes().len() > self.limit.bytes {
                return Err(self.limit.object_error());
            }
        }
        self.state = SplitterState::Done;
        let end = self.input.bytes().len();
        Ok(Some(self.found(0, 0, end, end, self.next_line, 1)))
    }
}

/// The contents of records of several parts.
#[derive(Default)]
struct Joined {
    bytes: Vec<u8>,
    /// Which records of the chunk these are.
    records: Vec<usize>,
}

impl Joined {
    /// The chunk's bytes with the joined contents behind them.
    fn behind(self, framed: Bytes, records: &mut [RecordSpan]) -> Bytes {
        if self.records.is_empty() {
            return framed;
        }
        for index in self.records {
            if let Some(record) = records.get_mut(index) {
                record.start += framed.len();
                record.end += framed.len();
            }
        }
        [&framed[..], &self.bytes].concat().into()
    }
}
