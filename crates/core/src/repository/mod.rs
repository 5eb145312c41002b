//! The model repository: which models and versions exist, which are loaded, and which one serves a
//! request.
//!
//! One thread ([`lifecycle`]) scans the sources, loads, swaps and unloads; it alone writes.
//! Requests read a table behind an atomic pointer and never wait for it: [`Repository::resolve`]
//! is one lookup, and the [`ModelHandle`] it returns keeps its version in memory until dropped.
//!
//! This module does not depend on HTTP or on any protocol.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZero;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::oneshot;

use crate::batch::Batcher;
use crate::cache::ResponseCache;
use crate::config::{BatchConfig, EngineConfig, ModelConfig, RepositoryConfig, SourceConfig};
use crate::metrics::{CacheReading, Metrics};
use crate::request_log::{RequestLog, RequestLogFormat, RequestLogs, log_files};
use tensorserve_platform::Platforms;
use tensorserve_tensor::error::Result;
use tensorserve_workers::Workers;

use self::board::{Board, ModelStatus};
use self::held::HeldVersions;
use self::journal::Journal;

mod board;
mod files;
mod form;
mod formats;
mod growth;
mod held;
mod journal;
mod lifecycle;
mod optimizer;
mod ordinary;
mod policy;
mod remembered;
mod runs;
mod samples;
mod servable;
mod source;
mod state;
mod step_threads;
mod stores;
mod traffic;
mod trial;
mod version;
mod warm;
mod watch;

use self::step_threads::StepThreads;
use self::traffic::{Traffic, TrafficSplit};
use self::watch::LiveComparison;

pub use self::form::{OptimizationState, OptimizedForm};
pub use self::formats::{NoFormats, VersionFiles};
pub use self::journal::{LifecycleEvent, REQUEST};
pub use self::lifecycle::HeldLoads;
use self::optimizer::Optimizer;
pub use self::servable::Servable;
pub use self::state::{VersionState, VersionStatus};
pub use self::stores::{FolderLease, ModelStores, NoStores, StoreFetch, StoreListing, StoreTree};
pub(crate) use self::traffic::{CacheUse, ShadowHandle};
pub use self::trial::{TrialReport, TrialRequest, TrialRequests, TrialSources, VersionTrial};
pub use crate::batch::RunTiming;
pub use crate::metrics::StoreReport;
pub use tensorserve_platform::{
    CustomOps, ExternalOp, Gpus, InputStyle, OpRun, PlatformInfo, Profiled,
};

/// The model and version that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Which of its versions.
    pub choice: VersionSelector<'a>,
}

/// The version of a model that a request names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionSelector<'a> {
    /// The ready version with the highest number.
    Latest,
    /// The version with this number.
    Version(i64),
    /// The version with this label.
    Label(&'a str),
}

/// Why a [`ModelSpec`] has no ready version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// No version of that model is ready, or there is no such model.
    Model,
    /// The version of this number, which the request or a label names, is not ready, or there is none.
    Version(i64),
    /// The model has no such label, or there is no such model.
    Label,
}

/// A ready version, kept in memory for as long as this handle exists. It dereferences to the
/// version.
#[derive(Clone)]
pub struct ModelHandle {
    servable: Arc<Servable>,
    log: Option<Arc<RequestLog>>,
    traffic: Option<Arc<Traffic>>,
}

impl ModelHandle {
    /// The request log of the model; `None` if its requests are not logged.
    #[must_use]
    pub fn request_log(&self) -> Option<&RequestLog> {
        self.log.as_deref()
    }
}

impl Deref for ModelHandle {
    type Target = Servable;

    fn deref(&self) -> &Servable {
        &self.servable
    }
}

/// A model that was loaded by a request of its own, and not because a source has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedModel {
    /// Its name.
    pub name: String,
    /// Where it was loaded from.
    pub path: PathBuf,
}

/// A change of one model that an operator requests while the server runs.
#[derive(Clone, Debug)]
pub enum ChangeRequest {
    /// Unload a model that a source has, and keep it unloaded until it is returned to service.
    TakeOutOfService,
    /// Load it again; the request waits for that until this deadline.
    ReturnToService(Instant),
    /// Set a label to a version, or (`None`) remove the label.
    SetLabel(String, Option<i64>),
    /// Replace the batching parameters of all versions.
    SetBatching(Box<BatchConfig>),
    /// Let a version that is held serve.
    Release(i64),
    /// Unload a version that is held or on trial, and do not load it again.
    Drop(i64),
}

/// A model and its versions, as the console shows them.
#[derive(Clone)]
pub struct ModelState {
    /// Its name.
    pub name: String,
    /// Whether it was loaded by a request of its own, and not because a source has it.
    pub is_requested: bool,
    /// Whether an operator has taken it out of service.
    pub is_out_of_service: bool,
    /// The version that each label means.
    pub labels: BTreeMap<String, i64>,
    /// Its versions, highest number first, each with a handle if it is ready.
    pub versions: Vec<(VersionStatus, Option<ModelHandle>)>,
}

impl ModelState {
    fn without_handles(name: &str, status: &ModelStatus) -> Self {
        ModelState {
            name: name.to_owned(),
            is_requested: status.is_requested(),
            is_out_of_service: status.is_out_of_service,
            labels: BTreeMap::new(),
            versions: status.versions.values().rev().map(|it| (it.clone(), None)).collect(),
        }
    }
}

/// The models of a server. Cheap to clone.
#[derive(Clone)]
pub struct Repository(Arc<RepositoryShared>, lifecycle::Control);

struct RepositoryShared {
    config: RepositoryConfig,
    platforms: Platforms,
    metrics: Metrics,
    batcher: Batcher,
    logs: RequestLogs,
    files: Arc<dyn VersionFiles>,
    stores: Arc<dyn ModelStores>,
    workers: Workers,
    step_threads: StepThreads,
    /// The most bytes that one input of a request may have.
    max_tensor_bytes: usize,
    /// The response cache, unless it is off.
    cache: Option<Arc<ResponseCache>>,
    /// The ready versions, for requests.
    table: Arc<ArcSwap<ServingTable>>,
    /// The status of all models, for the console and the status APIs.
    board: Mutex<Board>,
    board_changed: Condvar,
    journal: Journal,
    held: HeldVersions,
    optimizer: Optimizer,
}

#[derive(Clone, Default)]
struct ServingTable {
    models: HashMap<Arc<str>, Arc<ServedModel>>,
}

#[derive(Clone)]
struct ServedModel {
    /// Ready versions, ascending.
    ready: Vec<Arc<Servable>>,
    labels: BTreeMap<String, i64>,
    log: Option<Arc<RequestLog>>,
    split: Option<TrafficSplit>,
    traffic: Option<Arc<Traffic>>,
}

impl Repository {
    /// Starts to discover models and to load them, on its own threads, as soon as the [`HeldLoads`] are dropped.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(
        config: &EngineConfig,
        platforms: Platforms,
        metrics: Metrics,
        files: Arc<dyn VersionFiles>,
        records: Arc<dyn RequestLogFormat>,
        stores: Arc<dyn ModelStores>,
    ) -> Result<(Self, HeldLoads)> {
        let batching = &config.batching;
        let cache_bytes = Some(config.response_cache_bytes).filter(|bytes| *bytes > 0);
        let shared = Arc::new(RepositoryShared {
            config: config.repository.clone(),
            platforms,
            logs: RequestLogs::new(metrics.clone(), records),
            metrics,
            batcher: Batcher::new(batching.threads, batching.inline_budget)?,
            files,
            stores,
            workers: Workers::new(config.workers.clone()),
            step_threads: StepThreads::new(available_parallelism().map_or(1, NonZero::get)),
            max_tensor_bytes: config.max_tensor_bytes,
            cache: cache_bytes.map(ResponseCache::new).transpose()?,
            table: Arc::default(),
            board: Mutex::default(),
            board_changed: Condvar::new(),
            journal: Journal::default(),
            held: HeldVersions::new(config.repository.release_state.clone()),
            optimizer: Optimizer::default(),
        });
        let sources = config.repository.sources.clone();
        let (control, held) = lifecycle::start(Arc::clone(&shared), sources)?;
        Ok((Repository(shared, control), held))
    }

    /// Replaces the sources: loads new models, swaps those that have moved to another source, and
    /// unloads those that no source has any more.
    ///
    /// The outcome is sent when every aspired version is ready or has failed; nothing is sent if
    /// the repository is stopped before.
    #[must_use]
    pub fn set_sources(&self, sources: Vec<SourceConfig>) -> oneshot::Receiver<Result<()>> {
        self.1.set_sources(sources)
    }

    /// Loads one more model, beside those of the sources, at the request of the user `by`. The
    /// outcome is sent when all versions that `source` names are ready. If one has failed, or
    /// `deadline` has passed, nothing of the model stays. Nothing is sent if the repository is
    /// stopped before.
    #[must_use]
    pub fn load_model(
        &self,
        source: SourceConfig,
        deadline: Instant,
        by: &str,
    ) -> oneshot::Receiver<Result<()>> {
        self.1.load_model(source, deadline, by.into())
    }

    /// Unloads a model that [`Repository::load_model`] has loaded, at the request of the user `by`.
    /// The outcome is sent when its last request is answered and its memory is given back to the
    /// system; nothing is sent if the repository is stopped before.
    #[must_use]
    pub fn unload_model(&self, name: &str, by: &str) -> oneshot::Receiver<Result<()>> {
        self.1.unload_model(name.into(), by.into())
    }

    /// Changes a model at the request of the user `by`. The outcome is sent when the change is
    /// done; nothing is sent if the repository is stopped before.
    #[must_use]
    pub fn change(
        &self,
        model: &str,
        change: ChangeRequest,
        by: &str,
    ) -> oneshot::Receiver<Result<()>> {
        self.1.change_model(model.into(), change, by.into())
    }

    /// The latest lifecycle events of a model, the oldest first.
    #[must_use]
    pub fn lifecycle_events(&self, model: &str) -> Vec<LifecycleEvent> {
        self.0.journal.events_of(model)
    }

    /// The state of all models, sorted by name.
    #[must_use]
    pub fn models(&self) -> Vec<ModelState> {
        self.states(None)
    }

    /// The state of the model `name`.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<ModelState> {
        self.states(Some(name)).pop()
    }

    fn states(&self, name: Option<&str>) -> Vec<ModelState> {
        let board = self.0.board();
        let shown =
            board.models.iter().filter(|(model, _)| name.is_none_or(|name| *name == ***model));
        let mut states: Vec<ModelState> =
            shown.map(|(name, status)| ModelState::without_handles(name, status)).collect();
        drop(board);
        let table = self.0.table.load();
        for state in &mut states {
            let Some(entry) = table.models.get(state.name.as_str()) else {
                continue;
            };
            state.labels.clone_from(&entry.labels);
            for (status, handle) in &mut state.versions {
                let number = status.version;
                let servable = entry.ready.iter().find(|servable| servable.version() == number);
                *handle = servable.map(|servable| ModelHandle {
                    servable: Arc::clone(servable),
                    log: entry.log.clone(),
                    traffic: entry.traffic.clone(),
                });
            }
        }
        states
    }

    /// Descriptions of the runtimes of all ready models.
    #[must_use]
    pub fn runtimes(&self) -> Vec<String> {
        let table = self.0.table.load();
        let ready = || table.models.values().flat_map(|entry| &entry.ready);
        let in_use = self.0.platforms.iter().filter(|platform| {
            let name = platform.info.name;
            ready().any(|servable| servable.platform().name == name)
        });
        in_use.filter_map(|platform| platform.runtime.describe().ok()).collect()
    }

    /// The GPUs of the runtime that has a use for them, once it is opened.
    #[must_use]
    pub fn gpus(&self) -> Option<Gpus> {
        self.0.platforms.iter().find_map(|platform| platform.runtime.gpus())
    }

    /// The state of the stores that models come from.
    #[must_use]
    pub fn stores(&self) -> &dyn ModelStores {
        &*self.0.stores
    }

    /// The models that [`Repository::load_model`] has loaded, sorted by name.
    #[must_use]
    pub fn loaded_models(&self) -> Vec<LoadedModel> {
        self.0.board().loaded_models()
    }

    /// The ready version that `spec` names.
    ///
    /// # Errors
    /// [`Unresolved`].
    pub fn resolve(&self, spec: &ModelSpec) -> Result<ModelHandle, Unresolved> {
        self.find(spec, |_| None)
    }

    /// The ready version that an inference for `spec` gets: like [`Repository::resolve`], but requests
    /// that name no version are split as the model's configuration says.
    ///
    /// # Errors
    /// [`Unresolved`].
    pub fn resolve_for_inference(&self, spec: &ModelSpec) -> Result<ModelHandle, Unresolved> {
        self.find(spec, |entry| entry.ready.get(entry.split.as_ref()?.draw()?))
    }

    /// The version that `spec` names. `choose` may choose one for a request that names none, and
    /// otherwise gets the latest.
    fn find(
        &self,
        spec: &ModelSpec,
        choose: impl FnOnce(&ServedModel) -> Option<&Arc<Servable>>,
    ) -> Result<ModelHandle, Unresolved> {
        let table = self.0.table.load();
        let entry = table.models.get(spec.name);
        let ready = entry.map_or(&[][..], |entry| &entry.ready);
        let handle = |servable: &Arc<Servable>| ModelHandle {
            servable: Arc::clone(servable),
            log: entry.and_then(|entry| entry.log.clone()),
            traffic: entry.and_then(|entry| entry.traffic.clone()),
        };
        let number = match spec.choice {
            VersionSelector::Latest => {
                let chosen = entry.and_then(|entry| choose(entry));
                let latest = chosen.or_else(|| ready.last()).ok_or(Unresolved::Model)?;
                return Ok(handle(latest));
            }
            VersionSelector::Version(number) => number,
            VersionSelector::Label(label) => {
                let labels = entry.map(|entry| &entry.labels);
                let number = labels.and_then(|labels| labels.get(label));
                *number.ok_or(Unresolved::Label)?
            }
        };
        let version = ready.iter().find(|servable| servable.version() == number);
        version.map(handle).ok_or(Unresolved::Version(number))
    }

    /// The status of every version of the model since the server started (of unloaded ones only the
    /// latest), highest number first; empty for an unknown model.
    #[must_use]
    pub fn status(&self, model: &str) -> Vec<VersionStatus> {
        self.0.board().versions(model)
    }

    /// Whether the server is starting, and a version of the model is still to be loaded or to fail.
    #[must_use]
    pub fn is_starting(&self, model: &str) -> bool {
        let board = self.0.board();
        let is_open = |state: &VersionState| {
            matches!(
                state,
                VersionState::Found(_)
                    | VersionState::Loading
                    | VersionState::Warming
                    | VersionState::Trial
            )
        };
        !board.started && board.versions(model).iter().any(|version| is_open(&version.state))
    }

    /// The names of all models with a ready version, sorted.
    #[must_use]
    pub fn ready_models(&self) -> Vec<String> {
        let table = self.0.table.load();
        let mut names: Vec<String> = table.models.keys().map(|name| name.to_string()).collect();
        names.sort();
        names
    }

    /// The names of all models, ready or not, sorted.
    #[must_use]
    pub fn all_models(&self) -> Vec<String> {
        self.0.board().models.keys().map(|name| name.to_string()).collect()
    }

    /// The name of a model as it is kept, ready or not; `None` if there is no such model.
    pub(crate) fn name_of(&self, model: &str) -> Option<Arc<str>> {
        self.0.board().models.get_key_value(model).map(|(name, _)| Arc::clone(name))
    }

    /// Reasons why the server is not ready; empty if every model has a ready version.
    #[must_use]
    pub fn obstacles(&self) -> Vec<String> {
        let table = self.0.table.load();
        self.0.board().obstacles(|model| table.models.contains_key(model))
    }

    /// What the metrics say of the response cache.
    pub(crate) fn cache_reading(&self) -> CacheReading {
        self.0.cache.as_ref().map_or(CacheReading::default(), |cache| cache.reading())
    }

    /// The number of batch threads.
    pub(crate) fn batch_threads(&self) -> usize {
        self.0.batcher.threads()
    }

    /// How many versions of each model are in each state, without those that are unloaded.
    pub(crate) fn version_counts(&self) -> Vec<(Arc<str>, &'static str, usize)> {
        let board = self.0.board();
        let mut counts = Vec::with_capacity(board.models.len() * VersionState::NAMES.len());
        for (model, status) in &board.models {
            let states = || status.versions.values().map(|version| version.state.name());
            for name in VersionState::NAMES {
                let count = states().filter(|state| *state == name).count();
                counts.push((Arc::clone(model), name, count));
            }
        }
        counts
    }

    /// Libraries of operations that the user has added to the runtimes.
    #[must_use]
    pub fn custom_ops(&self) -> Vec<CustomOps> {
        self.0.platforms.iter().flat_map(|platform| platform.runtime.custom_ops()).collect()
    }

    /// Waits until every model that was found at the start has been loaded or has failed, and
    /// calls `tick` every 100 ms meanwhile. Returns at once when the repository is stopped.
    pub fn wait_until_started(&self, mut tick: impl FnMut(&Self)) {
        loop {
            {
                let board = self.0.board();
                if board.started || board.stopped {
                    return;
                }
                let wait = Duration::from_millis(100);
                let waited = self.0.board_changed.wait_timeout(board, wait);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            }
            tick(self);
        }
    }

    /// Waits until sampled requests are written to the request log, for at most `patience`.
    pub fn flush_logs(&self, patience: Duration) {
        self.0.logs.flush(patience);
    }

    /// The worker processes, which run models' handlers.
    #[must_use]
    pub fn workers(&self) -> &Workers {
        &self.0.workers
    }

    /// Ends the thread that loads and unloads. Loaded versions stay usable.
    pub fn stop(&self) {
        self.0.optimizer.stop();
        self.0.board().stopped = true;
        self.0.board_changed.notify_all();
    }
}

impl RepositoryShared {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Swaps in the table with `model`'s ready versions replaced by `ready` (ascending).
    /// `live` compares the answers of one that is watched.
    fn publish(
        &self,
        model: &Arc<str>,
        ready: Vec<Arc<Servable>>,
        live: Option<Arc<LiveComparison>>,
        config: &ModelConfig,
    ) {
        let mut table = ServingTable::clone(&self.table.load());
        let served = ready.clone();
        if ready.is_empty() {
            table.models.remove(model);
            self.logs.forget(model);
        } else {
            let labels = config.labels.clone();
            let log = self.logs.of(model, &config.log);
            let numbers: Vec<i64> = ready.iter().map(|servable| servable.version()).collect();
            let split = TrafficSplit::new(&numbers, &labels, &config.traffic.split);
            let traffic = Traffic::new(model, &ready, live, config, &self.metrics);
            let entry = Arc::new(ServedModel { ready, labels, log, split, traffic });
            table.models.insert(Arc::clone(model), entry);
        }
        self.table.store(Arc::new(table));
        for servable in served {
            let logs = || log_files(&config.log, model);
            let (table, files, metrics) = (&self.table, &self.files, &self.metrics);
            self.optimizer.consider(&servable, table, files, metrics, logs);
        }
    }
}
