//! HTTP responses of protocols.

use std::borrow::Cow;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;

use tensorserve_core::engine::{InferenceOutcome, RunTiming};
use tensorserve_tensor::error::Error;
use tensorserve_tensor::names::beginning;

/// An HTTP response.
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Value of the `Content-Type` header.
    pub content_type: Cow<'static, str>,
    /// Further headers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Bytes,
    /// Parts of the body that follow, which need not be copied together.
    pub parts: Vec<Bytes>,
    /// Further pieces of the body, sent when available; `None` if the body is complete.
    pub more: Option<Chunks>,
    /// The time that each stage of an inference took, for `Server-Timing`.
    pub timing: Option<RunTiming>,
    /// The error that it reports, for the log.
    pub error: Option<Error>,
    /// Work that continues after the response; a graceful shutdown waits for it.
    pub background: Option<Background>,
}

/// A body that is sent piece by piece.
pub type Chunks = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// Work that continues after a response.
pub type Background = Pin<Box<dyn Future<Output = ()>>>;

/// The content type of most responses.
pub const JSON: &str = "application/json";

/// The content type of one NumPy array.
pub const NPY: &str = "application/x-npy";

/// The header that lists the methods of a path, in the response to any other method.
pub const ALLOW: &str = "allow";

impl Reply {
    /// A response with this body and status 200.
    pub fn ok(content_type: impl Into<Cow<'static, str>>, body: impl Into<Bytes>) -> Self {
        let content_type = content_type.into();
        Reply {
            status: 200,
            content_type,
            headers: Vec::new(),
            body: body.into(),
            parts: Vec::new(),
            more: None,
            timing: None,
            error: None,
            background: None,
        }
    }

    /// An error as `{"error":"TEXT"}`, the format of all routes that no reference server has.
    #[must_use]
    pub fn error(error: Error, status: u16) -> Self {
        let message = serde_json::Value::from(&*bounded(error.message()));
        let mut reply = Reply::ok(JSON, format!("{{\"error\":{message}}}\n")).with_status(status);
        reply.error = Some(error);
        reply
    }

    /// This response with one more header, `name` in lower case.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// This response with another status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// This response with the timing of its inference.
    #[must_use]
    pub fn with_timing(mut self, timing: Option<RunTiming>) -> Self {
        self.timing = timing;
        self
    }
}

/// What a handler returns: a response, or why there is none. How errors look is a matter of the group of its route
/// ([`Routes::group`](crate::Routes::group)).
pub type Answer = Result<Reply, Failure>;

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Ok(reply)
    }
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        Err(failure)
    }
}

/// Why a handler has no response: an error, which `?` makes one of, and what its response says beside it.
#[derive(Debug)]
pub struct Failure {
    /// The error.
    pub error: Error,
    /// The status code; `None` for that of the error.
    pub status: Option<u16>,
    /// Further headers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The time that each stage of an inference took, for `Server-Timing`.
    pub timing: Option<RunTiming>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { error, status: None, headers: Vec::new(), timing: None }
    }
}

impl Failure {
    /// An error whose response has this status code.
    #[must_use]
    pub fn new(error: Error, status: u16) -> Self {
        Failure { status: Some(status), ..Failure::from(error) }
    }

    /// This failure with one more header, `name` in lower case.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// This failure with the timing of its inference.
    #[must_use]
    pub fn with_timing(mut self, timing: Option<RunTiming>) -> Self {
        self.timing = timing;
        self
    }
}

/// The answer to an inference, whose response `reply` makes of what was encoded.
///
/// # Errors
/// That of the inference.
pub fn inferred<T>(outcome: InferenceOutcome<T>, reply: impl FnOnce(T) -> Reply) -> Answer {
    let InferenceOutcome { answer, timing, .. } = outcome;
    match answer {
        Ok(encoded) => Ok(reply(encoded).with_timing(timing)),
        Err(error) => Err(Failure::from(error).with_timing(timing)),
    }
}

/// What the answers of a group of routes have in common: those of its handlers, and those of the server in their
/// place (without a permission, with a payload that is too large, at a path that does not exist).
#[derive(Clone, Copy)]
pub struct AnswerStyle {
    pub(crate) on_error: ErrorEncoder,
    pub(crate) on_reply: Option<fn(&mut Reply)>,
}

/// Writes an error with its HTTP status in the format of a protocol.
pub type ErrorEncoder = fn(Error, u16) -> Reply;

impl AnswerStyle {
    /// Writes errors with `on_error`.
    #[must_use]
    pub const fn new(on_error: ErrorEncoder) -> Self {
        AnswerStyle { on_error, on_reply: None }
    }

    /// The response of an answer, whose error is written in the format of the group.
    #[must_use]
    pub fn render(&self, answer: Answer) -> Reply {
        let Failure { error, status, headers, timing } = match answer {
            Ok(reply) => return reply,
            Err(failure) => failure,
        };
        let status = status.unwrap_or_else(|| error.http_status());
        let mut reply = (self.on_error)(error, status).with_timing(timing);
        reply.headers.extend(headers);
        reply
    }

    /// Adds what every response of the group has, just before it is sent.
    pub fn finish(&self, reply: &mut Reply) {
        if let Some(on_reply) = self.on_reply {
            on_reply(reply);
        }
    }
}

/// The most bytes of an error message in a response.
pub const LONGEST_ERROR: usize = 4096;

/// An error message for a response. Errors quote parts of the request, which can be of any size. The
/// middle of a message that is too long is left out: its start names the mistake, its end the fix.
#[must_use]
pub fn bounded(message: &str) -> Cow<'_, str> {
    if message.len() <= LONGEST_ERROR {
        return Cow::Borrowed(message);
    }
    let is_boundary = |at: &usize| message.is_char_boundary(*at);
    let head = beginning(message, LONGEST_ERROR / 2);
    let end = message.len() - LONGEST_ERROR / 2;
    let end = (end..message.len()).find(is_boundary).unwrap_or(message.len());
    let tail = message.get(end..).unwrap_or_default();
    let left_out = end - head.len();
    Cow::Owned(format!("{head}… ({left_out} bytes left out) …{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_errors_lose_their_middle() {
        assert_eq!(bounded("short"), "short");
        let exact = "a".repeat(LONGEST_ERROR);
        assert_eq!(bounded(&exact), exact);
        // Characters of three bytes, so that the cuts must respect character boundaries.
        let long = format!("start {}end", "€".repeat(100_000));
        let cut = bounded(&long);
        assert!(cut.len() < LONGEST_ERROR + 100, "{}", cut.len());
        assert!(cut.starts_with("start €") && cut.ends_with("€end"), "{cut}");
        assert!(cut.contains("bytes left out"), "{cut}");
    }
}
