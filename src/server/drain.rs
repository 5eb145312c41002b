//! Stopping without losing a request.
//!
//! A request can be lost in two places: on a connection that the kernel has established but
//! nobody has accepted when the listener closes, and on a kept-alive connection that is closed
//! just as the client writes. So the listener first stops taking part in new handshakes while
//! everything that is established is still accepted and served, every answer tells its client
//! that the connection closes, and the listener only goes when no request has come for a while.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// No request for this long means that no client is about to send one.
const QUIET: Duration = Duration::from_millis(150);

const POLL: Duration = Duration::from_millis(5);

/// What goes on at a listener. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Activity(Arc<Counters>);

#[derive(Default)]
struct Counters {
    connections: AtomicUsize,
    /// Requests begun and requests answered, together.
    steps: AtomicUsize,
    closing: AtomicBool,
}

/// Counts an open connection until dropped.
pub(super) struct OpenConnection(Activity);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, SeqCst);
    }
}

impl Activity {
    pub(super) fn connection(&self) -> OpenConnection {
        self.0.connections.fetch_add(1, SeqCst);
        OpenConnection(self.clone())
    }

    pub(super) fn connections(&self) -> usize {
        self.0.connections.load(SeqCst)
    }

    /// Notes that a request begins or is answered, once the listener is closing: before, nobody
    /// asks, and the counter would only pass between processors.
    pub(super) fn step(&self) {
        if self.is_closing() {
            self.0.steps.fetch_add(1, SeqCst);
        }
    }

    pub(super) fn close_connections(&self) {
        self.0.closing.store(true, SeqCst);
    }

    /// Whether answers should close their connections.
    pub(super) fn is_closing(&self) -> bool {
        self.0.closing.load(SeqCst)
    }

    /// Waits until no request has begun or ended for a while, or every connection is closed.
    pub(super) fn wait_until_quiet(&self, end: Instant) {
        let mut seen = self.0.steps.load(SeqCst);
        let mut since = Instant::now();
        while Instant::now() < end && since.elapsed() < QUIET {
            thread::sleep(POLL);
            let steps = self.0.steps.load(SeqCst);
            if steps != seen {
                seen = steps;
                since = Instant::now();
            }
        }
    }

    pub(super) fn wait_until_closed(&self, end: Instant) {
        while Instant::now() < end && self.connections() > 0 {
            thread::sleep(POLL);
        }
    }
}

/// Makes the kernel drop whatever arrives for new connections on `socket`, without closing those
/// it has established. Clients try again and are refused when the socket closes.
pub(super) fn refuse_connections(socket: &TcpListener) {
    #[cfg(target_os = "linux")]
    {
        // A filter program of one instruction: accept zero bytes of every packet.
        const RETURN_CONSTANT: u16 = 0x06;
        let program = [socket2::SockFilter::new(RETURN_CONSTANT, 0, 0, 0)];
        if let Err(error) = socket2::SockRef::from(socket).attach_filter(&program) {
            log::debug!("new connections can not be held off: {error}");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}
