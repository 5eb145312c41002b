//! The configuration of the core: models, their lifecycle and batching.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::comparison::ReleaseRules;
pub use tensorserve_platform::{OpPolicy, RunnerOptions, names_version};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_workers::WorkersConfig;

/// The checked configuration of the core.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// The models, and how they are loaded and unloaded.
    pub repository: RepositoryConfig,
    /// The threads that batch queues share.
    pub batching: BatcherConfig,
    /// Python processes that run models' handlers.
    pub workers: WorkersConfig,
    /// Time limit for answering a request.
    pub request_timeout: Duration,
    /// Maximum size of one input tensor of a request, in bytes.
    pub max_tensor_bytes: usize,
    /// The memory that all requests may use together, in bytes.
    pub max_request_memory: usize,
    /// The most bytes that cached responses of all models may take; 0 for no cache.
    pub response_cache_bytes: usize,
    /// Maximum number of requests that wait to be run, or are run, on shadow versions.
    pub max_shadow_requests: usize,
    /// Directories, besides those of the sources, from which operators may load models.
    pub roots: Vec<PathBuf>,
}

impl Default for EngineConfig {
    /// No models, and one batch thread.
    fn default() -> Self {
        EngineConfig {
            repository: RepositoryConfig {
                sources: Vec::new(),
                common: ModelConfig::default(),
                poll_interval: None,
                load_threads: 2,
                longest_turn: LONGEST_TURN,
                second_look: SECOND_LOOK,
                release_state: None,
                memory_limit: None,
                max_load_retries: 5,
                load_retry_interval: Duration::from_secs(5),
            },
            batching: BatcherConfig { threads: 1, inline_budget: Duration::from_millis(1) },
            workers: WorkersConfig::default(),
            request_timeout: Duration::from_secs(30),
            max_tensor_bytes: 512 << 20,
            max_request_memory: 4 << 30,
            response_cache_bytes: 0,
            max_shadow_requests: 16,
            roots: Vec::new(),
        }
    }
}

/// How long a load keeps others waiting: one that takes longer may hang.
pub const LONGEST_TURN: Duration = Duration::from_secs(120);

/// How long samples of requests run for rows that are known to be independent: they are a second look, and a busy
/// machine leaves little to a thread of low priority while a reload waits for it.
pub const SECOND_LOOK: Duration = Duration::from_millis(50);

/// The models to serve.
#[derive(Clone, Debug, PartialEq)]
pub struct RepositoryConfig {
    /// The sources of models.
    pub sources: Vec<SourceConfig>,
    /// Settings of models that are named while the server runs.
    pub common: ModelConfig,
    /// Interval for scanning the sources; `None` scans once.
    pub poll_interval: Option<Duration>,
    /// Maximum number of concurrent loads and unloads.
    pub load_threads: usize,
    /// A load or unload that takes longer does not count against `load_threads` any more.
    pub longest_turn: Duration,
    /// The most time for the samples of a signature whose rows are known to be independent.
    pub second_look: Duration,
    /// The directory that remembers which versions are held; `None` to remember nothing.
    pub release_state: Option<PathBuf>,
    /// Memory limit for all models in bytes, by estimate; `None` for no limit.
    pub memory_limit: Option<u64>,
    /// Number of retries after a failed load; a change of its files restarts the count.
    pub max_load_retries: u32,
    /// Delay before the first retry; it doubles with each retry.
    pub load_retry_interval: Duration,
}

/// A directory or file with models.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceConfig {
    /// A model, a directory of its versions or, without a name, a directory of such models: a local
    /// path, or the URL of a store.
    pub path: PathBuf,
    /// The model's name; `None` for the name of the directory.
    pub name: Option<String>,
    /// Settings of its model or models.
    pub model: ModelConfig,
}

/// The schemes of stores: those of `tensorserve_store::StoreKind`, which a build without stores lacks.
pub const STORE_SCHEMES: [&str; 8] =
    ["s3://", "s3a://", "gs://", "gcs://", "az://", "azure://", "https://", "http://"];

/// Whether `path` is the URL of a store, such as `s3://bucket/models`, and not a local path.
#[must_use]
pub fn is_store_url(path: &Path) -> bool {
    let text = path.to_str().unwrap_or_default();
    STORE_SCHEMES.iter().any(|scheme| text.starts_with(scheme))
}

/// The path that a user has written as the place of a model: `file:///models` is `/models`.
#[must_use]
pub fn model_path(written: impl Into<PathBuf>) -> PathBuf {
    let written = written.into();
    let local = written.to_str().and_then(|text| text.strip_prefix("file://"));
    let local = local.map(|local| local.strip_prefix("localhost").unwrap_or(local));
    local.filter(|local| local.starts_with('/')).map(PathBuf::from).unwrap_or(written)
}

/// Settings of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Its platform; `None` to detect it from the files.
    pub platform: Option<&'static str>,
    /// Its version policy.
    pub policy: VersionPolicy,
    /// Its version transition.
    pub transition: VersionTransition,
    /// How its new versions come to take traffic.
    pub release: ReleaseConfig,
    /// Tags of the SavedModel graph to load.
    pub tags: Vec<String>,
    /// The operations that it may have.
    pub ops: OpPolicy,
    /// Run it in a process of its own.
    pub isolated: bool,
    /// Its processes, if it runs in Python.
    pub runner: RunnerOptions,
    /// Names for versions.
    pub labels: BTreeMap<String, i64>,
    /// What else decides about its requests.
    pub traffic: TrafficConfig,
    /// How uploaded images are passed to the model.
    pub images: Images,
    /// Run read-only signatures on synthetic inputs, and recorded requests, before a version is
    /// ready.
    pub warm_up: bool,
    /// Number of times to run each recorded request during the warm-up.
    pub warm_up_iterations: usize,
    /// The request log.
    pub log: LogConfig,
    /// Answers have receipts: which version made them, of which inputs and outputs.
    pub receipts: bool,
    /// Whether a version may run in another form that takes less CPU time.
    pub optimize: OptimizeMode,
    /// What runs it, if it is a SavedModel.
    pub engine: EngineChoice,
    /// Maximum number of its requests that wait for a batch or run; `None` for no limit.
    pub max_concurrent_requests: Option<usize>,
    /// Batching.
    pub batching: BatchConfig,
    /// Read batching parameters from the directory of each version instead (TensorFlow Serving's
    /// `batching_params.pbtxt`).
    pub batching_file: bool,
    /// A directory with an `inference.py`, whose handlers run before and after the model, or instead
    /// of it. The directory that all models share also handles requests that name no model.
    pub code: Option<PathBuf>,
}

/// Which version gets a request that names none, and what else happens with the requests of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficConfig {
    /// The weights of labels, between which requests that name no version are split. Without any, they
    /// get the latest version.
    pub split: BTreeMap<String, u32>,
    /// The label of a version that gets a copy of each request that another version answers.
    pub shadow: Option<String>,
    /// Keep responses, to answer equal requests with them.
    pub response_cache: bool,
}

/// Whether a version may run in another form of its model, such as one whose variables are constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptimizeMode {
    /// It runs as it was loaded.
    Off,
    /// If outputs are equal to the bit.
    Exact,
    /// If outputs differ as little as those of two exports of a model may: by 1e-3 of the largest magnitude, or 2e-2 for
    /// floats of 2 bytes.
    Fast,
}

/// What runs the models of TensorFlow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineChoice {
    /// libtensorflow.
    TensorFlow,
    /// OpenVINO, where outputs differ from libtensorflow's as little as those of two exports of a model may.
    OpenVino,
    /// OpenVINO where it also takes at most 0.85 of the CPU time.
    Auto,
}

/// How a new version of a model comes to take traffic while another one serves.
#[derive(Clone, Debug, PartialEq)]
pub struct ReleaseConfig {
    /// Only once recorded requests have run on both, and their outputs are alike by the rules.
    pub is_gated: bool,
    /// What must hold.
    pub rules: ReleaseRules,
    /// Maximum number of recorded requests to run.
    pub most_requests: usize,
    /// How long the version before stays loaded, to take its traffic back if live requests fail; zero for not at all.
    pub watch: Duration,
}

impl Default for ReleaseConfig {
    fn default() -> Self {
        ReleaseConfig {
            is_gated: false,
            rules: ReleaseRules::default(),
            most_requests: 1000,
            watch: Duration::from_secs(60),
        }
    }
}

/// The request log of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// A directory, or the prefix of file names; `None` for no log.
    pub prefix: Option<PathBuf>,
    /// Fraction of the requests to log, 0 to 1.
    pub sampling_rate: f64,
    /// Size in bytes at which the log continues in a new file.
    pub max_file_bytes: u64,
}

/// Which of the existing versions of a model to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// The given number of versions with the highest numbers.
    Latest(usize),
    /// All versions.
    All,
    /// The versions with these numbers.
    Specific(Vec<i64>),
}

/// How one version of a model replaces another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionTransition {
    /// The new version is loaded before the old one is unloaded: the model is always available, and
    /// both are in memory for a while.
    AvailabilityPreserving,
    /// The old version is unloaded before the new one is loaded: they are never in memory together,
    /// and the model is unavailable for a while.
    ResourcePreserving,
}

/// How uploaded images are passed to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// In the encoding that the graph expects.
    Auto,
    /// The bytes of the file.
    Raw,
    /// URL-safe base64 of the bytes.
    Base64,
}

/// Whether requests are batched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchMode {
    /// Never.
    Off,
    /// Where rows are known to be independent and measurements show that throughput improves.
    Auto,
    /// Always, with TensorFlow Serving's limits.
    On,
}

/// Batching of one model. The names and meanings are TensorFlow Serving's.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchConfig {
    /// Whether requests are batched.
    pub mode: BatchMode,
    /// The operator says that rows are independent, so that `auto` may join requests where no graph
    /// proves it.
    pub independent_rows: bool,
    /// Maximum number of rows in a batch; with splitting, in a request.
    pub max_batch_size: usize,
    /// Maximum time that a batch waits for more rows while another batch runs.
    pub batch_timeout: Duration,
    /// Maximum number of full batches in a queue; further requests are refused.
    pub max_enqueued_batches: usize,
    /// Batch sizes to pad to, ascending; empty for any.
    pub allowed_batch_sizes: Vec<usize>,
    /// Pad inputs of different shapes so that they can be batched.
    pub pad_variable_length_inputs: bool,
    /// Split requests with more rows than a batch.
    pub enable_large_batch_splitting: bool,
    /// Maximum number of rows in a batch when requests are split.
    pub max_execution_batch_size: usize,
}

/// Parameters of batching; those that are not given have their defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchParameters {
    /// Whether requests are batched (default: [`BatchMode::Auto`]).
    pub mode: Option<BatchMode>,
    /// Whether the operator says that rows are independent (default: no).
    pub independent_rows: Option<bool>,
    /// Maximum number of rows in a batch (default: 64).
    pub max_batch_size: Option<usize>,
    /// Maximum time that a batch waits for more rows while another batch runs (default: 0).
    pub batch_timeout: Option<Duration>,
    /// Maximum number of full batches in a queue (default: 100).
    pub max_enqueued_batches: Option<usize>,
    /// Batch sizes to pad to, ascending (default: any).
    pub allowed_batch_sizes: Option<Vec<usize>>,
    /// Pad inputs of different shapes so that they can be batched (default: no).
    pub pad_variable_length_inputs: Option<bool>,
    /// Split requests with more rows than a batch (default: no).
    pub enable_large_batch_splitting: Option<bool>,
    /// Maximum number of rows in a batch when requests are split (default: max_batch_size).
    pub max_execution_batch_size: Option<usize>,
}

impl BatchParameters {
    /// These parameters, and where there is none, those of `lower`.
    #[must_use]
    pub fn or(self, lower: &Self) -> Self {
        BatchParameters {
            mode: self.mode.or(lower.mode),
            independent_rows: self.independent_rows.or(lower.independent_rows),
            max_batch_size: self.max_batch_size.or(lower.max_batch_size),
            batch_timeout: self.batch_timeout.or(lower.batch_timeout),
            max_enqueued_batches: self.max_enqueued_batches.or(lower.max_enqueued_batches),
            allowed_batch_sizes: self
                .allowed_batch_sizes
                .or_else(|| lower.allowed_batch_sizes.clone()),
            pad_variable_length_inputs: self
                .pad_variable_length_inputs
                .or(lower.pad_variable_length_inputs),
            enable_large_batch_splitting: self
                .enable_large_batch_splitting
                .or(lower.enable_large_batch_splitting),
            max_execution_batch_size: self
                .max_execution_batch_size
                .or(lower.max_execution_batch_size),
        }
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        BatchConfig::unchecked(&BatchParameters::default())
    }
}

impl BatchConfig {
    /// Checks parameters, and fills in defaults.
    ///
    /// # Errors
    /// One error with all mistakes, a line each.
    pub fn new(parameters: &BatchParameters) -> Result<Self> {
        let config = BatchConfig::unchecked(parameters);
        let mistakes = config.mistakes();
        if mistakes.is_empty() {
            return Ok(config);
        }
        Err(Error::invalid(mistakes.join("\n")))
    }

    /// Fills in defaults.
    #[must_use]
    pub fn unchecked(parameters: &BatchParameters) -> Self {
        let max_batch_size = parameters.max_batch_size.unwrap_or(64);
        BatchConfig {
            mode: parameters.mode.unwrap_or(BatchMode::Auto),
            independent_rows: parameters.independent_rows.unwrap_or(false),
            max_batch_size,
            batch_timeout: parameters.batch_timeout.unwrap_or_default(),
            max_enqueued_batches: parameters.max_enqueued_batches.unwrap_or(100),
            allowed_batch_sizes: parameters.allowed_batch_sizes.clone().unwrap_or_default(),
            pad_variable_length_inputs: parameters.pad_variable_length_inputs.unwrap_or(false),
            enable_large_batch_splitting: parameters.enable_large_batch_splitting.unwrap_or(false),
            max_execution_batch_size: parameters.max_execution_batch_size.unwrap_or(max_batch_size),
        }
    }

    /// The mistakes in the parameters.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        let mut mistakes = Vec::new();
        let max = self.max_batch_size;
        if max == 0 {
            mistakes.push("max_batch_size must be at least 1".to_owned());
        }
        if self.max_enqueued_batches == 0 {
            mistakes.push("max_enqueued_batches must be at least 1".to_owned());
        }
        let allowed = &self.allowed_batch_sizes;
        if !allowed.is_sorted_by(|a, b| a < b) {
            mistakes.push("allowed_batch_sizes must ascend".to_owned());
        }
        let execution = self.max_execution_batch_size;
        let largest = if self.enable_large_batch_splitting { execution } else { max };
        if let Some(&last) = allowed.last()
            && last != largest
        {
            mistakes.push(format!(
                "Last entry in allowed_batch_sizes must match max_batch_size; last entry was \
                 {last}; expected {largest}"
            ));
        }
        if execution > max || execution == 0 {
            mistakes
                .push(format!("max_execution_batch_size must be from 1 to max_batch_size ({max})"));
        }
        mistakes
    }

    /// This configuration as a full set of parameters.
    #[must_use]
    pub fn parameters(&self) -> BatchParameters {
        let execution = self.max_execution_batch_size;
        BatchParameters {
            mode: Some(self.mode),
            independent_rows: Some(self.independent_rows),
            max_batch_size: Some(self.max_batch_size),
            batch_timeout: Some(self.batch_timeout),
            max_enqueued_batches: Some(self.max_enqueued_batches),
            allowed_batch_sizes: Some(self.allowed_batch_sizes.clone()),
            pad_variable_length_inputs: Some(self.pad_variable_length_inputs),
            enable_large_batch_splitting: Some(self.enable_large_batch_splitting),
            // Without splitting it has no effect, and would conflict with another max_batch_size.
            max_execution_batch_size: self.enable_large_batch_splitting.then_some(execution),
        }
    }

    /// Maximum number of rows that run together.
    #[must_use]
    pub fn execution_size(&self) -> usize {
        if self.enable_large_batch_splitting {
            self.max_execution_batch_size.min(self.max_batch_size)
        } else {
            self.max_batch_size
        }
    }
}

/// The threads that batch queues share.
#[derive(Clone, Debug, PartialEq)]
pub struct BatcherConfig {
    /// Batch threads.
    pub threads: usize,
    /// The longest measured run that may take place inline, on the thread of a connection.
    pub inline_budget: Duration,
}

impl Default for ModelConfig {
    /// The defaults of all settings.
    fn default() -> Self {
        ModelConfig {
            platform: None,
            policy: VersionPolicy::Latest(1),
            transition: VersionTransition::AvailabilityPreserving,
            release: ReleaseConfig::default(),
            tags: vec!["serve".to_owned()],
            ops: OpPolicy::default(),
            isolated: false,
            runner: RunnerOptions::default(),
            labels: BTreeMap::new(),
            traffic: TrafficConfig::default(),
            images: Images::Auto,
            warm_up: true,
            warm_up_iterations: 1,
            log: LogConfig { prefix: None, sampling_rate: 1.0, max_file_bytes: 64 << 20 },
            receipts: false,
            optimize: OptimizeMode::Off,
            engine: EngineChoice::TensorFlow,
            max_concurrent_requests: None,
            batching: BatchConfig::default(),
            batching_file: false,
            code: None,
        }
    }
}

/// Whether a path of the API can contain `name` as the name of a model.
#[must_use]
pub fn is_model_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', ':'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_urls_are_paths_and_others_are_stores() {
        let path = |written: &str| model_path(written).to_string_lossy().into_owned();
        assert_eq!(path("file:///srv/models"), "/srv/models");
        assert_eq!(path("file://localhost/srv"), "/srv");
        assert_eq!(path("models/m"), "models/m");
        assert_eq!(path("s3://b/m"), "s3://b/m");
        // Another machine's file is none of ours.
        assert_eq!(path("file://host/srv"), "file://host/srv");
        assert!(is_store_url(Path::new("s3://b")) && is_store_url(Path::new("https://h/m.tgz")));
        assert!(!is_store_url(Path::new("/srv/s3:/b")) && !is_store_url(Path::new("hdfs://b")));
    }
}
