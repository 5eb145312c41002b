//! Sparse matrices of SciPy in a pickle: the training rows of models that were fitted on texts.

use super::estimator::{Estimator, Matrix};
use super::sparse::SparseMatrix;
use tensorserve_tensor::error::Result;

/// The prefix of SciPy's classes of sparse matrices.
const PREFIX: &str = "scipy.sparse.";

impl Estimator<'_> {
    /// Whether the first of the attributes `names` is a sparse matrix of SciPy.
    pub(super) fn has_sparse(&self, names: &[&str]) -> bool {
        let class = self.find(names).and_then(|value| value.class());
        class.is_some_and(|class| class.starts_with(PREFIX))
    }

    /// As [`Estimator::matrix`] of a sparse matrix: the coefficients of a model after `sparsify()`. One row is
    /// a vector.
    pub(super) fn dense_of_sparse(&self, names: &[&str]) -> Result<Matrix> {
        let sparse = self.sparse_matrix(names)?;
        let (rows, columns) = (sparse.len(), sparse.columns());
        self.charge(rows.saturating_mul(columns)).map_err(|_| {
            self.unsupported(format_args!(
                "a sparse matrix of {rows} rows and {columns} columns, far more numbers than its file has bytes,"
            ))
        })?;
        Ok(Matrix { rows, columns, values: sparse.to_dense(0..rows), is_vector: rows == 1 })
    }

    /// A sparse matrix of compressed rows (`csr_matrix`, `csr_array`).
    pub(super) fn sparse_matrix(&self, names: &[&str]) -> Result<SparseMatrix> {
        let value = self.child(self.attribute(names)?)?;
        let class = value.value.class_name().unwrap_or_default();
        if !self.has_sparse(names) || !matches!(class, "csr_matrix" | "csr_array") {
            return Err(self.unsupported(format_args!("a sparse matrix of the class {class:?}")));
        }
        let wrong = || self.damaged("the parts of a sparse matrix do not match");
        let (rows, columns) = match *value.vector(&["_shape"])? {
            [columns] => (1.0, columns),
            [rows, columns] => (rows, columns),
            _ => return Err(wrong()),
        };
        let starts = value.vector(&["indptr"])?;
        let indices = value.vector(&["indices"])?;
        let values = value.vector(&["data"])?;
        if starts.len() as f64 != rows + 1.0 || columns < 1.0 || columns > f64::from(u32::MAX) {
            return Err(wrong());
        }
        let mut matrix = SparseMatrix::new(columns as usize);
        for bounds in starts.windows(2) {
            let [start, end] = *bounds else { return Err(wrong()) };
            let range = start as usize..end as usize;
            let of_row = indices.get(range.clone()).zip(values.get(range));
            let (indices, values) = of_row.ok_or_else(wrong)?;
            // A damaged file could name the same entries for each row.
            self.charge(values.len())?;
            for (column, value) in indices.iter().zip(values) {
                if !(0.0..columns).contains(column) {
                    return Err(wrong());
                }
                matrix.push(*column as u32, *value);
            }
            matrix.end_unordered_row();
        }
        Ok(matrix)
    }
}
