//! `GaussianProcessRegressor` and `GaussianProcessClassifier`.

use super::compile;
use super::covariance::Covariance;
use super::estimator::Estimator;
use super::model::{ClassScores, Classifier, FeatureRows, Predictor, Regressor, StepFacts};
use super::numeric::dot;
use tensorserve_tensor::error::Result;

/// The rows of the training, and the covariance of rows.
struct ProcessRows {
    kernel: Covariance,
    features: usize,
    /// One row after the other.
    rows: Vec<f64>,
    count: usize,
}

impl ProcessRows {
    fn read(estimator: &Estimator) -> Result<Self> {
        let rows = estimator.matrix(&["X_train_"])?;
        let kernel = estimator.child(estimator.attribute(&["kernel_"])?)?;
        let kernel = Covariance::read(&kernel, rows.columns)?;
        Ok(ProcessRows { kernel, features: rows.columns, count: rows.rows, rows: rows.values })
    }

    /// Writes the covariance of `row` and each row of the training to `out`.
    fn covariances(&self, row: &[f64], out: &mut [f64]) {
        for (out, known) in out.iter_mut().zip(self.rows.chunks_exact(self.features)) {
            *out = self.kernel.evaluate(row, known);
        }
    }
}

struct ProcessRegressor {
    known: ProcessRows,
    /// For each target, the coefficient of each row of the training.
    coefficients: Vec<Vec<f64>>,
    /// The scale and the mean of each target.
    targets: Vec<(f64, f64)>,
}

impl Regressor for ProcessRegressor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.known.features)
    }

    fn outputs(&self) -> Option<usize> {
        Some(self.coefficients.len()).filter(|targets| *targets > 1)
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let mut covariances = vec![0.0; self.known.count];
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(self.coefficients.len().max(1))) {
            self.known.covariances(row, &mut covariances);
            let targets = self.coefficients.iter().zip(&self.targets);
            for (out, (coefficients, (scale, mean))) in out.iter_mut().zip(targets) {
                *out = scale * dot(&covariances, coefficients) + mean;
            }
        }
        Ok(())
    }
}

/// Reads a `GaussianProcessRegressor`.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    let known = ProcessRows::read(estimator)?;
    let (shape, alpha) = estimator.numbers(&["alpha_"])?;
    let width = match *shape {
        [rows] if rows == known.count => 1,
        [rows, width] if rows == known.count && width > 0 => width,
        _ => return Err(estimator.damaged("alpha_ does not match the rows of the training")),
    };
    let column = |number: usize| alpha.iter().skip(number).step_by(width).copied().collect();
    let coefficients = (0..width).map(column).collect();
    let scales = target_numbers(estimator, "_y_train_std", width, 1.0)?;
    let means = target_numbers(estimator, "_y_train_mean", width, 0.0)?;
    let targets = scales.into_iter().zip(means).collect();
    Ok(Predictor::regressor(ProcessRegressor { known, coefficients, targets }))
}

/// A number for each target: of an attribute that may have one for all, or be missing.
fn target_numbers(
    estimator: &Estimator,
    name: &str,
    width: usize,
    default: f64,
) -> Result<Vec<f64>> {
    let numbers = estimator.optional_vector(&[name])?.unwrap_or_else(|| vec![default]);
    match *numbers {
        [number] => Ok(vec![number; width]),
        _ if numbers.len() == width => Ok(numbers),
        _ => Err(estimator.damaged(format_args!("{name} does not match the {width} targets"))),
    }
}

/// The sum of error functions that stands for the logistic function: factors of the argument, and weights
/// ("Bayesian Classification with Gaussian Processes" of Williams and Barber, appendix A).
const ERROR_FUNCTIONS: [(f64, f64); 5] = [
    (0.41, -1_854.821_415_1),
    (0.4, 3_516.898_936_46),
    (0.37, 221.293_467_12),
    (0.44, 128.123_238_05),
    (0.39, -2_010.494_226_54),
];

/// A classifier of two classes, by Laplace's approximation.
struct ProcessClassifier {
    known: ProcessRows,
    /// The coefficient of each row of the training.
    coefficients: Vec<f64>,
    /// What the covariance with each row of the training is multiplied by.
    factors: Vec<f64>,
    /// A triangular matrix, one row after the other.
    lower: Vec<f64>,
}

impl ProcessClassifier {
    /// The variance of the latent function at `row`. `covariances` are overwritten.
    fn variance(&self, row: &[f64], covariances: &mut [f64]) -> f64 {
        covariances.iter_mut().zip(&self.factors).for_each(|(x, factor)| *x *= factor);
        // Solves the triangular system from above.
        let mut explained = 0.0;
        for (number, lower) in self.lower.chunks_exact(self.known.count.max(1)).enumerate() {
            let (known, rest) = covariances.split_at_mut(number);
            let (Some(x), Some(diagonal)) = (rest.first_mut(), lower.get(number)) else { break };
            *x = (*x - dot(known, lower.get(..number).unwrap_or_default())) / diagonal;
            explained += *x * *x;
        }
        self.known.kernel.variance(row) - explained
    }
}

/// The probability of the second class, given mean and variance of the latent function.
fn probability(mean: f64, variance: f64) -> f64 {
    let alpha = 1.0 / (2.0 * variance);
    let scale = (std::f64::consts::PI / alpha).sqrt()
        / (2.0 * (variance * 2.0 * std::f64::consts::PI).sqrt());
    let (mut sum, mut weights) = (0.0, 0.0);
    for (factor, weight) in ERROR_FUNCTIONS {
        let argument = factor * mean * (alpha / (alpha + factor * factor)).sqrt();
        sum += weight * (scale * libm::erf(argument));
        weights += weight;
    }
    sum + 0.5 * weights
}

impl Classifier for ProcessClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.known.features)
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let mut covariances = vec![0.0; self.known.count];
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores.chunks_exact_mut(2)) {
            self.known.covariances(row, &mut covariances);
            let mean = dot(&covariances, &self.coefficients);
            *class = usize::from(mean > 0.0);
            let second = probability(mean, self.variance(row, &mut covariances));
            scores.copy_from_slice(&[1.0 - second, second]);
        }
        Ok(())
    }
}

/// Reads the classifier of two classes in a `GaussianProcessClassifier`.
pub(super) fn binary(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let known = ProcessRows::read(estimator)?;
    let count = known.count;
    let targets = estimator.vector_of_len(&["y_train_"], count)?;
    let probabilities = estimator.vector_of_len(&["pi_"], count)?;
    let coefficients = targets.iter().zip(&probabilities).map(|(y, pi)| y - pi).collect();
    let factors = estimator.vector_of_len(&["W_sr_"], count)?;
    let lower = estimator.matrix_of_shape(&["L_"], count, count)?.values;
    if labels.len() != 2 {
        return Err(estimator.damaged("it does not have two classes"));
    }
    let model = ProcessClassifier { known, coefficients, factors, lower };
    Ok(Predictor::classifier(model, labels, ClassScores::Probabilities))
}

/// Reads a `GaussianProcessClassifier`: of two classes, or of one against the rest or against each other.
pub(super) fn classifier(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let inner = estimator.child(estimator.attribute(&["base_estimator_"])?)?;
    let mut model = compile::compile_part(&inner)?;
    let is_plain = model.steps.is_empty();
    if let Predictor::Classifier(classifier) = &mut model.predictor
        && is_plain
        && classifier.labels.len() == labels.len()
    {
        classifier.labels = labels;
        classifier.scores = classifier.scores.without_logs();
        return Ok(model.predictor);
    }
    Err(estimator.damaged("its classifier has other classes"))
}
