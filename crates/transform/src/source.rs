//! Batches of records, read from one object.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;

use crate::batch::{Batch, RecordPlace, Records};
use crate::job::{CsvHeader, InputFormat, Job, RecordType};
use crate::model::Model;
use crate::plan::{PlannedObject, PlannedRange};
use crate::progress::{CountedRead, ReadCount};
use tensorserve_records::compression::{Compression, decompress};
use tensorserve_records::npy_read::NpyRows;
use tensorserve_records::parquet_read::ParquetRows;
use tensorserve_records::range::{self, RangeReader};
use tensorserve_records::split::{Chunk, Split, SplitOptions, Splitter};
use tensorserve_store::objects::{Place, error_of};
use tensorserve_tensor::error::{Code, Error, Result};

/// The batches of an object, or of a range of it, in order.
pub(crate) struct BatchSource<'j> {
    job: &'j Job,
    rows: Rows,
    header: HeaderState<'j>,
}

/// What is known of the names of columns that an object of CSV may begin with.
enum HeaderState<'j> {
    /// The first record tells; this model reads it, if the job does not say.
    AtFirst(&'j dyn Model),
    /// The record with the names, if there is one.
    Known(Option<Bytes>),
}

type Source = Box<dyn Read + Send>;

enum Rows {
    Whole(Box<Splitter<Source>>),
    Range(Box<Splitter<RangeReader<Source>>>),
    Parquet(Box<ParquetRows>),
    Npy(Box<NpyRows<Source>>),
}

impl<'j> BatchSource<'j> {
    /// Opens an object, or a range of it, whose bytes are counted while they are read.
    ///
    /// # Errors
    /// If it cannot be read, has changed since it was planned, or is not what the job says it is.
    pub(crate) fn open(
        job: &'j Job,
        model: &'j dyn Model,
        input: &Place,
        object: &PlannedObject,
        range: Option<PlannedRange>,
        count: Option<&Arc<ReadCount>>,
    ) -> Result<Self> {
        let header = match range {
            _ if job.records != RecordType::Csv || job.header == CsvHeader::Absent => {
                HeaderState::Known(None)
            }
            Some(range) if range.start > 0 => {
                let mut start = BatchSource::open(job, model, input, object, None, None)?;
                start.read_header()?;
                start.header
            }
            _ => HeaderState::AtFirst(model),
        };
        let source = read_object(input, object, range, job.compression, count)?;
        let rows = match job.input {
            InputFormat::Parquet => {
                let (columns, most) = (job.columns.as_deref(), job.frozen.max_record_bytes);
                let table = ParquetRows::open(local_copy(source)?, columns, most)?;
                Rows::Parquet(Box::new(table))
            }
            InputFormat::Npy => Rows::Npy(Box::new(NpyRows::open(source)?)),
            InputFormat::Split(split) => {
                let options = SplitOptions {
                    split,
                    max_record_bytes: job.frozen.max_record_bytes,
                    keep_blank_lines: false,
                };
                match range {
                    Some(range) => {
                        let range = range.start..range.end;
                        Rows::Range(Box::new(Splitter::over_range(source, options, range)?))
                    }
                    None => Rows::Whole(Box::new(Splitter::new(source, options))),
                }
            }
        };
        Ok(BatchSource { job, rows, header })
    }

    /// The next batch; `None` at the end.
    ///
    /// # Errors
    /// If the object cannot be read, or its records are damaged.
    pub(crate) fn next(&mut self) -> Result<Option<Batch>> {
        self.read_header()?;
        let (rows, bytes) = (self.job.frozen.batch_rows, self.job.frozen.max_payload_bytes);
        let header = match &self.header {
            HeaderState::Known(header) => header.clone(),
            HeaderState::AtFirst(_) => None,
        };
        let batch = match &mut self.rows {
            Rows::Whole(splitter) => {
                splitter.next_chunk(rows, bytes)?.map(|chunk| self.job.batch_of(chunk, header))
            }
            Rows::Range(splitter) => {
                splitter.next_chunk(rows, bytes)?.map(|chunk| self.job.batch_of(chunk, header))
            }
            Rows::Parquet(table) => table.next_chunk(rows, bytes)?.map(Batch::json_lines),
            Rows::Npy(array) => array.next_chunk(rows, bytes)?.map(|chunk| Batch {
                places: Some(
                    (0..chunk.rows)
                        .map(|row| RecordPlace {
                            line: chunk.first_row + u64::try_from(row).unwrap_or(0) + 1,
                            offset: None,
                        })
                        .collect(),
                ),
                records: Records::Npy(chunk.bytes),
                header: None,
            }),
        };
        Ok(batch)
    }
}

impl BatchSource<'_> {
    /// Reads the first record, if it has the names of columns or may have them. One that has none stays.
    fn read_header(&mut self) -> Result<()> {
        let HeaderState::AtFirst(model) = &self.header else { return Ok(()) };
        let is_header = |record: &[u8]| match self.job.header {
            CsvHeader::Present => Ok(true),
            CsvHeader::Absent => Ok(false),
            CsvHeader::Auto => model.has_header(record),
        };
        let found = match &mut self.rows {
            Rows::Whole(splitter) => splitter.take_first(is_header)?,
            Rows::Range(splitter) => splitter.take_first(is_header)?,
            Rows::Parquet(_) | Rows::Npy(_) => None,
        };
        self.header = HeaderState::Known(found);
        Ok(())
    }
}

impl Job {
    /// The first batch of an object, for this model; `None` if it has no records.
    ///
    /// # Errors
    /// If it cannot be read, or its records are damaged.
    pub fn first_batch(
        &self,
        model: &dyn Model,
        input: &Place,
        object: &PlannedObject,
    ) -> Result<Option<Batch>> {
        if self.is_documents() {
            let content = read_whole(self, input, object, None)?;
            return Ok(Some(Batch::files(self, vec![content])));
        }
        BatchSource::open(self, model, input, object, None, None)?.next()
    }

    /// A batch of the records of a chunk, whose object begins with `header`.
    fn batch_of(&self, chunk: Chunk, header: Option<Bytes>) -> Batch {
        match self.records {
            RecordType::Csv => Batch { header, ..Batch::of_chunk(Records::Csv(chunk)) },
            RecordType::JsonLines if self.input != InputFormat::Split(Split::None) => {
                Batch::json_lines(chunk)
            }
            RecordType::Examples if self.input == InputFormat::Split(Split::TfRecord) => {
                Batch::of_chunk(Records::Examples(chunk))
            }
            RecordType::Image => {
                let images = payloads(&chunk);
                Batch::lines(chunk, |_| Records::Images(images))
            }
            RecordType::JsonLines
            | RecordType::Examples
            | RecordType::Npy
            | RecordType::Document => {
                let documents = payloads(&chunk);
                Batch::lines(chunk, |_| Records::Documents(documents))
            }
        }
    }
}

fn payloads(chunk: &Chunk) -> Vec<Bytes> {
    chunk.records.iter().map(|record| chunk.bytes.slice(record.start..record.end)).collect()
}

/// The whole content of an object that is one record.
///
/// # Errors
/// If it cannot be read, has changed, or is larger than a record may be.
pub(crate) fn read_whole(
    job: &Job,
    input: &Place,
    object: &PlannedObject,
    count: Option<&Arc<ReadCount>>,
) -> Result<Bytes> {
    let most = job.frozen.max_record_bytes;
    let mut content = Vec::with_capacity(usize::try_from(object.size).unwrap_or(0).min(most));
    let source = read_object(input, object, None, job.compression, count)?;
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    source.take(limit).read_to_end(&mut content).map_err(read_failed)?;
    if content.len() > most {
        return Err(Error::invalid(format!(
            "it is larger than a record may be ({} MiB): raise --max-record-mb",
            most >> 20
        )));
    }
    Ok(content.into())
}

/// Opens an object and decompresses it.
pub(crate) fn read_object(
    input: &Place,
    object: &PlannedObject,
    range: Option<PlannedRange>,
    compression: Compression,
    count: Option<&Arc<ReadCount>>,
) -> Result<Source> {
    // A range owns the lines that start in it: the last one ends behind it.
    let bytes = range.map(|range| range::open_at(range.start)..object.size);
    let source = input.read(&object.key, bytes, Some(&object.tag))?;
    let source: Source = match count {
        Some(count) => Box::new(CountedRead::new(source, Arc::clone(count))),
        None => source,
    };
    decompress(source, compression.of_name(&object.key))
}

/// A copy in a temporary file, for formats that are not read in sequence.
fn local_copy(mut source: Source) -> Result<std::fs::File> {
    let failed = |e| Error::unavailable(format!("a temporary file cannot be used: {e}"));
    let mut file = tempfile::tempfile().map_err(failed)?;
    io::copy(&mut source, &mut file).map_err(read_failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

/// The error of a read.
fn read_failed(error: io::Error) -> Error {
    let is_damage =
        matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof);
    let found = error_of(error);
    if is_damage && found.code() != Code::FailedPrecondition {
        return Error::new(Code::DataLoss, found.message().to_owned());
    }
    found
}
