//! Lines, and CSV records that span lines.

use std::io::Read;

use memchr::{memchr, memchr_iter, memchr2};
use tensorserve_tensor::error::{Error, Result};

use super::input::Input;
use super::limit::Limit;

/// The longest line ending in bytes.
const LONGEST_ENDING: usize = 2;

/// A line, or a CSV record of several.
pub(super) struct Line {
    /// Where its content ends in the buffer.
    pub(super) end: usize,
    /// Where its line ending ends.
    pub(super) framed_end: usize,
    /// How many lines it consists of.
    pub(super) lines: u64,
}

/// Finds the line that starts at `start`, which is line `number`; `None` at the end of the object.
pub(super) fn line<R: Read>(
    input: &mut Input<R>,
    start: usize,
    number: u64,
    limit: Limit,
) -> Result<Option<Line>> {
    let mut from = start;
    loop {
        let rest = input.bytes().get(from..).unwrap_or_default();
        if let Some(found) = memchr(b'\n', rest) {
            return ended(input, start, from + found + 1, 1, number, limit).map(Some);
        }
        from = input.bytes().len();
        if is_too_long(from - start, limit) {
            return Err(limit.line_error(number, input.offset_of(start)));
        }
        if input.more()? {
            continue;
        }
        if from == start {
            return Ok(None);
        }
        return ended(input, start, from, 1, number, limit).map(Some);
    }
}

/// Finds the CSV record that starts at `start`, with line `number`; `None` at the end of the object.
pub(super) fn csv<R: Read>(
    input: &mut Input<R>,
    start: usize,
    number: u64,
    limit: Limit,
) -> Result<Option<Line>> {
    let mut scan = CsvScan { start, at: start, lines: 0, quote: None, closed: None };
    loop {
        if let Some(end) = scan.end(input.bytes()) {
            return ended(input, start, end, scan.lines, number, limit).map(Some);
        }
        let length = scan.at - start;
        if is_too_long(length, limit) {
            let error = limit.line_error(number, input.offset_of(start));
            return Err(match scan.quote {
                Some(_) => Error::invalid(format!("{error}. {}", scan.unclosed(number))),
                None => error,
            });
        }
        if input.more()? {
            continue;
        }
        if scan.quote.is_some() {
            let at = input.offset_of(start);
            return Err(Error::invalid(format!(
                "the CSV record at line {number} (byte {at}) does not end: {}",
                scan.unclosed(number)
            )));
        }
        if length == 0 {
            return Ok(None);
        }
        return ended(input, start, scan.at, scan.lines + 1, number, limit).map(Some);
    }
}

/// The line whose framing ends at `framed_end`, unless it is too long.
fn ended<R: Read>(
    input: &Input<R>,
    start: usize,
    framed_end: usize,
    lines: u64,
    number: u64,
    limit: Limit,
) -> Result<Line> {
    let content = match input.slice(start, framed_end) {
        [content @ .., b'\r', b'\n'] | [content @ .., b'\n'] | content => content,
    };
    if content.len() > limit.bytes {
        return Err(limit.line_error(number, input.offset_of(start)));
    }
    Ok(Line { end: start + content.len(), framed_end, lines })
}

/// Whether a line of which `length` bytes have no end is too long, whatever comes next.
fn is_too_long(length: usize, limit: Limit) -> bool {
    length > limit.bytes.saturating_add(LONGEST_ENDING)
}

/// Looks for the end of a CSV record. As in RFC 4180, a quote opens a quoted field only at the
/// field's start; elsewhere it is text, as Python's reader has it.
struct CsvScan {
    start: usize,
    /// Where to go on.
    at: usize,
    /// Line breaks before `at`.
    lines: u64,
    /// Inside a quoted field, the number of line breaks before its quote.
    quote: Option<u64>,
    /// The position after the last closing quote, and the line breaks before its opening one. A
    /// quote there belongs to a pair that stands for one quote in the field.
    closed: Option<(usize, u64)>,
}

impl CsvScan {
    /// The end of the record with its line ending; `None` if `bytes` do not hold it.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            if let Some(opened) = self.quote {
                let length = memchr(b'"', rest);
                let inside = rest.get(..length.unwrap_or(rest.len())).unwrap_or_default();
                self.lines += memchr_iter(b'\n', inside).count() as u64;
                self.at += inside.len();
                length?;
                self.at += 1;
                self.quote = None;
                self.closed = Some((self.at, opened));
                continue;
            }
            let Some(length) = memchr2(b'"', b'\n', rest) else {
                self.at = bytes.len();
                return None;
            };
            let found = self.at + length;
            self.at = found + 1;
            if rest.get(length) == Some(&b'\n') {
                self.lines += 1;
                return Some(self.at);
            }
            self.quote = self.opens(bytes, found);
        }
    }

    /// For a quote at `found` that opens a field, or goes on with it, the line breaks before the
    /// field.
    fn opens(&self, bytes: &[u8], found: usize) -> Option<u64> {
        if let Some((_, opened)) = self.closed.filter(|(after, _)| *after == found) {
            return Some(opened);
        }
        let is_first = found == self.start || bytes.get(found - 1) == Some(&b',');
        is_first.then_some(self.lines)
    }

    fn unclosed(&self, number: u64) -> String {
        let line = number.saturating_add(self.quote.unwrap_or(0));
        format!("the quote that opens at line {line} is not closed")
    }
}
