//! tensorserve: one native binary that serves machine-learning models in its own process.
//!
//! A request moves forward through a few hops, each a value: [`server`] routes it,
//! [`engine`] pins the model version, [`protocol`] decodes it (through [`codec`]) into
//! [`tensor`]s, [`repository`] checks it, [`batch`] runs it with others on a [`platform`]'s
//! executable, and the protocol writes the answer. `docs/architecture.md` is the map;
//! `tests/layering.rs` holds who may import whom.
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod archive;
pub mod auth;
pub mod batch;
pub mod cli;
pub mod codec;
pub mod config;
pub mod engine;
pub mod error;
pub mod machine;
pub mod metrics;
pub mod os;
pub mod pb;
pub mod platform;
pub mod proto;
pub mod protocol;
pub mod repository;
pub mod request_log;
pub mod server;
pub mod steps;
pub mod tensor;
pub mod worker;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::auth::Authenticator;
use crate::config::{Config, ShutdownConfig};
use crate::engine::{Engine, ModelHandle};
use crate::error::Result;
use crate::metrics::Metrics;
use crate::platform::Platforms;
use crate::protocol::tfs::warm_up;
use crate::repository::Repository;
use crate::server::{GrpcListener, HttpListener, Watcher};

/// How long a stop waits for logged requests to be written.
const LOG_PATIENCE: Duration = Duration::from_secs(5);
/// How long Python processes may take to end when nothing is asked of them any more.
const WORKERS_END: Duration = Duration::from_secs(2);

/// A running server.
pub struct Server {
    engine: Engine,
    http: Option<HttpListener>,
    grpc: Option<GrpcListener>,
    shutdown: ShutdownConfig,
    _watcher: Watcher,
}

impl Server {
    /// Starts serving. Returns once the ports are open; models are loaded in the background.
    ///
    /// # Errors
    /// If a port can not be bound or a thread not be started.
    pub fn start(config: &Config, platforms: Platforms) -> Result<Self> {
        let authenticator = config.auth.as_ref().map(Authenticator::new).transpose()?;
        let authenticator = authenticator.as_ref();
        let metrics = Metrics::new();
        let most = config.max_tensor_bytes();
        let warm_up = Arc::new(move |handle: &ModelHandle, folder: &Path, times: usize| {
            warm_up::run_file(handle, folder, times, most)
        });
        let repository = Repository::start(config, platforms, metrics.clone(), warm_up)?;
        let engine = Engine::new(config, repository, metrics);
        engine.start_history()?;
        let http = match config.http.port {
            Some(port) => Some(HttpListener::start(config, port, &engine, authenticator)?),
            None => None,
        };
        let grpc = GrpcListener::start(config, &engine, authenticator)?;
        let address = http.as_ref().map(HttpListener::address);
        engine.listens(address, grpc.as_ref().and_then(GrpcListener::address));
        let _watcher = server::watch(config, authenticator, http.as_ref(), grpc.as_ref())?;
        Ok(Server { engine, http, grpc, shutdown: config.shutdown.clone(), _watcher })
    }

    /// The address of the HTTP listener, if there is one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(HttpListener::address)
    }

    /// The address of the gRPC listener, if there is one on a port.
    #[must_use]
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref().and_then(GrpcListener::address)
    }

    /// The core.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Stops gracefully: not ready at once, then as [`HttpListener::stop`] and
    /// [`GrpcListener::stop`]. Blocks.
    pub fn stop(self) {
        let ShutdownConfig { delay, timeout } = self.shutdown;
        self.engine.stop();
        thread::scope(|scope| {
            if let Some(grpc) = self.grpc {
                scope.spawn(move || grpc.stop(delay, timeout));
            }
            if let Some(http) = self.http {
                http.stop(delay, timeout);
            }
        });
        self.engine.flush_logs(LOG_PATIENCE);
        self.engine.stop_workers(WORKERS_END);
    }
}
