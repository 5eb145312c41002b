//! Streams whose bytes are observed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Observes the bytes of a stream.
pub(super) trait StreamObserver: Unpin {
    /// Called after each attempt to read, with its result and the new bytes. Returns the result for
    /// the reader.
    fn after_read(
        &mut self,
        read: Poll<io::Result<()>>,
        new: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>>;
}

/// A stream whose bytes are observed.
pub(super) struct ObservedStream<S, W> {
    pub(super) stream: S,
    pub(super) watch: W,
}

impl<S, W> ObservedStream<S, W> {
    pub(super) fn new(stream: S, watch: W) -> Self {
        ObservedStream { stream, watch }
    }
}

impl<S: AsyncRead + Unpin, W: StreamObserver> AsyncRead for ObservedStream<S, W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let new = buffer.filled_mut().get_mut(before..).unwrap_or_default();
        self.watch.after_read(read, new, context)
    }
}

impl<S: AsyncWrite + Unpin, W: StreamObserver> AsyncWrite for ObservedStream<S, W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
