//! Ranges of a huge object of lines, which several workers can split at once.
//!
//! A range owns the lines that start in it: its reader skips to the first of them, and goes on past
//! the range's end to the end of the last one. So every line belongs to exactly one range, wherever
//! an object is cut. This needs lines that can be told apart from any byte on, so CSV with quoted
//! line breaks and binary formats cannot be cut, and neither can compressed objects.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;

use memchr::memchr;
use tensorserve_tensor::error::{Error, Result};

use crate::split::input::read_error;
use crate::split::{Split, SplitOptions, Splitter};

/// How many bytes are read at once where a line is looked for.
const BLOCK: usize = 64 << 10;

/// The byte at which to open an object to read the range that begins at `from`: one before, which
/// tells whether a line starts at `from`.
#[must_use]
pub fn open_at(from: u64) -> u64 {
    from.saturating_sub(1)
}

/// Gives the bytes of the lines that start in a range.
pub struct RangeReader<R> {
    source: R,
    /// What has been read past the first line break.
    ahead: Vec<u8>,
    /// How much of `ahead` has been given.
    given: usize,
    /// The byte of the object that is given next.
    at: u64,
    to: u64,
    is_done: bool,
}

impl<R: Read> RangeReader<R> {
    /// A reader of the lines that start in `range`. `source` begins at byte [`open_at`] of the
    /// object, and goes on past the range as far as the object does.
    ///
    /// # Errors
    /// Those of the source.
    pub fn new(mut source: R, range: Range<u64>) -> Result<Self> {
        let (from, to) = (range.start, range.end);
        let mut reader = RangeReader {
            ahead: Vec::new(),
            given: 0,
            at: open_at(from),
            to,
            is_done: range.is_empty(),
            source: source.by_ref(),
        };
        if from > 0 && !reader.is_done {
            reader.skip_line().map_err(|error| read_error(error, reader.at))?;
        }
        let RangeReader { ahead, given, at, is_done, .. } = reader;
        Ok(RangeReader { source, ahead, given, at, to, is_done })
    }

    /// The byte of the object at which the first line of the range starts, before anything is read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Skips to behind the first line break.
    fn skip_line(&mut self) -> io::Result<()> {
        let mut block = vec![0; BLOCK];
        loop {
            let count = read_some(&mut self.source, &mut block)?;
            let read = block.get(..count).unwrap_or_default();
            if read.is_empty() {
                self.is_done = true;
                return Ok(());
            }
            if let Some(found) = memchr(b'\n', read) {
                self.at = self.at.saturating_add(found as u64 + 1);
                self.ahead.extend_from_slice(read.get(found + 1..).unwrap_or_default());
                // The line before reaches to the end of the range.
                self.is_done = self.at >= self.to;
                return Ok(());
            }
            self.at = self.at.saturating_add(read.len() as u64);
        }
    }

    /// Reads into `out`, without regard for the end of the range.
    fn read_any(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let rest = self.ahead.get(self.given..).unwrap_or_default();
        if rest.is_empty() {
            return read_some(&mut self.source, out);
        }
        let count = rest.len().min(out.len());
        if let (Some(from), Some(to)) = (rest.get(..count), out.get_mut(..count)) {
            to.copy_from_slice(from);
        }
        self.given += count;
        Ok(count)
    }
}

fn read_some(source: &mut impl Read, out: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(out) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Ok(count) => return Ok(count.min(out.len())),
            Err(error) => return Err(error),
        }
    }
}

impl<R: Read> Read for RangeReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.is_done || out.is_empty() {
            return Ok(0);
        }
        // The last line ends with the first line break at or after the range's last byte.
        let last = self.to.saturating_sub(1);
        let before = usize::try_from(last.saturating_sub(self.at)).unwrap_or(usize::MAX);
        // Past that, little is read in vain.
        let wanted = if before > 0 { before } else { BLOCK };
        let length = wanted.min(out.len());
        let out = out.get_mut(..length).unwrap_or_default();
        let mut count = self.read_any(out)?;
        if before == 0
            && let Some(found) = memchr(b'\n', out.get(..count).unwrap_or_default())
        {
            count = found + 1;
            self.is_done = true;
        }
        self.at = self.at.saturating_add(count as u64);
        Ok(count)
    }
}

impl<R: Read> Splitter<RangeReader<R>> {
    /// A splitter of the lines that start in the bytes `range` of an object. Together, the ranges of
    /// an object give each of its records once. `source` begins at byte [`open_at`] of the object,
    /// and goes on past the range as far as the object does. Offsets of records are those in the
    /// object; lines are counted from the start of the range.
    ///
    /// # Errors
    /// [`Error::invalid`] for a format that cannot be read from the middle, or the error of the
    /// source.
    pub fn over_range(source: R, options: SplitOptions, range: Range<u64>) -> Result<Self> {
        match options.split {
            Split::Line | Split::JsonLines => {}
            Split::None | Split::Csv | Split::TfRecord | Split::RecordIo => {
                return Err(Error::invalid(format!(
                    "an object cannot be read in ranges with --split {}: only lines (line, jsonl) \
                     can",
                    options.split
                )));
            }
        }
        let reader = RangeReader::new(source, range)?;
        let start = reader.position();
        Ok(Splitter::new(reader, options).starting_at(1, start))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options(split: Split, keep_blank_lines: bool) -> SplitOptions {
        SplitOptions { split, max_record_bytes: 1000, keep_blank_lines }
    }

    /// The records of a range of `object`, each with its offset.
    fn records(object: &[u8], range: Range<u64>, keep: bool) -> Vec<(u64, Vec<u8>)> {
        let source = object.get(usize::try_from(open_at(range.start)).unwrap()..);
        let mut splitter = Splitter::over_range(
            source.unwrap_or_default(),
            options(Split::Line, keep),
            range.clone(),
        )
        .unwrap();
        let mut all = Vec::new();
        while let Some(chunk) = splitter.next_chunk(3, 20).unwrap() {
            for record in &chunk.records {
                all.push((record.offset, chunk.content(record).to_vec()));
            }
        }
        all
    }

    fn texts(object: &[u8], range: Range<u64>) -> Vec<String> {
        let records = records(object, range, true);
        records.into_iter().map(|(_, text)| String::from_utf8(text).unwrap()).collect()
    }

    #[test]
    fn a_range_owns_the_lines_that_start_in_it() {
        let object = b"one\ntwo\nthree\n";
        assert_eq!(texts(object, 0..14), ["one", "two", "three"]);
        assert_eq!(texts(object, 0..1), ["one"]);
        assert_eq!(texts(object, 0..4), ["one"]);
        assert_eq!(texts(object, 0..5), ["one", "two"]);
        assert_eq!(texts(object, 1..4), [""; 0]);
        assert_eq!(texts(object, 4..5), ["two"]);
        assert_eq!(texts(object, 5..14), ["three"]);
        assert_eq!(texts(object, 9..14), [""; 0]);
        assert_eq!(texts(object, 4..4), [""; 0]);
        assert_eq!(texts(object, 14..20), [""; 0]);
        assert_eq!(texts(b"no ending", 0..3), ["no ending"]);
        assert_eq!(texts(b"", 0..10), [""; 0]);
    }

    #[test]
    fn lines_count_from_the_start_of_the_range() {
        let object = b"one\ntwo\nthree\n";
        let mut splitter =
            Splitter::over_range(&object[1..], options(Split::JsonLines, false), 2..14).unwrap();
        let chunk = splitter.next_chunk(10, 100).unwrap().unwrap();
        let places: Vec<_> = chunk.records.iter().map(|one| (one.line, one.offset)).collect();
        assert_eq!(places, [(1, 4), (2, 8)]);
    }

    #[test]
    fn only_lines_have_ranges() {
        for split in [Split::None, Split::Csv, Split::TfRecord, Split::RecordIo] {
            let error = Splitter::over_range(&b""[..], options(split, false), 0..1).err().unwrap();
            assert!(error.message().contains(&format!("--split {split}")), "{error}");
        }
    }

    #[test]
    fn a_failing_source_is_told() {
        struct Failing;
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("gone"))
            }
        }
        let error = RangeReader::new(Failing, 8..9).err().unwrap();
        assert_eq!(error.message(), "the object cannot be read at byte 7: gone");
    }

    proptest! {
        #[test]
        fn ranges_together_are_the_whole(
            object in "(\u{feff})?([ab\r]{0,4}\n){0,12}[ab]{0,3}",
            mut cuts in prop::collection::vec(0u64..60, 0..6),
            keep: bool,
        ) {
            let size = object.len() as u64;
            cuts.extend([0, size]);
            cuts.sort_unstable();
            cuts.retain(|cut| *cut <= size);
            let mut parts = Vec::new();
            for pair in cuts.windows(2) {
                parts.extend(records(object.as_bytes(), pair[0]..pair[1], keep));
            }
            // The whole, with a splitter that knows nothing of ranges.
            let mut splitter = Splitter::new(object.as_bytes(), options(Split::Line, keep));
            let mut whole = Vec::new();
            while let Some(chunk) = splitter.next_chunk(1, 1).unwrap() {
                let record = chunk.records[0];
                whole.push((record.offset, chunk.content(&record).to_vec()));
            }
            prop_assert_eq!(parts, whole);
        }
    }
}
