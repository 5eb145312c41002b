//! Runs a model on tensors, and makes tensors of its predictions.

use super::estimator::ClassLabels;
use super::model::{
    ClassScores, FeatureRows, LabelledClassifier, Predictions, Predictor, SklearnModel,
};
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    AlignedVec, DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// The name of the input.
const INPUT: &str = "data";

/// The names of the outputs, which are those of scikit-learn's methods.
const PREDICT: &str = "predict";
const PREDICT_PROBA: &str = "predict_proba";
const PREDICT_LOG_PROBA: &str = "predict_log_proba";

/// Bytes to reserve for each label that is text.
const TYPICAL_LABEL_BYTES: usize = 8;

impl SklearnModel {
    /// The input, and an output for each method that the predictor has in scikit-learn.
    pub(super) fn signature(&self) -> Signature {
        let shape = [-1, dimension(self.features())];
        let inputs = vec![TensorSpec::new(INPUT, DType::Double, &shape).with_missing_values()];
        let outputs = match &self.predictor {
            Predictor::Regressor(regressor) => {
                let shape: &[i64] = match regressor.outputs() {
                    None => &[-1],
                    Some(count) => &[-1, dimension(count)],
                };
                vec![TensorSpec::new(PREDICT, DType::Double, shape)]
            }
            Predictor::Classifier(classifier) => classifier.outputs(),
        };
        Signature::only(inputs, outputs)
    }

    /// The predictions as the outputs of the signature, in its order.
    fn tensors(&self, rows: usize, predictions: Predictions) -> Result<Vec<Tensor>> {
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
            _ => Err(Error::internal("a model made predictions of another kind than its own")),
        }
    }
}

impl Executable for SklearnModel {
    fn run(&self, _signature: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let features = self.features();
        let [data] = inputs else {
            return Err(Error::invalid(format!("the model takes one input, {INPUT:?}")));
        };
        let Some(values) = data.values::<f64>() else {
            let dtype = data.dtype();
            return Err(Error::invalid(format!(
                "input {INPUT:?} has the dtype {dtype}, and the model takes double"
            )));
        };
        if data.shape().rank() != 2 || data.shape().row_dims() != [features as i64] {
            return Err(Error::invalid(format!(
                "input {INPUT:?} has the shape {:?}, and the model takes rows of {features} \
                 numbers: [-1,{features}]",
                data.shape()
            )));
        }
        let rows = FeatureRows { values, columns: features, first_row: 0 };
        let predictions = self.predict(rows)?;
        self.tensors(rows.len(), predictions)
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
        })
    }
}

/// The logarithm; of 0, that of the smallest normal number.
fn clamped_ln(probability: f64) -> f64 {
    if probability == 0.0 { f64::MIN_POSITIVE.ln() } else { probability.ln() }
}

impl ClassLabels {
    fn dtype(&self) -> DType {
        match self {
            ClassLabels::Ints(_) => DType::Int64,
            ClassLabels::Floats(_) => DType::Double,
            ClassLabels::Texts(_) => DType::String,
            ClassLabels::Bools(_) => DType::Bool,
        }
    }

    /// The labels of `classes`, which are indices.
    fn tensor(&self, classes: &[usize]) -> Result<Tensor> {
        let shape = Shape::vector(classes.len());
        match self {
            ClassLabels::Ints(labels) => {
                let mut out = aligned_vec::<i64>(classes.len());
                classes.iter().for_each(|class| out.push(labels.get(*class).copied().unwrap_or(0)));
                Tensor::from_vec(shape, out)
            }
            ClassLabels::Floats(labels) => {
                let mut out = aligned_vec::<f64>(classes.len());
                classes
                    .iter()
                    .for_each(|class| out.push(labels.get(*class).copied().unwrap_or(0.0)));
                Tensor::from_vec(shape, out)
            }
            ClassLabels::Bools(labels) => {
                let mut out = aligned_vec::<u8>(classes.len());
                classes.iter().for_each(|class| out.push(u8::from(labels.get(*class) == Some(&1))));
                Tensor::from_bools(shape, out)
            }
            ClassLabels::Texts(labels) => {
                let bytes = classes.len() * TYPICAL_LABEL_BYTES;
                let mut out = StringsBuilder::with_capacity(classes.len(), bytes);
                for class in classes {
                    out.push(labels.get(*class).map_or(&[], |label| label.as_bytes()));
                }
                Tensor::from_strings(shape, out)
            }
        }
    }
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
fn dimension(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
