//! TFRecord, TensorFlow's file format for records. Each record is its length (u64), the length's
//! checksum, the bytes, and the bytes' checksum. Numbers are little-endian, checksums are masked
//! CRC-32C.
//!
//! Source of the format and of the error texts: `core/lib/io/record_{reader,writer}.cc` of
//! github.com/tensorflow/tensorflow.

use std::io::{ErrorKind, Read};

use tensorserve_tensor::error::{Code, Error, Result};

/// Size of a record's length in bytes.
const LENGTH: usize = 8;

/// Size of a checksum in bytes. One follows a record's content.
pub const CHECKSUM: usize = 4;

/// Bytes before a record's content: its length and the length's checksum.
pub const HEADER: usize = LENGTH + CHECKSUM;

/// What masking adds to a checksum.
const MASK_DELTA: u32 = 0xa282_ead8;

/// The masked CRC-32C of `bytes`. Masking keeps the checksum strong over bytes that contain
/// checksums themselves.
fn masked_checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK_DELTA).to_le_bytes()
}

/// The length of the record's content that follows `header`, in bytes; `None` if its checksum is
/// wrong.
#[must_use]
pub fn record_length(header: &[u8; HEADER]) -> Option<u64> {
    let (length, checksum) = header.split_first_chunk::<LENGTH>()?;
    is_intact(length, checksum).then_some(u64::from_le_bytes(*length))
}

/// Whether `checksum` is the one that follows `content`.
#[must_use]
pub fn is_intact(content: &[u8], checksum: &[u8]) -> bool {
    masked_checksum(content) == checksum
}

/// Appends `record` to `out` with its length and checksums.
pub fn append(record: &[u8], out: &mut Vec<u8>) {
    let length = u64::try_from(record.len()).unwrap_or(u64::MAX).to_le_bytes();
    out.reserve(HEADER + record.len() + CHECKSUM);
    out.extend_from_slice(&length);
    out.extend_from_slice(&masked_checksum(&length));
    out.extend_from_slice(record);
    out.extend_from_slice(&masked_checksum(record));
}

/// Reads records in sequence, from a file or from memory.
pub struct TfRecordReader<R> {
    source: R,
    /// The byte at which the next record starts.
    offset: u64,
    max_length: usize,
}

impl<R: Read> TfRecordReader<R> {
    /// A reader that refuses records of more than `max_length` bytes.
    pub fn new(source: R, max_length: usize) -> Self {
        TfRecordReader { source, offset: 0, max_length }
    }

    /// Reads the next record into `record`, whose content it replaces; false at the end of the
    /// source. Memory grows with the bytes that are read, not with the length that a record
    /// declares. Nothing can be read after an error.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if the record is truncated or a checksum is wrong,
    /// [`Code::InvalidArgument`] if it is too long, or the error of the source.
    pub fn next(&mut self, record: &mut Vec<u8>) -> Result<bool> {
        let start = self.offset;
        if !self.read_checked(LENGTH, start, record)? {
            return Ok(false);
        }
        let length = record.as_slice().try_into().map_or(u64::MAX, u64::from_le_bytes);
        let max_length = self.max_length;
        let Some(length) = usize::try_from(length).ok().filter(|&length| length <= max_length)
        else {
            return Err(Error::invalid(format!(
                "record at {start} has {length} bytes, which is more than {max_length}"
            )));
        };
        // As in the reference, errors in the content give the offset of the content.
        let content_start = start.saturating_add(HEADER as u64);
        if !self.read_checked(length, content_start, record)? {
            let message = format!("truncated record at {start}' failed with eof");
            return Err(Error::new(Code::DataLoss, message));
        }
        self.offset = content_start.saturating_add((length + CHECKSUM) as u64);
        Ok(true)
    }

    /// Reads `count` bytes into `bytes` and verifies the checksum after them; false at the end of
    /// the source.
    fn read_checked(&mut self, count: usize, at: u64, bytes: &mut Vec<u8>) -> Result<bool> {
        bytes.clear();
        let limit = u64::try_from(count.saturating_add(CHECKSUM)).unwrap_or(u64::MAX);
        let read = self.source.by_ref().take(limit).read_to_end(bytes);
        read.map_err(|error| read_error(error, at))?;
        if bytes.is_empty() {
            return Ok(false);
        }
        let Some((content, checksum)) = bytes.split_at_checked(count) else {
            return Err(damaged("truncated", at));
        };
        if checksum.len() != CHECKSUM {
            return Err(damaged("truncated", at));
        }
        if !is_intact(content, checksum) {
            return Err(damaged("corrupted", at));
        }
        bytes.truncate(count);
        Ok(true)
    }
}

/// The reference's error for a "truncated" or "corrupted" record.
fn damaged(state: &str, at: u64) -> Error {
    let hint = if at == 0 { " (Is this even a TFRecord file?)" } else { "" };
    Error::new(Code::DataLoss, format!("{state} record at {at}{hint}"))
}

fn read_error(error: std::io::Error, at: u64) -> Error {
    // A decompressing source reports corrupt data with these kinds.
    let is_corrupt = matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof);
    let code = if is_corrupt { Code::DataLoss } else { Code::of_io(&error) };
    Error::new(code, format!("record at {at} cannot be read: {error}")).with_source(error)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(records: &[&[u8]]) -> Vec<u8> {
        let mut file = Vec::new();
        records.iter().for_each(|record| append(record, &mut file));
        file
    }

    fn read(file: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (mut reader, mut record) = (TfRecordReader::new(file, 1000), b"left over".to_vec());
        let mut all = Vec::new();
        while reader.next(&mut record)? {
            all.push(record.clone());
        }
        Ok(all)
    }

    fn error(file: &[u8]) -> (Code, String) {
        let error = read(file).expect_err("refused");
        (error.code(), error.message().to_owned())
    }

    #[test]
    fn records_are_framed_as_tensorflow_does() {
        // Written by tf.io.TFRecordWriter.
        let file = b"\x02\0\0\0\0\0\0\0\x78\x27\x0b\x34\x2a\0\x4e\x54\x8f\x71";
        assert_eq!(framed(&[b"\x2a\0"]), file);
        assert_eq!(read(file).expect("whole"), [b"\x2a\0"]);
        assert_eq!(read(b"").expect("whole"), [b""; 0]);
        assert_eq!(read(&framed(&[b"", b"", b"a"])).expect("whole"), [&b""[..], b"", b"a"]);
    }

    #[test]
    fn damage_is_told_with_its_place() {
        let hint = " (Is this even a TFRecord file?)";
        let (code, message) = error(b"this is not a tfrecord file at all, just text");
        assert_eq!((code, message), (Code::DataLoss, format!("corrupted record at 0{hint}")));
        assert_eq!(error(b"short").1, format!("truncated record at 0{hint}"));
        let whole = framed(&[b"abc", b"defg"]);
        let cut = |length: usize| error(whole.get(..length).expect("shorter")).1;
        assert_eq!(cut(11), format!("truncated record at 0{hint}"));
        assert_eq!(cut(12), "truncated record at 0' failed with eof");
        assert_eq!(cut(13), "truncated record at 12");
        assert_eq!(cut(18), "truncated record at 12");
        assert_eq!(cut(20), "truncated record at 19");
        assert_eq!(cut(31), "truncated record at 19' failed with eof");
        let mut changed = whole.clone();
        *changed.get_mut(13).expect("inside") ^= 1;
        assert_eq!(error(&changed), (Code::DataLoss, "corrupted record at 12".to_owned()));
    }

    #[test]
    fn a_long_record_is_refused_before_it_is_read() {
        let length = u64::MAX.to_le_bytes();
        let file = [&length[..], &masked_checksum(&length)].concat();
        let (code, message) = error(&file);
        assert_eq!(code, Code::InvalidArgument);
        assert_eq!(message, format!("record at 0 has {} bytes, which is more than 1000", u64::MAX));
        assert!(read(&framed(&[&[7; 1000]])).is_ok());
        assert!(read(&framed(&[&[7; 1001]])).is_err());
    }

    #[test]
    fn a_length_takes_no_memory_by_itself() {
        let length = (1u64 << 40).to_le_bytes();
        let file = [&length[..], &masked_checksum(&length), b"few"].concat();
        let mut record = Vec::new();
        let mut reader = TfRecordReader::new(file.as_slice(), 1 << 50);
        let error = reader.next(&mut record).expect_err("cut off");
        assert_eq!(error.message(), "truncated record at 12");
        assert!(record.capacity() < 1 << 20, "{}", record.capacity());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(records: Vec<Vec<u8>>) {
            let slices: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(read(&framed(&slices)).expect("whole"), records);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = read(&bytes);
        }

        #[test]
        fn a_changed_byte_is_seen(at in 0usize..48, bit in 0u8..8) {
            let mut file = framed(&[b"0123456789", b"abcdef"]);
            let byte = file.get_mut(at).expect("inside");
            *byte ^= 1 << bit;
            prop_assert!(read(&file).is_err());
        }
    }
}
