//! Errors for mistakes in the JSON of a request.

use std::borrow::Cow;

use tensorserve_codec::json::scan::SyntaxError;
use tensorserve_tensor::error::Error;

/// Python's notation of a JSON value, as in the original's errors.
pub(super) fn python(value: &str) -> Cow<'_, str> {
    match value {
        "null" => Cow::Borrowed("None"),
        "true" => Cow::Borrowed("True"),
        "false" => Cow::Borrowed("False"),
        other => Cow::Borrowed(other),
    }
}

/// The error for a body that is not JSON.
pub(super) fn not_json(body: &[u8], error: SyntaxError) -> Error {
    let (start, reason, offset) = (excerpt(body), error.kind.text(), error.offset);
    Error::invalid(format!("Invalid json data: {start}: {reason} at offset {offset}"))
}

/// The start of a body for an error message.
pub(super) fn excerpt(body: &[u8]) -> String {
    const MOST: usize = 100;
    let start = body.get(..MOST).unwrap_or(body);
    let more = if body.len() > MOST { "…" } else { "" };
    format!("{}{more}", String::from_utf8_lossy(start))
}
