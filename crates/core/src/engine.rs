//! The core's API for protocols: resolve a model, run a signature, report the state.
//!
//! Protocols use models only through this module; it re-exports the types they need.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use self::seconds::Seconds;
use self::shadow::Mirror;
use crate::batch::BatchOutput;
use crate::config::{EngineConfig, RepositoryConfig, SourceConfig};
use crate::metrics::{Metrics, ServerCapacity};
use crate::repository::Repository;
use crate::repository::{NoFormats, NoStores};
use tensorserve_os::machine;
use tensorserve_platform::Platforms;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::budget::MemoryBudget;
use tensorserve_tensor::error::{Code, Error, Result};

mod cached;
mod inference;
pub mod large;
mod operate;
mod receipts;
mod seconds;
mod shadow;
mod steps;

pub use self::inference::{
    InferRequest, InferResponse, InferenceCall, InferenceOutcome, Resolver, RunOutput, SignatureRun,
};
pub use self::operate::ServerFacts;
pub use crate::entry::{EntryPoint, Method};
pub use crate::metrics::{
    HistoryPoint, InFlight, LastError, LoadReport, Rates, Statistics, Tally, Total,
};
pub use crate::repository::{
    ChangeRequest, CustomOps, ExternalOp, Gpus, InputStyle, LifecycleEvent, LoadedModel,
    ModelHandle, ModelSpec, ModelState, OpRun, OptimizationState, OptimizedForm, PlatformInfo,
    REQUEST, RunTiming, StoreReport, TrialReport, TrialRequest, TrialRequests, TrialSources,
    Unresolved, VersionSelector, VersionState, VersionStatus, VersionTrial,
};
pub use crate::request_log::{LoggedInference, LoggedRun, RequestLogFormat};

pub use tensorserve_workers::HandlerError;
pub use tensorserve_workers::handlers::{HandlerContext, HandlerReply, Handlers, ModelReply};

/// The core. Cheap to clone.
#[derive(Clone)]
pub struct Engine(Arc<EngineInner>);

struct EngineInner {
    repository: Repository,
    metrics: Metrics,
    request_timeout: Duration,
    max_tensor_bytes: usize,
    request_memory: MemoryBudget,
    stopping: AtomicBool,
    /// Held by the profiled run that is under way.
    profiling: Arc<tokio::sync::Mutex<()>>,
    draining: AtomicBool,
    /// Handlers for requests that name no model.
    code: Option<PathBuf>,
    addresses: OnceLock<Addresses>,
    /// Directories from which operators may load models.
    roots: Vec<PathBuf>,
    config: RepositoryConfig,
    facts: ServerFacts,
    seconds: Arc<Seconds>,
    mirror: Mirror,
}

/// The server's addresses for clients on its own machine.
#[derive(Debug)]
pub struct Addresses {
    /// The start of URLs, without a slash at the end.
    pub http: String,
    /// The port for gRPC, if there is one.
    pub grpc_port: Option<u16>,
}

/// For requests that arrive before the addresses are known.
static NO_ADDRESSES: Addresses = Addresses { http: String::new(), grpc_port: None };

impl Engine {
    /// An engine for a repository.
    #[must_use]
    pub fn new(config: &EngineConfig, repository: Repository, metrics: Metrics) -> Self {
        Engine(Arc::new(EngineInner {
            repository,
            mirror: Mirror::new(config, &metrics),
            metrics,
            request_timeout: config.request_timeout,
            max_tensor_bytes: config.max_tensor_bytes,
            request_memory: MemoryBudget::new(config.max_request_memory),
            stopping: AtomicBool::new(false),
            profiling: Arc::default(),
            draining: AtomicBool::new(false),
            code: config.repository.common.code.clone(),
            addresses: OnceLock::new(),
            roots: operate::roots(&config.repository.sources, &config.roots),
            config: config.repository.clone(),
            facts: ServerFacts::new(&config.repository),
            seconds: Arc::default(),
        }))
    }

    /// An engine without models, for tests.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn without_models() -> Result<Self> {
        let config = EngineConfig::default();
        let (metrics, formats) = (Metrics::default(), Arc::new(NoFormats));
        let platforms = Platforms::new(Vec::new());
        let (repository, _) = Repository::start(
            &config,
            platforms,
            metrics.clone(),
            formats.clone(),
            formats,
            Arc::new(NoStores),
        )?;
        Ok(Engine::new(&config, repository, metrics))
    }

    /// Runs signature number `signature` alone, outside the model's batch queue, and profiles every
    /// operation. Only one profiled run at a time, so that their overhead does not slow down other
    /// requests much.
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
        let late = |_| {
            Error::new(
                Code::DeadlineExceeded,
                "the request's deadline passed while other profiled runs were in progress",
            )
        };
        let turn = tokio::time::timeout_at(deadline.into(), self.0.profiling.clone().lock_owned());
        let turn = turn.await.map_err(late)?;
        let (version, began) = (version.clone(), Instant::now());
        // The lock is held until the run ends, also if the client has disconnected.
        let work = move || {
            let _turn = turn;
            version.profile(signature, &inputs, deadline.saturating_duration_since(began))
        };
        let done = tokio::task::spawn_blocking(work).await;
        let failed = |e| {
            Error::internal("the profiled run failed: internal error; see the server log")
                .with_source(e)
        };
        let (outputs, operations) = done.map_err(failed)??;
        let timing = RunTiming { queue_delay: began - arrived, run: began.elapsed() };
        Ok((BatchOutput { outputs, timing }, operations))
    }

    /// The handlers of requests for `model`, or of requests that name no model; `None` if such
    /// requests go to the model directly.
    ///
    /// # Errors
    /// [`Code::Unavailable`] if there are handlers that are not ready.
    pub fn handlers(&self, model: Option<&str>) -> Result<Option<Arc<Handlers>>> {
        if let Some(name) = model
            && let Ok(handle) =
                self.0.repository.resolve(&ModelSpec { name, choice: VersionSelector::Latest })
        {
            return Ok(handle.handlers().cloned());
        }
        let Some(code) = &self.0.code else {
            return Ok(None);
        };
        match self.0.repository.workers().opened(code) {
            Some(handlers) => Ok(Some(handlers)),
            None => {
                let error = Error::unavailable("inference.py is not ready; see the server log");
                // The reason may quote the script and its paths, which are not for clients.
                Err(match self.readiness() {
                    Ok(()) => error,
                    Err(why) => error.with_source(why),
                })
            }
        }
    }

    /// The repository's configuration from the start of the server.
    #[must_use]
    pub fn repository_config(&self) -> &RepositoryConfig {
        &self.0.config
    }

    /// Records the addresses that the server listens on.
    pub fn listens(&self, http: Option<SocketAddr>, grpc: Option<SocketAddr>) {
        let http = http.map(local_url).unwrap_or_default();
        let _ = self.0.addresses.set(Addresses { http, grpc_port: grpc.map(|grpc| grpc.port()) });
    }

    /// The server's addresses for clients on its own machine.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        self.0.addresses.get().unwrap_or(&NO_ADDRESSES)
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The models and their versions.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        &self.0.repository
    }

    /// An inference through `entry`, of a request whose head arrived at `start`.
    #[must_use]
    pub fn call(&self, entry: EntryPoint, start: Instant) -> InferenceCall {
        InferenceCall { entry, start, deadline: self.deadline(start) }
    }

    /// The deadline of a request that arrived at `start`.
    #[must_use]
    pub fn deadline(&self, start: Instant) -> Instant {
        start + self.0.request_timeout
    }

    /// The largest input tensor, in bytes.
    #[must_use]
    pub fn max_tensor_bytes(&self) -> usize {
        self.0.max_tensor_bytes
    }

    /// The memory that all requests may use together.
    #[must_use]
    pub fn request_memory(&self) -> &MemoryBudget {
        &self.0.request_memory
    }

    /// Whether every configured model has a ready version.
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

    /// Replaces the sources. Returns when the new versions are ready; old ones may still have
    /// requests in flight.
    ///
    /// # Errors
    /// [`Code::Unknown`] with every model that did not become available (the others are served),
    /// [`Code::Aborted`] if the sources were replaced again meanwhile, [`Code::Unavailable`] when
    /// stopping.
    pub async fn reload(&self, sources: Vec<SourceConfig>) -> Result<()> {
        self.0.repository.set_sources(sources).await.unwrap_or_else(|_| Err(stopping()))
    }

    /// Loads one more model besides those of the sources, and returns when all its versions that
    /// `source` names are ready. Later changes of the directory have no effect on them. If the load
    /// fails, nothing of the model stays, and the name is free again. The load continues if the
    /// caller stops waiting.
    ///
    /// # Errors
    /// [`Code::AlreadyExists`] for a name that is taken (also by one that is being loaded),
    /// [`Code::NotFound`] if there is no (such) version, [`Code::FailedPrecondition`] if files
    /// are missing, [`Code::DeadlineExceeded`] at `deadline`, [`Code::Aborted`] if it was
    /// unloaded meanwhile, [`Code::Unavailable`] when stopping, and what the load reports.
    pub async fn load_model(&self, source: SourceConfig, deadline: Instant) -> Result<()> {
        self.load_for(source, deadline, REQUEST).await
    }

    /// Unloads a model that [`Engine::load_model`] has loaded. It gets no new requests from now on;
    /// this returns when those in flight are done and its memory is released to the system.
    ///
    /// # Errors
    /// [`Code::NotFound`] for any other model; [`Code::Unavailable`] when stopping.
    pub async fn unload_model(&self, name: &str) -> Result<()> {
        self.unload_for(name, REQUEST).await
    }

    /// The bytes of memory available for one more model: up to `limit` for the whole process, or
    /// else the system's free memory.
    #[must_use]
    pub fn room(&self, limit: Option<u64>) -> u64 {
        match limit {
            Some(limit) => limit.saturating_sub(machine::resident_memory(None).unwrap_or(0)),
            None => machine::free_memory(),
        }
    }

    /// Waits until the models found at the start are loaded or have failed; calls `tick` meanwhile.
    pub fn wait_until_started(&self, mut tick: impl FnMut(&Self)) {
        self.0.repository.wait_until_started(|_| tick(self));
    }

    /// Begins the shutdown: the server is no longer ready and loads nothing more.
    pub fn stop(&self) {
        self.0.stopping.store(true, Relaxed);
        self.0.repository.stop();
        self.0.seconds.end();
    }

    /// Waits until sampled requests are written to the request log, for at most `patience`.
    pub fn flush_logs(&self, patience: Duration) {
        self.0.repository.flush_logs(patience);
    }

    /// Ends the worker processes within `time`. Blocks. Call it when no request is in flight.
    pub fn stop_workers(&self, time: Duration) {
        self.0.repository.workers().stop(time);
    }

    fn read_signals(&self) {
        let memory = &self.0.request_memory;
        self.0.metrics.read_signals(&ServerCapacity {
            batch_threads: self.0.repository.batch_threads(),
            cores: self.0.facts.cores,
            request_memory: (memory.used(), memory.limit()),
            versions: self.0.repository.version_counts(),
        });
    }

    /// The load of the server now, for balancers that ask for it with a request.
    #[must_use]
    pub fn load_report(&self) -> LoadReport {
        self.read_signals();
        self.0.metrics.load_report()
    }

    /// The share of each resource that is in use now: `tensorserve_utilization_ratio`.
    #[must_use]
    pub fn utilization(&self) -> [(&'static str, f64); 4] {
        self.read_signals();
        self.0.metrics.utilization()
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// Never in practice.
    pub fn metrics_text(&self) -> Result<String> {
        // This also updates the readiness gauge.
        let _ = self.readiness();
        self.0.metrics.set_request_memory(&self.0.request_memory);
        let stores = self.0.repository.stores();
        self.0.metrics.set_stores(&stores.reports(), stores.cache_bytes());
        self.0.metrics.set_cache(self.0.repository.cache_reading());
        self.read_signals();
        let text = self.0.metrics.encode();
        text.map_err(|e| Error::internal("the metrics could not be written").with_source(e))
    }
}

/// The URL of a listener for clients on its own machine.
fn local_url(address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    if ip.is_unspecified() || ip.is_loopback() {
        return format!("http://localhost:{port}");
    }
    format!("http://{address}")
}

fn stopping() -> Error {
    Error::unavailable("the server is stopping")
}
