//! Where a record ends that may span lines.

use memchr::{memchr, memchr_iter, memchr2};

/// Looks for the end of a record in a text of which more may follow. As in RFC 4180, a quote opens a quoted
/// field only at the field's start; elsewhere it is text, as Python's reader has it. A record ends at a line feed
/// that is in no quoted field.
#[derive(Debug)]
pub struct RecordScan {
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

impl RecordScan {
    /// A scan of the record that starts at `start`.
    #[must_use]
    pub fn new(start: usize) -> Self {
        RecordScan { start, at: start, lines: 0, quote: None, closed: None }
    }

    /// The end of the record with its line feed; `None` if `text`, which is what was given before with what follows
    /// it, does not hold it.
    pub fn end(&mut self, text: &[u8]) -> Option<usize> {
        loop {
            let rest = text.get(self.at..).unwrap_or_default();
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
                self.at = text.len();
                return None;
            };
            let found = self.at + length;
            self.at = found + 1;
            if rest.get(length) == Some(&b'\n') {
                self.lines += 1;
                return Some(self.at);
            }
            self.quote = self.opens(text, found);
        }
    }

    /// For a quote at `found` that opens a field, or goes on with it, the line breaks before the
    /// field.
    fn opens(&self, text: &[u8], found: usize) -> Option<u64> {
        if let Some((_, opened)) = self.closed.filter(|(after, _)| *after == found) {
            return Some(opened);
        }
        let is_first = found == self.start || text.get(found - 1) == Some(&b',');
        is_first.then_some(self.lines)
    }

    /// How far the text has been searched.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// The line feeds up to there.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// If a quoted field is open there, the line feeds before it.
    #[must_use]
    pub fn open_quote(&self) -> Option<u64> {
        self.quote
    }
}
