//! What models within models share.

use super::classes::TargetClasses;
use super::field::{FieldScope, PmmlField};
use super::schema::PreprocessingStep;

/// What surrounds a model while it is read.
#[derive(Clone)]
pub(super) struct ModelContext<'a, 's> {
    /// The fields that it can refer to.
    pub(super) scope: &'a FieldScope<'s>,
    /// The classes of the model around it, which are its own, too, unless it has another target.
    pub(super) classes: Option<TargetClasses>,
    /// What computes those that are not inputs of the model, as far as the model itself derives them.
    pub(super) steps: &'a [PreprocessingStep],
    /// Whether its outputs are visible outside of it.
    pub(super) has_outputs: bool,
    pub(super) depth: usize,
}

/// An output field that clients or later models can read.
pub(super) struct ExposedOutput {
    pub(super) name: String,
    pub(super) field: PmmlField,
    /// Whether it is an output of the whole model, and not only an intermediate result.
    pub(super) is_final: bool,
}
