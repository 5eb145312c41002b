//! `SimpleImputer` and `Imputer`.

use super::accepted::AcceptedValues;
use super::estimator::Estimator;
use super::model::{FeatureRows, Transformer};
use super::numeric::indicator;
use tensorserve_tensor::error::Result;

/// Replaces missing values.
struct Imputer {
    features: usize,
    /// The columns that are kept.
    kept: Vec<usize>,
    /// The replacement of missing values in each of them.
    fill: Vec<f64>,
    /// The value that stands for a missing one.
    missing: f64,
    /// The columns for which a column is added that is 1 where the value is missing, else 0.
    indicated: Vec<usize>,
}

impl Imputer {
    fn is_missing(&self, value: f64) -> bool {
        value == self.missing || (value.is_nan() && self.missing.is_nan())
    }
}

impl Transformer for Imputer {
    fn input(&self) -> usize {
        self.features
    }

    fn output(&self) -> usize {
        self.kept.len() + self.indicated.len()
    }

    fn accepts(&self) -> AcceptedValues {
        if self.missing.is_nan() { AcceptedValues::FiniteOrNan } else { AcceptedValues::Finite }
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.output().max(1))) {
            let (kept, indicators) = to.split_at_mut(self.kept.len());
            for ((to, column), fill) in kept.iter_mut().zip(&self.kept).zip(&self.fill) {
                let value = column_value(row, *column);
                *to = if self.is_missing(value) { *fill } else { value };
            }
            for (to, column) in indicators.iter_mut().zip(&self.indicated) {
                *to = indicator(self.is_missing(column_value(row, *column)));
            }
        }
        Ok(())
    }
}

fn column_value(row: &[f64], column: usize) -> f64 {
    row.get(column).copied().unwrap_or(f64::NAN)
}

/// Reads a `SimpleImputer` or an `Imputer`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let statistics = estimator.vector(&["statistics_"])?;
    let missing = read_missing(estimator)?;
    // A column without any value in training is dropped, unless it must be kept.
    let keeps_empty =
        estimator.flag("keep_empty_features", false)? || estimator.text("strategy")? == "constant";
    let columns = statistics.iter().copied().enumerate();
    let (kept, fill) = columns.filter(|(_, fill)| keeps_empty || !fill.is_nan()).unzip();
    if matches!(estimator.find(&["axis"]).and_then(|axis| axis.int()), Some(1)) {
        return Err(estimator.unsupported("imputation along rows (axis=1)"));
    }
    let features = statistics.len();
    let indicated = match estimator.flag("add_indicator", false)? {
        true => read_indicated(estimator, features)?,
        false => Vec::new(),
    };
    Ok(Box::new(Imputer { features, kept, fill, missing, indicated }))
}

fn read_missing(estimator: &Estimator) -> Result<f64> {
    let Some(value) = estimator.find(&["missing_values"]) else {
        return Ok(f64::NAN);
    };
    match (value.text(), value.float()) {
        (Some("NaN"), _) => Ok(f64::NAN),
        (_, Some(number)) => Ok(number),
        _ => Err(estimator.unsupported("missing_values that is not a number")),
    }
}

fn read_indicated(estimator: &Estimator, features: usize) -> Result<Vec<usize>> {
    let indicator = estimator.child(estimator.attribute(&["indicator_"])?)?;
    let mut indicated = Vec::new();
    for column in indicator.vector(&["features_"])? {
        let column = column as usize;
        if column >= features {
            return Err(estimator.damaged(format_args!("its indicator has no column {column}")));
        }
        indicated.push(column);
    }
    Ok(indicated)
}
