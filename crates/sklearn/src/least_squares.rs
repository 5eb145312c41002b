//! `PLSRegression`, `PLSCanonical` and `CCA` as regressors.

use super::estimator::Estimator;
use super::model::{FeatureRows, Predictor, Regressor, StepFacts};
use super::numeric::dot;
use tensorserve_tensor::error::Result;

/// A linear model of centered rows.
struct CenteredRegressor {
    means: Vec<f64>,
    /// The coefficients of each target, one after the other.
    coefficients: Vec<f64>,
    intercepts: Vec<f64>,
    is_vector: bool,
}

impl Regressor for CenteredRegressor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.means.len())
    }

    fn outputs(&self) -> Option<usize> {
        (!self.is_vector).then_some(self.intercepts.len())
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let mut centered = vec![0.0; self.means.len()];
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.intercepts.len().max(1))) {
            for ((to, x), mean) in centered.iter_mut().zip(row).zip(&self.means) {
                *to = x - mean;
            }
            let vectors = self.coefficients.chunks_exact(self.means.len().max(1));
            for ((out, vector), intercept) in out.iter_mut().zip(vectors).zip(&self.intercepts) {
                *out = dot(&centered, vector) + intercept;
            }
        }
        Ok(())
    }
}

/// Reads a `PLSRegression`, a `PLSCanonical` or a `CCA`.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    if estimator.find(&["intercept_"]).is_none() {
        return Err(estimator.unsupported("one written by scikit-learn before 1.1"));
    }
    let means = estimator.vector(&["_x_mean"])?;
    let intercepts = estimator.vector(&["intercept_"])?;
    // Until 1.4 the coefficients are of scaled features; until 1.2 `coef_` has them transposed.
    let is_scaled = estimator.is_older_than(1, 5);
    let names = ["_coef_", "coef_"];
    let matrix = estimator.matrix_of_shape(&names, intercepts.len(), means.len())?;
    let mut coefficients = matrix.values;
    if is_scaled {
        let deviations = estimator.vector_of_len(&["_x_std"], means.len())?;
        for vector in coefficients.chunks_exact_mut(means.len().max(1)) {
            vector.iter_mut().zip(&deviations).for_each(|(x, deviation)| *x /= deviation);
        }
    }
    let is_vector = estimator.flag("_predict_1d", false)? && intercepts.len() == 1;
    Ok(Predictor::regressor(CenteredRegressor { means, coefficients, intercepts, is_vector }))
}
