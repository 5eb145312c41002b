//! Errors as MLflow's scoring server reports them: `{"error_code": …, "message": …}`.

use std::fmt;

use tensorserve_codec::json::write;
use tensorserve_protocol::{JSON, Reply, bounded};
use tensorserve_tensor::error::{Code, Error};
use tensorserve_tensor::names::limited;

/// Marks an error of a request that does not have the inputs of the model's signature.
#[derive(Debug)]
struct SchemaViolation;

impl fmt::Display for SchemaViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request does not match the model's signature")
    }
}

impl std::error::Error for SchemaViolation {}

/// Marks an error of a request's parameters.
#[derive(Debug)]
struct InvalidParameter;

impl fmt::Display for InvalidParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a parameter of the request is not valid")
    }
}

impl std::error::Error for InvalidParameter {}

/// Why values cannot be read.
#[derive(Debug)]
pub(super) enum Reason {
    /// What is wrong with them.
    Wrong(String),
    /// The request ends for reasons of its own, of which memory is one: it keeps the status that it has elsewhere.
    Refused(Error),
}

impl Reason {
    /// The error of the request, whose message `wrong` makes of what is wrong.
    pub(super) fn into_error(self, wrong: impl FnOnce(String) -> Error) -> Error {
        match self {
            Reason::Wrong(why) => wrong(why),
            Reason::Refused(error) => error,
        }
    }
}

impl From<String> for Reason {
    fn from(why: String) -> Self {
        Reason::Wrong(why)
    }
}

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        match error.code() {
            Code::ResourceExhausted | Code::DeadlineExceeded | Code::Cancelled => {
                Reason::Refused(error)
            }
            Code::Unknown
            | Code::Internal
            | Code::DataLoss
            | Code::NotFound
            | Code::Unimplemented
            | Code::Unavailable
            | Code::Aborted
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::OutOfRange => Reason::Wrong(error.message().to_owned()),
        }
    }
}

/// The error of a payload in no valid form.
pub(super) fn invalid_input(message: impl fmt::Display) -> Error {
    Error::invalid(limited(format_args!("Invalid input. {message}")))
}

/// The error of a request that does not match the signature.
pub(super) fn schema(message: impl fmt::Display) -> Error {
    let message = format_args!("Failed to enforce schema. Error: {message}");
    Error::invalid(limited(message)).with_source(SchemaViolation)
}

/// The error of a parameter.
pub(super) fn parameter(message: String) -> Error {
    Error::invalid(message).with_source(InvalidParameter)
}

/// The error of inputs that the model does not take.
pub(super) fn unexpected(reason: impl fmt::Display) -> Error {
    Error::invalid(limited(format_args!(
        "Encountered an unexpected error while evaluating the model. Verify that the serialized \
         input Dataframe is compatible with the model for inference. Error: {reason}"
    )))
}

/// The members that classify an error of the request.
const SCHEMA_CLASS: &[u8] =
    b", \"sqlstate\": \"KAM01\", \"error_class\": \"SCHEMA_ENFORCEMENT_FAILED\"";
const REQUEST_CLASS: &[u8] =
    b", \"sqlstate\": \"KAM00\", \"error_class\": \"INVALID_PARAMETER_VALUE\"";

/// The response to a request that failed.
pub(super) fn reply(error: Error) -> Reply {
    use std::error::Error as _;
    let is_schema = error.source().is_some_and(|source| source.is::<SchemaViolation>());
    let is_parameter = error.source().is_some_and(|source| source.is::<InvalidParameter>());
    let (status, name) = match error.code() {
        _ if is_schema || is_parameter => (400, "INVALID_PARAMETER_VALUE"),
        Code::Unknown | Code::Internal | Code::DataLoss => (500, "INTERNAL_ERROR"),
        Code::NotFound => (404, "RESOURCE_DOES_NOT_EXIST"),
        Code::Unimplemented => (501, "NOT_IMPLEMENTED"),
        Code::Unavailable => (503, "TEMPORARILY_UNAVAILABLE"),
        Code::DeadlineExceeded => (504, "DEADLINE_EXCEEDED"),
        Code::ResourceExhausted => (429, "RESOURCE_EXHAUSTED"),
        Code::Cancelled => (499, "CANCELLED"),
        Code::Aborted | Code::AlreadyExists => (409, "ABORTED"),
        Code::PermissionDenied => (403, "PERMISSION_DENIED"),
        Code::Unauthenticated => (401, "UNAUTHENTICATED"),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => (400, "BAD_REQUEST"),
    };
    // The server's own overload and size limits have statuses of their own.
    let status =
        if matches!(error.http_status(), 413 | 503) { error.http_status() } else { status };
    let mut body = format!("{{\"error_code\": \"{name}\", \"message\": ").into_bytes();
    write::string(bounded(error.message()).as_bytes(), &mut body);
    if is_schema {
        body.extend_from_slice(SCHEMA_CLASS);
    } else if status == 400 {
        body.extend_from_slice(REQUEST_CLASS);
    }
    body.push(b'}');
    let mut reply = Reply::ok(JSON, body).with_status(status);
    reply.error = Some(error);
    reply
}

/// A response with text, as the scoring server sends for other types of content.
pub(super) fn unsupported_media(message: String) -> Reply {
    let mut reply = Reply::ok("text/plain; charset=utf-8", message.clone()).with_status(415);
    reply.error = Some(Error::invalid(message));
    reply
}
