//! `StackingClassifier` and `StackingRegressor`: what members answer is the input of a last estimator.

use super::accepted::AcceptedValues;
use super::columns::ColumnUse;
use super::compile;
use super::estimator::{ClassLabels, Estimator};
use super::model::{
    ClassScores, FeatureRows, LabelledClassifier, MultiClassifier, MultiScores, Predictor,
    SklearnModel, StepFacts, Transformer,
};
use super::response::ResponseMethod;
use tensorserve_pickle::PickleValue;
use tensorserve_tensor::error::Result;

/// A member and what is taken from it.
struct StackedMember {
    model: SklearnModel,
    method: ResponseMethod,
    /// The columns that are taken: of the probabilities of two classes, the second is enough.
    taken: Vec<usize>,
}

/// The answers of all members side by side, and the features if they are passed on.
struct StackedMembers {
    features: usize,
    members: Vec<StackedMember>,
    passes_features: bool,
}

impl Transformer for StackedMembers {
    fn facts(&self) -> StepFacts {
        let members = self.members.iter().map(|member| member.model.accepts());
        let accepts = members.fold(AcceptedValues::Any, AcceptedValues::both);
        StepFacts::of(self.features).accepting(accepts).sparse_if(!self.passes_features)
    }

    fn output(&self) -> usize {
        let answers: usize = self.members.iter().map(|member| member.taken.len()).sum();
        answers + if self.passes_features { self.features } else { 0 }
    }

    fn uses(&self, outputs: &[ColumnUse]) -> Vec<ColumnUse> {
        let models = self.members.iter().map(|member| &member.model);
        let mut uses = compile::uses_of_all(self.features, models);
        if self.passes_features {
            let passed = outputs.iter().rev().take(self.features).rev();
            uses.iter_mut().zip(passed).for_each(|(used, own)| used.add(*own));
        }
        uses
    }

    fn is_sparse_there(&self, from_sparse: bool) -> bool {
        from_sparse && self.passes_features
    }

    fn apply(&self, rows: FeatureRows, to: &mut [f64]) -> Result<()> {
        let width = self.output().max(1);
        let mut start = 0;
        for member in &self.members {
            let response = member.model.respond(rows, member.method)?;
            let answers = response.values.chunks_exact(response.columns.max(1));
            for (to, answer) in to.chunks_exact_mut(width).zip(answers) {
                let to = to.get_mut(start..).unwrap_or_default();
                for (to, column) in to.iter_mut().zip(&member.taken) {
                    *to = answer.get(*column).copied().unwrap_or(f64::NAN);
                }
            }
            start += member.taken.len();
        }
        if self.passes_features {
            for (to, row) in to.chunks_exact_mut(width).zip(rows.iter()) {
                let to = to.get_mut(start..).unwrap_or_default();
                to.iter_mut().zip(row).for_each(|(to, value)| *to = *value);
            }
        }
        Ok(())
    }
}

/// The columns that are taken of what `model` answers.
fn taken_columns(model: &SklearnModel, method: ResponseMethod) -> Vec<usize> {
    let width = model.response_width(method);
    if method == ResponseMethod::Probability
        && let Predictor::MultiClassifier(several) = &model.predictor
        && let MultiScores::Separate(_) = several.scores()
    {
        let mut taken = Vec::with_capacity(width);
        let mut start = 0;
        for width in several.scores().widths(several.labels()) {
            taken.extend(start + 1..start + width);
            start += width;
        }
        return taken;
    }
    (usize::from(method == ResponseMethod::Probability && width == 2)..width).collect()
}

/// Reads the members of a `StackingClassifier` or a `StackingRegressor`.
pub(super) fn members(estimator: &Estimator) -> Result<Box<dyn Transformer>> {
    let methods = estimator.attribute(&["stack_method_"])?;
    let methods = methods.items().unwrap_or_default();
    let all = estimator.children(&["estimators_"])?;
    if all.len() != methods.len() {
        return Err(estimator.damaged("stack_method_ does not have a method for each member"));
    }
    let mut members = Vec::with_capacity(all.len());
    for (member, method) in all.iter().zip(methods) {
        let name = PickleValue::text(method).unwrap_or_default();
        let named = ResponseMethod::named(estimator, name)?;
        let model = compile::compile_part(member)?;
        let method = ResponseMethod::first(member, &model, &[named])?;
        let taken = taken_columns(&model, method);
        members.push(StackedMember { model, method, taken });
    }
    let features = compile::same_features(estimator, members.iter().map(|member| &member.model))?;
    let passes_features = estimator.flag("passthrough", false)?;
    Ok(Box::new(StackedMembers { features, members, passes_features }))
}

/// The last estimator, which was fitted with the indices of the labels, with the labels themselves.
pub(super) fn with_labels(estimator: &Estimator, last: Predictor) -> Result<Predictor> {
    let wrong = || estimator.damaged("its last estimator has other classes");
    match last {
        Predictor::Classifier(LabelledClassifier { model, labels: own, scores }) => {
            let labels = estimator.labels()?;
            if labels.len() != own.len() {
                return Err(wrong());
            }
            let scores = scores.without_logs();
            Ok(Predictor::Classifier(LabelledClassifier { model, labels, scores }))
        }
        Predictor::MultiClassifier(model) => {
            let labels = estimator.labels_by_output()?.ok_or_else(wrong)?;
            estimator.check_types(&labels)?;
            let own = model.labels().iter().map(ClassLabels::len);
            if !own.eq(labels.iter().map(ClassLabels::len)) {
                return Err(wrong());
            }
            Ok(Predictor::MultiClassifier(Box::new(StackedLabels { model, labels })))
        }
        last @ (Predictor::Regressor(_) | Predictor::Features(_)) => Ok(last),
    }
}

/// A last estimator of several labels.
struct StackedLabels {
    model: Box<dyn MultiClassifier>,
    labels: Vec<ClassLabels>,
}

impl MultiClassifier for StackedLabels {
    fn facts(&self) -> StepFacts {
        self.model.facts()
    }

    fn uses(&self) -> Vec<ColumnUse> {
        self.model.uses()
    }

    fn labels(&self) -> &[ClassLabels] {
        &self.labels
    }

    fn scores(&self) -> MultiScores {
        match self.model.scores() {
            MultiScores::Separate(_) => MultiScores::Joint(ClassScores::Probabilities),
            // scikit-learn fails on a single matrix of them.
            MultiScores::Joint(_) | MultiScores::None => MultiScores::None,
        }
    }

    fn classify(
        &self,
        rows: FeatureRows,
        classes: &mut [usize],
        scores: &mut [Vec<f64>],
    ) -> Result<()> {
        let widths = self.model.scores().widths(self.model.labels());
        let mut own: Vec<Vec<f64>> =
            widths.iter().map(|width| vec![0.0; rows.len() * width]).collect();
        self.model.classify(rows, classes, &mut own)?;
        let [scores] = scores else { return Ok(()) };
        let outputs = self.labels.len();
        let are_logs = self.model.scores().are_logs();
        for (output, (own, width)) in own.iter().zip(widths).enumerate() {
            // Of each output, scikit-learn takes the probability of the first class.
            let first = own.iter().step_by(width.max(1));
            let to = scores.iter_mut().skip(output).step_by(outputs);
            to.zip(first).for_each(|(to, p)| *to = if are_logs { p.exp() } else { *p });
        }
        Ok(())
    }
}
