//! Bodies of gRPC calls that are still on their way: one that takes too long ends its call.
//!
//! A call is one message, for whose bytes memory is set aside as they come. Without an end to it,
//! a client that sends a byte now and then would hold that for as long as it likes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;

/// A body that must have arrived after a time.
pub(super) struct Arriving {
    body: Body,
    limit: Duration,
    /// Runs from when the body was first waited for: most are there at once, and need no timer.
    end: Option<Pin<Box<Sleep>>>,
}

impl Arriving {
    /// `body`, for which it is waited at most so long.
    pub(super) fn new(body: Body, limit: Duration) -> Self {
        Arriving { body, limit, end: None }
    }
}

impl http_body::Body for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let end = this.end.get_or_insert_with(|| Box::pin(sleep(this.limit)));
        ready!(end.as_mut().poll(context));
        let message = format!(
            "the message did not arrive within {} s, which is the server's body_timeout",
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
