//! A stream whose peer must accept what is written within a time limit.
//!
//! A client that does not read its response fills the buffers of both systems. Without a limit it
//! could hold the response, and its connection, for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::drain::{DrainPause, ListenerActivity};

/// A stream with a limit for the time in which no byte can be written.
pub(super) struct TimedWrites<S> {
    stream: S,
    limit: Duration,
    activity: ListenerActivity,
    /// Started when the stream cannot be written to: most writes need no timer.
    end: Option<(Pin<Box<Sleep>>, DrainPause)>,
}

impl<S> TimedWrites<S> {
    /// The peer may block `stream` for `limit`, and for less while the listener ends.
    pub(super) fn new(stream: S, limit: Duration, activity: ListenerActivity) -> Self {
        TimedWrites { stream, limit, activity, end: None }
    }

    /// `written`, or an error once nothing could be written for the whole limit.
    fn in_time<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.end = None;
            return written;
        }
        let begin = || (Box::pin(sleep(self.limit)), DrainPause::new(self.activity.clone()));
        let (end, drain) = self.end.get_or_insert_with(begin);
        if end.as_mut().poll(context).is_pending() {
            ready!(drain.poll_over(context));
        }
        log::debug!("a connection is closed: its client did not read the response (write_timeout)");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.in_time(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
