//! The core's API, held by every front end: find a model, run a signature, tell the state.
//!
//! Protocols see models only through this module; it re-exports the few types they need.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use self::seconds::Seconds;
use crate::batch::BatchOutput;
use crate::config::{EngineConfig, RepositoryConfig, SourceConfig};
use crate::metrics::Metrics;
use crate::repository::NoFormats;
use crate::repository::Repository;
use tensorserve_os::machine;
use tensorserve_platform::Platforms;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Code, Error, Result};

mod inference;
mod operate;
mod seconds;

pub use self::inference::{
    Call, InferRequest, InferResponse, Inferred, Resolver, RunOutput, SignatureRun,
};
pub use self::operate::Facts;
pub use crate::entry::{EntryPoint, Method};
pub use crate::metrics::{InFlight, Point, Rates, Tally};
pub use crate::repository::{
    ChangeRequest, Choice, CustomOps, InputStyle, LifecycleEvent, LoadedModel, ModelHandle,
    ModelSpec, ModelState, OpRun, PlatformInfo, REQUEST, RunTiming, Unresolved, VersionState,
    VersionStatus,
};
pub use crate::request_log::{LoggedInference, LoggedRun, RecordFormat};

pub use tensorserve_workers::HandlerError as Failure;
pub use tensorserve_workers::handlers::{
    HandlerContext as Context, HandlerReply as HandlerAnswer, Handlers, ModelReply as ModelAnswer,
};

/// The core. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    repository: Repository,
    metrics: Metrics,
    request_timeout: Duration,
    max_tensor_bytes: usize,
    stopping: AtomicBool,
    /// Held by the profiled run that is under way.
    profiling: Arc<tokio::sync::Mutex<()>>,
    draining: AtomicBool,
    /// Code for requests that name no model of their own.
    code: Option<PathBuf>,
    addresses: OnceLock<Addresses>,
    /// Folders that operators may load models from.
    roots: Vec<PathBuf>,
    config: RepositoryConfig,
    facts: Facts,
    seconds: Arc<Seconds>,
}

/// Where this server is reached from its own machine.
#[derive(Debug)]
pub struct Addresses {
    /// The start of URLs, without a slash at the end.
    pub http: String,
    /// The port for gRPC, if there is one.
    pub grpc_port: Option<u16>,
}

/// For requests that come before the addresses are known.
static NO_ADDRESSES: Addresses = Addresses { http: String::new(), grpc_port: None };

impl Engine {
    /// The core over a repository.
    #[must_use]
    pub fn new(config: &EngineConfig, repository: Repository, metrics: Metrics) -> Self {
        Engine(Arc::new(Inner {
            repository,
            metrics,
            request_timeout: config.request_timeout,
            max_tensor_bytes: config.max_tensor_bytes,
            stopping: AtomicBool::new(false),
            profiling: Arc::default(),
            draining: AtomicBool::new(false),
            code: config.repository.common.code.clone(),
            addresses: OnceLock::new(),
            roots: operate::roots(&config.repository.sources, &config.roots),
            config: config.repository.clone(),
            facts: Facts::new(&config.repository),
            seconds: Arc::default(),
        }))
    }

    /// An engine without models: for tests of what is built on it.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn without_models() -> Result<Self> {
        let config = EngineConfig::default();
        let (metrics, formats) = (Metrics::default(), Arc::new(NoFormats));
        let platforms = Platforms::new(Vec::new());
        let repository =
            Repository::start(&config, platforms, metrics.clone(), formats.clone(), formats)?;
        Ok(Engine::new(&config, repository, metrics))
    }

    /// Runs signature number `signature` alone, outside the model's batch queue, and reports what
    /// every operation did. One such run at a time: what it costs must not be paid by other
    /// requests.
    ///
    /// # Errors
    /// What the model reports; [`Code::DeadlineExceeded`] at `deadline`; [`Code::Unimplemented`] if
    /// the model's runtime has no profiler.
    async fn profile(
        &self,
        version: &ModelHandle,
        signature: usize,
        inputs: Vec<Tensor>,
        deadline: Instant,
    ) -> Result<(BatchOutput, Vec<OpRun>)> {
        let arrived = Instant::now();
        let late = |_| Error::new(Code::DeadlineExceeded, "other profiled runs took too long");
        let turn = tokio::time::timeout_at(deadline.into(), self.0.profiling.clone().lock_owned());
        let turn = turn.await.map_err(late)?;
        let (version, began) = (version.clone(), Instant::now());
        // The turn ends with the run, also when nobody waits for it any more.
        let work = move || {
            let _turn = turn;
            version.profile(signature, &inputs, deadline.saturating_duration_since(began))
        };
        let done = tokio::task::spawn_blocking(work).await;
        let failed = |e| Error::internal("a profiled run panicked").with_source(e);
        let (outputs, operations) = done.map_err(failed)??;
        let timing = RunTiming { queue_delay: began - arrived, run: began.elapsed() };
        Ok((BatchOutput { outputs, timing }, operations))
    }

    /// The handlers that a request for `model`, or for none, goes through; `None` if it goes to the
    /// model itself.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if there are some, and they are not ready.
    pub fn handlers(&self, model: Option<&str>) -> Result<Option<Arc<Handlers>>> {
        if let Some(name) = model
            && let Ok(handle) =
                self.0.repository.resolve(&ModelSpec { name, choice: Choice::Latest })
        {
            return Ok(handle.handlers().cloned());
        }
        let Some(code) = &self.0.code else {
            return Ok(None);
        };
        match self.0.repository.workers().opened(code) {
            Some(handlers) => Ok(Some(handlers)),
            None => {
                let why = self.readiness().err();
                let why = why.map_or("no model uses it".to_owned(), |e| e.message().to_owned());
                Err(Error::unavailable(format!("inference.py is not ready: {why}")))
            }
        }
    }

    /// What the repository was told when the server started.
    #[must_use]
    pub fn repository_config(&self) -> &RepositoryConfig {
        &self.0.config
    }

    /// Notes where the server listens.
    pub fn listens(&self, http: Option<SocketAddr>, grpc: Option<SocketAddr>) {
        let url = |address: SocketAddr| {
            let (ip, port) = (address.ip(), address.port());
            if ip.is_unspecified() || ip.is_loopback() {
                return format!("http://localhost:{port}");
            }
            format!("http://{address}")
        };
        let http = http.map(url).unwrap_or_default();
        let _ = self.0.addresses.set(Addresses { http, grpc_port: grpc.map(|grpc| grpc.port()) });
    }

    /// Where this server is reached from its own machine.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        self.0.addresses.get().unwrap_or(&NO_ADDRESSES)
    }

    /// What is counted and measured.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The models and their versions.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        &self.0.repository
    }

    /// An inference through `entry` whose head had arrived at `start`.
    #[must_use]
    pub fn call(&self, entry: EntryPoint, start: Instant) -> Call {
        Call { entry, start, deadline: self.deadline(start) }
    }

    /// When a request that came in at `start` must be answered.
    #[must_use]
    pub fn deadline(&self, start: Instant) -> Instant {
        start + self.0.request_timeout
    }

    /// The most memory one input tensor may take, in bytes.
    #[must_use]
    pub fn max_tensor_bytes(&self) -> usize {
        self.0.max_tensor_bytes
    }

    /// Whether every configured model can be used.
    ///
    /// # Errors
    /// [`Code::Unavailable`] with all reasons why not.
    pub fn readiness(&self) -> Result<()> {
        let reasons = self.reasons();
        self.0.metrics.set_ready(reasons.is_empty());
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Error::unavailable(reasons.join("; ")))
    }

    /// Serves the models of these sources from now on, instead of those before. Returns when what
    /// is new is ready; what is no longer named may still be answering its last requests.
    ///
    /// # Errors
    /// [`Code::Unknown`] with every model that did not become available (what can be served is),
    /// [`Code::Aborted`] if another list came meanwhile, [`Code::Unavailable`] when stopping.
    pub async fn reload(&self, sources: Vec<SourceConfig>) -> Result<()> {
        self.0.repository.set_sources(sources).await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Loads one more model beside those of the sources, and returns when it is ready: all its
    /// versions that `source` asks for. They stay as they were loaded, whatever becomes of the
    /// folder. Of a load that fails nothing stays, and the name is free again; one whose caller
    /// goes away goes on.
    ///
    /// # Errors
    /// [`Code::AlreadyExists`] for a name that is taken (also by one that is being loaded),
    /// [`Code::NotFound`] if there is no (such) version, [`Code::FailedPrecondition`] if files
    /// are missing, [`Code::DeadlineExceeded`] at `deadline`, [`Code::Aborted`] if it was
    /// unloaded meanwhile, [`Code::Unavailable`] when stopping, and what the load reports.
    pub async fn load_model(&self, source: SourceConfig, deadline: Instant) -> Result<()> {
        self.load_for(source, deadline, REQUEST).await
    }

    /// Takes a model that [`Engine::load_model`] brought away. It gets no new requests at once;
    /// this returns when those under way are done and its memory has been given back to the
    /// system.
    ///
    /// # Errors
    /// [`Code::NotFound`] for any other model; [`Code::Unavailable`] when stopping.
    pub async fn unload_model(&self, name: &str) -> Result<()> {
        self.unload_for(name, REQUEST).await
    }

    /// The bytes of memory that one more model may take: what the process may hold beyond what it
    /// holds, by `limit`, or what the system has to give.
    #[must_use]
    pub fn room(&self, limit: Option<u64>) -> u64 {
        match limit {
            Some(limit) => limit.saturating_sub(machine::resident_memory(None).unwrap_or(0)),
            None => machine::free_memory(),
        }
    }

    /// Waits for the models found at the start; `tick` is called meanwhile.
    pub fn wait_until_started(&self, mut tick: impl FnMut(&Self)) {
        self.0.repository.wait_until_started(|_| tick(self));
    }

    /// The server will stop: not ready any more, no more loads.
    pub fn stop(&self) {
        self.0.stopping.store(true, Relaxed);
        self.0.repository.stop();
        self.0.seconds.end();
    }

    /// Waits until the requests that are to be logged are written, for at most `patience`.
    pub fn flush_logs(&self, patience: Duration) {
        self.0.repository.flush_logs(patience);
    }

    /// Ends the processes of handlers, within `time`. Blocks. Called when no request is left.
    pub fn stop_workers(&self, time: Duration) {
        self.0.repository.workers().stop(time);
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// Never in practice.
    pub fn metrics_text(&self) -> Result<String> {
        // Also brings the readiness gauge up to date.
        let _ = self.readiness();
        let text = self.0.metrics.encode();
        text.map_err(|e| Error::internal("the metrics could not be written").with_source(e))
    }
}

fn stopping() -> Error {
    Error::unavailable("the server is stopping")
}
