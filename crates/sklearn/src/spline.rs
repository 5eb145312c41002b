//! `SplineTransformer`: the values of all B-splines of a basis at a number.

use super::accepted::AcceptedValues;
use super::estimator::Estimator;
use super::model::{FeatureRows, StepFacts, Transformer};
use tensorserve_tensor::error::{Error, Result};

/// The highest degree: that many products make a value.
const MAX_DEGREE: usize = 32;

/// What becomes of numbers beyond the first and the last knot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extrapolation {
    Refused,
    /// The polynomials go on.
    Continued,
    /// As at the knot.
    Constant,
    /// Straight lines.
    Linear,
    Periodic,
}

/// The splines of a column.
struct SplineBasis {
    knots: Vec<f64>,
    degree: usize,
    /// How many splines there are. Those of a periodic basis stand for several.
    count: usize,
}

/// The values of the splines that are not 0 at a place.
struct LocalValues {
    /// The index of the first of them.
    first: usize,
    values: [f64; MAX_DEGREE + 1],
}

impl SplineBasis {
    fn knot(&self, index: usize) -> f64 {
        self.knots.get(index).copied().unwrap_or(f64::NAN)
    }

    /// The number of splines, each counted.
    fn splines(&self) -> usize {
        self.knots.len() - self.degree - 1
    }

    /// The first and the last knot of the range of the training.
    fn range(&self) -> (f64, f64) {
        (self.knot(self.degree), self.knot(self.splines()))
    }

    /// The interval between two knots that `x` is in; beyond all, the first or the last.
    fn interval(&self, x: f64) -> usize {
        let last = self.splines() - 1;
        let inner = self.knots.get(self.degree..=last).unwrap_or_default();
        let below = inner.partition_point(|knot| *knot <= x);
        (self.degree + below.saturating_sub(1)).min(last)
    }

    /// The values of the splines of `degree` at `x`, by the recursion of de Boor.
    fn local(&self, x: f64, interval: usize, degree: usize) -> LocalValues {
        let mut values = [0.0; MAX_DEGREE + 1];
        values[0] = 1.0;
        for step in 1..=degree {
            let mut carried = 0.0;
            for place in 0..step {
                let right = self.knot(interval + 1 + place);
                let left = self.knot(interval + 1 + place - step);
                let Some(value) = values.get_mut(place) else { break };
                let share = if right == left { 0.0 } else { *value / (right - left) };
                *value = carried + share * (right - x);
                carried = share * (x - left);
            }
            if let Some(value) = values.get_mut(step) {
                *value = carried;
            }
        }
        LocalValues { first: interval - degree, values }
    }

    /// Adds the values of all splines at `x`, `factor` times, to `out`.
    fn add_values(&self, x: f64, factor: f64, out: &mut [f64]) {
        let local = self.local(x, self.interval(x), self.degree);
        for (place, value) in local.values.iter().take(self.degree + 1).enumerate() {
            if let Some(out) = out.get_mut((local.first + place) % self.count.max(1)) {
                *out += factor * value;
            }
        }
    }

    /// Adds the slopes of all splines at `x`, `factor` times, to `out`.
    fn add_slopes(&self, x: f64, factor: f64, out: &mut [f64]) {
        let Some(lower) = self.degree.checked_sub(1) else { return };
        let interval = self.interval(x);
        let local = self.local(x, interval, lower);
        // The slope of a spline is the difference of two of the lower degree.
        for (place, value) in local.values.iter().take(self.degree).enumerate() {
            let spline = local.first + place;
            let width = self.knot(spline + self.degree) - self.knot(spline);
            let slope = if width == 0.0 { 0.0 } else { self.degree as f64 * value / width };
            for (spline, slope) in [(spline, slope), (spline - 1, -slope)] {
                if let Some(out) = out.get_mut(spline % self.count.max(1)) {
                    *out += factor * slope;
                }
            }
        }
    }
}

struct Splines {
    columns: Vec<SplineBasis>,
    extrapolation: Extrapolation,
    /// Whether a missing value makes zeros.
    takes_missing: bool,
    /// Whether scikit-learn makes sparse rows.
    is_sparse_there: bool,
    /// The splines of a column, and how many of them are columns of the output.
    count: usize,
    kept: usize,
}

impl Splines {
    /// Writes the splines of a column at `x`. `degree` is the one that scikit-learn works with, which is
    /// not always that of the basis.
    fn write(&self, basis: &SplineBasis, degree: usize, x: f64, out: &mut [f64]) -> Result<()> {
        out.fill(0.0);
        if x.is_nan() {
            return Ok(());
        }
        let (first, last) = basis.range();
        match self.extrapolation {
            Extrapolation::Continued => basis.add_values(x, 1.0, out),
            Extrapolation::Refused if x < first || x > last => {
                return Err(Error::invalid(format!(
                    "the value {x} is beyond the knots of the model's SplineTransformer, {first} to {last}"
                )));
            }
            Extrapolation::Refused => basis.add_values(x, 1.0, out),
            Extrapolation::Periodic => {
                let period = last - first;
                let within = match period > 0.0 {
                    true => first + (x - first).rem_euclid(period),
                    false => 0.0,
                };
                basis.add_values(within, 1.0, out);
            }
            Extrapolation::Constant => {
                basis.add_values(x.clamp(first, last), 1.0, out);
                // Of the splines at a knot, scikit-learn takes as many as the degree.
                let count = out.len();
                if x < first {
                    out.iter_mut().skip(degree).for_each(|value| *value = 0.0);
                } else if x > last {
                    out.iter_mut().take(count - degree).for_each(|value| *value = 0.0);
                }
            }
            Extrapolation::Linear => {
                let first = basis.knot(degree);
                let last = basis.knot(basis.knots.len() - degree - 1);
                if (first..=last).contains(&x) {
                    basis.add_values(x, 1.0, out);
                    return Ok(());
                }
                let count = if degree <= 1 { degree + 1 } else { degree };
                let (knot, taken) = match x < first {
                    true => (first, 0..count),
                    false => (last, out.len().saturating_sub(count)..out.len()),
                };
                basis.add_values(knot, 1.0, out);
                basis.add_slopes(knot, x - knot, out);
                for (number, value) in out.iter_mut().enumerate() {
                    *value = if taken.contains(&number) { *value } else { 0.0 };
                }
            }
        }
        Ok(())
    }
}

impl Transformer for Splines {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.columns.len()).accepting(if self.takes_missing {
            AcceptedValues::Any
        } else {
            AcceptedValues::Finite
        })
    }

    fn output(&self) -> usize {
        self.columns.len() * self.kept
    }

    fn is_sparse_there(&self, _: bool) -> bool {
        self.is_sparse_there
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let mut values = vec![0.0; self.count];
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.output().max(1))) {
            let mut degree = self.columns.first().map_or(0, |basis| basis.degree);
            for ((basis, x), to) in
                self.columns.iter().zip(row).zip(to.chunks_exact_mut(self.kept.max(1)))
            {
                self.write(basis, degree, *x, &mut values)?;
                to.iter_mut().zip(&values).for_each(|(to, value)| *to = *value);
                // scikit-learn raises a low degree for lines, and keeps it for the columns that follow.
                if self.extrapolation == Extrapolation::Linear && degree <= 1 {
                    degree += 1;
                }
            }
        }
        Ok(())
    }
}

/// The object with the parts of a spline. Since SciPy 1.18 that is the first part of the state of a
/// `BSpline`, whose second is an empty array.
fn backend(spline: Estimator) -> Result<Estimator> {
    let state = spline.value.object().and_then(|object| object.state);
    let parts = state.and_then(|state| spline.value.other(state).items());
    match parts.unwrap_or_default().first() {
        Some(first) if first.class_name() == Some("_BSpline") => spline.child(*first),
        _ => Ok(spline),
    }
}

/// Reads a `SplineTransformer`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let extrapolation = match estimator.text("extrapolation")? {
        "error" => Extrapolation::Refused,
        "continue" => Extrapolation::Continued,
        "constant" => Extrapolation::Constant,
        "linear" => Extrapolation::Linear,
        "periodic" => Extrapolation::Periodic,
        other => {
            return Err(estimator.unsupported(format_args!("the extrapolation {other:?}")));
        }
    };
    let mut columns = Vec::new();
    let mut count = None;
    for spline in estimator.children(&["bsplines_"])? {
        let spline = backend(spline)?;
        let knots = spline.vector(&["_t", "t"])?;
        let degree = spline.count(&["k"])?;
        let coefficients = spline.array(&["_c", "c"])?;
        let [rows, width] = *coefficients.shape() else {
            return Err(estimator.damaged("the coefficients of a spline are not a matrix"));
        };
        let is_valid = degree <= MAX_DEGREE
            && knots.len() > degree + 1
            && rows == knots.len() - degree - 1
            && (degree < width && width <= rows)
            && knots.len() > 2 * degree + 1
            && knots.is_sorted()
            && *count.get_or_insert(width) == width;
        if !is_valid {
            return Err(estimator.damaged("the knots, the degree and the size of a spline differ"));
        }
        columns.push(SplineBasis { knots, degree, count: width });
    }
    let count = count.ok_or_else(|| estimator.damaged("it has no splines"))?;
    let kept = count - usize::from(!estimator.flag("include_bias", true)?);
    if kept == 0 {
        return Err(estimator.damaged("it makes no columns"));
    }
    Ok(Box::new(Splines {
        columns,
        extrapolation,
        takes_missing: estimator.text("handle_missing")? == "zeros",
        is_sparse_there: estimator.flag("sparse_output", false)?,
        count,
        kept,
    }))
}
