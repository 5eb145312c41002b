//! A text that consists of rows: whoever writes it says where each of them ends.

use std::ops::Range;

use bytes::Bytes;

use tensorserve_tensor::budget;
use tensorserve_tensor::error::Result;

/// The text of rows, and where each row is in it.
#[derive(Debug, Default)]
pub struct RowText {
    /// All of it, with what is between the rows.
    pub text: Vec<u8>,
    /// The place of each row in the text.
    pub rows: Vec<Range<usize>>,
}

/// The text of the outputs for several records.
#[derive(Debug)]
pub enum OutputText {
    /// Rows, by whoever has written them: where each is, is known.
    Rows(RowText),
    /// A text whose rows are to be found: a handler has written it, or it is a document.
    Text(Bytes),
}

impl RowText {
    /// The text ends a row, which begins at `start`.
    ///
    /// # Errors
    /// Those of [`budget::grow`].
    pub fn end_row(&mut self, start: usize) -> Result<()> {
        end_row(&self.text, &mut self.rows, start)
    }

    /// The text ends a row, which begins at `start` and is on lines of its own.
    ///
    /// # Errors
    /// Those of [`budget::grow`].
    pub fn end_line(&mut self, start: usize) -> Result<()> {
        end_line(&mut self.text, &mut self.rows, start)
    }
}

fn end_row(text: &[u8], rows: &mut Vec<Range<usize>>, start: usize) -> Result<()> {
    budget::grow(rows, 1)?;
    rows.push(start..text.len());
    Ok(())
}

/// [`RowText::end_line`] for a writer that has its parts.
pub(crate) fn end_line(
    text: &mut Vec<u8>,
    rows: &mut Vec<Range<usize>>,
    start: usize,
) -> Result<()> {
    end_row(text, rows, start)?;
    budget::grow(text, 1)?;
    text.push(b'\n');
    Ok(())
}
