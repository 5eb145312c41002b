//! A file that the `parquet` crate reads from.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use tensorserve_tensor::error::{Code, Error, Result};

/// Reads at positions, and never reserves memory for more than the file has.
pub(super) struct ParquetFile {
    file: Arc<File>,
    length: u64,
}

impl ParquetFile {
    pub(super) fn open(file: File) -> Result<Self> {
        let metadata = file.metadata().map_err(|error| {
            Error::new(Code::of_io(&error), format!("the Parquet file cannot be read: {error}"))
        })?;
        Ok(ParquetFile { file: Arc::new(file), length: metadata.len() })
    }

    fn read_exactly(&self, start: u64, length: usize) -> io::Result<Vec<u8>> {
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
