//! A model as it is evaluated, whatever the format of its file.

use super::forest::XgboostForest;
use super::objective::{LibraryVersion, Objective, PredictionTransform};
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tabular::matrix::count_rows;
use tensorserve_tabular::trees::MAX_FEATURES;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Shape, Signature, Tensor, TensorSpec, aligned_vec};

/// The most outputs of a model: classes, targets or quantiles. Each row of a request takes that many
/// numbers in memory.
const MAX_OUTPUTS: usize = 1 << 16;

/// Rows that are evaluated together: enough to reuse a tree while it is in the cache, few enough
/// that their features stay there, too.
const ROWS_PER_BLOCK: usize = 64;

/// The name of the input.
const INPUT: &str = "data";

/// The name of the output.
const OUTPUT: &str = "result";

/// A loaded model.
pub(super) struct XgboostModel {
    /// The version of the library that wrote it; empty if not recorded.
    pub(super) written_by: String,
    /// Features of a row.
    pub(super) features: usize,
    /// The names of the features; empty if not recorded.
    pub(super) names: Vec<String>,
    /// The value that stands for a missing one, besides NaN.
    pub(super) missing: Option<f32>,
    booster: Booster,
    transform: PredictionTransform,
    /// The initial sum of each output.
    base: Vec<f32>,
    version: LibraryVersion,
}

/// What computes the sums of a row.
pub(super) enum Booster {
    Trees(XgboostForest),
    /// For each feature a weight for each output; then the biases of the outputs.
    Linear(Vec<f32>),
}

/// The parameters of the learner that a file stores beside its booster.
pub(super) struct LearnerParameters {
    pub(super) version: LibraryVersion,
    pub(super) objective: String,
    pub(super) features: usize,
    pub(super) outputs: usize,
    pub(super) base_score: BaseScore,
}

/// How a file stores the initial sums.
pub(super) enum BaseScore {
    /// As predictions: one for each output, or one for all.
    Predictions(Vec<f32>),
    /// As the sum itself, for all outputs: before 1.0.
    Margin(f32),
}

impl LearnerParameters {
    /// Checks the sizes that a booster is read against.
    pub(super) fn check(&self) -> Result<()> {
        let LearnerParameters { features, outputs, .. } = *self;
        if features == 0 {
            return Err(Error::damaged("\"num_feature\" is 0"));
        }
        if features > MAX_FEATURES {
            return Err(Error::unsupported(format!(
                "the model has {features} features; at most {MAX_FEATURES} are supported"
            )));
        }
        if outputs > MAX_OUTPUTS {
            return Err(Error::unsupported(format!(
                "the model has {outputs} outputs; at most {MAX_OUTPUTS} are supported"
            )));
        }
        Ok(())
    }

    /// The model with this booster.
    pub(super) fn into_model(self, booster: Booster) -> Result<XgboostModel> {
        let objective = Objective::new(&self.objective, self.version)?;
        if let Booster::Linear(weights) = &booster {
            let (have, need) = (weights.len(), (self.features + 1).saturating_mul(self.outputs));
            if have != need {
                return Err(Error::damaged(format!(
                    "\"weights\" has {have} elements and needs {need}"
                )));
            }
        }
        let is_linear = matches!(booster, Booster::Linear(_));
        let base = match self.base_score {
            BaseScore::Margin(margin) => vec![margin; self.outputs],
            // Linear boosters use the first for all outputs, in training and in the library's
            // predictions.
            BaseScore::Predictions(scores) if scores.len() == 1 || is_linear => {
                let score = scores.first().copied().unwrap_or(f32::NAN);
                vec![objective.margin(score)?; self.outputs]
            }
            BaseScore::Predictions(scores) if scores.len() == self.outputs => {
                scores.into_iter().map(|score| objective.margin(score)).collect::<Result<_>>()?
            }
            BaseScore::Predictions(scores) => {
                let (have, need) = (scores.len(), self.outputs);
                return Err(Error::damaged(format!(
                    "\"base_score\" has {have} numbers and needs {need}"
                )));
            }
        };
        let (major, minor) = self.version;
        Ok(XgboostModel {
            written_by: if major == 0 { String::new() } else { format!("{major}.{minor}") },
            features: self.features,
            names: Vec::new(),
            missing: None,
            booster,
            transform: objective.transform,
            base,
            version: self.version,
        })
    }
}

impl XgboostModel {
    /// The input and the output: `data`, float, `[-1, features]`; `result`, float, `[-1]` or
    /// `[-1, numbers of a prediction]`.
    pub(super) fn signature(&self) -> Signature {
        let outputs: &[i64] = match self.width() {
            1 => &[-1],
            width => &[-1, dimension(width)],
        };
        let input = TensorSpec::new(INPUT, DType::Float, &[-1, dimension(self.features)]);
        Signature::row_by_row(
            vec![input.with_missing_values().with_column_names(&self.names)],
            vec![TensorSpec::new(OUTPUT, DType::Float, outputs)],
        )
    }

    /// The initial sum of each output.
    pub(super) fn base(&self) -> &[f32] {
        &self.base
    }

    /// How sums become predictions.
    pub(super) fn transform(&self) -> PredictionTransform {
        self.transform
    }

    /// The version of the library that wrote the model.
    pub(super) fn version(&self) -> LibraryVersion {
        self.version
    }

    /// How many numbers the prediction of a row has.
    pub(super) fn width(&self) -> usize {
        self.transform.width(self.base.len())
    }

    /// Predicts for `rows`, of [`XgboostModel::features`] values each. Passes predictions to `push`
    /// in the order of the rows, several at a time.
    pub(super) fn predict(&self, rows: &[f32], mut push: impl FnMut(&[f32])) {
        let outputs = self.base.len();
        let count = rows.len().checked_div(self.features).unwrap_or(0);
        let mut sums = vec![0.0; count.min(ROWS_PER_BLOCK) * outputs];
        let mut cleaned = Vec::new();
        for rows in rows.chunks(ROWS_PER_BLOCK * self.features) {
            let rows = self.missing_as_nan(rows, &mut cleaned);
            let count = rows.len().checked_div(self.features).unwrap_or(0);
            let sums = sums.get_mut(..count * outputs).unwrap_or_default();
            for sums in sums.chunks_exact_mut(outputs) {
                sums.copy_from_slice(&self.base);
            }
            self.add_to(sums, rows);
            self.transform.apply(sums, outputs, &mut push);
        }
    }

    /// Adds what the booster makes of `rows` to `sums`.
    pub(super) fn add_to(&self, sums: &mut [f32], rows: &[f32]) {
        let outputs = self.base.len();
        match &self.booster {
            Booster::Trees(forest) => forest.add_to(sums, outputs, rows, self.features),
            Booster::Linear(weights) => add_products(weights, sums, outputs, rows, self.features),
        }
    }

    /// `rows` with NaN in place of [`XgboostModel::missing`]; `cleaned` is the buffer for them.
    #[allow(clippy::float_cmp)] // The exact value.
    fn missing_as_nan<'a>(&self, rows: &'a [f32], cleaned: &'a mut Vec<f32>) -> &'a [f32] {
        let Some(missing) = self.missing else {
            return rows;
        };
        cleaned.clear();
        cleaned.extend(rows.iter().map(|&x| if x == missing { f32::NAN } else { x }));
        cleaned
    }
}

impl Executable for XgboostModel {
    fn run(&self, _signature: usize, inputs: &[Tensor], _: RunOptions) -> Result<Vec<Tensor>> {
        let input = inputs.first().ok_or_else(|| Error::internal("no input"))?;
        let rows = count_rows(INPUT, input, self.features, &self.names)?;
        let values = input.values::<f32>().ok_or_else(|| {
            let dtype = input.dtype();
            Error::invalid(format!(
                "input {INPUT:?} has the dtype {dtype}, and the model takes float"
            ))
        })?;
        let width = self.width();
        let mut result = aligned_vec(rows.saturating_mul(width));
        self.predict(values, |predictions| result.extend_from_slice(predictions));
        let shape = match width {
            1 => Shape::vector(rows),
            _ => Shape::new(&[dimension(rows), dimension(width)])?,
        };
        Ok(vec![Tensor::from_vec(shape, result)?])
    }
}

/// Adds the products of each row's values and their weights to its sums. Missing values add nothing.
fn add_products(weights: &[f32], sums: &mut [f32], outputs: usize, rows: &[f32], features: usize) {
    let (weights, biases) = weights.split_at(weights.len().min(features * outputs));
    for (sums, row) in sums.chunks_exact_mut(outputs).zip(rows.chunks_exact(features)) {
        sums.iter_mut().zip(biases).for_each(|(sum, bias)| *sum += bias);
        for (x, weights) in row.iter().zip(weights.chunks_exact(outputs)) {
            if !x.is_nan() {
                sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += x * weight);
            }
        }
    }
}

/// A size as a dimension of a shape.
pub(super) fn dimension(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
