//! tensorserve: one native binary that serves machine-learning models in its own process.
//!
//! This package is the command line ([`cli`]), the settings ([`config`]) and the assembly of the
//! server ([`Server`]) from the crates below it. `docs/architecture.md` is the map.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

pub mod cli;
pub mod config;
pub mod platforms;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tensorserve_auth::Authenticator;
use tensorserve_core::config::BatchConfig;
use tensorserve_core::engine::{Engine, ModelHandle};
use tensorserve_core::metrics::Metrics;
use tensorserve_core::repository::{Repository, VersionFiles};
use tensorserve_platform::Platforms;
use tensorserve_protocols::tfs::config::batching;
use tensorserve_protocols::tfs::warm_up;
use tensorserve_server::{GrpcListener, HttpListener, ShutdownConfig, Watcher};
use tensorserve_tensor::error::Result;

use crate::config::Config;

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

/// The files beside a version that TensorFlow Serving knows.
pub(crate) struct TfsFiles {
    pub(crate) max_tensor_bytes: usize,
}

impl VersionFiles for TfsFiles {
    fn warm_up(&self, handle: &ModelHandle, folder: &Path, times: usize) -> Result<()> {
        warm_up::run_file(handle, folder, times, self.max_tensor_bytes)
    }

    fn batching(&self, folder: &Path) -> Result<BatchConfig> {
        batching::of_version(folder)
    }
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
        let (core, listeners) = (config.engine(), config.server());
        let files = Arc::new(TfsFiles { max_tensor_bytes: core.max_tensor_bytes });
        let repository = Repository::start(&core, platforms, metrics.clone(), files)?;
        let engine = Engine::new(&core, repository, metrics);
        engine.start_history()?;
        let http = match config.http.port {
            Some(port) => Some(HttpListener::start(&listeners, port, &engine, authenticator)?),
            None => None,
        };
        let grpc = GrpcListener::start(&listeners, &engine, authenticator)?;
        let address = http.as_ref().map(HttpListener::address);
        engine.listens(address, grpc.as_ref().and_then(GrpcListener::address));
        let _watcher =
            tensorserve_server::watch(&listeners, authenticator, http.as_ref(), grpc.as_ref())?;
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
