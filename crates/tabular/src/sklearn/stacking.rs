//! `StackingClassifier` and `StackingRegressor`: what members answer is the input of a last estimator.

use super::accepted::AcceptedValues;
use super::columns::ColumnUse;
use super::compile;
use super::estimator::Estimator;
use super::model::{FeatureRows, SklearnModel, Transformer};
use super::response::Method;
use crate::pickle::PickleValue;
use tensorserve_tensor::error::Result;

/// A member and what is taken from it.
struct StackedMember {
    model: SklearnModel,
    method: Method,
    /// The first column that is taken: 1 for the probabilities of two classes, of which one is enough.
    first: usize,
    /// How many columns are taken.
    width: usize,
}

/// The answers of all members side by side, and the features if they are passed on.
struct StackedMembers {
    features: usize,
    members: Vec<StackedMember>,
    passes_features: bool,
}

impl Transformer for StackedMembers {
    fn input(&self) -> usize {
        self.features
    }

    fn output(&self) -> usize {
        let answers: usize = self.members.iter().map(|member| member.width).sum();
        answers + if self.passes_features { self.features } else { 0 }
    }

    fn accepts(&self) -> AcceptedValues {
        let all = self.members.iter().map(|member| member.model.accepts());
        all.fold(AcceptedValues::Any, AcceptedValues::both)
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

    fn takes_sparse(&self) -> bool {
        !self.passes_features
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
                let taken = answer.iter().skip(member.first);
                to.iter_mut().zip(taken).for_each(|(to, value)| *to = *value);
            }
            start += member.width;
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
        let named = Method::named(estimator, name)?;
        let model = compile::compile_part(member)?;
        let method = Method::first(member, &model, &[named])?;
        let width = model.response_width(method);
        let first = usize::from(method == Method::Probability && width == 2);
        members.push(StackedMember { model, method, first, width: width - first });
    }
    let features = compile::same_features(estimator, members.iter().map(|member| &member.model))?;
    let passes_features = estimator.flag("passthrough", false)?;
    Ok(Box::new(StackedMembers { features, members, passes_features }))
}
