//! Rows of features, as estimators take them.

/// Rows of features.
#[derive(Clone, Copy)]
pub(super) struct FeatureRows<'a> {
    /// One row after the other.
    pub(super) values: &'a [f64],
    /// The number of features of a row, at least 1.
    pub(super) columns: usize,
    /// The index of the first row within its request.
    pub(super) first_row: usize,
}

impl<'a> FeatureRows<'a> {
    /// The number of rows.
    pub(super) fn len(self) -> usize {
        self.values.len().checked_div(self.columns).unwrap_or(0)
    }

    pub(super) fn iter(self) -> std::slice::ChunksExact<'a, f64> {
        self.values.chunks_exact(self.columns.max(1))
    }
}
