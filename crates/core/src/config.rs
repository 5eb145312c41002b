//! What the core is told: which models, how they come and go, how their requests are joined.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use tensorserve_platform::names_version;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_workers::WorkersConfig;

/// Everything the core runs on, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Which models, and how they come and go.
    pub repository: RepositoryConfig,
    /// Threads that queues share.
    pub batching: BatcherConfig,
    /// Python processes that run models' handlers.
    pub workers: WorkersConfig,
    /// When a request must be answered.
    pub request_timeout: Duration,
    /// The most memory one input tensor of a request may take, in bytes.
    pub max_tensor_bytes: usize,
    /// More folders that operators may load models from, besides those of the sources.
    pub roots: Vec<PathBuf>,
}

impl Default for EngineConfig {
    /// No models, on one thread for each processor.
    fn default() -> Self {
        EngineConfig {
            repository: RepositoryConfig {
                sources: Vec::new(),
                common: ModelConfig::default(),
                poll_interval: None,
                load_threads: 2,
                memory_limit: None,
                max_load_retries: 5,
                load_retry_interval: Duration::from_secs(5),
            },
            batching: BatcherConfig { threads: 1, inline_budget: Duration::from_millis(1) },
            workers: WorkersConfig::default(),
            request_timeout: Duration::from_secs(30),
            max_tensor_bytes: 512 << 20,
            roots: Vec::new(),
        }
    }
}

/// Which models to serve.
#[derive(Clone, Debug, PartialEq)]
pub struct RepositoryConfig {
    /// Where models come from.
    pub sources: Vec<SourceConfig>,
    /// What models have in common, for those that are named while the server runs.
    pub common: ModelConfig,
    /// How often the sources are looked at; `None` for once.
    pub poll_interval: Option<Duration>,
    /// Most loads and unloads at once.
    pub load_threads: usize,
    /// The most bytes that models may take in memory, by estimate; `None` for any.
    pub memory_limit: Option<u64>,
    /// How often a load that failed is tried again, unless its files change.
    pub max_load_retries: u32,
    /// How long after a failed load it is tried again; twice as long each time.
    pub load_retry_interval: Duration,
}

/// One place where models are.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceConfig {
    /// A model, a folder of its versions or, without a name, a folder of such models.
    pub path: PathBuf,
    /// The model's name; `None` takes it from the folder.
    pub name: Option<String>,
    /// Settings of its model or models.
    pub model: ModelConfig,
}

/// Settings of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The name of the platform it is for; `None` finds out from its files.
    pub platform: Option<&'static str>,
    /// Which of its versions to serve.
    pub policy: VersionPolicy,
    /// How one version follows another.
    pub transition: VersionTransition,
    /// Tags of the graph to load.
    pub tags: Vec<String>,
    /// Names for versions.
    pub labels: BTreeMap<String, i64>,
    /// How uploaded images are fed.
    pub images: Images,
    /// Run read-only signatures on made-up inputs, and recorded requests, before the model is
    /// ready.
    pub warm_up: bool,
    /// How often each recorded request is run for that.
    pub warm_up_iterations: usize,
    /// Logging of requests.
    pub log: LogConfig,
    /// Batching.
    pub batching: BatchConfig,
    /// Take batching from a file in each version's folder instead (TensorFlow Serving's
    /// `batching_params.pbtxt`).
    pub batching_file: bool,
    /// A folder with an `inference.py`, whose handlers stand before and behind the model, or in
    /// its place. What all models have in common also serves requests that name no model.
    pub code: Option<PathBuf>,
}

/// Where sampled requests of a model are written.
#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    /// A folder, or what the names of files start with; without it nothing is written.
    pub prefix: Option<PathBuf>,
    /// Which part of the requests, 0 to 1.
    pub sampling_rate: f64,
    /// A file of more bytes is followed by another.
    pub max_file_bytes: u64,
}

/// Which versions of a model to serve, of those that are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VersionPolicy {
    /// The so many with the highest numbers.
    Latest(usize),
    /// All of them.
    All,
    /// These.
    Specific(Vec<i64>),
}

/// How one version of a model follows another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionTransition {
    /// The new one is loaded before the old one is unloaded: the model is always available, and
    /// both are in memory for a while.
    AvailabilityPreserving,
    /// The old one is unloaded before the new one is loaded: they are never in memory together,
    /// and the model is not available for a while.
    ResourcePreserving,
}

/// How uploaded images are fed to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// As the graph wants them.
    Auto,
    /// The file's bytes.
    Raw,
    /// URL-safe base64 of the bytes.
    Base64,
}

/// Whether requests are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchMode {
    /// Never.
    Off,
    /// Where it is found to leave answers as they are and to pay.
    Auto,
    /// Always, with TensorFlow Serving's limits.
    On,
}

/// Batching of one model. The names and meanings are TensorFlow Serving's.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchConfig {
    /// Whether requests are joined.
    pub mode: BatchMode,
    /// Most rows in a batch; with splitting, most rows in a request.
    pub max_batch_size: usize,
    /// The longest a batch may wait to fill up while another one runs.
    pub timeout: Duration,
    /// Most full batches that may wait; more is an error for the client.
    pub max_enqueued_batches: usize,
    /// Sizes that batches are filled up to, ascending; empty for any.
    pub allowed_batch_sizes: Vec<usize>,
    /// Pad inputs of different shapes to join them.
    pub pad_variable_length_inputs: bool,
    /// Run a request of more rows than a batch takes in pieces.
    pub enable_large_batch_splitting: bool,
    /// Most rows in a batch when large requests are split.
    pub max_execution_batch_size: usize,
}

/// Parameters of batching, where they are given: what is not has its default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchParameters {
    /// Whether requests are joined (default: [`BatchMode::Auto`]).
    pub mode: Option<BatchMode>,
    /// Most rows in a batch (default: 64).
    pub max_batch_size: Option<usize>,
    /// Microseconds that a batch may wait to fill up while another one runs (default: 0).
    pub batch_timeout_micros: Option<u64>,
    /// Most full batches that may wait (default: 100).
    pub max_enqueued_batches: Option<usize>,
    /// Sizes that batches are filled up to, ascending (default: any).
    pub allowed_batch_sizes: Option<Vec<usize>>,
    /// Pad inputs of different shapes to join them (default: no).
    pub pad_variable_length_inputs: Option<bool>,
    /// Run a request of more rows than a batch takes in pieces (default: no).
    pub enable_large_batch_splitting: Option<bool>,
    /// Most rows in a batch when large requests are split (default: max_batch_size).
    pub max_execution_batch_size: Option<usize>,
}

impl BatchParameters {
    /// These parameters, and where there is none, those of `lower`.
    #[must_use]
    pub fn or(self, lower: &Self) -> Self {
        BatchParameters {
            mode: self.mode.or(lower.mode),
            max_batch_size: self.max_batch_size.or(lower.max_batch_size),
            batch_timeout_micros: self.batch_timeout_micros.or(lower.batch_timeout_micros),
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
            max_batch_size,
            timeout: Duration::from_micros(parameters.batch_timeout_micros.unwrap_or(0)),
            max_enqueued_batches: parameters.max_enqueued_batches.unwrap_or(100),
            allowed_batch_sizes: parameters.allowed_batch_sizes.clone().unwrap_or_default(),
            pad_variable_length_inputs: parameters.pad_variable_length_inputs.unwrap_or(false),
            enable_large_batch_splitting: parameters.enable_large_batch_splitting.unwrap_or(false),
            max_execution_batch_size: parameters.max_execution_batch_size.unwrap_or(max_batch_size),
        }
    }

    /// What is wrong with the parameters, a sentence each.
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

    /// The same as parameters that say everything.
    #[must_use]
    pub fn parameters(&self) -> BatchParameters {
        let micros = u64::try_from(self.timeout.as_micros()).unwrap_or(u64::MAX);
        let execution = self.max_execution_batch_size;
        BatchParameters {
            mode: Some(self.mode),
            max_batch_size: Some(self.max_batch_size),
            batch_timeout_micros: Some(micros),
            max_enqueued_batches: Some(self.max_enqueued_batches),
            allowed_batch_sizes: Some(self.allowed_batch_sizes.clone()),
            pad_variable_length_inputs: Some(self.pad_variable_length_inputs),
            enable_large_batch_splitting: Some(self.enable_large_batch_splitting),
            // Without splitting it means nothing, and would only be in the way of another size.
            max_execution_batch_size: self.enable_large_batch_splitting.then_some(execution),
        }
    }

    /// Most rows that run together.
    #[must_use]
    pub fn execution_size(&self) -> usize {
        if self.enable_large_batch_splitting {
            self.max_execution_batch_size.min(self.max_batch_size)
        } else {
            self.max_batch_size
        }
    }
}

/// Threads that batch queues share.
#[derive(Clone, Debug, PartialEq)]
pub struct BatcherConfig {
    /// Batch threads.
    pub threads: usize,
    /// The longest run, as measured, that may take place on a connection's thread.
    pub inline_budget: Duration,
}

impl Default for ModelConfig {
    /// What a model has of which nothing is said.
    fn default() -> Self {
        ModelConfig {
            platform: None,
            policy: VersionPolicy::Latest(1),
            transition: VersionTransition::AvailabilityPreserving,
            tags: vec!["serve".to_owned()],
            labels: BTreeMap::new(),
            images: Images::Auto,
            warm_up: true,
            warm_up_iterations: 1,
            log: LogConfig { prefix: None, sampling_rate: 1.0, max_file_bytes: 64 << 20 },
            batching: BatchConfig::default(),
            batching_file: false,
            code: None,
        }
    }
}

/// Whether clients can name a model like that in a path.
#[must_use]
pub fn is_model_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', ':'])
}
