//! The files inside a MOJO: a zip archive. A model within a model (of an ensemble) has its files in a
//! folder of it.

use std::cell::Cell;

use bytes::Bytes;

use tensorserve_codec::zip::ZipArchive;
use tensorserve_tensor::error::{Code, Error, Result};

/// How many times as large as the archive its files may be, all together, when they are unpacked:
/// trees and texts shrink to a third, hardly ever to a tenth.
const MAX_EXPANSION: usize = 20;

/// What they may have in any case, in bytes: small archives may expand to more.
const MIN_BUDGET: usize = 2 << 20;

/// The archive of a MOJO.
pub(super) struct MojoArchive {
    zip: ZipArchive<Bytes>,
    /// How many bytes may still be unpacked.
    budget: Cell<usize>,
}

impl MojoArchive {
    /// Reads the directory of the archive.
    pub(super) fn open(bytes: Vec<u8>) -> Result<Self> {
        let budget = bytes.len().saturating_mul(MAX_EXPANSION).max(MIN_BUDGET);
        Ok(MojoArchive { zip: ZipArchive::open(Bytes::from(bytes))?, budget: Cell::new(budget) })
    }

    /// The paths of all files.
    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.zip.names().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// The files of the model itself.
    pub(super) fn root(&self) -> MojoFiles<'_> {
        MojoFiles { archive: self, folder: String::new() }
    }
}

/// The files of a model.
pub(super) struct MojoFiles<'a> {
    archive: &'a MojoArchive,
    /// Empty, or ends in `/`.
    folder: String,
}

impl<'a> MojoFiles<'a> {
    /// The files in `folder`, as the model names it.
    pub(super) fn within(&self, folder: &str) -> MojoFiles<'a> {
        MojoFiles { archive: self.archive, folder: format!("{}{folder}", self.folder) }
    }

    /// Whether this is a model within a model.
    pub(super) fn is_nested(&self) -> bool {
        !self.folder.is_empty()
    }

    /// Whether the model has a file `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.archive.zip.contains(&self.path(name))
    }

    /// The content of the file `name`.
    pub(super) fn read(&self, name: &str) -> Result<Bytes> {
        let budget = &self.archive.budget;
        let content = self.archive.zip.read(&self.path(name), budget.get()).map_err(|error| {
            if error.code() != Code::ResourceExhausted {
                return error;
            }
            Error::damaged(format!(
                "its files are more than {MAX_EXPANSION} times as large as the archive"
            ))
        })?;
        budget.set(budget.get().saturating_sub(content.len()));
        Ok(content)
    }

    /// The lines of the text file `name`.
    pub(super) fn lines(&self, name: &str) -> Result<Vec<String>> {
        let content = self.read(name)?;
        let text = std::str::from_utf8(&content).map_err(|error| {
            let at = error.valid_up_to();
            Error::damaged(format!("{} is not UTF-8 at byte {at}", self.path(name)))
        })?;
        Ok(lines(text).map(str::to_owned).collect())
    }

    /// The lines of the text file `name`, in which line breaks are escaped. There must be `count`.
    pub(super) fn escaped_lines(&self, name: &str, count: usize) -> Result<Vec<String>> {
        let lines = self.lines(name)?;
        if lines.len() != count {
            let (path, has) = (self.path(name), lines.len());
            return Err(Error::damaged(format!(
                "{path} has {has} lines, and model.ini says {count}"
            )));
        }
        Ok(lines.iter().map(|line| unescaped(line)).collect())
    }

    /// The 64-bit floats, big-endian, of the file `name`, after their number.
    pub(super) fn counted_floats(&self, name: &str) -> Result<Vec<f64>> {
        let content = self.read(name)?;
        let short = || Error::damaged(format!("{} is too short", self.path(name)));
        let (count, rest) = content.split_first_chunk().ok_or_else(short)?;
        let count = usize::try_from(i32::from_be_bytes(*count)).map_err(|_| short())?;
        let numbers = rest.as_chunks().0.get(..count).ok_or_else(short)?;
        Ok(numbers.iter().map(|bytes| f64::from_be_bytes(*bytes)).collect())
    }

    fn path(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }
}

/// The lines of a text, which end as Java's readers have it: with `\n`, `\r` or both.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text).filter(|text| !text.is_empty());
    std::iter::from_fn(move || {
        let text = rest?;
        let Some(end) = text.find(['\n', '\r']) else {
            rest = None;
            return Some(text);
        };
        let (line, after) = text.split_at_checked(end)?;
        let after = after.strip_prefix("\r\n").or_else(|| after.get(1..)).unwrap_or_default();
        rest = Some(after).filter(|after| !after.is_empty());
        Some(line)
    })
}

/// `line` with its line breaks and backslashes as they were.
pub(super) fn unescaped(line: &str) -> String {
    let mut result = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            result.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => result.push('\n'),
            Some('r') => result.push('\r'),
            Some(other) => result.push(other),
            None => {}
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_as_java_has_it() {
        let found: Vec<&str> = lines("a\r\nb\rc\n\n d").collect();
        assert_eq!(found, ["a", "b", "c", "", " d"]);
        assert_eq!(lines("a\n").count(), 1);
        assert_eq!(lines("").count(), 0);
        assert_eq!(unescaped(r"a\nb\\n\r\x\"), "a\nb\\n\rx");
    }
}
