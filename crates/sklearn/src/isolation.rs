//! `IsolationForest`: anomalies are rows that random splits isolate early.

use super::accepted::AcceptedValues;
use super::estimator::{ClassLabels, Estimator};
use super::forest::{count_features, members};
use super::model::{ClassScores, Classifier, FeatureRows, Predictor, StepFacts};
use super::tree::{PickledTree, SklearnTrees, read_estimator_columns};
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
    threshold: OutlierThreshold,
    accepts: AcceptedValues,
}

impl Classifier for IsolationForest {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.trees.features()).accepting(self.accepts)
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        let mut depths = vec![0.0; rows.len()];
        self.trees.sum(rows, &mut depths);
        for ((class, scores), depth) in
            classes.iter_mut().zip(scores.chunks_exact_mut(2)).zip(depths)
        {
            let average = self.average_depth_sum;
            let relative_depth = if average == 0.0 { 1.0 } else { depth / average };
            let decision = -2f64.powf(-relative_depth) - self.offset;
            *class = usize::from(self.threshold.is_inlier(decision));
            scores.fill(decision);
        }
        Ok(())
    }
}

/// From which value of the decision function on a row is not an anomaly.
#[derive(Clone, Copy)]
struct OutlierThreshold {
    value: f64,
    /// Whether the value itself is one of an anomaly: before 0.20.
    is_outlier: bool,
}

impl OutlierThreshold {
    /// Reads it: since 0.20 it is 0, unless that version or the next was asked for the old behaviour.
    fn read(estimator: &Estimator) -> Result<Self> {
        let is_outlier = estimator.is_older_than(0, 20);
        let is_old =
            is_outlier || (estimator.is_older_than(0, 22) && estimator.text("behaviour")? == "old");
        let value = match is_old {
            true => estimator.number(&["_threshold_", "threshold_"])?,
            false => 0.0,
        };
        Ok(OutlierThreshold { value, is_outlier })
    }

    fn is_inlier(self, decision: f64) -> bool {
        match self.is_outlier {
            true => decision > self.value + ROUNDING_TOLERANCE,
            false => decision >= self.value - ROUNDING_TOLERANCE,
        }
    }
}

/// The average depth at which a tree isolates one of `count` rows.
#[derive(Clone, Copy)]
enum AverageDepth {
    /// Of 0.20 and before, which is too much for 1 row, and too little for 2.
    Old,
    New,
}

impl AverageDepth {
    fn of(self, count: f64) -> f64 {
        match self {
            AverageDepth::Old if count <= 1.0 => 1.0,
            AverageDepth::New if count <= 1.0 => 0.0,
            AverageDepth::New if count <= 2.0 => 1.0,
            AverageDepth::Old | AverageDepth::New => {
                2.0 * ((count - 1.0).ln() + EULER_GAMMA) - 2.0 * (count - 1.0) / count
            }
        }
    }
}

/// Reads an `IsolationForest`.
pub(super) fn read(estimator: &Estimator) -> Result<Predictor> {
    if estimator.is_older_than(0, 19) {
        return Err(estimator.unsupported("one written by scikit-learn before 0.19"));
    }
    // Before 0.20 it is that of the old behaviour, and is not recorded.
    let offset = match estimator.is_older_than(0, 20) {
        true => -0.5,
        false => estimator.number(&["offset_"])?,
    };
    let threshold = OutlierThreshold::read(estimator)?;
    let depth_of = match estimator.is_older_than(0, 21) {
        true => AverageDepth::Old,
        false => AverageDepth::New,
    };
    let members = members(estimator)?;
    let features = count_features(estimator, estimator)?;
    let columns = read_estimator_columns(estimator, features)?;
    let mut trees = SklearnTrees::single_precision(features, 1);
    for (number, member) in members.iter().enumerate() {
        let tree = PickledTree::read(member)?;
        let samples = tree.sample_counts(member)?;
        let columns = columns.as_ref().and_then(|columns| columns.get(number));
        trees.add(member, &tree.nodes, columns.map(Vec::as_slice), |node, depth, out| {
            let count = samples.get(node).copied().unwrap_or(0) as f64;
            // In the order of scikit-learn, so that the result is rounded the same.
            out.push((depth as f64 + 1.0) + depth_of.of(count) - 1.0);
        })?;
    }
    let samples = estimator.number(&["max_samples_", "_max_samples"])?;
    let average_depth_sum = members.len() as f64 * depth_of.of(samples);
    // Since 1.6, neither the forest nor its trees check values.
    let accepts = match estimator.is_older_than(1, 6) {
        true => AcceptedValues::FiniteSingle,
        false => AcceptedValues::Any,
    };
    let model = IsolationForest { trees, average_depth_sum, offset, threshold, accepts };
    let labels = ClassLabels::Ints(vec![OUTLIER, INLIER]);
    Ok(Predictor::classifier(model, labels, ClassScores::None))
}
