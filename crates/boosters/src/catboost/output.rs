//! What a prediction is, after the loss function of the training: as `predict` and `predict_proba` of
//! CatBoost's classes return it.

use serde_json::Value as Json;

use super::document::ModelInfo;
use tensorserve_tabular::labels::ClassLabels;
use tensorserve_tabular::numeric::{logistic, softmax};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{AlignedVec, DType, Shape, Tensor, TensorSpec, aligned_vec};

/// The names of the outputs, which are those of the methods.
const PREDICT: &str = "predict";
const PREDICT_PROBA: &str = "predict_proba";

/// What the sums of a row become.
#[derive(Debug, PartialEq)]
pub(super) enum Prediction {
    /// The sums themselves.
    Raw,
    /// Their exponential: counts.
    Exponent,
    /// A mean, and a variance whose logarithm is twice the second sum.
    MeanAndVariance,
    /// One of two classes: the second if the sum is above the border.
    Binary { labels: ClassLabels, border: f64 },
    /// The class with the largest sum, and probabilities that add up to 1, or, if they are not
    /// `exclusive`, of each class against all others.
    Classes { labels: ClassLabels, exclusive: bool },
    /// For each class whether it applies.
    Labels,
}

impl Prediction {
    /// What a model with `dimension` sums predicts.
    pub(super) fn new(info: &ModelInfo, dimension: usize) -> Result<Self> {
        Ok(match &*info.loss {
            "Logloss" | "CrossEntropy" | "Focal" if dimension == 1 => {
                Prediction::Binary { labels: labels(info, 2)?, border: border(info.threshold)? }
            }
            "MultiClass" => {
                Prediction::Classes { labels: labels(info, dimension)?, exclusive: true }
            }
            "MultiClassOneVsAll" => {
                Prediction::Classes { labels: labels(info, dimension)?, exclusive: false }
            }
            "MultiLogloss" | "MultiCrossEntropy" => Prediction::Labels,
            "Poisson" | "Tweedie" if dimension == 1 => Prediction::Exponent,
            "RMSEWithUncertainty" if dimension == 2 => Prediction::MeanAndVariance,
            _ => Prediction::Raw,
        })
    }

    /// The outputs of a model with `dimension` sums.
    pub(super) fn outputs(&self, dimension: usize) -> Vec<TensorSpec> {
        let matrix = |name, dtype, columns| TensorSpec::new(name, dtype, &[-1, size(columns)]);
        match self {
            Prediction::Raw | Prediction::Exponent | Prediction::MeanAndVariance => {
                vec![match dimension {
                    1 => TensorSpec::new(PREDICT, DType::Double, &[-1]),
                    _ => matrix(PREDICT, DType::Double, dimension),
                }]
            }
            Prediction::Binary { labels, .. } | Prediction::Classes { labels, .. } => vec![
                TensorSpec::new(PREDICT, labels.dtype(), &[-1]),
                matrix(PREDICT_PROBA, DType::Double, labels.len()),
            ],
            Prediction::Labels => vec![
                matrix(PREDICT, DType::Int64, dimension),
                matrix(PREDICT_PROBA, DType::Double, dimension),
            ],
        }
    }

    /// The outputs for `rows` rows with these sums, `dimension` for each.
    pub(super) fn tensors(
        &self,
        rows: usize,
        dimension: usize,
        mut sums: AlignedVec<f64>,
    ) -> Result<Vec<Tensor>> {
        match self {
            Prediction::Raw => {}
            Prediction::Exponent => sums.iter_mut().for_each(|sum| *sum = sum.exp()),
            Prediction::MeanAndVariance => {
                sums.iter_mut().skip(1).step_by(2).for_each(|sum| *sum = (*sum * 2.0).exp());
            }
            Prediction::Binary { labels, border } => {
                let classes: Vec<usize> = sums.iter().map(|x| usize::from(*x > *border)).collect();
                let mut both = aligned_vec(rows * 2);
                for second in sums.iter().map(|sum| logistic(*sum)) {
                    both.extend_from_slice(&[1.0 - second, second]);
                }
                return Ok(vec![labels.tensor(&classes)?, matrix(rows, 2, both)?]);
            }
            Prediction::Classes { labels, exclusive } => {
                let classes: Vec<usize> = sums.chunks_exact(dimension).map(arg_max).collect();
                match exclusive {
                    true => sums.chunks_exact_mut(dimension).for_each(softmax),
                    false => sums.iter_mut().for_each(|sum| *sum = logistic(*sum)),
                }
                return Ok(vec![labels.tensor(&classes)?, matrix(rows, dimension, sums)?]);
            }
            Prediction::Labels => {
                let mut applies = aligned_vec::<i64>(sums.len());
                sums.iter().for_each(|sum| applies.push(i64::from(*sum > 0.0)));
                sums.iter_mut().for_each(|sum| *sum = logistic(*sum));
                let shape = Shape::new(&[size(rows), size(dimension)])?;
                let applies = Tensor::from_vec(shape, applies)?;
                return Ok(vec![applies, matrix(rows, dimension, sums)?]);
            }
        }
        Ok(vec![match dimension {
            1 => Tensor::from_vec(Shape::vector(rows), sums)?,
            _ => matrix(rows, dimension, sums)?,
        }])
    }
}

/// The sum from whose excess on the second class is predicted.
fn border(threshold: Option<f64>) -> Result<f64> {
    match threshold {
        None => Ok(0.0),
        Some(threshold) if (0.0..=1.0).contains(&threshold) => Ok(-(1.0 / threshold - 1.0).ln()),
        Some(threshold) => {
            Err(Error::damaged(format!("\"binclass_probability_threshold\" is {threshold}")))
        }
    }
}

/// The labels of `count` classes; 0, 1, … if none are recorded.
fn labels(info: &ModelInfo, count: usize) -> Result<ClassLabels> {
    let classes = &info.classes;
    if classes.is_empty() {
        return Ok(ClassLabels::Ints((0..).take(count).collect()));
    }
    if classes.len() != count {
        let found = classes.len();
        return Err(Error::unsupported(format!(
            "the model has {found} labels for {count} classes: classes that did not occur in the \
             training are not supported"
        )));
    }
    let all = |read: fn(&Json) -> Option<i64>| classes.iter().map(read).collect::<Option<Vec<_>>>();
    if let Some(bools) = all(|label| label.as_bool().map(i64::from)) {
        return Ok(ClassLabels::Bools(bools));
    }
    if info.class_type != "Float"
        && let Some(ints) = all(Json::as_i64)
    {
        return Ok(ClassLabels::Ints(ints));
    }
    if let Some(floats) = classes.iter().map(Json::as_f64).collect::<Option<Vec<_>>>() {
        return Ok(ClassLabels::Floats(floats));
    }
    let texts = classes.iter().map(|label| label.as_str().map(str::to_owned));
    let texts = texts.collect::<Option<Vec<_>>>();
    texts.map(ClassLabels::Texts).ok_or_else(|| {
        Error::damaged("the labels of the classes are not all booleans, all numbers or all texts")
    })
}

/// The index of the largest sum; of equal ones, of the first.
fn arg_max(row: &[f64]) -> usize {
    let mut best = (0, row.first().copied().unwrap_or(0.0));
    for (index, &x) in row.iter().enumerate() {
        if x > best.1 {
            best = (index, x);
        }
    }
    best.0
}

fn matrix(rows: usize, columns: usize, values: AlignedVec<f64>) -> Result<Tensor> {
    Tensor::from_vec(Shape::new(&[size(rows), size(columns)])?, values)
}

/// A size as a dimension of a shape.
fn size(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
