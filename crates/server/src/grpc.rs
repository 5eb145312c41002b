//! The gRPC listener: limits, encryption, drain. The services are the protocols'.
//!
//! The listener has its own multi-threaded runtime: the HTTP library's keeps a connection on one thread, and gRPC
//! clients send all their calls over one connection.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tensorserve_http2::Http2Options;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

use super::calls::GatedCalls;
use super::drain::{DRAIN_PAUSE, ListenerActivity};
use super::gate::Gate;
use super::health::HealthService;
use super::incoming::GrpcConnections;
use super::silent::SilentCalls;
use super::tls::Certificates;
use super::{bind, drain};
use crate::api::ServedApi;
use crate::config::ServerConfig;
use tensorserve_auth::Authenticator;
use tensorserve_tensor::error::{Code, Error, Result};

/// The most calls in flight on one connection.
const STREAMS: u32 = 256;

/// The most bytes of a message to the server's own services. It holds the name of a service, of a
/// method or of a file.
const OWN_MESSAGE: usize = 4 << 10;

/// How many bytes a client may send ahead of the server: per call about an image, per connection a
/// few.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// The largest frame that a client may send. Each costs reads and bookkeeping; most clients send the smaller
/// ones of the default, 16 KiB, only to servers that take no larger ones.
const FRAME: u32 = 256 << 10;

/// The most memory that the heads of a call may take.
const HEADERS: u32 = 16 << 10;

/// An idle client gets a ping; its connection ends if it does not respond in time.
const PING_AFTER: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// A running gRPC listener.
pub struct GrpcListener {
    address: Option<SocketAddr>,
    socket: Option<TcpListener>,
    path: Option<PathBuf>,
    activity: ListenerActivity,
    certificates: Option<Certificates>,
    thread: JoinHandle<()>,
}

impl GrpcListener {
    /// Binds and starts to serve `api`; `None` if the configuration has no gRPC.
    ///
    /// # Errors
    /// If the port or socket cannot be bound, the certificates cannot be used, or threads cannot be
    /// started.
    pub fn start(
        config: &ServerConfig,
        api: &ServedApi,
        authenticator: Option<&Authenticator>,
    ) -> Result<Option<Self>> {
        let grpc = &config.grpc;
        if grpc.port.is_none() && grpc.socket_path.is_none() {
            return Ok(None);
        }
        let socket = grpc.port.map(|port| bind(grpc.host, port, grpc.port_setting)).transpose()?;
        let failed = |e| failed("cannot be started", e);
        let clone = socket.as_ref().map(TcpListener::try_clone).transpose().map_err(failed)?;
        let address = socket.as_ref().map(TcpListener::local_addr).transpose().map_err(failed)?;
        let (worker, begun) = mpsc::channel();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.http.threads)
            .thread_name("grpc")
            .on_thread_start(move || {
                let _ = worker.send(());
            })
            .enable_all()
            .build()
            .map_err(failed)?;
        begun.iter().take(config.http.threads).for_each(drop);
        let activity = ListenerActivity::default();
        let gate = Gate::new(authenticator, &config.http.admin, api.engine().metrics());
        let certificates =
            grpc.tls.as_ref().map(|tls| Certificates::new(tls, b"h2")).transpose()?;
        let port = socket.map(|socket| (socket, certificates.clone()));
        let serving = serving(&runtime, config, api, port, &activity, gate)?;
        let thread = thread::Builder::new().name("grpc-main".to_owned());
        let thread = thread.spawn(move || {
            runtime.block_on(serving);
            runtime.shutdown_timeout(Duration::from_secs(1));
        });
        let (thread, path) = (thread.map_err(failed)?, grpc.socket_path.clone());
        let socket = clone;
        Ok(Some(GrpcListener { address, socket, path, activity, certificates, thread }))
    }

    /// The certificates of encrypted connections.
    pub(super) fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The address of the listener, with the port that was chosen; `None` if there is only a
    /// socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Keeps serving for `delay`, then refuses new calls, lets those in flight finish for at most
    /// `timeout`, and ends. Blocks until then.
    pub fn stop(self, delay: Duration, timeout: Duration) {
        thread::sleep(delay);
        let end = Instant::now() + timeout;
        self.activity.close_connections();
        if let Some(socket) = self.socket {
            // Clients that are connected, or about to be, may have sent a call.
            drain::refuse_connections(&socket);
            self.activity.wait_until_accepted(end);
        }
        // Clients get a GOAWAY, which names their last accepted call. The socket closes, so that
        // new connections are refused at once.
        self.activity.end();
        while !self.thread.is_finished() && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
        if !self.thread.is_finished() {
            log::warn!("gRPC calls were still in flight at the end of the shutdown timeout");
        }
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Binds the listener, and returns the future that serves its connections.
fn serving(
    runtime: &Runtime,
    config: &ServerConfig,
    api: &ServedApi,
    port: Option<(TcpListener, Option<Certificates>)>,
    activity: &ListenerActivity,
    gate: Gate,
) -> Result<impl Future<Output = ()> + use<>> {
    let _inside = runtime.enter();
    let (grpc, http) = (&config.grpc, &config.http);
    let mut routes = services(api)?;
    if grpc.health_service {
        let health = HealthService::new(api.clone(), activity.clone());
        let health = HealthServer::new(health).max_decoding_message_size(OWN_MESSAGE);
        routes = routes.add_service(health);
    }
    let silent_calls = SilentCalls::new(activity.clone());
    let connections = GrpcConnections {
        calls: GatedCalls::new(routes, gate, api, http.body_timeout, silent_calls),
        options: options(config),
        activity: activity.clone(),
    };
    let mut listeners = Vec::new();
    if let Some((socket, certificates)) = port {
        let socket = tokio::net::TcpListener::from_std(socket);
        let socket = socket.map_err(|e| failed("cannot listen", e))?;
        let served = connections.clone().serve_port(socket, http.max_connections, certificates);
        listeners.push(served.boxed());
    }
    if let Some(path) = &grpc.socket_path {
        // The file's permissions decide who may connect; the gate still decides what they may do.
        let served = connections.serve_socket(bind_path(path)?);
        listeners.push(served.boxed());
    }
    Ok(async move {
        futures_util::future::join_all(listeners).await;
    })
}

/// The limits of connections.
fn options(config: &ServerConfig) -> Http2Options {
    Http2Options {
        streams: STREAMS,
        head: HEADERS,
        stream_window: STREAM_WINDOW,
        connection_window: CONNECTION_WINDOW,
        frame: FRAME,
        preface_timeout: config.http.header_timeout,
        ping_after: PING_AFTER,
        ping_timeout: PING_TIMEOUT,
        write_timeout: config.http.write_timeout,
        drain_pause: DRAIN_PAUSE,
    }
}

/// The services of the protocols, and reflection.
fn services(api: &ServedApi) -> Result<Routes> {
    let mut services = api.services();
    let broken = |e| Error::internal("the gRPC service descriptors are invalid").with_source(e);
    let v1 = reflection(api).build_v1().map_err(broken)?;
    let v1alpha = reflection(api).build_v1alpha().map_err(broken)?;
    services.add_service(v1.max_decoding_message_size(OWN_MESSAGE));
    services.add_service(v1alpha.max_decoding_message_size(OWN_MESSAGE));
    Ok(services.routes())
}

fn reflection(api: &ServedApi) -> tonic_reflection::server::Builder<'static> {
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    let all = api.descriptors().iter();
    all.fold(builder, |builder, descriptors| {
        builder.register_encoded_file_descriptor_set(descriptors)
    })
}

/// Binds a UNIX socket. Replaces a file on which no process listens any more.
fn bind_path(path: &Path) -> Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_err() {
        let _ = std::fs::remove_file(path);
    }
    UnixListener::bind(path).map_err(|e| {
        let message = format!("{} cannot be bound: {e}", path.display());
        Error::new(Code::Unavailable, message).with_source(e)
    })
}

fn failed(what: &str, error: std::io::Error) -> Error {
    Error::unavailable(format!("the gRPC listener {what}: {error}")).with_source(error)
}
