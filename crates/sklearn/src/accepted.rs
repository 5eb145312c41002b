//! Which values an estimator accepts: NaN and infinity are refused where scikit-learn refuses them.

use super::estimator::Estimator;
use super::rows::FeatureRows;
use tensorserve_tensor::error::{Error, Result};

/// The values that an estimator accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptedValues {
    /// Finite numbers.
    Finite,
    /// Finite numbers that do not overflow in single precision.
    FiniteSingle,
    /// Finite numbers, and NaN for a missing value.
    FiniteOrNan,
    /// As [`AcceptedValues::FiniteOrNan`]; numbers must not overflow in single precision.
    FiniteOrNanSingle,
    /// All values.
    Any,
}

/// Whether values are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueCheck {
    Enabled,
    Disabled,
}

impl ValueCheck {
    /// Refuses a value that is not accepted, with its row and column.
    pub(super) fn apply(self, rows: FeatureRows, accepted: AcceptedValues) -> Result<()> {
        match self {
            ValueCheck::Enabled => check_values(rows, accepted),
            ValueCheck::Disabled => Ok(()),
        }
    }
}

/// What a step of the model refuses that gets a value from another step.
pub(super) fn not_finite() -> Error {
    Error::invalid("a step of the model makes a value that is not finite")
}

fn check_values(rows: FeatureRows, accepted: AcceptedValues) -> Result<()> {
    if let Some(matrix) = rows.sparse {
        return match matrix.values().all(|value| accepted.allows(value)) {
            true => Ok(()),
            false => Err(not_finite()),
        };
    }
    // If the sum of all is finite, each is: no need to look at them one by one.
    let sum: f64 = rows.values.iter().map(|value| value.abs()).sum();
    if accepted == AcceptedValues::Any
        || sum <= f64::from(f32::MAX)
        || (sum.is_finite() && !accepted.is_single())
    {
        return Ok(());
    }
    let Some(index) = rows.values.iter().position(|value| !accepted.allows(*value)) else {
        return Ok(());
    };
    let value = rows.values.get(index).copied().unwrap_or(f64::NAN);
    let (row, column) = (rows.first_row + index / rows.columns, index % rows.columns);
    let what = match value {
        value if value.is_nan() => "NaN",
        value if value.is_infinite() => "infinite",
        _ => "too large for single precision",
    };
    let takes = if accepted.allows_nan() { "finite numbers and NaN" } else { "finite numbers" };
    Err(Error::invalid(format!(
        "the value in column {column} of row {row} is {what}, or becomes so in a \
         step of the model; the model takes {takes}"
    )))
}

impl AcceptedValues {
    /// What an estimator accepts that accepts missing values since scikit-learn `major.minor`.
    pub(super) fn missing_since(estimator: &Estimator, major: u32, minor: u32) -> Self {
        match estimator.is_older_than(major, minor) {
            true => AcceptedValues::Finite,
            false => AcceptedValues::FiniteOrNan,
        }
    }

    fn allows_nan(self) -> bool {
        matches!(
            self,
            AcceptedValues::FiniteOrNan | AcceptedValues::FiniteOrNanSingle | AcceptedValues::Any
        )
    }

    fn is_single(self) -> bool {
        matches!(self, AcceptedValues::FiniteSingle | AcceptedValues::FiniteOrNanSingle)
    }

    /// The values that both accept.
    pub(super) fn both(self, other: Self) -> Self {
        match (self, other) {
            (AcceptedValues::Any, accepted) | (accepted, AcceptedValues::Any) => return accepted,
            _ => {}
        }
        let is_single = self.is_single() || other.is_single();
        match (self.allows_nan() && other.allows_nan(), is_single) {
            (true, true) => AcceptedValues::FiniteOrNanSingle,
            (true, false) => AcceptedValues::FiniteOrNan,
            (false, true) => AcceptedValues::FiniteSingle,
            (false, false) => AcceptedValues::Finite,
        }
    }

    fn allows(self, value: f64) -> bool {
        if value.is_nan() {
            return self.allows_nan();
        }
        match self {
            AcceptedValues::Any => true,
            AcceptedValues::Finite | AcceptedValues::FiniteOrNan => value.is_finite(),
            AcceptedValues::FiniteSingle | AcceptedValues::FiniteOrNanSingle => {
                (value as f32).is_finite()
            }
        }
    }
}
