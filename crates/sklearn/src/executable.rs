//! The outputs of a model, and the tensors of its predictions.

use super::model::{
    ClassScores, LabelledClassifier, MultiClassifier, MultiScores, Predictions, Predictor,
    SklearnModel,
};
use tensorserve_tabular::labels::ClassLabels;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{AlignedVec, DType, Shape, Tensor, TensorSpec, aligned_vec};

/// The names of the outputs, which are those of scikit-learn's methods.
const PREDICT: &str = "predict";
const PREDICT_PROBA: &str = "predict_proba";
const PREDICT_LOG_PROBA: &str = "predict_log_proba";
const TRANSFORM: &str = "transform";

impl SklearnModel {
    /// An output for each method that the predictor has in scikit-learn.
    pub(super) fn outputs(&self) -> Vec<TensorSpec> {
        match &self.predictor {
            Predictor::Regressor(regressor) => {
                let shape: &[i64] = match regressor.outputs() {
                    None => &[-1],
                    Some(count) => &[-1, dimension(count)],
                };
                vec![TensorSpec::new(PREDICT, DType::Double, shape)]
            }
            Predictor::Classifier(classifier) => classifier.outputs(),
            Predictor::MultiClassifier(model) => multi_outputs(&**model),
            Predictor::Features(columns) => {
                vec![TensorSpec::new(TRANSFORM, DType::Double, &[-1, dimension(*columns)])]
            }
        }
    }

    /// The predictions as the outputs of the signature, in its order.
    pub(super) fn tensors(&self, rows: usize, predictions: Predictions) -> Result<Vec<Tensor>> {
        match (&self.predictor, predictions) {
            (Predictor::Regressor(regressor), Predictions::Numbers(numbers)) => {
                Ok(vec![match regressor.outputs() {
                    None => Tensor::from_vec(Shape::vector(rows), aligned(&numbers))?,
                    Some(count) => matrix(rows, count, aligned(&numbers))?,
                }])
            }
            (Predictor::Classifier(classifier), Predictions::Classes { classes, scores }) => {
                let mut outputs = vec![classifier.labels.tensor(&classes)?];
                outputs.extend(classifier.score_tensors(rows, &scores)?);
                Ok(outputs)
            }
            (Predictor::MultiClassifier(model), Predictions::MultiClasses { classes, scores }) => {
                multi_tensors(&**model, rows, &classes, &scores)
            }
            (Predictor::Features(columns), Predictions::Numbers(numbers)) => {
                Ok(vec![matrix(rows, *columns, aligned(&numbers))?])
            }
            _ => Err(Error::internal("a model made predictions of another kind than its own")),
        }
    }
}

impl LabelledClassifier {
    /// The outputs of a signature.
    fn outputs(&self) -> Vec<TensorSpec> {
        let shape = [-1, dimension(self.labels.len())];
        let mut outputs = vec![TensorSpec::new(PREDICT, self.labels.dtype(), &[-1])];
        if self.scores != ClassScores::None {
            outputs.push(TensorSpec::new(PREDICT_PROBA, DType::Double, &shape));
        }
        if self.scores.has_logs() {
            outputs.push(TensorSpec::new(PREDICT_LOG_PROBA, DType::Double, &shape));
        }
        outputs
    }

    /// Logarithms of probabilities, and probabilities, as far as the classifier has them: in the
    /// alphabetical order of a signature.
    fn score_tensors(&self, rows: usize, scores: &[f64]) -> Result<Vec<Tensor>> {
        let columns = self.labels.len();
        let plain = || matrix(rows, columns, aligned(scores));
        let mapped = |map| mapped_matrix(rows, columns, scores, map);
        Ok(match self.scores {
            ClassScores::None => Vec::new(),
            ClassScores::Probabilities => vec![plain()?],
            ClassScores::ProbabilitiesAndLogs => vec![mapped(f64::ln)?, plain()?],
            ClassScores::ProbabilitiesAndClampedLogs => vec![mapped(clamped_ln)?, plain()?],
            ClassScores::LogProbabilities => vec![plain()?, mapped(f64::exp)?],
            ClassScores::HiddenLogProbabilities => vec![mapped(f64::exp)?],
        })
    }
}

/// The outputs of a classifier with several outputs: of `predict` one column each; of `predict_proba` a
/// matrix each, `predict_proba_0` and so on, where scikit-learn has a list of them.
fn multi_outputs(model: &dyn MultiClassifier) -> Vec<TensorSpec> {
    let labels = model.labels();
    let dtype = labels.first().map_or(DType::Int64, ClassLabels::dtype);
    let mut outputs = vec![TensorSpec::new(PREDICT, dtype, &[-1, dimension(labels.len())])];
    let widths = model.scores().widths(labels).into_iter().enumerate();
    for (number, width) in widths {
        let mut add = |name: String| {
            outputs.push(TensorSpec::new(name, DType::Double, &[-1, dimension(width)]));
        };
        let (suffix, scores) = match model.scores() {
            MultiScores::None => continue,
            MultiScores::Separate(scores) => (format!("_{number}"), scores),
            MultiScores::Joint(scores) => (String::new(), scores),
        };
        add(format!("{PREDICT_PROBA}{suffix}"));
        if scores.has_logs() {
            add(format!("{PREDICT_LOG_PROBA}{suffix}"));
        }
    }
    outputs
}

/// The tensors of these outputs, sorted by name.
fn multi_tensors(
    model: &dyn MultiClassifier,
    rows: usize,
    classes: &[usize],
    scores: &[Vec<f64>],
) -> Result<Vec<Tensor>> {
    let labels = model.labels();
    let predict = ClassLabels::matrix(labels, rows, classes)?;
    let mut named = vec![(PREDICT.to_owned(), predict)];
    for ((number, width), scores) in
        model.scores().widths(labels).into_iter().enumerate().zip(scores)
    {
        let (suffix, kind) = match model.scores() {
            MultiScores::None => continue,
            MultiScores::Separate(kind) => (format!("_{number}"), kind),
            MultiScores::Joint(kind) => (String::new(), kind),
        };
        let is_log = kind.are_logs();
        let probabilities = match is_log {
            true => mapped_matrix(rows, width, scores, f64::exp)?,
            false => matrix(rows, width, aligned(scores))?,
        };
        named.push((format!("{PREDICT_PROBA}{suffix}"), probabilities));
        if kind.has_logs() {
            let logs = match is_log {
                true => matrix(rows, width, aligned(scores))?,
                false => mapped_matrix(rows, width, scores, f64::ln)?,
            };
            named.push((format!("{PREDICT_LOG_PROBA}{suffix}"), logs));
        }
    }
    named.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(named.into_iter().map(|(_, tensor)| tensor).collect())
}

/// The logarithm; of 0, that of the smallest normal number.
fn clamped_ln(probability: f64) -> f64 {
    if probability == 0.0 { f64::MIN_POSITIVE.ln() } else { probability.ln() }
}

pub(super) fn aligned(values: &[f64]) -> AlignedVec<f64> {
    let mut out = aligned_vec(values.len());
    out.extend_from_slice(values);
    out
}

pub(super) fn matrix(rows: usize, columns: usize, values: AlignedVec<f64>) -> Result<Tensor> {
    Tensor::from_vec(Shape::new(&[dimension(rows), dimension(columns)])?, values)
}

/// A matrix of `map` of each of `values`.
fn mapped_matrix(
    rows: usize,
    columns: usize,
    values: &[f64],
    map: fn(f64) -> f64,
) -> Result<Tensor> {
    let mut out = aligned_vec(values.len());
    values.iter().for_each(|value| out.push(map(*value)));
    matrix(rows, columns, out)
}

/// A size as a dimension of a shape.
pub(super) fn dimension(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
