//! `NearestCentroid` and `KernelRidge`.

use super::estimator::Estimator;
use super::kernel::Kernel;
use super::model::{ClassScores, Classifier, FeatureRows, Predictor, Regressor, StepFacts};
use super::numeric::{argmax, dot, log_softmax};
use tensorserve_tensor::error::Result;

/// Predicts the class whose center is nearest.
struct NearestCentroid {
    features: usize,
    /// One center after the other.
    centers: Vec<f64>,
    classes: usize,
    is_manhattan: bool,
    /// Divides each feature, and what is added for each class; since 1.6, for scores.
    discriminant: Option<(Vec<f64>, Vec<f64>)>,
    /// Whether the class has the highest score, since priors differ.
    uses_scores: bool,
}

impl NearestCentroid {
    /// The class whose center is nearest to `row`.
    fn nearest(&self, row: &[f64]) -> usize {
        let (mut nearest, mut class) = (f64::INFINITY, 0);
        for (number, center) in self.centers.chunks_exact(self.features).enumerate() {
            let differences = row.iter().zip(center).map(|(x, center)| (x - center).abs());
            let distance: f64 = match self.is_manhattan {
                true => differences.sum(),
                false => differences.map(|x| x * x).sum(),
            };
            if distance < nearest {
                (nearest, class) = (distance, number);
            }
        }
        class
    }

    /// Writes the discriminant scores of `row`.
    fn write_scores(&self, row: &[f64], scores: &mut [f64]) {
        let Some((scale, priors)) = &self.discriminant else { return };
        let centers = self.centers.chunks_exact(self.features);
        for ((score, center), prior) in scores.iter_mut().zip(centers).zip(priors) {
            let columns = row.iter().zip(center).zip(scale);
            let distance: f64 =
                columns.map(|((x, center), scale)| (x / scale - center / scale).powi(2)).sum();
            *score = prior - distance;
        }
    }
}

impl Classifier for NearestCentroid {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features)
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let scores = scores.chunks_exact_mut(self.classes);
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            self.write_scores(row, scores);
            *class = match self.uses_scores {
                true => argmax(scores),
                false => self.nearest(row),
            };
            // First the largest: far from all centers, the logarithm of the sum is lost beside the scores.
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            scores.iter_mut().for_each(|score| *score -= largest);
            log_softmax(scores);
        }
        Ok(())
    }
}

/// Reads a `NearestCentroid`.
pub(super) fn nearest(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let classes = labels.len();
    let centers = estimator.matrix(&["centroids_"])?;
    let features = centers.columns;
    if centers.rows != classes {
        return Err(estimator.damaged("centroids_ does not have a row for each class"));
    }
    let is_manhattan = match estimator.text("metric")? {
        "euclidean" => false,
        "manhattan" => true,
        other => return Err(estimator.unsupported(format_args!("the metric {other:?}"))),
    };
    let (mut discriminant, mut uses_scores) = (None, false);
    if estimator.find(&["class_prior_"]).is_some() {
        let priors = estimator.vector_of_len(&["class_prior_"], classes)?;
        let uniform = 1.0 / classes as f64;
        uses_scores = priors.iter().any(|prior| (prior - uniform).abs() > 1e-8 + 1e-5 * uniform);
        let scale = estimator.vector_of_len(&["within_class_std_dev_"], features)?;
        let scale = scale.into_iter().map(|scale| if scale == 0.0 { 1.0 } else { scale });
        let priors = priors.into_iter().map(|prior| 2.0 * prior.ln());
        discriminant = Some((scale.collect(), priors.collect()));
    }
    // Scores are offered for the Euclidean metric only.
    let scores = match discriminant.is_some() && !is_manhattan {
        true => ClassScores::LogProbabilities,
        false => ClassScores::None,
    };
    let centers = centers.values;
    let model =
        NearestCentroid { features, centers, classes, is_manhattan, discriminant, uses_scores };
    Ok(Predictor::classifier(model, labels, scores))
}

/// Sums of the kernels of a row and each training row.
struct KernelRidge {
    kernel: Kernel,
    features: usize,
    /// One training row after the other.
    rows: Vec<f64>,
    /// For each output, a coefficient for each training row.
    coefficients: Vec<Vec<f64>>,
    is_vector: bool,
}

impl Regressor for KernelRidge {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features)
    }

    fn outputs(&self) -> Option<usize> {
        (!self.is_vector).then_some(self.coefficients.len())
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let mut kernels = vec![0.0; self.rows.len() / self.features];
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.coefficients.len())) {
            for (kernel, known) in kernels.iter_mut().zip(self.rows.chunks_exact(self.features)) {
                *kernel = self.kernel.evaluate(row, known);
            }
            for (out, coefficients) in out.iter_mut().zip(&self.coefficients) {
                *out = dot(&kernels, coefficients);
            }
        }
        Ok(())
    }
}

/// Reads a `KernelRidge`.
pub(super) fn ridge(estimator: &Estimator) -> Result<Predictor> {
    let rows = estimator.matrix(&["X_fit_"])?;
    let (shape, values) = estimator.numbers(&["dual_coef_"])?;
    let (count, width) = match *shape {
        [count] => (count, 1),
        [count, width] if width > 0 => (count, width),
        _ => return Err(estimator.damaged("dual_coef_ is not a matrix")),
    };
    if count != rows.rows || count == 0 {
        return Err(estimator.damaged("dual_coef_ does not fit X_fit_"));
    }
    let column = |column: usize| values.iter().skip(column).step_by(width).copied().collect();
    let coefficients = (0..width).map(column).collect();
    // What is not set is 1 divided by the number of features.
    let gamma = estimator.optional_number(&["gamma"])?.unwrap_or(1.0 / rows.columns as f64);
    let kernel = Kernel::read(estimator, gamma)?;
    let is_vector = shape.len() == 1;
    let (features, rows) = (rows.columns, rows.values);
    Ok(Predictor::regressor(KernelRidge { kernel, features, rows, coefficients, is_vector }))
}
