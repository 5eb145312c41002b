//! Zip archives, in memory or in a file, whose files are read by name.
//!
//! Source: PKWARE's APPNOTE 6.3, with its 64-bit sizes. Archives of several disks and encryption are refused.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use flate2::bufread::DeflateDecoder;

use tensorserve_tensor::error::{Code, Error, Result};

/// The magic number of a file in an archive, with which archives start.
pub const MAGIC: &[u8] = b"PK\x03\x04";

const END: &[u8] = b"PK\x05\x06";
const END_64: &[u8] = b"PK\x06\x06";
const LOCATOR_64: &[u8] = b"PK\x06\x07";
const ENTRY: &[u8] = b"PK\x01\x02";

/// The sizes of these records without their variable parts.
const END_SIZE: usize = 22;
const END_64_SIZE: usize = 56;
const LOCATOR_64_SIZE: usize = 20;
const ENTRY_SIZE: usize = 46;
const HEADER_SIZE: usize = 30;

/// The extra field with 64-bit sizes, and what stands for them.
const EXTRA_64: u64 = 1;
const IN_EXTRA_64: u64 = 0xFFFF_FFFF;

/// How many entries stand for that many or more.
const MANY_ENTRIES: u64 = 0xFFFF;

/// The longest comment at the end of an archive.
const LONGEST_COMMENT: usize = 65_535;

/// The largest directory that is read.
const LARGEST_DIRECTORY: u64 = 64 << 20;

/// Where the bytes of an archive are.
pub trait ZipSource {
    /// Their number.
    ///
    /// # Errors
    /// If it cannot be read.
    fn length(&self) -> Result<u64>;

    /// The `size` bytes from `at` on.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if the archive ends before.
    fn read_at(&self, at: u64, size: u64) -> Result<Bytes>;
}

impl ZipSource for Bytes {
    fn length(&self) -> Result<u64> {
        Ok(u64::try_from(self.len()).unwrap_or(u64::MAX))
    }

    fn read_at(&self, at: u64, size: u64) -> Result<Bytes> {
        let start = usize::try_from(at).ok();
        let end = at.checked_add(size).and_then(|end| usize::try_from(end).ok());
        let range = start.zip(end).filter(|(_, end)| *end <= self.len());
        range.map(|(start, end)| self.slice(start..end)).ok_or_else(|| damaged("it is cut off"))
    }
}

impl ZipSource for File {
    fn length(&self) -> Result<u64> {
        Ok(self.metadata().map_err(failed)?.len())
    }

    fn read_at(&self, at: u64, size: u64) -> Result<Bytes> {
        // Before the memory for it is taken.
        let end =
            at.checked_add(size).filter(|end| self.length().is_ok_and(|length| *end <= length));
        let size = usize::try_from(size).ok().filter(|_| end.is_some());
        let mut bytes = vec![0; size.ok_or_else(|| damaged("it is cut off"))?];
        self.read_exact_at(&mut bytes, at).map_err(failed)?;
        Ok(bytes.into())
    }
}

fn failed(e: std::io::Error) -> Error {
    Error::new(Code::of_io(&e), e.to_string()).with_source(e)
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Code::DataLoss, format!("the zip file is damaged: {what}"))
}

/// The little-endian number of `size` bytes at `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(size)?)?;
    Some(field.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
}

/// An archive, whose directory has been read.
#[derive(Debug)]
pub struct ZipArchive<S> {
    source: S,
    entries: Vec<ZipEntry>,
    by_name: HashMap<String, usize>,
}

#[derive(Clone, Debug)]
struct ZipEntry {
    name: String,
    method: u64,
    packed: u64,
    size: u64,
    header: u64,
}

impl<S: ZipSource> ZipArchive<S> {
    /// Reads the directory of an archive.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if it is damaged, or has two files of one name: programs choose different ones.
    pub fn open(source: S) -> Result<Self> {
        let Directory { content, count } = Directory::read(&source)?;
        let mut entries = Vec::new();
        let mut by_name = HashMap::new();
        let mut rest: &[u8] = &content;
        while rest.starts_with(ENTRY) {
            let parsed = parse_entry(rest);
            let (entry, length) = parsed.ok_or_else(|| damaged("an entry is not valid"))?;
            if by_name.insert(entry.name.clone(), entries.len()).is_some() {
                return Err(damaged(format_args!("it has two files {:?}", entry.name)));
            }
            entries.push(entry);
            rest = rest.get(length..).unwrap_or_default();
        }
        let found = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        if count != MANY_ENTRIES && found & MANY_ENTRIES != count {
            return Err(damaged("its directory is not complete"));
        }
        Ok(ZipArchive { source, entries, by_name })
    }

    /// The names of all files, in the order of the directory.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Whether the archive has a file `name`.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The content of the file `name`, of at most `most` bytes.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if the file is missing or damaged, [`Code::ResourceExhausted`] if it is larger than
    /// `most`, [`Code::Unimplemented`] if it is compressed with another method than deflate.
    pub fn read(&self, name: &str, most: usize) -> Result<Bytes> {
        let entry = self.by_name.get(name).and_then(|index| self.entries.get(*index));
        let entry = entry.ok_or_else(|| damaged(format_args!("it has no file {name:?}")))?;
        // Deflate makes small files a little larger.
        let most_packed = most.saturating_add(most / 8).saturating_add(64);
        let is_within = |size, most| usize::try_from(size).is_ok_and(|size| size <= most);
        if !is_within(entry.size, most) || !is_within(entry.packed, most_packed) {
            let message = format!("{name} in the zip file has more than {most} bytes");
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        let packed = self.packed(entry)?;
        let content = match entry.method {
            0 => packed,
            8 => inflated(&packed, entry.size)?,
            method => {
                let message = format!("{name} has the compression method {method}");
                return Err(Error::new(Code::Unimplemented, message));
            }
        };
        match u64::try_from(content.len()) == Ok(entry.size) {
            true => Ok(content),
            false => Err(damaged(format_args!("{name} has another size than the directory says"))),
        }
    }

    fn packed(&self, entry: &ZipEntry) -> Result<Bytes> {
        let cut_off = || damaged(format_args!("{} is cut off", entry.name));
        let size = u64::try_from(HEADER_SIZE).unwrap_or(u64::MAX);
        let header = self.source.read_at(entry.header, size).map_err(|_| cut_off())?;
        let lengths = number(&header, 26, 2).zip(number(&header, 28, 2));
        let (name, extra) = lengths.filter(|_| header.starts_with(MAGIC)).ok_or_else(cut_off)?;
        let start = entry.header.checked_add(size + name + extra).ok_or_else(cut_off)?;
        self.source.read_at(start, entry.packed).map_err(|_| cut_off())
    }
}

/// The directory at the end of an archive.
struct Directory {
    content: Bytes,
    /// The lower 16 bits of the number of its entries, or [`MANY_ENTRIES`].
    count: u64,
}

impl Directory {
    fn read(source: &impl ZipSource) -> Result<Self> {
        let length = source.length()?;
        let most = (END_SIZE + LONGEST_COMMENT + LOCATOR_64_SIZE) as u64;
        let tail = source.read_at(length.saturating_sub(most), length.min(most))?;
        let end = memchr::memmem::rfind(&tail, END).filter(|end| end + END_SIZE <= tail.len());
        let end = end.ok_or_else(|| damaged("it has no directory"))?;
        let incomplete = || damaged("its directory is not complete");
        let count = number(&tail, end + 10, 2).ok_or_else(incomplete)?;
        let mut place = number(&tail, end + 12, 4).zip(number(&tail, end + 16, 4));
        let is_64 = place.is_some_and(|(size, at)| size == IN_EXTRA_64 || at == IN_EXTRA_64);
        let locator = end.checked_sub(LOCATOR_64_SIZE).and_then(|at| tail.get(at..end));
        if let Some(locator) = locator.filter(|found| is_64 && found.starts_with(LOCATOR_64)) {
            let at = number(locator, 8, 8).unwrap_or(u64::MAX);
            let record = source.read_at(at, END_64_SIZE as u64)?;
            place = number(&record, 40, 8).zip(number(&record, 48, 8));
            place = place.filter(|_| record.starts_with(END_64));
        }
        let (size, at) = place.ok_or_else(incomplete)?;
        if size > LARGEST_DIRECTORY {
            return Err(damaged("its directory is too large"));
        }
        Ok(Directory { content: source.read_at(at, size)?, count })
    }
}

/// An entry of the directory, and its length.
fn parse_entry(bytes: &[u8]) -> Option<(ZipEntry, usize)> {
    let field = |at, size| number(bytes, at, size);
    let is_encrypted = field(8, 2)? & 1 == 1;
    let size_of = |at| usize::try_from(field(at, 2)?).ok();
    let name_end = ENTRY_SIZE.checked_add(size_of(28)?)?;
    let extra_end = name_end.checked_add(size_of(30)?)?;
    let mut entry = ZipEntry {
        name: std::str::from_utf8(bytes.get(ENTRY_SIZE..name_end)?).ok()?.to_owned(),
        method: field(10, 2)?,
        packed: field(20, 4)?,
        size: field(24, 4)?,
        header: field(42, 4)?,
    };
    widen(&mut entry, bytes.get(name_end..extra_end)?)?;
    let length = extra_end.checked_add(size_of(32)?)?;
    (!is_encrypted && length <= bytes.len()).then_some((entry, length))
}

/// Takes the 64-bit sizes of an entry from its extra fields.
fn widen(entry: &mut ZipEntry, mut extra: &[u8]) -> Option<()> {
    while extra.len() >= 4 {
        let (kind, size) = (number(extra, 0, 2)?, usize::try_from(number(extra, 2, 2)?).ok()?);
        let content = extra.get(4..size.checked_add(4)?)?;
        if kind == EXTRA_64 {
            let mut at = 0;
            for value in [&mut entry.size, &mut entry.packed, &mut entry.header] {
                if *value == IN_EXTRA_64 {
                    *value = number(content, at, 8)?;
                    at += 8;
                }
            }
        }
        extra = extra.get(size + 4..)?;
    }
    Some(())
}

fn inflated(packed: &[u8], size: u64) -> Result<Bytes> {
    let mut content = Vec::new();
    let read = DeflateDecoder::new(packed).take(size.saturating_add(1)).read_to_end(&mut content);
    read.map_err(|error| damaged(&error).with_source(error))?;
    Ok(content.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::DeflateEncoder;
    use std::io::Write;

    /// An archive of these files, each compressed or not.
    fn zip(files: &[(&str, &[u8], bool)]) -> Vec<u8> {
        let (mut bytes, mut directory) = (Vec::new(), Vec::new());
        for (name, content, is_packed) in files {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(content).expect("in memory");
            let deflated = encoder.finish().expect("in memory");
            let (method, packed) =
                if *is_packed { (8_u16, &deflated[..]) } else { (0, &content[..]) };
            let word = |size: usize| u32::try_from(size).expect("small").to_le_bytes();
            let half = |size: usize| u16::try_from(size).expect("small").to_le_bytes();
            let offset = bytes.len();
            let mut fields = method.to_le_bytes().to_vec();
            fields.extend([0; 8]);
            fields.extend([word(packed.len()), word(content.len())].concat());
            fields.extend([half(name.len()), half(0)].concat());
            bytes.extend([MAGIC, &[20, 0, 0, 0], &fields, name.as_bytes(), packed].concat());
            let place = [&[0; 10][..], &word(offset)].concat();
            directory
                .extend([ENTRY, &[20, 0, 20, 0, 0, 0], &fields, &place, name.as_bytes()].concat());
        }
        let (at, size) = (bytes.len(), directory.len());
        let word = |size: usize| u32::try_from(size).expect("small").to_le_bytes();
        let count = u16::try_from(files.len()).expect("few").to_le_bytes();
        bytes.extend(directory);
        bytes.extend([END, &[0; 4], &count, &count, &word(size), &word(at), &[0, 0]].concat());
        bytes
    }

    fn open(bytes: Vec<u8>) -> Result<ZipArchive<Bytes>> {
        ZipArchive::open(Bytes::from(bytes))
    }

    fn sample() -> Vec<u8> {
        zip(&[("a/stored", b"as it is", false), ("a/packed", &[7; 3000], true)])
    }

    #[test]
    fn files_are_read_by_name_from_memory_and_from_files() {
        let archive = open(sample()).expect("an archive");
        assert_eq!(archive.names().collect::<Vec<_>>(), ["a/stored", "a/packed"]);
        assert!(archive.contains("a/packed") && !archive.contains("a"));
        assert_eq!(&archive.read("a/stored", 100).expect("there")[..], b"as it is");
        let path = std::env::temp_dir().join(format!("tensorserve-zip-{}", std::process::id()));
        std::fs::write(&path, sample()).expect("written");
        let archive = ZipArchive::open(File::open(&path).expect("a file")).expect("an archive");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(&archive.read("a/packed", 3000).expect("there")[..], [7; 3000]);
        let code = |name, most| archive.read(name, most).expect_err("refused").code();
        assert_eq!(code("a/packed", 2999), Code::ResourceExhausted);
        assert_eq!(code("b", 2999), Code::DataLoss);
    }

    #[test]
    fn two_files_of_one_name_are_refused() {
        let error = open(zip(&[("a", b"1", false), ("a", b"2", false)])).expect_err("refused");
        assert_eq!(error.message(), "the zip file is damaged: it has two files \"a\"");
    }

    #[test]
    fn damaged_archives_are_errors() {
        let whole = sample();
        let read_all = |bytes: Vec<u8>| {
            if let Ok(archive) = open(bytes) {
                for name in archive.names() {
                    let _ = archive.read(name, 1 << 20);
                }
            }
        };
        for end in 0..whole.len() {
            assert!(open(whole[..end].to_vec()).is_err(), "{end}");
        }
        for place in 0..whole.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[place] = value;
                read_all(changed);
            }
        }
        let mut fewer = whole.clone();
        let count = fewer.len() - END_SIZE + 10;
        fewer[count] = 3;
        assert!(open(fewer).expect_err("refused").message().contains("not complete"));
    }
}
