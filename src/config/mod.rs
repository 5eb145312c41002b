//! Settings: what the user wrote (options, environment, file) and the checked [`Config`] the
//! program runs on.
//!
//! Every setting has one name: `http_port` in the file is `--http-port` as an option and
//! `TENSORSERVE_HTTP_PORT` in the environment. Options override the environment, which overrides the
//! file. All mistakes are reported at once. The environment is read here and nowhere else.
//!
//! Each crate defines the configuration that it needs; this module fills it in.

pub use tensorserve_auth::AuthConfig;
pub use tensorserve_core::config::{
    BatchConfig, BatchMode, BatchParameters, BatcherConfig, EngineChoice, EngineConfig, Images,
    LogConfig, ModelConfig, OptimizeMode, RepositoryConfig, SourceConfig, TrafficConfig,
    VersionPolicy, VersionTransition,
};
pub use tensorserve_core::metrics::MetricsAlias;
#[cfg(any(feature = "onnx", feature = "tflite", feature = "openvino"))]
pub use tensorserve_platform::library::RuntimeConfig;
pub use tensorserve_probe::ProbeConfig;
pub use tensorserve_protocols::sagemaker::{
    Compatibility as SagemakerCompatibility, MultiModelConfig, SagemakerConfig,
};
pub use tensorserve_protocols::tfs::TfsConfig;
pub use tensorserve_protocols::vertex::VertexConfig;
pub use tensorserve_server::config::{
    AdminAccess, Cors, GrpcConfig, HttpConfig, Pem, ServerConfig, ShutdownConfig, TlsConfig,
};
#[cfg(feature = "stores")]
pub use tensorserve_store::StoreConfig;
#[cfg(feature = "tensorflow")]
pub use tensorserve_tensorflow::{GpuConfig, TensorFlowConfig};
#[cfg(any(feature = "pytorch", feature = "executorch"))]
pub use tensorserve_torch::TorchConfig;
pub use tensorserve_workers::WorkersConfig;

mod check;
mod checked;
pub mod environment;
mod file;
mod groups;
mod memory;
pub mod model_server;
mod observation;
mod platforms;
mod processes;
mod protocols;
mod releases;
pub mod sagemaker;
mod settings;
pub mod simple;
#[cfg(feature = "stores")]
mod stores;
#[cfg(all(test, feature = "default"))]
mod tests;
mod tls;
mod traffic;
pub mod units;
mod value;
pub mod vertex;
mod written;

pub use self::groups::{
    BatchSettings, EachModelSettings, Isolation, LogFormat, ReleaseKind, RowIndependence, Runner,
    ServerSettings, TraceProtocol,
};
pub use self::observation::{ObservationConfig, TracesConfig};
pub(crate) use self::platforms::runner_platform;
pub use self::platforms::{PLATFORMS, left_out, platform};
pub use self::settings::{ModelSettings, Settings};
pub(crate) use self::written::variable;
pub use self::written::{Mistakes, Origins, Reading, SettingOrigin, unknown_name};

/// Everything the server runs on, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The HTTP listener.
    pub http: HttpConfig,
    /// The gRPC listener.
    pub grpc: GrpcConfig,
    /// The protocols that are served.
    pub protocols: ProtocolsConfig,
    /// The models, and how they are loaded and unloaded.
    pub repository: RepositoryConfig,
    /// The threads that batch queues share.
    pub batching: BatcherConfig,
    /// Users and their roles; without it, every client may do everything.
    pub auth: Option<AuthConfig>,
    /// libtensorflow.
    #[cfg(feature = "tensorflow")]
    pub tensorflow: TensorFlowConfig,
    /// ONNX Runtime.
    #[cfg(feature = "onnx")]
    pub onnx: RuntimeConfig,
    /// LiteRT.
    #[cfg(feature = "tflite")]
    pub litert: RuntimeConfig,
    /// OpenVINO.
    #[cfg(feature = "openvino")]
    pub openvino: RuntimeConfig,
    /// libtorch.
    #[cfg(feature = "pytorch")]
    pub torch: TorchConfig,
    /// libexecutorch.
    #[cfg(feature = "executorch")]
    pub executorch: TorchConfig,
    /// How versions are probed before they are loaded, and whether some models are isolated.
    pub probe: ProbeConfig,
    /// Models in object stores and on web servers.
    #[cfg(feature = "stores")]
    pub stores: StoreConfig,
    /// Python processes that run models' handlers.
    pub workers: WorkersConfig,
    /// Do not start without a GPU that libtensorflow can use.
    pub require_gpu: bool,
    /// The memory that all requests may use together, in bytes.
    pub max_request_memory: usize,
    /// What is recorded of the server and of requests.
    pub observation: ObservationConfig,
    /// The most bytes that cached responses of all models may take; 0 for no cache.
    pub response_cache_bytes: usize,
    /// Maximum number of requests that wait to be run, or are run, on shadow versions.
    pub max_shadow_requests: usize,
    /// Time limits of the shutdown.
    pub shutdown: ShutdownConfig,
    /// The end of standard input stops the server, as SIGTERM does.
    pub stop_with_stdin: bool,
}

/// The protocols that are served, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct ProtocolsConfig {
    /// TensorFlow Serving's REST and gRPC APIs.
    pub tfs: TfsConfig,
    /// Clients of the Open Inference Protocol may register shared memory of this machine.
    pub shared_memory: bool,
    /// This server replaces Simple TensorFlow Serving: paths that it shares with TensorFlow Serving
    /// get its responses.
    pub replaces_simple: bool,
    /// SageMaker's container and service.
    pub sagemaker: SagemakerConfig,
    /// The paths that Vertex AI calls, if it has started the program.
    pub vertex: Option<VertexConfig>,
    /// The console is served.
    pub console: bool,
    /// Servers under whose names for metrics ours are served, too.
    pub metrics_aliases: Vec<MetricsAlias>,
}

/// The maximum size of a decoded tensor, as a multiple of the maximum request body: short numbers
/// take less space as text than as values.
const DECODED_GROWTH: usize = 8;

impl Config {
    /// The maximum size of one input tensor of a request, in bytes.
    #[must_use]
    pub fn max_tensor_bytes(&self) -> usize {
        self.http.max_body_bytes.saturating_mul(DECODED_GROWTH)
    }

    /// This configuration in a program that writes nothing to stderr while it opens libraries: what appears there is
    /// theirs, and goes to the log.
    #[must_use]
    pub fn with_stderr_for_libraries(mut self) -> Self {
        #[cfg(feature = "tensorflow")]
        {
            self.tensorflow.is_alone_on_stderr = true;
        }
        self
    }

    /// This configuration with one user, who may do everything; other clients are refused.
    #[must_use]
    pub fn with_one_user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.auth = Some(AuthConfig::OneUser { name: name.into(), password: password.into() });
        self.http.admin.allowed = true;
        self
    }

    /// Makes TensorFlow Serving's APIs respond exactly as the original, without additions.
    pub fn answer_as_tfs(&mut self) {
        self.protocols.tfs.exact = true;
        self.http.request_ids = false;
    }

    /// The configuration of the core.
    #[must_use]
    pub fn engine(&self) -> EngineConfig {
        let multi_model = self.protocols.sagemaker.multi_model.as_ref();
        EngineConfig {
            repository: self.repository.clone(),
            batching: self.batching.clone(),
            workers: self.workers.clone(),
            request_timeout: self.http.request_timeout,
            max_tensor_bytes: self.max_tensor_bytes(),
            max_request_memory: self.max_request_memory,
            response_cache_bytes: self.response_cache_bytes,
            max_shadow_requests: self.max_shadow_requests,
            roots: multi_model.map(|multi| multi.root.clone()).into_iter().collect(),
        }
    }

    /// The configuration of the listeners.
    #[must_use]
    pub fn server(&self) -> ServerConfig {
        ServerConfig {
            http: self.http.clone(),
            grpc: self.grpc.clone(),
            auth: self.auth.clone(),
            shutdown: self.shutdown.clone(),
            poll_interval: self.repository.poll_interval,
        }
    }
}
