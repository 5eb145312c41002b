//! Columns that a transformer keeps as they are.

use super::accepted::AcceptedValues;
use super::model::{FeatureRows, Transformer};
use tensorserve_tensor::error::Result;

/// Keeps all columns as they are.
pub(super) struct Passthrough(pub(super) usize);

impl Transformer for Passthrough {
    fn input(&self) -> usize {
        self.0
    }

    fn output(&self) -> usize {
        self.0
    }

    fn accepts(&self) -> AcceptedValues {
        AcceptedValues::Any
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        to.copy_from_slice(rows.values);
        Ok(())
    }
}
