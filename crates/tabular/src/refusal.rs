//! The errors of models that are not served.

use std::borrow::Cow;

use tensorserve_tensor::error::{Code, Error};

/// The error for a damaged file.
pub(crate) fn damaged(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Code::DataLoss, message)
}

/// The error for an intact model that cannot be evaluated.
pub(crate) fn unsupported(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Code::Unimplemented, message)
}
