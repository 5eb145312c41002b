//! Classifiers by Bayes' theorem: naive Bayes, and quadratic discriminant analysis.

use super::estimator::{ClassLabels, Estimator};
use super::model::{ClassScores, Classifier, Decisions, FeatureRows, Predictor, StepFacts};
use super::numeric::{argmax, dot, indicator, log_softmax, softmax};
use super::sparse::{SparseMatrix, sparse_dot};
use tensorserve_tensor::error::Result;

/// Computes the joint log-likelihood of a row and each class, up to a constant of the row.
struct BayesClassifier {
    features: usize,
    likelihood: Likelihood,
    /// For each class, the terms that do not depend on the row.
    constants: Vec<f64>,
    classes: usize,
    scores: ClassScores,
}

enum Likelihood {
    /// For each class and feature, the mean, and `1 / (2 * variance)`.
    Gaussian { means: Vec<f64>, half_precisions: Vec<f64> },
    /// For each class and feature, the weight of a count. With a threshold, features are first
    /// binarized.
    Counts { weights: Vec<f64>, threshold: Option<f64> },
    /// A multivariate normal distribution for each class.
    Quadratic { classes: Vec<QuadraticClass> },
}

/// A class of a quadratic discriminant analysis.
struct QuadraticClass {
    mean: Vec<f64>,
    /// The principal axes, each divided by the square root of its scaling.
    directions: Vec<f64>,
}

impl BayesClassifier {
    fn predictor(self, labels: ClassLabels) -> Predictor {
        let scores = self.scores;
        Predictor::classifier(self, labels, scores)
    }

    /// Makes probabilities of log-likelihoods, or their logarithms.
    fn normalize(&self, scores: &mut [f64]) {
        match self.scores.are_logs() {
            true => log_softmax(scores),
            false => softmax(scores),
        }
    }

    /// Writes the log-likelihoods of `row` to `scores`; `scratch` has room for a row.
    fn log_likelihoods(&self, row: &[f64], scores: &mut [f64], scratch: &mut [f64]) {
        let scores = scores.iter_mut().zip(&self.constants);
        match &self.likelihood {
            Likelihood::Gaussian { means, half_precisions } => {
                let means = means.chunks_exact(row.len());
                let classes = means.zip(half_precisions.chunks_exact(row.len()));
                for ((score, constant), (means, half_precisions)) in scores.zip(classes) {
                    let terms = row.iter().zip(means).zip(half_precisions);
                    let sum: f64 = terms.map(|((x, mean), half)| (x - mean).powi(2) * half).sum();
                    *score = constant - sum;
                }
            }
            Likelihood::Counts { weights, threshold } => {
                let counts = match threshold {
                    None => row,
                    Some(threshold) => {
                        for (to, x) in scratch.iter_mut().zip(row) {
                            *to = indicator(x > threshold);
                        }
                        scratch
                    }
                };
                for ((score, constant), weights) in scores.zip(weights.chunks_exact(row.len())) {
                    *score = dot(counts, weights) + constant;
                }
            }
            Likelihood::Quadratic { classes } => {
                for ((score, constant), class) in scores.zip(classes) {
                    for ((to, x), mean) in scratch.iter_mut().zip(row).zip(&class.mean) {
                        *to = x - mean;
                    }
                    let directions = class.directions.chunks_exact(row.len());
                    let sum: f64 = directions.map(|d| dot(scratch, d).powi(2)).sum();
                    *score = constant - 0.5 * sum;
                }
            }
        }
    }
}

impl BayesClassifier {
    /// As [`BayesClassifier::log_likelihoods`] of all rows of `matrix`, for counts.
    fn sparse_log_likelihoods(&self, matrix: &SparseMatrix, scores: &mut [f64]) {
        let Likelihood::Counts { weights, threshold } = &self.likelihood else { return };
        let binary;
        let matrix = match threshold {
            None => matrix,
            Some(threshold) => {
                binary = matrix.mapped(|_, x| indicator(x > *threshold));
                &binary
            }
        };
        for (row, scores) in matrix.iter().zip(scores.chunks_exact_mut(self.classes)) {
            let classes = weights.chunks_exact(self.features).zip(&self.constants);
            for (score, (weights, constant)) in scores.iter_mut().zip(classes) {
                *score = sparse_dot(row, weights) + constant;
            }
        }
    }
}

impl Classifier for BayesClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).sparse_if(match &self.likelihood {
            // Below 0, values that are not stored are above the threshold.
            Likelihood::Counts { threshold, .. } => threshold.is_none_or(|least| least >= 0.0),
            Likelihood::Gaussian { .. } | Likelihood::Quadratic { .. } => false,
        })
    }

    fn decisions(&self) -> Decisions {
        match (&self.likelihood, self.classes) {
            (Likelihood::Quadratic { .. }, 2) => Decisions::Columns(1),
            (Likelihood::Quadratic { .. }, classes) => Decisions::Columns(classes),
            (Likelihood::Gaussian { .. } | Likelihood::Counts { .. }, _) => Decisions::None,
        }
    }

    fn decide(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let (mut scratch, mut scores) = (vec![0.0; self.features], vec![0.0; self.classes]);
        let columns = if self.classes == 2 { 1 } else { self.classes };
        for (row, out) in rows.iter().zip(out.chunks_exact_mut(columns)) {
            self.log_likelihoods(row, &mut scores, &mut scratch);
            match (&*scores, &mut *out) {
                ([first, second], [out]) => *out = second - first,
                (scores, out) => out.copy_from_slice(scores),
            }
        }
        Ok(())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        if let Some(matrix) = rows.sparse {
            self.sparse_log_likelihoods(matrix, scores);
            for (class, scores) in classes.iter_mut().zip(scores.chunks_exact_mut(self.classes)) {
                *class = argmax(scores);
                self.normalize(scores);
            }
            return Ok(());
        }
        let mut scratch = vec![0.0; self.features];
        let scores = scores.chunks_exact_mut(self.classes);
        for ((row, class), scores) in rows.iter().zip(classes).zip(scores) {
            self.log_likelihoods(row, scores, &mut scratch);
            *class = argmax(scores);
            self.normalize(scores);
        }
        Ok(())
    }
}

/// The logarithms of the prior probabilities of the classes.
fn log_priors(estimator: &Estimator, names: &[&str], labels: &ClassLabels) -> Result<Vec<f64>> {
    let priors = estimator.vector_of_len(names, labels.len())?;
    Ok(priors.into_iter().map(f64::ln).collect())
}

/// Reads a `GaussianNB`.
pub(super) fn gaussian(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let classes = labels.len();
    let means = estimator.matrix(&["theta_"])?;
    let variances = estimator.matrix_of_shape(&["var_", "sigma_"], classes, means.columns)?;
    let mut constants = log_priors(estimator, &["class_prior_"], &labels)?;
    if means.rows != classes {
        return Err(rows_for_classes(estimator, "theta_", means.rows, classes));
    }
    for (constant, variances) in constants.iter_mut().zip(variances.iter()) {
        let sum: f64 = variances.iter().map(|var| (std::f64::consts::TAU * var).ln()).sum();
        *constant -= 0.5 * sum;
    }
    let half_precisions = variances.values.iter().map(|variance| 0.5 / variance).collect();
    let likelihood = Likelihood::Gaussian { means: means.values, half_precisions };
    let (features, scores) = (means.columns, ClassScores::LogProbabilities);
    Ok(BayesClassifier { features, likelihood, constants, classes, scores }.predictor(labels))
}

/// Reads a `MultinomialNB`, a `ComplementNB` or a `BernoulliNB`.
pub(super) fn counting(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let classes = labels.len();
    let matrix = estimator.matrix(&["feature_log_prob_"])?;
    if matrix.rows != classes {
        return Err(rows_for_classes(estimator, "feature_log_prob_", matrix.rows, classes));
    }
    let features = matrix.columns;
    let mut constants = estimator.vector_of_len(&["class_log_prior_"], classes)?;
    let (mut threshold, mut weights) = (None, matrix.values);
    match estimator.class() {
        "BernoulliNB" => {
            // `x * ln(p) + (1 - x) * ln(1 - p)`, as a product and a constant.
            for (constant, weights) in constants.iter_mut().zip(weights.chunks_exact_mut(features))
            {
                for weight in weights {
                    let absent = (-weight.exp()).ln_1p();
                    *weight -= absent;
                    *constant += absent;
                }
            }
            threshold = estimator.optional_number(&["binarize"])?;
        }
        // It uses priors only if there is a single class.
        "ComplementNB" if classes > 1 => constants.fill(0.0),
        _ => {}
    }
    let likelihood = Likelihood::Counts { weights, threshold };
    let scores = ClassScores::LogProbabilities;
    Ok(BayesClassifier { features, likelihood, constants, classes, scores }.predictor(labels))
}

/// Reads a `QuadraticDiscriminantAnalysis`.
pub(super) fn quadratic(estimator: &Estimator) -> Result<Predictor> {
    let labels = estimator.labels()?;
    let classes = labels.len();
    let means = estimator.matrix(&["means_"])?;
    let features = means.columns;
    let mut constants = log_priors(estimator, &["priors_"], &labels)?;
    let rotations = estimator.children(&["rotations_"])?;
    let scalings = estimator.children(&["scalings_"])?;
    if means.rows != classes || rotations.len() != classes || scalings.len() != classes {
        return Err(estimator.damaged(format_args!(
            "means_, rotations_ and scalings_ do not have {classes} elements, one for each class"
        )));
    }
    let mut parts = Vec::with_capacity(classes);
    for (((mean, rotation), scaling), constant) in
        means.iter().zip(rotations).zip(scalings).zip(&mut constants)
    {
        let wrong = || estimator.damaged("rotations_ and scalings_ differ in shape");
        let scaling = scaling.value.array().and_then(|array| array.f64s()).ok_or_else(wrong)?;
        let rotation = rotation.value.array().ok_or_else(wrong)?;
        estimator.charge(rotation.len())?;
        if *rotation.shape() != [features, scaling.len()] {
            return Err(wrong());
        }
        let rotation = rotation.f64s().ok_or_else(wrong)?;
        let mut directions = Vec::with_capacity(rotation.len());
        for (number, scaling_value) in scaling.iter().enumerate() {
            let column = rotation.iter().skip(number).step_by(scaling.len());
            directions.extend(column.map(|value| value / scaling_value.sqrt()));
        }
        *constant -= 0.5 * scaling.iter().map(|scaling| scaling.ln()).sum::<f64>();
        parts.push(QuadraticClass { mean: mean.to_vec(), directions });
    }
    let likelihood = Likelihood::Quadratic { classes: parts };
    // Before 1.6 it takes the logarithms of probabilities, which may be 0.
    let scores = match estimator.is_older_than(1, 6) {
        true => ClassScores::ProbabilitiesAndLogs,
        false => ClassScores::LogProbabilities,
    };
    Ok(BayesClassifier { features, likelihood, constants, classes, scores }.predictor(labels))
}

/// The error for a matrix that does not have a row for each class.
fn rows_for_classes(
    estimator: &Estimator,
    name: &str,
    rows: usize,
    classes: usize,
) -> tensorserve_tensor::error::Error {
    estimator.damaged(format_args!("{name} has {rows} rows for {classes} classes"))
}
