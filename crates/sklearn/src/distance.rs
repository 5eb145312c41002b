//! Distances, and the training rows that are nearest to a row.

use super::estimator::Estimator;
use super::kernel::{Kernel, sum_over_pairs};
use super::known_rows::{KnownRows, PairFunction, RowPairs};
use super::model::FeatureRows;
use super::numeric::indicator;
use tensorserve_tensor::error::Result;

/// A distance between two rows.
#[derive(Clone, Copy)]
pub(super) enum Metric {
    Euclidean,
    Manhattan,
    Chebyshev,
    Minkowski(f64),
    /// 1 less the cosine of the angle.
    Cosine,
}

impl Metric {
    fn read(estimator: &Estimator) -> Result<Self> {
        if let Some(parameters) = estimator.find(&["effective_metric_params_", "metric_params"])
            && parameters.entries().any(|(key, value)| key.text() != Some("p") && !value.is_none())
        {
            return Err(estimator.unsupported("a metric with parameters of its own"));
        }
        let power = estimator.find(&["p"]).and_then(|p| p.float()).unwrap_or(2.0);
        let name =
            estimator.find(&["effective_metric_", "metric"]).and_then(|metric| metric.text());
        Ok(match name {
            Some("euclidean" | "l2") => Metric::Euclidean,
            Some("manhattan" | "cityblock" | "l1") => Metric::Manhattan,
            Some("chebyshev" | "infinity") => Metric::Chebyshev,
            Some("minkowski" | "p") if power == 2.0 => Metric::Euclidean,
            Some("minkowski" | "p") if power == 1.0 => Metric::Manhattan,
            Some("minkowski" | "p") if power.is_infinite() => Metric::Chebyshev,
            Some("minkowski" | "p") if power > 0.0 => Metric::Minkowski(power),
            Some("cosine") => Metric::Cosine,
            Some(other) => return Err(estimator.unsupported(format_args!("the metric {other:?}"))),
            None => return Err(estimator.unsupported("a metric that is a function")),
        })
    }

    /// The distance of a reduced distance.
    pub(super) fn distance(self, reduced: f64) -> f64 {
        match self {
            Metric::Euclidean => reduced.sqrt(),
            Metric::Manhattan | Metric::Chebyshev | Metric::Cosine => reduced,
            Metric::Minkowski(power) => reduced.powf(1.0 / power),
        }
    }
}

/// The reduced distance, which orders rows as the distance does, and takes less time.
impl PairFunction for Metric {
    fn of_dense(&self, a: &[f64], b: &[f64]) -> f64 {
        let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        match *self {
            Metric::Euclidean => differences.map(|x| x * x).sum(),
            Metric::Manhattan => differences.sum(),
            Metric::Chebyshev => differences.fold(0.0, f64::max),
            Metric::Minkowski(power) => differences.map(|x| x.powf(power)).sum(),
            Metric::Cosine => (1.0 - Kernel::Cosine.of_dense(a, b)).clamp(0.0, 2.0),
        }
    }

    fn of_sparse(&self, a: &[(u32, f64)], b: &[(u32, f64)]) -> f64 {
        match *self {
            Metric::Euclidean => sum_over_pairs(a, b, |a, b| (a - b) * (a - b)),
            Metric::Manhattan => sum_over_pairs(a, b, |a, b| (a - b).abs()),
            Metric::Chebyshev => {
                let mut largest = 0.0_f64;
                sum_over_pairs(a, b, |a, b| {
                    largest = largest.max((a - b).abs());
                    0.0
                });
                largest
            }
            Metric::Minkowski(power) => sum_over_pairs(a, b, |a, b| (a - b).abs().powf(power)),
            Metric::Cosine => (1.0 - Kernel::Cosine.of_sparse(a, b)).clamp(0.0, 2.0),
        }
    }
}

/// Which training rows are taken into account.
#[derive(Clone, Copy)]
enum Selection {
    /// This many rows, those that are nearest.
    Nearest(usize),
    /// The rows that are not farther than this.
    Within(f64),
}

/// The training rows of a model of neighbours.
pub(super) struct TrainingRows {
    metric: Metric,
    rows: KnownRows,
    selection: Selection,
    /// Whether neighbours are weighted by the inverse of their distance.
    weights_by_distance: bool,
}

/// A neighbour of a row.
#[derive(Clone, Copy)]
pub(super) struct Neighbor {
    /// The index of the training row.
    pub(super) row: usize,
    pub(super) distance: f64,
    pub(super) weight: f64,
}

impl TrainingRows {
    /// The training rows of an estimator that counts the number of neighbours in the first of `names`.
    pub(super) fn nearest(estimator: &Estimator, names: &[&str]) -> Result<Self> {
        let neighbors = estimator.count(names)?;
        let read = TrainingRows::read(estimator, Selection::Nearest(neighbors))?;
        if neighbors == 0 || neighbors > read.len() {
            return Err(estimator.damaged(format_args!(
                "n_neighbors={neighbors} is not between 1 and the {} training rows",
                read.len()
            )));
        }
        Ok(read)
    }

    /// The training rows of an estimator with a radius.
    pub(super) fn within_radius(estimator: &Estimator) -> Result<Self> {
        let radius = estimator.number(&["radius"])?;
        TrainingRows::read(estimator, Selection::Within(radius))
    }

    fn read(estimator: &Estimator, selection: Selection) -> Result<Self> {
        let rows = KnownRows::read(estimator, &["_fit_X"])?;
        let weights = estimator.find(&["weights"]);
        let weights_by_distance = match weights.map(|weights| weights.text()) {
            None | Some(Some("uniform")) => false,
            Some(Some("distance")) => true,
            Some(_) => return Err(estimator.unsupported("weights as a function")),
        };
        Ok(TrainingRows { metric: Metric::read(estimator)?, rows, selection, weights_by_distance })
    }

    pub(super) fn features(&self) -> usize {
        self.rows.features()
    }

    /// The number of training rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn are_sparse(&self) -> bool {
        self.rows.are_sparse()
    }

    /// A search for the neighbours of `rows`.
    pub(super) fn search<'a>(&'a self, rows: FeatureRows<'a>) -> NeighborSearch<'a> {
        NeighborSearch {
            training: self,
            pairs: self.rows.compare(rows),
            distances: vec![0.0; self.len()],
            candidates: Vec::with_capacity(self.len()),
            found: Vec::new(),
        }
    }
}

/// A training row and its reduced distance.
type NeighborCandidate = (f64, usize);

/// A search for neighbours, with the memory that it uses again.
pub(super) struct NeighborSearch<'a> {
    training: &'a TrainingRows,
    pairs: RowPairs<'a>,
    distances: Vec<f64>,
    candidates: Vec<NeighborCandidate>,
    found: Vec<Neighbor>,
}

impl NeighborSearch<'_> {
    /// The neighbours of row number `row`, nearest first.
    pub(super) fn find(&mut self, row: usize) -> &[Neighbor] {
        let metric = self.training.metric;
        self.pairs.evaluate(row, &metric, &mut self.distances);
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.extend(self.distances.iter().enumerate().map(|(row, reduced)| (*reduced, row)));
        match self.training.selection {
            Selection::Nearest(count) if count < candidates.len() => {
                candidates.select_nth_unstable_by(count, nearer);
                candidates.truncate(count);
            }
            Selection::Nearest(_) => {}
            Selection::Within(radius) => {
                candidates.retain(|(reduced, _)| metric.distance(*reduced) <= radius);
            }
        }
        candidates.sort_unstable_by(nearer);
        // If the row equals training rows, only those count.
        let is_known = candidates.iter().any(|(reduced, _)| *reduced == 0.0);
        let by_distance = self.training.weights_by_distance;
        self.found.clear();
        self.found.extend(candidates.iter().map(|(reduced, row)| {
            let distance = metric.distance(*reduced);
            let weight = match (by_distance, is_known) {
                (false, _) => 1.0,
                (true, true) => indicator(*reduced == 0.0),
                (true, false) => 1.0 / distance,
            };
            Neighbor { row: *row, distance, weight }
        }));
        &self.found
    }
}

/// Orders by distance, then by the order of the training rows.
fn nearer(a: &NeighborCandidate, b: &NeighborCandidate) -> std::cmp::Ordering {
    a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
}
