//! A file that the `parquet` crate reads from.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use tensorserve_tensor::error::{Code, Error, Result};

use super::footer;

const MAGIC: &[u8] = b"PAR1";
const ENCRYPTED_MAGIC: &[u8] = b"PARE";

/// Size of the footer's length and the magic number at the end of a file.
const TAIL: usize = 8;

/// The longest footer. Those of files with a hundred thousand columns have tens of megabytes.
const MAX_FOOTER: usize = 256 << 20;

/// Reads at positions, and never reserves memory for more than the file has.
#[derive(Clone)]
pub(super) struct ParquetFile {
    file: Arc<File>,
    length: u64,
}

impl ParquetFile {
    /// Checks the footer of `file`.
    pub(super) fn open(file: File) -> Result<Self> {
        let metadata = file.metadata().map_err(|error| {
            Error::new(Code::of_io(&error), format!("the Parquet file cannot be read: {error}"))
        })?;
        let opened = ParquetFile { file: Arc::new(file), length: metadata.len() };
        let tail_start = opened.length.checked_sub(TAIL as u64).ok_or_else(not_parquet)?;
        let tail = opened.read_exactly(tail_start, TAIL).map_err(read_error)?;
        let (length, magic) = tail.split_first_chunk::<4>().ok_or_else(not_parquet)?;
        if magic == ENCRYPTED_MAGIC {
            return Err(Error::invalid("the Parquet file is encrypted, which is not supported"));
        }
        if magic != MAGIC {
            return Err(not_parquet());
        }
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let start = tail_start.checked_sub(length as u64).filter(|_| length <= MAX_FOOTER);
        let start = start.ok_or_else(|| {
            Error::new(Code::DataLoss, "the Parquet file is truncated, or its footer is damaged")
        })?;
        footer::check(&opened.read_exactly(start, length).map_err(read_error)?)?;
        Ok(opened)
    }

    /// Its number of bytes.
    pub(super) fn size(&self) -> u64 {
        self.length
    }

    pub(super) fn read_exactly(&self, start: u64, length: usize) -> io::Result<Vec<u8>> {
        let end = start.checked_add(length as u64);
        if end.is_none_or(|end| end > self.length) {
            let text = format!("{length} bytes at byte {start} are beyond the file's end");
            return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }
}

fn not_parquet() -> Error {
    Error::invalid("the object is not a Parquet file, or it is truncated: it does not end in PAR1")
}

pub(super) fn read_error(error: io::Error) -> Error {
    let message = format!("the Parquet file cannot be read: {error}");
    Error::new(Code::of_io(&error), message).with_source(error)
}

impl Length for ParquetFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for ParquetFile {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(From { file: Arc::clone(&self.file), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes = self.read_exactly(start, length);
        bytes.map(Bytes::from).map_err(|error| ParquetError::External(Box::new(error)))
    }
}

/// Reads on from a position.
pub(super) struct From {
    file: Arc<File>,
    at: u64,
}

impl Read for From {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(out, self.at)?;
        self.at = self.at.saturating_add(count as u64);
        Ok(count)
    }
}
