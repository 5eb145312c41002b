//! The stages that make features: indices of texts, vectors, scaled vectors, words.

pub(super) mod assemble;
pub(super) mod discretize;
pub(super) mod encode;
pub(super) mod expand;
pub(super) mod index;
mod java_regex;
mod murmur;
pub(super) mod scale;
pub(super) mod select;
pub(super) mod tokens;
pub(super) mod vector_index;
pub(super) mod words;

use super::damaged;
use tensorserve_tensor::error::Error;

/// The error for a stage that does not have as many output columns, and as many of `others` (which are `what`), as
/// input columns.
fn unequal(inputs: usize, outputs: usize, others: usize, what: &str) -> Error {
    damaged(format!(
        "a stage has {inputs} input columns, {outputs} output columns and {others} {what}: it needs as many of each"
    ))
}
