//! Rows of features, as estimators take them.

use super::sparse::SparseMatrix;

/// Rows of features: dense, or sparse as text vectorizers make them.
#[derive(Clone, Copy)]
pub(super) struct FeatureRows<'a> {
    /// One row after the other; empty if the rows are sparse.
    pub(super) values: &'a [f64],
    /// The number of features of a row, at least 1.
    pub(super) columns: usize,
    /// The index of the first row within its request.
    pub(super) first_row: usize,
    /// The rows if they are sparse. Only estimators that take sparse rows are given them.
    pub(super) sparse: Option<&'a SparseMatrix>,
    /// Whether scikit-learn has these rows as a sparse matrix. It does not store zeros, and XGBoost takes
    /// what is not stored for missing.
    pub(super) zeros_are_absent: bool,
    /// The texts of the request that are processed as text. A column of such texts has their indices
    /// as its values.
    pub(super) documents: &'a [&'a [u8]],
}

impl<'a> FeatureRows<'a> {
    /// Dense rows without texts.
    pub(super) fn dense(values: &'a [f64], columns: usize) -> Self {
        FeatureRows {
            values,
            columns,
            first_row: 0,
            sparse: None,
            zeros_are_absent: false,
            documents: &[],
        }
    }

    /// These rows with other, dense values.
    pub(super) fn with_dense(self, values: &'a [f64], columns: usize) -> Self {
        FeatureRows { values, columns, sparse: None, ..self }
    }

    /// These rows with other, sparse values.
    pub(super) fn with_sparse(self, matrix: &'a SparseMatrix) -> Self {
        FeatureRows { values: &[], columns: matrix.columns(), sparse: Some(matrix), ..self }
    }

    /// The number of rows.
    pub(super) fn len(self) -> usize {
        match self.sparse {
            Some(matrix) => matrix.len(),
            None => self.values.len().checked_div(self.columns).unwrap_or(0),
        }
    }

    /// The rows, which must be dense.
    pub(super) fn iter(self) -> std::slice::ChunksExact<'a, f64> {
        self.values.chunks_exact(self.columns.max(1))
    }

    /// Row number `row`, which must be dense.
    pub(super) fn row(self, row: usize) -> &'a [f64] {
        let start = row.saturating_mul(self.columns);
        self.values.get(start..start.saturating_add(self.columns)).unwrap_or_default()
    }

    /// A sparse copy.
    pub(super) fn to_sparse(self) -> SparseMatrix {
        match self.sparse {
            Some(matrix) => matrix.mapped(|_, value| value),
            None => SparseMatrix::of_dense(self.columns, self.iter()),
        }
    }
}
