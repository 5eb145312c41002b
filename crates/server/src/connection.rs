//! A connection whose client must finish the head of every request in time.
//!
//! The HTTP library limits the time for the head of a connection's first request, and between
//! requests the time until the first byte of the next head; then a client could stop in the
//! middle of that head and hold its connection for ever. So connections tick: whoever leaves a
//! head unfinished for a whole tick, or asks for nothing for longer than a connection may be
//! idle, is treated as if they had closed it.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::drain::OpenConnection;
use super::tls::Stream;
use super::watched::{Watch, Watched};
use actix_web::rt::time::{Instant, Sleep, sleep};

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

/// A connection that ticks. What is encrypted is watched in the clear.
pub(super) type Connection = Watched<Stream, Ticks>;

/// The ticks of a connection.
pub(super) struct Ticks {
    progress: Rc<Progress>,
    patience: Patience,
    alarm: Pin<Box<Sleep>>,
    seen: Seen,
    _open: OpenConnection,
}

impl Ticks {
    pub(super) fn new(patience: Patience, open: OpenConnection) -> Self {
        Ticks {
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

impl Watch for Ticks {
    fn after_read(
        &mut self,
        read: Poll<io::Result<()>>,
        new: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if read.is_ready() {
            if !new.is_empty() && !self.progress.serving.get() {
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
