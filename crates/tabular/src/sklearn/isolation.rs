//! `IsolationForest`: anomalies are rows that random splits isolate early.

use super::accepted::AcceptedValues;
use super::estimator::{ClassLabels, Estimator};
use super::forest::{count_features, members};
use super::model::{ClassScores, Classifier, FeatureRows, Predictor};
use super::tree::{PickledTree, SklearnTrees, read_estimator_columns, to_single_precision};
use tensorserve_tensor::error::Result;

/// How far a score may be below the offset by rounding. The offset is often the score of a training
/// row, which must not change sides because a logarithm is rounded differently here.
const ROUNDING_TOLERANCE: f64 = 1e-14;

/// Euler's constant.
const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;

/// The labels of anomalies and of other rows.
const OUTLIER: i64 = -1;
const INLIER: i64 = 1;

struct IsolationForest {
    trees: SklearnTrees,
    /// The sum of depths that corresponds to a score of -0.5.
    average_depth_sum: f64,
    offset: f64,
    accepts: AcceptedValues,
}

impl Classifier for IsolationForest {
    fn features(&self) -> usize {
        self.trees.features()
    }

    fn accepts(&self) -> AcceptedValues {
        self.accepts
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let mut depths = vec![0.0; rows.len()];
        let values = to_single_precision(rows);
        self.trees.sum(FeatureRows { values: &values, ..rows }, &mut depths);
        for ((class, scores), depth) in
            classes.iter_mut().zip(scores.chunks_exact_mut(2)).zip(depths)
        {
            let average = self.average_depth_sum;
            let relative_depth = if average == 0.0 { 1.0 } else { depth / average };
            let decision = -2f64.powf(-relative_depth) - self.offset;
            *class = usize::from(decision >= -ROUNDING_TOLERANCE);
            scores.fill(decision);
        }
        Ok(())
    }
}

/// The average depth at which a tree isolates one of `count` rows.
fn average_depth(count: f64) -> f64 {
    match count {
        count if count <= 1.0 => 0.0,
        count if count <= 2.0 => 1.0,
        count => 2.0 * ((count - 1.0).ln() + EULER_GAMMA) - 2.0 * (count - 1.0) / count,
    }
}

/// Reads an `IsolationForest`.
pub(super) fn read(estimator: &Estimator) -> Result<Predictor> {
    if estimator.find(&["offset_"]).is_none() {
        return Err(estimator.unsupported("one written by scikit-learn before 0.20"));
    }
    let offset = estimator.number(&["offset_"])?;
    let members = members(estimator)?;
    let features = count_features(estimator, estimator)?;
    let columns = read_estimator_columns(estimator, features)?;
    let mut trees = SklearnTrees::new(features, 1);
    for (number, member) in members.iter().enumerate() {
        let tree = PickledTree::read(member)?;
        let samples = tree.sample_counts(member)?;
        let columns = columns.as_ref().and_then(|columns| columns.get(number));
        trees.add(member, &tree.nodes, columns.map(Vec::as_slice), |node, depth, out| {
            let count = samples.get(node).copied().unwrap_or(0) as f64;
            // In the order of scikit-learn, so that the result is rounded the same.
            out.push((depth as f64 + 1.0) + average_depth(count) - 1.0);
        })?;
    }
    let samples = estimator.number(&["max_samples_", "_max_samples"])?;
    let average_depth_sum = members.len() as f64 * average_depth(samples);
    // Since 1.6, neither the forest nor its trees check values.
    let accepts = match estimator.is_older_than(1, 6) {
        true => AcceptedValues::FiniteSingle,
        false => AcceptedValues::Any,
    };
    let model = IsolationForest { trees, average_depth_sum, offset, accepts };
    let labels = ClassLabels::Ints(vec![OUTLIER, INLIER]);
    Ok(Predictor::classifier(model, labels, ClassScores::None))
}
