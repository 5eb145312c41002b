//! The rows of a Parquet file as JSON objects, one per line.
//!
//! The rows are assembled by the `parquet` crate's record API, so Arrow is not compiled in. Arrow
//! reads faster, but as columns, and a model's input is built from rows here; its crates would add
//! more code than the rest of this one, for formats that are written as JSON anyway.
//!
//! The crate has panicked on corrupt files, and some conversions of its record API are
//! unimplemented and panic, too. Every call of it is therefore wrapped in [`caught`], and a
//! panic becomes an error, after which the file is not read further. What cannot be caught, an
//! overflow of the stack or of memory, is prevented by the checks of [`CheckedParquet`], which also
//! guard other readers of Parquet, and of [`rows`](mod@rows).

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader};
use parquet::record::reader::RowIter;
use parquet::schema::types::{Type, TypePtr};
use tensorserve_tensor::error::{Code, Error, Result};

pub use self::checked::CheckedParquet;
use self::file::ParquetFile;
use crate::split::{Chunk, RecordSpan};

mod checked;
mod file;
mod footer;
mod json;
mod pages;
mod rows;
#[cfg(test)]
mod tests;

/// The longest footer. Those of files with a hundred thousand columns have tens of megabytes.
const MAX_FOOTER: usize = 256 << 20;

/// The most columns that an error lists.
const LISTED_COLUMNS: usize = 50;

/// The most characters of the crate's own error texts, which may quote whole values.
const MAX_REASON: usize = 300;

/// Reads a Parquet file row by row.
///
/// Numbers and booleans are themselves, and a float has the shortest digits that read back as the
/// same value; NaN and infinities are the bare words `NaN`, `Infinity` and `-Infinity`, as in
/// Python. Strings, enums and JSON are strings; other bytes are `{"b64": "…"}`. Decimals are strings.
/// Dates, times and timestamps are the integers in the file: days, or the column's own unit, since
/// 1970 or midnight; those of the old type INT96 are milliseconds. Lists are arrays, structs and maps
/// are objects, and nulls are `null`.
pub struct ParquetRows {
    rows: RowIter<'static>,
    /// The line of the next row, which did not fit into the chunk before.
    pending: Vec<u8>,
    /// How many rows have been read.
    read: u64,
    /// The most bytes of a row's line.
    max_record_bytes: usize,
    /// How many bytes of JSON have been handed out.
    offset: u64,
    state: ParquetReaderState,
}

enum ParquetReaderState {
    Running,
    Ended,
    Failed(Error),
}

impl ParquetRows {
    /// Opens a file, and selects top-level columns by name, in this order; by default, all of them in
    /// the file's order. A row may have `max_record_bytes` of JSON.
    ///
    /// # Errors
    /// [`Error::invalid`] if it is not a Parquet file, has no such column, or takes far more memory than it
    /// has bytes, and [`Code::DataLoss`] if it is damaged.
    pub fn open(file: File, columns: Option<&[String]>, max_record_bytes: usize) -> Result<Self> {
        let reader = CheckedParquet::open(ParquetFile::open(file)?, MAX_FOOTER)?;
        if let Some((column, name)) = reader.unsupported_compression() {
            return Err(Error::invalid(format!(
                "the Parquet file's column {column} is compressed with {name}, which is not supported: write \
                 it with snappy, zstd, lz4 or gzip"
            )));
        }
        let rows = caught(|| {
            let batch = rows::check(&reader, max_record_bytes)?;
            let schema = reader.metadata().file_metadata().schema_descr_ptr();
            let projection = columns.map(|names| selected(schema.root_schema(), names));
            let rows = RowIter::from_file_into(Box::new(reader)).with_batch_size(batch);
            match projection.transpose()? {
                None => Ok(rows),
                Some(projection) => rows.project(Some(projection)).map_err(|error| {
                    damaged(&format!("the Parquet file's columns cannot be selected: {error}"))
                }),
            }
        })?;
        let (pending, state) = (Vec::new(), ParquetReaderState::Running);
        Ok(ParquetRows { rows, pending, read: 0, max_record_bytes, offset: 0, state })
    }

    /// The next rows; `None` behind the last one. At most `max_records`, whose lines together take at
    /// most `max_bytes`, but at least one. A record's `line` is the number of its row, from 1, and its
    /// `offset` that of its line in the JSON of all rows.
    ///
    /// # Errors
    /// [`Code::DataLoss`] with the number of the row if the file is damaged. The rows before have been
    /// returned then, and every later call returns the same error.
    pub fn next_chunk(&mut self, max_records: usize, max_bytes: usize) -> Result<Option<Chunk>> {
        let mut bytes = std::mem::take(&mut self.pending);
        let mut records = Vec::new();
        // The first row of this chunk, if it is pending.
        if !bytes.is_empty() {
            self.add(&mut records, 0, bytes.len());
        }
        while records.len() < max_records.max(1) {
            let start = bytes.len();
            if !self.read_row(&mut bytes) {
                bytes.truncate(start);
                break;
            }
            if start > 0 && bytes.len() > max_bytes {
                self.pending = bytes.split_off(start);
                break;
            }
            self.add(&mut records, start, bytes.len());
        }
        if !records.is_empty() {
            return Ok(Some(Chunk { bytes: bytes.into(), records }));
        }
        match &self.state {
            ParquetReaderState::Failed(error) => Err(error.duplicate()),
            ParquetReaderState::Running | ParquetReaderState::Ended => Ok(None),
        }
    }

    /// Adds the row last read, whose line is `start..framed_end` of the chunk.
    fn add(&mut self, records: &mut Vec<RecordSpan>, start: usize, framed_end: usize) {
        let (end, line, offset) = (framed_end.saturating_sub(1), self.read, self.offset);
        records.push(RecordSpan { start, end, framed_start: start, framed_end, line, offset });
        self.offset = offset.saturating_add((framed_end - start) as u64);
    }

    /// Appends the line of the next row; false at the end of the file, or if it failed.
    fn read_row(&mut self, out: &mut Vec<u8>) -> bool {
        if !matches!(self.state, ParquetReaderState::Running) {
            return false;
        }
        let number = self.read.saturating_add(1);
        let (rows, most) = (&mut self.rows, self.max_record_bytes);
        let read = caught(|| match rows.next() {
            None => Ok(false),
            Some(Ok(row)) => json::object(&row, out.len().saturating_add(most), out).map(|()| true),
            Some(Err(error)) => Err(damaged(&format!("it cannot be read: {error}"))),
        });
        let read = read.map_err(|error| error.context(format!("row {number} of the Parquet file")));
        match read {
            Ok(true) => {
                out.push(b'\n');
                self.read = number;
                return true;
            }
            Ok(false) => self.state = ParquetReaderState::Ended,
            Err(error) => self.state = ParquetReaderState::Failed(error),
        }
        false
    }
}

/// [`Code::DataLoss`] for this reason, which is cut off if it is long.
#[must_use]
pub fn damaged(reason: &str) -> Error {
    let cut = reason.char_indices().nth(MAX_REASON);
    let short = cut.and_then(|(at, _)| reason.get(..at)).map(|start| format!("{start}…"));
    Error::new(Code::DataLoss, short.unwrap_or_else(|| reason.to_owned()))
}

/// Calls into the `parquet` crate; a panic becomes an error. The standard library's message about it
/// still goes to standard error.
///
/// # Errors
/// Those of `call`, and [`Code::DataLoss`] if it panics.
pub fn caught<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        Err(damaged(&format!(
            "the Parquet file is damaged, or has a type that is not supported: {text}"
        )))
    })
}

/// Reads `length` bytes, which the file must have.
fn read_exactly(file: &impl ChunkReader, start: u64, length: usize) -> Result<Bytes> {
    file.get_bytes(start, length).map_err(|error| {
        #[allow(clippy::wildcard_enum_match_arm)] // The crate's own errors.
        let error = match error {
            ParquetError::External(cause) => cause,
            error => Box::new(error),
        };
        let code = error.downcast_ref::<io::Error>().map_or(Code::DataLoss, Code::of_io);
        Error::new(code, format!("the Parquet file cannot be read: {error}")).with_source(error)
    })
}

/// The part of the schema with these columns.
fn selected(root: &Type, names: &[String]) -> Result<Type> {
    let fields: &[TypePtr] = if root.is_group() { root.get_fields() } else { &[] };
    let mut chosen: Vec<TypePtr> = Vec::with_capacity(names.len());
    for name in names {
        if chosen.iter().any(|field| field.name() == name) {
            return Err(Error::invalid(format!("column {name:?} is selected twice")));
        }
        let found = fields.iter().find(|field| field.name() == name);
        chosen.push(Arc::clone(found.ok_or_else(|| missing(name, fields))?));
    }
    if chosen.is_empty() {
        return Err(Error::invalid("no column of the Parquet file is selected: name at least one"));
    }
    let group = Type::group_type_builder(root.name()).with_fields(chosen).build();
    group.map_err(|error| damaged(&format!("the Parquet file's schema is invalid: {error}")))
}

fn missing(name: &str, fields: &[TypePtr]) -> Error {
    let names: Vec<&str> = fields.iter().take(LISTED_COLUMNS).map(|field| field.name()).collect();
    let more = match fields.len().saturating_sub(LISTED_COLUMNS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Error::invalid(format!(
        "the Parquet file has no column {name:?}; it has {}{more}",
        names.join(", ")
    ))
}
