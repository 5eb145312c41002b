//! Single trees, forests, boosted trees and isolation forests.

use super::estimator::{Estimator, Labels};
use super::model::{Classify, Gives, Predictor, Regress, Rows, Takes, largest, logistic, softmax};
use super::tree::{Stump, Trees, columns_of, narrowed};
use tensorserve_tensor::error::Result;

/// Which numbers that are none a tree takes.
fn takes(missing: bool) -> Takes {
    if missing { Takes::Missing32 } else { Takes::Finite32 }
}

/// The mean of trees' shares of classes.
struct ForestClassifier {
    trees: Trees,
    missing: bool,
}

impl Classify for ForestClassifier {
    fn features(&self) -> usize {
        self.trees.features()
    }

    fn takes(&self) -> Takes {
        takes(self.missing)
    }

    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]) {
        let values = narrowed(rows);
        self.trees.sum(Rows { values: &values, ..rows }, scores);
        let count = self.trees.len() as f64;
        scores.iter_mut().for_each(|score| *score /= count);
        let scores = scores.chunks_exact(self.trees.width().max(1));
        classes.iter_mut().zip(scores).for_each(|(class, scores)| *class = largest(scores));
    }
}

/// The mean of trees' numbers.
struct ForestRegressor {
    trees: Trees,
    missing: bool,
}

impl Regress for ForestRegressor {
    fn features(&self) -> usize {
        self.trees.features()
    }

    fn outputs(&self) -> Option<usize> {
        Some(self.trees.width()).filter(|width| *width > 1)
    }

    fn takes(&self) -> Takes {
        takes(self.missing)
    }

    fn predict(&self, rows: Rows, out: &mut [f64]) {
        let values = narrowed(rows);
        self.trees.sum(Rows { values: &values, ..rows }, out);
        let count = self.trees.len() as f64;
        out.iter_mut().for_each(|value| *value /= count);
    }
}

/// The fitted trees of a single tree or a forest.
fn members<'a>(of: &Estimator<'a>) -> Result<Vec<Estimator<'a>>> {
    let members = match of.find(&["estimators_"]) {
        Some(_) => of.children(&["estimators_"])?,
        None => vec![*of],
    };
    match members.is_empty() {
        true => Err(of.fault("it has no tree")),
        false => Ok(members),
    }
}

fn features_of(of: &Estimator, first: &Estimator) -> Result<usize> {
    let features = of.features().or(first.features()).filter(|features| *features > 0);
    features.ok_or_else(|| of.fault("it does not say its number of features"))
}

/// All trees of `members`, each leaf with the numbers that `leaf` makes of what it holds.
fn trees(
    of: &Estimator,
    members: &[Estimator],
    width: usize,
    mut leaf: impl FnMut(&[f64], &mut Vec<f64>),
    fits: impl Fn(&Stump) -> bool,
) -> Result<(Trees, bool)> {
    let first = members.first().unwrap_or(of);
    let mut trees = Trees::new(features_of(of, first)?, width);
    let mut missing = true;
    for member in members {
        let stump = Stump::read(member)?;
        if !fits(&stump) {
            return Err(of.fault("a tree of it has not as many values as it should"));
        }
        missing &= takes_missing(member, &stump)?;
        trees.add(member, &stump.nodes, None, |node, _, out| leaf(stump.at(node), out))?;
    }
    Ok((trees, missing))
}

/// Whether scikit-learn lets missing values into this tree: since 1.3, and 1.6 for random splits.
fn takes_missing(member: &Estimator, stump: &Stump) -> Result<bool> {
    let random_too = !member.is_older_than(1, 6);
    let is_best = random_too || member.text("splitter")? == "best";
    let criterion = member.text("criterion")?;
    let knows = ["gini", "log_loss", "entropy", "squared_error", "friedman_mse", "poisson"];
    Ok(stump.takes_missing
        && is_best
        && knows.contains(&criterion)
        && member.find(&["monotonic_cst"]).is_none())
}

/// A tree or forest that tells classes.
pub(super) fn classifier(of: &Estimator) -> Result<Predictor> {
    let labels = of.labels()?;
    let classes = labels.len();
    let share = |values: &[f64], out: &mut Vec<f64>| {
        let sum: f64 = values.iter().sum();
        // Shares already, since 1.3: dividing would cost the last digit.
        let sum = if sum == 0.0 || (sum - 1.0).abs() < 1e-9 { 1.0 } else { sum };
        out.extend(values.iter().map(|value| value / sum));
    };
    let fits = |stump: &Stump| stump.outputs == 1 && stump.width == classes;
    let (trees, missing) = trees(of, &members(of)?, classes, share, fits)?;
    let model = ForestClassifier { trees, missing };
    Ok(Predictor::classifier(model, labels, Gives::ProbabilitiesAndLogs))
}

/// A tree or forest that tells numbers.
pub(super) fn regressor(of: &Estimator) -> Result<Predictor> {
    let members = members(of)?;
    let outputs = match of.find(&["n_outputs_"]) {
        Some(_) => of.count(&["n_outputs_"])?,
        None => 1,
    };
    let fits = |stump: &Stump| stump.width == 1 && stump.outputs == outputs;
    let leaf = |values: &[f64], out: &mut Vec<f64>| out.extend_from_slice(values);
    let (trees, missing) = trees(of, &members, outputs, leaf, fits)?;
    Ok(Predictor::regressor(ForestRegressor { trees, missing }))
}

/// What the sum of boosted trees means.
#[derive(Clone, Copy)]
pub(super) enum Meaning {
    Number,
    /// Its exponential is the number.
    Log,
    /// Of the second of two classes, the logarithm of odds; this many times of it.
    Odds(f64),
    /// Of each class, the logarithm of its share.
    Shares,
}

/// Trees, each of which corrects the sum of those before.
pub(super) struct Boosted {
    trees: Trees,
    /// The sums that trees add to.
    sums: usize,
    /// What each sum begins with.
    start: Vec<f64>,
    meaning: Meaning,
    /// Whether rows are narrowed to 32 bits before they are compared.
    narrow: bool,
    takes: Takes,
}

impl Boosted {
    /// Trees that take turns in adding to the sums.
    pub(super) fn new(
        of: &Estimator,
        trees: Trees,
        start: Vec<f64>,
        meaning: Meaning,
        (narrow, takes): (bool, Takes),
    ) -> Result<Self> {
        let sums = start.len();
        if sums == 0 {
            return Err(of.fault("it adds up nothing"));
        }
        Ok(Boosted { trees, sums, start, meaning, narrow, takes })
    }

    /// Writes the sums of each row.
    fn add_up(&self, rows: Rows, out: &mut [f64]) {
        out.chunks_exact_mut(self.sums).for_each(|out| out.copy_from_slice(&self.start));
        let narrow = if self.narrow { narrowed(rows) } else { Vec::new() };
        let rows = if self.narrow { Rows { values: &narrow, ..rows } } else { rows };
        self.trees.walk(rows, |tree, row, leaf| {
            if let (Some(sum), [value]) = (out.get_mut(row * self.sums + tree % self.sums), leaf) {
                *sum += value;
            }
        });
    }
}

impl Regress for Boosted {
    fn features(&self) -> usize {
        self.trees.features()
    }

    fn takes(&self) -> Takes {
        self.takes
    }

    fn predict(&self, rows: Rows, out: &mut [f64]) {
        self.add_up(rows, out);
        if let Meaning::Log = self.meaning {
            out.iter_mut().for_each(|value| *value = value.exp());
        }
    }
}

impl Classify for Boosted {
    fn features(&self) -> usize {
        self.trees.features()
    }

    fn takes(&self) -> Takes {
        self.takes
    }

    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]) {
        let Meaning::Odds(times) = self.meaning else {
            self.add_up(rows, scores);
            let scores = scores.chunks_exact_mut(self.sums);
            for (class, scores) in classes.iter_mut().zip(scores) {
                *class = largest(scores);
                softmax(scores);
            }
            return;
        };
        let mut sums = vec![0.0; classes.len()];
        self.add_up(rows, &mut sums);
        for ((class, scores), sum) in classes.iter_mut().zip(scores.chunks_exact_mut(2)).zip(sums) {
            let second = logistic(times * sum);
            *class = usize::from(second > 0.5);
            scores.copy_from_slice(&[1.0 - second, second]);
        }
    }
}

/// A `GradientBoostingClassifier` or `GradientBoostingRegressor`.
pub(super) fn boosting(of: &Estimator) -> Result<Predictor> {
    let members = of.children(&["estimators_"])?;
    let rate = of.number(&["learning_rate"])?;
    let leaf = |values: &[f64], out: &mut Vec<f64>| {
        out.extend(values.iter().map(|value| value * rate));
    };
    let fits = |stump: &Stump| stump.outputs == 1 && stump.width == 1;
    let (trees, _) = trees(of, &members, 1, leaf, fits)?;
    // No version of it takes missing values.
    let how = (true, Takes::Finite32);
    if of.class() == "GradientBoostingRegressor" {
        let start = vec![start_of_numbers(of)?];
        let model = Boosted::new(of, trees, start, Meaning::Number, how)?;
        return Ok(Predictor::regressor(model));
    }
    let labels = of.labels()?;
    let (sums, meaning) = match (labels.len(), of.text("loss")?) {
        (0 | 1, _) => return Err(of.fault("it has a single class")),
        (2, "exponential") => (1, Meaning::Odds(2.0)),
        (2, _) => (1, Meaning::Odds(1.0)),
        (classes, _) => (classes, Meaning::Shares),
    };
    if !trees.len().is_multiple_of(sums) {
        return Err(of.fault("it has not one tree for each class in every round"));
    }
    let start = start_of_classes(of, sums, meaning)?;
    let model = Boosted::new(of, trees, start, meaning, how)?;
    Ok(Predictor::classifier(model, labels, Gives::ProbabilitiesAndLogs))
}

/// What trees begin to correct, if it is not nothing.
fn start<'a>(of: &Estimator<'a>) -> Result<Option<Estimator<'a>>> {
    let Some(value) = of.find(&["init_"]) else { return Ok(None) };
    match value.text() {
        Some(_) => Ok(None),
        None => Ok(Some(of.child(value)?)),
    }
}

fn start_of_numbers(of: &Estimator) -> Result<f64> {
    let Some(init) = start(of)? else { return Ok(0.0) };
    match init.class() {
        "DummyRegressor" => init.number(&["constant_"]),
        "MeanEstimator" => init.number(&["mean"]),
        "QuantileEstimator" => init.number(&["quantile"]),
        "ZeroEstimator" => Ok(0.0),
        other => Err(of.unsupported(format_args!("init={other}"))),
    }
}

fn start_of_classes(of: &Estimator, sums: usize, meaning: Meaning) -> Result<Vec<f64>> {
    let Some(init) = start(of)? else { return Ok(vec![0.0; sums]) };
    match init.class() {
        "DummyClassifier" => {}
        "ZeroEstimator" => return Ok(vec![0.0; sums]),
        "LogOddsEstimator" | "ScaledLogOddsEstimator" => return Ok(vec![init.number(&["prior"])?]),
        // Not logarithms, which is how these versions began.
        "PriorProbabilityEstimator" => return init.vector_of(&["priors"], sums),
        other => return Err(of.unsupported(format_args!("init={other}"))),
    }
    let priors = init.vector(&["class_prior_"])?;
    let least = f64::from(f32::EPSILON);
    let clipped = |share: f64| share.clamp(least, 1.0 - least);
    match (meaning, &*priors) {
        (Meaning::Odds(times), [_, second]) => {
            let share = clipped(*second);
            Ok(vec![(share / (1.0 - share)).ln() / times])
        }
        (Meaning::Shares, priors) if priors.len() == sums => {
            Ok(priors.iter().map(|share| clipped(*share).ln()).collect())
        }
        _ => Err(init.fault("it has not one prior for each class")),
    }
}

/// The offset is often the score of a row of the data itself, which must not fall on the other
/// side of it because a logarithm has another last digit here.
const LAST_DIGIT: f64 = 1e-14;

/// How far rows are from others, by how soon random splits set them apart.
struct Isolation {
    trees: Trees,
    /// By what the sum of depths is divided.
    most: f64,
    offset: f64,
    missing: bool,
}

impl Classify for Isolation {
    fn features(&self) -> usize {
        self.trees.features()
    }

    fn takes(&self) -> Takes {
        takes(self.missing)
    }

    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]) {
        let mut depths = vec![0.0; rows.len()];
        let values = narrowed(rows);
        self.trees.sum(Rows { values: &values, ..rows }, &mut depths);
        for ((class, scores), depth) in
            classes.iter_mut().zip(scores.chunks_exact_mut(2)).zip(depths)
        {
            let share = if self.most == 0.0 { 1.0 } else { depth / self.most };
            let decision = -2f64.powf(-share) - self.offset;
            *class = usize::from(decision >= -LAST_DIGIT);
            scores.fill(decision);
        }
    }
}

/// How deep an average tree sets one row of `count` apart.
fn average_depth(count: f64) -> f64 {
    match count {
        count if count <= 1.0 => 0.0,
        count if count <= 2.0 => 1.0,
        count => {
            const EULER: f64 = 0.577_215_664_901_532_9;
            2.0 * ((count - 1.0).ln() + EULER) - 2.0 * (count - 1.0) / count
        }
    }
}

/// An `IsolationForest`: -1 for what is far from all, else 1.
pub(super) fn isolation(of: &Estimator) -> Result<Predictor> {
    let offset = match of.find(&["offset_"]) {
        Some(_) => of.number(&["offset_"])?,
        None => return Err(of.unsupported("one of a scikit-learn before 0.20")),
    };
    let members = members(of)?;
    let features = features_of(of, of)?;
    let columns = columns_of(of, features)?;
    let mut trees = Trees::new(features, 1);
    let mut missing = true;
    for (number, member) in members.iter().enumerate() {
        let stump = Stump::read(member)?;
        missing &= stump.takes_missing && !of.is_older_than(1, 6);
        let samples = stump.samples(member)?;
        let columns = columns.as_ref().and_then(|columns| columns.get(number));
        trees.add(member, &stump.nodes, columns.map(Vec::as_slice), |node, depth, out| {
            let count = samples.get(node).copied().unwrap_or(0) as f64;
            // In this order, so that the last digits are scikit-learn's.
            out.push((depth as f64 + 1.0) + average_depth(count) - 1.0);
        })?;
    }
    let most = members.len() as f64 * average_depth(of.number(&["max_samples_", "_max_samples"])?);
    let model = Isolation { trees, most, offset, missing };
    Ok(Predictor::classifier(model, Labels::Ints(vec![-1, 1]), Gives::Classes))
}
