//! The one error type of the program, and the HTTP and gRPC status of each kind of error.
//!
//! An [`Error`] has a [`Code`] for programs, a message for the user (which input is wrong, why, and
//! how to fix it) and an optional cause for the log. The JSON around the message belongs to the
//! protocols.

use std::borrow::Cow;
use std::fmt;

/// Short-hand for results that fail with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// HTTP statuses of [`Error::overloaded`] and [`Error::oversized`].
const OVERLOADED: u16 = 503;
const OVERSIZED: u16 = 413;

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The kind of a failure. The set is that of gRPC and TensorFlow, so a status from a runtime passes
/// through unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// The caller cancelled the request.
    Cancelled,
    /// A failure of no more specific kind, usually from a runtime.
    Unknown,
    /// The request itself is invalid, and stays invalid if it is sent again.
    InvalidArgument,
    /// The deadline passed before a response was ready.
    DeadlineExceeded,
    /// The model, version or label does not exist.
    NotFound,
    /// What the request would create exists already.
    AlreadyExists,
    /// The caller is authenticated and lacks the permission.
    PermissionDenied,
    /// A quota, a queue or a memory budget is exhausted.
    ResourceExhausted,
    /// The request is valid, but the server is not in the state that it requires.
    FailedPrecondition,
    /// The operation was interrupted, for example by a concurrent change.
    Aborted,
    /// A value is outside the valid range.
    OutOfRange,
    /// Not implemented, or not included in this build.
    Unimplemented,
    /// A bug in this program or in a runtime.
    Internal,
    /// Temporarily unavailable: loading, draining or overloaded. A retry may succeed.
    Unavailable,
    /// Data on disk is corrupt.
    DataLoss,
    /// The request has no valid credentials.
    Unauthenticated,
}

impl Code {
    /// The status of this failure over HTTP, as TensorFlow Serving maps it
    /// (`util/net_http/…/http_rest_api_util`: 499 for a cancelled call, 400 for a failed
    /// precondition).
    #[must_use]
    pub fn http(self) -> u16 {
        match self {
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
            Code::Unauthenticated => 401,
            Code::PermissionDenied => 403,
            Code::NotFound => 404,
            Code::AlreadyExists | Code::Aborted => 409,
            Code::ResourceExhausted => 429,
            Code::Cancelled => 499,
            Code::Unknown | Code::Internal | Code::DataLoss => 500,
            Code::Unimplemented => 501,
            Code::Unavailable => 503,
            Code::DeadlineExceeded => 504,
        }
    }

    /// The code of a failed file operation.
    #[must_use]
    #[allow(clippy::wildcard_enum_match_arm)] // Not ours, and open-ended.
    pub fn of_io(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound => Code::NotFound,
            std::io::ErrorKind::PermissionDenied => Code::PermissionDenied,
            // Invalid UTF-8 in a text file.
            std::io::ErrorKind::InvalidData => Code::InvalidArgument,
            _ => Code::Unavailable,
        }
    }

    /// Whether the server, its model or its disk is at fault, as opposed to the request, its
    /// deadline or the load. The server logs such failures for the operator.
    #[must_use]
    pub fn is_servers_fault(self) -> bool {
        matches!(self, Code::Internal | Code::Unknown | Code::DataLoss)
    }

    /// The number of this failure over gRPC, which is also TensorFlow's `TF_Code`.
    #[must_use]
    pub fn grpc(self) -> u8 {
        match self {
            Code::Cancelled => 1,
            Code::Unknown => 2,
            Code::InvalidArgument => 3,
            Code::DeadlineExceeded => 4,
            Code::NotFound => 5,
            Code::AlreadyExists => 6,
            Code::PermissionDenied => 7,
            Code::ResourceExhausted => 8,
            Code::FailedPrecondition => 9,
            Code::Aborted => 10,
            Code::OutOfRange => 11,
            Code::Unimplemented => 12,
            Code::Internal => 13,
            Code::Unavailable => 14,
            Code::DataLoss => 15,
            Code::Unauthenticated => 16,
        }
    }

    /// The code with the gRPC number `number`; [`Code::Unknown`] for a number outside the set.
    #[must_use]
    pub fn from_grpc(number: i32) -> Self {
        match number {
            1 => Code::Cancelled,
            3 => Code::InvalidArgument,
            4 => Code::DeadlineExceeded,
            5 => Code::NotFound,
            6 => Code::AlreadyExists,
            7 => Code::PermissionDenied,
            8 => Code::ResourceExhausted,
            9 => Code::FailedPrecondition,
            10 => Code::Aborted,
            11 => Code::OutOfRange,
            12 => Code::Unimplemented,
            13 => Code::Internal,
            14 => Code::Unavailable,
            15 => Code::DataLoss,
            16 => Code::Unauthenticated,
            _ => Code::Unknown,
        }
    }

    /// The name of the gRPC status `number`: `OK` for 0, otherwise that of the code.
    #[must_use]
    pub fn status_name(number: i32) -> &'static str {
        if number == 0 { "OK" } else { Code::from_grpc(number).name() }
    }

    /// The name as gRPC and TensorFlow write it, for example `INVALID_ARGUMENT`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// Why a request is not answered that the server could answer under less load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// The batch queue of its signature is full.
    QueueFull,
    /// As many requests of its model are in progress as are allowed.
    ConcurrencyLimit,
    /// Too many requests are in pre- or post-processing.
    StepsFull,
    /// Too many asynchronous requests wait.
    AsyncFull,
    /// Other requests use the memory for requests.
    Memory,
    /// Its deadline passed before it ran.
    DeadlineInQueue,
    /// Its deadline passed at any other time.
    Deadline,
}

impl Shed {
    /// All reasons.
    pub const ALL: [Shed; 7] = [
        Shed::QueueFull,
        Shed::ConcurrencyLimit,
        Shed::StepsFull,
        Shed::AsyncFull,
        Shed::Memory,
        Shed::DeadlineInQueue,
        Shed::Deadline,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Shed::QueueFull => "queue_full",
            Shed::ConcurrencyLimit => "concurrency_limit",
            Shed::StepsFull => "steps_full",
            Shed::AsyncFull => "async_full",
            Shed::Memory => "memory",
            Shed::DeadlineInQueue => "deadline_in_queue",
            Shed::Deadline => "deadline",
        }
    }
}

/// A failure: code, message for the user, cause for the log.
///
/// An `Error` is boxed, so that a `Result<T>` on the request path is no larger than a `T` and a
/// pointer.
pub struct Error {
    inner: Box<ErrorInner>,
}

struct ErrorInner {
    code: Code,
    message: Cow<'static, str>,
    /// The HTTP status, if the code alone does not determine it.
    http: Option<u16>,
    shed: Option<Shed>,
    source: Option<Cause>,
}

impl Error {
    /// An error with this code and this message for the user.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        let (message, http, shed, source) = (message.into(), None, None, None);
        Error { inner: Box::new(ErrorInner { code, message, http, shed, source }) }
    }

    /// This error with its cause, which goes to the log and never to the user.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Cause>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// This error with its message prefixed, as in `context: message`.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.inner.message = format!("{context}: {}", self.inner.message).into();
        self
    }

    /// This error of a request that is not answered because of the load.
    #[must_use]
    pub fn shed_for(mut self, reason: Shed) -> Self {
        self.inner.shed = Some(reason);
        self
    }

    /// Why the request is not answered, if that is because of the load.
    #[must_use]
    pub fn shed(&self) -> Option<Shed> {
        let late = (self.inner.code == Code::DeadlineExceeded).then_some(Shed::Deadline);
        self.inner.shed.or(late)
    }

    /// The kind of failure.
    #[must_use]
    pub fn code(&self) -> Code {
        self.inner.code
    }

    /// The message for the user.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// The status over HTTP: that of its code, except for [`Error::overloaded`] and
    /// [`Error::oversized`].
    #[must_use]
    pub fn http_status(&self) -> u16 {
        self.inner.http.unwrap_or(self.inner.code.http())
    }

    /// Whether it is an [`Error::overloaded`], after which the client may try again.
    #[must_use]
    pub fn is_overload(&self) -> bool {
        self.inner.http == Some(OVERLOADED)
    }

    /// A copy without the cause, for a failure that several callers receive.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let mut copy = Error::new(self.inner.code, self.inner.message.clone());
        copy.inner.http = self.inner.http;
        copy.inner.shed = self.inner.shed;
        copy
    }

    /// [`Code::ResourceExhausted`], over HTTP 503: the server has no memory for the request now.
    pub fn overloaded(message: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Error::new(Code::ResourceExhausted, message);
        error.inner.http = Some(OVERLOADED);
        error.shed_for(Shed::Memory)
    }

    /// [`Code::ResourceExhausted`], over HTTP 413: the server can never have enough memory for the
    /// request.
    pub fn oversized(message: impl Into<Cow<'static, str>>) -> Self {
        let mut error = Error::new(Code::ResourceExhausted, message);
        error.inner.http = Some(OVERSIZED);
        error
    }

    /// [`Code::InvalidArgument`].
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(Code::InvalidArgument, message)
    }

    /// [`Code::NotFound`].
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(Code::NotFound, message)
    }

    /// [`Code::FailedPrecondition`].
    pub fn precondition(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(Code::FailedPrecondition, message)
    }

    /// [`Code::DataLoss`]: a file is damaged.
    pub fn damaged(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(Code::DataLoss, message)
    }

    /// [`Code::Unimplemented`]: what an intact file or request has, and is not supported.
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(Code::Unimplemented, message)
    }

    /// [`Code::Internal`].
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(Code::Internal, message)
    }

    /// [`Code::Unavailable`].
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Error::new(Code::Unavailable, message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("code", &self.inner.code)
            .field("message", &self.inner.message)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_deref().map(|cause| cause as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_numbers_round_trip() {
        for number in 1..=16 {
            assert_eq!(i32::from(Code::from_grpc(number).grpc()), number);
        }
        assert_eq!(Code::from_grpc(99), Code::Unknown);
    }

    #[test]
    fn context_goes_before_the_message_and_keeps_the_code() {
        let error = Error::not_found("no such file").context("model digits");
        assert_eq!(error.message(), "model digits: no such file");
        assert_eq!(error.code(), Code::NotFound);
    }
}
