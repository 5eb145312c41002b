//! Decision trees and forests: the mean of the leaves of all trees.

use super::accepted::AcceptedValues;
use super::estimator::{ClassLabels, Estimator};
use super::model::{
    ClassScores, Classifier, FeatureRows, MultiClassifier, MultiScores, Predictor, Regressor,
    StepFacts,
};
use super::numeric::argmax;
use super::tree::{PickledTree, SklearnTrees};
use tensorserve_tensor::error::Result;

/// Criteria of trees that support missing values.
const CRITERIA_WITH_MISSING: [&str; 6] =
    ["gini", "log_loss", "entropy", "squared_error", "friedman_mse", "poisson"];

/// How far the sum of a leaf's values may be from 1 for them to be probabilities already.
const PROBABILITY_TOLERANCE: f64 = 1e-9;

/// What trees accept.
pub(super) fn accepted(allows_missing: bool) -> AcceptedValues {
    match allows_missing {
        true => AcceptedValues::FiniteOrNanSingle,
        false => AcceptedValues::FiniteSingle,
    }
}

/// The mean of the class probabilities of all trees.
struct ForestClassifier {
    trees: SklearnTrees,
    allows_missing: bool,
}

impl Classifier for ForestClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.trees.features()).accepting(accepted(self.allows_missing))
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        self.trees.sum(rows, scores);
        let count = self.trees.len() as f64;
        scores.iter_mut().for_each(|score| *score /= count);
        let scores = scores.chunks_exact(self.trees.width().max(1));
        classes.iter_mut().zip(scores).for_each(|(class, scores)| *class = argmax(scores));
        Ok(())
    }
}

/// The mean of the numbers of all trees.
struct ForestRegressor {
    trees: SklearnTrees,
    allows_missing: bool,
}

impl Regressor for ForestRegressor {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.trees.features()).accepting(accepted(self.allows_missing))
    }

    fn outputs(&self) -> Option<usize> {
        Some(self.trees.width()).filter(|width| *width > 1)
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        self.trees.sum(rows, out);
        let count = self.trees.len() as f64;
        out.iter_mut().for_each(|value| *value /= count);
        Ok(())
    }
}

/// The fitted tree estimators of a forest, or the estimator itself if it is a single tree.
pub(super) fn members<'a>(estimator: &Estimator<'a>) -> Result<Vec<Estimator<'a>>> {
    let members = match estimator.find(&["estimators_"]) {
        Some(_) => estimator.children(&["estimators_"])?,
        None => vec![*estimator],
    };
    match members.is_empty() {
        true => Err(estimator.damaged("it has no trees")),
        false => Ok(members),
    }
}

/// The number of features of a forest whose first tree is `first`.
pub(super) fn count_features(estimator: &Estimator, first: &Estimator) -> Result<usize> {
    let features = estimator.features().or(first.features()).filter(|features| *features > 0);
    features.ok_or_else(|| estimator.damaged("its number of features is not recorded"))
}

/// The shape of the values of a node.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct LeafShape {
    pub(super) outputs: usize,
    pub(super) width: usize,
}

/// Compiles the trees of `members`, whose leaves have values of the shape `shape`; `leaf` turns these
/// into the values to keep, of the same number. Also returns whether all trees allow missing values.
pub(super) fn compile_trees(
    estimator: &Estimator,
    members: &[Estimator],
    shape: LeafShape,
    mut leaf: impl FnMut(&[f64], &mut Vec<f64>),
) -> Result<(SklearnTrees, bool)> {
    let first = members.first().unwrap_or(estimator);
    let features = count_features(estimator, first)?;
    let mut trees = SklearnTrees::single_precision(features, shape.outputs * shape.width);
    // A tree accepts missing values since 1.3, a forest since 1.4.
    let is_forest = estimator.class().starts_with("RandomForest");
    let mut allow_missing = !(is_forest && estimator.is_older_than(1, 4));
    for member in members {
        let tree = PickledTree::read(member)?;
        if (LeafShape { outputs: tree.outputs, width: tree.width }) != shape {
            return Err(estimator.damaged("the values of a tree do not match its outputs"));
        }
        allow_missing &= allows_missing(member, &tree)?;
        trees.add(member, &tree.nodes, None, |node, _, out| leaf(tree.values(node), out))?;
    }
    Ok((trees, allow_missing))
}

/// Whether scikit-learn accepts missing values for a tree: since 1.3, and since 1.6 with random
/// splits.
fn allows_missing(member: &Estimator, tree: &PickledTree) -> Result<bool> {
    let splitter_allows = !member.is_older_than(1, 6) || member.text("splitter")? == "best";
    let criterion = member.text("criterion")?;
    Ok(tree.has_missing
        && splitter_allows
        && CRITERIA_WITH_MISSING.contains(&criterion)
        && member.find(&["monotonic_cst"]).is_none())
}

/// Appends the class probabilities of a leaf, whose values are counts, or probabilities since 1.3.
fn append_probabilities(values: &[f64], out: &mut Vec<f64>) {
    let sum: f64 = values.iter().sum();
    // A division of probabilities by about 1 would change their last digit.
    let is_normalised = sum == 0.0 || (sum - 1.0).abs() < PROBABILITY_TOLERANCE;
    let sum = if is_normalised { 1.0 } else { sum };
    out.extend(values.iter().map(|value| value / sum));
}

/// Reads a tree or a forest that predicts classes.
pub(super) fn classifier(estimator: &Estimator) -> Result<Predictor> {
    if let Some(labels) = estimator.labels_by_output()? {
        return multi_classifier(estimator, labels);
    }
    let labels = estimator.labels()?;
    let shape = LeafShape { outputs: 1, width: labels.len() };
    let members = members(estimator)?;
    let (trees, allows_missing) = compile_trees(estimator, &members, shape, append_probabilities)?;
    let model = ForestClassifier { trees, allows_missing };
    Ok(Predictor::classifier(model, labels, ClassScores::ProbabilitiesAndLogs))
}

/// Reads a tree or a forest that predicts numbers.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    let members = members(estimator)?;
    let outputs = match estimator.find(&["n_outputs_"]) {
        Some(_) => estimator.count(&["n_outputs_"])?,
        None => 1,
    };
    let shape = LeafShape { outputs, width: 1 };
    let (trees, allows_missing) =
        compile_trees(estimator, &members, shape, |values, out| out.extend_from_slice(values))?;
    Ok(Predictor::regressor(ForestRegressor { trees, allows_missing }))
}

/// As [`ForestClassifier`] for several outputs, whose classes have the same number of columns each.
struct MultiForestClassifier {
    trees: SklearnTrees,
    labels: Vec<ClassLabels>,
    width: usize,
    allows_missing: bool,
}

impl MultiClassifier for MultiForestClassifier {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.trees.features()).accepting(accepted(self.allows_missing))
    }

    fn labels(&self) -> &[ClassLabels] {
        &self.labels
    }

    fn scores(&self) -> MultiScores {
        MultiScores::Separate(ClassScores::ProbabilitiesAndLogs)
    }

    fn classify(
        &self,
        rows: FeatureRows,
        classes: &mut [usize],
        scores: &mut [Vec<f64>],
    ) -> Result<()> {
        let mut sums = vec![0.0; rows.len() * self.trees.width()];
        self.trees.sum(rows, &mut sums);
        let count = self.trees.len() as f64;
        let outputs = self.labels.len();
        let sums = sums.chunks_exact(self.trees.width());
        for (number, (classes, sums)) in classes.chunks_exact_mut(outputs).zip(sums).enumerate() {
            let parts = sums.chunks_exact(self.width).zip(&self.labels).zip(&mut *scores);
            for (class, ((sums, labels), scores)) in classes.iter_mut().zip(parts) {
                let start = number * labels.len();
                let to = scores.get_mut(start..start + labels.len()).unwrap_or_default();
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum / count);
                *class = argmax(to);
            }
        }
        Ok(())
    }
}

/// Reads a tree or a forest that predicts several classes for each row.
fn multi_classifier(estimator: &Estimator, labels: Vec<ClassLabels>) -> Result<Predictor> {
    estimator.check_types(&labels)?;
    let width = labels.iter().map(ClassLabels::len).max().unwrap_or(0);
    let shape = LeafShape { outputs: labels.len(), width };
    let members = members(estimator)?;
    let (trees, allows_missing) = compile_trees(estimator, &members, shape, |values, out| {
        values.chunks_exact(width.max(1)).for_each(|values| append_probabilities(values, out));
    })?;
    let model = MultiForestClassifier { trees, labels, width, allows_missing };
    Ok(Predictor::MultiClassifier(Box::new(model)))
}
