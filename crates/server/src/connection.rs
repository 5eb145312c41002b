//! A connection whose client must complete the head of every request in time.
//!
//! The HTTP library limits the time for the head of a connection's first request, and between
//! requests the time until the first byte of the next head. A client could stop in the middle of
//! that head and hold its connection for ever. So a timer ticks for each connection: one whose head
//! stays incomplete for a whole tick, or that is idle for too long, is treated as closed by its
//! client.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::direct::DirectStream;
use super::drain::{DRAIN_PAUSE, OpenConnection};
use super::observed::{ObservedStream, StreamObserver};
use super::timed_writes::TimedWrites;
use super::tls::MaybeTlsStream;
use super::upgrades::UpgradeFilter;
use actix_web::rt::net::TcpStream;
use actix_web::rt::time::{Instant, Sleep, sleep};

/// The progress of a connection's requests. Shared by a connection and its requests, which stay on
/// one thread.
#[derive(Default)]
pub(super) struct RequestProgress {
    serving: Cell<bool>,
    /// Bytes of an incomplete head have arrived.
    has_begun: Cell<bool>,
    requests: Cell<u32>,
    /// The reads that brought bytes.
    reads: Cell<u32>,
}

/// Marks a request as being served until dropped.
pub(super) struct Serving(Rc<RequestProgress>);

impl RequestProgress {
    /// A number that changes with every part that the client sends.
    pub(super) fn reads(&self) -> u32 {
        self.reads.get()
    }

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

/// Time limits for a client.
#[derive(Clone, Copy)]
pub(super) struct HttpTimeLimits {
    /// For a head, from its first byte.
    pub(super) head: Duration,
    /// Without a request.
    pub(super) idle: Duration,
}

/// The state at the last tick.
#[derive(Default)]
struct LastTick {
    requests: u32,
    has_begun: bool,
    idle: Duration,
}

/// A connection with ticks. They watch the decrypted bytes.
pub(super) type Connection =
    ObservedStream<DirectStream<MaybeTlsStream<TimedWrites<TcpStream>>>, ConnectionTicks>;

/// The ticks of a connection.
pub(super) struct ConnectionTicks {
    progress: Rc<RequestProgress>,
    patience: HttpTimeLimits,
    alarm: Pin<Box<Sleep>>,
    seen: LastTick,
    upgrades: UpgradeFilter,
    open: OpenConnection,
    /// The listener ends, and the limits are short.
    is_ending: bool,
}

impl ConnectionTicks {
    pub(super) fn new(patience: HttpTimeLimits, open: OpenConnection) -> Self {
        ConnectionTicks {
            progress: Rc::default(),
            patience,
            alarm: Box::pin(sleep(patience.head)),
            seen: LastTick::default(),
            upgrades: UpgradeFilter::default(),
            open,
            is_ending: false,
        }
    }

    pub(super) fn progress(&self) -> Rc<RequestProgress> {
        Rc::clone(&self.progress)
    }

    /// Whether the client has exceeded a time limit. Registers the next tick.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        if !self.is_ending && self.open.is_ending() {
            self.is_ending = true;
            self.patience = HttpTimeLimits { head: DRAIN_PAUSE / 2, idle: Duration::ZERO };
            self.alarm.as_mut().reset(Instant::now() + self.patience.head);
        }
        while self.alarm.as_mut().poll(context).is_ready() {
            if self.tick() {
                return true;
            }
            let next = Instant::now() + self.patience.head;
            self.alarm.as_mut().reset(next);
        }
        false
    }

    /// Whether a time limit was exceeded at this tick.
    fn tick(&mut self) -> bool {
        let RequestProgress { serving, has_begun, requests, .. } = &*self.progress;
        let moved = serving.get() || requests.get() != self.seen.requests;
        let stuck = !moved && has_begun.get() && self.seen.has_begun;
        let idle = if moved { Duration::ZERO } else { self.seen.idle + self.patience.head };
        self.seen = LastTick { requests: requests.get(), has_begun: has_begun.get(), idle };
        stuck || idle > self.patience.idle + self.patience.head
    }
}

impl StreamObserver for ConnectionTicks {
    fn after_read(
        &mut self,
        read: Poll<io::Result<()>>,
        new: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if read.is_ready() {
            self.progress.reads.set(self.progress.reads.get().wrapping_add(1));
            if !new.is_empty() && !self.progress.serving.get() {
                self.progress.has_begun.set(true);
            }
            self.upgrades.overwrite(new);
            return read;
        }
        if self.is_late(context) {
            log::debug!(
                "a connection is closed: its client did not complete a request head in time"
            );
            // As if the client had closed it.
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}
