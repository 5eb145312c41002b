//! `HistGradientBoostingClassifier` and `HistGradientBoostingRegressor`.

use super::boosting::{BoostedTrees, BoostingLink};
use super::estimator::Estimator;
use super::model::{ClassScores, Predictor};
use super::tree::{SklearnTrees, StoredNode, node_floats, node_integers};
use tensorserve_tensor::error::Result;

/// The numbers that a node of these trees is read as.
const NUMBERS_PER_NODE: usize = 6;

/// Reads a classifier or a regressor.
pub(super) fn read(estimator: &Estimator) -> Result<Predictor> {
    if estimator.find(&["_preprocessor"]).is_some() {
        return Err(estimator.unsupported("categorical features"));
    }
    let features = count_features(estimator)?;
    let baseline = estimator.vector(&["_baseline_prediction"])?;
    let mut trees = SklearnTrees::new(features, 1);
    for round in estimator.children(&["_predictors"])? {
        let members = round
            .value
            .items()
            .ok_or_else(|| estimator.damaged("a boosting round has no trees"))?;
        if members.len() != baseline.len() {
            let (have, need) = (members.len(), baseline.len());
            return Err(estimator.damaged(format_args!(
                "a boosting round has {have} trees for {need} baseline predictions"
            )));
        }
        for member in members {
            add_tree(&mut trees, &estimator.child(member)?)?;
        }
    }
    let loss = estimator.text("loss")?;
    if estimator.class() == "HistGradientBoostingRegressor" {
        let link = match loss {
            "poisson" | "gamma" => BoostingLink::Log,
            _ => BoostingLink::Identity,
        };
        if baseline.len() != 1 {
            return Err(estimator.damaged("it has more than one baseline prediction"));
        }
        let model = BoostedTrees::histogram(estimator, trees, baseline, link)?;
        return Ok(Predictor::regressor(model));
    }
    let labels = estimator.labels()?;
    let link = match (labels.len(), baseline.len()) {
        (2, 1) => BoostingLink::LogOdds(1.0),
        (classes, sums) if classes == sums => BoostingLink::Softmax,
        (classes, sums) => {
            return Err(estimator.damaged(format_args!(
                "it has {sums} baseline predictions for {classes} classes"
            )));
        }
    };
    let model = BoostedTrees::histogram(estimator, trees, baseline, link)?;
    Ok(Predictor::classifier(model, labels, ClassScores::Probabilities))
}

fn count_features(estimator: &Estimator) -> Result<usize> {
    let features = estimator.features().or_else(|| {
        let features = estimator.find(&["_n_features"])?.int()?;
        usize::try_from(features).ok()
    });
    let features = features.filter(|features| *features > 0);
    features.ok_or_else(|| estimator.damaged("its number of features is not recorded"))
}

/// Adds a `TreePredictor`.
fn add_tree(trees: &mut SklearnTrees, member: &Estimator) -> Result<()> {
    let nodes = member.array(&["nodes"])?;
    member.charge(nodes.len().saturating_mul(NUMBERS_PER_NODE))?;
    if let Some(flags) = nodes.field("is_categorical").and_then(|field| field.i64s())
        && flags.iter().any(|flag| *flag != 0)
    {
        return Err(member.unsupported("categorical features"));
    }
    let threshold = node_floats(member, nodes, &["num_threshold", "threshold"])?;
    let values = node_floats(member, nodes, &["value"])?;
    let missing_left =
        node_integers(member, nodes, "missing_go_to_left").unwrap_or_else(|_| vec![0; nodes.len()]);
    let is_leaf = node_integers(member, nodes, "is_leaf")?;
    let features = node_integers(member, nodes, "feature_idx")?;
    let left = node_integers(member, nodes, "left")?;
    let right = node_integers(member, nodes, "right")?;
    let splits = is_leaf.into_iter().zip(features).zip(threshold);
    let children = left.into_iter().zip(right).zip(missing_left);
    let stored =
        splits.zip(children).map(|(((is_leaf, feature), threshold), ((left, right), missing))| {
            StoredNode {
                split: (is_leaf == 0).then_some((feature, threshold)),
                missing_left: missing != 0,
                left,
                right,
            }
        });
    let stored: Vec<StoredNode> = stored.collect();
    trees.add(member, &stored, None, |node, _, out| out.extend(values.get(node)))
}
