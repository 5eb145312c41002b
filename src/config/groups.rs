//! The declarations of all settings, in groups.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, ArgAction, Command};

use super::units::{Amount, Bytes, List, Port, Span};
use super::value::SettingValue;
use super::written::{Written, variable};
use super::{BatchMode, BatchParameters, PLATFORMS};

/// Declares settings once for the command line, the environment and the file.
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        #[help_heading($heading:literal)]
        pub struct $name:ident {
            $(
                $(#[doc = $help:literal])*
                #[arg($($method:ident = $argument:expr),*)]
                $field:ident: $type:ty,
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $name {
            $( $(#[doc = $help])* pub $field: Option<$type>, )*
        }

        impl $name {
            /// The names of all settings here, as the file has them.
            pub(super) const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];

            /// The options of the command line.
            pub(super) fn options() -> Vec<Arg> {
                vec![$(
                    option(stringify!($field), concat!($($help, "\n"),*))
                        .value_parser(AsWritten(<$type>::POSSIBLE))
                        .value_hint(<$type>::HINT)
                        .help_heading($heading)
                        $(.$method($argument))*
                ),*]
            }

            /// Sets the setting `name`; `None` if there is no such setting here.
            pub(super) fn set(&mut self, name: &str, value: &Written) -> Option<Result<(), String>> {
                match name {
                    $( stringify!($field) => {
                        Some(SettingValue::read(value).map(|value| self.$field = Some(value)))
                    } )*
                    _ => None,
                }
            }

            pub(super) fn is_set(&self, name: &str) -> bool {
                match name {
                    $( stringify!($field) => self.$field.is_some(), )*
                    _ => false,
                }
            }

            /// These settings, and where there is none, those of `lower`.
            #[must_use]
            pub fn or(self, lower: &Self) -> Self {
                $name { $( $field: self.$field.or_else(|| lower.$field.clone()), )* }
            }
        }
    };
}

/// An option of the command line, which is also a variable of the environment.
pub(super) fn option(name: &'static str, help: &str) -> Arg {
    let help: Vec<&str> = help.split_whitespace().collect();
    Arg::new(name)
        .long(name.replace('_', "-"))
        .env(variable(name))
        .hide_env_values(true)
        .help(help.join(" "))
        // Options that are given twice are counted, and negative numbers parsed, in `read`.
        .action(ArgAction::Append)
        .allow_negative_numbers(true)
}

/// Accepts every text, so that one wrong value does not hide the next. The possible values are for
/// `--help` and shell completion.
#[derive(Clone)]
pub(super) struct AsWritten(pub(super) &'static [&'static str]);

impl TypedValueParser for AsWritten {
    type Value = OsString;

    fn parse_ref(
        &self,
        _: &Command,
        _: Option<&Arg>,
        text: &OsStr,
    ) -> Result<OsString, clap::Error> {
        Ok(text.to_owned())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        if self.0.is_empty() {
            return None;
        }
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

settings! {
    /// Settings of the whole server.
    #[help_heading("Server")]
    pub struct ServerSettings {
        /// IP address to listen on, or localhost [default: 127.0.0.1]
        #[arg(value_name = "ADDRESS")]
        host: String,
        /// HTTP port; 0 selects a free port, off disables HTTP [default: 8500]
        #[arg(value_name = "PORT")]
        http_port: Port,
        /// gRPC port; 0 selects a free port, off disables the port [default: 8501]
        #[arg(value_name = "PORT")]
        grpc_port: Port,
        /// UNIX socket for gRPC, in addition to the port [default: none]
        #[arg(value_name = "PATH")]
        grpc_socket_path: PathBuf,
        /// Maximum size of a gRPC message [default: 64MiB]
        #[arg(value_name = "SIZE")]
        grpc_max_message_bytes: Bytes,
        /// Number of threads that serve HTTP connections [default: one per core]
        #[arg(value_name = "N")]
        http_threads: usize,
        /// Maximum size of a request body, before and after decompression [default: 64MiB]
        #[arg(value_name = "SIZE")]
        max_body_bytes: Bytes,
        /// Memory limit for all requests in flight (bodies, tensors and responses), as a size or a
        /// percentage of the machine's memory [default: 25%]
        #[arg(value_name = "SIZE")]
        max_request_memory: Amount,
        /// Memory for responses that are kept, of the models with response_cache; 0 for none
        /// [default: 0]
        #[arg(value_name = "SIZE", help_heading = "Traffic")]
        response_cache_bytes: Bytes,
        /// Maximum number of copies of requests that wait to be run, or are run, on shadow versions;
        /// others are dropped [default: 16]
        #[arg(value_name = "N", help_heading = "Traffic")]
        max_shadow_requests: usize,
        /// Time limit for answering a request [default: 30s]
        #[arg(value_name = "DURATION")]
        request_timeout: Span,
        /// Time limit for receiving the body of a request [default: 60s]
        #[arg(value_name = "DURATION")]
        body_timeout: Span,
        /// Time after which a client that does not read its response is disconnected [default: 60s]
        #[arg(value_name = "DURATION")]
        write_timeout: Span,
        /// Time limit for receiving the request line and the headers [default: 10s]
        #[arg(value_name = "DURATION")]
        header_timeout: Span,
        /// Time after which an idle connection is closed [default: 75s]
        #[arg(value_name = "DURATION")]
        keep_alive: Span,
        /// Maximum number of open HTTP connections; further ones wait [default: 25000]
        #[arg(value_name = "N")]
        max_connections: usize,
        /// TLS certificate for HTTP and gRPC, with its intermediate certificates, PEM [default: no
        /// TLS]
        #[arg(value_name = "FILE", help_heading = "Access")]
        tls_certificate: PathBuf,
        /// Private key of the TLS certificate, unencrypted PEM
        #[arg(value_name = "FILE", help_heading = "Access")]
        tls_key: PathBuf,
        /// CA certificates to verify client certificates against, PEM [default: none]
        #[arg(value_name = "FILE", help_heading = "Access")]
        tls_client_ca: PathBuf,
        /// Refuse clients without a certificate [default: true if tls_client_ca is set]
        #[arg(value_name = "BOOL", help_heading = "Access")]
        tls_verify_clients: bool,
        /// TLS certificate for HTTP only, PEM [default: tls_certificate]
        #[arg(value_name = "FILE")]
        http_tls_certificate: PathBuf,
        /// Private key of the TLS certificate for HTTP, unencrypted PEM
        #[arg(value_name = "FILE")]
        http_tls_key: PathBuf,
        /// CA certificates to verify client certificates against, for HTTP only, PEM [default:
        /// none]
        #[arg(value_name = "FILE")]
        http_tls_client_ca: PathBuf,
        /// Refuse HTTP clients without a certificate [default: true if http_tls_client_ca is set]
        #[arg(value_name = "BOOL")]
        http_tls_verify_clients: bool,
        /// File of users and API keys with their roles, TOML; see `tensorserve auth` [default: no
        /// authentication]
        #[arg(value_name = "FILE", help_heading = "Access")]
        auth_file: PathBuf,
        /// Let the console load, unload and reconfigure models [default: true with auth_file or on
        /// a loopback address]
        #[arg(value_name = "BOOL", help_heading = "Access")]
        console_admin: bool,
        /// Host names, besides IP addresses and localhost, under which browsers may do so, and
        /// without auth_file may read the console, separated by commas [default: none]
        #[arg(value_name = "LIST", help_heading = "Access")]
        console_hosts: List<String>,
        /// Let unauthenticated clients on other machines change models through the console
        /// [default: false]
        #[arg(value_name = "BOOL", help_heading = "Access")]
        allow_unauthenticated_admin: bool,
        /// Send the Server-Timing header with every response, not only on request [default: false]
        #[arg(value_name = "BOOL")]
        server_timing: bool,
        /// Serve the metrics also under the names of other servers, separated by commas: triton, tfs
        /// [default: none]
        #[arg(value_name = "LIST")]
        metrics_aliases: List<String>,
        /// Serve the console: the dashboard at / and its API [default: true]
        #[arg(value_name = "BOOL")]
        console: bool,
        /// Answer /v1/models/NAME for clients of KServe's protocol v1, too: with name and ready, and
        /// status 503 while the model is not ready; without a value, true [default: false]
        #[arg(value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        kserve_v1: bool,
        /// Let clients of the Open Inference Protocol on this machine pass tensors in shared memory;
        /// without a value, true [default: false]
        #[arg(value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        shared_memory: bool,
        /// Name of the model, for one PATH that is a model or a directory of its versions [default:
        /// the name of that directory or file]
        #[arg(value_name = "NAME")]
        model_name: String,
        /// Time between SIGTERM and the start of the shutdown, in which the server reports not
        /// ready and still serves [default: 0s]
        #[arg(value_name = "DURATION")]
        shutdown_delay: Span,
        /// Time limit for requests in flight to finish during the shutdown [default: 30s]
        #[arg(value_name = "DURATION")]
        shutdown_timeout: Span,
        /// Also stop when standard input ends, as a pipe does with the process that started the
        /// server [default: false]
        #[arg(value_name = "BOOL")]
        stop_with_stdin: bool,
        /// Time between scans of the model directories; 0 scans once, at startup [default: 1s]
        #[arg(value_name = "DURATION")]
        poll_interval: Span,
        /// Maximum number of concurrent loads and unloads [default: 2]
        #[arg(value_name = "N")]
        load_threads: usize,
        /// Memory limit for all models, as a size (8GiB) or a percentage of the machine's memory
        /// (80%) [default: no limit]
        #[arg(value_name = "SIZE")]
        memory_limit: Amount,
        /// Number of retries after a failed load [default: 5]
        #[arg(value_name = "N")]
        max_load_retries: u32,
        /// Delay before the first retry; it doubles with each retry, up to 1m [default: 5s]
        #[arg(value_name = "DURATION")]
        load_retry_interval: Span,
        /// Load and run each new version in a child process first, so that a version that crashes
        /// or hangs does not end the server [default: true]
        #[arg(value_name = "BOOL", help_heading = "Load probe")]
        load_probe: bool,
        /// Maximum private memory of that process [default: the free memory]
        #[arg(value_name = "SIZE", help_heading = "Load probe")]
        load_probe_memory: Bytes,
        /// Time limit for that process to load and run a version [default: 10m]
        #[arg(value_name = "DURATION", help_heading = "Load probe")]
        load_probe_timeout: Span,
        /// Directory that remembers which versions have passed [default:
        /// ~/.cache/tensorserve/probes]
        #[arg(value_name = "PATH", help_heading = "Load probe")]
        load_probe_cache: PathBuf,
        /// Let that process use the GPUs [default: false]
        #[arg(value_name = "BOOL", help_heading = "Load probe")]
        load_probe_gpu: bool,
        /// Directory for models from stores [default: ~/.cache/tensorserve/models]
        #[arg(value_name = "PATH", help_heading = "Stores")]
        model_cache_dir: PathBuf,
        /// Maximum size of that directory; versions that are not in use are removed [default: 64GiB]
        #[arg(value_name = "SIZE", help_heading = "Stores")]
        model_cache_bytes: Bytes,
        /// URL of an S3 server other than Amazon's, such as MinIO [default: AWS_ENDPOINT_URL]
        #[arg(value_name = "URL", help_heading = "Stores")]
        store_endpoint: String,
        /// Region of S3 buckets [default: AWS_REGION, the profile's, or found out]
        #[arg(value_name = "NAME", help_heading = "Stores")]
        store_region: String,
        /// Send no credentials: the buckets are public [default: false]
        #[arg(value_name = "BOOL", help_heading = "Stores")]
        store_anonymous: bool,
        /// Allow http:// URLs of models on other machines [default: false]
        #[arg(value_name = "BOOL", help_heading = "Stores")]
        store_allow_http: bool,
        /// Log level: error, warn, info, debug or trace, also per module, such as
        /// info,tensorserve_core=debug [default: info]
        #[arg(value_name = "LEVEL")]
        log_level: String,
        /// Format of the log: text, or json with an object in each line [default: text]
        #[arg(value_name = "FORMAT", value_parser = AsWritten(&["text", "json"]), help_heading = "Traces and logs")]
        log_format: String,
        /// Fraction of the requests that get a line in the log, 0 to 1 [default: 0]
        #[arg(value_name = "FRACTION", help_heading = "Traces and logs")]
        access_log: f64,
        /// Collector of traces (OTLP), such as http://127.0.0.1:4318 [default: that of the variables
        /// OTEL_EXPORTER_OTLP_ENDPOINT and others, or no traces]
        #[arg(value_name = "URL", help_heading = "Traces and logs")]
        otlp_endpoint: String,
        /// How the collector is spoken to: http/protobuf or grpc [default:
        /// OTEL_EXPORTER_OTLP_PROTOCOL, or http/protobuf]
        #[arg(value_name = "PROTOCOL", value_parser = AsWritten(&["http/protobuf", "grpc"]), help_heading = "Traces and logs")]
        otlp_protocol: String,
        /// Fraction of the traces that begin here to record, 0 to 1; requests with a traceparent
        /// follow their caller [default: OTEL_TRACES_SAMPLER, or 1]
        #[arg(value_name = "FRACTION", help_heading = "Traces and logs")]
        trace_sampling: f64,
        /// Model for /invocations requests that name no model [default: the only model]
        #[arg(value_name = "NAME", help_heading = "SageMaker")]
        sagemaker_default_model: String,
        /// SageMaker image to be compatible with: 2.19 (and older), 2.20, or extended, which
        /// responds in the format of the Accept header [default: 2.19]
        #[arg(value_name = "IMAGE", help_heading = "SageMaker", value_parser = AsWritten(&["2.19", "2.20", "extended"]))]
        sagemaker_compatibility: String,
        /// Memory limit of the process for loading models by request [default: the free memory]
        #[arg(value_name = "SIZE", help_heading = "SageMaker")]
        multi_model_memory_limit: Bytes,
        /// Unload the least recently used models when a load needs memory [default: false]
        #[arg(value_name = "BOOL", help_heading = "SageMaker")]
        multi_model_evict: bool,
        /// Load a model that is not loaded when a request names it [default: false]
        #[arg(value_name = "BOOL", help_heading = "SageMaker")]
        multi_model_load_on_use: bool,
        /// Directories that asynchronous invocations may read input from, separated by commas
        /// [default: none]
        #[arg(value_name = "LIST", help_heading = "SageMaker")]
        sagemaker_async_input: List<PathBuf>,
        /// Directory for the output of asynchronous invocations, an absolute path [default: no
        /// asynchronous invocations]
        #[arg(value_name = "PATH", help_heading = "SageMaker")]
        sagemaker_async_output: PathBuf,
        /// libtensorflow, or the directory that contains it [default: found automatically]
        #[arg(value_name = "PATH", help_heading = "TensorFlow")]
        libtensorflow: PathBuf,
        /// Libraries of custom operations (.so), and directories of such libraries, separated by
        /// commas [default: none]
        #[arg(value_name = "LIST", help_heading = "TensorFlow")]
        custom_op_paths: List<PathBuf>,
        /// Threads within one operation [default: 1 for models with short runs, else one per core]
        #[arg(value_name = "N", help_heading = "TensorFlow")]
        intra_op_threads: i32,
        /// Threads that run operations in parallel, for runs with a time limit [default: one per
        /// core]
        #[arg(value_name = "N", help_heading = "TensorFlow")]
        inter_op_threads: i32,
        /// Server of TensorFlow that runs the models, grpc://HOST:PORT [default: this process]
        #[arg(value_name = "URL", help_heading = "TensorFlow")]
        session_target: String,
        /// Maximum fraction of each GPU's memory to allocate, 0 to 1 [default: all]
        #[arg(value_name = "FRACTION", help_heading = "TensorFlow")]
        gpu_memory_fraction: f64,
        /// Allocate GPU memory as needed instead of all at startup [default: true]
        #[arg(value_name = "BOOL", help_heading = "TensorFlow")]
        gpu_allow_growth: bool,
        /// GPUs to use, such as 0,1 [default: all]
        #[arg(value_name = "LIST", help_heading = "TensorFlow")]
        gpu_visible_devices: String,
        /// Do not start if libtensorflow has no GPU that it can use; without a value, true [default:
        /// false]
        #[arg(value_name = "BOOL", help_heading = "TensorFlow", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        require_gpu: bool,
        /// ONNX Runtime's library, or the directory that contains it [default: found automatically]
        #[arg(value_name = "PATH", help_heading = "ONNX")]
        libonnxruntime: PathBuf,
        /// LiteRT's library, or the directory that contains it [default: found automatically]
        #[arg(value_name = "PATH", help_heading = "TensorFlow Lite")]
        liblitert: PathBuf,
        /// libtorch, or the directory that contains it [default: found automatically]
        #[arg(value_name = "PATH", help_heading = "PyTorch")]
        libtorch: PathBuf,
        /// libexecutorch, or the directory that contains it [default: found automatically]
        #[arg(value_name = "PATH", help_heading = "ExecuTorch")]
        libexecutorch: PathBuf,
        /// Python interpreter for inference.py [default: python3 on the PATH]
        #[arg(value_name = "PATH", help_heading = "Handlers (inference.py)")]
        python: PathBuf,
        /// Number of worker processes for each code directory [default: one per core, 2 to 8]
        #[arg(value_name = "N", help_heading = "Handlers (inference.py)")]
        handler_workers: usize,
        /// Maximum number of handler calls that a worker process serves at a time while they wait,
        /// each on a thread; 1 for scripts that are not thread-safe [default: 128]
        #[arg(value_name = "N", help_heading = "Handlers (inference.py)")]
        handler_threads: usize,
        /// Time limit of a handler call, after which its worker process is replaced [default: 60s]
        #[arg(value_name = "DURATION", help_heading = "Handlers (inference.py)")]
        handler_timeout: Span,
        /// Memory of a worker process above which it is replaced [default: no limit]
        #[arg(value_name = "SIZE", help_heading = "Handlers (inference.py)")]
        handler_memory_limit: Bytes,
        /// Directory for the Python environments that requirements.txt files need [default:
        /// ~/.cache/tensorserve/python]
        #[arg(value_name = "PATH", help_heading = "Handlers (inference.py)")]
        python_environments: PathBuf,
        /// Number of threads that run batches [default: one per core]
        #[arg(value_name = "N", help_heading = "Batch threads")]
        num_batch_threads: usize,
        /// Longest run in microseconds that may take place on the thread of a connection; 0 sends
        /// every run to a batch thread [default: 1000]
        #[arg(value_name = "MICROS", help_heading = "Batch threads")]
        inline_budget_micros: u64,
    }
}

settings! {
    /// Settings that every model can have for itself.
    #[help_heading("Models (in the file, also for each model)")]
    pub struct EachModelSettings {
        /// Platform of the models [default: detected from their files]
        #[arg(value_name = "NAME", value_parser = AsWritten(PLATFORMS))]
        platform: String,
        /// Versions to serve: latest, latest:N, all or specific:1,2 [default: latest]
        #[arg(value_name = "POLICY")]
        version_policy: String,
        /// How one version replaces another: availability_preserving loads the new version first,
        /// resource_preserving unloads the old version first [default: availability_preserving]
        #[arg(value_name = "KIND", value_parser = AsWritten(&["availability_preserving", "resource_preserving"]))]
        version_transition: String,
        /// Tags of the SavedModel graph to load, separated by commas [default: serve]
        #[arg(value_name = "LIST")]
        tags: List<String>,
        /// Operations for which a TensorFlow or PyTorch model is refused: names, or external for all that access
        /// files, the network or Python [default: none; external ones are reported]
        #[arg(value_name = "LIST")]
        deny_ops: List<String>,
        /// Operations that deny_ops does not refuse and that are not reported: names, or external
        /// [default: none]
        #[arg(value_name = "LIST")]
        allow_ops: List<String>,
        /// Where the models run: none for the server's own process, process for a child process per
        /// version, which is started again if it crashes [default: none]
        #[arg(value_name = "KIND", value_parser = AsWritten(&["none", "process"]))]
        isolation: String,
        /// What runs the models: native for this program, python for processes of your Python, where
        /// loading a model runs code that its file contains [default: native]
        #[arg(value_name = "KIND", value_parser = AsWritten(&["native", "python"]), help_heading = "Models in Python")]
        runner: String,
        /// Python interpreter of models with runner = "python" [default: that of the setting python]
        #[arg(value_name = "PATH", help_heading = "Models in Python")]
        runner_python: PathBuf,
        /// Number of worker processes for each version of such a model [default: one per core, 2 to 8]
        #[arg(value_name = "N", help_heading = "Models in Python")]
        runner_workers: usize,
        /// Time limit of a run, after which its worker process is replaced [default: 60s]
        #[arg(value_name = "DURATION", help_heading = "Models in Python")]
        runner_timeout: Span,
        /// Memory of a worker process above which it is replaced [default: no limit]
        #[arg(value_name = "SIZE", help_heading = "Models in Python")]
        runner_memory_limit: Bytes,
        /// Types that .skops files may have, besides those that skops trusts, separated by commas
        /// [default: none]
        #[arg(value_name = "LIST", help_heading = "Models in Python")]
        runner_trusted_types: List<String>,
        /// How uploaded images are passed to the model: raw bytes, URL-safe base64, or auto to
        /// choose by the graph [default: auto]
        #[arg(value_name = "KIND", value_parser = AsWritten(&["auto", "raw", "base64"]))]
        images: String,
        /// Keep responses within response_cache_bytes, to answer equal requests with them, where equal
        /// requests always get equal responses [default: false]
        #[arg(value_name = "BOOL", help_heading = "Traffic")]
        response_cache: bool,
        /// Maximum number of requests of a model that wait for a batch or run; further ones are
        /// refused [default: no limit]
        #[arg(value_name = "N")]
        max_concurrent_requests: usize,
        /// Run synthetic inputs and recorded requests before a version is ready [default: true]
        #[arg(value_name = "BOOL")]
        warm_up: bool,
        /// Directory with an inference.py for SageMaker requests [default: none]
        #[arg(value_name = "PATH")]
        code: PathBuf,
        /// Number of times to run each recorded request during the warm-up [default: 1]
        #[arg(value_name = "N")]
        warm_up_iterations: usize,
        /// Write sampled requests to files in this directory, or to files with this path as prefix
        /// [default: no request log]
        #[arg(value_name = "PATH")]
        request_log: PathBuf,
        /// Fraction of the requests to log, 0 to 1 [default: 1]
        #[arg(value_name = "FRACTION")]
        request_log_sampling_rate: f64,
        /// Size at which the request log continues in a new file [default: 64MiB]
        #[arg(value_name = "SIZE")]
        request_log_file_bytes: Bytes,
    }
}

settings! {
    /// Batching, with TensorFlow Serving's names and meanings.
    #[help_heading("Batching (in the file, also for each model)")]
    pub struct BatchSettings {
        /// Batch concurrent requests: on, off, or auto, which batches where results stay the same
        /// and throughput improves [default: auto]
        #[arg(value_name = "MODE", value_parser = AsWritten(&["auto", "on", "off"]))]
        batching: String,
        /// Whether a row of a batch gets the results that it gets alone: auto, as the model's graph
        /// shows, or independent, for models without a readable graph [default: auto]
        #[arg(value_name = "ROWS", value_parser = AsWritten(&["auto", "independent"]))]
        rows: String,
        /// Maximum number of rows in a batch [default: 64]
        #[arg(value_name = "ROWS")]
        max_batch_size: usize,
        /// Maximum time in microseconds that a batch waits for more rows while another batch runs
        /// [default: 0]
        #[arg(value_name = "MICROS")]
        batch_timeout_micros: u64,
        /// Maximum number of full batches in a queue; further requests are refused [default: 100]
        #[arg(value_name = "N")]
        max_enqueued_batches: usize,
        /// Batch sizes to pad to, ascending, separated by commas [default: any]
        #[arg(value_name = "LIST")]
        allowed_batch_sizes: List<usize>,
        /// Pad inputs of different shapes so that they can be batched [default: false]
        #[arg(value_name = "BOOL")]
        pad_variable_length_inputs: bool,
        /// Split requests with more rows than a batch instead of refusing them [default: false]
        #[arg(value_name = "BOOL")]
        enable_large_batch_splitting: bool,
        /// Maximum number of rows in a batch when requests are split [default: max_batch_size]
        #[arg(value_name = "ROWS")]
        max_execution_batch_size: usize,
    }
}

impl BatchSettings {
    /// The parameters that are set, except the mode and the rows, which are still text.
    pub(crate) fn parameters(&self) -> BatchParameters {
        BatchParameters {
            mode: None,
            independent_rows: None,
            max_batch_size: self.max_batch_size,
            batch_timeout: self.batch_timeout_micros.map(Duration::from_micros),
            max_enqueued_batches: self.max_enqueued_batches,
            allowed_batch_sizes: self.allowed_batch_sizes.clone().map(|List(sizes)| sizes),
            pad_variable_length_inputs: self.pad_variable_length_inputs,
            enable_large_batch_splitting: self.enable_large_batch_splitting,
            max_execution_batch_size: self.max_execution_batch_size,
        }
    }
}

/// The microseconds of `time`.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl From<BatchParameters> for BatchSettings {
    fn from(parameters: BatchParameters) -> Self {
        let mode = parameters.mode.map(|mode| match mode {
            BatchMode::Off => "off",
            BatchMode::Auto => "auto",
            BatchMode::On => "on",
        });
        let rows = |independent| if independent { "independent" } else { "auto" };
        BatchSettings {
            batching: mode.map(str::to_owned),
            rows: parameters.independent_rows.map(|independent| rows(independent).to_owned()),
            max_batch_size: parameters.max_batch_size,
            batch_timeout_micros: parameters.batch_timeout.map(micros),
            max_enqueued_batches: parameters.max_enqueued_batches,
            allowed_batch_sizes: parameters.allowed_batch_sizes.map(List),
            pad_variable_length_inputs: parameters.pad_variable_length_inputs,
            enable_large_batch_splitting: parameters.enable_large_batch_splitting,
            max_execution_batch_size: parameters.max_execution_batch_size,
        }
    }
}
