//! `HistGradientBoostingClassifier` and `HistGradientBoostingRegressor`.

use super::boosting::{BoostedTrees, BoostingLink};
use super::estimator::Estimator;
use super::model::{ClassScores, Predictor};
use super::tree::{
    CategorySet, CategorySplit, SklearnNode, SklearnTrees, WORDS_OF_A_SET, node_floats,
    node_integers,
};
use tensorserve_pickle::NumpyArray;
use tensorserve_tensor::error::Result;

/// The numbers that a node of these trees is read as.
const NUMBERS_PER_NODE: usize = 6;

/// Reads a classifier or a regressor.
pub(super) fn read(estimator: &Estimator) -> Result<Predictor> {
    let features = count_features(estimator)?;
    let baseline = estimator.vector(&["_baseline_prediction"])?;
    let known = read_known_categories(estimator, features)?;
    let mut trees = SklearnTrees::double_precision(features, 1);
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
            add_tree(&mut trees, &estimator.child(member)?, &known)?;
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

/// The categories that each feature had in training; `None` for a numeric feature.
fn read_known_categories(
    estimator: &Estimator,
    features: usize,
) -> Result<Vec<Option<CategorySet>>> {
    let flags = match estimator.find(&["_is_categorical_remapped", "is_categorical_"]) {
        Some(_) => estimator.vector(&["_is_categorical_remapped", "is_categorical_"])?,
        None => return Ok(Vec::new()),
    };
    let mapper = estimator.child(estimator.attribute(&["_bin_mapper"])?)?;
    let bins = mapper.children(&["bin_thresholds_"])?;
    if bins.len() != features || flags.len() != features {
        return Err(estimator.damaged("its bins do not fit its features"));
    }
    let mut known = Vec::with_capacity(features);
    for (flag, bins) in flags.into_iter().zip(bins) {
        if flag == 0.0 {
            known.push(None);
            continue;
        }
        let wrong = || estimator.damaged("the categories of a feature are not an array");
        let array = bins.value.array().ok_or_else(wrong)?;
        estimator.charge(array.len())?;
        let mut set = CategorySet::default();
        array.f64s().ok_or_else(wrong)?.into_iter().for_each(|category| set.add(category));
        known.push(Some(set));
    }
    Ok(known)
}

/// Adds a `TreePredictor`, given the categories of the features.
fn add_tree(
    trees: &mut SklearnTrees,
    member: &Estimator,
    known: &[Option<CategorySet>],
) -> Result<()> {
    let nodes = member.array(&["nodes"])?;
    member.charge(nodes.len().saturating_mul(NUMBERS_PER_NODE))?;
    let mut sets = read_category_splits(member, nodes)?;
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
            SklearnNode {
                split: (is_leaf == 0).then_some((feature, threshold)),
                categories: None,
                missing_left: missing != 0,
                left,
                right,
            }
        });
    let mut stored: Vec<SklearnNode> = stored.collect();
    for (node, left) in stored.iter_mut().zip(&mut sets) {
        let (Some(left), Some((feature, _))) = (left.take(), node.split) else { continue };
        let index = usize::try_from(feature).unwrap_or(usize::MAX);
        let known = known.get(index).copied().flatten().ok_or_else(|| {
            member.damaged(format_args!("feature {feature} of a split has no categories"))
        })?;
        node.categories = Some(CategorySplit { left, known });
    }
    trees.add(member, &stored, None, |node, _, out| out.extend(values.get(node)))
}

/// The categories that go to the left child of each node; none for a node that splits by number. Empty
/// for a tree without categories.
fn read_category_splits(
    member: &Estimator,
    nodes: &NumpyArray,
) -> Result<Vec<Option<CategorySet>>> {
    let flags = nodes.field("is_categorical").and_then(|field| field.i64s()).unwrap_or_default();
    if flags.iter().all(|flag| *flag == 0) {
        return Ok(Vec::new());
    }
    let wrong = || member.damaged("raw_left_cat_bitsets does not fit the nodes");
    let words = member.array(&["raw_left_cat_bitsets"])?;
    member.charge(words.len())?;
    let words = words.i64s().ok_or_else(wrong)?;
    let (sets, _) = words.as_chunks::<WORDS_OF_A_SET>();
    let mut all = Vec::with_capacity(nodes.len());
    for (flag, index) in flags.iter().zip(node_integers(member, nodes, "bitset_idx")?) {
        let words = usize::try_from(index).ok().and_then(|index| sets.get(index));
        all.push(match *flag {
            0 => None,
            _ => Some(CategorySet::from_words(words.ok_or_else(wrong)?)),
        });
    }
    Ok(all)
}
