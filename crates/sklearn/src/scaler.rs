//! Transformers that rescale values: scalers, `Normalizer` and `Binarizer`.

use super::accepted::AcceptedValues;
use super::estimator::Estimator;
use super::model::{FeatureRows, StepFacts, Transformer};
use super::numeric::{dot, indicator};
use super::sparse::SparseMatrix;
use tensorserve_tensor::error::Result;

/// `(x - shift) * factor + offset` for each column, clipped to bounds.
struct AffineScaler {
    shift: Vec<f64>,
    factor: Vec<f64>,
    offset: Vec<f64>,
    /// Whether to divide by the factor instead, without an offset. As in scikit-learn, since the two
    /// round differently.
    divides: bool,
    bounds: Option<(f64, f64)>,
    /// Whether 0 stays 0, as sparse rows need it.
    keeps_zero: bool,
    accepts: AcceptedValues,
}

impl AffineScaler {
    /// Notes whether 0 stays 0.
    fn checked(mut self) -> Box<dyn Transformer> {
        let is_zero = |values: &[f64]| values.iter().all(|value| *value == 0.0);
        self.keeps_zero = self.divides && is_zero(&self.shift);
        Box::new(self)
    }
}

impl Transformer for AffineScaler {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.shift.len()).accepting(self.accepts).sparse_if(self.keeps_zero)
    }

    fn output(&self) -> usize {
        self.shift.len()
    }

    fn makes_sparse(&self, from_sparse: bool) -> bool {
        from_sparse
    }

    fn apply_sparse(&self, rows: FeatureRows) -> Result<SparseMatrix> {
        let factor = |column: usize| self.factor.get(column).copied().unwrap_or(1.0);
        let matrix = rows.sparse.map(|matrix| {
            matrix.mapped(|column, x| match self.bounds {
                None => x / factor(column),
                Some((low, high)) => (x / factor(column)).max(low).min(high),
            })
        });
        Ok(matrix.unwrap_or_default())
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(rows.columns)) {
            let columns = self.shift.iter().zip(&self.factor).zip(&self.offset);
            for ((x, to), ((shift, factor), offset)) in row.iter().zip(&mut *to).zip(columns) {
                *to = match self.divides {
                    true => (x - shift) / factor,
                    false => (x - shift) * factor + offset,
                };
            }
        }
        if let Some((low, high)) = self.bounds {
            for value in to {
                // Not `clamp`, which panics for bounds in the wrong order. NaN stays NaN.
                *value = if *value < low {
                    low
                } else if *value > high {
                    high
                } else {
                    *value
                };
            }
        }
        Ok(())
    }
}

/// What a scaler accepts: missing values since 0.20.
fn accepted(estimator: &Estimator) -> AcceptedValues {
    AcceptedValues::missing_since(estimator, 0, 20)
}

/// `(x - center) / scale`, either of which may be missing.
fn center_and_scale(
    estimator: &Estimator,
    center: Option<&str>,
    scale: &str,
) -> Result<AffineScaler> {
    let shift = match center {
        Some(center) => estimator.optional_vector(&[center])?,
        None => None,
    };
    let factor = estimator.optional_vector(&[scale])?;
    let columns = shift.as_ref().or(factor.as_ref()).map(Vec::len).or(estimator.features());
    let columns = columns.ok_or_else(|| estimator.damaged("the estimator is not fitted"))?;
    let shift = shift.unwrap_or_else(|| vec![0.0; columns]);
    let factor = factor.unwrap_or_else(|| vec![1.0; columns]);
    if shift.len() != columns || factor.len() != columns {
        return Err(estimator.damaged("its center and its scale differ in length"));
    }
    let offset = vec![0.0; columns];
    Ok(AffineScaler {
        shift,
        factor,
        offset,
        divides: true,
        bounds: None,
        keeps_zero: false,
        accepts: accepted(estimator),
    })
}

/// Reads a `StandardScaler`.
pub(super) fn standard(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let mut scaler = center_and_scale(estimator, Some("mean_"), "scale_")?;
    // The name of the scale before 0.17.
    if estimator.find(&["scale_"]).is_none() && estimator.find(&["std_"]).is_some() {
        scaler.factor = estimator.vector_of_len(&["std_"], scaler.shift.len())?;
    }
    // The mean is stored even if it is not subtracted.
    if !estimator.flag("with_mean", true)? {
        scaler.shift.fill(0.0);
    }
    if !estimator.flag("with_std", true)? {
        scaler.factor.fill(1.0);
    }
    Ok(scaler.checked())
}

/// Reads a `RobustScaler`.
pub(super) fn robust(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let mut scaler = center_and_scale(estimator, Some("center_"), "scale_")?;
    if !estimator.flag("with_centering", true)? {
        scaler.shift.fill(0.0);
    }
    if !estimator.flag("with_scaling", true)? {
        scaler.factor.fill(1.0);
    }
    Ok(scaler.checked())
}

/// Reads a `MinMaxScaler`.
pub(super) fn min_max(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let factor = estimator.vector(&["scale_"])?;
    let offset = estimator.vector_of_len(&["min_"], factor.len())?;
    let shift = vec![0.0; factor.len()];
    let bounds = match estimator.flag("clip", false)? {
        false => None,
        true => match *estimator.vector(&["feature_range"])? {
            [low, high] => Some((low, high)),
            _ => return Err(estimator.damaged("feature_range is not a pair")),
        },
    };
    Ok(Box::new(AffineScaler {
        shift,
        factor,
        offset,
        divides: false,
        bounds,
        keeps_zero: false,
        accepts: accepted(estimator),
    }))
}

/// Reads a `MaxAbsScaler`.
pub(super) fn max_abs(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let mut scaler = center_and_scale(estimator, None, "scale_")?;
    // Since 1.8.
    if estimator.flag("clip", false)? {
        scaler.bounds = Some((-1.0, 1.0));
    }
    Ok(scaler.checked())
}

/// Divides each row by its norm.
struct Normalizer {
    columns: usize,
    norm: Norm,
    /// A row with a smaller norm, or with a norm of 0, stays as it is.
    least_norm: f64,
}

/// The norm of a row.
#[derive(Clone, Copy)]
pub(super) enum Norm {
    L1,
    L2,
    Max,
}

impl Norm {
    /// Reads the parameter `norm`.
    pub(super) fn read(estimator: &Estimator) -> Result<Self> {
        match estimator.text("norm")? {
            "l1" => Ok(Norm::L1),
            "l2" => Ok(Norm::L2),
            "max" => Ok(Norm::Max),
            other => Err(estimator.damaged(format_args!("norm={other:?} is not valid"))),
        }
    }

    /// Divides the values of a sparse row by its norm, unless that is 0.
    pub(super) fn divide_sparse(self, row: &mut [(u32, f64)]) {
        let values = row.iter().map(|(_, value)| *value);
        let norm = match self {
            Norm::L1 => values.map(f64::abs).sum(),
            Norm::L2 => values.map(|value| value * value).sum::<f64>().sqrt(),
            Norm::Max => values.map(f64::abs).fold(0.0, f64::max),
        };
        if norm != 0.0 {
            row.iter_mut().for_each(|(_, value)| *value /= norm);
        }
    }
}

impl Transformer for Normalizer {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.columns).sparse()
    }

    fn output(&self) -> usize {
        self.columns
    }

    fn makes_sparse(&self, from_sparse: bool) -> bool {
        from_sparse
    }

    fn apply_sparse(&self, rows: FeatureRows) -> Result<SparseMatrix> {
        let mut matrix = rows.to_sparse();
        (0..matrix.len()).for_each(|row| self.norm.divide_sparse(matrix.row_mut(row)));
        Ok(matrix)
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(rows.columns)) {
            let norm = match self.norm {
                Norm::L1 => row.iter().map(|x| x.abs()).sum(),
                Norm::L2 => dot(row, row).sqrt(),
                Norm::Max => row.iter().map(|x| x.abs()).fold(0.0, f64::max),
            };
            let norm = if norm == 0.0 || norm < self.least_norm { 1.0 } else { norm };
            to.iter_mut().zip(row).for_each(|(to, x)| *to = x / norm);
        }
        Ok(())
    }
}

/// Reads a `Normalizer` of `columns` columns.
pub(super) fn normalizer(estimator: &Estimator, columns: usize) -> Result<Box<dyn Transformer>> {
    let norm = Norm::read(estimator)?;
    let least_norm = if estimator.is_older_than(1, 0) { 0.0 } else { 10.0 * f64::EPSILON };
    Ok(Box::new(Normalizer { columns, norm, least_norm }))
}

/// 1 for a value above the threshold, else 0.
struct Binarizer {
    columns: usize,
    threshold: f64,
}

impl Transformer for Binarizer {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.columns)
    }

    fn output(&self) -> usize {
        self.columns
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (to, x) in to.iter_mut().zip(rows.values) {
            *to = indicator(*x > self.threshold);
        }
        Ok(())
    }
}

/// Reads a `Binarizer` of `columns` columns.
pub(super) fn binarizer(estimator: &Estimator, columns: usize) -> Result<Box<dyn Transformer>> {
    let threshold = estimator.number(&["threshold"])?;
    Ok(Box::new(Binarizer { columns, threshold }))
}
