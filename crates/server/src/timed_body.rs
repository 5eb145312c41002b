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
use tensorserve_http2::RequestBody;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::connected::ConnectedClient;
use super::drain::{DrainPause, shutting_down};
use super::silent::{SilentCall, SilentCalls};
use tensorserve_auth::Authenticator;
use tensorserve_core::metrics::Metrics;
use tensorserve_tensor::budget::{self, RequestBudget};
use tensorserve_tensor::error::Error;
use tensorserve_trace::RequestTrace;

/// How often a stream looks whether there is memory for its next message.
const MEMORY_POLL: Duration = Duration::from_millis(10);

/// What a client sends in a call.
pub(super) enum Arrival {
    /// One message; the memory that it takes is reserved here. The limit is for all of it. That of a probe
    /// of the server's health may begin even if all memory is in use.
    Message { budget: RequestBudget, is_probe: bool },
    /// Small messages for as long as the client wants. The limit is for each pause.
    SmallMessages,
    /// Messages for as long as the client wants, each with a budget of its own, which the handler has
    /// entered when it waits for it. Until there is memory for one, the client waits: the flow control of
    /// its stream tells it. The limit is for each pause within a message. The stream ends when
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
    body: RequestBody,
    limit: Duration,
    arrival: Arrival,
    metrics: Metrics,
    /// The record of the call, if it is recorded.
    trace: Option<Arc<RequestTrace>>,
    /// The client, and all calls whose clients are silent. This one is among them while nothing of a message
    /// has arrived.
    client: ConnectedClient,
    silent_calls: SilentCalls,
    silent: Option<SilentCall>,
    /// A part of a message of a stream for which there is no memory now, and when to look again.
    waiting: Option<(Frame<Bytes>, Pin<Box<Sleep>>)>,
    /// Started when the body is first waited for: most bodies have arrived already, and need no
    /// timer.
    end: Option<Pin<Box<Sleep>>>,
    /// The limit of the client's pauses while the listener ends; started when that is first looked at.
    drain: Option<DrainPause>,
}

impl TimedBody {
    /// `body`, which must arrive within `limit`, or each part of it if it is a stream.
    pub(super) fn new(
        body: RequestBody,
        limit: Duration,
        arrival: Arrival,
        (metrics, trace): (Metrics, Option<Arc<RequestTrace>>),
        (client, silent_calls): (ConnectedClient, SilentCalls),
    ) -> Self {
        let (silent, waiting, end, drain) = (None, None, None, None);
        TimedBody {
            body,
            limit,
            arrival,
            metrics,
            trace,
            client,
            silent_calls,
            silent,
            waiting,
            end,
            drain,
        }
    }

    /// The frame, after its memory is reserved: it is collected in a buffer that grows to up to twice
    /// its size. `None` if it has to wait for memory.
    fn accounted(&mut self, frame: Frame<Bytes>) -> Result<Option<Frame<Bytes>>, Status> {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        if let Some(trace) = &self.trace {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            trace.note(|facts| facts.request_bytes = facts.request_bytes.saturating_add(bytes));
        }
        let bytes = bytes.saturating_mul(2);
        let reserved = match &self.arrival {
            Arrival::Message { budget, is_probe } => {
                budget.begin_for(*is_probe).and_then(|()| budget.reserve(bytes))
            }
            Arrival::SmallMessages => {
                self.end = None;
                Ok(())
            }
            Arrival::Messages(_) => {
                self.end = None;
                budget::reserve(bytes)
            }
        };
        match reserved {
            Ok(()) => Ok(Some(frame)),
            Err(error) if error.is_overload() && matches!(self.arrival, Arrival::Messages(_)) => {
                self.waiting = Some((frame, Box::pin(sleep(MEMORY_POLL))));
                Ok(None)
            }
            Err(error) => {
                self.metrics.count_shed(&error);
                Err(Status::resource_exhausted(error.message()))
            }
        }
    }

    /// The next part that has arrived, once there is memory for it.
    fn poll_accounted(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            let frame = match self.waiting.take() {
                Some((frame, mut until)) => match until.as_mut().poll(context) {
                    Poll::Ready(()) => frame,
                    Poll::Pending => {
                        self.waiting = Some((frame, until));
                        return Poll::Pending;
                    }
                },
                None => {
                    match ready!(http_body::Body::poll_frame(Pin::new(&mut self.body), context)) {
                        Some(Ok(frame)) => frame,
                        Some(Err(reset)) => {
                            return Poll::Ready(Some(Err(Status::cancelled(reset.to_string()))));
                        }
                        None => return Poll::Ready(None),
                    }
                }
            };
            match self.accounted(frame) {
                Ok(None) => {}
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
        }
    }

    /// Counts the call among those whose clients are silent.
    fn be_silent(&mut self) -> Result<(), Status> {
        let has_begun = match &self.arrival {
            Arrival::Message { budget, .. } => budget.held() > 0,
            Arrival::SmallMessages => false,
            Arrival::Messages(_) => budget::reserved() > 0,
        };
        if has_begun || self.silent.is_some() || self.waiting.is_some() {
            return Ok(());
        }
        self.silent = self.silent_calls.enter(self.client.address);
        if self.silent.is_some() {
            return Ok(());
        }
        self.client.refused.add();
        let error = Error::overloaded(
            "this client has too many open calls on which the server waits for a message: send one, or end \
             some of the calls",
        );
        self.metrics.count_shed(&error);
        Err(Status::resource_exhausted(error.message()))
    }

    /// Whether the pause is one between two messages, which may be of any length.
    fn is_between_messages(&self) -> bool {
        matches!(self.arrival, Arrival::Messages(_)) && budget::reserved() == 0
    }

    /// Ready when the listener ends and need not wait for the client: a stream ends between two messages, a
    /// message when no more of it arrives for a while.
    fn poll_drained(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let is_idle = self.waiting.is_none()
            && (self.is_between_messages() || matches!(self.arrival, Arrival::SmallMessages));
        let activity = self.silent_calls.activity();
        let drain = self.drain.get_or_insert_with(|| DrainPause::new(activity.clone()));
        match is_idle {
            true => drain.poll_ending(context),
            false => drain.poll_over(context),
        }
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
        let stopped = || Poll::Ready(Some(Err(Status::unavailable(shutting_down().message()))));
        // A stream whose client sends one message after the other.
        if this.is_between_messages() && this.silent_calls.activity().is_overdue() {
            return stopped();
        }
        if let Poll::Ready(frame) = this.poll_accounted(context) {
            this.silent = None;
            this.drain.iter_mut().for_each(DrainPause::moved);
            return Poll::Ready(frame);
        }
        if let Err(refused) = this.be_silent() {
            return Poll::Ready(Some(Err(refused)));
        }
        if let Arrival::Messages(Some(revocation)) = &mut this.arrival
            && revocation.poll(context).is_ready()
        {
            let message = "the credentials of this call were revoked";
            return Poll::Ready(Some(Err(Status::unauthenticated(message))));
        }
        if this.poll_drained(context).is_ready() {
            return stopped();
        }
        if this.waiting.is_some() || this.is_between_messages() {
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
