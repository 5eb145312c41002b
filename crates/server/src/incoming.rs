//! Accepts TCP connections for gRPC: limits their number, and closes those whose clients are silent
//! or do not take their responses.
//!
//! The HTTP/2 library waits without limit for a client's first bytes. Later it sends PING frames to
//! idle clients, so a connected client always sends something.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::Connected;

use super::corked::CorkedStream;
use super::drain::{ListenerActivity, OpenConnection};
use super::farewell::RefusedCalls;
use super::flow::FlowWindows;
use super::frames::PREFACE;
use super::observed::{ObservedStream, StreamObserver};
use super::timed_writes::TimedWrites;
use super::tls::{self, Certificates, MaybeTlsStream};

/// The pause after a failure to accept, for example when no file descriptors are left.
const PAUSE: Duration = Duration::from_millis(50);

/// Time limits for a client.
#[derive(Clone, Copy)]
pub(super) struct GrpcTimeLimits {
    /// Until it has sent its preface.
    pub(super) preface: Duration,
    /// Without a byte, after that.
    pub(super) silence: Duration,
    /// Without taking a part of a response that is ready.
    pub(super) write: Duration,
}

/// A connection that is closed when it is silent or takes no responses, encrypted or not.
pub(super) type GrpcConnection =
    ObservedStream<MaybeTlsStream<TimedWrites<CorkedStream>>, ConnectionGuard>;

/// The client of a connection, in the extensions of its calls.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectedClient {
    /// `None` for a UNIX socket.
    pub(super) address: Option<IpAddr>,
    pub(super) refused: RefusedCalls,
}

/// Knows the client of its connection.
pub(super) trait KnownClient {
    fn client(&self) -> ConnectedClient;
}

impl<S, W: KnownClient> Connected for ObservedStream<S, W> {
    type ConnectInfo = ConnectedClient;

    fn connect_info(&self) -> ConnectedClient {
        self.watch.client()
    }
}

/// The connections to `listener`, at most `most` at a time: others wait to be accepted. Handshakes
/// run concurrently.
pub(super) fn connections(
    listener: TcpListener,
    most: usize,
    patience: GrpcTimeLimits,
    activity: ListenerActivity,
    certificates: Option<Certificates>,
) -> impl Stream<Item = io::Result<GrpcConnection>> {
    let accepted = accepted(listener, most, activity.clone());
    let handshakes = accepted.map(move |accepted| {
        let (certificates, activity) = (certificates.clone(), activity.clone());
        async move {
            let stream = CorkedStream::new(accepted.stream);
            let stream = TimedWrites::new(stream, patience.write, activity.clone());
            let stream = tls::encrypt(stream, certificates.as_ref(), patience.preface).await?;
            let windows = FlowWindows::new(patience.write, activity);
            let guard = ConnectionGuard::new(accepted.place, patience, windows);
            Ok(ObservedStream::new(stream, guard))
        }
    });
    handshakes.buffer_unordered(most.max(1))
}

/// A connection before its handshake.
struct AcceptedConnection {
    stream: TcpStream,
    place: OccupiedPlace,
}

/// The place of a connection among those that may be open.
struct OccupiedPlace {
    address: IpAddr,
    _permit: OwnedSemaphorePermit,
    _open: OpenConnection,
}

fn accepted(
    listener: TcpListener,
    most: usize,
    activity: ListenerActivity,
) -> impl Stream<Item = AcceptedConnection> {
    let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    stream::unfold((listener, room, activity), move |(listener, room, activity)| async move {
        let permit = Arc::clone(&room).acquire_owned().await.ok()?;
        let (stream, address) = loop {
            match listener.accept().await {
                Ok(accepted) => break accepted,
                Err(error) => log::debug!("a gRPC connection cannot be accepted: {error}"),
            }
            sleep(PAUSE).await;
        };
        // Responses are written whole; waiting to fill a packet only delays them.
        let _ = stream.set_nodelay(true);
        activity.accepted(&stream);
        let address = address.ip();
        let place = OccupiedPlace { address, _permit: permit, _open: activity.connection() };
        Some((AcceptedConnection { stream, place }, (listener, room, activity)))
    })
}

/// Closes a connection whose client is silent for too long, or blocks its responses.
pub(super) struct ConnectionGuard {
    patience: GrpcTimeLimits,
    windows: FlowWindows,
    alarm: Pin<Box<Sleep>>,
    /// Bytes received since the alarm was set.
    heard: usize,
    has_begun: bool,
    place: OccupiedPlace,
}

impl ConnectionGuard {
    fn new(place: OccupiedPlace, patience: GrpcTimeLimits, windows: FlowWindows) -> Self {
        ConnectionGuard {
            patience,
            windows,
            alarm: Box::pin(sleep(patience.preface)),
            heard: 0,
            has_begun: false,
            place,
        }
    }

    /// Whether the client has been silent for too long. Registers the next check.
    fn is_silent(&mut self, context: &mut Context<'_>) -> bool {
        while self.alarm.as_mut().poll(context).is_ready() {
            if self.heard < if self.has_begun { 1 } else { PREFACE } {
                return true;
            }
            (self.has_begun, self.heard) = (true, 0);
            self.alarm.as_mut().reset(Instant::now() + self.patience.silence);
        }
        false
    }
}

impl KnownClient for ConnectionGuard {
    fn client(&self) -> ConnectedClient {
        let (address, refused) = (Some(self.place.address), self.windows.refused_calls());
        ConnectedClient { address, refused }
    }
}

impl StreamObserver for ConnectionGuard {
    fn after_read(
        &mut self,
        read: Poll<io::Result<()>>,
        new: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if read.is_ready() {
            self.heard = self.heard.saturating_add(new.len());
            self.windows.received(new);
            self.windows.check()?;
            return read;
        }
        if self.is_silent(context) {
            log::debug!("a connection is closed: its client sent nothing for too long");
            // As if the client had closed it.
            return Poll::Ready(Ok(()));
        }
        if self.windows.are_blocked(context) {
            log::debug!(
                "a connection is closed: its client did not take a response (write_timeout), or has no \
                 calls while the server stops or after a GOAWAY"
            );
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    fn after_write(&mut self, slices: &[IoSlice<'_>], count: usize) {
        self.windows.sent(slices, count);
    }

    fn own_bytes(&mut self) -> &[u8] {
        self.windows.own_bytes()
    }

    fn wrote_own(&mut self, count: usize) {
        self.windows.wrote_own(count);
    }
}
