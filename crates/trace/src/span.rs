//! Spans: the steps of requests, and where they go.

use std::borrow::Cow;
use std::time::{Instant, SystemTime};

use crate::context::{SpanId, TraceContext};

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// Text.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        AttributeValue::Text(Cow::Borrowed(text))
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        AttributeValue::Text(Cow::Owned(text))
    }
}

impl From<Cow<'static, str>> for AttributeValue {
    fn from(text: Cow<'static, str>) -> Self {
        AttributeValue::Text(text)
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        AttributeValue::Number(number)
    }
}

impl From<usize> for AttributeValue {
    fn from(number: usize) -> Self {
        AttributeValue::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

/// What a span stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// The answer to a request from outside.
    Server,
    /// A step within the server.
    Internal,
}

/// A step of a request.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its name: one of a few, or of as many as there are routes.
    pub name: Cow<'static, str>,
    /// What it stands for.
    pub kind: SpanKind,
    /// Its identifiers.
    pub context: TraceContext,
    /// The span of the same trace that it is a part of.
    pub parent: Option<SpanId>,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// What else is known of it, by the names of OpenTelemetry's semantic conventions.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// Spans of other traces that it has to do with.
    pub links: Vec<TraceContext>,
    /// The reason why the span failed, if it did; empty if there is none to tell.
    pub error: Option<Cow<'static, str>>,
}

impl Span {
    /// A span that begins a trace of its own.
    #[must_use]
    pub fn root(name: &'static str, context: TraceContext, start: Instant, end: Instant) -> Self {
        Span {
            name: Cow::Borrowed(name),
            kind: SpanKind::Internal,
            context,
            parent: None,
            start,
            end,
            attributes: Vec::new(),
            links: Vec::new(),
            error: None,
        }
    }

    /// This span with an attribute.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<AttributeValue>) -> Self {
        self.attributes.push((name, value.into()));
        self
    }

    /// This span with an attribute, if there is a value.
    #[must_use]
    pub fn with_any(self, name: &'static str, value: Option<impl Into<AttributeValue>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// This span, failed if there is an error.
    #[must_use]
    pub fn failed(mut self, error: Option<Cow<'static, str>>) -> Self {
        self.error = error;
        self
    }
}

/// The spans of a request that has been answered.
pub struct FinishedTrace {
    /// The span of the whole request, and its steps.
    pub spans: Vec<Span>,
    /// The caller's span.
    pub parent: Option<TraceContext>,
    /// The caller's `tracestate`.
    pub state: Option<Box<str>>,
    /// How many spans were too many.
    pub dropped: usize,
    pub(crate) started: (Instant, SystemTime),
}

impl FinishedTrace {
    /// The time of day of an instant.
    #[must_use]
    pub fn time_of(&self, instant: Instant) -> SystemTime {
        let (start, began) = self.started;
        match instant.checked_duration_since(start) {
            Some(later) => began + later,
            None => began - start.saturating_duration_since(instant),
        }
    }
}

/// Takes the spans of requests. Must not block.
pub trait SpanSink: Send + Sync {
    /// Takes the spans of a request that has been answered.
    fn take(&self, finished: FinishedTrace);
}
