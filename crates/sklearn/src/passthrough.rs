//! Columns that a transformer keeps as they are.

use super::accepted::AcceptedValues;
use super::columns::ColumnUse;
use super::model::{FeatureRows, StepFacts, Transformer};
use super::sparse::SparseMatrix;
use tensorserve_tensor::error::Result;

/// Keeps all columns as they are.
pub(super) struct Passthrough(pub(super) usize);

impl Transformer for Passthrough {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.0).accepting(AcceptedValues::Any).sparse()
    }

    fn output(&self) -> usize {
        self.0
    }

    fn uses(&self, outputs: &[ColumnUse]) -> Vec<ColumnUse> {
        outputs.to_vec()
    }

    fn categories(&self, outputs: &[Vec<String>]) -> Vec<Vec<String>> {
        outputs.to_vec()
    }

    fn makes_sparse(&self, from_sparse: bool) -> bool {
        from_sparse
    }

    fn apply_sparse(&self, rows: FeatureRows) -> Result<SparseMatrix> {
        let matrix = rows.sparse.map(|matrix| matrix.mapped(|_, value| value));
        Ok(matrix.unwrap_or_default())
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        to.copy_from_slice(rows.values);
        Ok(())
    }
}
