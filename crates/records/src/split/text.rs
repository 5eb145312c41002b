//! Lines, and CSV records that span lines.

use std::io::Read;

use memchr::memchr;
use tensorserve_codec::csv::RecordScan;
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
    let mut scan = RecordScan::new(start);
    loop {
        if let Some(end) = scan.end(input.bytes()) {
            return ended(input, start, end, scan.lines(), number, limit).map(Some);
        }
        let length = scan.at() - start;
        if is_too_long(length, limit) {
            let error = limit.line_error(number, input.offset_of(start));
            return Err(match scan.open_quote() {
                Some(lines) => Error::invalid(format!("{error}. {}", unclosed(number, lines))),
                None => error,
            });
        }
        if input.more()? {
            continue;
        }
        if let Some(lines) = scan.open_quote() {
            let at = input.offset_of(start);
            return Err(Error::invalid(format!(
                "the CSV record at line {number} (byte {at}) does not end: {}",
                unclosed(number, lines)
            )));
        }
        if length == 0 {
            return Ok(None);
        }
        return ended(input, start, scan.at(), scan.lines() + 1, number, limit).map(Some);
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

/// What is wrong with the record at line `number` whose field with a quote is `lines` behind its start.
fn unclosed(number: u64, lines: u64) -> String {
    format!("the quote that opens at line {} is not closed", number.saturating_add(lines))
}
