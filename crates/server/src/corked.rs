//! A TCP stream that sends large responses in large segments.
//!
//! The HTTP/2 library writes a response frame by frame, each of 16 KiB unless the client takes larger
//! ones. Without Nagle's algorithm the system sends each of them at once, on its own; most of the time
//! that a large response takes was spent there. While large frames follow each other, the stream is
//! corked: the system sends what fills its largest segments, and keeps the rest for what comes next.
//!
//! Source: tcp(7), `TCP_CORK`. The system sends what it has kept after 200 ms at the latest.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A write of this size is followed by another one, as a rule: HTTP/2 frames have at most 16 KiB.
const LARGE: usize = 16 << 10;

/// A stream that is corked while large writes follow each other.
pub(super) struct CorkedStream {
    stream: TcpStream,
    corked: bool,
    /// The last write was large.
    was_large: bool,
    /// Something was written since the last flush. The HTTP/2 library flushes after each frame, and
    /// once more when it has no other one.
    has_written: bool,
}

impl CorkedStream {
    pub(super) fn new(stream: TcpStream) -> Self {
        CorkedStream { stream, corked: false, was_large: false, has_written: false }
    }

    fn cork(&mut self, corked: bool) {
        if self.corked != corked {
            // Without it, segments are smaller; nothing else changes.
            let _ = SockRef::from(&self.stream).set_tcp_cork(corked);
            self.corked = corked;
        }
    }

    fn before_write(&mut self, bytes: usize) {
        let is_large = bytes >= LARGE;
        if is_large && self.was_large {
            self.cork(true);
        }
        self.was_large = is_large;
    }

    fn after_write(&mut self, written: &Poll<io::Result<usize>>) {
        if written.is_ready() {
            self.has_written = true;
            if !self.was_large {
                self.cork(false);
            }
        }
    }
}

impl AsyncRead for CorkedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CorkedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.before_write(bytes.len());
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.after_write(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::take(&mut self.has_written) {
            self.was_large = false;
            self.cork(false);
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.cork(false);
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.before_write(slices.iter().map(|slice| slice.len()).sum());
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.after_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
