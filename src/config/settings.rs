//! What a user can set: exactly what was written, nothing filled in.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::units::{Amount, Bytes, List, Port, Span};
use super::{BatchMode, BatchParameters};

/// Declares settings once for the command line, the environment and the file.
macro_rules! settings {
    (
        $(#[$about:meta])*
        pub struct $name:ident {
            $( $(#[$meta:meta])* $field:ident: $type:ty, )*
        }
    ) => {
        #[derive(Clone, Debug, Default, PartialEq, clap::Args, serde::Deserialize)]
        #[serde(default)]
        $(#[$about])*
        pub struct $name {
            $( $(#[$meta])* #[arg(long)] pub $field: Option<$type>, )*
        }

        impl $name {
            /// The names of all settings here, as the file has them.
            pub(super) const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            /// These settings, and where there is none, those of `lower`.
            #[must_use]
            pub fn or(self, lower: &Self) -> Self {
                $name { $( $field: self.$field.or_else(|| lower.$field.clone()), )* }
            }
        }
    };
}

settings! {
    /// Settings of the whole server.
    #[command(next_help_heading = "Server")]
    pub struct ServerSettings {
        /// Address to listen on [default: 127.0.0.1]
        #[arg(value_name = "ADDRESS")]
        host: String,
        /// HTTP port; 0 picks a free one, off means no HTTP [default: 8500]
        #[arg(value_name = "PORT")]
        http_port: Port,
        /// gRPC port; 0 picks a free one, off means none [default: 8501]
        #[arg(value_name = "PORT")]
        grpc_port: Port,
        /// UNIX socket for gRPC, beside the port [default: none]
        #[arg(value_name = "PATH")]
        grpc_socket_path: PathBuf,
        /// Largest gRPC message [default: 64MiB]
        #[arg(value_name = "SIZE")]
        grpc_max_message_bytes: Bytes,
        /// Threads that serve connections [default: one per core]
        #[arg(value_name = "N")]
        http_threads: usize,
        /// Largest request body, before and after decompression [default: 64MiB]
        #[arg(value_name = "SIZE")]
        max_body_bytes: Bytes,
        /// Answer a request after this long, ready or not [default: 30s]
        #[arg(value_name = "TIME")]
        request_timeout: Span,
        /// A request's body must have arrived after this long [default: 60s]
        #[arg(value_name = "TIME")]
        body_timeout: Span,
        /// A request's head must have arrived after this long [default: 10s]
        #[arg(value_name = "TIME")]
        header_timeout: Span,
        /// Close a connection that has been idle for this long [default: 75s]
        #[arg(value_name = "TIME")]
        keep_alive: Span,
        /// Most connections at once [default: 25000]
        #[arg(value_name = "N")]
        max_connections: usize,
        /// Certificate for HTTP and gRPC, and those between it and its root, PEM [default: none]
        #[arg(value_name = "FILE", help_heading = "Access")]
        tls_certificate: PathBuf,
        /// Private key of that certificate, PEM
        #[arg(value_name = "FILE", help_heading = "Access")]
        tls_key: PathBuf,
        /// Check clients' certificates against those in this file, PEM [default: ask for none]
        #[arg(value_name = "FILE", help_heading = "Access")]
        tls_client_ca: PathBuf,
        /// Refuse clients without a certificate [default: true with a client CA]
        #[arg(value_name = "BOOL", help_heading = "Access")]
        tls_verify_clients: bool,
        /// Certificate for HTTP alone, PEM [default: tls_certificate]
        #[arg(value_name = "FILE")]
        http_tls_certificate: PathBuf,
        /// Private key of that certificate, PEM
        #[arg(value_name = "FILE")]
        http_tls_key: PathBuf,
        /// Check clients' certificates against those in this file, PEM [default: ask for none]
        #[arg(value_name = "FILE")]
        http_tls_client_ca: PathBuf,
        /// Refuse clients without a certificate [default: true with a client CA]
        #[arg(value_name = "BOOL")]
        http_tls_verify_clients: bool,
        /// File of users and keys, and what each may do (TOML; see tensorserve auth)
        /// [default: everybody may do everything]
        #[arg(value_name = "FILE", help_heading = "Access")]
        auth_file: PathBuf,
        /// Let the console change what is served [default: true with auth_file, or on loopback]
        #[arg(value_name = "BOOL", help_heading = "Access")]
        console_admin: bool,
        /// Names by which browsers reach the console, besides addresses and localhost
        #[arg(value_name = "LIST", help_heading = "Access")]
        console_hosts: List<String>,
        /// Let other machines change what is served without saying who asks [default: false]
        #[arg(value_name = "BOOL", help_heading = "Access")]
        allow_unauthenticated_admin: bool,
        /// Send Server-Timing with every answer, not only when asked [default: false]
        #[arg(value_name = "BOOL")]
        server_timing: bool,
        /// Have the console: a page for people at /, and the API behind it [default: true]
        #[arg(value_name = "BOOL")]
        console: bool,
        /// After SIGTERM keep serving, but not ready, for this long [default: 0s]
        #[arg(value_name = "TIME")]
        shutdown_delay: Span,
        /// After that, let requests under way finish for this long [default: 30s]
        #[arg(value_name = "TIME")]
        shutdown_timeout: Span,
        /// How often models are looked for; 0 for once [default: 1s]
        #[arg(value_name = "TIME")]
        poll_interval: Span,
        /// Most models loaded or unloaded at once [default: 2]
        #[arg(value_name = "N")]
        load_threads: usize,
        /// Memory for models, as a size or as a part of the machine's (80%) [default: no limit]
        #[arg(value_name = "SIZE")]
        memory_limit: Amount,
        /// How often a failed load is tried again [default: 5]
        #[arg(value_name = "N")]
        max_load_retries: u32,
        /// First wait before that; it doubles up to a minute [default: 5s]
        #[arg(value_name = "TIME")]
        load_retry_interval: Span,
        /// How much to log: error, warn, info, debug or trace, also per module [default: info]
        #[arg(value_name = "LEVEL")]
        log_level: String,
        /// Model that /invocations means when none is named [default: the only one]
        #[arg(value_name = "NAME", help_heading = "SageMaker")]
        sagemaker_default_model: String,
        /// Image to answer as: 2.19 (and older), 2.20, or extended (give what Accept asks for)
        /// [default: 2.19]
        #[arg(value_name = "IMAGE", help_heading = "SageMaker")]
        sagemaker_compatibility: String,
        /// Most memory to hold after a model was loaded by request [default: what is free]
        #[arg(value_name = "SIZE", help_heading = "SageMaker")]
        multi_model_memory_limit: Bytes,
        /// Unload the models that were not used for longest to make room [default: false]
        #[arg(value_name = "BOOL", help_heading = "SageMaker")]
        multi_model_evict: bool,
        /// Load a model that is not loaded when it is used [default: false]
        #[arg(value_name = "BOOL", help_heading = "SageMaker")]
        multi_model_load_on_use: bool,
        /// Folders that asynchronous invocations may read their input from [default: none]
        #[arg(value_name = "LIST", help_heading = "SageMaker")]
        sagemaker_async_input: List<PathBuf>,
        /// Folder for what asynchronous invocations come to [default: there are none]
        #[arg(value_name = "PATH", help_heading = "SageMaker")]
        sagemaker_async_output: PathBuf,
        /// The library, or the folder it is in [default: found by itself]
        #[arg(value_name = "PATH", help_heading = "TensorFlow")]
        libtensorflow: PathBuf,
        /// Libraries of custom operations (.so), and folders with such [default: none]
        #[arg(value_name = "LIST", help_heading = "TensorFlow")]
        custom_op_paths: List<PathBuf>,
        /// Threads within one operation [default: 1 for models with short runs, else one per core]
        #[arg(value_name = "N", help_heading = "TensorFlow")]
        intra_op_threads: i32,
        /// Threads between operations, for long runs [default: one per core]
        #[arg(value_name = "N", help_heading = "TensorFlow")]
        inter_op_threads: i32,
        /// Part of each GPU's memory to take at most, 0 to 1 [default: all]
        #[arg(value_name = "PART", help_heading = "TensorFlow")]
        gpu_memory_fraction: f64,
        /// Take GPU memory as needed, not all at the start [default: true]
        #[arg(value_name = "BOOL", help_heading = "TensorFlow")]
        gpu_allow_growth: bool,
        /// GPUs to use, for example 0,1 [default: all]
        #[arg(value_name = "LIST", help_heading = "TensorFlow")]
        gpu_visible_devices: String,
        /// ONNX Runtime's library, or the folder it is in [default: found by itself]
        #[arg(value_name = "PATH", help_heading = "ONNX")]
        libonnxruntime: PathBuf,
        /// Python for inference.py [default: python3 on the PATH]
        #[arg(value_name = "PATH", help_heading = "Handlers (inference.py)")]
        python: PathBuf,
        /// Python processes for each folder of code [default: one per core, 2 to 8]
        #[arg(value_name = "N", help_heading = "Handlers (inference.py)")]
        handler_workers: usize,
        /// Longest a handler may take; one that takes longer is stopped [default: 30s]
        #[arg(value_name = "TIME", help_heading = "Handlers (inference.py)")]
        handler_timeout: Span,
        /// Memory above which a Python process is replaced [default: no limit]
        #[arg(value_name = "SIZE", help_heading = "Handlers (inference.py)")]
        handler_memory_limit: Bytes,
        /// Where environments made from a requirements.txt are kept [default: the user's cache]
        #[arg(value_name = "PATH", help_heading = "Handlers (inference.py)")]
        python_environments: PathBuf,
        /// Threads that run batches [default: one per core]
        #[arg(value_name = "N", help_heading = "Batching (per model in the file)")]
        num_batch_threads: usize,
        /// Longest run that may take place on a connection's thread [default: 1000]
        #[arg(value_name = "MICROS", help_heading = "Batching (per model in the file)")]
        inline_budget_micros: u64,
    }
}

settings! {
    /// Settings that every model can have for itself.
    #[command(next_help_heading = "Models (per model in the file)")]
    pub struct EachModelSettings {
        /// What kind of model it is: tensorflow, onnx, xgboost, scikitlearn, pmml, spark or mxnet
        /// [default: seen from its files]
        #[arg(value_name = "NAME")]
        platform: String,
        /// Versions to serve: latest, latest:N, all or specific:1,2 [default: latest]
        #[arg(value_name = "POLICY")]
        version_policy: String,
        /// When a version replaces another: availability_preserving (load the new one first) or
        /// resource_preserving (unload the old one first) [default: availability_preserving]
        #[arg(value_name = "KIND")]
        version_transition: String,
        /// Tags of the graph to load [default: serve]
        #[arg(value_name = "LIST")]
        tags: List<String>,
        /// How uploaded images are fed: auto, raw or base64 [default: auto]
        #[arg(value_name = "KIND")]
        images: String,
        /// Run made-up inputs and recorded requests before a version is ready [default: true]
        #[arg(value_name = "BOOL")]
        warm_up: bool,
        /// Folder with an inference.py for SageMaker's requests [default: none]
        #[arg(value_name = "PATH")]
        code: PathBuf,
        /// How often each recorded request is run for that [default: 1]
        #[arg(value_name = "N")]
        warm_up_iterations: usize,
        /// Write sampled requests to files in this folder, or whose names start like this
        /// [default: none]
        #[arg(value_name = "PATH")]
        request_log: PathBuf,
        /// Which part of the requests, 0 to 1 [default: 1]
        #[arg(value_name = "PART")]
        request_log_sampling_rate: f64,
        /// A file of more bytes is followed by another [default: 64MiB]
        #[arg(value_name = "SIZE")]
        request_log_file_bytes: Bytes,
    }
}

settings! {
    /// Batching, with TensorFlow Serving's names and meanings.
    #[command(next_help_heading = "Batching (per model in the file)")]
    pub struct BatchSettings {
        /// Join requests: auto (where it leaves answers as they are and pays), on or off
        /// [default: auto]
        #[arg(value_name = "MODE")]
        batching: String,
        /// Most rows in a batch [default: 64]
        #[arg(value_name = "ROWS")]
        max_batch_size: usize,
        /// Longest a batch may wait to fill up while another one runs [default: 0]
        #[arg(value_name = "MICROS")]
        batch_timeout_micros: u64,
        /// Most full batches that may wait [default: 100]
        #[arg(value_name = "N")]
        max_enqueued_batches: usize,
        /// Sizes that batches are filled up to, ascending [default: any]
        #[arg(value_name = "LIST")]
        allowed_batch_sizes: List<usize>,
        /// Pad inputs of different shapes so that they can join [default: false]
        #[arg(value_name = "BOOL")]
        pad_variable_length_inputs: bool,
        /// Run requests of more rows than a batch takes in pieces [default: false]
        #[arg(value_name = "BOOL")]
        enable_large_batch_splitting: bool,
        /// Most rows in a batch when requests are split [default: max_batch_size]
        #[arg(value_name = "ROWS")]
        max_execution_batch_size: usize,
    }
}

impl BatchSettings {
    /// The parameters that are set, but for whether requests are joined: that is still text.
    pub(crate) fn parameters(&self) -> BatchParameters {
        BatchParameters {
            mode: None,
            max_batch_size: self.max_batch_size,
            batch_timeout_micros: self.batch_timeout_micros,
            max_enqueued_batches: self.max_enqueued_batches,
            allowed_batch_sizes: self.allowed_batch_sizes.clone().map(|List(sizes)| sizes),
            pad_variable_length_inputs: self.pad_variable_length_inputs,
            enable_large_batch_splitting: self.enable_large_batch_splitting,
            max_execution_batch_size: self.max_execution_batch_size,
        }
    }
}

impl From<BatchParameters> for BatchSettings {
    fn from(parameters: BatchParameters) -> Self {
        let mode = parameters.mode.map(|mode| match mode {
            BatchMode::Off => "off",
            BatchMode::Auto => "auto",
            BatchMode::On => "on",
        });
        BatchSettings {
            batching: mode.map(str::to_owned),
            max_batch_size: parameters.max_batch_size,
            batch_timeout_micros: parameters.batch_timeout_micros,
            max_enqueued_batches: parameters.max_enqueued_batches,
            allowed_batch_sizes: parameters.allowed_batch_sizes.map(List),
            pad_variable_length_inputs: parameters.pad_variable_length_inputs,
            enable_large_batch_splitting: parameters.enable_large_batch_splitting,
            max_execution_batch_size: parameters.max_execution_batch_size,
        }
    }
}

/// A `[[models]]` table of the file.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(default)]
pub struct ModelSettings {
    /// The model's name; the folder's without it.
    pub name: Option<String>,
    /// Its folder, relative to the file's.
    pub path: Option<PathBuf>,
    /// Names for versions.
    pub labels: BTreeMap<String, i64>,
    /// Settings of its own.
    #[serde(flatten)]
    pub each: EachModelSettings,
    /// Batching of its own.
    #[serde(flatten)]
    pub batching: BatchSettings,
}

impl ModelSettings {
    /// The names of all settings of a model.
    pub(super) fn names() -> Vec<&'static str> {
        let own = ["name", "path", "labels"];
        [&own, EachModelSettings::NAMES, BatchSettings::NAMES].concat()
    }
}

/// All settings, from the command line and the environment, or from a file.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, serde::Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Models: each a SavedModel or a model's file, a folder of numbered versions, or a folder of
    /// such models
    #[arg(value_name = "PATH")]
    #[serde(skip)]
    pub paths: Vec<PathBuf>,
    /// File with settings (TOML); every long option is a key of it, with _ for -
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
    /// Models of the file.
    #[arg(skip)]
    pub models: Vec<ModelSettings>,
    /// The server.
    #[command(flatten)]
    #[serde(flatten)]
    pub server: ServerSettings,
    /// What models have in common.
    #[command(flatten)]
    #[serde(flatten)]
    pub each: EachModelSettings,
    /// Batching that models have in common.
    #[command(flatten)]
    #[serde(flatten)]
    pub batching: BatchSettings,
}

impl Settings {
    /// The names of all settings a file can have.
    pub(super) fn names() -> Vec<&'static str> {
        let (server, each) = (ServerSettings::NAMES, EachModelSettings::NAMES);
        [&["models"], server, each, BatchSettings::NAMES].concat()
    }

    /// These settings, and where there is none, those of the file `lower`.
    #[must_use]
    pub fn or(self, lower: &Self) -> Self {
        Settings {
            paths: self.paths,
            config: self.config,
            models: lower.models.clone(),
            server: self.server.or(&lower.server),
            each: self.each.or(&lower.each),
            batching: self.batching.or(&lower.batching),
        }
    }
}
