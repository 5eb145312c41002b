//! Transformers that change the distribution of columns: `PowerTransformer`, `QuantileTransformer` and
//! `KBinsDiscretizer`.

use super::accepted::AcceptedValues;
use super::estimator::Estimator;
use super::model::{FeatureRows, StepFacts, Transformer};
use super::normal;
use tensorserve_pickle::PickleValue;
use tensorserve_tensor::error::{Error, Result};

/// How near a bound of a normal distribution a value may be.
const BOUNDS_THRESHOLD: f64 = 1e-7;

/// The columns of a `PowerTransformer`.
pub(super) struct PowerColumns {
    lambdas: Vec<f64>,
    is_box_cox: bool,
    /// Mean and scale of each column after the transformation.
    scaler: Option<(Vec<f64>, Vec<f64>)>,
}

impl PowerColumns {
    /// Reads a `PowerTransformer` of `columns` columns, if their number is known.
    pub(super) fn read(estimator: &Estimator, columns: Option<usize>) -> Result<Self> {
        let lambdas = estimator.vector(&["lambdas_"])?;
        if lambdas.is_empty() || columns.is_some_and(|columns| columns != lambdas.len()) {
            return Err(estimator.damaged("lambdas_ does not have a number for each column"));
        }
        let scaler = match estimator.flag("standardize", true)? {
            false => None,
            true => {
                let scaler = estimator.child(estimator.attribute(&["_scaler"])?)?;
                let count = lambdas.len();
                Some((
                    scaler.vector_of_len(&["mean_"], count)?,
                    scaler.vector_of_len(&["scale_"], count)?,
                ))
            }
        };
        let is_box_cox = estimator.text("method")? == "box-cox";
        Ok(PowerColumns { lambdas, is_box_cox, scaler })
    }

    fn transform(&self, row: &mut [f64]) {
        for (value, lambda) in row.iter_mut().zip(&self.lambdas) {
            *value = match self.is_box_cox {
                true => box_cox(*value, *lambda),
                false => yeo_johnson(*value, *lambda),
            };
        }
    }

    /// Refuses a power that is infinite, as the `StandardScaler` that follows does.
    fn check(&self, row: &[f64], number: usize) -> Result<()> {
        match self.scaler.is_some() && row.iter().any(|value| value.is_infinite()) {
            true => Err(Error::invalid(format!(
                "row {number} has a value whose power is too large, which the model does not scale"
            ))),
            false => Ok(()),
        }
    }

    fn scale(&self, row: &mut [f64]) {
        if let Some((means, scales)) = &self.scaler {
            for ((value, mean), scale) in row.iter_mut().zip(means).zip(scales) {
                *value = (*value - mean) / scale;
            }
        }
    }

    /// The inverse for the values of a row.
    pub(super) fn invert(&self, row: &mut [f64]) {
        if let Some((means, scales)) = &self.scaler {
            for ((value, mean), scale) in row.iter_mut().zip(means).zip(scales) {
                *value = *value * scale + mean;
            }
        }
        for (value, lambda) in row.iter_mut().zip(&self.lambdas) {
            *value = match self.is_box_cox {
                true if *lambda == 0.0 => value.exp(),
                true => (*value * lambda + 1.0).powf(1.0 / lambda),
                false => inverse_yeo_johnson(*value, *lambda),
            };
        }
    }
}

/// The transformation of Box and Cox, as SciPy computes it.
fn box_cox(x: f64, lambda: f64) -> f64 {
    match lambda.abs() < 1e-19 {
        true => x.ln(),
        false => (lambda * x.ln()).exp_m1() / lambda,
    }
}

/// The transformation of Yeo and Johnson, as SciPy computes it.
fn yeo_johnson(x: f64, lambda: f64) -> f64 {
    if x >= 0.0 {
        return match lambda.abs() < f64::EPSILON {
            true => x.ln_1p(),
            false => (lambda * x.ln_1p()).exp_m1() / lambda,
        };
    }
    match (lambda - 2.0).abs() > f64::EPSILON {
        true => -((2.0 - lambda) * (-x).ln_1p()).exp_m1() / (2.0 - lambda),
        false => -(-x).ln_1p(),
    }
}

fn inverse_yeo_johnson(x: f64, lambda: f64) -> f64 {
    if x >= 0.0 {
        return match lambda.abs() < f64::EPSILON {
            true => x.exp() - 1.0,
            false => (x * lambda + 1.0).powf(1.0 / lambda) - 1.0,
        };
    }
    match (lambda - 2.0).abs() > f64::EPSILON {
        true => 1.0 - (-(2.0 - lambda) * x + 1.0).powf(1.0 / (2.0 - lambda)),
        false => 1.0 - (-x).exp(),
    }
}

impl Transformer for PowerColumns {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.lambdas.len()).accepting(AcceptedValues::FiniteOrNan)
    }

    fn output(&self) -> usize {
        self.lambdas.len()
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let width = self.lambdas.len();
        for (number, (row, to)) in rows.iter().zip(to.chunks_exact_mut(width)).enumerate() {
            if self.is_box_cox && row.iter().any(|value| *value <= 0.0) {
                let row = rows.first_row + number;
                return Err(Error::invalid(format!(
                    "row {row} has a value that is not positive, as the Box-Cox transformation of the \
                     model needs it"
                )));
            }
            to.copy_from_slice(row);
            self.transform(to);
            self.check(to, rows.first_row + number)?;
            self.scale(to);
        }
        Ok(())
    }
}

/// Reads a `PowerTransformer`.
pub(super) fn power(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    Ok(Box::new(PowerColumns::read(estimator, None)?))
}

/// The columns of a `QuantileTransformer`.
pub(super) struct QuantileColumns {
    /// For each column, its quantiles in ascending order.
    quantiles: Vec<Vec<f64>>,
    /// The share of each quantile.
    references: Vec<f64>,
    is_normal: bool,
    /// Whether values near the first and the last quantile count as these, and shares keep a distance from
    /// 0 and 1: for a normal distribution, and up to 0.20 for a uniform one.
    has_margin: bool,
    /// Missing values are accepted since 0.20.
    accepts: AcceptedValues,
}

impl QuantileColumns {
    /// Reads a `QuantileTransformer` of `columns` columns, if their number is known.
    pub(super) fn read(estimator: &Estimator, columns: Option<usize>) -> Result<Self> {
        let matrix = estimator.matrix(&["quantiles_"])?;
        let references = estimator.vector_of_len(&["references_"], matrix.rows)?;
        if references.is_empty() || columns.is_some_and(|columns| columns != matrix.columns) {
            return Err(estimator.damaged("quantiles_ does not fit its columns"));
        }
        let mut quantiles = vec![Vec::with_capacity(matrix.rows); matrix.columns];
        for row in matrix.iter() {
            quantiles.iter_mut().zip(row).for_each(|(column, value)| column.push(*value));
        }
        let is_normal = estimator.text("output_distribution")? == "normal";
        let has_margin = is_normal || estimator.is_older_than(0, 21);
        let accepts = AcceptedValues::missing_since(estimator, 0, 20);
        Ok(QuantileColumns { quantiles, references, is_normal, has_margin, accepts })
    }

    fn at(&self, x: f64, quantiles: &[f64]) -> f64 {
        let (Some(first), Some(last)) = (quantiles.first(), quantiles.last()) else {
            return f64::NAN;
        };
        if x.is_nan() {
            return x;
        }
        let (is_low, is_high) = match self.has_margin {
            true => (x - BOUNDS_THRESHOLD < *first, x + BOUNDS_THRESHOLD > *last),
            false => (x == *first, x == *last),
        };
        // The mean of interpolations from both sides, which differ where quantiles are equal.
        let ascending = interpolate(x, quantiles, &self.references);
        let descending = interpolate_from_above(x, quantiles, &self.references);
        let mut share = 0.5 * (ascending + descending);
        if is_high {
            share = 1.0;
        }
        if is_low {
            share = 0.0;
        }
        let margin = BOUNDS_THRESHOLD - f64::EPSILON;
        match (self.is_normal, self.has_margin) {
            (true, _) => {
                let bound = normal::quantile(margin);
                normal::quantile(share).clamp(bound, -bound)
            }
            (false, true) => share.clamp(margin, 1.0 - margin),
            (false, false) => share,
        }
    }

    /// The inverse for the values of a row.
    pub(super) fn invert(&self, row: &mut [f64]) {
        for (value, quantiles) in row.iter_mut().zip(&self.quantiles) {
            let (Some(first), Some(last)) = (quantiles.first(), quantiles.last()) else { continue };
            let share = if self.is_normal { normal::probability(*value) } else { *value };
            let (is_low, is_high) = match self.has_margin {
                true => (share - BOUNDS_THRESHOLD < 0.0, share + BOUNDS_THRESHOLD > 1.0),
                false => (share == 0.0, share == 1.0),
            };
            *value = match (is_low, is_high) {
                (true, _) => *first,
                (_, true) => *last,
                _ => interpolate(share, &self.references, quantiles),
            };
        }
    }
}

/// `numpy.interp`: the value at `x` of straight lines through points, constant beyond them. Of points with
/// equal `x`, the last counts.
fn interpolate(x: f64, xs: &[f64], ys: &[f64]) -> f64 {
    let above = xs.partition_point(|known| *known <= x);
    let point = |index: usize| {
        (xs.get(index).copied().unwrap_or(f64::NAN), ys.get(index).copied().unwrap_or(f64::NAN))
    };
    if above == 0 {
        return point(0).1;
    }
    let (x0, y0) = point(above - 1);
    if above >= xs.len() || x0 == x {
        return y0;
    }
    let (x1, y1) = point(above);
    (y1 - y0) / (x1 - x0) * (x - x0) + y0
}

/// As [`interpolate`] with all numbers negative; of points with equal `x`, the first counts.
fn interpolate_from_above(x: f64, xs: &[f64], ys: &[f64]) -> f64 {
    let at = xs.partition_point(|known| *known < x);
    let point = |index: usize| {
        (xs.get(index).copied().unwrap_or(f64::NAN), ys.get(index).copied().unwrap_or(f64::NAN))
    };
    if at >= xs.len() {
        return point(xs.len().saturating_sub(1)).1;
    }
    let (x1, y1) = point(at);
    if at == 0 || x1 == x {
        return y1;
    }
    let (x0, y0) = point(at - 1);
    (y0 - y1) / (x0 - x1) * (x - x1) + y1
}

impl Transformer for QuantileColumns {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.quantiles.len()).accepting(self.accepts)
    }

    fn output(&self) -> usize {
        self.quantiles.len()
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.quantiles.len().max(1))) {
            for ((to, x), quantiles) in to.iter_mut().zip(row).zip(&self.quantiles) {
                *to = self.at(*x, quantiles);
            }
        }
        Ok(())
    }
}

/// Reads a `QuantileTransformer`.
pub(super) fn quantile(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    Ok(Box::new(QuantileColumns::read(estimator, None)?))
}

/// Replaces each value by the number of its bin, or by a column for each bin.
struct Bins {
    /// For each column, where one bin ends and the next begins.
    edges: Vec<Vec<f64>>,
    /// Whether a value just below an edge counts as above it: before 1.1.
    has_margin: bool,
    /// Whether values are rounded to single precision: `dtype=np.float32`.
    is_single: bool,
    is_one_hot: bool,
    /// Whether scikit-learn makes sparse rows.
    is_sparse_there: bool,
    output: usize,
}

impl Transformer for Bins {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.edges.len())
    }

    fn output(&self) -> usize {
        self.output
    }

    fn is_sparse_there(&self, _: bool) -> bool {
        self.is_sparse_there
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        to.fill(0.0);
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.output.max(1))) {
            let mut start = 0;
            for (column, (value, edges)) in row.iter().zip(&self.edges).enumerate() {
                let value = self.compared(*value);
                let bin = edges.partition_point(|edge| *edge <= value);
                let (place, number) = match self.is_one_hot {
                    true => (start + bin, 1.0),
                    false => (column, bin as f64),
                };
                start += edges.len() + 1;
                if let Some(to) = to.get_mut(place) {
                    *to = number;
                }
            }
        }
        Ok(())
    }
}

impl Bins {
    /// The number that is compared with the edges for `value`.
    fn compared(&self, value: f64) -> f64 {
        match (self.has_margin, self.is_single) {
            (false, false) => value,
            (false, true) => f64::from(value as f32),
            (true, false) => value + (1e-8 + 1e-5 * value.abs()),
            (true, true) => {
                let value = value as f32;
                f64::from(value + (1e-8 + 1e-5 * value.abs()))
            }
        }
    }
}

/// Reads a `KBinsDiscretizer`.
pub(super) fn bins(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let mut edges = Vec::new();
    let wrong = || estimator.damaged("bin_edges_ is not a list of arrays");
    for column in estimator.children(&["bin_edges_"])? {
        let array = column.value.array().ok_or_else(wrong)?;
        estimator.charge(array.len())?;
        let all = array.f64s().ok_or_else(wrong)?;
        let inner = all.get(1..all.len().saturating_sub(1)).ok_or_else(wrong)?;
        edges.push(inner.to_vec());
    }
    let encode = estimator.text("encode")?;
    let (is_one_hot, is_sparse_there) = (encode != "ordinal", encode == "onehot");
    let output = match is_one_hot {
        true => edges.iter().map(|edges| edges.len() + 1).sum(),
        false => edges.len(),
    };
    let dtype = estimator.find(&["dtype"]).and_then(PickleValue::class_name);
    Ok(Box::new(Bins {
        edges,
        has_margin: estimator.is_older_than(1, 1),
        is_single: dtype == Some("float32"),
        is_one_hot,
        is_sparse_there,
        output,
    }))
}
