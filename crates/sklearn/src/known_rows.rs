//! Rows that a model keeps from its training, which rows of a request are compared with: support vectors,
//! neighbours. They are dense, or sparse if the model was fitted on a sparse matrix.

use super::estimator::Estimator;
use super::model::FeatureRows;
use super::sparse::SparseMatrix;
use tensorserve_tensor::error::Result;

/// A function of two rows: a kernel or a distance.
pub(super) trait PairFunction {
    fn of_dense(&self, a: &[f64], b: &[f64]) -> f64;
    fn of_sparse(&self, a: &[(u32, f64)], b: &[(u32, f64)]) -> f64;
}

/// The rows of a training.
pub(super) enum KnownRows {
    /// One row of this many features after the other.
    Dense(Vec<f64>, usize),
    Sparse(SparseMatrix),
}

impl KnownRows {
    pub(super) fn read(estimator: &Estimator, names: &[&str]) -> Result<Self> {
        if estimator.has_sparse(names) {
            return estimator.sparse_matrix(names).map(KnownRows::Sparse);
        }
        let rows = estimator.matrix(names)?;
        Ok(KnownRows::Dense(rows.values, rows.columns))
    }

    /// The number of features of a row.
    pub(super) fn features(&self) -> usize {
        match self {
            KnownRows::Dense(_, features) => *features,
            KnownRows::Sparse(rows) => rows.columns(),
        }
    }

    /// The number of rows.
    pub(super) fn len(&self) -> usize {
        match self {
            KnownRows::Dense(values, features) => values.len() / (*features).max(1),
            KnownRows::Sparse(rows) => rows.len(),
        }
    }

    pub(super) fn are_sparse(&self) -> bool {
        matches!(self, KnownRows::Sparse(_))
    }

    /// Prepares the rows of a request to be compared.
    pub(super) fn compare<'a>(&'a self, rows: FeatureRows<'a>) -> RowPairs<'a> {
        let made = match self.are_sparse() && rows.sparse.is_none() {
            true => Some(rows.to_sparse()),
            false => None,
        };
        RowPairs { known: self, rows, made }
    }
}

/// Rows of a request with the known rows that they are compared with.
pub(super) struct RowPairs<'a> {
    known: &'a KnownRows,
    rows: FeatureRows<'a>,
    /// The dense rows as sparse ones, if the known ones are sparse.
    made: Option<SparseMatrix>,
}

impl RowPairs<'_> {
    /// Writes `function` of row number `row` and each known row to `out`.
    pub(super) fn evaluate(&self, row: usize, function: &impl PairFunction, out: &mut [f64]) {
        match self.known {
            KnownRows::Dense(known, features) => {
                let row = self.rows.row(row);
                for (out, known) in out.iter_mut().zip(known.chunks_exact((*features).max(1))) {
                    *out = function.of_dense(row, known);
                }
            }
            KnownRows::Sparse(known) => {
                let row = self.made.as_ref().or(self.rows.sparse).map(|rows| rows.row(row));
                let row = row.unwrap_or_default();
                for (out, known) in out.iter_mut().zip(known.iter()) {
                    *out = function.of_sparse(row, known);
                }
            }
        }
    }
}
