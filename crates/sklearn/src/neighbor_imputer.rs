//! `KNNImputer`: replaces a missing value by the mean of that of the training rows that are nearest.

use super::estimator::Estimator;
use super::imputer::{accepted_with_missing, is_missing, read_indicated, read_missing};
use super::model::{FeatureRows, StepFacts, Transformer};
use super::numeric::indicator;
use tensorserve_tensor::error::Result;

struct NeighborImputer {
    features: usize,
    /// The training rows, one after the other; NaN is missing.
    rows: Vec<f64>,
    /// The columns that are kept. Those of them without a value in the training have no mean.
    kept: Vec<usize>,
    /// For each column, the mean of its values in the training; `None` without any.
    means: Vec<Option<f64>>,
    neighbors: usize,
    weights_by_distance: bool,
    missing: f64,
    indicated: Vec<usize>,
}

/// The distance of rows by the columns that both have, scaled up to all columns; NaN without such columns.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let (mut sum, mut present) = (0.0, 0_u32);
    for (a, b) in a.iter().zip(b) {
        if !a.is_nan() && !b.is_nan() {
            sum += (a - b) * (a - b);
            present += 1;
        }
    }
    match present {
        0 => f64::NAN,
        _ => (sum / f64::from(present) * a.len() as f64).sqrt(),
    }
}

impl NeighborImputer {
    /// The value of a column, given the distances of the training rows.
    fn impute(&self, column: usize, distances: &[f64], donors: &mut Vec<(f64, f64)>) -> f64 {
        donors.clear();
        let values = self.rows.iter().skip(column).step_by(self.features);
        let pairs = distances.iter().copied().zip(values.copied());
        donors.extend(pairs.filter(|(distance, value)| !value.is_nan() && !distance.is_nan()));
        let mean = self.means.get(column).copied().flatten();
        if donors.is_empty() {
            return mean.unwrap_or(f64::NAN);
        }
        if self.neighbors < donors.len() {
            donors.select_nth_unstable_by(self.neighbors, |a, b| a.0.total_cmp(&b.0));
            donors.truncate(self.neighbors);
        }
        // If the row equals training rows, only those count.
        let is_known = donors.iter().any(|(distance, _)| *distance == 0.0);
        let (mut sum, mut weights) = (0.0, 0.0);
        for (distance, value) in donors {
            let weight = match (self.weights_by_distance, is_known) {
                (false, _) => 1.0,
                (true, true) => indicator(*distance == 0.0),
                (true, false) => 1.0 / *distance,
            };
            sum += weight * *value;
            weights += weight;
        }
        sum / weights
    }
}

impl Transformer for NeighborImputer {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).accepting(accepted_with_missing(self.missing))
    }

    fn output(&self) -> usize {
        self.kept.len() + self.indicated.len()
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let mut marked = vec![0.0; self.features];
        let (mut distances, mut donors) = (Vec::new(), Vec::new());
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(self.output().max(1))) {
            for (marked, x) in marked.iter_mut().zip(row) {
                *marked = if is_missing(*x, self.missing) { f64::NAN } else { *x };
            }
            distances.clear();
            let (kept, indicators) = to.split_at_mut(self.kept.len());
            for (to, column) in kept.iter_mut().zip(&self.kept) {
                let x = marked.get(*column).copied().unwrap_or(f64::NAN);
                *to = match self.means.get(*column) {
                    // Kept although it never had a value.
                    Some(None) => 0.0,
                    _ if !x.is_nan() => x,
                    _ => {
                        if distances.is_empty() {
                            let known = self.rows.chunks_exact(self.features);
                            distances.extend(known.map(|known| distance(&marked, known)));
                        }
                        self.impute(*column, &distances, &mut donors)
                    }
                };
            }
            for (to, column) in indicators.iter_mut().zip(&self.indicated) {
                *to = indicator(marked.get(*column).is_some_and(|x| x.is_nan()));
            }
        }
        Ok(())
    }
}

/// Reads a `KNNImputer`.
pub(super) fn read(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    if estimator.text("metric")? != "nan_euclidean" {
        return Err(estimator.unsupported("a metric other than nan_euclidean"));
    }
    let weights_by_distance = match estimator.text("weights")? {
        "uniform" => false,
        "distance" => true,
        _ => return Err(estimator.unsupported("weights as a function")),
    };
    let (missing, is_text) = read_missing(estimator)?;
    if is_text {
        return Err(estimator.damaged("missing_values is a text"));
    }
    let matrix = estimator.matrix(&["_fit_X"])?;
    let features = matrix.columns;
    let mark = |x: f64| if is_missing(x, missing) { f64::NAN } else { x };
    let rows: Vec<f64> = matrix.values.into_iter().map(mark).collect();
    let mean = |column: usize| {
        let values = rows.iter().skip(column).step_by(features).filter(|x| !x.is_nan());
        let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), x| (sum + x, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    let means: Vec<Option<f64>> = (0..features).map(mean).collect();
    let keeps_empty = estimator.flag("keep_empty_features", false)?;
    let has_value = |column: &usize| means.get(*column).is_some_and(Option::is_some);
    let kept: Vec<usize> =
        (0..features).filter(|column| keeps_empty || has_value(column)).collect();
    let indicated = match estimator.flag("add_indicator", false)? {
        true => {
            let indicator = estimator.child(estimator.attribute(&["indicator_"])?)?;
            read_indicated(&indicator, features)?
        }
        false => Vec::new(),
    };
    let neighbors = estimator.count(&["n_neighbors"])?.max(1);
    if kept.is_empty() {
        return Err(estimator.damaged("it keeps no columns"));
    }
    Ok(Box::new(NeighborImputer {
        features,
        rows,
        kept,
        means,
        neighbors,
        weights_by_distance,
        missing,
        indicated,
    }))
}
