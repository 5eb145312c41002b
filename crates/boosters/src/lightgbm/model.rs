//! A model as it is evaluated, whatever the format of its file.

use super::forest::LightgbmForest;
use super::objective::{Objective, OutputTransform};
use super::tree::LightgbmTree;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tabular::labels::ClassLabels;
use tensorserve_tabular::matrix::count_rows;
use tensorserve_tabular::trees::MAX_FEATURES;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{AlignedVec, DType, Shape, Signature, Tensor, TensorSpec, aligned_vec};

/// The most outputs of a model: classes. Each row of a request takes that many numbers in memory.
const MAX_OUTPUTS: usize = 1 << 16;

/// Rows that are evaluated together: enough to reuse a tree while it is in the cache, few enough
/// that their features stay there, too.
const ROWS_PER_BLOCK: usize = 64;

/// What LightGBM writes before the number of a feature without a name.
const MADE_UP_NAME: &str = "Column_";

/// The name of the input.
const INPUT: &str = "data";

/// The name of the output of a booster.
const RESULT: &str = "result";

/// The names of the outputs of a classifier, which are those of its methods.
const PREDICT: &str = "predict";
const PREDICT_PROBA: &str = "predict_proba";

/// What a file says about a model as a whole.
#[derive(Debug, Default)]
pub(super) struct ModelHeader {
    /// The version of the format, such as `v4`; empty if not recorded.
    pub(super) version: String,
    /// The sums of a row: the trees of an iteration.
    pub(super) outputs: usize,
    pub(super) features: usize,
    /// The names of the features; empty if not recorded.
    pub(super) names: Vec<String>,
    /// The objective and its parameters; `None` if the file has none.
    pub(super) objective: Option<String>,
    /// Whether predictions are averages of the trees, not sums: random forests.
    pub(super) averages: bool,
}

/// A loaded model.
pub(super) struct LightgbmModel {
    /// The format of its file; empty if not recorded.
    pub(super) written_by: String,
    pub(super) features: usize,
    names: Vec<String>,
    pub(super) outputs: usize,
    averages: bool,
    objective: Objective,
    forest: LightgbmForest,
    /// The labels of a pickled classifier.
    pub(super) labels: Option<ClassLabels>,
    /// Whether the file may be one of LightGBM 3.2 with linear trees, of which it would lack the coefficients.
    pub(super) may_lack_coefficients: bool,
}

impl LightgbmModel {
    /// The model that `header` describes, still without trees.
    pub(super) fn new(header: &ModelHeader) -> Result<Self> {
        let ModelHeader { features, outputs, .. } = *header;
        if features == 0 || features > MAX_FEATURES {
            return Err(Error::unsupported(format!(
                "the model has {features} features; 1 to {MAX_FEATURES} are supported"
            )));
        }
        if outputs == 0 || outputs > MAX_OUTPUTS {
            return Err(Error::unsupported(format!(
                "the model has {outputs} outputs; 1 to {MAX_OUTPUTS} are supported"
            )));
        }
        let named = header.names.len();
        if named != 0 && named != features {
            return Err(Error::damaged(format!(
                "\"feature_names\" has {named} names and needs {features}"
            )));
        }
        let objective = header.objective.as_deref().map(Objective::read).transpose()?;
        let version = &header.version;
        Ok(LightgbmModel {
            written_by: match version.is_empty() {
                true => String::new(),
                false => format!("LightGBM, format {version}"),
            },
            features,
            names: header.names.clone(),
            outputs,
            averages: header.averages,
            objective: objective.unwrap_or(Objective::CUSTOM),
            forest: LightgbmForest::default(),
            labels: None,
            may_lack_coefficients: false,
        })
    }

    /// Adds the next tree. The outputs take turns.
    pub(super) fn add(&mut self, tree: &LightgbmTree) -> Result<()> {
        self.forest.add(tree, self.forest.len() % self.outputs, self.features)
    }

    /// The number of trees.
    pub(super) fn trees(&self) -> usize {
        self.forest.len()
    }

    /// Removes all iterations but the first `count`.
    pub(super) fn truncate(&mut self, count: usize) {
        self.forest.truncate(count.saturating_mul(self.outputs));
    }

    /// Whether its objective is one of classes.
    pub(super) fn is_classification(&self) -> bool {
        self.objective.is_classification
    }

    /// Makes it a classifier with these labels.
    pub(super) fn set_labels(&mut self, labels: ClassLabels) -> Result<()> {
        let (has, needs) = (labels.len(), self.outputs.max(2));
        if has != needs {
            return Err(Error::damaged(format!(
                "the classifier has {has} classes and needs {needs}"
            )));
        }
        self.labels = Some(labels);
        Ok(())
    }

    /// The input `data`, double, `[-1, features]`. A classifier with labels has the outputs `predict`,
    /// `[-1]`, and `predict_proba`, double, `[-1, classes]`; any other model has `result`, double,
    /// `[-1]` or `[-1, outputs]`.
    pub(super) fn signature(&self) -> Signature {
        let shape = [-1, dimension(self.features)];
        let input = TensorSpec::new(INPUT, DType::Double, &shape).with_missing_values();
        let input = input.with_given_column_names(&self.names, MADE_UP_NAME);
        let outputs = match &self.labels {
            Some(labels) => vec![
                TensorSpec::new(PREDICT, labels.dtype(), &[-1]),
                TensorSpec::new(PREDICT_PROBA, DType::Double, &[-1, dimension(labels.len())]),
            ],
            None if self.outputs == 1 => vec![TensorSpec::new(RESULT, DType::Double, &[-1])],
            None => {
                let shape = [-1, dimension(self.outputs)];
                vec![TensorSpec::new(RESULT, DType::Double, &shape)]
            }
        };
        Signature::row_by_row(vec![input], outputs)
    }

    /// Predicts for `rows`, of [`LightgbmModel::features`] values each. Appends the predictions to
    /// `result`, which is empty.
    pub(super) fn predict(&self, rows: &[f64], result: &mut AlignedVec<f64>) {
        self.evaluate(rows, result, self.objective.transform);
    }

    /// As [`LightgbmModel::predict`], before the transform of the objective.
    pub(super) fn sum(&self, rows: &[f64], result: &mut AlignedVec<f64>) {
        self.evaluate(rows, result, OutputTransform::Identity);
    }

    fn evaluate(&self, rows: &[f64], result: &mut AlignedVec<f64>, transform: OutputTransform) {
        let count = rows.len().checked_div(self.features).unwrap_or(0);
        result.resize(count * self.outputs, 0.0);
        let blocks = result.chunks_mut(ROWS_PER_BLOCK * self.outputs);
        for (sums, rows) in blocks.zip(rows.chunks(ROWS_PER_BLOCK * self.features)) {
            self.forest.add_to(sums, self.outputs, rows, self.features);
            if self.averages {
                let iterations = (self.forest.len() / self.outputs) as f64;
                sums.iter_mut().for_each(|sum| *sum /= iterations);
            }
            transform.apply(sums, self.outputs);
        }
    }
}

impl Executable for LightgbmModel {
    fn run(&self, _signature: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let input = inputs.first().ok_or_else(|| Error::internal("no input"))?;
        let rows = count_rows(INPUT, input, self.features, &self.names)?;
        let values = input.values::<f64>().ok_or_else(|| {
            let dtype = input.dtype();
            Error::invalid(format!(
                "input {INPUT:?} has the dtype {dtype}, and the model takes double"
            ))
        })?;
        let mut result = aligned_vec(rows.saturating_mul(self.outputs));
        self.predict(values, &mut result);
        match &self.labels {
            Some(labels) => classified(labels, rows, self.outputs, result),
            None => Ok(vec![matrix(rows, self.outputs, result)?]),
        }
    }
}

/// The labels and the probabilities of `rows` rows, of which `result` has `outputs` numbers each.
fn classified(
    labels: &ClassLabels,
    rows: usize,
    outputs: usize,
    result: AlignedVec<f64>,
) -> Result<Vec<Tensor>> {
    let probabilities = if outputs == 1 { with_complements(&result) } else { result };
    let rows_of = probabilities.chunks_exact(labels.len().max(1));
    let classes: Vec<usize> = rows_of.map(arg_max).collect();
    Ok(vec![labels.tensor(&classes)?, matrix(rows, labels.len(), probabilities)?])
}

/// The probabilities of two classes, of those of the second.
fn with_complements(second: &[f64]) -> AlignedVec<f64> {
    let mut both = aligned_vec(second.len() * 2);
    for &probability in second {
        both.extend_from_slice(&[1.0 - probability, probability]);
    }
    both
}

/// The index of the largest value, as `numpy.argmax` finds it: the first of equal ones, or of NaN.
fn arg_max(row: &[f64]) -> usize {
    let mut best = (0, row.first().copied().unwrap_or(f64::NAN));
    for (index, &x) in row.iter().enumerate() {
        if x > best.1 || (x.is_nan() && !best.1.is_nan()) {
            best = (index, x);
        }
    }
    best.0
}

/// A tensor of `columns` numbers for each row, or of one dimension if that is one number.
fn matrix(rows: usize, columns: usize, values: AlignedVec<f64>) -> Result<Tensor> {
    let shape = match columns {
        1 => Shape::vector(rows),
        _ => Shape::new(&[dimension(rows), dimension(columns)])?,
    };
    Tensor::from_vec(shape, values)
}

/// A size as a dimension of a shape.
fn dimension(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
