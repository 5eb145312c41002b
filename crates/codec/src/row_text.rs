//! A text that consists of rows: whoever writes it says where each of them ends.

use std::ops::Range;

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

impl RowText {
    /// The text ends a row, which begins at `start`.
    ///
    /// # Errors
    /// Those of [`budget::grow`].
    pub fn end_row(&mut self, start: usize) -> Result<()> {
        budget::grow(&mut self.rows, 1)?;
        self.rows.push(start..self.text.len());
        Ok(())
    }

    /// The text ends a row, which begins at `start` and is on lines of its own.
    ///
    /// # Errors
    /// Those of [`budget::grow`].
    pub fn end_line(&mut self, start: usize) -> Result<()> {
        self.end_row(start)?;
        budget::grow(&mut self.text, 1)?;
        self.text.push(b'\n');
        Ok(())
    }
}
