//! Settings: what the user wrote (flags, environment, file) and the checked [`Config`] the
//! program runs on.
//!
//! Every setting has one name. `http_port` in the file is `--http-port` as a flag and
//! `TENSORSERVE_HTTP_PORT` in the environment; a flag wins over the environment, which wins over
//! the file. All mistakes are reported at once. The environment is read here and nowhere else.
//!
//! Each part of the program says what it must be told; here it is found out.

pub use tensorserve_auth::AuthConfig;
pub use tensorserve_core::config::{
    BatchConfig, BatchMode, BatchParameters, BatcherConfig, EngineConfig, Images, LogConfig,
    ModelConfig, RepositoryConfig, SourceConfig, VersionPolicy, VersionTransition,
};
#[cfg(feature = "onnx")]
pub use tensorserve_onnx::OnnxConfig;
pub use tensorserve_protocols::sagemaker::{
    Compatibility as SagemakerCompatibility, MultiModelConfig, SagemakerConfig,
};
pub use tensorserve_protocols::tfs::TfsConfig;
pub use tensorserve_server::config::{
    AdminAccess, Cors, GrpcConfig, HttpConfig, Pem, ServerConfig, ShutdownConfig, TlsConfig,
};
#[cfg(feature = "tensorflow")]
pub use tensorserve_tensorflow::{GpuConfig, TensorFlowConfig};
pub use tensorserve_workers::WorkersConfig;

mod check;
pub mod environment;
mod file;
mod groups;
pub mod model_server;
mod platforms;
pub mod sagemaker;
mod settings;
pub mod simple;
mod tls;
pub mod units;
mod value;
mod written;

pub use self::groups::{BatchSettings, EachModelSettings, ServerSettings};
pub use self::platforms::{PLATFORMS, platform};
pub use self::settings::{ModelSettings, Settings};
pub use self::written::{Mistakes, Origin, Origins, Reading, unknown_name};

/// Everything the server runs on, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The HTTP listener.
    pub http: HttpConfig,
    /// The gRPC listener.
    pub grpc: GrpcConfig,
    /// The protocols that are served.
    pub protocols: ProtocolsConfig,
    /// Which models, and how they come and go.
    pub repository: RepositoryConfig,
    /// Threads that queues share.
    pub batching: BatcherConfig,
    /// Who may do what; without it, everybody may do everything.
    pub auth: Option<AuthConfig>,
    /// libtensorflow.
    #[cfg(feature = "tensorflow")]
    pub tensorflow: TensorFlowConfig,
    /// ONNX Runtime.
    #[cfg(feature = "onnx")]
    pub onnx: OnnxConfig,
    /// Python processes that run models' handlers.
    pub workers: WorkersConfig,
    /// How long things may take when the server stops.
    pub shutdown: ShutdownConfig,
}

/// The protocols that are served, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct ProtocolsConfig {
    /// TensorFlow Serving's REST and gRPC APIs.
    pub tfs: TfsConfig,
    /// This server stands in for Simple TensorFlow Serving: paths that it shares with TensorFlow
    /// Serving are answered as it does.
    pub replaces_simple: bool,
    /// SageMaker's container and service.
    pub sagemaker: SagemakerConfig,
    /// The console is served.
    pub console: bool,
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
        self.http.admin.allowed = true;
        self
    }

    /// Answers TensorFlow Serving's APIs exactly as it does, without additions of ours.
    pub fn answer_as_tfs(&mut self) {
        self.protocols.tfs.exact = true;
        self.http.request_ids = false;
    }

    /// What the core must be told.
    #[must_use]
    pub fn engine(&self) -> EngineConfig {
        let multi_model = self.protocols.sagemaker.multi_model.as_ref();
        EngineConfig {
            repository: self.repository.clone(),
            batching: self.batching.clone(),
            workers: self.workers.clone(),
            request_timeout: self.http.request_timeout,
            max_tensor_bytes: self.max_tensor_bytes(),
            roots: multi_model.map(|multi| multi.root.clone()).into_iter().collect(),
        }
    }

    /// What the listeners must be told.
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
