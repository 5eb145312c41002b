//! Models of models: bagging, AdaBoost and votes; and dummies, which look at nothing.

use super::compile;
use super::estimator::{Estimator, Labels};
use super::model::{
    Classify, Gives, Model, Outcome, Predictor, Regress, Rows, Takes, largest, softmax,
};
use super::tree::columns_of;
use tensorserve_tensor::error::Result;

/// A model of an ensemble.
struct Member {
    model: Model,
    /// The columns it takes, if not all.
    columns: Option<Vec<usize>>,
    weight: f64,
    /// For each of its classes, the number of the ensemble's.
    classes: Vec<usize>,
}

impl Member {
    /// What it makes of `rows`.
    fn run(&self, rows: Rows) -> Outcome {
        let Some(columns) = &self.columns else { return self.model.evaluate(rows) };
        let pick = |row: &[f64]| {
            let pick = |column: &usize| row.get(*column).copied().unwrap_or(f64::NAN);
            columns.iter().map(pick).collect::<Vec<f64>>()
        };
        let values: Vec<f64> = rows.iter().flat_map(pick).collect();
        self.model.evaluate(Rows { values: &values, columns: columns.len(), ..rows })
    }

    fn gives(&self) -> Gives {
        match &self.model.predictor {
            Predictor::Classifier(classifier) => classifier.gives,
            Predictor::Regressor(_) => Gives::Classes,
        }
    }
}

/// The members of an ensemble, which all take `features` columns or say which.
fn members(of: &Estimator, features: usize, weights: Option<Vec<f64>>) -> Result<Vec<Member>> {
    let all = of.children(&["estimators_"])?;
    let mut columns = columns_of(of, features)?;
    let weights = weights.unwrap_or_else(|| vec![1.0; all.len()]);
    let counts = columns.as_ref().map_or(all.len(), Vec::len);
    if all.is_empty() || weights.len() < all.len() || counts != all.len() {
        return Err(of.fault("it has not one weight and one set of columns for each estimator"));
    }
    let mut members = Vec::new();
    for (number, (estimator, weight)) in all.iter().zip(weights).enumerate() {
        let model = compile::part(estimator)?;
        if model.steps.iter().any(|step| step.refuses()) {
            return Err(
                of.unsupported("an estimator with an encoder that refuses what it does not know")
            );
        }
        let columns = columns.as_mut().and_then(|all| all.get_mut(number)).map(std::mem::take);
        // All columns in their order are no choice.
        let columns = columns.filter(|columns| !columns.iter().copied().eq(0..features));
        let takes = columns.as_ref().map_or(features, Vec::len);
        if model.features() != takes {
            return Err(of.fault("an estimator of it takes other columns than it is given"));
        }
        members.push(Member { model, columns, weight, classes: Vec::new() });
    }
    Ok(members)
}

fn features(of: &Estimator) -> Result<usize> {
    if let Some(features) = of.features() {
        return Ok(features);
    }
    let all = of.children(&["estimators_"])?;
    let first = all.first().ok_or_else(|| of.fault("it has no estimator"))?;
    // Only an ensemble whose members all take all columns does not say how many there are.
    Ok(compile::part(first)?.features())
}

/// Finds the ensemble's number of each class of its members, which were fitted with its numbers,
/// or with its labels.
fn match_classes(of: &Estimator, members: &mut [Member], labels: &Labels) -> Result<()> {
    let count = labels.len();
    for member in members {
        let Predictor::Classifier(classifier) = &member.model.predictor else {
            return Err(of.fault("an estimator of it tells no classes"));
        };
        let numbers: Option<Vec<usize>> = match &classifier.labels {
            own if own == labels => Some((0..count).collect()),
            own if own.len() == count => Some((0..count).collect()),
            Labels::Ints(own) => own.iter().map(|own| usize::try_from(*own).ok()).collect(),
            Labels::Floats(_) | Labels::Texts(_) | Labels::Bools(_) => None,
        };
        let numbers = numbers.filter(|numbers| numbers.iter().all(|number| *number < count));
        member.classes =
            numbers.ok_or_else(|| of.fault("an estimator of it tells other classes"))?;
    }
    Ok(())
}

/// How members' answers become one.
#[derive(Clone, Copy, PartialEq)]
enum Sum {
    /// The mean of their probabilities.
    Shares,
    /// The weights of those that say so.
    Votes,
    /// As votes, but what others say counts against it.
    Balanced,
    /// Sums of logarithms of their probabilities.
    Logs,
}

struct Committee {
    features: usize,
    members: Vec<Member>,
    classes: usize,
    sum: Sum,
    /// Whether sums are those of AdaBoost, which softmax makes probabilities of.
    boosts: bool,
    takes: Takes,
}

impl Committee {
    fn add(&self, member: &Member, rows: Rows, out: &mut [f64]) {
        let Outcome::Classes { classes, scores } = member.run(rows) else { return };
        let count = self.classes as f64;
        let is_log = member.gives() == Gives::Logs;
        let share = |score: f64| if is_log { score.exp() } else { score };
        let width = member.classes.len().max(1);
        let answers = classes.iter().zip(scores.chunks_exact(width));
        for ((class, scores), out) in answers.zip(out.chunks_exact_mut(self.classes)) {
            match self.sum {
                Sum::Shares => {
                    for (score, class) in scores.iter().zip(&member.classes) {
                        if let Some(out) = out.get_mut(*class) {
                            *out += share(*score) * member.weight;
                        }
                    }
                }
                Sum::Votes | Sum::Balanced => {
                    if self.sum == Sum::Balanced {
                        let others = member.weight * (-1.0 / (count - 1.0));
                        out.iter_mut().for_each(|out| *out += others);
                    }
                    let class = member.classes.get(*class).copied().unwrap_or(0);
                    if let Some(out) = out.get_mut(class) {
                        *out += member.weight;
                        if self.sum == Sum::Balanced {
                            *out += member.weight / (count - 1.0);
                        }
                    }
                }
                Sum::Logs => {
                    let log = |score: &f64| share(*score).max(f64::EPSILON).ln();
                    let mean = scores.iter().map(log).sum::<f64>() / count;
                    for (out, score) in out.iter_mut().zip(scores) {
                        *out += (count - 1.0) * (log(score) - mean);
                    }
                }
            }
        }
    }
}

impl Classify for Committee {
    fn features(&self) -> usize {
        self.features
    }

    fn takes(&self) -> Takes {
        self.takes
    }

    fn classify(&self, rows: Rows, classes: &mut [usize], scores: &mut [f64]) {
        self.members.iter().for_each(|member| self.add(member, rows, scores));
        let weight: f64 = self.members.iter().map(|member| member.weight).sum();
        for (class, scores) in classes.iter_mut().zip(scores.chunks_exact_mut(self.classes)) {
            scores.iter_mut().for_each(|score| *score /= weight);
            if !self.boosts {
                *class = largest(scores);
                continue;
            }
            if let [first, second] = *scores {
                let decision = second - first;
                *class = usize::from(decision > 0.0);
                scores.copy_from_slice(&[-decision / 2.0, decision / 2.0]);
            } else {
                *class = largest(scores);
                let others = (self.classes - 1) as f64;
                scores.iter_mut().for_each(|score| *score /= others);
            }
            softmax(scores);
        }
    }
}

/// What all members take.
fn takes(members: &[Member]) -> Takes {
    members.iter().map(|member| member.model.takes()).min().unwrap_or(Takes::Finite)
}

fn committee(
    of: &Estimator,
    features: usize,
    mut members: Vec<Member>,
    (sum, boosts, gives): (Sum, bool, Gives),
) -> Result<Predictor> {
    let labels = of.labels()?;
    match_classes(of, &mut members, &labels)?;
    let classes = labels.len();
    let takes = takes(&members);
    let model = Committee { features, members, classes, sum, boosts, takes };
    Ok(Predictor::classifier(model, labels, gives))
}

/// A `BaggingClassifier`.
pub(super) fn bagging_classifier(of: &Estimator) -> Result<Predictor> {
    let features = features(of)?;
    let members = members(of, features, None)?;
    let shares = members.iter().all(|member| member.gives() != Gives::Classes);
    let sum = if shares { Sum::Shares } else { Sum::Votes };
    committee(of, features, members, (sum, false, Gives::ProbabilitiesAndLogs))
}

/// An `AdaBoostClassifier`.
pub(super) fn ada_boost_classifier(of: &Estimator) -> Result<Predictor> {
    let features = features(of)?;
    let count = of.children(&["estimators_"])?.len();
    let is_real = of.text("algorithm")? == "SAMME.R";
    let mut weights = of.vector(&["estimator_weights_"])?;
    weights.truncate(count);
    let members = members(of, features, Some(weights))?;
    let sum = match is_real {
        true => Sum::Logs,
        false if of.is_older_than(0, 22) => {
            return Err(of.unsupported("algorithm SAMME of a scikit-learn before 0.22"));
        }
        false if of.is_older_than(1, 4) => Sum::Votes,
        false => Sum::Balanced,
    };
    let classes = of.labels()?.len();
    let all = members.iter().all(|member| match &member.model.predictor {
        Predictor::Classifier(classifier) => classifier.labels.len() == classes,
        Predictor::Regressor(_) => false,
    });
    if classes < 2 || (is_real && !all) {
        return Err(of.unsupported("a model whose estimators do not know all classes"));
    }
    committee(of, features, members, (sum, true, Gives::ProbabilitiesAndLogs))
}

/// A `VotingClassifier`.
pub(super) fn voting_classifier(of: &Estimator) -> Result<Predictor> {
    let features = features(of)?;
    let members = members(of, features, weights(of)?)?;
    let how = match of.text("voting")? {
        "soft" => (Sum::Shares, false, Gives::Probabilities),
        _ => (Sum::Votes, false, Gives::Classes),
    };
    let shares = members.iter().all(|member| member.gives() != Gives::Classes);
    if how.0 == Sum::Shares && !shares {
        return Err(of.fault("an estimator of it has no probabilities"));
    }
    committee(of, features, members, how)
}

/// The weights of votes, if there are any.
fn weights(of: &Estimator) -> Result<Option<Vec<f64>>> {
    if of.find(&["weights"]).is_none() {
        return Ok(None);
    }
    let count = of.children(&["estimators_"])?.len();
    let weights = of.vector(&["weights"])?;
    if weights.len() != count {
        return Err(of.unsupported("a vote with estimators that were dropped"));
    }
    Ok(Some(weights))
}

/// Numbers of several models.
struct Averages {
    features: usize,
    members: Vec<Member>,
    is_median: bool,
    takes: Takes,
}

impl Regress for Averages {
    fn features(&self) -> usize {
        self.features
    }

    fn takes(&self) -> Takes {
        self.takes
    }

    fn predict(&self, rows: Rows, out: &mut [f64]) {
        let runs = self.members.iter().map(|member| match member.run(rows) {
            Outcome::Numbers(numbers) => (numbers, member.weight),
            Outcome::Classes { .. } => (Vec::new(), 0.0),
        });
        if !self.is_median {
            let mut all = 0.0;
            for (numbers, weight) in runs {
                out.iter_mut().zip(numbers).for_each(|(out, number)| *out += number * weight);
                all += weight;
            }
            out.iter_mut().for_each(|out| *out /= all);
            return;
        }
        let runs: Vec<(Vec<f64>, f64)> = runs.collect();
        let half = 0.5 * self.members.iter().map(|member| member.weight).sum::<f64>();
        let mut said: Vec<(f64, f64)> = Vec::with_capacity(runs.len());
        for (row, out) in out.iter_mut().enumerate() {
            said.clear();
            said.extend(runs.iter().filter_map(|(numbers, w)| Some((*numbers.get(row)?, *w))));
            said.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut sum = 0.0;
            let middle = said.iter().find(|(_, weight)| {
                sum += weight;
                sum >= half
            });
            *out = middle.or(said.last()).map_or(f64::NAN, |(number, _)| *number);
        }
    }
}

fn averages(of: &Estimator, weights: Option<Vec<f64>>, is_median: bool) -> Result<Predictor> {
    let features = features(of)?;
    let members = members(of, features, weights)?;
    let single = |member: &Member| match &member.model.predictor {
        Predictor::Regressor(model) => model.outputs().is_none(),
        Predictor::Classifier(_) => false,
    };
    if !members.iter().all(single) {
        return Err(of.unsupported("an ensemble of models that do not each tell one number"));
    }
    let takes = takes(&members);
    Ok(Predictor::regressor(Averages { features, members, is_median, takes }))
}

/// A `BaggingRegressor`, a `VotingRegressor` or an `AdaBoostRegressor`.
pub(super) fn regressor(of: &Estimator) -> Result<Predictor> {
    match of.class() {
        "AdaBoostRegressor" => {
            let count = of.children(&["estimators_"])?.len();
            let mut weights = of.vector(&["estimator_weights_"])?;
            weights.truncate(count);
            averages(of, Some(weights), true)
        }
        "VotingRegressor" => averages(of, weights(of)?, false),
        _ => averages(of, None, false),
    }
}

/// Always the same.
struct Constant {
    features: usize,
    class: usize,
    values: Vec<f64>,
}

impl Classify for Constant {
    fn features(&self) -> usize {
        self.features
    }

    fn takes(&self) -> Takes {
        Takes::Anything
    }

    fn classify(&self, _: Rows, classes: &mut [usize], scores: &mut [f64]) {
        classes.fill(self.class);
        let scores = scores.chunks_exact_mut(self.values.len());
        scores.for_each(|scores| scores.copy_from_slice(&self.values));
    }
}

impl Regress for Constant {
    fn features(&self) -> usize {
        self.features
    }

    fn outputs(&self) -> Option<usize> {
        Some(self.values.len()).filter(|width| *width > 1)
    }

    fn takes(&self) -> Takes {
        Takes::Anything
    }

    fn predict(&self, _: Rows, out: &mut [f64]) {
        let rows = out.chunks_exact_mut(self.values.len());
        rows.for_each(|row| row.copy_from_slice(&self.values));
    }
}

fn dummy_features(of: &Estimator) -> Result<usize> {
    of.features().ok_or_else(|| of.unsupported("one that does not say its number of columns"))
}

pub(super) fn dummy_classifier(of: &Estimator) -> Result<Predictor> {
    let labels = of.labels()?;
    let priors = of.vector_of(&["class_prior_"], labels.len())?;
    let only = |class: usize| {
        let share = |number| f64::from(u8::from(number == class));
        (0..priors.len()).map(share).collect::<Vec<f64>>()
    };
    let (class, values) = match of.text("strategy")? {
        "prior" => (largest(&priors), priors),
        "most_frequent" => (largest(&priors), only(largest(&priors))),
        "constant" => {
            let constant = of.attribute(&["constant"])?;
            let place = match &labels {
                Labels::Ints(labels) | Labels::Bools(labels) => {
                    labels.iter().position(|label| constant.int() == Some(*label))
                }
                Labels::Floats(labels) => {
                    labels.iter().position(|label| constant.float() == Some(*label))
                }
                Labels::Texts(labels) => {
                    labels.iter().position(|label| constant.text() == Some(label))
                }
            };
            let place = place.ok_or_else(|| of.fault("its constant is none of its classes"))?;
            (place, only(place))
        }
        other => {
            return Err(of.unsupported(format_args!("the strategy {other:?}, which is chance")));
        }
    };
    let model = Constant { features: dummy_features(of)?, class, values };
    Ok(Predictor::classifier(model, labels, Gives::ProbabilitiesAndLogs))
}

pub(super) fn dummy_regressor(of: &Estimator) -> Result<Predictor> {
    let values = of.vector(&["constant_"])?;
    if values.is_empty() {
        return Err(of.fault("its constant is empty"));
    }
    Ok(Predictor::regressor(Constant { features: dummy_features(of)?, class: 0, values }))
}
