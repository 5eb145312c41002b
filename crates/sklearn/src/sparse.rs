//! Sparse rows: only the values that are not 0. Text has a column for each of 100,000 words, of which a
//! row has a few.

use std::ops::Range;

use tensorserve_tensor::error::Result;

/// A matrix of sparse rows.
#[derive(Debug, Default)]
pub(super) struct SparseMatrix {
    columns: usize,
    /// Where each row ends in `entries`.
    ends: Vec<usize>,
    /// The columns and the values of each row in turn. Columns are distinct and ascending within a row.
    entries: Vec<(u32, f64)>,
}

impl SparseMatrix {
    /// A matrix without rows.
    pub(super) fn new(columns: usize) -> Self {
        SparseMatrix { columns, ends: Vec::new(), entries: Vec::new() }
    }

    /// The entries of dense rows that are not 0.
    pub(super) fn of_dense<'a>(columns: usize, rows: impl Iterator<Item = &'a [f64]>) -> Self {
        let mut matrix = SparseMatrix::new(columns);
        for row in rows {
            for (column, value) in (0..).zip(row) {
                if *value != 0.0 {
                    matrix.push(column, *value);
                }
            }
            matrix.end_row();
        }
        matrix
    }

    /// The number of columns.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// All values that are stored.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> {
        self.entries.iter().map(|(_, value)| *value)
    }

    /// Adds an entry to the row that is being written.
    pub(super) fn push(&mut self, column: u32, value: f64) {
        self.entries.push((column, value));
    }

    /// Ends the row that is being written, whose entries are in order.
    pub(super) fn end_row(&mut self) {
        self.ends.push(self.entries.len());
    }

    /// Ends the row that is being written: sorts its entries, and adds up those of the same column.
    pub(super) fn end_unordered_row(&mut self) {
        let start = self.ends.last().copied().unwrap_or(0);
        let Some(row) = self.entries.get_mut(start..) else { return };
        row.sort_unstable_by_key(|(column, _)| *column);
        let mut kept = 0usize;
        for at in 0..row.len() {
            let Some((column, value)) = row.get(at).copied() else { break };
            let last = kept.checked_sub(1).and_then(|last| row.get_mut(last));
            match last {
                Some(last) if last.0 == column => last.1 += value,
                _ => {
                    if let Some(to) = row.get_mut(kept) {
                        *to = (column, value);
                    }
                    kept += 1;
                }
            }
        }
        self.entries.truncate(start + kept);
        self.end_row();
    }

    fn range(&self, row: usize) -> Range<usize> {
        let start = row.checked_sub(1).and_then(|before| self.ends.get(before));
        start.copied().unwrap_or(0)..self.ends.get(row).copied().unwrap_or(0)
    }

    /// The entries of row `row`: columns in ascending order, and values.
    pub(super) fn row(&self, row: usize) -> &[(u32, f64)] {
        self.entries.get(self.range(row)).unwrap_or_default()
    }

    /// The entries of row `row`, whose values may be changed.
    pub(super) fn row_mut(&mut self, row: usize) -> &mut [(u32, f64)] {
        let range = self.range(row);
        self.entries.get_mut(range).unwrap_or_default()
    }

    /// The rows.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[(u32, f64)]> {
        (0..self.len()).map(|row| self.row(row))
    }

    /// This matrix, each value of an entry replaced by `map` of its column and value.
    pub(super) fn mapped(&self, map: impl Fn(usize, f64) -> f64) -> Self {
        let entries =
            self.entries.iter().map(|(column, value)| (*column, map(*column as usize, *value)));
        SparseMatrix { columns: self.columns, ends: self.ends.clone(), entries: entries.collect() }
    }

    /// Calls `take` with the rows as dense ones, of about `size` values at a time; once if there are none.
    pub(super) fn for_dense_blocks(
        &self,
        size: usize,
        mut take: impl FnMut(&[f64]) -> Result<()>,
    ) -> Result<()> {
        let rows = (size / self.columns.max(1)).max(1);
        for start in (0..self.len().max(1)).step_by(rows) {
            take(&self.to_dense(start..self.len().min(start + rows)))?;
        }
        Ok(())
    }

    /// The rows `rows` as dense ones.
    pub(super) fn to_dense(&self, rows: Range<usize>) -> Vec<f64> {
        let mut values = vec![0.0; rows.len() * self.columns];
        for (row, to) in rows.zip(values.chunks_exact_mut(self.columns.max(1))) {
            for (column, value) in self.row(row) {
                if let Some(to) = to.get_mut(*column as usize) {
                    *to = *value;
                }
            }
        }
        values
    }
}

/// The dot product of a sparse row and a dense one.
pub(super) fn sparse_dot(row: &[(u32, f64)], dense: &[f64]) -> f64 {
    let terms = row.iter().map(|(column, value)| match dense.get(*column as usize) {
        Some(other) => value * other,
        None => 0.0,
    });
    terms.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_row_are_sorted_and_added_up() {
        let mut matrix = SparseMatrix::new(5);
        for (column, value) in [(3, 1.0), (1, 2.0), (3, 4.0), (0, 8.0), (3, 16.0)] {
            matrix.push(column, value);
        }
        matrix.end_unordered_row();
        matrix.end_unordered_row();
        matrix.push(4, 1.0);
        matrix.end_row();
        assert_eq!(matrix.row(0), [(0, 8.0), (1, 2.0), (3, 21.0)]);
        assert_eq!(matrix.row(1), []);
        assert_eq!(matrix.to_dense(1..3), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(sparse_dot(matrix.row(0), &[1.0, 1.0, 1.0, 2.0, 1.0]), 52.0);
    }
}
