//! Settings: what the user wrote (flags, environment, file) and the checked [`Config`] the
//! program runs on.
//!
//! Every setting has one name. `http_port` in the file is `--http-port` as a flag and
//! `TENSORSERVE_HTTP_PORT` in the environment; a flag wins over the environment, which wins over
//! the file. All mistakes are reported at once. The environment is read here and nowhere else.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

mod check;
pub mod environment;
mod file;
pub mod model_server;
mod platforms;
pub mod sagemaker;
mod settings;
pub mod simple;
mod tls;
pub mod units;

pub use self::platforms::{PLATFORMS, platform};
pub use self::sagemaker::MultiModelConfig;
pub use self::settings::{BatchSettings, ModelSettings, ServerSettings, Settings};

/// Whether a folder of this name is a version: digits, and nothing else.
#[must_use]
pub fn names_version(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Everything the server runs on, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The HTTP listener.
    pub http: HttpConfig,
    /// The gRPC listener.
    pub grpc: GrpcConfig,
    /// Which models, and how they come and go.
    pub repository: RepositoryConfig,
    /// Threads that queues share.
    pub batching: BatcherConfig,
    /// Who may do what; without it, everybody may do everything.
    pub auth: Option<AuthConfig>,
    /// libtensorflow.
    pub tensorflow: TensorFlowConfig,
    /// ONNX Runtime.
    pub onnx: OnnxConfig,
    /// Python processes that run models' handlers.
    pub workers: WorkersConfig,
    /// How long things may take when the server stops.
    pub shutdown: ShutdownConfig,
}

/// Where it is said who may do what.
#[derive(Clone, PartialEq, Eq)]
pub enum AuthConfig {
    /// In a file of users and keys, which is watched.
    File(PathBuf),
    /// There is one user, who may do everything.
    OneUser {
        /// The user's name.
        name: String,
        /// The user's password.
        password: String,
    },
}

/// A decoded tensor may take this many times the largest request body: text of short numbers
/// grows when it becomes numbers.
const GROWTH: usize = 8;

impl Config {
    /// The most memory one input tensor of a request may take, in bytes.
    #[must_use]
    pub fn max_tensor_bytes(&self) -> usize {
        self.http.max_body_bytes.saturating_mul(GROWTH)
    }

    /// The same with one user, who may do everything, and without whom nobody may.
    #[must_use]
    pub fn with_one_user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.auth = Some(AuthConfig::OneUser { name: name.into(), password: password.into() });
        self.http.console.admin = true;
        self
    }
}

impl fmt::Debug for AuthConfig {
    /// Without the password: it must not get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthConfig::File(path) => f.debug_tuple("File").field(path).finish(),
            AuthConfig::OneUser { name, .. } => {
                f.debug_struct("OneUser").field("name", name).finish_non_exhaustive()
            }
        }
    }
}

/// The HTTP listener and its limits.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpConfig {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port; 0 picks a free one, `None` means that there is no HTTP.
    pub port: Option<u16>,
    /// More ports on which the same is served, where they are free.
    pub more_ports: Vec<u16>,
    /// Threads that serve connections.
    pub threads: usize,
    /// The largest request body in bytes, before and after decompression.
    pub max_body_bytes: usize,
    /// Answer a request after this long, ready or not.
    pub request_timeout: Duration,
    /// A body must have arrived after this long.
    pub body_timeout: Duration,
    /// A request's head must have arrived after this long.
    pub header_timeout: Duration,
    /// Close a connection that has been idle for this long.
    pub keep_alive: Duration,
    /// Most connections at once, over all threads.
    pub max_connections: usize,
    /// Which requests browsers may make for pages of other origins.
    pub cors: Cors,
    /// This is Simple TensorFlow Serving: what it shares a path with TensorFlow Serving for is
    /// answered as it does.
    pub is_simple: bool,
    /// Answer TensorFlow Serving's REST API exactly as it does, without our additions.
    pub exact: bool,
    /// Where TensorFlow Serving's own metrics are; nowhere without it.
    pub metrics_path: Option<String>,
    /// Say with every answer where its time went, and not only when asked.
    pub server_timing: bool,
    /// Encryption of the port; none without it.
    pub tls: Option<TlsConfig>,
    /// SageMaker's container and service, which every HTTP listener speaks.
    pub sagemaker: SagemakerConfig,
    /// The console.
    pub console: ConsoleConfig,
}

/// What the console may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsoleConfig {
    /// There is one: the page for people, what feeds it, and what it changes.
    pub enabled: bool,
    /// Change what is served.
    pub admin: bool,
    /// Names by which browsers may reach it for that, besides addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// Which requests browsers may make for pages of other origins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    /// None.
    #[default]
    Off,
    /// Those to TensorFlow Serving's REST API, from any origin, with its headers.
    RestApi,
    /// All of them from any origin, with Simple TensorFlow Serving's headers.
    AnyOrigin,
}

/// SageMaker's TensorFlow Serving container, and the service in front of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SagemakerConfig {
    /// Which image to answer as.
    pub compatibility: SagemakerCompatibility,
    /// The model that is meant when none is named; the only one without it.
    pub default_model: Option<String>,
    /// This is the container: paths that nobody knows get its 404.
    pub is_container: bool,
    /// Folders from which asynchronous invocations may read their input.
    pub async_input: Vec<PathBuf>,
    /// Folder of the output of asynchronous invocations; there are none without it.
    pub async_output: Option<PathBuf>,
    /// Models come and go by request.
    pub multi_model: Option<MultiModelConfig>,
}

/// Which image of SageMaker's container to answer as, where they differ and none fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SagemakerCompatibility {
    /// Those up to TensorFlow Serving 2.19.
    #[default]
    Tf219,
    /// The one with TensorFlow Serving 2.20.
    Tf220,
    /// None: what `Accept` asks for is given.
    Extended,
}

/// Where TensorFlow Serving has its metrics, unless it is told otherwise.
pub const TFS_METRICS_PATH: &str = "/monitoring/prometheus/metrics";

/// The gRPC listener.
#[derive(Clone, Debug, PartialEq)]
pub struct GrpcConfig {
    /// Address to listen on.
    pub host: IpAddr,
    /// Port; 0 picks a free one, `None` means that it listens on no port.
    pub port: Option<u16>,
    /// UNIX socket to listen on, too.
    pub socket_path: Option<PathBuf>,
    /// The largest message in bytes, in either direction.
    pub max_message_bytes: usize,
    /// Encryption of the port; none without it.
    pub tls: Option<TlsConfig>,
    /// Offer `grpc.health.v1.Health`.
    pub health_service: bool,
    /// Let clients change the list of models, and with it name folders of this machine, as
    /// TensorFlow Serving does.
    pub reload: bool,
    /// Send tensors as raw bytes (`tensor_content`) and not as lists of numbers.
    pub tensor_content: bool,
}

/// The text of a PEM file.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// The text. It may hold a key, so that this type shows nothing of it.
    pub text: String,
    /// Where it comes from, for errors.
    pub origin: String,
    /// Its file, which is watched; `None` if the text was part of another file.
    pub path: Option<PathBuf>,
}

/// Keys and certificates.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The server's private key.
    pub key: Pem,
    /// The server's certificate, and those between it and its root.
    pub certificate: Pem,
    /// Certificates that clients' own are checked against.
    pub client_roots: Option<Pem>,
    /// Refuse clients without a certificate.
    pub verify_clients: bool,
}

impl fmt::Debug for TlsConfig {
    /// Without the key: it must not get into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verify = self.verify_clients;
        f.debug_struct("TlsConfig").field("verify_clients", &verify).finish_non_exhaustive()
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
    /// Which of the [`PLATFORMS`] it is for; `None` finds out from its files.
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

impl BatchConfig {
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

/// libtensorflow: where it is and how its sessions are set up.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorFlowConfig {
    /// File or folder given by the user.
    pub library: Option<PathBuf>,
    /// Folders to search, in order.
    pub search: Vec<PathBuf>,
    /// Libraries of custom operations, and folders with such.
    pub custom_ops: Vec<PathBuf>,
    /// What the library itself may write to stderr, 0 (all) to 3 (nothing); `None` leaves the
    /// environment's setting.
    pub log_level: Option<u8>,
    /// Threads within an operation; 0 for one per core.
    pub intra_op_threads: i32,
    /// Threads between operations, used by runs that can be cancelled; 0 for one per core.
    pub inter_op_threads: i32,
    /// GPUs.
    pub gpu: GpuConfig,
}

/// ONNX Runtime: where it is and how its sessions are set up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnnxConfig {
    /// File or folder given by the user.
    pub library: Option<PathBuf>,
    /// Folders to search, in order.
    pub search: Vec<PathBuf>,
    /// Threads within an operation; 0 for what a load asks for.
    pub intra_op_threads: i32,
}

/// Python processes that run models' handlers.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkersConfig {
    /// The interpreter.
    pub python: PathBuf,
    /// Processes for each folder of code.
    pub count: usize,
    /// The longest a handler may take.
    pub timeout: Duration,
    /// Memory in bytes that a process may hold; one that holds more is replaced.
    pub memory_limit: Option<usize>,
    /// Where virtual environments are kept.
    pub environments: PathBuf,
}

/// What of the GPUs may be used.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuConfig {
    /// Part of a GPU's memory to take at most; 0 for all.
    pub memory_fraction: f64,
    /// Take memory as it is needed and not all at the start.
    pub allow_growth: bool,
    /// Which GPUs, for example `0,1`; empty for all.
    pub visible_devices: String,
}

/// What happens between a signal to stop and the end.
#[derive(Clone, Debug, PartialEq)]
pub struct ShutdownConfig {
    /// Keep serving, but not ready, for so long: for load balancers to notice.
    pub delay: Duration,
    /// Requests under way may take so long after that.
    pub timeout: Duration,
}
