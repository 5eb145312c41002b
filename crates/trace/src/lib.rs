//! What is recorded of single requests: the spans of a distributed trace, and facts for the access log.
//!
//! Most requests are not recorded and pay for one look at their headers. One that is has a
//! [`RequestTrace`], which belongs to the thread that works for the request ([`Traced`], [`current`])
//! like its memory budget, so that protocols and decoders need not pass it on. [`context`] reads and
//! writes the W3C headers, [`sampler`] decides which requests are recorded. Where spans go is the
//! decision of a [`SpanSink`].
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod context;
mod observer;
mod request;
mod sampler;
mod span;

pub use self::context::{
    SpanId, TRACEPARENT, TRACESTATE, TraceContext, TraceId, TraceParent, random,
};
pub use self::observer::Observer;
pub use self::request::{RequestFacts, RequestTrace, Traced, current, recording};
pub use self::sampler::{Rate, TraceSampler};
pub use self::span::{AttributeValue, FinishedTrace, Span, SpanKind, SpanSink};
