//! Errors of runs that find no value in a variable or table.

use tensorserve_platform::unset::UnsetValue;
use tensorserve_tensor::error::{Code, Error};

/// What the library says of variables of resources and of references, and of tables.
const TEXTS: [&str; 4] = [
    "Could not find variable",
    "Error while reading resource variable",
    "Attempting to use uninitialized value",
    "Table not initialized",
];

/// The error of a run, with its cause if that is a variable or table without a value.
pub(super) fn with_cause(error: Error) -> Error {
    let may_be = matches!(error.code(), Code::FailedPrecondition | Code::NotFound);
    match may_be && TEXTS.iter().any(|text| error.message().contains(text)) {
        true => error.with_source(UnsetValue),
        false => error,
    }
}
