//! Accepts TCP connections for gRPC: limits their number, and closes silent ones.
//!
//! The HTTP/2 library waits without limit for a client's first bytes. Later it sends PING frames to
//! idle clients, so a connected client always sends something.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tonic::transport::server::Connected;

use super::drain::{ListenerActivity, OpenConnection};
use super::observed::{ObservedStream, ReadObserver};
use super::tls::{self, Certificates};

/// The length of a client's HTTP/2 preface in bytes.
const PREFACE: usize = 24;

/// The pause after a failure to accept, for example when no file descriptors are left.
const PAUSE: Duration = Duration::from_millis(50);

/// Time limits for a client.
#[derive(Clone, Copy)]
pub(super) struct GrpcTimeLimits {
    /// Until it has sent its preface.
    pub(super) preface: Duration,
    /// Without a byte, after that.
    pub(super) silence: Duration,
}

/// A connection that is closed when it is silent, encrypted or not.
pub(super) type GrpcConnection = tls::MaybeTlsStream<ObservedStream<TcpStream, SilenceGuard>>;

impl Connected for GrpcConnection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
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
    let accepted = accepted(listener, most, patience, activity);
    let handshakes = accepted.map(move |connection| {
        let certificates = certificates.clone();
        async move { tls::encrypt(connection, certificates.as_ref(), patience.preface).await }
    });
    handshakes.buffer_unordered(most.max(1))
}

fn accepted(
    listener: TcpListener,
    most: usize,
    patience: GrpcTimeLimits,
    activity: ListenerActivity,
) -> impl Stream<Item = ObservedStream<TcpStream, SilenceGuard>> {
    let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    stream::unfold((listener, room, activity), move |(listener, room, activity)| async move {
        let place = Arc::clone(&room).acquire_owned().await.ok()?;
        let connection = loop {
            match listener.accept().await {
                Ok((connection, _)) => break connection,
                Err(error) => log::debug!("a gRPC connection cannot be accepted: {error}"),
            }
            sleep(PAUSE).await;
        };
        // Responses are written whole; waiting to fill a packet only delays them.
        let _ = connection.set_nodelay(true);
        let guard = SilenceGuard::new(place, activity.connection(), patience);
        Some((ObservedStream::new(connection, guard), (listener, room, activity)))
    })
}

/// Closes a connection whose client is silent for too long.
pub(super) struct SilenceGuard {
    patience: GrpcTimeLimits,
    alarm: Pin<Box<Sleep>>,
    /// Bytes received since the alarm was set.
    heard: usize,
    has_begun: bool,
    _place: OwnedSemaphorePermit,
    _open: OpenConnection,
}

impl SilenceGuard {
    fn new(place: OwnedSemaphorePermit, open: OpenConnection, patience: GrpcTimeLimits) -> Self {
        let alarm = Box::pin(sleep(patience.preface));
        SilenceGuard { patience, alarm, heard: 0, has_begun: false, _place: place, _open: open }
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

impl ReadObserver for SilenceGuard {
    fn after_read(
        &mut self,
        read: Poll<io::Result<()>>,
        new: &mut [u8],
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if read.is_ready() {
            self.heard = self.heard.saturating_add(new.len());
            return read;
        }
        if self.is_silent(context) {
            log::debug!("a connection is closed: its client sent nothing for too long");
            // As if the client had closed it.
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}
