//! Stopping without losing a request.
//!
//! A request can be lost in two cases: on a connection that the kernel has established but the
//! server has not accepted when the listener closes, and on a kept-alive connection that is closed
//! just as the client writes. So the listener first refuses new handshakes, while established
//! connections are still accepted and served, and every response announces that its connection
//! closes. The listener closes only when no request has arrived for a while.
//!
//! From then on the listener *ends*: runs and responses are waited for, and clients only while they send or
//! take something. One that pauses for [`DRAIN_PAUSE`] in the middle of a request or of a response, or that
//! holds a connection without either, does not hold up the server.

use std::future::Future;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::{Duration, Instant};

use tensorserve_tensor::error::Error;
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

/// After this long without a request, clients with open connections are assumed to send no more:
/// long enough for a client that sends requests in a loop on a busy machine.
const QUIET: Duration = Duration::from_secs(1);

/// After this long without a request while no connection is open, clients are assumed to send no more: long enough to
/// accept a connection that is established.
const QUIET_AND_EMPTY: Duration = Duration::from_millis(150);

const POLL: Duration = Duration::from_millis(5);

/// How long a client may send and take nothing while its listener ends: longer than a network with losses takes
/// to repeat a packet.
pub(super) const DRAIN_PAUSE: Duration = Duration::from_secs(2);

/// The connections and requests of a listener. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct ListenerActivity(Arc<ActivityCounters>);

#[derive(Default)]
struct ActivityCounters {
    connections: AtomicUsize,
    /// The number of connections begun, requests begun and requests finished.
    steps: AtomicUsize,
    closing: AtomicBool,
    /// When the listener began to end.
    ending: OnceLock<Instant>,
    ended: Notify,
}

/// Counts an open connection until dropped.
pub(super) struct OpenConnection(ListenerActivity);

impl OpenConnection {
    /// Whether the listener of the connection ends.
    pub(super) fn is_ending(&self) -> bool {
        self.0.is_ending()
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, SeqCst);
    }
}

/// Limits the pauses of one client while its listener ends.
pub(super) struct DrainPause {
    activity: ListenerActivity,
    /// Until the listener ends; from then on `None`.
    ending: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl DrainPause {
    pub(super) fn new(activity: ListenerActivity) -> Self {
        let listener = activity.clone();
        let ending = Some(Box::pin(async move { listener.until_ending().await }) as _);
        DrainPause { activity, ending, pause: None }
    }

    /// The client has sent or taken something.
    pub(super) fn moved(&mut self) {
        self.pause = None;
    }

    /// Ready once the listener ends.
    pub(super) fn poll_ending(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(ending) = self.ending.as_mut().filter(|_| !self.activity.is_ending()) {
            ready!(ending.as_mut().poll(context));
        }
        self.ending = None;
        Poll::Ready(())
    }

    /// Ready when the client has paused for too long while the listener ends.
    pub(super) fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.poll_ending(context));
        self.pause.get_or_insert_with(|| Box::pin(sleep(DRAIN_PAUSE))).as_mut().poll(context)
    }
}

/// The error of a request whose client sends no more of it while its listener ends.
pub(super) fn shutting_down() -> Error {
    Error::unavailable("the server is shutting down")
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

    /// From now on clients that pause are not waited for.
    pub(super) fn end(&self) {
        let _ = self.0.ending.set(Instant::now());
        self.0.ended.notify_waiters();
    }

    pub(super) fn is_ending(&self) -> bool {
        self.0.ending.get().is_some()
    }

    /// Whether the listener has been ending for as long as a client may pause.
    pub(super) fn is_overdue(&self) -> bool {
        self.0.ending.get().is_some_and(|since| since.elapsed() >= DRAIN_PAUSE)
    }

    pub(super) async fn until_ending(&self) {
        // From here on it is woken, even before it is first polled.
        let ended = self.0.ended.notified();
        if !self.is_ending() {
            ended.await;
        }
    }

    /// Waits until [`ListenerActivity::is_overdue`].
    pub(super) async fn until_overdue(&self) {
        self.until_ending().await;
        sleep(DRAIN_PAUSE).await;
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
            log::warn!(
                "the kernel does not refuse new connections ({denied}; {error}): they are accepted until the \
                 port is closed"
            );
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::future::poll_fn;

    use futures_util::FutureExt;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_moves_is_waited_for() {
        let activity = ListenerActivity::default();
        let mut pause = DrainPause::new(activity.clone());
        advance(DRAIN_PAUSE * 10).await;
        assert!(poll_fn(|context| pause.poll_over(context)).now_or_never().is_none());
        activity.end();
        for _ in 0..10 {
            assert!(poll_fn(|context| pause.poll_over(context)).now_or_never().is_none());
            advance(DRAIN_PAUSE * 3 / 4).await;
            pause.moved();
        }
        assert!(poll_fn(|context| pause.poll_over(context)).now_or_never().is_none());
        advance(DRAIN_PAUSE).await;
        assert!(poll_fn(|context| pause.poll_over(context)).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_are_woken_when_the_listener_ends() {
        let activity = ListenerActivity::default();
        let mut pause = DrainPause::new(activity.clone());
        let paused = tokio::spawn(async move { poll_fn(|context| pause.poll_over(context)).await });
        let (listener, other) = (activity.clone(), activity.clone());
        let ending = tokio::spawn(async move { listener.until_ending().await });
        tokio::task::yield_now().await;
        assert!(!paused.is_finished() && !ending.is_finished());
        activity.end();
        ending.await.unwrap();
        paused.await.unwrap();
        other.until_ending().await;
    }
}
