//! Limits of time and memory for the bodies of gRPC calls.
//!
//! Most calls are one message, which is kept in memory while it arrives. Without a limit, a client
//! that sends a byte now and then could hold that memory for ever.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

use tensorserve_tensor::budget::RequestBudget;

/// A body with a limit for the time that it takes to arrive.
pub(super) struct TimedBody {
    body: Body,
    limit: Duration,
    /// The client sends messages for as long as it wants; the limit is for each pause.
    is_stream: bool,
    /// The memory that the messages take is reserved here.
    budget: RequestBudget,
    /// Started when the body is first waited for: most bodies have arrived already, and need no
    /// timer.
    end: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    /// `body`, which must arrive within `limit`, or each part of it if it is a stream.
    pub(super) fn new(body: Body, limit: Duration, is_stream: bool, budget: RequestBudget) -> Self {
        TimedBody { body, limit, is_stream, budget, end: None }
    }
}

impl TimedBody {
    /// The frame, after its memory is reserved: it is collected in a buffer that grows to up to twice
    /// its size.
    fn accounted(&self, frame: Frame<Bytes>) -> Result<Frame<Bytes>, Status> {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let reserved = self.budget.reserve(bytes.saturating_mul(2));
        reserved.map_err(|error| Status::resource_exhausted(error.message()))?;
        Ok(frame)
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
            if this.is_stream {
                this.end = None;
                return Poll::Ready(frame);
            }
            return Poll::Ready(frame.map(|frame| this.accounted(frame?)));
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

/// The body of a response, which holds the memory of its request until it is sent.
pub(super) struct HeldBody {
    pub(super) body: Body,
    #[allow(dead_code)] // It is held, and returns the memory when dropped.
    pub(super) budget: RequestBudget,
}

impl http_body::Body for HeldBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
