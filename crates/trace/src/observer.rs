//! The decision which requests are recorded, and where their spans go.

use std::sync::Arc;
use std::time::Instant;

use crate::context::{SpanId, TraceContext, TraceId, passable_state};
use crate::request::RequestTrace;
use crate::sampler::{Rate, TraceSampler};
use crate::span::SpanSink;

/// Decides which requests are recorded. Cheap to clone.
#[derive(Clone, Default)]
pub struct Observer {
    tracing: Option<(TraceSampler, Arc<dyn SpanSink>)>,
    access_log: Option<Rate>,
}

impl Observer {
    /// An observer with traces and an access log, or with one of them. Without either it records
    /// nothing.
    #[must_use]
    pub fn new(
        tracing: Option<(TraceSampler, Arc<dyn SpanSink>)>,
        access_log: Option<Rate>,
    ) -> Self {
        Observer { tracing, access_log }
    }

    /// The record of a request that began at `start`, if it is recorded. `parent` and `state` read its
    /// headers `traceparent` and `tracestate`, the latter only if it is needed.
    pub fn begin<'h>(
        &self,
        start: Instant,
        parent: impl FnOnce() -> Option<&'h [u8]>,
        state: impl FnOnce() -> Option<&'h [u8]>,
    ) -> Option<Arc<RequestTrace>> {
        let is_logged = self.access_log.is_some_and(Rate::hits);
        if !is_logged && self.tracing.is_none() {
            return None;
        }
        let parent = parent().and_then(TraceContext::parse);
        let trace = parent.map_or_else(TraceId::random, |parent| parent.trace);
        let sampled = self.tracing.as_ref().filter(|(s, _)| s.samples(trace, parent.as_ref()));
        if !is_logged && sampled.is_none() {
            return None;
        }
        let sink = sampled.map(|(_, sink)| Arc::clone(sink));
        let context = TraceContext {
            trace,
            span: SpanId::random(),
            sampled: sink.is_some(),
            random: parent.is_none_or(|parent| parent.random),
        };
        let state = parent.and_then(|_| state()).and_then(passable_state);
        let trace = RequestTrace::begin(context, parent, state, is_logged, sink, start);
        Some(Arc::new(trace))
    }
}
