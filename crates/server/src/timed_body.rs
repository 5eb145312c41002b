//! Limits of time and memory for the bodies of gRPC calls.
//!
//! Most calls are one message, which is kept in memory while it arrives. Without a limit, a client
//! that sends a byte now and then could hold that memory for ever.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use tensorserve_auth::Authenticator;
use tensorserve_core::metrics::Metrics;
use tensorserve_tensor::budget::{self, RequestBudget};
use tensorserve_trace::RequestTrace;

/// What a client sends in a call.
pub(super) enum Arrival {
    /// One message; the memory that it takes is reserved here. The limit is for all of it.
    Message(RequestBudget),
    /// Small messages for as long as the client wants. The limit is for each pause.
    SmallMessages,
    /// Messages for as long as the client wants, each with a budget of its own, which the handler has
    /// entered when it waits for it. The limit is for each pause within a message. The stream ends when
    /// the credentials of its client are revoked.
    Messages(Option<Revocation>),
}

/// Waits until the credentials of a call are revoked. Not started before the call is admitted.
pub(super) enum Revocation {
    Watch(Authenticator, Bytes),
    Watched(Pin<Box<dyn Future<Output = ()> + Send>>),
}

impl Revocation {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Revocation::Watch(authenticator, authorization) = self {
            *self = Revocation::Watched(Box::pin(authenticator.until_revoked(authorization)));
        }
        match self {
            Revocation::Watch(..) => Poll::Pending,
            Revocation::Watched(revoked) => revoked.as_mut().poll(context),
        }
    }
}

/// A body with a limit for the time that it takes to arrive.
pub(super) struct TimedBody {
    body: Body,
    limit: Duration,
    arrival: Arrival,
    metrics: Metrics,
    /// The record of the call, if it is recorded.
    trace: Option<Arc<RequestTrace>>,
    /// Started when the body is first waited for: most bodies have arrived already, and need no
    /// timer.
    end: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    /// `body`, which must arrive within `limit`, or each part of it if it is a stream.
    pub(super) fn new(
        body: Body,
        limit: Duration,
        arrival: Arrival,
        metrics: Metrics,
        trace: Option<Arc<RequestTrace>>,
    ) -> Self {
        TimedBody { body, limit, arrival, metrics, trace, end: None }
    }

    /// The frame, after its memory is reserved: it is collected in a buffer that grows to up to twice
    /// its size.
    fn accounted(&mut self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, Status> {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        if let Some(trace) = &self.trace {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            trace.note(|facts| facts.request_bytes = facts.request_bytes.saturating_add(bytes));
        }
        let bytes = bytes.saturating_mul(2);
        let reserved = match &self.arrival {
            Arrival::Message(budget) => budget.reserve(bytes),
            Arrival::SmallMessages => {
                self.end = None;
                Ok(())
            }
            Arrival::Messages(_) => {
                self.end = None;
                budget::reserve(bytes)
            }
        };
        reserved.map_err(|error| {
            self.metrics.count_shed(&error);
            Status::resource_exhausted(error.message())
        })?;
        Ok(frame)
    }

    /// Whether the pause is one between two messages, which may be of any length.
    fn is_between_messages(&self) -> bool {
        matches!(self.arrival, Arrival::Messages(_)) && budget::reserved() == 0
    }
}

impl http_body::Body for TimedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| this.accounted(frame?)));
        }
        if let Arrival::Messages(Some(revocation)) = &mut this.arrival
            && revocation.poll(context).is_ready()
        {
            let message = "the credentials of this call were revoked";
            return Poll::Ready(Some(Err(Status::unauthenticated(message))));
        }
        if this.is_between_messages() {
            return Poll::Pending;
        }
        let end = this.end.get_or_insert_with(|| Box::pin(sleep(this.limit)));
        ready!(end.as_mut().poll(context));
        let message = format!(
            "the message did not arrive within {} s (body_timeout)",
            this.limit.as_secs_f64()
        );
        Poll::Ready(Some(Err(Status::deadline_exceeded(message))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
