//! `TargetEncoder`: replaces each category by the mean of the target in it.

use super::accepted::AcceptedValues;
use super::categories::Categories;
use super::columns::ColumnUse;
use super::estimator::Estimator;
use super::model::{FeatureRows, StepFacts, Transformer};
use tensorserve_tensor::error::Result;

struct TargetEncoder {
    columns: Vec<Categories>,
    /// For each column and each of the `width` targets, the means of all categories.
    means: Vec<Vec<f64>>,
    /// The mean of each target, for other values.
    unknown: Vec<f64>,
}

impl Transformer for TargetEncoder {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.columns.len()).accepting(AcceptedValues::FiniteOrNan)
    }

    fn output(&self) -> usize {
        self.means.len()
    }

    fn uses(&self, _: &[ColumnUse]) -> Vec<ColumnUse> {
        self.columns.iter().map(Categories::column_use).collect()
    }

    fn categories(&self, _: &[Vec<String>]) -> Vec<Vec<String>> {
        self.columns.iter().map(Categories::offered).collect()
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let width = self.unknown.len();
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.output().max(1))) {
            let columns = row.iter().zip(&self.columns).zip(self.means.chunks_exact(width));
            for (((value, categories), means), to) in columns.zip(to.chunks_exact_mut(width)) {
                let place = categories.find(*value);
                for ((to, means), unknown) in to.iter_mut().zip(means).zip(&self.unknown) {
                    *to = place.and_then(|place| means.get(place)).copied().unwrap_or(*unknown);
                }
            }
        }
        Ok(())
    }
}

/// Reads a `TargetEncoder`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let columns = Categories::read_all(estimator)?;
    let unknown = estimator.vector(&["target_mean_"])?;
    let mut means = Vec::new();
    for encoding in estimator.children(&["encodings_"])? {
        let wrong = || estimator.damaged("encodings_ is not a list of arrays");
        let array = encoding.value.array().ok_or_else(wrong)?;
        estimator.charge(array.len())?;
        means.push(array.f64s().ok_or_else(wrong)?);
    }
    if unknown.is_empty() || means.len() != columns.len().saturating_mul(unknown.len()) {
        return Err(estimator.damaged("encodings_ does not fit categories_ and target_mean_"));
    }
    Ok(Box::new(TargetEncoder { columns, means, unknown }))
}
