//! The listeners: they bind, serve and drain.
//!
//! [`api`] combines the protocols, [`http`] and [`calls`] take requests to their handlers. [`admission`] has the
//! order of what happens before that, [`gate`] decides who is admitted, [`body`] and [`form`] read payloads,
//! [`connection`] limits how long heads take,
//! [`tls`] encrypts, [`drain`] stops without losing requests. This crate depends on no protocol and
//! on no model.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use actix_http::error::DispatchError;
use actix_http::{HttpService, Protocol};
use actix_server::{Server, ServerBuilder, ServerHandle};
use actix_service::{ServiceFactoryExt, fn_service, map_config};
use actix_web::dev::AppConfig;
use actix_web::rt::System;
use actix_web::rt::net::TcpStream;
use actix_web::{App, web};
use socket2::{Domain, Socket, Type};

use self::connection::{Connection, ConnectionTicks, HttpTimeLimits};
use self::direct::DirectStream;
use self::drain::ListenerActivity;
use self::files::WatchedFiles;
use self::gate::Gate;
use self::tls::Certificates;
use tensorserve_auth::Authenticator;
use tensorserve_tensor::error::{Code, Error, Result};

mod access_log;
mod admission;
mod api;
pub mod body;
mod builtin;
mod calls;
mod caught;
pub mod config;
mod connected;
mod connection;
mod cors;
mod deadline;
mod direct;
mod drain;
mod files;
pub mod form;
mod gate;
mod grpc;
mod health;
mod held;
mod held_call;
mod http;
mod incoming;
mod observed;
mod priority;
mod receipt;
mod recorded;
mod silent;
mod timed_body;
mod timed_writes;
mod tls;
mod trace;
mod unary;
mod upgrades;

pub use self::access_log::ACCESS_LOG;
pub use self::api::ServedApi;
pub use self::config::{GrpcConfig, HttpConfig, ServerConfig, ShutdownConfig};
pub use self::files::{FileChecks, FileWatcher};
pub use self::grpc::GrpcListener;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Checks the certificates of the listeners without using them.
///
/// # Errors
/// If a key or a certificate cannot be used: which one, and why.
pub fn check_certificates(config: &ServerConfig) -> Result<()> {
    let all = [(&config.http.tls, &b"http/1.1"[..]), (&config.grpc.tls, b"h2")];
    all.into_iter().try_for_each(|(tls, protocol)| match tls {
        Some(tls) => tls::check(tls, protocol),
        None => Ok(()),
    })
}

/// Watches the files that the listeners use.
///
/// # Errors
/// If the thread cannot be started.
pub fn watch(
    config: &ServerConfig,
    authenticator: Option<&Authenticator>,
    http: Option<&HttpListener>,
    grpc: Option<&GrpcListener>,
) -> Result<FileWatcher> {
    let http = http.and_then(|http| http.certificates.as_ref());
    let certificates = http.into_iter().chain(grpc.and_then(GrpcListener::certificates));
    let mut files: Vec<WatchedFiles> = certificates.map(Certificates::files).collect();
    if let Some((authenticator, file)) = authenticator.and_then(|a| Some((a.clone(), a.file()?))) {
        let path = file.to_owned();
        let read = move || {
            let count = authenticator.reload().map_err(|e| e.context("auth_file"))?;
            Ok(format!("auth_file reloaded: {count} users and keys"))
        };
        files.push(WatchedFiles::new(vec![path], read));
    }
    FileWatcher::start(config.poll_interval, files)
}

/// A running HTTP listener.
pub struct HttpListener {
    address: SocketAddr,
    handle: ServerHandle,
    activity: ListenerActivity,
    sockets: Vec<TcpListener>,
    certificates: Option<Certificates>,
    thread: JoinHandle<()>,
}

impl HttpListener {
    /// Binds `port` and those of the further ports that are free, and starts to serve `api`.
    ///
    /// # Errors
    /// If the address cannot be bound, the certificates cannot be used, or threads cannot be
    /// started.
    pub fn start(
        config: &ServerConfig,
        port: u16,
        api: &ServedApi,
        authenticator: Option<&Authenticator>,
    ) -> Result<Self> {
        let tls = config.http.tls.as_ref();
        let certificates = tls.map(|tls| Certificates::new(tls, b"http/1.1")).transpose()?;
        let socket = bind(config.http.host, port, config.http.port_setting)?;
        let address = socket.local_addr().map_err(|e| failed("has no address", e))?;
        let mut sockets = vec![socket];
        for &(port, setting) in &config.http.more_ports {
            match bind(config.http.host, port, setting) {
                Ok(socket) => sockets.push(socket),
                Err(error) => {
                    log::warn!("{error}; the server still listens on port {}", address.port())
                }
            }
        }
        let clones = sockets.iter().map(TcpListener::try_clone).collect::<Result<_, _>>();
        let clones = clones.map_err(|e| failed("cannot be shared", e))?;
        let activity = api.activity().clone();
        let gate = Gate::new(authenticator, &config.http.admin, api.engine().metrics());
        let state = http::HttpState::new(config, api.clone(), gate);
        let (http_config, drain_time) = (config.http.clone(), config.shutdown.timeout);
        let (report, started) = mpsc::channel();
        let workers = http_config.threads * sockets.len();
        let (worker, begun) = mpsc::channel();
        let port = HttpPort { sockets, certificates: certificates.clone() };
        let serve = move || serve(&http_config, drain_time, port, &state, (&report, worker));
        let thread = thread::Builder::new()
            .name("http".to_owned())
            .spawn(serve)
            .map_err(|e| failed("cannot start its thread", e))?;
        let ended = || Error::internal("the HTTP listener ended before it started");
        let handle = started.recv().map_err(|_| ended())??;
        // actix-web gives the handle before it starts the threads of connections.
        for _ in 0..workers {
            begun.recv().map_err(|_| ended())?;
        }
        let sockets = clones;
        Ok(HttpListener { address, handle, activity, sockets, certificates, thread })
    }

    /// The address of the listener, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The addresses of all its ports: first [`Self::address`], then those of the additional ports that were free.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect()
    }

    /// Keeps serving for `delay`, then stops accepting, lets requests in flight finish for at most
    /// `timeout`, and ends. Blocks until then.
    pub fn stop(self, delay: Duration, timeout: Duration) {
        thread::sleep(delay);
        let end = Instant::now() + timeout;
        self.sockets.iter().for_each(drain::refuse_connections);
        self.activity.wait_until_quiet(end);
        // The call sends the command; waiting for its future can take an unnecessary second.
        drop(self.handle.stop(true));
        // Idle connections close, and clients that pause are not waited for.
        self.activity.end();
        self.activity.wait_until_closed(end);
        if self.activity.connections() > 0 {
            let left = self.activity.connections();
            log::warn!("{left} connections were still open at the end of the shutdown timeout");
        }
        drop(self.handle.stop(false));
        let finished = Instant::now() + Duration::from_secs(2);
        while !self.thread.is_finished() && Instant::now() < finished {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The sockets of the HTTP port, and their encryption.
struct HttpPort {
    sockets: Vec<TcpListener>,
    /// For TLS handshakes, if connections are encrypted.
    certificates: Option<Certificates>,
}

/// Serves until it is stopped. Sends its handle, and a message for each thread of connections and port that has begun.
fn serve(
    config: &HttpConfig,
    drain_time: Duration,
    port: HttpPort,
    state: &http::HttpState,
    (report, worker): (&mpsc::Sender<Result<ServerHandle>>, mpsc::Sender<()>),
) {
    let patience = HttpTimeLimits { head: config.header_timeout, idle: config.keep_alive };
    let write_timeout = config.write_timeout;
    let (keep_alive, header_timeout) = (config.keep_alive, config.header_timeout);
    let state = state.clone();
    let HttpPort { sockets, certificates } = port;
    let service = move || {
        let _ = worker.send(());
        // Each thread has its own reference, which its requests count.
        let app = App::new().app_data(web::Data::new(state.clone()));
        let app = app.default_service(web::to(http::dispatch));
        let ending = state.activity().clone();
        let http = HttpService::build()
            .keep_alive(keep_alive)
            .client_request_timeout(header_timeout)
            .client_disconnect_timeout(Duration::from_secs(5))
            // A client that closes its side has disconnected: its request is dropped.
            .h1_allow_half_closed(false)
            .graceful_shutdown_signal(move || {
                let activity = ending.clone();
                async move { activity.until_ending().await }
            })
            .on_connect_ext(|connection: &Connection, data| {
                data.insert(connection.watch.progress());
                data.insert(connection.stream.writer());
            })
            .finish(map_config(app, |()| AppConfig::default()));
        let (activity, certificates) = (state.activity().clone(), certificates.clone());
        let accept = fn_service(move |stream: TcpStream| {
            // Responses are written whole; waiting to fill a packet only delays them.
            let _ = stream.set_nodelay(true);
            activity.accepted(&stream);
            let peer = stream.peer_addr().ok();
            // It counts as open from here on, including the handshake.
            let (open, certificates) = (activity.connection(), certificates.clone());
            let activity = activity.clone();
            async move {
                let (head, certificates) = (patience.head, certificates.as_ref());
                let stream = tls::accept(stream, certificates, head, write_timeout, &activity);
                let stream = stream.await.map_err(DispatchError::Io)?;
                let ticks = ConnectionTicks::new(patience, open);
                let connection = Connection::new(DirectStream::new(stream), ticks);
                Ok::<_, DispatchError>((connection, Protocol::Http1, peer))
            }
        });
        accept.and_then(http).map_err(|error| {
            log::debug!("a connection ended: {error}");
            error
        })
    };
    let server = Server::build()
        .workers(config.threads)
        .max_concurrent_connections(config.max_connections.div_ceil(config.threads))
        .shutdown_timeout(drain_time.as_secs().max(1))
        .disable_signals();
    let listens = |server: ServerBuilder, socket| server.listen("http", socket, service.clone());
    let server = match sockets.into_iter().try_fold(server, listens) {
        Ok(server) => server,
        Err(error) => {
            let _ = report.send(Err(failed("cannot be listened on", error)));
            return;
        }
    };
    let ended = System::new().block_on(async move {
        let server = server.run();
        let _ = report.send(Ok(server.handle()));
        server.await
    });
    if let Err(error) = ended {
        log::error!("the HTTP listener ended: {error}");
    }
}

/// Binds a port; `option` is the setting that changes it.
fn bind(host: IpAddr, port: u16, option: &str) -> Result<TcpListener> {
    // All addresses, as in the servers that this one replaces; also on a machine without IPv6.
    if host == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !has_ipv6() {
        return bind(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port, option);
    }
    let address = SocketAddr::new(host, port);
    let bound = || -> std::io::Result<TcpListener> {
        let socket =
            Socket::new(Domain::for_address(address), Type::STREAM, Some(socket2::Protocol::TCP))?;
        if host == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    bound().map_err(|error| {
        #[allow(clippy::wildcard_enum_match_arm)] // Not ours, and open-ended.
        let hint = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("; another program uses this port: choose another one with {option}")
            }
            std::io::ErrorKind::PermissionDenied => {
                "; ports below 1024 require privileges".to_owned()
            }
            _ => String::new(),
        };
        let message = format!("{address} cannot be bound: {error}{hint}");
        Error::new(Code::Unavailable, message).with_source(error)
    })
}

/// Whether a socket can be bound to `::`: not if the kernel has no IPv6, or if it is disabled.
fn has_ipv6() -> bool {
    let any = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(socket2::Protocol::TCP));
    socket.and_then(|socket| socket.bind(&any.into())).is_ok()
}

fn failed(what: &str, error: std::io::Error) -> Error {
    Error::unavailable(format!("the HTTP listener {what}: {error}")).with_source(error)
}
