//! One recorded request: its spans, and facts about it.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use crate::context::TraceContext;
use crate::span::{FinishedTrace, Span, SpanKind, SpanSink};

/// The most spans of one request: a request that is split into many batches has one for each. More
/// are counted only.
const MOST_SPANS: usize = 128;

/// Facts about a request, for its server span and for the access log.
#[derive(Clone, Debug, Default)]
pub struct RequestFacts {
    /// The pattern of its path.
    pub route: Option<String>,
    /// The model that it ran on.
    pub model: Option<Arc<str>>,
    /// The version of that model.
    pub version: Option<i64>,
    /// The signature that it ran.
    pub signature: Option<String>,
    /// The bytes of its payload.
    pub request_bytes: u64,
    /// How long it waited for its batch, if it ran.
    pub queue_delay: Option<Duration>,
    /// How long its batch ran.
    pub run: Option<Duration>,
}

/// A request that is recorded: as part of a trace, for the access log, or both.
pub struct RequestTrace {
    context: TraceContext,
    parent: Option<TraceContext>,
    state: Option<Box<str>>,
    is_logged: bool,
    sink: Option<Arc<dyn SpanSink>>,
    start: Instant,
    began: SystemTime,
    record: Mutex<TraceRecord>,
}

#[derive(Default)]
struct TraceRecord {
    facts: RequestFacts,
    spans: Vec<Span>,
    dropped: usize,
    is_finished: bool,
}

impl RequestTrace {
    /// The record of a request that began at `start`, as a child of `parent`.
    pub(crate) fn begin(
        context: TraceContext,
        parent: Option<TraceContext>,
        state: Option<&str>,
        is_logged: bool,
        sink: Option<Arc<dyn SpanSink>>,
        start: Instant,
    ) -> Self {
        RequestTrace {
            context,
            parent,
            state: state.map(Box::from),
            is_logged,
            sink,
            start,
            began: SystemTime::now() - start.elapsed(),
            record: Mutex::default(),
        }
    }

    /// Its server span.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// The caller's `tracestate`.
    #[must_use]
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Whether it becomes part of a trace.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.sink.is_some()
    }

    /// Whether it belongs into the access log.
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.is_logged
    }

    /// Whether its trace is known outside of this process, or will be.
    #[must_use]
    pub fn has_trace(&self) -> bool {
        self.is_recording() || self.parent.is_some()
    }

    /// When it began.
    #[must_use]
    pub fn start(&self) -> Instant {
        self.start
    }

    /// Does `work`, which is for this request.
    pub fn enter<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        let _entered = RequestTraceGuard::new(self);
        work()
    }

    fn record(&self) -> MutexGuard<'_, TraceRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the facts about it.
    pub fn note(&self, change: impl FnOnce(&mut RequestFacts)) {
        change(&mut self.record().facts);
    }

    /// The facts about it so far.
    #[must_use]
    pub fn facts(&self) -> RequestFacts {
        self.record().facts.clone()
    }

    /// A step of it, to be added when it is complete.
    #[must_use]
    pub fn child(&self, name: &'static str, start: Instant, end: Instant) -> Span {
        let parent = Some(self.context.span);
        Span { parent, ..Span::root(name, self.context.child(), start, end) }
    }

    /// Adds a span. One of a step that ends after the answer is too late, and is dropped.
    pub fn add(&self, span: Span) {
        let mut record = self.record();
        if !self.is_recording() || record.is_finished {
            return;
        }
        if record.spans.len() >= MOST_SPANS {
            record.dropped += 1;
            return;
        }
        record.spans.push(span);
    }

    /// Ends the request: its spans, with `server` first, go to the sink.
    pub fn finish(&self, server: impl FnOnce(Span, &RequestFacts) -> Span) {
        let Some(sink) = &self.sink else {
            return;
        };
        let mut record = self.record();
        if record.is_finished {
            return;
        }
        record.is_finished = true;
        let parent = self.parent.map(|parent| parent.span);
        let span = Span::root("request", self.context, self.start, Instant::now());
        let span = Span { parent, kind: SpanKind::Server, ..span };
        let mut spans = vec![server(span, &record.facts)];
        spans.append(&mut record.spans);
        let dropped = record.dropped;
        drop(record);
        sink.take(FinishedTrace {
            spans,
            parent: self.parent,
            state: self.state.clone(),
            dropped,
            started: (self.start, self.began),
        });
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<RequestTrace>>> = const { RefCell::new(None) };
}

/// The record of the request that this thread works for, if it is recorded.
#[must_use]
pub fn current() -> Option<Arc<RequestTrace>> {
    CURRENT.with_borrow(Option::clone)
}

/// The record of the request that this thread works for, if the request is part of a trace.
#[must_use]
pub fn recording() -> Option<Arc<RequestTrace>> {
    CURRENT.with_borrow(|current| current.as_ref().filter(|trace| trace.is_recording()).cloned())
}

/// Restores the record before, also if the work panics.
struct RequestTraceGuard(Option<Arc<RequestTrace>>);

impl RequestTraceGuard {
    fn new(trace: &Arc<RequestTrace>) -> Self {
        RequestTraceGuard(CURRENT.replace(Some(Arc::clone(trace))))
    }
}

impl Drop for RequestTraceGuard {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// The work for a request that may be recorded.
pub struct Traced<F> {
    trace: Option<Arc<RequestTrace>>,
    work: F,
}

impl<F> Traced<F> {
    /// `work`, whose thread works for `trace`.
    pub fn new(trace: Option<Arc<RequestTrace>>, work: F) -> Self {
        Traced { trace, work }
    }
}

impl<F: Future + Unpin> Future for Traced<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let _entered = this.trace.as_ref().map(RequestTraceGuard::new);
        Pin::new(&mut this.work).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Observer;
    use crate::sampler::{Rate, TraceSampler};

    #[derive(Default)]
    struct Kept(Mutex<Vec<FinishedTrace>>);

    impl SpanSink for Kept {
        fn take(&self, finished: FinishedTrace) {
            self.0.lock().unwrap().push(finished);
        }
    }

    fn observer(kept: &Arc<Kept>) -> Observer {
        let sampler = TraceSampler { rate: Rate::ALL, parent_based: true };
        Observer::new(Some((sampler, kept.clone())), None)
    }

    const PARENT: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn spans_are_children_of_the_server_span() {
        let kept = Arc::new(Kept::default());
        let start = Instant::now();
        let state = || Some(&b"a=1"[..]);
        let trace = observer(&kept).begin(start, || Some(PARENT), state).unwrap();
        assert!(trace.is_recording() && !trace.is_logged());
        trace.note(|facts| facts.route = Some("/x".to_owned()));
        trace.add(
            trace.child("decode", start, start + Duration::from_millis(2)).with("rows", 3_i64),
        );
        trace.finish(|span, facts| {
            Span { name: facts.route.clone().unwrap().into(), ..span }.with("a", "b")
        });
        // Too late, and again.
        trace.add(trace.child("encode", start, start));
        trace.finish(|span, _| span);
        let kept = kept.0.lock().unwrap();
        let [finished] = &kept[..] else { panic!("{} traces", kept.len()) };
        let [server, decode] = &finished.spans[..] else { panic!("{}", finished.spans.len()) };
        let caller = TraceContext::parse(PARENT).unwrap();
        assert_eq!((finished.parent, finished.state.as_deref()), (Some(caller), Some("a=1")));
        assert_eq!((server.name.as_ref(), server.kind), ("/x", SpanKind::Server));
        assert_eq!((server.parent, server.context.trace), (Some(caller.span), caller.trace));
        assert_eq!(
            (decode.parent, decode.context.trace),
            (Some(server.context.span), caller.trace)
        );
        let took = finished.time_of(decode.end).duration_since(finished.time_of(decode.start));
        assert_eq!(took.unwrap(), Duration::from_millis(2));
        assert!(finished.time_of(start - Duration::from_secs(1)) < finished.time_of(start));
    }

    #[test]
    fn more_spans_than_a_request_may_have_are_counted() {
        let kept = Arc::new(Kept::default());
        let trace = observer(&kept).begin(Instant::now(), || None, || None).unwrap();
        for _ in 0..200 {
            trace.add(trace.child("run", trace.start(), trace.start()));
        }
        trace.finish(|span, _| span);
        let kept = kept.0.lock().unwrap();
        assert_eq!((kept[0].spans.len(), kept[0].dropped), (129, 72));
    }

    #[test]
    fn work_knows_its_request() {
        let kept = Arc::new(Kept::default());
        let trace = observer(&kept).begin(Instant::now(), || None, || None).unwrap();
        let mut work = Traced::new(
            Some(trace.clone()),
            std::future::poll_fn(|_| Poll::Ready(current().map(|trace| trace.context()))),
        );
        let mut context = Context::from_waker(std::task::Waker::noop());
        let found = Pin::new(&mut work).poll(&mut context);
        assert_eq!(found, Poll::Ready(Some(trace.context())));
        assert!(current().is_none());
        let mut panics =
            Traced::new(Some(trace), std::future::poll_fn(|_| -> Poll<()> { panic!("x") }));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = Pin::new(&mut panics).poll(&mut context);
        }));
        assert!(caught.is_err() && current().is_none());
    }
}
