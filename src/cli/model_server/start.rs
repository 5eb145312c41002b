//! From TensorFlow Serving's flags to the [`Config`] that the server runs on.
//!
//! Flags override tensorserve's environment variables (`TENSORSERVE_LOG_LEVEL` and all others), and
//! these override TensorFlow Serving's defaults.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::flags::Flags;
use crate::config::environment::Environment;
use crate::config::model_server::files;
use crate::config::units::{ByteSize, CommaSeparated, HumanDuration, Port};
use crate::config::{
    BatchConfig, BatchParameters, Config, Cors, ModelConfig, Settings, SourceConfig,
};
use tensorserve_protocols::tfs::config::{TensorContent, batching, models};
use tensorserve_tensor::error::{Error, Result};

/// What to serve, and how.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) config: Config,
    /// The list of models, and how often it is reread.
    pub(super) watched: Option<WatchedModelList>,
    /// Warnings for the log.
    pub(super) notes: Vec<String>,
}

/// A list of models that is reread.
#[derive(Clone, Debug)]
pub(super) struct WatchedModelList {
    pub(super) path: PathBuf,
    pub(super) every: Duration,
    /// The file of batching parameters for all models, and the parameters that it overrides.
    batching: Option<(PathBuf, BatchParameters)>,
}

impl WatchedModelList {
    /// The list, with `common` brought up to date.
    ///
    /// # Errors
    /// If a file cannot be read, or its contents are contradictory.
    pub(super) fn read(&self, common: &mut ModelConfig) -> Result<Option<models::TfsModelList>> {
        if let Some((path, lower)) = &self.batching {
            let settings = batching::read(path)?.0.or(&batching::defaults()).or(lower);
            common.batching = BatchConfig::new(&settings).map_err(|e| e.context(path.display()))?;
        }
        models::read(&self.path, common)
    }
}

/// The maximum size of a gRPC message in TensorFlow Serving; its HTTP has no limit.
const MAX_MESSAGE_BYTES: usize = i32::MAX as usize;

/// Checks the flags, reads the files they name, and fills in defaults.
///
/// # Errors
/// TensorFlow Serving's own errors for contradictory flags; wrong files.
pub(super) fn start(flags: &Flags, from: &Settings, environment: &Environment) -> Result<Start> {
    check_together(flags)?;
    let mut notes = Vec::new();
    let settings = settings(flags, &mut notes)?.or(from).or(&defaults());
    let settings = without_clash(settings, &mut notes);
    let console = settings.server.console.unwrap_or(false);
    let mut config = Config::new(settings, environment)?;
    config.protocols.console = console;
    config.repository.common.batching_file =
        flags.is_set("enable_batching") && flags.is_set("enable_per_model_batching_parameters");
    config.protocols.tfs.reload = true;
    (config.http.port_setting, config.grpc.port_setting) = ("--rest_api_port", "--port");
    config.grpc.health_service = flags.is_set("enable_grpc_healthcheck_service");
    let is_content = flags.is_set("enable_serialization_as_tensor_content");
    config.protocols.tfs.tensor_content =
        if is_content { TensorContent::Always } else { TensorContent::Never };
    if flags.is_set("rest_api_enable_cors_support") {
        config.http.cors = Cors::RestApi;
    }
    config.answer_as_tfs();
    if let Some(path) = flags.text("ssl_config_file") {
        config.grpc.tls = Some(files::tls(Path::new(path))?);
    }
    config.protocols.tfs.metrics_path = match flags.text("monitoring_config_file") {
        Some(path) => files::monitoring(Path::new(path))?,
        None => None,
    };
    if let Some(path) = flags.text("rest_api_ssl_config_file") {
        config.http.tls = Some(files::tls(Path::new(path))?);
    }
    let common = &config.repository.common;
    config.repository.sources = match flags.text("model_config_file") {
        Some(path) => {
            let list = models::read(Path::new(path), common)?;
            let list = list.unwrap_or_else(|| {
                notes
                    .push(format!("{path}: the file has no model_config_list; no model is served"));
                models::TfsModelList { sources: Vec::new(), notes: Vec::new() }
            });
            notes.extend(list.notes);
            list.sources
        }
        None => one_model(flags, common)?,
    };
    notes.extend(flags.idle());
    Ok(Start { config, watched: watched(flags, from), notes })
}

/// Refuses contradictory flags, with TensorFlow Serving's messages.
fn check_together(flags: &Flags) -> Result<()> {
    let is_on = |name: &str| flags.int(name).unwrap_or(0) != 0;
    let wrong = |message: &'static str| Err(Error::invalid(message));
    if flags.int("port") == Some(0) && flags.text("grpc_socket_path").is_none() {
        return wrong(
            "At least one of server_options.grpc_port or server_options.grpc_socket_path must be \
             set.",
        );
    }
    if flags.is_set("use_alts_credentials") && flags.text("ssl_config_file").is_some() {
        return wrong(
            "Either use_alts_credentials must be false or ssl_config_file must be empty.",
        );
    }
    if flags.text("model_base_path").is_none() && flags.text("model_config_file").is_none() {
        return wrong(
            "Both server_options.model_base_path and server_options.model_config_file are empty!",
        );
    }
    if flags.text("batching_parameters_file").is_some() && !flags.is_set("enable_batching") {
        return wrong(
            "server_options.batching_parameters_file is set without setting \
             server_options.enable_batching to true.",
        );
    }
    let session = is_on("tensorflow_session_parallelism");
    let operations =
        is_on("tensorflow_intra_op_parallelism") && is_on("tensorflow_inter_op_parallelism");
    if session && operations {
        return wrong(
            "tensorflow_session_parallelism, tensorflow_intra_op_parallelism and \
             tensorflow_inter_op_parallelism must not all be set.",
        );
    }
    Ok(())
}

/// The settings that the flags and the files they name contain.
fn settings(flags: &Flags, notes: &mut Vec<String>) -> Result<Settings> {
    let mut settings = Settings::default();
    let server = &mut settings.server;
    server.grpc_port = port(flags, "port")?;
    server.grpc_socket_path = flags.text("grpc_socket_path").map(PathBuf::from);
    server.http_port = port(flags, "rest_api_port")?;
    server.http_threads = positive(flags, "rest_api_num_threads")?;
    server.request_timeout =
        positive(flags, "rest_api_timeout_in_ms")?.map(|ms| HumanDuration(millis(ms)));
    server.load_threads = count(flags, "num_load_threads")?.filter(|&threads| threads > 0);
    let retries = count(flags, "max_num_load_retries")?;
    server.max_load_retries = retries.map(|retries| u32::try_from(retries).unwrap_or(u32::MAX));
    let micros = count(flags, "load_retry_interval_micros")?;
    server.load_retry_interval = micros.map(|micros| {
        HumanDuration(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    });
    server.poll_interval = poll_interval(flags, notes);
    let session = threads(flags, "tensorflow_session_parallelism")?;
    server.intra_op_threads = threads(flags, "tensorflow_intra_op_parallelism")?.or(session);
    server.inter_op_threads = threads(flags, "tensorflow_inter_op_parallelism")?.or(session);
    server.gpu_memory_fraction =
        flags.float("per_process_gpu_memory_fraction").filter(|&part| part != 0.0);
    settings.each.warm_up = flags.bool("enable_model_warmup");
    // In TensorFlow Serving, too, less than 1 means 1.
    let iterations = flags.int("num_request_iterations_for_warmup").filter(|&times| times > 0);
    settings.each.warm_up_iterations = iterations.and_then(|times| usize::try_from(times).ok());
    if let Some(tags) = flags.text("saved_model_tags") {
        settings.each.tags = Some(tags.parse::<CommaSeparated<String>>().map_err(Error::invalid)?);
    }
    // Without the flag, batching stays on auto, which joins only what is known to keep its results.
    if flags.is_set("enable_batching") {
        let (batching, threads) = match flags.text("batching_parameters_file") {
            Some(path) => batching::read(Path::new(path))?,
            None => (BatchParameters::default(), None),
        };
        settings.batching = batching.or(&batching::defaults()).into();
        settings.server.num_batch_threads = threads;
    }
    for (name, read) in FILES_OF_SETTINGS {
        if let Some(path) = flags.text(name) {
            let (of_file, more) = read(Path::new(path))?;
            settings = settings.or(&of_file);
            notes.extend(more.into_iter().map(|note| format!("{path}: {note}")));
        }
    }
    Ok(settings)
}

type ReadSettings = fn(&Path) -> Result<(Settings, Vec<String>)>;

/// Files with settings of the runtime; the first has precedence.
const FILES_OF_SETTINGS: [(&str, ReadSettings); 2] = [
    ("tensorflow_session_config_file", files::session),
    ("platform_config_file", files::platforms),
];

/// TensorFlow Serving's defaults, where they differ from tensorserve's.
fn defaults() -> Settings {
    let mut settings = Settings::default();
    let server = &mut settings.server;
    server.host = Some("::".to_owned());
    server.http_port = Some(Port::Off);
    // A UNIX socket is served in addition to the port; with port 0, only the socket.
    server.grpc_port = Some(Port::Number(8500));
    server.max_body_bytes = Some(ByteSize(MAX_MESSAGE_BYTES));
    server.grpc_max_message_bytes = Some(ByteSize(MAX_MESSAGE_BYTES));
    settings
}

/// If HTTP and gRPC have the same port, TensorFlow Serving starts without HTTP.
fn without_clash(mut settings: Settings, notes: &mut Vec<String>) -> Settings {
    let server = &mut settings.server;
    let is_some = server.http_port.and_then(Port::number).is_some_and(|port| port != 0);
    if is_some && server.http_port == server.grpc_port {
        notes.push("--rest_api_port is the same as --port: HTTP is not served".to_owned());
        server.http_port = Some(Port::Off);
    }
    settings
}

fn one_model(flags: &Flags, common: &ModelConfig) -> Result<Vec<SourceConfig>> {
    let name = flags.text("model_name").unwrap_or("default");
    let path = flags.text("model_base_path").unwrap_or_default();
    let source = models::one(name, path, common)?;
    Ok(vec![source])
}

fn watched(flags: &Flags, from: &Settings) -> Option<WatchedModelList> {
    let path = flags.text("model_config_file")?.into();
    let seconds = flags.int("model_config_file_poll_wait_seconds")?;
    let every = Duration::from_secs(u64::try_from(seconds).ok().filter(|&seconds| seconds > 0)?);
    let batching = flags.text("batching_parameters_file");
    let batching = batching.map(|path| (path.into(), from.batching.parameters()));
    Some(WatchedModelList { path, every, batching })
}

fn poll_interval(flags: &Flags, notes: &mut Vec<String>) -> Option<HumanDuration> {
    let seconds = flags.int("file_system_poll_wait_seconds")?;
    let seconds = u64::try_from(seconds).unwrap_or_else(|_| {
        let name = "--file_system_poll_wait_seconds";
        notes.push(format!("{name} is negative: the model directories are scanned once"));
        0
    });
    Some(HumanDuration(Duration::from_secs(seconds)))
}

fn port(flags: &Flags, name: &str) -> Result<Option<Port>> {
    let number = count(flags, name)?;
    let wrong = |_| Error::invalid(format!("--{name} must be from 0 to 65535"));
    let number = number.map(u16::try_from).transpose().map_err(wrong)?;
    Ok(number.map(|number| if number == 0 { Port::Off } else { Port::Number(number) }))
}

fn threads(flags: &Flags, name: &str) -> Result<Option<i32>> {
    let threads = count(flags, name)?.filter(|&threads| threads > 0);
    Ok(threads.map(|threads| i32::try_from(threads).unwrap_or(i32::MAX)))
}

fn positive(flags: &Flags, name: &str) -> Result<Option<usize>> {
    match count(flags, name)? {
        Some(0) => Err(Error::invalid(format!("--{name} must be more than 0"))),
        number => Ok(number),
    }
}

fn count(flags: &Flags, name: &str) -> Result<Option<usize>> {
    let wrong = |_| Error::invalid(format!("--{name} must not be negative"));
    flags.int(name).map(usize::try_from).transpose().map_err(wrong)
}

fn millis(count: usize) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BatchMode, VersionPolicy};

    fn started(arguments: &[&str]) -> Result<Start> {
        let flags = Flags::parse(arguments.iter().map(|&a| a.to_owned())).expect("valid");
        start(&flags, &Settings::default(), &Environment::default())
    }

    const MODEL: &str = "--model_base_path=/models/m";

    #[test]
    fn defaults_are_tensorflow_servings() {
        let start = started(&[MODEL]).expect("valid");
        let config = start.config;
        assert_eq!(config.http.port, None);
        assert_eq!(config.grpc.port, Some(8500));
        assert!(config.grpc.host.is_unspecified() && config.grpc.host.is_ipv6());
        assert_eq!(config.grpc.max_message_bytes, MAX_MESSAGE_BYTES);
        assert!(
            !config.grpc.health_service
                && config.protocols.tfs.tensor_content == TensorContent::Never
                && config.http.cors == Cors::Off
        );
        let source = &config.repository.sources[0];
        assert_eq!(source.name.as_deref(), Some("default"));
        assert_eq!(source.path, Path::new("/models/m"));
        assert_eq!(source.model.policy, VersionPolicy::Latest(1));
        assert_eq!(source.model.batching.mode, BatchMode::Auto);
        assert_eq!(config.repository.poll_interval, Some(Duration::from_secs(1)));
        assert!(start.notes.is_empty(), "{:?}", start.notes);
    }

    #[test]
    fn flags_set_what_they_name() {
        let config = started(&[
            MODEL,
            "--model_name=m",
            "--port=0",
            "--grpc_socket_path=/tmp/s",
            "--rest_api_port=8501",
            "--rest_api_num_threads=3",
            "--rest_api_timeout_in_ms=1500",
            "--rest_api_enable_cors_support",
            "--num_load_threads=0",
            "--max_num_load_retries=7",
            "--load_retry_interval_micros=2000000",
            "--file_system_poll_wait_seconds=0",
            "--tensorflow_session_parallelism=4",
            "--tensorflow_intra_op_parallelism=2",
            "--per_process_gpu_memory_fraction=0.5",
            "--saved_model_tags=serve,gpu",
            "--enable_model_warmup=false",
            "--num_request_iterations_for_warmup=4",
            "--enable_batching",
            "--enable_per_model_batching_parameters",
            "--enable_grpc_healthcheck_service",
            "--enable_serialization_as_tensor_content",
        ])
        .expect("valid")
        .config;
        assert_eq!((config.http.port, config.grpc.port), (Some(8501), None));
        assert_eq!(config.grpc.socket_path, Some("/tmp/s".into()));
        assert_eq!(config.http.threads, 3);
        assert_eq!(config.http.request_timeout, Duration::from_millis(1500));
        assert_eq!(config.http.cors, Cors::RestApi);
        assert!(config.grpc.health_service);
        assert_eq!(config.protocols.tfs.tensor_content, TensorContent::Always);
        assert_eq!(config.repository.load_threads, 2);
        assert_eq!(config.repository.max_load_retries, 7);
        assert_eq!(config.repository.load_retry_interval, Duration::from_secs(2));
        assert_eq!(config.repository.poll_interval, None);
        assert_eq!(config.tensorflow.intra_op_threads, 2);
        assert_eq!(config.tensorflow.inter_op_threads, 4);
        assert_eq!(config.tensorflow.gpu.memory_fraction, 0.5);
        let model = &config.repository.sources[0].model;
        assert_eq!(model.tags, ["serve", "gpu"]);
        assert!(!model.warm_up && model.batching_file);
        assert_eq!(model.warm_up_iterations, 4);
        assert_eq!(model.batching.mode, BatchMode::On);
        assert_eq!(
            (model.batching.max_batch_size, model.batching.max_enqueued_batches),
            (1000, 10)
        );
    }

    #[test]
    fn flags_override_the_environment() {
        let flags = Flags::parse([MODEL.to_owned(), "--rest_api_port=1".to_owned()]);
        let mut from = Settings::default();
        from.server.host = Some("127.0.0.1".to_owned());
        from.server.http_port = Some(Port::Number(2));
        let start = start(&flags.expect("valid"), &from, &Environment::default());
        let http = start.expect("valid").config.http;
        assert!(http.host.is_loopback());
        assert_eq!(http.port, Some(1));
    }

    #[test]
    fn one_port_for_both_disables_http() {
        let start = started(&[MODEL, "--port=9000", "--rest_api_port=9000"]).expect("started");
        assert_eq!((start.config.http.port, start.config.grpc.port), (None, Some(9000)));
        assert_eq!(start.notes.len(), 1);
    }

    #[test]
    fn contradictory_flags_are_refused() {
        let cases: [(&[&str], &str); 9] = [
            (&[], "Both server_options.model_base_path and server_options.model_config_file are"),
            (&[MODEL, "--port=0"], "At least one of server_options.grpc_port or"),
            (&[MODEL, "--batching_parameters_file=x"], "is set without setting"),
            (
                &[MODEL, "--use_alts_credentials", "--ssl_config_file=x"],
                "Either use_alts_credentials must be false or ssl_config_file must be empty.",
            ),
            (
                &[
                    MODEL,
                    "--tensorflow_session_parallelism=1",
                    "--tensorflow_intra_op_parallelism=1",
                    "--tensorflow_inter_op_parallelism=1",
                ],
                "must not all be set",
            ),
            (&["--model_base_path=models/m"], "Expected model default to have an absolute path"),
            (&[MODEL, "--rest_api_port=70000"], "--rest_api_port must be from 0 to 65535"),
            (&[MODEL, "--num_load_threads=-1"], "--num_load_threads must not be negative"),
            (&["--model_config_file=/no/such/file"], "/no/such/file; No such file or directory"),
        ];
        for (arguments, part) in cases {
            let error = started(arguments).expect_err(part);
            assert!(error.message().contains(part), "{error}");
        }
    }
}
