//! Other forms of loaded models.

use std::sync::Arc;

use crate::Executable;

/// The most bytes of the files of a model that stays loaded beside a form of it.
pub const LARGEST_KEPT: u64 = 64 << 20;

/// What a runtime makes of a loaded model to compute the same with less work.
pub enum Optimization {
    /// The runtime knows no other form of models.
    Unknown,
    /// There is none of this number, for this reason.
    None(String),
    /// The other form.
    Made(OptimizedModel),
}

/// Another form of a loaded model.
pub struct OptimizedModel {
    /// Runs the same signatures.
    pub executable: Arc<dyn Executable>,
    /// What is different, in words.
    pub what: String,
    /// The only signature that is different; `None` if all may be.
    pub only: Option<usize>,
    /// Whether the model as it was loaded has to run for numbers that are not ordinary, because this form may compute
    /// something else there.
    pub needs_original: bool,
    /// Whether forms with higher numbers promise less: they are made only if none so far is worth it.
    pub ends_group: bool,
    /// Whether there is no form with a higher number.
    pub is_last: bool,
}
