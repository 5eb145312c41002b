//! The wires clients speak. Each protocol turns bytes into an
//! [`InferRequest`](crate::engine::InferRequest) and an answer into bytes, owns its JSON and its
//! error texts, and knows models only through the [`Engine`](crate::engine::Engine).
//!
//! No protocol knows sockets or the HTTP library: a request comes in as method, path and body,
//! and goes out as a [`Reply`].

use bytes::Bytes;

use crate::engine::Served;
use crate::error::Error;

pub mod simple;
pub mod tfs;

/// An HTTP answer.
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Value of the `Content-Type` header.
    pub content_type: &'static str,
    /// The body.
    pub body: Bytes,
    /// The inference it answers, if it was one.
    pub served: Option<Served>,
    /// The failure it tells of, for the log.
    pub error: Option<Error>,
}

/// The content type of most answers.
pub const JSON: &str = "application/json";

impl Reply {
    /// An answer with this body and status 200.
    pub fn ok(content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Reply { status: 200, content_type, body: body.into(), served: None, error: None }
    }

    /// The same answer with another status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// The same answer, counted as an inference.
    #[must_use]
    pub fn with_served(mut self, served: Served) -> Self {
        self.served = Some(served);
        self
    }
}
