//! Stopping without losing a request.
//!
//! A request can be lost in two cases: on a connection that the kernel has established but the
//! server has not accepted when the listener closes, and on a kept-alive connection that is closed
//! just as the client writes. So the listener first refuses new handshakes, while established
//! connections are still accepted and served, and every response announces that its connection
//! closes. The listener closes only when no request has arrived for a while.

use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

/// After this long without a request, clients with open connections are assumed to send no more:
/// long enough for a client that sends requests in a loop on a busy machine.
const QUIET: Duration = Duration::from_secs(1);

/// The same if no connection is open, but one may be established and not accepted yet.
const QUIET_AND_EMPTY: Duration = Duration::from_millis(150);

const POLL: Duration = Duration::from_millis(5);

/// The connections and requests of a listener. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct ListenerActivity(Arc<ActivityCounters>);

#[derive(Default)]
struct ActivityCounters {
    connections: AtomicUsize,
    /// The number of connections begun, requests begun and requests finished.
    steps: AtomicUsize,
    closing: AtomicBool,
}

/// Counts an open connection until dropped.
pub(super) struct OpenConnection(ListenerActivity);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, SeqCst);
    }
}

impl ListenerActivity {
    pub(super) fn connection(&self) -> OpenConnection {
        self.0.connections.fetch_add(1, SeqCst);
        self.step();
        OpenConnection(self.clone())
    }

    pub(super) fn connections(&self) -> usize {
        self.0.connections.load(SeqCst)
    }

    /// Counts the begin or end of a request or connection, once the listener is closing. Before
    /// that the counter is not used, and would only cause contention between processors.
    pub(super) fn step(&self) {
        if self.is_closing() {
            self.0.steps.fetch_add(1, SeqCst);
        }
    }

    pub(super) fn close_connections(&self) {
        self.0.closing.store(true, SeqCst);
    }

    /// Whether responses should close their connections.
    pub(super) fn is_closing(&self) -> bool {
        self.0.closing.load(SeqCst)
    }

    /// Prepares a connection that was just accepted: its handshake may have ended after those of new ones
    /// were stopped, in a way that it has taken over from its listener.
    pub(super) fn accepted(&self, stream: &impl AsRawFd) {
        if self.is_closing()
            && let Err(error) = tensorserve_os::drop_packets_below(stream, 0)
        {
            log::debug!("a connection cannot be prepared: {error}");
        }
    }

    /// Waits until no connection or request has begun or ended for a while.
    pub(super) fn wait_until_quiet(&self, end: Instant) {
        let enough = || if self.connections() == 0 { QUIET_AND_EMPTY } else { QUIET };
        self.wait(end, enough);
    }

    /// Waits until established connections have been accepted. That is enough for protocols that
    /// tell clients to close their connections.
    pub(super) fn wait_until_accepted(&self, end: Instant) {
        self.wait(end, || QUIET_AND_EMPTY);
    }

    fn wait(&self, end: Instant, enough: impl Fn() -> Duration) {
        let mut seen = self.0.steps.load(SeqCst);
        let mut since = Instant::now();
        loop {
            if since.elapsed() >= enough() || Instant::now() >= end {
                return;
            }
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

/// Makes the kernel drop the first packet of every new connection to `socket`. Handshakes that have
/// begun are completed; later clients try again and are refused when the socket closes.
pub(super) fn refuse_connections(socket: &TcpListener) {
    #[cfg(target_os = "linux")]
    {
        use socket2::SockFilter;
        // A classic BPF program over the TCP header. The listener's filter also sees the packet
        // that ends a handshake; dropping that one would leave a client that believes it is
        // connected.
        const LOAD_BYTE: u16 = 0x30;
        const JUMP_IF_BITS: u16 = 0x45;
        const RETURN: u16 = 0x06;
        const FLAGS_AT: u32 = 13;
        const SYN: u32 = 0x02;
        let program = [
            SockFilter::new(LOAD_BYTE, 0, 0, FLAGS_AT),
            SockFilter::new(JUMP_IF_BITS, 0, 1, SYN),
            SockFilter::new(RETURN, 0, 0, 0),
            SockFilter::new(RETURN, 0, 0, u32::MAX),
        ];
        let Err(denied) = socket2::SockRef::from(socket).attach_filter(&program) else {
            return;
        };
        // Some kernels permit filters only to administrators of the network.
        if let Err(error) = tensorserve_os::drop_packets_below(socket, u8::MAX) {
            log::warn!("new connections are accepted until the end: {denied}; {error}");
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}
