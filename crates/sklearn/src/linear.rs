//! Linear models: dot products of a row with coefficients, and what each estimator makes of them.

use super::estimator::{ClassLabels, Estimator};
use super::model::{
    ClassScores, Classifier, Decisions, FeatureRows, MultiClassifier, MultiScores, Predictor,
    Regressor, StepFacts,
};
use super::numeric::{argmax, dot, logistic, softmax};
use super::sparse::sparse_dot;
use tensorserve_tabular::numeric::Link;
use tensorserve_tensor::error::Result;

/// The decision function: dot products of a row with several vectors, plus intercepts.
struct DecisionFunction {
    features: usize,
    /// One vector after the other.
    coefficients: Vec<f64>,
    intercepts: Vec<f64>,
    /// Whether the estimator has a single vector instead of a matrix: its predictions have no second
    /// dimension.
    is_vector: bool,
}

impl DecisionFunction {
    /// Reads `coef_` and `intercept_`.
    fn read(estimator: &Estimator) -> Result<Self> {
        let coefficients = estimator.matrix(&["coef_"])?;
        let count = coefficients.rows;
        let mut intercepts = match estimator.find(&["intercept_"]) {
            Some(_) => estimator.vector(&["intercept_"])?,
            None => vec![0.0],
        };
        if let [only] = *intercepts {
            intercepts = vec![only; count];
        }
        if intercepts.len() != count || count == 0 {
            let have = intercepts.len();
            return Err(estimator.damaged(format_args!(
                "intercept_ has {have} elements for {count} rows of coef_"
            )));
        }
        if estimator.features().is_some_and(|features| features != coefficients.columns) {
            let columns = coefficients.columns;
            return Err(estimator.damaged(format_args!(
                "coef_ has {columns} columns, which is not the number of features"
            )));
        }
        Ok(DecisionFunction {
            features: coefficients.columns,
            is_vector: coefficients.is_vector,
            coefficients: coefficients.values,
            intercepts,
        })
    }

    /// The number of vectors.
    fn count(&self) -> usize {
        self.intercepts.len()
    }

    fn write(&self, row: &[f64], out: &mut [f64]) {
        self.write_with(out, |vector| dot(row, vector));
    }

    /// Writes the sums of a row whose dot product with a vector is `product`.
    fn write_with(&self, out: &mut [f64], product: impl Fn(&[f64]) -> f64) {
        let vectors = self.coefficients.chunks_exact(self.features);
        for ((out, vector), intercept) in out.iter_mut().zip(vectors).zip(&self.intercepts) {
            *out = product(vector) + intercept;
        }
    }

    /// Writes the sums of all rows to `out`.
    fn write_all(&self, rows: FeatureRows, out: &mut [f64]) {
        let out = out.chunks_exact_mut(self.count().max(1));
        match rows.sparse {
            None => rows.iter().zip(out).for_each(|(row, out)| self.write(row, out)),
            Some(matrix) => {
                for (row, out) in matrix.iter().zip(out) {
                    self.write_with(out, |vector| sparse_dot(row, vector));
                }
            }
        }
    }
}

struct LinearRegressor {
    function: DecisionFunction,
    link: Link,
}

impl Regressor for LinearRegressor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.function.features).sparse()
    }

    fn outputs(&self) -> Option<usize> {
        (!self.function.is_vector).then_some(self.function.count())
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        self.function.write_all(rows, out);
        if self.link != Link::Identity {
            out.iter_mut().for_each(|value| *value = self.link.mean(*value));
        }
        Ok(())
    }
}

/// Reads a linear regressor.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    let function = DecisionFunction::read(estimator)?;
    let link = match estimator.class() {
        "PoissonRegressor" | "GammaRegressor" => Link::Log,
        "TweedieRegressor" => match estimator.text("link")? {
            "log" => Link::Log,
            "identity" => Link::Identity,
            _ if estimator.number(&["power"])? <= 0.0 => Link::Identity,
            _ => Link::Log,
        },
        _ => Link::Identity,
    };
    Ok(Predictor::regressor(LinearRegressor { function, link }))
}

/// How the decision function becomes probabilities.
#[derive(Clone, Copy, PartialEq)]
enum ProbabilityMethod {
    /// The decision function becomes no probabilities: its largest value determines the class.
    None,
    /// The logistic function of each value, normalised to a sum of 1.
    OneVsRest,
    /// The softmax of all values; of a single one, of its negative and itself.
    Softmax,
    /// Each value mapped from -1…1 to 0…1, normalised to a sum of 1: the loss `modified_huber`.
    ModifiedHuber,
}

struct LinearClassifier {
    function: DecisionFunction,
    classes: usize,
    method: ProbabilityMethod,
    /// Whether the probabilities are uniform if the logistic function of each value is 0: since 1.9.
    /// Before, they are NaN.
    is_uniform_at_zero: bool,
}

impl Classifier for LinearClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.function.features).sparse()
    }

    fn decisions(&self) -> Decisions {
        Decisions::Columns(self.function.count())
    }

    fn decide(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        self.function.write_all(rows, out);
        Ok(())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        if self.classes == 2 {
            let mut decisions = vec![0.0; classes.len()];
            self.function.write_all(rows, &mut decisions);
            let pairs = scores.as_chunks_mut::<2>().0;
            for ((decision, class), scores) in decisions.into_iter().zip(classes).zip(pairs) {
                *class = usize::from(decision > 0.0);
                *scores = self.binary_probabilities(decision);
            }
            return Ok(());
        }
        self.function.write_all(rows, scores);
        for (class, scores) in classes.iter_mut().zip(scores.chunks_exact_mut(self.classes)) {
            *class = argmax(scores);
            self.make_probabilities(scores);
        }
        Ok(())
    }
}

impl LinearClassifier {
    /// The probabilities of two classes.
    fn binary_probabilities(&self, decision: f64) -> [f64; 2] {
        let second = match self.method {
            ProbabilityMethod::None => decision,
            ProbabilityMethod::OneVsRest => logistic(decision),
            ProbabilityMethod::Softmax => {
                let mut pair = [-decision, decision];
                softmax(&mut pair);
                return pair;
            }
            ProbabilityMethod::ModifiedHuber => modified_huber(decision),
        };
        [1.0 - second, second]
    }

    /// Turns the decision function of several classes into their probabilities.
    fn make_probabilities(&self, scores: &mut [f64]) {
        match self.method {
            ProbabilityMethod::None => return,
            ProbabilityMethod::Softmax => return softmax(scores),
            ProbabilityMethod::OneVsRest => {
                scores.iter_mut().for_each(|score| *score = logistic(*score));
            }
            ProbabilityMethod::ModifiedHuber => {
                scores.iter_mut().for_each(|score| *score = modified_huber(*score));
            }
        }
        let sum: f64 = scores.iter().sum();
        let is_uniform_at_zero =
            self.is_uniform_at_zero || self.method == ProbabilityMethod::ModifiedHuber;
        if sum == 0.0 && is_uniform_at_zero {
            let uniform = 1.0 / scores.len() as f64;
            return scores.fill(uniform);
        }
        scores.iter_mut().for_each(|score| *score /= sum);
    }
}

fn modified_huber(decision: f64) -> f64 {
    f64::midpoint(decision.clamp(-1.0, 1.0), 1.0)
}

/// Any of several labels for each row: those whose sum is positive.
struct LinearLabels {
    function: DecisionFunction,
    labels: Vec<ClassLabels>,
}

impl MultiClassifier for LinearLabels {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.function.features).sparse()
    }

    fn labels(&self) -> &[ClassLabels] {
        &self.labels
    }

    fn scores(&self) -> MultiScores {
        MultiScores::None
    }

    fn decisions(&self) -> Decisions {
        Decisions::Columns(self.function.count())
    }

    fn decide(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        self.function.write_all(rows, out);
        Ok(())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], _: &mut [Vec<f64>]) -> Result<()> {
        let mut sums = vec![0.0; classes.len()];
        self.function.write_all(rows, &mut sums);
        classes.iter_mut().zip(sums).for_each(|(class, sum)| *class = usize::from(sum > 0.0));
        Ok(())
    }
}

/// Whether a `RidgeClassifier` was fitted with a matrix of labels.
fn has_label_matrix(estimator: &Estimator) -> Result<bool> {
    let Some(binarizer) = estimator.find(&["_label_binarizer"]) else { return Ok(false) };
    Ok(estimator.child(binarizer)?.text("y_type_")?.starts_with("multilabel"))
}

/// Reads a `RidgeClassifier` of a matrix of labels, which it takes since 1.0.
fn label_matrix(estimator: &Estimator) -> Result<Predictor> {
    let function = DecisionFunction::read(estimator)?;
    let labels = vec![ClassLabels::Ints(vec![0, 1]); function.count()];
    Ok(Predictor::MultiClassifier(Box::new(LinearLabels { function, labels })))
}

/// Reads a linear classifier.
pub(super) fn classifier(estimator: &Estimator) -> Result<Predictor> {
    if has_label_matrix(estimator)? {
        return label_matrix(estimator);
    }
    let labels = estimator.labels()?;
    let classes = labels.len();
    let function = DecisionFunction::read(estimator)?;
    let expected = if classes == 2 { 1 } else { classes };
    let count = function.count();
    if count != expected {
        return Err(match classes {
            1 => estimator.unsupported("a classifier of one class"),
            _ => estimator.damaged(format_args!("coef_ has {count} rows for {classes} classes")),
        });
    }
    let (method, scores) = match estimator.class() {
        "LogisticRegression" | "LogisticRegressionCV" => {
            (logistic_regression_method(estimator, classes)?, ClassScores::ProbabilitiesAndLogs)
        }
        "SGDClassifier" => match estimator.text("loss")? {
            "log" | "log_loss" => (ProbabilityMethod::OneVsRest, ClassScores::ProbabilitiesAndLogs),
            "modified_huber" => {
                (ProbabilityMethod::ModifiedHuber, ClassScores::ProbabilitiesAndLogs)
            }
            _ => (ProbabilityMethod::None, ClassScores::None),
        },
        "LinearDiscriminantAnalysis" => {
            let method = match classes {
                2 => ProbabilityMethod::OneVsRest,
                _ if estimator.is_older_than(0, 21) => ProbabilityMethod::OneVsRest,
                _ => ProbabilityMethod::Softmax,
            };
            let scores = match estimator.is_older_than(0, 24) {
                true => ClassScores::ProbabilitiesAndLogs,
                false => ClassScores::ProbabilitiesAndClampedLogs,
            };
            (method, scores)
        }
        _ => (ProbabilityMethod::None, ClassScores::None),
    };
    let is_uniform_at_zero = !estimator.is_older_than(1, 9);
    let model = LinearClassifier { function, classes, method, is_uniform_at_zero };
    Ok(Predictor::classifier(model, labels, scores))
}

/// Whether a logistic regression was fitted for each class against the rest, or for all together.
fn logistic_regression_method(estimator: &Estimator, classes: usize) -> Result<ProbabilityMethod> {
    let is_one_vs_rest = match estimator.text("multi_class")? {
        "ovr" | "warn" => true,
        // Before 0.20, a multinomial model of two classes is a binary one.
        "multinomial" => classes == 2 && estimator.is_older_than(0, 20),
        // "auto", "deprecated", or absent.
        _ => classes == 2 || estimator.text("solver")? == "liblinear",
    };
    Ok(match is_one_vs_rest {
        true => ProbabilityMethod::OneVsRest,
        false => ProbabilityMethod::Softmax,
    })
}
