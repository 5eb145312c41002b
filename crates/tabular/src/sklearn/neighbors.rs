//! Predictors by distance: nearest neighbours, and centers of clusters.

use super::estimator::{ClassLabels, Estimator};
use super::model::{ClassScores, Classifier, FeatureRows, Predictor, Regressor};
use super::numeric::{argmax, dot, indicator};
use tensorserve_tensor::error::Result;

/// A distance between two rows.
#[derive(Clone, Copy)]
enum Metric {
    Euclidean,
    Manhattan,
    Chebyshev,
    Minkowski(f64),
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
            Some(other) => return Err(estimator.unsupported(format_args!("the metric {other:?}"))),
            None => return Err(estimator.unsupported("a metric that is a function")),
        })
    }

    /// The reduced distance, which orders rows as the distance does, and takes less time.
    fn reduced_distance(self, a: &[f64], b: &[f64]) -> f64 {
        let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        match self {
            Metric::Euclidean => differences.map(|x| x * x).sum(),
            Metric::Manhattan => differences.sum(),
            Metric::Chebyshev => differences.fold(0.0, f64::max),
            Metric::Minkowski(power) => differences.map(|x| x.powf(power)).sum(),
        }
    }

    /// The distance of a reduced distance.
    fn distance(self, reduced: f64) -> f64 {
        match self {
            Metric::Euclidean => reduced.sqrt(),
            Metric::Manhattan | Metric::Chebyshev => reduced,
            Metric::Minkowski(power) => reduced.powf(1.0 / power),
        }
    }
}

/// The training rows.
struct TrainingRows {
    metric: Metric,
    features: usize,
    /// One row after the other.
    rows: Vec<f64>,
    count: usize,
    /// The number of neighbours that are taken into account.
    neighbors: usize,
    /// Whether neighbours are weighted by the inverse of their distance.
    weights_by_distance: bool,
}

/// A training row and its reduced distance.
type Candidate = (f64, usize);

/// The index of a training row and its weight.
type Neighbor = (usize, f64);

impl TrainingRows {
    fn read(estimator: &Estimator) -> Result<Self> {
        let rows = estimator.matrix(&["_fit_X"])?;
        let neighbors = estimator.count(&["n_neighbors"])?;
        if neighbors == 0 || neighbors > rows.rows {
            return Err(estimator.damaged(format_args!(
                "n_neighbors={neighbors} is not between 1 and the {} training rows",
                rows.rows
            )));
        }
        let weights_by_distance = match estimator.attribute(&["weights"])?.text() {
            Some("uniform") => false,
            Some("distance") => true,
            _ => return Err(estimator.unsupported("weights as a function")),
        };
        Ok(TrainingRows {
            metric: Metric::read(estimator)?,
            features: rows.columns,
            count: rows.rows,
            rows: rows.values,
            neighbors,
            weights_by_distance,
        })
    }

    /// Fills `out` with the nearest neighbours of `row`, nearest first. `candidates` is a buffer.
    fn find(&self, row: &[f64], candidates: &mut Vec<Candidate>, out: &mut Vec<Neighbor>) {
        candidates.clear();
        let known = self.rows.chunks_exact(self.features).enumerate();
        candidates.extend(
            known.map(|(number, known)| (self.metric.reduced_distance(row, known), number)),
        );
        if self.neighbors < candidates.len() {
            candidates.select_nth_unstable_by(self.neighbors, nearer);
            candidates.truncate(self.neighbors);
        }
        candidates.sort_unstable_by(nearer);
        out.clear();
        if !self.weights_by_distance {
            out.extend(candidates.iter().map(|(_, number)| (*number, 1.0)));
            return;
        }
        // If the row equals training rows, only those count.
        let is_known = candidates.iter().any(|(reduced, _)| *reduced == 0.0);
        out.extend(candidates.iter().map(|(reduced, number)| match is_known {
            true => (*number, indicator(*reduced == 0.0)),
            false => (*number, 1.0 / self.metric.distance(*reduced)),
        }));
    }
}

/// Orders by distance, then by the order of the training rows.
fn nearer(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
}

struct NeighborsClassifier {
    training: TrainingRows,
    /// The class of each training row.
    row_classes: Vec<usize>,
    classes: usize,
}

impl Classifier for NeighborsClassifier {
    fn features(&self) -> usize {
        self.training.features
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let (mut candidates, mut nearest) = (Vec::with_capacity(self.training.count), Vec::new());
        let scores = scores.chunks_exact_mut(self.classes);
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            self.training.find(row, &mut candidates, &mut nearest);
            scores.fill(0.0);
            for (number, weight) in &nearest {
                let class = self.row_classes.get(*number).copied().unwrap_or(0);
                if let Some(score) = scores.get_mut(class) {
                    *score += weight;
                }
            }
            *class = argmax(scores);
            let sum: f64 = scores.iter().sum();
            let sum = if sum == 0.0 { 1.0 } else { sum };
            scores.iter_mut().for_each(|score| *score /= sum);
        }
        Ok(())
    }
}

/// Reads a `KNeighborsClassifier`.
pub(super) fn classifier(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let classes = labels.len();
    let training = TrainingRows::read(estimator)?;
    let row_classes = estimator.vector_of_len(&["_y"], training.count)?;
    let row_classes: Vec<usize> = row_classes.into_iter().map(|class| class as usize).collect();
    if row_classes.iter().any(|class| *class >= classes) {
        return Err(estimator.damaged(format_args!("_y has a class beyond the {classes} classes")));
    }
    let model = NeighborsClassifier { training, row_classes, classes };
    Ok(Predictor::classifier(model, labels, ClassScores::Probabilities))
}

struct NeighborsRegressor {
    training: TrainingRows,
    /// For each training row, its targets.
    targets: Vec<f64>,
    width: usize,
    is_vector: bool,
}

impl Regressor for NeighborsRegressor {
    fn features(&self) -> usize {
        self.training.features
    }

    fn outputs(&self) -> Option<usize> {
        (!self.is_vector).then_some(self.width)
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let (mut candidates, mut nearest) = (Vec::with_capacity(self.training.count), Vec::new());
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.width)) {
            self.training.find(row, &mut candidates, &mut nearest);
            out.fill(0.0);
            let mut sum = 0.0;
            for (number, weight) in &nearest {
                let range = number * self.width..(number + 1) * self.width;
                let targets = self.targets.get(range).unwrap_or_default();
                out.iter_mut().zip(targets).for_each(|(out, target)| *out += target * weight);
                sum += weight;
            }
            out.iter_mut().for_each(|out| *out /= sum);
        }
        Ok(())
    }
}

/// Reads a `KNeighborsRegressor`.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    let training = TrainingRows::read(estimator)?;
    let (shape, targets) = estimator.numbers(&["_y"])?;
    let width = match *shape {
        [rows] if rows == training.count => 1,
        [rows, width] if rows == training.count && width > 0 => width,
        _ => {
            let rows = training.count;
            return Err(estimator.damaged(format_args!("_y does not have {rows} rows, as _fit_X")));
        }
    };
    let is_vector = shape.len() == 1;
    Ok(Predictor::regressor(NeighborsRegressor { training, targets, width, is_vector }))
}

/// Predicts the cluster whose center is nearest.
struct ClusterCenters {
    features: usize,
    /// One center after the other.
    centers: Vec<f64>,
    /// The square of the norm of each center.
    squared_norms: Vec<f64>,
    count: usize,
}

impl Classifier for ClusterCenters {
    fn features(&self) -> usize {
        self.features
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let scores = scores.chunks_exact_mut(self.count);
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            let centers = self.centers.chunks_exact(self.features).zip(&self.squared_norms);
            for (score, (center, squared_norm)) in scores.iter_mut().zip(centers) {
                // Without the square of the row, which is the same for all centers and would hide
                // what differs if the row is far away.
                *score = 2.0 * dot(row, center) - squared_norm;
            }
            *class = argmax(scores);
        }
        Ok(())
    }
}

/// Reads a `KMeans` or a `MiniBatchKMeans`, which predicts the index of the cluster.
pub(super) fn clusters(estimator: &Estimator) -> Result<Predictor> {
    let centers = estimator.matrix(&["cluster_centers_"])?;
    let count = centers.rows;
    if count == 0 {
        return Err(estimator.damaged("cluster_centers_ is empty"));
    }
    let squared_norms = centers.iter().map(|center| dot(center, center)).collect();
    let (features, centers) = (centers.columns, centers.values);
    let model = ClusterCenters { features, centers, squared_norms, count };
    Ok(Predictor::classifier(model, ClassLabels::range(count), ClassScores::None))
}
