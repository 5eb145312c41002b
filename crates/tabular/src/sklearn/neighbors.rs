//! What looks at the rows it was fitted with: nearest neighbours, and centers of clusters.

use super::estimator::{Estimator, Labels};
use super::model::{Classify, Gives, Predictor, Regress, Rows, largest};
use tensorserve_tensor::error::Result;

/// How far apart two rows are.
#[derive(Clone, Copy)]
enum Metric {
    Euclidean,
    Manhattan,
    Chebyshev,
    Minkowski(f64),
}

impl Metric {
    fn read(of: &Estimator) -> Result<Self> {
        if let Some(settings) = of.find(&["effective_metric_params_", "metric_params"])
            && settings.entries().any(|(key, value)| key.text() != Some("p") && !value.is_none())
        {
            return Err(of.unsupported("a metric with settings of its own"));
        }
        let power = of.find(&["p"]).and_then(|p| p.float()).unwrap_or(2.0);
        let name = of.find(&["effective_metric_", "metric"]).and_then(|metric| metric.text());
        Ok(match name {
            Some("euclidean" | "l2") => Metric::Euclidean,
            Some("manhattan" | "cityblock" | "l1") => Metric::Manhattan,
            Some("chebyshev" | "infinity") => Metric::Chebyshev,
            Some("minkowski" | "p") if power == 2.0 => Metric::Euclidean,
            Some("minkowski" | "p") if power == 1.0 => Metric::Manhattan,
            Some("minkowski" | "p") if power.is_infinite() => Metric::Chebyshev,
            Some("minkowski" | "p") if power > 0.0 => Metric::Minkowski(power),
            Some(other) => return Err(of.unsupported(format_args!("the metric {other:?}"))),
            None => return Err(of.unsupported("a metric that is a function")),
        })
    }

    /// What grows as the distance does.
    fn rank(self, a: &[f64], b: &[f64]) -> f64 {
        let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs());
        match self {
            Metric::Euclidean => apart.map(|x| x * x).sum(),
            Metric::Manhattan => apart.sum(),
            Metric::Chebyshev => apart.fold(0.0, f64::max),
            Metric::Minkowski(power) => apart.map(|x| x.powf(power)).sum(),
        }
    }

    /// The distance of a rank.
    fn distance(self, rank: f64) -> f64 {
        match self {
            Metric::Euclidean => rank.sqrt(),
            Metric::Manhattan | Metric::Chebyshev => rank,
            Metric::Minkowski(power) => rank.powf(1.0 / power),
        }
    }
}

/// The rows that a model was fitted with.
struct Known {
    metric: Metric,
    features: usize,
    /// One row after the other.
    rows: Vec<f64>,
    count: usize,
    /// How many of the nearest count.
    nearest: usize,
    by_distance: bool,
}

impl Known {
    fn read(of: &Estimator) -> Result<Self> {
        let rows = of.matrix(&["_fit_X"])?;
        let nearest = of.count(&["n_neighbors"])?;
        if nearest == 0 || nearest > rows.rows {
            return Err(of.fault("n_neighbors is not between 1 and the number of its rows"));
        }
        let by_distance = match of.attribute(&["weights"])?.text() {
            Some("uniform") => false,
            Some("distance") => true,
            _ => return Err(of.unsupported("a function for weights")),
        };
        Ok(Known {
            metric: Metric::read(of)?,
            features: rows.columns,
            count: rows.rows,
            rows: rows.values,
            nearest,
            by_distance,
        })
    }

    /// Fills `out` with the numbers of the nearest rows and how much each counts, nearest first.
    fn find(&self, row: &[f64], ranks: &mut Vec<(f64, usize)>, out: &mut Vec<(usize, f64)>) {
        ranks.clear();
        let known = self.rows.chunks_exact(self.features).enumerate();
        ranks.extend(known.map(|(number, known)| (self.metric.rank(row, known), number)));
        let order = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        if self.nearest < ranks.len() {
            ranks.select_nth_unstable_by(self.nearest, order);
            ranks.truncate(self.nearest);
        }
        ranks.sort_unstable_by(order);
        out.clear();
        if !self.by_distance {
            out.extend(ranks.iter().map(|(_, number)| (*number, 1.0)));
            return;
        }
        // Of rows that are the same, only those count.
        let is_same = ranks.iter().any(|(rank, _)| *rank == 0.0);
        out.extend(ranks.iter().map(|(rank, number)| match is_same {
            true => (*number, f64::from(u8::from(*rank == 0.0))),
            false => (*number, 1.0 / self.metric.distance(*rank)),
        }));
    }
}

struct NeighborsClassifier {
    known: Known,
    /// The class of each row.
    of_row: Vec<usize>,
    classes: usize,
}

impl Classify for NeighborsClassifier {
    fn features(&self) -> usize {
        self.known.features
    }

    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]) {
        let (mut ranks, mut nearest) = (Vec::with_capacity(self.known.count), Vec::new());
        let scores = scores.chunks_exact_mut(self.classes);
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            self.known.find(row, &mut ranks, &mut nearest);
            scores.fill(0.0);
            for (number, weight) in &nearest {
                let class = self.of_row.get(*number).copied().unwrap_or(0);
                if let Some(score) = scores.get_mut(class) {
                    *score += weight;
                }
            }
            *class = largest(scores);
            let sum: f64 = scores.iter().sum();
            let sum = if sum == 0.0 { 1.0 } else { sum };
            scores.iter_mut().for_each(|score| *score /= sum);
        }
    }
}

pub(super) fn classifier(of: &Estimator) -> Result<Predictor> {
    let labels = of.labels()?;
    let classes = labels.len();
    let known = Known::read(of)?;
    let of_row = of.vector_of(&["_y"], known.count)?;
    let of_row: Vec<usize> = of_row.into_iter().map(|class| class as usize).collect();
    if of_row.iter().any(|class| *class >= classes) {
        return Err(of.fault("_y has a class that is not there"));
    }
    let model = NeighborsClassifier { known, of_row, classes };
    Ok(Predictor::classifier(model, labels, Gives::Probabilities))
}

struct NeighborsRegressor {
    known: Known,
    /// For each row, the numbers to predict.
    targets: Vec<f64>,
    width: usize,
    is_vector: bool,
}

impl Regress for NeighborsRegressor {
    fn features(&self) -> usize {
        self.known.features
    }

    fn outputs(&self) -> Option<usize> {
        (!self.is_vector).then_some(self.width)
    }

    fn predict(&self, rows: Rows, out: &mut [f64]) {
        let (mut ranks, mut nearest) = (Vec::with_capacity(self.known.count), Vec::new());
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.width)) {
            self.known.find(row, &mut ranks, &mut nearest);
            out.fill(0.0);
            let mut sum = 0.0;
            for (number, weight) in &nearest {
                let place = number * self.width..(number + 1) * self.width;
                let targets = self.targets.get(place).unwrap_or_default();
                out.iter_mut().zip(targets).for_each(|(out, target)| *out += target * weight);
                sum += weight;
            }
            out.iter_mut().for_each(|out| *out /= sum);
        }
    }
}

pub(super) fn regressor(of: &Estimator) -> Result<Predictor> {
    let known = Known::read(of)?;
    let (shape, targets) = of.numbers(&["_y"])?;
    let width = match *shape {
        [rows] if rows == known.count => 1,
        [rows, width] if rows == known.count && width > 0 => width,
        _ => return Err(of.fault("_y has not one value for each row")),
    };
    let is_vector = shape.len() == 1;
    Ok(Predictor::regressor(NeighborsRegressor { known, targets, width, is_vector }))
}

/// The center that a row is nearest to.
struct Centers {
    features: usize,
    centers: Vec<f64>,
    count: usize,
}

impl Classify for Centers {
    fn features(&self) -> usize {
        self.features
    }

    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]) {
        let scores = scores.chunks_exact_mut(self.count);
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            let centers = self.centers.chunks_exact(self.features);
            for (score, center) in scores.iter_mut().zip(centers) {
                *score = -Metric::Euclidean.rank(row, center);
            }
            *class = largest(scores);
        }
    }
}

/// `KMeans` and `MiniBatchKMeans`: the number of the cluster.
pub(super) fn clusters(of: &Estimator) -> Result<Predictor> {
    let centers = of.matrix(&["cluster_centers_"])?;
    let count = centers.rows;
    if count == 0 {
        return Err(of.fault("it has no center"));
    }
    let model = Centers { features: centers.columns, centers: centers.values, count };
    Ok(Predictor::classifier(model, Labels::counted(count), Gives::Classes))
}
