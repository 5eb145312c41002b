//! Ensembles of models: bagging, AdaBoost and voting.

use super::accepted::AcceptedValues;
use super::columns::ColumnUse;
use super::compile;
use super::estimator::{ClassLabels, Estimator};
use super::model::{
    ClassScores, Classifier, Decisions, FeatureRows, Predictions, Predictor, Regressor,
    SklearnModel, StepFacts,
};
use super::numeric::{argmax, softmax};
use super::tree::read_estimator_columns;
use tensorserve_tensor::error::Result;

/// The error for a member without a weight or without columns.
const MEMBERS_DIFFER: &str =
    "estimators_, its weights and estimators_features_ differ in length, or are empty";

/// A member of an ensemble.
struct EnsembleMember {
    model: SklearnModel,
    /// The columns that it uses; `None` for all.
    columns: Option<Vec<usize>>,
    weight: f64,
    /// For each of its classes, the index in the ensemble.
    classes: Vec<usize>,
}

impl EnsembleMember {
    /// Its predictions for `rows` of the ensemble.
    fn predict(&self, rows: FeatureRows) -> Result<Predictions> {
        let Some(columns) = &self.columns else { return self.model.run_member(rows) };
        let mut values = Vec::with_capacity(rows.len() * columns.len());
        for row in rows.iter() {
            for column in columns {
                values.push(row.get(*column).copied().unwrap_or(f64::NAN));
            }
        }
        self.model.run_member(rows.with_dense(&values, columns.len()))
    }

    fn scores(&self) -> ClassScores {
        self.model.predictor.scores()
    }
}

/// How members use the columns of an ensemble of `features` features.
fn uses_of_members(features: usize, members: &[EnsembleMember]) -> Vec<ColumnUse> {
    let mut uses = vec![ColumnUse::Unused; features];
    for member in members {
        for (index, own) in member.model.uses().into_iter().enumerate() {
            let column = match &member.columns {
                Some(columns) => columns.get(index).copied(),
                None => Some(index),
            };
            if let Some(used) = column.and_then(|column| uses.get_mut(column)) {
                used.add(own);
            }
        }
    }
    uses
}

/// Whether members can be given sparse rows: if each uses all columns.
fn take_sparse(members: &[EnsembleMember]) -> bool {
    members.iter().all(|member| member.columns.is_none())
}

/// Compiles the members of an ensemble of `features` features, without their classes.
fn compile_members(
    estimator: &Estimator,
    features: usize,
    weights: Option<Vec<f64>>,
) -> Result<Vec<EnsembleMember>> {
    let all = estimator.children(&["estimators_"])?;
    let mut columns = read_estimator_columns(estimator, features)?;
    let weights = weights.unwrap_or_else(|| vec![1.0; all.len()]);
    let lists = columns.as_ref().map_or(all.len(), Vec::len);
    if all.is_empty() || weights.len() < all.len() || lists != all.len() {
        return Err(estimator.damaged(MEMBERS_DIFFER));
    }
    let mut members = Vec::new();
    for (number, (member, weight)) in all.iter().zip(weights).enumerate() {
        let model = compile::compile_part(member)?;
        let columns = columns.as_mut().and_then(|all| all.get_mut(number)).map(std::mem::take);
        // All columns in their order need no selection.
        let columns = columns.filter(|columns| !columns.iter().copied().eq(0..features));
        let given = columns.as_ref().map_or(features, Vec::len);
        let takes = model.features();
        if takes != given {
            return Err(estimator.damaged(format_args!(
                "member {number} takes {takes} features, and is given {given}"
            )));
        }
        members.push(EnsembleMember { model, columns, weight, classes: Vec::new() });
    }
    Ok(members)
}

fn count_features(estimator: &Estimator) -> Result<usize> {
    if let Some(features) = estimator.features() {
        return Ok(features);
    }
    let members = estimator.children(&["estimators_"])?;
    let first = members.first().ok_or_else(|| estimator.damaged("estimators_ is empty"))?;
    // Only ensembles whose members use all columns do not record their number.
    Ok(compile::compile_part(first)?.features())
}

/// Finds the index in the ensemble of each class of the members. Members were fitted with the labels
/// of the ensemble, or with their indices.
fn match_classes(
    estimator: &Estimator,
    members: &mut [EnsembleMember],
    labels: &ClassLabels,
) -> Result<()> {
    let count = labels.len();
    for member in members {
        let Predictor::Classifier(classifier) = &member.model.predictor else {
            return Err(estimator.damaged("a member is not a classifier"));
        };
        let classes: Option<Vec<usize>> = match &classifier.labels {
            own if own.len() == count => Some((0..count).collect()),
            ClassLabels::Ints(own) => own.iter().map(|own| usize::try_from(*own).ok()).collect(),
            ClassLabels::Floats(_) | ClassLabels::Texts(_) | ClassLabels::Bools(_) => None,
        };
        let classes = classes.filter(|classes| classes.iter().all(|class| *class < count));
        member.classes = classes
            .ok_or_else(|| estimator.damaged("a member has other classes than the ensemble"))?;
    }
    Ok(())
}

/// How the predictions of members are combined.
#[derive(Clone, Copy, PartialEq)]
enum Aggregation {
    /// The weighted mean of their probabilities.
    SoftVote,
    /// The sum of the weights of those that predict a class.
    HardVote,
    /// As [`Aggregation::HardVote`]; a prediction also counts against the other classes (the
    /// algorithm SAMME).
    Samme,
    /// The sum of the centered logarithms of their probabilities (the algorithm SAMME.R).
    SammeR,
}

struct ClassifierEnsemble {
    features: usize,
    members: Vec<EnsembleMember>,
    classes: usize,
    aggregation: Aggregation,
    /// Whether sums are those of AdaBoost, and softmax makes them probabilities.
    is_ada_boost: bool,
    /// Whether it has `decision_function` in scikit-learn if its members have.
    can_decide: bool,
    accepts: AcceptedValues,
}

impl ClassifierEnsemble {
    /// Adds what `member` predicts for `rows` to `out`, `classes` values for each row.
    fn add(&self, member: &EnsembleMember, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let Predictions::Classes { classes, scores } = member.predict(rows)? else {
            return Ok(());
        };
        let has_logs = member.scores().are_logs();
        let width = member.classes.len().max(1);
        let predictions = classes.iter().zip(scores.chunks_exact(width));
        for ((class, scores), out) in predictions.zip(out.chunks_exact_mut(self.classes)) {
            match self.aggregation {
                Aggregation::SoftVote => {
                    for (score, class) in scores.iter().zip(&member.classes) {
                        if let Some(out) = out.get_mut(*class) {
                            *out += probability(*score, has_logs) * member.weight;
                        }
                    }
                }
                Aggregation::HardVote | Aggregation::Samme => self.add_vote(member, *class, out),
                Aggregation::SammeR => self.add_log_probabilities(scores, has_logs, out),
            }
        }
        Ok(())
    }

    fn add_vote(&self, member: &EnsembleMember, class: usize, out: &mut [f64]) {
        let is_samme = self.aggregation == Aggregation::Samme;
        let others = self.classes as f64 - 1.0;
        if is_samme {
            let against = member.weight * (-1.0 / others);
            out.iter_mut().for_each(|out| *out += against);
        }
        let class = member.classes.get(class).copied().unwrap_or(0);
        if let Some(out) = out.get_mut(class) {
            *out += member.weight;
            if is_samme {
                *out += member.weight / others;
            }
        }
    }

    fn add_log_probabilities(&self, scores: &[f64], has_logs: bool, out: &mut [f64]) {
        let count = self.classes as f64;
        let mean = scores.iter().map(|score| clipped_log(*score, has_logs)).sum::<f64>() / count;
        for (out, score) in out.iter_mut().zip(scores) {
            *out += (count - 1.0) * (clipped_log(*score, has_logs) - mean);
        }
    }
}

/// The probability of a score, which may be its logarithm.
fn probability(score: f64, is_log: bool) -> f64 {
    if is_log { score.exp() } else { score }
}

/// The logarithm of the probability of a score, kept finite.
fn clipped_log(score: f64, is_log: bool) -> f64 {
    probability(score, is_log).max(f64::EPSILON).ln()
}

impl Classifier for ClassifierEnsemble {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).accepting(self.accepts).sparse_if(take_sparse(&self.members))
    }

    fn uses(&self) -> Vec<ColumnUse> {
        uses_of_members(self.features, &self.members)
    }

    fn decisions(&self) -> Decisions {
        let is_none =
            |member: &EnsembleMember| member.model.predictor.decisions() == Decisions::None;
        match (self.is_ada_boost, self.classes) {
            (true, 2) => Decisions::Columns(1),
            (true, classes) => Decisions::Columns(classes),
            // Bagging has if its members have; voting has not.
            (false, _) if !self.can_decide || self.members.iter().all(is_none) => Decisions::None,
            (false, _) => Decisions::Unsupported,
        }
    }

    fn decide(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let mut scores = vec![0.0; rows.len() * self.classes];
        for member in &self.members {
            self.add(member, rows, &mut scores)?;
        }
        let weight: f64 = self.members.iter().map(|member| member.weight).sum();
        scores.iter_mut().for_each(|score| *score /= weight);
        if self.classes != 2 {
            out.copy_from_slice(&scores);
            return Ok(());
        }
        for (out, [first, second]) in out.iter_mut().zip(scores.as_chunks::<2>().0) {
            *out = second - first;
        }
        Ok(())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        for member in &self.members {
            self.add(member, rows, scores)?;
        }
        let weight: f64 = self.members.iter().map(|member| member.weight).sum();
        for (class, scores) in classes.iter_mut().zip(scores.chunks_exact_mut(self.classes)) {
            scores.iter_mut().for_each(|score| *score /= weight);
            if !self.is_ada_boost {
                *class = argmax(scores);
                continue;
            }
            if let [first, second] = *scores {
                let decision = second - first;
                *class = usize::from(decision > 0.0);
                scores.copy_from_slice(&[-decision / 2.0, decision / 2.0]);
            } else {
                *class = argmax(scores);
                let others = (self.classes - 1) as f64;
                scores.iter_mut().for_each(|score| *score /= others);
            }
            softmax(scores);
        }
        Ok(())
    }
}

/// What the ensemble and all members accept. AdaBoost checks its input itself; the others leave it to
/// their members.
fn accepted_by_all(estimator: &Estimator, members: &[EnsembleMember]) -> AcceptedValues {
    let own = match estimator.class() {
        "AdaBoostClassifier" | "AdaBoostRegressor" => AcceptedValues::Finite,
        _ => AcceptedValues::Any,
    };
    members.iter().fold(own, |accepted, member| accepted.both(member.model.accepts()))
}

fn have_probabilities(members: &[EnsembleMember]) -> bool {
    members.iter().all(|member| member.scores() != ClassScores::None)
}

/// Compiles an ensemble of classifiers, other than AdaBoost's. Also returns its labels.
fn classifier_ensemble(
    estimator: &Estimator,
    features: usize,
    mut members: Vec<EnsembleMember>,
    aggregation: Aggregation,
) -> Result<(ClassifierEnsemble, ClassLabels)> {
    let labels = estimator.labels()?;
    match_classes(estimator, &mut members, &labels)?;
    let classes = labels.len();
    let accepts = accepted_by_all(estimator, &members);
    let is_ada_boost = false;
    let can_decide = estimator.class() == "BaggingClassifier";
    let model = ClassifierEnsemble {
        features,
        members,
        classes,
        aggregation,
        is_ada_boost,
        can_decide,
        accepts,
    };
    Ok((model, labels))
}

/// Reads a `BaggingClassifier`.
pub(super) fn bagging_classifier(estimator: &Estimator) -> Result<Predictor> {
    let features = count_features(estimator)?;
    let members = compile_members(estimator, features, None)?;
    let aggregation = match have_probabilities(&members) {
        true => Aggregation::SoftVote,
        false => Aggregation::HardVote,
    };
    let (model, labels) = classifier_ensemble(estimator, features, members, aggregation)?;
    Ok(Predictor::classifier(model, labels, ClassScores::ProbabilitiesAndLogs))
}

/// Reads an `AdaBoostClassifier`.
pub(super) fn ada_boost_classifier(estimator: &Estimator) -> Result<Predictor> {
    let features = count_features(estimator)?;
    let weights = ada_boost_weights(estimator)?;
    let is_samme_r = estimator.text("algorithm")? == "SAMME.R";
    let members = compile_members(estimator, features, Some(weights))?;
    let aggregation = match is_samme_r {
        true => Aggregation::SammeR,
        false if estimator.is_older_than(0, 22) => {
            return Err(estimator.unsupported("algorithm=SAMME of scikit-learn before 0.22"));
        }
        // Changed by 1.3.1.
        false if estimator.is_older_than(1, 3) || estimator.is_of_release("1.3.0") => {
            Aggregation::HardVote
        }
        false => Aggregation::Samme,
    };
    let classes = estimator.labels()?.len();
    let have_all_classes = members.iter().all(|member| match &member.model.predictor {
        Predictor::Classifier(classifier) => classifier.labels.len() == classes,
        Predictor::Regressor(_) | Predictor::MultiClassifier(_) | Predictor::Features(_) => false,
    });
    if classes < 2 || (is_samme_r && !have_all_classes) {
        return Err(estimator.unsupported("a member that does not have all classes"));
    }
    let (mut model, labels) = classifier_ensemble(estimator, features, members, aggregation)?;
    model.is_ada_boost = true;
    Ok(Predictor::classifier(model, labels, ClassScores::ProbabilitiesAndLogs))
}

/// The weights of the members of an AdaBoost ensemble. Boosting that stops early leaves more.
fn ada_boost_weights(estimator: &Estimator) -> Result<Vec<f64>> {
    let count = estimator.children(&["estimators_"])?.len();
    let mut weights = estimator.vector(&["estimator_weights_"])?;
    weights.truncate(count);
    Ok(weights)
}

/// Reads a `VotingClassifier`.
pub(super) fn voting_classifier(estimator: &Estimator) -> Result<Predictor> {
    let features = count_features(estimator)?;
    let members = compile_members(estimator, features, voting_weights(estimator)?)?;
    let (aggregation, scores) = match estimator.text("voting")? {
        "soft" => (Aggregation::SoftVote, ClassScores::Probabilities),
        _ => (Aggregation::HardVote, ClassScores::None),
    };
    if aggregation == Aggregation::SoftVote && !have_probabilities(&members) {
        return Err(estimator.damaged("a member has no probabilities"));
    }
    let (model, labels) = classifier_ensemble(estimator, features, members, aggregation)?;
    Ok(Predictor::classifier(model, labels, scores))
}

/// The weights of a voting ensemble, if it has any.
fn voting_weights(estimator: &Estimator) -> Result<Option<Vec<f64>>> {
    if estimator.find(&["weights"]).is_none() {
        return Ok(None);
    }
    let count = estimator.children(&["estimators_"])?.len();
    let weights = estimator.vector(&["weights"])?;
    if weights.len() != count {
        return Err(estimator.unsupported("weights of members that were dropped"));
    }
    Ok(Some(weights))
}

/// The mean or the median of the numbers of several models.
struct RegressorEnsemble {
    features: usize,
    members: Vec<EnsembleMember>,
    is_median: bool,
    accepts: AcceptedValues,
}

impl Regressor for RegressorEnsemble {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.features).accepting(self.accepts).sparse_if(take_sparse(&self.members))
    }

    fn uses(&self) -> Vec<ColumnUse> {
        uses_of_members(self.features, &self.members)
    }

    fn predict(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let predictions = self.members.iter().map(|member| match member.predict(rows)? {
            Predictions::Numbers(numbers) => Ok((numbers, member.weight)),
            Predictions::Classes { .. } | Predictions::MultiClasses { .. } => Ok((Vec::new(), 0.0)),
        });
        if self.is_median {
            let predictions: Vec<(Vec<f64>, f64)> = predictions.collect::<Result<_>>()?;
            weighted_medians(&predictions, out);
            return Ok(());
        }
        let mut total = 0.0;
        for prediction in predictions {
            let (numbers, weight) = prediction?;
            out.iter_mut().zip(numbers).for_each(|(out, number)| *out += number * weight);
            total += weight;
        }
        out.iter_mut().for_each(|out| *out /= total);
        Ok(())
    }
}

/// Writes the weighted median of each row. `predictions` are the numbers of all rows and the weight of
/// each member.
fn weighted_medians(predictions: &[(Vec<f64>, f64)], out: &mut [f64]) {
    let half = 0.5 * predictions.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut row_values: Vec<(f64, f64)> = Vec::with_capacity(predictions.len());
    for (row, out) in out.iter_mut().enumerate() {
        row_values.clear();
        row_values
            .extend(predictions.iter().filter_map(|(numbers, w)| Some((*numbers.get(row)?, *w))));
        row_values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut sum = 0.0;
        let median = row_values.iter().find(|(_, weight)| {
            sum += weight;
            sum >= half
        });
        *out = median.or(row_values.last()).map_or(f64::NAN, |(number, _)| *number);
    }
}

/// Compiles an ensemble of regressors.
fn regressor_ensemble(
    estimator: &Estimator,
    weights: Option<Vec<f64>>,
    is_median: bool,
) -> Result<Predictor> {
    let features = count_features(estimator)?;
    let members = compile_members(estimator, features, weights)?;
    let have_one_output = members.iter().all(|member| match &member.model.predictor {
        Predictor::Regressor(model) => model.outputs().is_none(),
        Predictor::Classifier(_) | Predictor::MultiClassifier(_) | Predictor::Features(_) => false,
    });
    if !have_one_output {
        return Err(estimator.unsupported("a member that does not predict a single number"));
    }
    let accepts = accepted_by_all(estimator, &members);
    Ok(Predictor::regressor(RegressorEnsemble { features, members, is_median, accepts }))
}

/// Reads a `BaggingRegressor`, a `VotingRegressor` or an `AdaBoostRegressor`.
pub(super) fn regressor(estimator: &Estimator) -> Result<Predictor> {
    match estimator.class() {
        "AdaBoostRegressor" => {
            let weights = ada_boost_weights(estimator)?;
            regressor_ensemble(estimator, Some(weights), true)
        }
        "VotingRegressor" => regressor_ensemble(estimator, voting_weights(estimator)?, false),
        _ => regressor_ensemble(estimator, None, false),
    }
}
