//! Streams whose bytes are observed.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

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

    /// Called after the first `count` bytes of `slices` have been written.
    fn after_write(&mut self, _slices: &[IoSlice<'_>], _count: usize) {}

    /// Bytes of its own that are written before the next ones.
    fn own_bytes(&mut self) -> &[u8] {
        &[]
    }

    /// Called after the first `count` of them have been written.
    fn wrote_own(&mut self, _count: usize) {}
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

impl<S: AsyncWrite + Unpin, W: StreamObserver> ObservedStream<S, W> {
    /// Writes the observer's own bytes.
    fn poll_own(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ObservedStream { stream, watch } = self;
        loop {
            let bytes = watch.own_bytes();
            if bytes.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let count = ready!(Pin::new(&mut *stream).poll_write(context, bytes))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            watch.wrote_own(count);
        }
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
        ready!(self.poll_own(context))?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.watch.after_write(&[IoSlice::new(bytes)], count);
        }
        written
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
        ready!(self.poll_own(context))?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(count)) = written {
            self.watch.after_write(slices, count);
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
