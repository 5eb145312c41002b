//! Writes the outputs of consecutive records to a file.

use std::fs::File;
use std::io::{BufWriter, Write};

use tensorserve_codec::formats::RecordFormat;
use tensorserve_codec::tfrecord;
use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Code, Error, Result};

use self::npy::NpyWriter;
use self::parquet_file::ParquetWriter;

mod columns;
mod npy;
mod parquet_file;

/// Memory in which small writes are gathered, in bytes.
const BUFFER: usize = 256 << 10;

/// The format of a file of outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// Each output, of JSON or CSV, and a line feed.
    Lines,
    /// A table with a column for every member of the outputs, which are JSON.
    ///
    /// The outputs of the first write determine the columns. Integers become `INT64`, other numbers
    /// `DOUBLE`, lists of numbers `LIST` of `DOUBLE`, and nested lists and objects strings of JSON.
    /// Outputs that are no objects become one column `output`. Every column may hold nulls; a member
    /// that is missing, and every member of an output `null`, is one. A column with nothing but
    /// nulls in the first write holds strings of JSON.
    Parquet,
    /// One array, whose rows are the outputs: JSON numbers or nested lists of one shape.
    Npy,
    /// Each output as a record.
    TfRecord,
}

impl OutputFormat {
    /// Its word in the state of jobs. It stays: a job continues only under the same word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            OutputFormat::Lines => "Lines",
            OutputFormat::Parquet => "Parquet",
            OutputFormat::Npy => "Npy",
            OutputFormat::TfRecord => "TfRecord",
        }
    }

    /// The output of a record that has none because it is malformed or its prediction failed.
    /// `format` is the one of the other outputs.
    ///
    /// # Errors
    /// [`Error::invalid`] for a format in which a value cannot be missing.
    pub fn null_output(self, format: RecordFormat) -> Result<&'static [u8]> {
        match (self, format) {
            (OutputFormat::Npy, _) => Err(Error::invalid(
                "an npy array cannot have a row without a value, so bad records cannot become null: \
                 skip them, or choose another output format",
            )),
            (OutputFormat::Parquet, _) | (_, RecordFormat::Json) => Ok(b"null"),
            (OutputFormat::Lines | OutputFormat::TfRecord, RecordFormat::Csv) => Ok(b""),
        }
    }
}

/// Writes outputs in the order of their records.
pub trait RecordWriter: Send {
    /// Writes the outputs of consecutive records, one per element, without line ends.
    ///
    /// # Errors
    /// [`Error::invalid`] with the record, counted from 1, for an output that the format cannot
    /// hold; otherwise the failure of the file. The file is unusable then.
    fn write(&mut self, outputs: &[&[u8]]) -> Result<()>;

    /// Completes the file. Its content is with the operating system then, and not synced.
    ///
    /// # Errors
    /// The failure of the file.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// A writer to `file`, which is empty. `npy_dtype` is the type of the elements of an npy array, and
/// ignored for other formats.
///
/// # Errors
/// [`Error::invalid`] for a dtype that an npy array of JSON numbers cannot have, or the failure of
/// the file.
pub fn writer(format: OutputFormat, file: File, npy_dtype: DType) -> Result<Box<dyn RecordWriter>> {
    Ok(match format {
        OutputFormat::Lines => Box::new(LinesWriter { file: buffered(file) }),
        OutputFormat::TfRecord => {
            Box::new(TfRecordWriter { file: buffered(file), framed: Vec::new() })
        }
        OutputFormat::Parquet => Box::new(ParquetWriter::new(file)),
        OutputFormat::Npy => Box::new(NpyWriter::new(buffered(file), npy_dtype)?),
    })
}

fn buffered(file: File) -> BufWriter<File> {
    BufWriter::with_capacity(BUFFER, file)
}

/// The error of a file that cannot be written.
fn write_error(error: std::io::Error) -> Error {
    let message = format!("the output file cannot be written: {error}");
    Error::new(Code::of_io(&error), message).with_source(error)
}

struct LinesWriter {
    file: BufWriter<File>,
}

impl RecordWriter for LinesWriter {
    fn write(&mut self, outputs: &[&[u8]]) -> Result<()> {
        for output in outputs {
            self.file.write_all(output).map_err(write_error)?;
            self.file.write_all(b"\n").map_err(write_error)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.file.flush().map_err(write_error)
    }
}

struct TfRecordWriter {
    file: BufWriter<File>,
    framed: Vec<u8>,
}

impl RecordWriter for TfRecordWriter {
    fn write(&mut self, outputs: &[&[u8]]) -> Result<()> {
        for output in outputs {
            self.framed.clear();
            tfrecord::append(output, &mut self.framed);
            self.file.write_all(&self.framed).map_err(write_error)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.file.flush().map_err(write_error)
    }
}

#[cfg(test)]
mod tests;
