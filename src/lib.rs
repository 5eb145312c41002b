//! tensorserve: an inference server for machine-learning models.
//!
//! This package contains the command line ([`cli`]), the configuration ([`config`]) and the server
//! ([`Server`]), which it assembles from the crates in `crates/`. See `docs/architecture.md`.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod certificates;
pub mod cli;
pub mod config;
pub mod platforms;
mod progress;
pub mod protocols;
pub mod stores;
mod telemetry;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tensorserve_auth::Authenticator;
use tensorserve_core::engine::Engine;
use tensorserve_os::arenas::in_turn_over_arenas;
use tensorserve_os::server_arenas;
use tensorserve_platform::Platforms;
use tensorserve_protocol::Protocol;
use tensorserve_server::{
    FileChecks, FileWatcher, GrpcListener, HttpListener, ServedApi, ShutdownConfig,
};
use tensorserve_tensor::error::{Error, Result};

use crate::config::Config;
use crate::telemetry::SpanExport;

/// Time limit at shutdown for writing logged requests.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit at shutdown for sending spans.
const SPAN_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit at shutdown for idle Python processes to exit.
const WORKER_STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A running server.
pub struct Server {
    engine: Engine,
    platforms: Platforms,
    api: ServedApi,
    http: Option<HttpListener>,
    grpc: Option<GrpcListener>,
    shutdown: ShutdownConfig,
    telemetry: Option<SpanExport>,
    watcher: FileWatcher,
}

impl Server {
    /// Serves the protocols that are built in. Returns once the ports are open; models are loaded in
    /// the background.
    ///
    /// # Errors
    /// If a port cannot be bound or a thread cannot be started.
    pub fn start(config: &Config, platforms: Platforms) -> Result<Self> {
        Server::with_protocols(config, platforms, &protocols::built_in(config))
    }

    /// Serves these protocols. Where two have the same route, the first one is used.
    ///
    /// # Errors
    /// If a port cannot be bound, a thread cannot be started, or routes are in conflict.
    pub fn with_protocols(
        config: &Config,
        platforms: Platforms,
        protocols: &[Arc<dyn Protocol>],
    ) -> Result<Self> {
        let authenticator = config.auth.as_ref().map(Authenticator::new).transpose()?;
        let (authenticator, listeners) = (authenticator.as_ref(), config.server());
        let (engine, held) = protocols::engine(config, platforms.clone(), protocols)?;
        engine.start_history()?;
        let (observer, telemetry) = telemetry::start(config)?;
        let api = ServedApi::new(&listeners, &engine, protocols, observer)?;
        // Their threads are those that allocate most. Those of loads would take turns with them.
        let (http, grpc) = in_turn_over_arenas(server_arenas(), || {
            let http = match config.http.port {
                Some(port) => Some(HttpListener::start(&listeners, port, &api, authenticator)?),
                None => None,
            };
            let grpc = GrpcListener::start(&listeners, &api, authenticator)?;
            Ok::<_, Error>((http, grpc))
        })?;
        drop(held);
        let address = http.as_ref().map(HttpListener::address);
        engine.listens(address, grpc.as_ref().and_then(GrpcListener::address));
        let watcher =
            tensorserve_server::watch(&listeners, authenticator, http.as_ref(), grpc.as_ref())?;
        let shutdown = config.shutdown.clone();
        if let Some(telemetry) = &telemetry {
            telemetry.count_in(&engine);
        }
        Ok(Server { engine, platforms, api, http, grpc, shutdown, telemetry, watcher })
    }

    /// The routes and services that clients can call.
    #[must_use]
    pub fn api(&self) -> &ServedApi {
        &self.api
    }

    /// The address of the HTTP listener, if there is one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpListener::address)
    }

    /// The addresses of the HTTP listener, also of its additional ports.
    #[must_use]
    pub fn http_addresses(&self) -> Vec<SocketAddr> {
        self.http.as_ref().map_or(Vec::new(), HttpListener::addresses)
    }

    /// The address of the gRPC listener, if there is one on a port.
    #[must_use]
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().and_then(GrpcListener::address)
    }

    /// Has the files of certificates, users and keys checked out of turn.
    #[must_use]
    pub fn file_checks(&self) -> FileChecks {
        self.watcher.checks()
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Stops gracefully: not ready at once, then as [`HttpListener::stop`] and
    /// [`GrpcListener::stop`]. Blocks.
    pub fn stop(self) {
        let ShutdownConfig { delay, timeout } = self.shutdown;
        // First, so that also the response that reports not ready closes its connection.
        self.api.close_connections();
        self.engine.stop();
        thread::scope(|scope| {
            if let Some(grpc) = self.grpc {
                scope.spawn(move || grpc.stop(delay, timeout));
            }
            if let Some(http) = self.http {
                http.stop(delay, timeout);
            }
        });
        self.engine.flush_logs(LOG_FLUSH_TIMEOUT);
        self.engine.stop_workers(WORKER_STOP_TIMEOUT);
        self.platforms.stop(WORKER_STOP_TIMEOUT);
        if let Some(telemetry) = self.telemetry {
            telemetry.stop(SPAN_FLUSH_TIMEOUT);
        }
    }
}
