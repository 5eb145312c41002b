//! The settings of the whole server.

use std::path::PathBuf;

use clap::Arg;

use super::rules::{
    absolute_path, at_least_one, cache_size, is_not, metrics_aliases, model_name, session_target,
    share, some_bytes, some_time, url,
};
use super::{AsWritten, option, shown};
use crate::config::SagemakerCompatibility;
use crate::config::units::{Amount, ByteSize, CommaSeparated, HumanDuration, Port};
use crate::config::value::SettingValue;
use crate::config::written::WrittenValue;

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// An object in each line.
    Json,
}

/// How a collector of traces is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceProtocol {
    /// Protocol Buffers over HTTP.
    Http,
    /// gRPC.
    Grpc,
}

settings! {
    /// Settings of the whole server.
    #[help_heading("Server")]
    pub struct ServerSettings {
        /// IP address to listen on, or localhost
        #[arg(value_name = "ADDRESS")]
        #[default("127.0.0.1".to_owned())]
        host: String,
        /// HTTP port; 0 selects a free port, off disables HTTP
        #[arg(value_name = "PORT")]
        #[default(Port::Number(8500))]
        http_port: Port,
        /// gRPC port; 0 selects a free port, off disables the port
        #[arg(value_name = "PORT")]
        #[default(Port::Number(8501))]
        grpc_port: Port,
        /// UNIX socket for gRPC, in addition to the port
        #[arg(value_name = "PATH")]
        #[unset("none")]
        grpc_socket_path: PathBuf,
        /// Maximum size of a gRPC message
        #[arg(value_name = "SIZE")]
        #[default(ByteSize(64 << 20))]
        #[check(some_bytes)]
        grpc_max_message_bytes: ByteSize,
        /// Number of threads that serve HTTP connections
        #[arg(value_name = "N")]
        #[unset("one per core")]
        #[check(at_least_one)]
        http_threads: usize,
        /// Maximum size of a request body, before and after decompression
        #[arg(value_name = "SIZE")]
        #[default(ByteSize(64 << 20))]
        #[check(some_bytes)]
        max_body_bytes: ByteSize,
        /// Memory limit for all requests in flight (bodies, tensors and responses), as a size or a
        /// percentage of the machine's memory
        #[arg(value_name = "SIZE")]
        #[default(Amount::Percent(25))]
        max_request_memory: Amount,
        /// Memory for responses that are kept, of the models with response_cache; 0 for none
        #[arg(value_name = "SIZE", help_heading = "Traffic")]
        #[default(ByteSize(0))]
        #[check(cache_size)]
        response_cache_bytes: ByteSize,
        /// Maximum number of copies of requests that wait to be run, or are run, on shadow
        /// versions; others are dropped
        #[arg(value_name = "N", help_heading = "Traffic")]
        #[default(16)]
        #[check(at_least_one)]
        max_shadow_requests: usize,
        /// Time limit for answering a request
        #[arg(value_name = "DURATION")]
        #[default(HumanDuration::seconds(30))]
        #[check(some_time)]
        request_timeout: HumanDuration,
        /// Time limit for receiving the body of a request
        #[arg(value_name = "DURATION")]
        #[default(HumanDuration::seconds(60))]
        #[check(some_time)]
        body_timeout: HumanDuration,
        /// Time after which a client that does not read its response is disconnected
        #[arg(value_name = "DURATION")]
        #[default(HumanDuration::seconds(60))]
        #[check(some_time)]
        write_timeout: HumanDuration,
        /// Time limit for receiving the request line and the headers
        #[arg(value_name = "DURATION")]
        #[default(HumanDuration::seconds(10))]
        #[check(some_time)]
        header_timeout: HumanDuration,
        /// Time after which an idle connection is closed
        #[arg(value_name = "DURATION")]
        #[default(HumanDuration::seconds(75))]
        #[check(some_time)]
        keep_alive: HumanDuration,
        /// Maximum number of open HTTP connections; further ones wait
        #[arg(value_name = "N")]
        #[default(25000)]
        #[check(at_least_one)]
        max_connections: usize,
        /// TLS certificate for HTTP and gRPC, with its intermediate certificates, PEM
        #[arg(value_name = "FILE", help_heading = "Access")]
        #[unset("no TLS")]
        tls_certificate: PathBuf,
        /// Private key of the TLS certificate, unencrypted PEM
        #[arg(value_name = "FILE", help_heading = "Access")]
        tls_key: PathBuf,
        /// CA certificates to verify client certificates against, PEM
        #[arg(value_name = "FILE", help_heading = "Access")]
        #[unset("none")]
        tls_client_ca: PathBuf,
        /// Refuse clients without a certificate
        #[arg(value_name = "BOOL", help_heading = "Access")]
        #[unset("true if tls_client_ca is set")]
        tls_verify_clients: bool,
        /// TLS certificate for HTTP only, PEM
        #[arg(value_name = "FILE")]
        #[unset("tls_certificate")]
        http_tls_certificate: PathBuf,
        /// Private key of the TLS certificate for HTTP, unencrypted PEM
        #[arg(value_name = "FILE")]
        http_tls_key: PathBuf,
        /// CA certificates to verify client certificates against, for HTTP only, PEM
        #[arg(value_name = "FILE")]
        #[unset("none")]
        http_tls_client_ca: PathBuf,
        /// Refuse HTTP clients without a certificate
        #[arg(value_name = "BOOL")]
        #[unset("true if http_tls_client_ca is set")]
        http_tls_verify_clients: bool,
        /// File of users and API keys with their roles, TOML; see `tensorserve auth`
        #[arg(value_name = "FILE", help_heading = "Access")]
        #[unset("no authentication")]
        auth_file: PathBuf,
        /// Let the console load, unload and reconfigure models
        #[arg(value_name = "BOOL", help_heading = "Access")]
        #[unset("true with auth_file or on a loopback address")]
        console_admin: bool,
        /// Host names, besides IP addresses and localhost, under which browsers may do so, and
        /// without auth_file may read the console, separated by commas
        #[arg(value_name = "LIST", help_heading = "Access")]
        #[unset("none")]
        console_hosts: CommaSeparated<String>,
        /// Let unauthenticated clients on other machines change models through the console
        #[arg(value_name = "BOOL", help_heading = "Access")]
        #[default(false)]
        allow_unauthenticated_admin: bool,
        /// Send the Server-Timing header with every response, not only on request
        #[arg(value_name = "BOOL")]
        #[default(false)]
        server_timing: bool,
        /// Serve the metrics also under the names of other servers, separated by commas: triton,
        /// tfs
        #[arg(value_name = "LIST")]
        #[unset("none")]
        #[check(metrics_aliases)]
        metrics_aliases: CommaSeparated<String>,
        /// Serve the console: the dashboard at / and its API
        #[arg(value_name = "BOOL")]
        #[default(true)]
        console: bool,
        /// Answer /v1/models/NAME for clients of KServe's protocol v1, too: with name and ready,
        /// and status 503 while the model is not ready; without a value, true
        #[arg(value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        #[default(false)]
        kserve_v1: bool,
        /// Let clients of the Open Inference Protocol on this machine pass tensors in shared
        /// memory; without a value, true
        #[arg(value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        #[default(false)]
        shared_memory: bool,
        /// Name of the model, for one PATH that is a model or a directory of its versions
        #[arg(value_name = "NAME")]
        #[unset("the name of that directory or file")]
        #[check(model_name)]
        model_name: String,
        /// Time between SIGTERM and the start of the shutdown, in which the server reports not
        /// ready and still serves
        #[arg(value_name = "DURATION")]
        #[default(HumanDuration::seconds(0))]
        shutdown_delay: HumanDuration,
        /// Time limit for requests in flight to finish during the shutdown
        #[arg(value_name = "DURATION")]
        #[default(HumanDuration::seconds(30))]
        shutdown_timeout: HumanDuration,
        /// Also stop when standard input ends, as a pipe does with the process that started the
        /// server
        #[arg(value_name = "BOOL")]
        #[default(false)]
        stop_with_stdin: bool,
        /// Time between scans of the model directories; 0 scans once, at startup
        #[arg(value_name = "DURATION")]
        #[default(HumanDuration::seconds(1))]
        poll_interval: HumanDuration,
        /// Maximum number of concurrent loads and unloads
        #[arg(value_name = "N")]
        #[default(2)]
        #[check(at_least_one)]
        load_threads: usize,
        /// Memory limit for all models, as a size (8GiB) or a percentage of the machine's memory
        /// (80%)
        #[arg(value_name = "SIZE")]
        #[unset("no limit")]
        memory_limit: Amount,
        /// Number of retries after a failed load
        #[arg(value_name = "N")]
        #[default(5)]
        max_load_retries: u32,
        /// Delay before the first retry; it doubles with each retry, up to 1m
        #[arg(value_name = "DURATION")]
        #[default(HumanDuration::seconds(5))]
        load_retry_interval: HumanDuration,
        /// Load and run each new version in a child process first, so that a version that crashes
        /// or hangs does not end the server
        #[arg(value_name = "BOOL", help_heading = "Load probe")]
        #[default(true)]
        load_probe: bool,
        /// Maximum private memory of that process, and of an isolated model while it loads
        #[arg(value_name = "SIZE", help_heading = "Load probe")]
        #[unset("the free memory")]
        #[check(some_bytes)]
        load_probe_memory: ByteSize,
        /// Time limit for that process to load and run a version
        #[arg(value_name = "DURATION", help_heading = "Load probe")]
        #[default(HumanDuration::seconds(600))]
        #[check(some_time)]
        load_probe_timeout: HumanDuration,
        /// Directory that remembers which versions have passed
        #[arg(value_name = "PATH", help_heading = "Load probe")]
        #[unset("~/.cache/tensorserve/probes")]
        load_probe_cache: PathBuf,
        /// Let that process use the GPUs
        #[arg(value_name = "BOOL", help_heading = "Load probe")]
        #[default(false)]
        load_probe_gpu: bool,
        /// Directory that remembers which versions are held
        #[arg(value_name = "PATH", help_heading = "Releases")]
        #[unset("~/.cache/tensorserve/releases")]
        release_state: PathBuf,
        /// Directory for models from stores
        #[arg(value_name = "PATH", help_heading = "Stores")]
        #[unset("~/.cache/tensorserve/models")]
        model_cache_dir: PathBuf,
        /// Maximum size of that directory; versions that are not in use are removed
        #[arg(value_name = "SIZE", help_heading = "Stores")]
        #[default(ByteSize(64 << 30))]
        #[check(some_bytes)]
        model_cache_bytes: ByteSize,
        /// URL of an S3 server other than Amazon's, such as MinIO
        #[arg(value_name = "URL", help_heading = "Stores")]
        #[unset("AWS_ENDPOINT_URL")]
        #[check(url("http://127.0.0.1:9000"))]
        store_endpoint: String,
        /// Region of S3 buckets
        #[arg(value_name = "NAME", help_heading = "Stores")]
        #[unset("AWS_REGION, the profile's, or found out")]
        store_region: String,
        /// Send no credentials: the buckets are public
        #[arg(value_name = "BOOL", help_heading = "Stores")]
        #[default(false)]
        store_anonymous: bool,
        /// Allow http:// URLs of models on other machines
        #[arg(value_name = "BOOL", help_heading = "Stores")]
        #[default(false)]
        store_allow_http: bool,
        /// Log level: error, warn, info, debug or trace, also per module, such as
        /// info,tensorserve_core=debug
        #[arg(value_name = "LEVEL")]
        #[default("info".to_owned())]
        log_level: String,
        /// Format of the log: text, or json with an object in each line
        #[arg(value_name = "FORMAT", help_heading = "Traces and logs")]
        #[one_of(is_not, LogFormat: "text" => LogFormat::Text, "json" => LogFormat::Json)]
        log_format: String,
        /// Fraction of the requests that get a line in the log, 0 to 1
        #[arg(value_name = "FRACTION", help_heading = "Traces and logs")]
        #[default(0.0)]
        #[check(share)]
        access_log: f64,
        /// Collector of traces (OTLP), such as http://127.0.0.1:4318
        #[arg(value_name = "URL", help_heading = "Traces and logs")]
        #[unset("OTEL_EXPORTER_OTLP_ENDPOINT and OpenTelemetry's other variables; without them, no traces")]
        #[check(url("http://127.0.0.1:4318"))]
        otlp_endpoint: String,
        /// How the collector is spoken to: http/protobuf or grpc
        #[arg(value_name = "PROTOCOL", help_heading = "Traces and logs")]
        #[unset("OTEL_EXPORTER_OTLP_PROTOCOL, or http/protobuf")]
        #[one_of(
            is_not, TraceProtocol:
            "http/protobuf" => TraceProtocol::Http,
            "grpc" => TraceProtocol::Grpc
        )]
        otlp_protocol: String,
        /// Fraction of the traces that begin here to record, 0 to 1; requests with a traceparent
        /// follow their caller
        #[arg(value_name = "FRACTION", help_heading = "Traces and logs")]
        #[unset("OTEL_TRACES_SAMPLER, or 1")]
        #[check(share)]
        trace_sampling: f64,
        /// Model for /invocations requests that name no model
        #[arg(value_name = "NAME", help_heading = "SageMaker")]
        #[unset("the only model")]
        sagemaker_default_model: String,
        /// SageMaker image to be compatible with: 2.19 (and older), 2.20, or extended, which
        /// responds in the format of the Accept header
        #[arg(value_name = "IMAGE", help_heading = "SageMaker")]
        #[one_of(
            is_not, SagemakerCompatibility:
            "2.19" => SagemakerCompatibility::Tf219,
            "2.20" => SagemakerCompatibility::Tf220,
            "extended" => SagemakerCompatibility::Extended
        )]
        sagemaker_compatibility: String,
        /// Memory limit of the process for loading models by request
        #[arg(value_name = "SIZE", help_heading = "SageMaker")]
        #[unset("the free memory")]
        multi_model_memory_limit: ByteSize,
        /// Unload the least recently used models when a load needs memory
        #[arg(value_name = "BOOL", help_heading = "SageMaker")]
        #[default(false)]
        multi_model_evict: bool,
        /// Load a model that is not loaded when a request names it
        #[arg(value_name = "BOOL", help_heading = "SageMaker")]
        #[default(false)]
        multi_model_load_on_use: bool,
        /// Directories that asynchronous invocations may read input from, separated by commas
        #[arg(value_name = "LIST", help_heading = "SageMaker")]
        #[unset("none")]
        sagemaker_async_input: CommaSeparated<PathBuf>,
        /// Directory for the output of asynchronous invocations, an absolute path
        #[arg(value_name = "PATH", help_heading = "SageMaker")]
        #[unset("no asynchronous invocations")]
        #[check(absolute_path)]
        sagemaker_async_output: PathBuf,
        /// libtensorflow, or the directory that contains it
        #[arg(value_name = "PATH", help_heading = "TensorFlow")]
        #[unset("found automatically")]
        libtensorflow: PathBuf,
        /// Libraries of custom operations (.so), and directories of such libraries, separated by
        /// commas
        #[arg(value_name = "LIST", help_heading = "TensorFlow")]
        #[unset("none")]
        custom_op_paths: CommaSeparated<PathBuf>,
        /// Threads within one operation
        #[arg(value_name = "N", help_heading = "TensorFlow")]
        #[unset("1 for models with short runs, else one per core")]
        intra_op_threads: i32,
        /// Threads that run operations in parallel, for runs with a time limit
        #[arg(value_name = "N", help_heading = "TensorFlow")]
        #[unset("one per core")]
        inter_op_threads: i32,
        /// Server of TensorFlow that runs the models, grpc://HOST:PORT
        #[arg(value_name = "URL", help_heading = "TensorFlow")]
        #[unset("this process")]
        #[check(session_target)]
        session_target: String,
        /// Maximum fraction of each GPU's memory to allocate, 0 to 1
        #[arg(value_name = "FRACTION", help_heading = "TensorFlow")]
        #[unset("all")]
        #[check(share)]
        gpu_memory_fraction: f64,
        /// Allocate GPU memory as needed instead of all at startup
        #[arg(value_name = "BOOL", help_heading = "TensorFlow")]
        #[default(true)]
        gpu_allow_growth: bool,
        /// GPUs to use, such as 0,1
        #[arg(value_name = "LIST", help_heading = "TensorFlow")]
        #[unset("all")]
        gpu_visible_devices: String,
        /// Do not start if libtensorflow has no GPU that it can use; without a value, true
        #[arg(value_name = "BOOL", help_heading = "TensorFlow", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
        #[default(false)]
        require_gpu: bool,
        /// ONNX Runtime's library, or the directory that contains it
        #[arg(value_name = "PATH", help_heading = "ONNX")]
        #[unset("found automatically")]
        libonnxruntime: PathBuf,
        /// LiteRT's library, or the directory that contains it
        #[arg(value_name = "PATH", help_heading = "TensorFlow Lite")]
        #[unset("found automatically")]
        liblitert: PathBuf,
        /// OpenVINO's C library (2026.0 or later), or the directory that contains it
        #[arg(value_name = "PATH", help_heading = "OpenVINO")]
        #[unset("found automatically")]
        libopenvino: PathBuf,
        /// libtorch, or the directory that contains it
        #[arg(value_name = "PATH", help_heading = "PyTorch")]
        #[unset("found automatically")]
        libtorch: PathBuf,
        /// libexecutorch, or the directory that contains it
        #[arg(value_name = "PATH", help_heading = "ExecuTorch")]
        #[unset("found automatically")]
        libexecutorch: PathBuf,
        /// Python interpreter for inference.py
        #[arg(value_name = "PATH", help_heading = "Handlers (inference.py)")]
        #[unset("python3 on the PATH")]
        python: PathBuf,
        /// Number of worker processes for each code directory
        #[arg(value_name = "N", help_heading = "Handlers (inference.py)")]
        #[unset("one per core, 2 to 8")]
        #[check(at_least_one)]
        handler_workers: usize,
        /// Maximum number of handler calls that a worker process serves at a time while they wait,
        /// each on a thread; 1 for scripts that are not thread-safe
        #[arg(value_name = "N", help_heading = "Handlers (inference.py)")]
        #[default(128)]
        #[check(at_least_one)]
        handler_threads: usize,
        /// Time limit of a handler call, after which its worker process is replaced
        #[arg(value_name = "DURATION", help_heading = "Handlers (inference.py)")]
        #[default(HumanDuration::seconds(60))]
        #[check(some_time)]
        handler_timeout: HumanDuration,
        /// Memory of a worker process above which it is replaced
        #[arg(value_name = "SIZE", help_heading = "Handlers (inference.py)")]
        #[unset("no limit")]
        handler_memory_limit: ByteSize,
        /// Directory for the Python environments that requirements.txt files need
        #[arg(value_name = "PATH", help_heading = "Handlers (inference.py)")]
        #[unset("~/.cache/tensorserve/python")]
        python_environments: PathBuf,
        /// Number of threads that run batches
        #[arg(value_name = "N", help_heading = "Batch threads")]
        #[unset("one per core")]
        #[check(at_least_one)]
        num_batch_threads: usize,
        /// Longest run in microseconds that may take place on the thread of a connection; 0 sends
        /// every run to a batch thread
        #[arg(value_name = "MICROS", help_heading = "Batch threads")]
        #[default(1000)]
        inline_budget_micros: u64,
    }
}
