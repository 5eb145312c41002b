//! The steps of an inference, for requests that are recorded.

use std::sync::Arc;
use std::time::Instant;

use crate::batch::RunTiming;
use crate::repository::ModelHandle;
use tensorserve_tensor::error::Error;
use tensorserve_trace::{self as trace, RequestTrace};

/// Measures a step of the request that this thread works for, if it is part of a trace.
pub(super) struct StepTimer(Option<(Arc<RequestTrace>, Instant)>);

impl StepTimer {
    pub(super) fn begin() -> Self {
        let trace = trace::recording();
        StepTimer(trace.map(|trace| (trace, Instant::now())))
    }

    /// Adds the step as a span.
    pub(super) fn end(self, name: &'static str, error: Option<&Error>) {
        if let Some((trace, start)) = self.0 {
            let error = error.map(|error| error.code().name().into());
            trace.add(trace.child(name, start, Instant::now()).failed(error));
        }
    }
}

/// Records what an inference ran on, and how long that took.
pub(super) fn note_inference(
    trace: &RequestTrace,
    version: Option<&ModelHandle>,
    signature: Option<usize>,
    timing: Option<RunTiming>,
) {
    let named = version.zip(signature);
    let signature = named.and_then(|(version, index)| version.signatures().get(index));
    trace.note(|facts| {
        if let Some(version) = version {
            facts.model = Some(Arc::clone(version.name()));
            facts.version = Some(version.version());
        }
        facts.signature = signature.map(|signature| signature.name.clone());
        facts.queue_delay = timing.map(|timing| timing.queue_delay);
        facts.run = timing.map(|timing| timing.run);
    });
}
