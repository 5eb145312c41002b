//! Detectors of outliers, which predict 1 for a row like those of the training, and -1 for others:
//! `LocalOutlierFactor`, `EllipticEnvelope` and `SGDOneClassSVM`.

use super::distance::TrainingRows;
use super::estimator::{ClassLabels, Estimator};
use super::model::{ClassScores, Classifier, FeatureRows, Predictor, StepFacts};
use super::numeric::dot;
use super::sparse::sparse_dot;
use tensorserve_tensor::error::Result;

/// What scikit-learn adds to a mean distance before it divides by it.
const SMALLEST_DISTANCE: f64 = 1e-10;

/// The labels of outliers and of others.
fn labels() -> ClassLabels {
    ClassLabels::Ints(vec![-1, 1])
}

/// Compares how dense the rows around a row are with how dense those around its neighbours are.
struct LocalOutliers {
    training: TrainingRows,
    /// For each training row, the distance of the last of its neighbours.
    reach: Vec<f64>,
    /// For each training row, the density around it.
    density: Vec<f64>,
    offset: f64,
}

impl Classifier for LocalOutliers {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.training.features()).sparse_if(self.training.are_sparse())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], _: &mut [f64]) -> Result<()> {
        let mut search = self.training.search(rows);
        let of_row = |values: &[f64], row: usize| values.get(row).copied().unwrap_or(f64::NAN);
        for (row, class) in classes.iter_mut().enumerate() {
            let neighbors = search.find(row);
            let count = neighbors.len() as f64;
            let reached =
                neighbors.iter().map(|near| near.distance.max(of_row(&self.reach, near.row)));
            let density = 1.0 / (reached.sum::<f64>() / count + SMALLEST_DISTANCE);
            let ratios = neighbors.iter().map(|near| of_row(&self.density, near.row) / density);
            let score = -(ratios.sum::<f64>() / count);
            *class = usize::from(score - self.offset >= 0.0);
        }
        Ok(())
    }
}

/// Reads a `LocalOutlierFactor` that was made for new rows (`novelty=True`).
pub(super) fn local(estimator: &Estimator) -> Result<Predictor> {
    if !estimator.flag("novelty", false)? {
        return Err(
            estimator.unsupported("a model without predictions for new rows (novelty=False)")
        );
    }
    let training = TrainingRows::nearest(estimator, &["n_neighbors_"])?;
    let count = training.len();
    let distances = estimator.matrix(&["_distances_fit_X_"])?;
    let neighbors = estimator.count(&["n_neighbors_"])?;
    if distances.rows != count || distances.columns < neighbors {
        return Err(estimator.damaged("_distances_fit_X_ does not match the training rows"));
    }
    let reach = distances.iter().filter_map(|row| row.get(neighbors - 1).copied()).collect();
    let density = estimator.vector_of_len(&["_lrd"], count)?;
    let offset = estimator.number(&["offset_"])?;
    let model = LocalOutliers { training, reach, density, offset };
    Ok(Predictor::classifier(model, labels(), ClassScores::None))
}

/// Rows within an ellipse around a location.
struct Envelope {
    location: Vec<f64>,
    /// The inverse of the covariance, one row after the other.
    precision: Vec<f64>,
    offset: f64,
}

impl Classifier for Envelope {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.location.len())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], _: &mut [f64]) -> Result<()> {
        let mut centered = vec![0.0; self.location.len()];
        for (row, class) in rows.iter().zip(classes) {
            for ((to, x), location) in centered.iter_mut().zip(row).zip(&self.location) {
                *to = x - location;
            }
            let rows = self.precision.chunks_exact(self.location.len().max(1));
            let squared: f64 = rows.zip(&centered).map(|(row, x)| x * dot(row, &centered)).sum();
            *class = usize::from(-squared - self.offset >= 0.0);
        }
        Ok(())
    }
}

/// Reads an `EllipticEnvelope`.
pub(super) fn envelope(estimator: &Estimator) -> Result<Predictor> {
    let location = estimator.vector(&["location_"])?;
    if estimator.find(&["precision_"]).is_none() {
        return Err(estimator.unsupported("a model without its precision (store_precision=False)"));
    }
    let features = location.len();
    let precision = estimator.matrix_of_shape(&["precision_"], features, features)?.values;
    if estimator.is_older_than(0, 20) {
        return Err(estimator.unsupported("one written by scikit-learn before 0.20"));
    }
    let offset = estimator.number(&["offset_"])?;
    let model = Envelope { location, precision, offset };
    Ok(Predictor::classifier(model, labels(), ClassScores::None))
}

/// Rows on one side of a plane.
struct HalfSpace {
    coefficients: Vec<f64>,
    offset: f64,
}

impl Classifier for HalfSpace {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.coefficients.len()).sparse()
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], _: &mut [f64]) -> Result<()> {
        for (row, class) in classes.iter_mut().enumerate() {
            let product = match rows.sparse {
                Some(matrix) => sparse_dot(matrix.row(row), &self.coefficients),
                None => dot(rows.row(row), &self.coefficients),
            };
            *class = usize::from(product - self.offset >= 0.0);
        }
        Ok(())
    }
}

/// Reads an `SGDOneClassSVM`.
pub(super) fn half_space(estimator: &Estimator) -> Result<Predictor> {
    let coefficients = estimator.vector(&["coef_"])?;
    let offset = estimator.number(&["offset_"])?;
    let model = HalfSpace { coefficients, offset };
    Ok(Predictor::classifier(model, labels(), ClassScores::None))
}
