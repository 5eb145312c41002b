//! The values of some rows, as a model compares them.

use super::document::MissingNumber;

/// Some rows: their numbers and their categories, one column after the other.
pub(super) struct RowBlock {
    /// The number of rows, and the distance of columns.
    pub(super) rows: usize,
    pub(super) floats: Vec<f32>,
    pub(super) categories: Vec<u32>,
}

impl RowBlock {
    /// The number in `column` of `row`.
    pub(super) fn float(&self, column: usize, row: usize) -> f32 {
        self.floats.get(column * self.rows + row).copied().unwrap_or(f32::NAN)
    }

    /// The hash of the category in `column` of `row`.
    pub(super) fn category(&self, column: usize, row: usize) -> u32 {
        self.categories.get(column * self.rows + row).copied().unwrap_or(0)
    }
}

impl MissingNumber {
    /// `x`, or what NaN counts as.
    pub(super) fn replaced(self, x: f32) -> f32 {
        match (x.is_nan(), self) {
            (false, _) => x,
            (true, MissingNumber::Smallest) => f32::NEG_INFINITY,
            (true, MissingNumber::Greatest) => f32::INFINITY,
        }
    }
}
