//! Linear models of MLlib: a sum, or one for each class, and how Spark predicts from it.

use super::MAX_CLASSES;
use super::numeric::{argmax, logistic, softmax};
use super::parameters::{BinaryThreshold, LinearParameters, PredictionRule};
use super::table::dot;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tabular::wrong_input_count;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Shape, Signature, Tensor, TensorSpec, aligned_vec};

/// The name of the input.
const FEATURES: &str = "features";

/// The name of the output that is the prediction.
const PREDICTION: &str = "prediction";

/// The name of the output that is the probability of a class.
fn probability_name(class: usize) -> String {
    format!("probability_of_{class}")
}

/// A loaded model.
pub(super) struct SparkLinearModel {
    /// The number of features of a row.
    features: usize,
    /// The coefficients of one sum after the other.
    coefficients: Box<[f64]>,
    intercepts: Box<[f64]>,
    rule: PredictionRule,
    /// The index of the prediction among the outputs.
    prediction: usize,
    /// The index of the probability of each class among the outputs.
    probabilities: Box<[usize]>,
}

impl PredictionRule {
    /// Returns the prediction for the sums of a row, and writes the probabilities of the classes, of
    /// which there are [`PredictionRule::class_count`].
    fn predict(&self, sums: &[f64], probabilities: &mut [f64]) -> f64 {
        let sum = sums.first().copied().unwrap_or(f64::NAN);
        match self {
            PredictionRule::Regression => sum,
            PredictionRule::Threshold(threshold) => indicator(sum > *threshold),
            PredictionRule::Binary(threshold) => {
                let second = logistic(sum);
                if let [first, other] = probabilities {
                    *first = logistic(-sum);
                    *other = second;
                }
                match threshold {
                    BinaryThreshold::Sum(threshold) => indicator(sum > *threshold),
                    BinaryThreshold::Probability(threshold) => indicator(second > *threshold),
                    BinaryThreshold::None => second,
                }
            }
            PredictionRule::Multinomial { thresholds } => {
                probabilities.copy_from_slice(sums);
                let class = argmax(probabilities.iter().copied());
                softmax(probabilities);
                match thresholds.is_empty() {
                    true => class,
                    false => argmax(probabilities.iter().zip(thresholds).map(|(p, t)| p / t)),
                }
            }
            PredictionRule::Pivot => {
                if let Some((first, others)) = probabilities.split_first_mut() {
                    *first = 0.0;
                    others.copy_from_slice(sums);
                }
                let class = argmax(probabilities.iter().copied());
                softmax(probabilities);
                class
            }
        }
    }
}

impl SparkLinearModel {
    /// The model with these parameters, and its signature.
    pub(super) fn new(parameters: LinearParameters) -> Result<(Signature, Self)> {
        parameters.check()?;
        let LinearParameters { features, coefficients, intercepts, rule } = parameters;
        let sums = intercepts.len();
        let classes = rule.class_count(sums);
        if classes > MAX_CLASSES {
            let message =
                format!("the model has {classes} classes; at most {MAX_CLASSES} are supported");
            return Err(Error::unsupported(message));
        }
        let width = i64::try_from(features).unwrap_or(i64::MAX);
        let inputs = vec![TensorSpec::new(FEATURES, DType::Double, &[-1, width])];
        let mut outputs = vec![TensorSpec::new(PREDICTION, DType::Double, &[-1])];
        for class in 0..classes {
            outputs.push(TensorSpec::new(probability_name(class), DType::Double, &[-1]));
        }
        let signature = Signature::row_by_row(inputs, outputs);
        let mut probabilities = Vec::with_capacity(classes);
        for class in 0..classes {
            probabilities.push(output_index(&signature, &probability_name(class))?);
        }
        let model = SparkLinearModel {
            features,
            coefficients: coefficients.into(),
            intercepts: intercepts.into(),
            rule,
            prediction: output_index(&signature, PREDICTION)?,
            probabilities: probabilities.into(),
        };
        Ok((signature, model))
    }

    /// Writes the sums of a row to `sums`.
    fn write_sums(&self, row: &[f64], sums: &mut [f64]) {
        let rows = self.coefficients.chunks_exact(self.features);
        for ((sum, coefficients), intercept) in sums.iter_mut().zip(rows).zip(&self.intercepts) {
            *sum = dot(coefficients, row) + intercept;
        }
    }

    /// The rows of a request, one after the other, and their number.
    fn rows<'t>(&self, inputs: &'t [Tensor]) -> Result<(&'t [f64], usize)> {
        let [input] = inputs else {
            return Err(wrong_input_count(1, inputs.len()));
        };
        let Some(values) = input.values::<f64>() else {
            let dtype = input.dtype();
            return Err(Error::invalid(format!(
                "input {FEATURES:?} has the dtype {dtype}, and the model takes double"
            )));
        };
        let features = self.features;
        match *input.shape().dims() {
            [rows, width] if usize::try_from(width) == Ok(features) => {
                Ok((values, usize::try_from(rows).unwrap_or(0)))
            }
            _ => Err(Error::invalid(format!(
                "input {FEATURES:?} has the shape {:?}, and the model takes [rows,{features}]",
                input.shape()
            ))),
        }
    }
}

impl Executable for SparkLinearModel {
    fn run(&self, _: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let (values, count) = self.rows(inputs)?;
        let classes = self.probabilities.len();
        let mut outputs = vec![aligned_vec::<f64>(count); classes + 1];
        let mut sums = vec![0.0; self.intercepts.len()];
        let mut probabilities = vec![0.0; classes];
        for row in values.chunks_exact(self.features) {
            self.write_sums(row, &mut sums);
            let prediction = self.rule.predict(&sums, &mut probabilities);
            if let Some(output) = outputs.get_mut(self.prediction) {
                output.push(prediction);
            }
            for (index, probability) in self.probabilities.iter().zip(&probabilities) {
                if let Some(output) = outputs.get_mut(*index) {
                    output.push(*probability);
                }
            }
        }
        outputs.into_iter().map(|values| Tensor::from_vec(Shape::vector(count), values)).collect()
    }
}

/// The index of the output `name`; outputs are sorted by name.
fn output_index(signature: &Signature, name: &str) -> Result<usize> {
    let found = signature.outputs.binary_search_by(|spec| spec.alias.as_str().cmp(name));
    found.map_err(|_| Error::internal("an output is not in the signature"))
}

/// 1 for true, 0 for false.
fn indicator(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}
