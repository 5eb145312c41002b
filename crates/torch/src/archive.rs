//! Zip archives that PyTorch writes. Only their directory and small files are read here: the weights are
//! read by libtorch.
//!
//! Source: PKWARE's APPNOTE 6.3, with its 64-bit sizes.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::bufread::DeflateDecoder;

use tensorserve_tensor::error::{Code, Error, Result};

/// The first bytes of an archive.
pub(crate) const MAGIC: &[u8] = b"PK\x03\x04";

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

/// The extra field with 64-bit sizes.
const EXTRA_64: u64 = 1;

/// The longest comment at the end of an archive.
const LONGEST_COMMENT: usize = 65_535;

/// The largest directory that is read.
const LARGEST_DIRECTORY: u64 = 64 << 20;

/// An archive, whose directory has been read.
#[derive(Debug)]
pub(crate) struct Archive {
    file: File,
    /// The directory that all files of the archive are in, with a slash at the end.
    root: String,
    entries: Vec<ArchiveEntry>,
}

#[derive(Debug)]
struct ArchiveEntry {
    name: String,
    method: u64,
    packed: u64,
    size: u64,
    header: u64,
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(Code::DataLoss, format!("the zip file is damaged: {what}"))
}

/// The little-endian number of `size` bytes at `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(size)?)?;
    Some(field.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
}

impl Archive {
    /// Reads the directory of the archive at `path`.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged, or a name in it leads out of a directory.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let directory = directory(&file, length)?;
        let mut entries = Vec::new();
        let mut rest = directory.as_slice();
        while rest.starts_with(ENTRY) {
            let (entry, size) =
                parse_entry(rest).ok_or_else(|| damaged("an entry is not valid"))?;
            check_name(&entry.name)?;
            entries.push(entry);
            rest = rest.get(size..).unwrap_or_default();
        }
        if entries.is_empty() {
            return Err(damaged("it has no files"));
        }
        let first = entries.first().and_then(|entry| entry.name.split_once('/'));
        let root = first.map_or(String::new(), |(root, _)| format!("{root}/"));
        Ok(Archive { file, root, entries })
    }

    /// The names of all files, without the directory that they are in.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| self.inner(&entry.name))
    }

    fn inner<'a>(&self, name: &'a str) -> &'a str {
        name.strip_prefix(&self.root).unwrap_or(name)
    }

    /// The content of the file `name`, of at most `most` bytes. The name is one of [`Archive::names`].
    ///
    /// # Errors
    /// If the archive has no file of that name, or the file is damaged or has more than `most` bytes.
    pub(crate) fn read(&self, name: &str, most: u64) -> Result<Vec<u8>> {
        let found = self.entries.iter().find(|entry| self.inner(&entry.name) == name);
        let entry = found.ok_or_else(|| damaged(format_args!("it has no file {name:?}")))?;
        if entry.size > most || entry.packed > most {
            let message = format!("{name} in the zip file has more than {most} bytes");
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        let packed = self.packed(entry)?;
        let content = match entry.method {
            0 => packed,
            8 => inflated(&packed, entry.size)?,
            method => {
                return Err(damaged(format_args!("{name} has the compression method {method}")));
            }
        };
        match content.len() as u64 == entry.size {
            true => Ok(content),
            false => Err(damaged(format_args!("{name} has another size than the directory says"))),
        }
    }

    fn packed(&self, entry: &ArchiveEntry) -> Result<Vec<u8>> {
        let header = read_at(&self.file, entry.header, HEADER_SIZE)?;
        let cut_off = || damaged(format_args!("{} is cut off", entry.name));
        let lengths = number(&header, 26, 2).zip(number(&header, 28, 2));
        let (name, extra) = lengths.filter(|_| header.starts_with(MAGIC)).ok_or_else(cut_off)?;
        let start = entry.header.checked_add(HEADER_SIZE as u64 + name + extra);
        let length = self.file.metadata().map_err(failed)?.len();
        let end = start.and_then(|start| start.checked_add(entry.packed));
        // Before the memory for it is taken.
        let start = start.filter(|_| end.is_some_and(|end| end <= length)).ok_or_else(cut_off)?;
        read_at(&self.file, start, usize::try_from(entry.packed).map_err(|_| cut_off())?)
    }
}

fn failed(e: std::io::Error) -> Error {
    Error::new(Code::of_io(&e), e.to_string()).with_source(e)
}

fn read_at(file: &File, at: u64, size: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, at).map_err(|e| damaged("it is cut off").with_source(e))?;
    Ok(bytes)
}

/// The directory of an archive of `length` bytes.
fn directory(file: &File, length: u64) -> Result<Vec<u8>> {
    let most = END_SIZE + LONGEST_COMMENT + LOCATOR_64_SIZE;
    let tail_size = usize::try_from(length).unwrap_or(most).min(most);
    let tail = read_at(file, length.saturating_sub(tail_size as u64), tail_size)?;
    let end = memchr::memmem::rfind(&tail, END).filter(|end| end + END_SIZE <= tail.len());
    let end = end.ok_or_else(|| damaged("it has no directory"))?;
    let mut place = number(&tail, end + 12, 4).zip(number(&tail, end + 16, 4));
    let is_64 = place.is_some_and(|(size, at)| size == 0xFFFF_FFFF || at == 0xFFFF_FFFF);
    let locator = end.checked_sub(LOCATOR_64_SIZE).and_then(|at| tail.get(at..end));
    if let Some(locator) = locator.filter(|found| is_64 && found.starts_with(LOCATOR_64)) {
        let at = number(locator, 8, 8).unwrap_or(u64::MAX);
        let record = read_at(file, at, END_64_SIZE)?;
        place = number(&record, 40, 8).zip(number(&record, 48, 8));
        place = place.filter(|_| record.starts_with(END_64));
    }
    let (size, at) = place.ok_or_else(|| damaged("its directory is not complete"))?;
    if at.checked_add(size).is_none_or(|end| end > length) || size > LARGEST_DIRECTORY {
        return Err(damaged("its directory is not where it should be"));
    }
    read_at(file, at, usize::try_from(size).unwrap_or(usize::MAX))
}

/// An entry of the directory, and its length.
fn parse_entry(bytes: &[u8]) -> Option<(ArchiveEntry, usize)> {
    let field = |at, size| number(bytes, at, size);
    let is_encrypted = field(8, 2)? & 1 == 1;
    let size_of = |at| usize::try_from(field(at, 2)?).ok();
    let name_end = ENTRY_SIZE.checked_add(size_of(28)?)?;
    let extra_end = name_end.checked_add(size_of(30)?)?;
    let mut entry = ArchiveEntry {
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
fn widen(entry: &mut ArchiveEntry, mut extra: &[u8]) -> Option<()> {
    while extra.len() >= 4 {
        let (kind, size) = (number(extra, 0, 2)?, usize::try_from(number(extra, 2, 2)?).ok()?);
        let content = extra.get(4..size.checked_add(4)?)?;
        if kind == EXTRA_64 {
            let mut at = 0;
            for value in [&mut entry.size, &mut entry.packed, &mut entry.header] {
                if *value == 0xFFFF_FFFF {
                    *value = number(content, at, 8)?;
                    at += 8;
                }
            }
        }
        extra = extra.get(size + 4..)?;
    }
    Some(())
}

/// Refuses names that lead out of the directory into which an archive is unpacked: libtorch unpacks
/// packages.
fn check_name(name: &str) -> Result<()> {
    let leads_out = name.starts_with('/')
        || name.contains(['\\', '\0'])
        || name.split('/').any(|part| part == "..");
    match leads_out {
        true => Err(damaged(format_args!("the name {name:?} leads out of it"))),
        false => Ok(()),
    }
}

fn inflated(packed: &[u8], size: u64) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let read = DeflateDecoder::new(packed).take(size.saturating_add(1)).read_to_end(&mut content);
    read.map_err(|error| damaged(&error).with_source(error))?;
    Ok(content)
}
