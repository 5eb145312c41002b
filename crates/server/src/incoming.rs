//! Accepts TCP connections for gRPC: no more than may be open at once, and none that stays
//! silent.
//!
//! The HTTP/2 library waits for ever for a client's first bytes. From then on it asks clients
//! that say nothing whether they are there (PING), so whoever is there can be heard.

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

use super::drain::{Activity, OpenConnection};
use super::tls::{self, Certificates};
use super::watched::{Watch, Watched};

/// What a client sends first, in bytes.
const PREFACE: usize = 24;

/// How long to wait when no connection can be accepted, because no file is left to open, say.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a client may take.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// Until it has said what it speaks.
    pub(super) preface: Duration,
    /// Without a byte, from then on.
    pub(super) silence: Duration,
}

/// A connection that is closed when it is silent, encrypted or not.
pub(super) type GrpcConnection = tls::Stream<Watched<TcpStream, Guard>>;

impl Connected for GrpcConnection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

/// The connections to `listener`, at most `most` at a time: others wait to be accepted. Handshakes
/// are made beside each other.
pub(super) fn connections(
    listener: TcpListener,
    most: usize,
    patience: Patience,
    activity: Activity,
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
    patience: Patience,
    activity: Activity,
) -> impl Stream<Item = Watched<TcpStream, Guard>> {
    let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    stream::unfold((listener, room, activity), move |(listener, room, activity)| async move {
        let place = Arc::clone(&room).acquire_owned().await.ok()?;
        let connection = loop {
            match listener.accept().await {
                Ok((connection, _)) => break connection,
                Err(error) => log::debug!("a connection for gRPC can not be accepted: {error}"),
            }
            sleep(PAUSE).await;
        };
        // Answers are written whole; waiting to fill a packet only delays them.
        let _ = connection.set_nodelay(true);
        let guard = Guard::new(place, activity.connection(), patience);
        Some((Watched::new(connection, guard), (listener, room, activity)))
    })
}

/// Listens for silence.
pub(super) struct Guard {
    patience: Patience,
    alarm: Pin<Box<Sleep>>,
    /// Bytes since the alarm was set.
    heard: usize,
    has_begun: bool,
    _place: OwnedSemaphorePermit,
    _open: OpenConnection,
}

impl Guard {
    fn new(place: OwnedSemaphorePermit, open: OpenConnection, patience: Patience) -> Self {
        let alarm = Box::pin(sleep(patience.preface));
        Guard { patience, alarm, heard: 0, has_begun: false, _place: place, _open: open }
    }

    /// Whether the client has been silent for too long. Arranges to be asked again.
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

impl Watch for Guard {
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
            log::debug!("a connection is closed: its client said nothing for too long");
            // As if the client had closed it.
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }
}
