//! Accepts connections for gRPC: limits their number, and serves each in a task of its own.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tensorserve_http2::{Http2Options, RefusedCalls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::calls::GatedCalls;
use super::connected::ConnectedClient;
use super::drain::{ListenerActivity, OpenConnection};
use super::timed_writes::TimedWrites;
use super::tls::{self, Certificates};

/// The pause after a failure to accept, for example when no file descriptors are left.
const PAUSE: Duration = Duration::from_millis(50);

/// What the connections of a listener have in common.
#[derive(Clone)]
pub(super) struct GrpcConnections {
    pub(super) calls: GatedCalls,
    pub(super) options: Http2Options,
    pub(super) activity: ListenerActivity,
}

impl GrpcConnections {
    /// Serves the connections of a port, at most `most` at a time: others wait to be accepted. Ends when the listener
    /// does, and all calls are answered.
    pub(super) async fn serve_port(
        self,
        listener: TcpListener,
        most: usize,
        certificates: Option<Certificates>,
    ) {
        let port = Arc::new(GrpcPort {
            listener,
            room: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            certificates,
        });
        let begin = |accepted| {
            let (connections, port) = (self.clone(), Arc::clone(&port));
            async move { connections.serve_tcp(accepted, port.certificates.as_ref()).await }
        };
        let mut open = JoinSet::new();
        self.accept_until_end(&mut open, || port.accept(&self.activity), begin).await;
        drop(port);
        while open.join_next().await.is_some() {}
    }

    /// Serves the connections of a UNIX socket, as those of a port.
    pub(super) async fn serve_socket(self, listener: UnixListener) {
        let begin = |stream: UnixStream| {
            let connections = self.clone();
            async move { connections.serve_unix(stream).await }
        };
        let accept = || async { retried(|| listener.accept()).await.0 };
        let mut open = JoinSet::new();
        self.accept_until_end(&mut open, accept, begin).await;
        drop(listener);
        while open.join_next().await.is_some() {}
    }

    /// Begins what is accepted, until the listener ends.
    async fn accept_until_end<T, A, F>(
        &self,
        open: &mut JoinSet<io::Result<()>>,
        accept: impl Fn() -> A,
        begin: impl Fn(T) -> F,
    ) where
        A: Future<Output = T>,
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let mut ending = pin!(self.activity.until_ending());
        loop {
            tokio::select! {
                () = &mut ending => return,
                accepted = accept() => drop(open.spawn(begin(accepted))),
                ended = open.join_next(), if !open.is_empty() => {
                    if let Some(Err(error)) = ended {
                        log::error!("a gRPC connection ended by a panic: {error}");
                    }
                }
            }
        }
    }

    async fn serve_tcp(
        self,
        accepted: AcceptedConnection,
        certificates: Option<&Certificates>,
    ) -> io::Result<()> {
        let AcceptedConnection { stream, place } = accepted;
        let options = &self.options;
        let stream = TimedWrites::new(stream, options.write_timeout, self.activity.clone());
        let handshake = tls::encrypt(stream, certificates, options.preface_timeout);
        let stream = tokio::select! {
            stream = handshake => stream?,
            () = self.activity.until_ending() => return Ok(()),
        };
        self.serve_stream(stream, Some(place.address)).await
    }

    async fn serve_unix(self, stream: UnixStream) -> io::Result<()> {
        let limit = self.options.write_timeout;
        let stream = TimedWrites::new(stream, limit, self.activity.clone());
        self.serve_stream(stream, None).await
    }

    async fn serve_stream<S>(self, stream: S, address: Option<IpAddr>) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let refused = RefusedCalls::default();
        let client = ConnectedClient { address, refused: refused.clone() };
        let handle = |request| self.calls.answer(request, client.clone());
        let ending = (self.activity.until_ending(), || self.activity.is_ending());
        let served = tensorserve_http2::serve(stream, self.options, refused, ending, handle).await;
        served.inspect_err(|error| log::debug!("a gRPC connection failed: {error}"))
    }
}

/// A port with the limit of its connections.
struct GrpcPort {
    listener: TcpListener,
    room: Arc<Semaphore>,
    certificates: Option<Certificates>,
}

/// A connection before its handshake.
struct AcceptedConnection {
    stream: TcpStream,
    place: OccupiedPlace,
}

/// The place of a connection among those that may be open.
struct OccupiedPlace {
    address: IpAddr,
    _permit: Option<OwnedSemaphorePermit>,
    _open: OpenConnection,
}

impl GrpcPort {
    /// The next connection, once there is room for it.
    async fn accept(&self, activity: &ListenerActivity) -> AcceptedConnection {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.room).acquire_owned().await.ok();
        let (stream, address) = retried(|| self.listener.accept()).await;
        // Responses are written whole; waiting to fill a packet only delays them.
        let _ = stream.set_nodelay(true);
        activity.accepted(&stream);
        let (address, open) = (address.ip(), activity.connection());
        let place = OccupiedPlace { address, _permit: permit, _open: open };
        AcceptedConnection { stream, place }
    }
}

/// What is accepted, after failures at a later try.
async fn retried<T, F>(accept: impl Fn() -> F) -> T
where
    F: Future<Output = io::Result<T>>,
{
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) => log::debug!("a gRPC connection cannot be accepted: {error}"),
        }
        sleep(PAUSE).await;
    }
}
