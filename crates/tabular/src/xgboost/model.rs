//! A model as it is run: what all kinds of files are turned into.

use super::forest::{Forest, MOST_FEATURES};
use super::objective::{Objective, Transform, Version};
use super::{broken, unsupported};
use tensorserve_tensor::error::Result;

/// The most outputs of a model. More classes or targets than that have not been seen, and every
/// row of a request takes that much memory.
const MOST_OUTPUTS: usize = 1 << 16;

/// Rows whose sums are held at a time: so many that a tree stays in the cache for a while, so few
/// that their values do, too.
const BLOCK: usize = 64;

/// A model.
pub(super) struct Model {
    /// The version of the library that wrote it; empty if not recorded.
    pub(super) written_by: String,
    /// Values in a row.
    pub(super) features: usize,
    /// What those are called; empty if not recorded.
    pub(super) names: Vec<String>,
    /// What stands for a missing value, besides NaN.
    pub(super) missing: Option<f32>,
    booster: Booster,
    transform: Transform,
    /// What the sum of each output starts from.
    base: Vec<f32>,
}

/// What turns a row into sums.
pub(super) enum Booster {
    Trees(Forest),
    /// For each feature in turn a weight for each output, and the biases behind them.
    Linear(Vec<f32>),
}

/// What a file says beside its booster.
pub(super) struct Learner {
    pub(super) version: Version,
    pub(super) objective: String,
    pub(super) features: usize,
    pub(super) outputs: usize,
    pub(super) base: Base,
}

/// How a file says what sums start from.
pub(super) enum Base {
    /// As a prediction: a value for every output, or one for all.
    Scores(Vec<f32>),
    /// As it is, for all outputs: before 1.0.
    Margin(f32),
}

impl Learner {
    /// Checks what a booster can be read against.
    pub(super) fn check(&self) -> Result<()> {
        if self.features == 0 {
            return Err(broken("\"num_feature\" is 0".to_owned()));
        }
        if self.features > MOST_FEATURES {
            let features = self.features;
            return Err(unsupported(format!("it has {features} features, more than 2^30")));
        }
        if self.outputs > MOST_OUTPUTS {
            let outputs = self.outputs;
            return Err(unsupported(format!("it has {outputs} outputs, more than {MOST_OUTPUTS}")));
        }
        Ok(())
    }

    /// The model with this booster.
    pub(super) fn with(self, booster: Booster) -> Result<Model> {
        let objective = Objective::new(&self.objective, self.version)?;
        if let Booster::Linear(weights) = &booster {
            let (have, want) = (weights.len(), (self.features + 1).saturating_mul(self.outputs));
            if have != want {
                return Err(broken(format!("it has {have} weights and needs {want}")));
            }
        }
        let is_linear = matches!(booster, Booster::Linear(_));
        let base = match self.base {
            Base::Margin(margin) => vec![margin; self.outputs],
            // Linear boosters take the first for all, in training and in the library's predictions.
            Base::Scores(scores) if scores.len() == 1 || is_linear => {
                let score = scores.first().copied().unwrap_or(f32::NAN);
                vec![objective.margin(score)?; self.outputs]
            }
            Base::Scores(scores) if scores.len() == self.outputs => {
                scores.into_iter().map(|score| objective.margin(score)).collect::<Result<_>>()?
            }
            Base::Scores(scores) => {
                let (have, want) = (scores.len(), self.outputs);
                return Err(broken(format!("\"base_score\" has {have} numbers and needs {want}")));
            }
        };
        let (major, minor) = self.version;
        Ok(Model {
            written_by: if major == 0 { String::new() } else { format!("{major}.{minor}") },
            features: self.features,
            names: Vec::new(),
            missing: None,
            booster,
            transform: objective.transform,
            base,
        })
    }
}

impl Model {
    /// How many numbers a row's prediction has.
    pub(super) fn width(&self) -> usize {
        self.transform.width(self.base.len())
    }

    /// Predicts for `rows`, which have [`Model::features`] values each; predictions reach `push`
    /// in order, some at a time.
    pub(super) fn predict(&self, rows: &[f32], mut push: impl FnMut(&[f32])) {
        let outputs = self.base.len();
        let count = rows.len().checked_div(self.features).unwrap_or(0);
        let mut sums = vec![0.0; count.min(BLOCK) * outputs];
        let mut cleaned = Vec::new();
        for rows in rows.chunks(BLOCK * self.features) {
            let rows = self.without_missing(rows, &mut cleaned);
            let count = rows.len().checked_div(self.features).unwrap_or(0);
            let sums = sums.get_mut(..count * outputs).unwrap_or_default();
            for sums in sums.chunks_exact_mut(outputs) {
                sums.copy_from_slice(&self.base);
            }
            match &self.booster {
                Booster::Trees(forest) => forest.add_to(sums, outputs, rows, self.features),
                Booster::Linear(weights) => {
                    add_products(weights, sums, outputs, rows, self.features)
                }
            }
            self.transform.apply(sums, outputs, &mut push);
        }
    }

    /// `rows` with NaN for missing values.
    fn without_missing<'a>(&self, rows: &'a [f32], cleaned: &'a mut Vec<f32>) -> &'a [f32] {
        let Some(missing) = self.missing else {
            return rows;
        };
        #[allow(clippy::float_cmp)] // The very same number.
        let clean = |&x: &f32| if x == missing { f32::NAN } else { x };
        cleaned.clear();
        cleaned.extend(rows.iter().map(clean));
        cleaned
    }
}

/// Adds the products of a row's values and their weights to its sums. Missing values add nothing.
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
