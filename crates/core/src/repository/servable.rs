//! One version of a model in memory: its signatures, and a batch queue for each.

use std::any::Any;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use super::VersionFiles;
use super::form::{FormKind, OptimizationState, SwitchedExecutable, VersionForms};
use super::remembered::RememberedVersion;
use super::samples;
use super::step_threads::StepThreads;
use super::stores::FolderLease;
use crate::batch::{
    BatchQueue, BatchRunner, Batcher, Joining, ModelLimit, Runaways, SignatureTraits,
};
use crate::cache::{ResponseCache, VersionCache};
use crate::config::{BatchConfig, EngineChoice, Images, ModelConfig};
use crate::metrics::{Metrics, VersionMetrics};
use tensorserve_platform::{
    Executable, ExternalOp, LoadOptions, Loaded, ModelLoader, Optimization, Packaging, Platform,
    PlatformInfo, RunOptions, has_marshalled_hooks,
};
use tensorserve_preprocessing::{ProcessingSteps, load_steps};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::names::InputName;
use tensorserve_tensor::{ImageEncoding, Signature, Tensor};
use tensorserve_workers::Workers;
use tensorserve_workers::handlers::Handlers;

/// A loaded version, with queues of certain parameters.
pub struct Servable {
    pub(super) loaded: Arc<LoadedVersion>,
    batching: BatchConfig,
    pub(super) queues: Vec<BatchQueue>,
}

/// The part of a version that stays when it gets other queues.
pub(super) struct LoadedVersion {
    model: Arc<str>,
    version: i64,
    platform: PlatformInfo,
    /// The signatures for clients: with pre- and post-processing.
    pub(super) signatures: Arc<[Signature]>,
    packaging: Option<Packaging>,
    pub(super) executable: Arc<SwitchedExecutable>,
    pub(super) forms: VersionForms,
    /// What has loaded it, and how.
    loader: Arc<dyn ModelLoader>,
    options: LoadOptions,
    /// For each of them, its pre- and post-processing.
    pub(super) steps: Vec<Option<Arc<ProcessingSteps>>>,
    pub(super) step_threads: StepThreads,
    /// Shared with the other versions of the model.
    limit: Arc<ModelLimit>,
    runaways: Arc<Runaways>,
    metrics: VersionMetrics,
    bytes: u64,
    marshalled_hooks: bool,
    external_ops: Vec<ExternalOp>,
    pub(super) threads: usize,
    load_time: OnceLock<Duration>,
    handlers: OnceLock<Arc<Handlers>>,
    folder: PathBuf,
    is_warmed: bool,
    /// The digest of its files, if its answers have receipts.
    digest: Option<String>,
    /// Its part of the response cache, if its responses may be cached.
    cache: Option<VersionCache>,
    /// Keeps its files, if they come from a store: some are read after the load.
    _lease: Option<FolderLease>,
}

/// Runs one signature of an executable, for its queue.
struct SignatureRunner {
    executable: Arc<dyn Executable>,
    index: usize,
}

impl BatchRunner for SignatureRunner {
    fn run(&self, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        self.executable.run(self.index, inputs, options)
    }
}

/// The load of a version.
pub(super) struct VersionLoad<'a> {
    pub(super) model: &'a Arc<str>,
    pub(super) version: i64,
    pub(super) folder: &'a Path,
    pub(super) platform: &'a Platform,
    pub(super) config: &'a ModelConfig,
    pub(super) batcher: &'a Batcher,
    pub(super) workers: &'a Workers,
    pub(super) step_threads: &'a StepThreads,
    /// The most bytes that one input may have.
    pub(super) max_tensor_bytes: usize,
    /// The most time for samples of rows that are known to be independent.
    pub(super) second_look: Duration,
    pub(super) metrics: &'a Metrics,
    /// Threads within an operation that suited an earlier version.
    pub(super) threads: Option<usize>,
    pub(super) cache: Option<&'a Arc<ResponseCache>>,
    pub(super) files: &'a dyn VersionFiles,
    /// The digest of its files, if its answers are to have receipts.
    pub(super) digest: Option<String>,
    /// Keeps its files, if they come from a store.
    pub(super) lease: Option<FolderLease>,
}

impl VersionLoad<'_> {
    /// Loads and warms up the version; calls `loaded` in between. Blocks for as long as that takes.
    ///
    /// Most runtimes fix the number of threads of an operation at the load, but the best number is
    /// known only after a run. So a model whose runs are not long is loaded twice: with all threads, and
    /// then with one.
    pub(super) fn run(&self, loaded: impl FnOnce()) -> Result<Arc<Servable>> {
        let started = Instant::now();
        let cores = available_parallelism().map_or(1, NonZero::get);
        let known = self.threads.or_else(|| self.remembered_threads());
        let all = known.unwrap_or(cores);
        let (mut servable, handlers) = self.load_with_handlers(all)?;
        loaded();
        if self.config.warm_up {
            self.warm(&servable)?;
            let may_change = known.is_none() && all > 1 && self.platform.info.takes_threads;
            if may_change {
                servable = self.with_fewer_threads(servable)?;
                self.remember_threads(servable.loaded.threads);
            }
            let queues: Vec<_> = servable.model_queues().collect();
            samples::run(&queues, self.second_look, self.model, self.version);
        }
        if let Some(handlers) = handlers {
            let _ = servable.loaded.handlers.set(handlers);
        }
        servable.loaded_in(started.elapsed());
        servable.report_external_ops();
        if self.config.traffic.response_cache && servable.cache().is_none() {
            let (model, version) = (self.model, self.version);
            log::warn!(
                "{model} version {version}: response_cache has no effect: equal requests may get \
                 different responses"
            );
        }
        Ok(servable)
    }

    /// Loads the model and, at the same time, starts the worker processes of its handlers.
    fn load_with_handlers(&self, threads: usize) -> Result<(Arc<Servable>, Option<Arc<Handlers>>)> {
        let Some(code) = self.config.code.as_deref() else {
            return Ok((self.load(threads)?, None));
        };
        let (handlers, servable) = thread::scope(|scope| {
            let opening = scope.spawn(|| self.workers.open(code));
            let servable = self.load(threads);
            let bug = |_| {
                Err(Error::internal(
                    "its handlers could not be started: internal error; see the server log",
                ))
            };
            (opening.join().unwrap_or_else(bug), servable)
        });
        Ok((servable?, Some(handlers?)))
    }

    pub(super) fn load(&self, threads: usize) -> Result<Arc<Servable>> {
        let mut options = load_options(self.config, threads);
        let is_isolated = self.config.isolated || self.platform.info.is_isolated;
        let name = shown_name(self.model, self.version);
        options.isolated_as = is_isolated.then(|| name.clone());
        let mut loaded = self.platform.loader.load(self.folder, &options)?;
        let executable = Arc::new(SwitchedExecutable::new(Arc::clone(&loaded.executable)));
        let packaging = self.platform.loader.packaging(self.folder)?;
        let steps = load_steps(self.folder, &loaded.signatures, self.max_tensor_bytes)?;
        let batching = batching(self.config, self.folder, self.files)?;
        let names: Vec<&str> = loaded.signatures.iter().map(|s| s.name.as_str()).collect();
        let metrics = self.metrics.version(self.model, self.version, &names);
        let limit = self.batcher.limit(self.model);
        limit.set(self.config.max_concurrent_requests);
        let runaways = Arc::new(Runaways::new(name, self.batcher.threads()));
        let queue = |(index, signature): (usize, &Signature)| {
            let mut traits = SignatureTraits::of(signature);
            traits.unbounded |= executable.waits();
            traits.on_gpu = executable.runs_on_gpu();
            let executable = Arc::clone(&executable) as Arc<dyn Executable>;
            let run = Arc::new(SignatureRunner { executable, index });
            let queue_metrics = metrics.signature(index)?.queue();
            let owner = (&limit, &runaways);
            Some(self.batcher.queue(owner, batching.clone(), traits, queue_metrics, run))
        };
        let queues = loaded.signatures.iter().enumerate().filter_map(queue).collect();
        let cache = self.cache.filter(|_| is_cacheable(&loaded)).map(ResponseCache::of_version);
        for (signature, declared) in loaded.signatures.iter_mut().zip(&steps) {
            if let Some(declared) = declared {
                signature.clone_from(declared.client_signature());
            }
        }
        let loaded = LoadedVersion {
            model: Arc::clone(self.model),
            version: self.version,
            platform: self.platform.info,
            signatures: loaded.signatures.into(),
            packaging,
            executable: Arc::clone(&executable),
            forms: VersionForms::new(self.config.optimize, self.config.engine),
            loader: Arc::clone(&self.platform.loader),
            options,
            steps: steps.into_iter().map(|steps| steps.map(Arc::new)).collect(),
            step_threads: self.step_threads.clone(),
            limit,
            runaways,
            metrics,
            bytes: loaded.bytes,
            marshalled_hooks: loaded.marshalled_hooks || has_marshalled_hooks(self.folder),
            external_ops: loaded.external_ops,
            threads,
            load_time: OnceLock::new(),
            handlers: OnceLock::new(),
            folder: self.folder.to_owned(),
            is_warmed: self.config.warm_up,
            digest: self.digest.clone(),
            cache,
            _lease: self.lease.clone(),
        };
        Ok(Arc::new(Servable { loaded: Arc::new(loaded), batching, queues }))
    }
}

impl LoadedVersion {
    /// The model's name.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// The size of its files in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its number.
    pub(super) fn number(&self) -> i64 {
        self.version
    }

    pub(super) fn is_warmed(&self) -> bool {
        self.is_warmed
    }

    /// Makes its other form with this number. Blocks for about as long as two loads.
    ///
    /// # Errors
    /// What the runtime reports.
    pub(super) fn optimized(&self, number: usize) -> Result<Optimization> {
        let present = self.executable.current();
        if !present.may_have_other_forms() {
            return Ok(Optimization::Unknown);
        }
        self.loader.optimized(&self.folder, &self.options, &*present, number)
    }

    /// Makes a form of this kind. Blocks for about as long as two loads.
    ///
    /// # Errors
    /// What the runtime reports.
    pub(super) fn form(&self, kind: FormKind, number: usize) -> Result<Optimization> {
        match kind {
            FormKind::Optimized => Ok(self.for_ordinary(self.optimized(number)?)),
            FormKind::OtherEngine => self.in_other_engine(),
        }
    }

    /// Makes its form in another engine. Blocks for about as long as a load.
    ///
    /// # Errors
    /// What the engine reports.
    pub(super) fn in_other_engine(&self) -> Result<Optimization> {
        let signatures: Vec<Signature> = self.model_signatures().cloned().collect();
        let (options, present) = (self.named_options(), self.executable.current());
        self.loader.in_other_engine(&self.folder, &options, &signatures, &present)
    }

    /// What is remembered of it.
    pub(super) fn remembered(&self) -> RememberedVersion<'_> {
        RememberedVersion { loader: &*self.loader, folder: &self.folder, options: &self.options }
    }

    /// The options of its load, with its name for messages of a process.
    fn named_options(&self) -> LoadOptions {
        let name = shown_name(&self.model, self.version);
        LoadOptions { isolated_as: Some(name), ..self.options.clone() }
    }

    /// Its signatures as the model has them: without pre- and post-processing.
    pub(super) fn model_signatures(&self) -> impl Iterator<Item = &Signature> {
        let seen = self.signatures.iter().zip(&self.steps);
        seen.map(|(seen, steps)| steps.as_ref().map_or(seen, |steps| steps.model_signature()))
    }
}

impl Servable {
    /// This version with new queues, if the batching parameters of `config` differ from the present ones. The limit of
    /// the model's requests becomes that of `config` in any case.
    ///
    /// # Errors
    /// If the version's own file of batching parameters cannot be read.
    pub(super) fn rebatched(
        &self,
        config: &ModelConfig,
        folder: &Path,
        files: &dyn VersionFiles,
    ) -> Result<Option<Self>> {
        self.loaded.limit.set(config.max_concurrent_requests);
        if config.batching_file && !folder.exists() {
            return Ok(None); // The version stays, and so do the parameters of its file.
        }
        let batching = batching(config, folder, files)?;
        if batching == self.batching {
            return Ok(None);
        }
        let queues = self.queues.iter().map(|queue| queue.with_config(batching.clone())).collect();
        Ok(Some(Servable { loaded: Arc::clone(&self.loaded), batching, queues }))
    }

    /// This version with the executable `other`, and queues of its own.
    pub(super) fn on(&self, other: &Arc<dyn Executable>) -> Self {
        let queue = |(index, queue): (usize, &BatchQueue)| {
            let executable = Arc::clone(other);
            queue.with_runner(Arc::new(SignatureRunner { executable, index }))
        };
        let queues = self.queues.iter().enumerate().map(queue).collect();
        Servable { loaded: Arc::clone(&self.loaded), batching: self.batching.clone(), queues }
    }

    /// Whether no request holds it, and no run is in progress.
    pub(super) fn is_idle(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && self.queues.iter().all(BatchQueue::is_idle)
    }

    /// Threads within an operation that it was loaded with.
    pub(super) fn threads(&self) -> usize {
        self.loaded.threads
    }

    /// Records how long the load and the warm-up took.
    fn loaded_in(&self, time: Duration) {
        let _ = self.loaded.load_time.set(time);
        self.loaded.metrics.loaded(self.loaded.bytes, time);
    }

    /// Its handlers, if it has an `inference.py`.
    #[must_use]
    pub fn handlers(&self) -> Option<&Arc<Handlers>> {
        self.loaded.handlers.get()
    }

    /// Logs its external operations.
    fn report_external_ops(&self) {
        let LoadedVersion { model, version, external_ops, .. } = &*self.loaded;
        if external_ops.is_empty() {
            return;
        }
        let ops: Vec<String> = external_ops.iter().map(ToString::to_string).collect();
        log::warn!(
            "{model} version {version} has operations that reach outside the model: {}; deny_ops \
             refuses such models, allow_ops accepts an operation without this warning",
            ops.join("; ")
        );
    }

    /// What runs it, without keeping it in memory.
    pub(super) fn executable(&self) -> Weak<dyn Executable> {
        let executable = Arc::clone(&self.loaded.executable) as Arc<dyn Executable>;
        Arc::downgrade(&executable)
    }

    /// Its runs that do not end.
    pub(super) fn runaways(&self) -> &Arc<Runaways> {
        &self.loaded.runaways
    }

    /// How long the load and the warm-up took.
    #[must_use]
    pub fn load_time(&self) -> Duration {
        self.loaded.load_time.get().copied().unwrap_or_default()
    }

    /// The model's name.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.loaded.model
    }

    /// The model's name, shared.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.loaded.model
    }

    /// The version's number.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.loaded.version
    }

    /// Whether it comes with pre- or post-processing functions in Python's marshal format, which
    /// are never run.
    #[must_use]
    pub fn has_marshalled_hooks(&self) -> bool {
        self.loaded.marshalled_hooks
    }

    /// Its operations that access files, the network or Python, each once, unless `allow_ops` has
    /// them.
    #[must_use]
    pub fn external_ops(&self) -> &[ExternalOp] {
        &self.loaded.external_ops
    }

    /// The platform that runs it.
    #[must_use]
    pub fn platform(&self) -> PlatformInfo {
        self.loaded.platform
    }

    /// What the files around it declare, if they are of the type `T`.
    #[must_use]
    pub fn packaging<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.loaded.packaging.as_ref()?).downcast().ok()
    }

    /// The directory it was loaded from.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.loaded.folder
    }

    /// The size of its files in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.loaded.bytes
    }

    /// Whether its load includes a warm-up.
    #[must_use]
    pub fn is_warmed(&self) -> bool {
        self.loaded.is_warmed
    }

    /// The digest of its files, if its answers have receipts.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        self.loaded.digest.as_deref()
    }

    /// Its batching parameters.
    #[must_use]
    pub fn batching(&self) -> &BatchConfig {
        &self.batching
    }

    /// Whether requests of signature number `index` are joined, and why; `None` if there is no such
    /// signature.
    #[must_use]
    pub fn joining(&self, index: usize) -> Option<Joining> {
        self.queues.get(index).map(BatchQueue::joining)
    }

    /// Its signatures with their queues, as the model has them: without pre- and post-processing.
    pub(super) fn model_queues(&self) -> impl Iterator<Item = (&Signature, &BatchQueue)> {
        self.loaded.model_signatures().zip(&self.queues)
    }

    /// What is known of another form of it that takes less CPU time.
    #[must_use]
    pub fn optimization(&self) -> OptimizationState {
        self.loaded.forms.state(FormKind::Optimized)
    }

    /// What is known of it in another engine; `None` if it is to have none.
    #[must_use]
    pub fn other_engine(&self) -> Option<OptimizationState> {
        let forms = &self.loaded.forms;
        let is_wanted = forms.engine() != EngineChoice::TensorFlow;
        is_wanted.then(|| forms.state(FormKind::OtherEngine))
    }

    /// Requests in its queues, waiting or running.
    #[must_use]
    pub fn present(&self) -> usize {
        self.queues.iter().map(BatchQueue::present).sum()
    }

    /// Signatures, sorted by name.
    #[must_use]
    pub fn signatures(&self) -> &[Signature] {
        &self.loaded.signatures
    }

    /// The number of the signature `name`, and what it declares.
    #[must_use]
    pub fn signature(&self, name: &str) -> Option<(usize, &Signature)> {
        self.signatures().iter().enumerate().find(|(_, signature)| signature.name == name)
    }

    /// The signature for a request that is for the signature `found` and has inputs of these names: `found`, or
    /// the one that takes the columns of its matrix by their names. The first name that one of them has decides;
    /// if they have none, it is the one with the nearest, which an error is to propose.
    #[must_use]
    pub fn signature_by_inputs<'s, N: AsRef<[u8]>>(
        &'s self,
        found: (usize, &'s Signature),
        names: impl IntoIterator<Item = N>,
    ) -> (usize, &'s Signature) {
        let other = found.1.by_columns.as_deref().and_then(|other| self.signature(other));
        let Some(other) = other else {
            return found;
        };
        let has = |signature: &Signature, name: &[u8]| {
            matches!(signature.named(name), InputName::Declared(_) | InputName::Unused)
        };
        let mut unknown = None;
        for name in names {
            if has(found.1, name.as_ref()) {
                return found;
            }
            if has(other.1, name.as_ref()) {
                return other;
            }
            unknown.get_or_insert(name);
        }
        let distance = |signature: &Signature| {
            let name = unknown.as_ref().map_or(&[][..], N::as_ref);
            signature.nearest(name).map_or(usize::MAX, |(_, distance)| distance)
        };
        if distance(other.1) < distance(found.1) { other } else { found }
    }

    /// The signatures, shared, without a reference to the version.
    pub(crate) fn shared_signatures(&self) -> Arc<[Signature]> {
        Arc::clone(&self.loaded.signatures)
    }

    /// Its part of the response cache, if its responses may be cached.
    pub(super) fn cache(&self) -> Option<&VersionCache> {
        self.loaded.cache.as_ref()
    }

    /// Its metrics.
    #[must_use]
    pub fn version_metrics(&self) -> &VersionMetrics {
        &self.loaded.metrics
    }
}

/// The parameters of a version's queues.
fn batching(config: &ModelConfig, folder: &Path, files: &dyn VersionFiles) -> Result<BatchConfig> {
    match config.batching_file {
        true => files.batching(folder),
        false => Ok(config.batching.clone()),
    }
}

/// The platform's part of a model's settings.
/// A version, in messages about its processes and runs.
fn shown_name(model: &str, version: i64) -> String {
    format!("model {model:?} version {version}")
}

pub(super) fn load_options(config: &ModelConfig, threads: usize) -> LoadOptions {
    LoadOptions {
        threads,
        tags: config.tags.clone(),
        ops: config.ops.clone(),
        form: None,
        as_other_engine: false,
        isolated_as: None,
        runner: config.runner.clone(),
        images: match config.images {
            Images::Auto => None,
            Images::Raw => Some(ImageEncoding::Raw),
            Images::Base64 => Some(ImageEncoding::Base64Url),
        },
    }
}

/// Whether equal requests always get equal responses: no signature changes the state of the model, draws
/// random numbers or depends on something outside of it.
fn is_cacheable(loaded: &Loaded) -> bool {
    let mut signatures = loaded.signatures.iter();
    loaded.external_ops.is_empty() && signatures.all(|it| it.read_only && it.repeatable)
}
