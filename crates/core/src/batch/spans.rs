//! The spans of runs, in the traces of their requests.

use std::time::{Duration, Instant};

use super::task::BatchTask;
use tensorserve_tensor::error::Error;
use tensorserve_trace::{Span, TraceContext};

/// Adds a run of `tasks` to the traces of those that have one: what it waited for as `queue`, and
/// `run`. A batch of several requests has a span of its own besides, in a trace of its own: each `run`
/// is linked to it, and it is linked to the requests.
pub(super) fn record(
    tasks: &[&BatchTask],
    rows: usize,
    started: Instant,
    time: Duration,
    error: Option<&Error>,
) {
    if tasks.iter().all(|task| task.trace.is_none()) {
        return;
    }
    let end = started + time;
    let error = error.map(|error| error.code().name());
    let describe = |span: Span| {
        let span = span.with("tensorserve.batch.rows", rows.max(1));
        span.with("tensorserve.batch.requests", tasks.len()).failed(error.map(Into::into))
    };
    let batch = (tasks.len() > 1).then(TraceContext::root);
    let mut requests = Vec::new();
    for task in tasks {
        let Some(trace) = &task.trace else {
            continue;
        };
        trace.add(trace.child("queue", task.queued.min(started), started));
        let run = describe(trace.child("run", started, end));
        trace.add(Span { links: batch.into_iter().collect(), ..run });
        requests.push(trace.context());
    }
    // It travels with the first of them.
    let first = tasks.iter().find_map(|task| task.trace.as_ref());
    if let (Some(batch), Some(trace)) = (batch, first) {
        let span = describe(Span::root("batch", batch, started, end));
        trace.add(Span { links: requests, ..span });
    }
}
