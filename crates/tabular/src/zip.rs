//! Zip archives, whose files are read by name.
//!
//! Source: PKWARE's APPNOTE 6.3. Archives of several disks, encryption and 64-bit sizes are refused.

use std::collections::HashMap;
use std::io::Read;

use bytes::Bytes;
use flate2::bufread::DeflateDecoder;

use tensorserve_tensor::error::{Code, Error, Result};

/// The magic number of a file in an archive, with which archives start.
pub(crate) const MAGIC: &[u8] = b"PK\x03\x04";

const END_OF_DIRECTORY: &[u8] = b"PK\x05\x06";
const DIRECTORY_ENTRY: &[u8] = b"PK\x01\x02";

/// The sizes of these records without their variable parts.
const END_SIZE: usize = 22;
const ENTRY_SIZE: usize = 46;
const HEADER_SIZE: usize = 30;

/// How many entries stand for that many or more.
const MANY_ENTRIES: usize = 0xFFFF;

/// The longest comment at the end of an archive.
const LONGEST_COMMENT: usize = 65_535;

/// An archive.
pub(crate) struct ZipArchive {
    bytes: Bytes,
    entries: HashMap<String, ZipEntry>,
}

#[derive(Clone, Copy)]
struct ZipEntry {
    method: u16,
    packed: usize,
    size: usize,
    header: usize,
}

fn damaged(what: &str) -> Error {
    Error::new(Code::DataLoss, format!("the zip file is damaged: {what}"))
}

/// The little-endian number of `size` bytes at `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<usize> {
    let field = bytes.get(at..at.checked_add(size)?)?;
    Some(field.iter().rev().fold(0, |value, byte| (value << 8) | usize::from(*byte)))
}

impl ZipArchive {
    /// Reads the directory of an archive.
    pub(crate) fn open(bytes: Bytes) -> Result<Self> {
        let start = bytes.len().saturating_sub(END_SIZE + LONGEST_COMMENT);
        let tail = bytes.get(start..).unwrap_or_default();
        let end = memchr::memmem::rfind(tail, END_OF_DIRECTORY);
        let end = start + end.ok_or_else(|| damaged("it has no directory"))?;
        let field = |at: usize, size| number(&bytes, end + at, size);
        let (Some(count), Some(mut at)) = (field(10, 2), field(16, 4)) else {
            return Err(damaged("its directory is not complete"));
        };
        let mut entries = HashMap::new();
        let mut number = 0;
        loop {
            let entry = bytes.get(at..).filter(|rest| rest.starts_with(DIRECTORY_ENTRY));
            if number >= count && (count < MANY_ENTRIES || entry.is_none()) {
                break;
            }
            number += 1;
            let parsed = entry.and_then(parse_entry);
            let (name, entry, length) = parsed.ok_or_else(|| damaged("an entry is not valid"))?;
            entries.insert(name, entry);
            at = at.saturating_add(length);
        }
        Ok(ZipArchive { bytes, entries })
    }

    /// The names of all files.
    #[cfg(all(test, feature = "h2o"))]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Whether the archive has a file `name`.
    #[cfg(feature = "h2o")]
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The content of the file `name`, of at most `max_bytes`.
    pub(crate) fn read(&self, name: &str, max_bytes: usize) -> Result<Bytes> {
        let missing = || damaged(&format!("it has no file {name:?}"));
        let entry = self.entries.get(name).copied().ok_or_else(missing)?;
        if entry.size > max_bytes {
            let message = format!("{name} in the zip file has more than {max_bytes} bytes");
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        let packed = self.packed(entry).ok_or_else(|| damaged(&format!("{name} is cut off")))?;
        let content = match entry.method {
            0 => packed,
            8 => inflated(&packed, entry.size)?,
            method => {
                let message = format!("{name} has the compression method {method}");
                return Err(Error::new(Code::Unimplemented, message));
            }
        };
        match content.len() == entry.size {
            true => Ok(content),
            false => Err(damaged(&format!("{name} has another size than the directory says"))),
        }
    }

    fn packed(&self, entry: ZipEntry) -> Option<Bytes> {
        let header = self.bytes.get(entry.header..)?;
        header.starts_with(MAGIC).then_some(())?;
        let variable = number(header, 26, 2)?.checked_add(number(header, 28, 2)?)?;
        let start = entry.header.checked_add(HEADER_SIZE)?.checked_add(variable)?;
        let end = start.checked_add(entry.packed).filter(|end| *end <= self.bytes.len())?;
        Some(self.bytes.slice(start..end))
    }
}

/// The name of an entry of the directory, where its data is, and the length of the entry.
fn parse_entry(bytes: &[u8]) -> Option<(String, ZipEntry, usize)> {
    let field = |at, size| number(bytes, at, size);
    let entry = ZipEntry {
        method: u16::try_from(field(10, 2)?).ok()?,
        packed: field(20, 4)?,
        size: field(24, 4)?,
        header: field(42, 4)?,
    };
    let is_encrypted = field(8, 2)? & 1 == 1;
    let name_end = ENTRY_SIZE.checked_add(field(28, 2)?)?;
    let name = std::str::from_utf8(bytes.get(ENTRY_SIZE..name_end)?).ok()?.to_owned();
    let length = name_end.checked_add(field(30, 2)?)?.checked_add(field(32, 2)?)?;
    (!is_encrypted).then_some((name, entry, length))
}

fn inflated(packed: &[u8], size: usize) -> Result<Bytes> {
    let limit = u64::try_from(size).unwrap_or(u64::MAX).saturating_add(1);
    let mut content = Vec::new();
    let read = DeflateDecoder::new(packed).take(limit).read_to_end(&mut content);
    read.map_err(|error| damaged(&error.to_string()).with_source(error))?;
    Ok(content.into())
}
