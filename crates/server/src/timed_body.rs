//! A time limit for the body of a gRPC call.
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

/// A body with a limit for the time that it takes to arrive.
pub(super) struct TimedBody {
    body: Body,
    limit: Duration,
    /// The client sends messages for as long as it wants; the limit is for each pause.
    is_stream: bool,
    /// Started when the body is first waited for: most bodies have arrived already, and need no
    /// timer.
    end: Option<Pin<Box<Sleep>>>,
}

impl TimedBody {
    /// `body`, which must arrive within `limit`, or each part of it if it is a stream.
    pub(super) fn new(body: Body, limit: Duration, is_stream: bool) -> Self {
        TimedBody { body, limit, is_stream, end: None }
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
            }
            return Poll::Ready(frame);
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
