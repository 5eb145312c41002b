//! Versions that cannot answer because their files did not give them all values.

use std::fmt;

use tensorserve_tensor::Signature;
use tensorserve_tensor::error::{Code, Error};

/// The signature that clients get without naming one.
const DEFAULT: &str = "serving_default";

/// The cause of a failed run: a variable or a table of the model has no value.
#[derive(Debug)]
pub struct UnsetValue;

impl fmt::Display for UnsetValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a variable or table of the model has no value")
    }
}

impl std::error::Error for UnsetValue {}

/// Why a version must not serve whose signature `ran` ended with `error` on synthetic inputs; `None` if it may.
///
/// A variable without a value counts in the signature that clients get by default, or the only one, and only if no
/// signature of the model could set it: some models have one that does.
#[must_use]
pub fn refusal(error: &Error, ran: &Signature, all: &[Signature]) -> Option<Error> {
    let is_unset = std::error::Error::source(error).is_some_and(|cause| cause.is::<UnsetValue>());
    let is_main = ran.name == DEFAULT || all.len() == 1;
    let may_be_set = all.iter().any(|signature| !signature.read_only);
    (is_unset && is_main && !may_be_set).then(|| {
        let (name, message) = (&ran.name, error.message());
        let why = format!(
            "its signature {name:?} cannot run, because a variable or table has no value, and no \
             signature sets it; export the model again: {message}"
        );
        Error::new(Code::FailedPrecondition, why)
    })
}
