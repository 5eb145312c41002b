//! Spans of requests as those of OpenTelemetry's SDK.

use std::borrow::Cow;

use opentelemetry::trace::{
    Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use tensorserve_trace::{self as trace, FinishedTrace, Span, TraceContext};

/// The spans of a finished trace.
pub(super) fn span_data<'t>(
    mut finished: FinishedTrace,
    scope: &'t InstrumentationScope,
) -> impl Iterator<Item = SpanData> + use<'t> {
    let spans = std::mem::take(&mut finished.spans);
    // A caller can send anything; what is not valid is left out.
    let state = finished.state.as_deref().and_then(|state| state.parse().ok());
    let state: TraceState = state.unwrap_or_default();
    let of_request = spans.first().map(|server| server.context.trace);
    spans.into_iter().enumerate().map(move |(index, span)| {
        let is_of_request = Some(span.context.trace) == of_request;
        let state = if is_of_request { state.clone() } else { TraceState::default() };
        let (start_time, end_time) = (finished.time_of(span.start), finished.time_of(span.end));
        let dropped = if index == 0 { finished.dropped } else { 0 };
        let attributes = span.attributes.iter().map(|(key, value)| key_value(key, value));
        let mut attributes: Vec<KeyValue> = attributes.collect();
        if dropped > 0 {
            let dropped = i64::try_from(dropped).unwrap_or(i64::MAX);
            attributes.push(KeyValue::new("tensorserve.dropped_spans", dropped));
        }
        let mut links = SpanLinks::default();
        links.links = span.links.iter().map(|to| link(*to)).collect();
        SpanData {
            span_context: context(span.context, false, state),
            parent_span_id: span.parent.map_or(SpanId::INVALID, |id| SpanId::from_bytes(id.0)),
            parent_span_is_remote: index == 0 && finished.parent.is_some(),
            span_kind: kind(&span),
            status: status(&span),
            name: span.name,
            start_time,
            end_time,
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            instrumentation_scope: scope.clone(),
        }
    })
}

fn kind(span: &Span) -> SpanKind {
    match span.kind {
        trace::SpanKind::Server => SpanKind::Server,
        trace::SpanKind::Internal => SpanKind::Internal,
    }
}

fn status(span: &Span) -> Status {
    match &span.error {
        None => Status::Unset,
        Some(error) => Status::Error { description: error.clone() },
    }
}

fn context(context: TraceContext, is_remote: bool, state: TraceState) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(context.trace.0), SpanId::from_bytes(context.span.0));
    SpanContext::new(trace, span, TraceFlags::new(context.flags()), is_remote, state)
}

fn link(to: TraceContext) -> Link {
    Link::new(context(to, false, TraceState::default()), Vec::new(), 0)
}

fn key_value(key: &'static str, value: &trace::AttributeValue) -> KeyValue {
    let value = match value {
        trace::AttributeValue::Text(Cow::Borrowed(text)) => Value::from(*text),
        trace::AttributeValue::Text(Cow::Owned(text)) => Value::from(text.clone()),
        trace::AttributeValue::Number(number) => Value::from(*number),
    };
    KeyValue::new(key, value)
}
