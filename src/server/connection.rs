//! A connection whose client must finish the head of every request in time.
//!
//! The HTTP library limits the time for the head of a connection's first request, and between
//! requests the time until the first byte of the next head; then a client could stop in the
//! middle of that head and hold its connection for ever. So connections tick: whoever leaves a
//! head unfinished for a whole tick, or asks for nothing for longer than a connection may be
//! idle, is treated as if they had closed it.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::rt::net::TcpStream;
use actix_web::rt::time::{Instant, Sleep, sleep};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::drain::OpenConnection;

/// How far the client is with its requests. Shared by a connection and its requests, which stay
/// on one thread.
#[derive(Default)]
pub(super) struct Progress {
    serving: Cell<bool>,
    /// Bytes have come that are not yet a request.
    has_begun: Cell<bool>,
    requests: Cell<u32>,
}

/// A request is being served until this is dropped.
pub(super) struct Serving(Rc<Progress>);

impl Progress {
    pub(super) fn serve(self: &Rc<Self>) -> Serving {
        self.serving.set(true);
        self.has_begun.set(false);
        self.requests.set(self.requests.get().wrapping_add(1));
        Serving(Rc::clone(self))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.serving.set(false);
    }
}

/// How long a client may take.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// For a head, once it has begun.
    pub(super) head: Duration,
    /// Without a request.
    pub(super) idle: Duration,
}

/// What a connection saw when it last ticked.
#[derive(Default)]
struct Seen {
    requests: u32,
    has_begun: bool,
    idle: Duration,
}

/// A TCP connection that ticks.
pub(super) struct Connection {
    stream: TcpStream,
    progress: Rc<Progress>,
    patience: Patience,
    alarm: Pin<Box<Sleep>>,
    seen: Seen,
    _open: OpenConnection,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, patience: Patience, open: OpenConnection) -> Self {
        Connection {
            stream,
            progress: Rc::default(),
            patience,
            alarm: Box::pin(sleep(patience.head)),
            seen: Seen::default(),
            _open: open,
        }
    }

    pub(super) fn progress(&self) -> Rc<Progress> {
        Rc::clone(&self.progress)
    }

    /// Whether patience with a client that sends nothing has ended. Arranges to be asked again.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        while self.alarm.as_mut().poll(context).is_ready() {
            if self.tick() {
                return true;
            }
            let next = Instant::now() + self.patience.head;
            self.alarm.as_mut().reset(next);
        }
        false
    }

    /// Whether patience has ended since the last tick.
    fn tick(&mut self) -> bool {
        let Progress { serving, has_begun, requests } = &*self.progress;
        let moved = serving.get() || requests.get() != self.seen.requests;
        let stuck = !moved && has_begun.get() && self.seen.has_begun;
        let idle = if moved { Duration::ZERO } else { self.seen.idle + self.patience.head };
        self.seen = Seen { requests: requests.get(), has_begun: has_begun.get(), idle };
        stuck || idle > self.patience.idle + self.patience.head
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            let has_more = buffer.filled().len() > filled;
            if has_more && !self.progress.serving.get() {
                self.progress.has_begun.set(true);
            }
            return read;
        }
        if self.is_late(context) {
            log::debug!("a connection is closed: its client took too long over a request's head");
            // As if the client had closed it.
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}

impl AsyncWrite for Connection {
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
