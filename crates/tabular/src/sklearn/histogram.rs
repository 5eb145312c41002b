//! Boosted trees over histograms: `HistGradientBoostingClassifier` and `…Regressor`.

use super::estimator::Estimator;
use super::forest::{Boosted, Meaning};
use super::model::{Gives, Predictor, Takes};
use super::tree::{Stored, Trees};
use tensorserve_tensor::error::Result;

pub(super) fn read(of: &Estimator) -> Result<Predictor> {
    if of.find(&["_preprocessor"]).is_some() {
        return Err(of.unsupported("a model of categories"));
    }
    let features = of.features().or(of
        .find(&["_n_features"])
        .and_then(|count| count.int().and_then(|count| usize::try_from(count).ok())));
    let features = features.filter(|features| *features > 0);
    let features = features.ok_or_else(|| of.fault("it does not say its number of features"))?;
    let start = of.vector(&["_baseline_prediction"])?;
    let mut trees = Trees::new(features, 1);
    for round in of.children(&["_predictors"])? {
        let members = round.value.items().ok_or_else(|| of.fault("a round of it has no trees"))?;
        if members.len() != start.len() {
            return Err(of.fault("it has not one tree for each sum in every round"));
        }
        for member in members {
            add(&mut trees, &of.child(member)?)?;
        }
    }
    let how = (false, Takes::Anything);
    let loss = of.text("loss")?;
    if of.class() == "HistGradientBoostingRegressor" {
        let meaning = match loss {
            "poisson" | "gamma" => Meaning::Log,
            _ => Meaning::Number,
        };
        if start.len() != 1 {
            return Err(of.fault("it has more than one sum"));
        }
        return Ok(Predictor::regressor(Boosted::new(of, trees, start, meaning, how)?));
    }
    let labels = of.labels()?;
    let meaning = match (labels.len(), start.len()) {
        (2, 1) => Meaning::Odds(1.0),
        (classes, sums) if classes == sums => Meaning::Shares,
        _ => return Err(of.fault("it has not one sum for each class")),
    };
    let model = Boosted::new(of, trees, start, meaning, how)?;
    Ok(Predictor::classifier(model, labels, Gives::Probabilities))
}

fn add(trees: &mut Trees, member: &Estimator) -> Result<()> {
    let nodes = member.array(&["nodes"])?;
    member.charge(nodes.len().saturating_mul(6))?;
    let missing = |name: &str| member.fault(format_args!("its nodes have no {name}"));
    let ints =
        |name: &str| nodes.field(name).and_then(|field| field.i64s()).ok_or_else(|| missing(name));
    if let Some(flags) = nodes.field("is_categorical").and_then(|field| field.i64s())
        && flags.iter().any(|flag| *flag != 0)
    {
        return Err(member.unsupported("a model of categories"));
    }
    let threshold = nodes.field("num_threshold").or_else(|| nodes.field("threshold"));
    let threshold = threshold.and_then(|field| field.f64s());
    let threshold = threshold.ok_or_else(|| missing("num_threshold"))?;
    let values = nodes.field("value").and_then(|field| field.f64s());
    let values = values.ok_or_else(|| missing("value"))?;
    let missing_left = ints("missing_go_to_left").unwrap_or_else(|_| vec![0; nodes.len()]);
    let splits = ints("is_leaf")?.into_iter().zip(ints("feature_idx")?).zip(threshold);
    let sides = ints("left")?.into_iter().zip(ints("right")?).zip(missing_left);
    let stored =
        splits.zip(sides).map(|(((leaf, feature), threshold), ((left, right), missing))| {
            let split = (leaf == 0).then_some((feature, threshold));
            Stored { split, missing_left: missing != 0, left, right }
        });
    let stored: Vec<Stored> = stored.collect();
    trees.add(member, &stored, None, |node, _, out| out.extend(values.get(node)))
}
