//! `OneVsRestClassifier`, `OneVsOneClassifier` and `OutputCodeClassifier`: several classes by classifiers of
//! two.

use super::accepted::AcceptedValues;
use super::columns::ColumnUse;
use super::compile;
use super::estimator::{ClassLabels, Estimator};
use super::model::{
    ClassScores, Classifier, Decisions, FeatureRows, MultiClassifier, MultiScores, Predictor,
    SklearnModel, StepFacts,
};
use super::response::ResponseMethod;
use tensorserve_tensor::error::Result;

/// A classifier of two classes.
enum BinaryMember {
    Model {
        model: SklearnModel,
        /// The method whose values are compared.
        method: ResponseMethod,
    },
    /// Always the same: there was one class only in training.
    Constant(f64),
}

impl BinaryMember {
    fn read(member: &Estimator) -> Result<Self> {
        if member.class() == "_ConstantPredictor" {
            return member
                .vector_of_len(&["y_"], 1)
                .map(|y| BinaryMember::Constant(y.first().copied().unwrap_or(0.0)));
        }
        let model = compile::compile_part(member)?;
        let Predictor::Classifier(classifier) = &model.predictor else {
            return Err(member.unsupported("a member that is not a classifier"));
        };
        if classifier.labels.len() != 2 {
            return Err(member.damaged("a member does not have two classes"));
        }
        let method = ResponseMethod::first(
            member,
            &model,
            &[ResponseMethod::Decision, ResponseMethod::Probability],
        )?;
        Ok(BinaryMember::Model { model, method })
    }

    fn model(&self) -> Option<&SklearnModel> {
        match self {
            BinaryMember::Model { model, .. } => Some(model),
            BinaryMember::Constant(_) => None,
        }
    }

    /// The values of all rows for the second class, which `threshold` divides.
    fn values(&self, rows: FeatureRows) -> Result<Vec<f64>> {
        match self {
            BinaryMember::Constant(value) => Ok(vec![*value; rows.len()]),
            BinaryMember::Model { model, method } => {
                let response = model.respond(rows, *method)?;
                Ok(response.column(response.columns.saturating_sub(1)).collect())
            }
        }
    }

    /// The probabilities of the second class for all rows.
    fn probabilities(&self, rows: FeatureRows) -> Result<Vec<f64>> {
        match self {
            BinaryMember::Constant(value) => Ok(vec![*value; rows.len()]),
            BinaryMember::Model { model, .. } => {
                Ok(model.respond(rows, ResponseMethod::Probability)?.column(1).collect())
            }
        }
    }

    /// The value above which a row is of the second class.
    fn threshold(&self) -> f64 {
        match self {
            BinaryMember::Model { method: ResponseMethod::Probability, .. } => 0.5,
            BinaryMember::Model { .. } | BinaryMember::Constant(_) => 0.0,
        }
    }

    fn has_probabilities(&self) -> bool {
        self.model().is_none_or(|model| model.predictor.scores() != ClassScores::None)
    }

    fn decides(&self) -> bool {
        matches!(self, BinaryMember::Constant(_))
            || matches!(self, BinaryMember::Model { method: ResponseMethod::Decision, .. })
    }
}

/// The members of such an estimator.
struct BinaryMembers {
    features: usize,
    all: Vec<BinaryMember>,
}

impl BinaryMembers {
    fn read(estimator: &Estimator) -> Result<Self> {
        let members = estimator.children(&["estimators_"])?;
        let all = members.iter().map(BinaryMember::read).collect::<Result<Vec<_>>>()?;
        let models = all.iter().filter_map(BinaryMember::model);
        let features = compile::same_features(estimator, models)?;
        Ok(BinaryMembers { features, all })
    }

    fn accepts(&self) -> AcceptedValues {
        let models = self.all.iter().filter_map(BinaryMember::model);
        models.map(SklearnModel::accepts).fold(AcceptedValues::Any, AcceptedValues::both)
    }

    fn uses(&self) -> Vec<ColumnUse> {
        compile::uses_of_all(self.features, self.all.iter().filter_map(BinaryMember::model))
    }

    fn threshold(&self) -> f64 {
        self.all.first().map_or(0.0, BinaryMember::threshold)
    }

    /// The values of all members for each row, one row after the other.
    fn values(&self, rows: FeatureRows) -> Result<Vec<f64>> {
        self.collect(rows, BinaryMember::values)
    }

    fn collect(
        &self,
        rows: FeatureRows,
        values: impl Fn(&BinaryMember, FeatureRows) -> Result<Vec<f64>>,
    ) -> Result<Vec<f64>> {
        let width = self.all.len();
        let mut out = vec![0.0; rows.len() * width];
        for (number, member) in self.all.iter().enumerate() {
            let values = values(member, rows)?;
            out.iter_mut().skip(number).step_by(width).zip(values).for_each(|(out, value)| {
                *out = value;
            });
        }
        Ok(out)
    }

    /// For each row, the class whose row of the code book is nearest.
    fn nearest_code(&self, codes: &[f64], rows: FeatureRows, classes: &mut [usize]) -> Result<()> {
        let width = self.all.len();
        let values = self.values(rows)?;
        for (class, values) in classes.iter_mut().zip(values.chunks_exact(width)) {
            let mut nearest = f64::INFINITY;
            for (number, code) in codes.chunks_exact(width).enumerate() {
                let distance: f64 = values.iter().zip(code).map(|(a, b)| (a - b).powi(2)).sum();
                if distance < nearest {
                    (nearest, *class) = (distance, number);
                }
            }
        }
        Ok(())
    }
}

/// How the class follows from the values of all members.
enum Choice {
    /// The largest value; of equal ones, the first or the last.
    Largest { last: bool },
    /// Of two classes: whether the only value is above the threshold.
    Threshold,
    /// The votes of members for each pair of classes.
    Pairs,
    /// The nearest code of the code book.
    Codes(Vec<f64>),
}

struct OneAgainst {
    members: BinaryMembers,
    classes: usize,
    choice: Choice,
    has_probabilities: bool,
    /// Whether probabilities are NaN if all are 0: before 1.7.
    divides_by_zero: bool,
}

impl OneAgainst {
    /// The votes for each class of a row, given the values of all pairs. Sums of values break ties.
    fn votes(&self, values: &[f64], votes: &mut [f64]) {
        let mut sums = vec![0.0; self.classes];
        votes.fill(0.0);
        let threshold = self.members.threshold();
        let mut pairs = values.iter();
        for first in 0..self.classes {
            for second in first + 1..self.classes {
                let Some(value) = pairs.next() else { return };
                let winner = if *value > threshold { second } else { first };
                if let Some(votes) = votes.get_mut(winner) {
                    *votes += 1.0;
                }
                if let Some(sum) = sums.get_mut(first) {
                    *sum -= value;
                }
                if let Some(sum) = sums.get_mut(second) {
                    *sum += value;
                }
            }
        }
        for (vote, sum) in votes.iter_mut().zip(sums) {
            *vote += sum / (3.0 * (sum.abs() + 1.0));
        }
    }

    fn write_probabilities(&self, rows: FeatureRows, scores: &mut [f64]) -> Result<()> {
        let values = self.members.collect(rows, BinaryMember::probabilities)?;
        if self.members.all.len() == 1 {
            for (scores, second) in scores.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                *scores = [1.0 - second, second];
            }
        } else {
            scores.copy_from_slice(&values);
        }
        for scores in scores.chunks_exact_mut(self.classes) {
            let sum: f64 = scores.iter().sum();
            if sum != 0.0 || self.divides_by_zero {
                scores.iter_mut().for_each(|score| *score /= sum);
            }
        }
        Ok(())
    }
}

impl Classifier for OneAgainst {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.members.features).accepting(self.members.accepts()).sparse()
    }

    fn uses(&self) -> Vec<ColumnUse> {
        self.members.uses()
    }

    fn decisions(&self) -> Decisions {
        let decides = self.members.all.iter().all(BinaryMember::decides);
        match (&self.choice, decides) {
            (Choice::Pairs, _) if self.classes == 2 => Decisions::Columns(1),
            (Choice::Pairs, _) => Decisions::Columns(self.classes),
            (Choice::Largest { .. } | Choice::Threshold, true) => {
                Decisions::Columns(self.members.all.len())
            }
            _ => Decisions::None,
        }
    }

    fn decide(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        let values = self.members.values(rows)?;
        if !matches!(self.choice, Choice::Pairs) {
            out.copy_from_slice(&values);
            return Ok(());
        }
        let mut votes = vec![0.0; self.classes];
        let columns = if self.classes == 2 { 1 } else { self.classes };
        let values = values.chunks_exact(self.members.all.len());
        for (values, out) in values.zip(out.chunks_exact_mut(columns)) {
            self.votes(values, &mut votes);
            let last = votes.get(self.classes - columns..).unwrap_or_default();
            out.iter_mut().zip(last).for_each(|(out, vote)| *out = *vote);
        }
        Ok(())
    }

    fn classify(&self, rows: FeatureRows, classes: &mut [usize], scores: &mut [f64]) -> Result<()> {
        if let Choice::Codes(codes) = &self.choice {
            return self.members.nearest_code(codes, rows, classes);
        }
        let threshold = self.members.threshold();
        let values = self.members.values(rows)?;
        let values = values.chunks_exact(self.members.all.len());
        let mut votes = vec![0.0; self.classes];
        for (class, values) in classes.iter_mut().zip(values) {
            *class = match &self.choice {
                Choice::Largest { last } => largest(values, *last),
                Choice::Threshold | Choice::Codes(_) => {
                    usize::from(values.first().is_some_and(|value| *value > threshold))
                }
                Choice::Pairs => {
                    self.votes(values, &mut votes);
                    match *votes {
                        [_, second] => usize::from(second > threshold),
                        _ => largest(&votes, false),
                    }
                }
            };
        }
        match self.has_probabilities {
            true => self.write_probabilities(rows, scores),
            false => Ok(()),
        }
    }
}

/// The index of the largest value; of equal ones, that of the first or of the `last`.
fn largest(values: &[f64], last: bool) -> usize {
    let (mut best, mut most) = (0, f64::NEG_INFINITY);
    for (index, value) in values.iter().enumerate() {
        if *value > most || (last && *value == most) {
            (best, most) = (index, *value);
        }
    }
    best
}

/// Any of several labels for each row (`OneVsRestClassifier` of a matrix of labels).
struct AnyLabels {
    members: BinaryMembers,
    labels: Vec<ClassLabels>,
    has_probabilities: bool,
}

impl MultiClassifier for AnyLabels {
    fn facts(&self) -> StepFacts {
        StepFacts::of(self.members.features).accepting(self.members.accepts()).sparse()
    }

    fn uses(&self) -> Vec<ColumnUse> {
        self.members.uses()
    }

    fn labels(&self) -> &[ClassLabels] {
        &self.labels
    }

    fn scores(&self) -> MultiScores {
        match self.has_probabilities {
            true => MultiScores::Joint(ClassScores::Probabilities),
            false => MultiScores::None,
        }
    }

    fn decisions(&self) -> Decisions {
        match self.members.all.iter().all(BinaryMember::decides) {
            true => Decisions::Columns(self.labels.len()),
            false => Decisions::None,
        }
    }

    fn decide(&self, rows: FeatureRows, out: &mut [f64]) -> Result<()> {
        out.copy_from_slice(&self.members.values(rows)?);
        Ok(())
    }

    fn classify(
        &self,
        rows: FeatureRows,
        classes: &mut [usize],
        scores: &mut [Vec<f64>],
    ) -> Result<()> {
        let threshold = self.members.threshold();
        let values = self.members.values(rows)?;
        for (class, value) in classes.iter_mut().zip(values) {
            *class = usize::from(value > threshold);
        }
        if let [scores] = scores {
            *scores = self.members.collect(rows, BinaryMember::probabilities)?;
        }
        Ok(())
    }
}

/// Reads a `OneVsRestClassifier`.
pub(super) fn one_against_rest(estimator: &Estimator) -> Result<Predictor> {
    let members = BinaryMembers::read(estimator)?;
    let has_probabilities = members.all.iter().all(BinaryMember::has_probabilities);
    let binarizer = estimator.child(estimator.attribute(&["label_binarizer_"])?)?;
    let kind = binarizer.text("y_type_")?;
    let labels = estimator.labels()?;
    if kind.starts_with("multilabel") {
        let labels = vec![ClassLabels::Ints(vec![0, 1]); members.all.len()];
        let model = AnyLabels { members, labels, has_probabilities };
        return Ok(Predictor::MultiClassifier(Box::new(model)));
    }
    let classes = labels.len();
    let choice = match (members.all.len(), classes) {
        (1, 2) => Choice::Threshold,
        // Before 1.8, the last of equal classes.
        (count, classes) if count == classes => {
            Choice::Largest { last: estimator.is_older_than(1, 8) }
        }
        (count, _) => {
            return Err(
                estimator.damaged(format_args!("it has {count} members for {classes} classes"))
            );
        }
    };
    let scores = match has_probabilities {
        true => ClassScores::Probabilities,
        false => ClassScores::None,
    };
    let model = OneAgainst {
        members,
        classes,
        choice,
        has_probabilities,
        divides_by_zero: estimator.is_older_than(1, 7),
    };
    Ok(Predictor::classifier(model, labels, scores))
}

/// Reads a `OneVsOneClassifier`.
pub(super) fn one_against_one(estimator: &Estimator) -> Result<Predictor> {
    let members = BinaryMembers::read(estimator)?;
    let labels = estimator.labels()?;
    let classes = labels.len();
    if members.all.len() != classes * (classes - 1) / 2 || members.all.is_empty() {
        return Err(estimator.damaged("it does not have one member for each pair of classes"));
    }
    if estimator.find(&["pairwise_indices_"]).is_some() {
        return Err(estimator.unsupported("members of a precomputed kernel"));
    }
    let model = OneAgainst {
        members,
        classes,
        choice: Choice::Pairs,
        has_probabilities: false,
        divides_by_zero: false,
    };
    Ok(Predictor::classifier(model, labels, ClassScores::None))
}

/// Reads an `OutputCodeClassifier`.
pub(super) fn output_code(estimator: &Estimator) -> Result<Predictor> {
    let members = BinaryMembers::read(estimator)?;
    let labels = estimator.labels()?;
    let classes = labels.len();
    let codes = estimator.matrix_of_shape(&["code_book_"], classes, members.all.len())?;
    let choice = Choice::Codes(codes.values);
    let model =
        OneAgainst { members, classes, choice, has_probabilities: false, divides_by_zero: false };
    Ok(Predictor::classifier(model, labels, ClassScores::None))
}
