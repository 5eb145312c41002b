//! Checks settings and turns them into a [`Config`]. All mistakes are collected and reported
//! together.

use std::net::{IpAddr, Ipv4Addr};
#[cfg(any(feature = "onnx", feature = "tflite", feature = "openvino"))]
use std::path::PathBuf;
use std::thread::available_parallelism;
use std::time::Duration;

#[cfg(any(feature = "onnx", feature = "tflite", feature = "openvino"))]
use super::RuntimeConfig;
#[cfg(any(feature = "pytorch", feature = "executorch"))]
use super::TorchConfig;
use super::check::{Check, listed};
use super::environment::Environment;
use super::groups::{BatchSettings, EachModelSettings, Isolation, ServerSettings};
use super::processes::{probe, runner_options};
use super::protocols::protocols;
use super::releases::release_state;
use super::settings::{ModelSettings, Settings};
use super::traffic::common_traffic;
use super::units::{ByteSize, CommaSeparated};
use super::written::Mistakes;
use super::{
    AdminAccess, AuthConfig, BatchConfig, BatcherConfig, Config, Cors, GrpcConfig, HttpConfig,
    LogConfig, ModelConfig, RepositoryConfig, ShutdownConfig, SourceConfig, VersionPolicy,
    WorkersConfig,
};
#[cfg(feature = "tensorflow")]
use super::{GpuConfig, TensorFlowConfig};
use tensorserve_core::config::{LONGEST_TURN, OpPolicy, SECOND_LOOK, is_model_name, model_path};
use tensorserve_tensor::error::Result;

impl Config {
    /// Checks settings from the command line and the environment, with those of the file they
    /// name below them, and fills in defaults.
    ///
    /// # Errors
    /// One error with all mistakes.
    pub fn new(settings: Settings, environment: &Environment) -> Result<Self> {
        let (config, mistakes) = Config::with_mistakes(settings, environment);
        mistakes.result(config)
    }

    /// A checked configuration as of [`Config::new`], with all mistakes, for more to be added. Where a setting is
    /// wrong, the configuration has a default.
    #[must_use]
    pub fn with_mistakes(settings: Settings, environment: &Environment) -> (Self, Mistakes) {
        let settings = settings.or_file();
        let mut check = Check::new(String::new(), settings.reading.origins.clone());
        environment
            .unknown_settings(&Settings::names())
            .iter()
            .for_each(|unknown| check.mistake(unknown));
        if let Some(wrong) = environment.wrong_library_directory() {
            check.mistake(wrong);
        }
        check.mistakes.extend(&settings.reading.mistakes);
        let config = check.config(&settings, environment);
        (config, check.mistakes)
    }
}

impl Check {
    fn config(&mut self, settings: &Settings, environment: &Environment) -> Config {
        let server = &settings.server;
        self.values(server.mistakes());
        let cores = available_parallelism().map_or(1, std::num::NonZero::get);
        let mut http = self.http(server, cores);
        let mut grpc = self.grpc(server, &http);
        self.certify(server, &mut http, &mut grpc);
        if http.port.is_none() && grpc.port.is_none() && grpc.socket_path.is_none() {
            let why = "http_port and grpc_port are both off; set at least one of them";
            self.clash(&["http_port", "grpc_port"], why);
        }
        let repository = self.repository(settings, environment);
        self.check_cache(server, &repository);
        let has_processes =
            |model: &ModelConfig| model.isolated || model.engine != super::EngineChoice::TensorFlow;
        let isolates = has_processes(&repository.common)
            || repository.sources.iter().any(|source| has_processes(&source.model));
        Config {
            protocols: protocols(server, http.max_body_bytes),
            http,
            grpc,
            repository,
            auth: server.auth_file.clone().map(AuthConfig::File),
            batching: BatcherConfig {
                threads: server.num_batch_threads.unwrap_or(cores),
                inline_budget: Duration::from_micros(server.inline_budget_micros()),
            },
            #[cfg(feature = "tensorflow")]
            tensorflow: tensorflow(server, environment),
            #[cfg(feature = "onnx")]
            onnx: runtime(server.libonnxruntime.clone(), "onnxruntime", server, environment),
            #[cfg(feature = "tflite")]
            litert: runtime(server.liblitert.clone(), "ai_edge_litert", server, environment),
            #[cfg(feature = "openvino")]
            openvino: runtime(server.libopenvino.clone(), "openvino", server, environment),
            #[cfg(feature = "pytorch")]
            torch: TorchConfig {
                library: server.libtorch.clone(),
                search: environment.library_directories("torch"),
            },
            #[cfg(feature = "executorch")]
            executorch: TorchConfig {
                library: server.libexecutorch.clone(),
                search: environment.library_directories("executorch"),
            },
            probe: probe(server, environment, isolates),
            #[cfg(feature = "stores")]
            stores: super::stores::stores(server, environment),
            workers: workers(server, environment, cores),
            require_gpu: server.require_gpu(),
            max_request_memory: self.max_request_memory(server),
            observation: self.observation(server, environment),
            response_cache_bytes: server.response_cache_bytes().0,
            max_shadow_requests: server.max_shadow_requests(),
            shutdown: ShutdownConfig {
                delay: server.shutdown_delay().0,
                timeout: server.shutdown_timeout().0,
            },
            stop_with_stdin: server.stop_with_stdin(),
        }
    }

    fn http(&mut self, server: &ServerSettings, cores: usize) -> HttpConfig {
        let host = match server.host().as_str() {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.parse().unwrap_or_else(|_| {
                let why = "is not an IP address; write, for example, 127.0.0.1 or ::";
                self.wrong("host", format!("{host:?} {why}"));
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            }),
        };
        HttpConfig {
            host,
            port: server.http_port().number(),
            port_setting: "--http-port",
            more_ports: Vec::new(),
            threads: server.http_threads.unwrap_or(cores),
            max_body_bytes: server.max_body_bytes().0,
            request_timeout: server.request_timeout().0,
            body_timeout: server.body_timeout().0,
            write_timeout: server.write_timeout().0,
            header_timeout: server.header_timeout().0,
            keep_alive: server.keep_alive().0,
            max_connections: server.max_connections(),
            cors: Cors::Off,
            request_ids: true,
            server_timing: server.server_timing(),
            tls: None,
            admin: self.admin(server, host),
        }
    }

    /// Whether the console may change models: not if unauthenticated clients on other machines could
    /// do so.
    fn admin(&mut self, server: &ServerSettings, host: IpAddr) -> AdminAccess {
        let is_safe = host.is_loopback()
            || server.auth_file.is_some()
            || server.allow_unauthenticated_admin();
        let allowed = server.console_admin.unwrap_or(is_safe);
        if allowed && !is_safe {
            let why = format!(
                "without users, every client that reaches {host} could change what is served; set \
                 auth_file (`tensorserve auth add-user NAME` creates it), listen on 127.0.0.1, or \
                 set allow_unauthenticated_admin"
            );
            self.wrong("console_admin", why);
        }
        AdminAccess { allowed, hosts: listed(&server.console_hosts) }
    }

    fn grpc(&mut self, server: &ServerSettings, http: &HttpConfig) -> GrpcConfig {
        let port = server.grpc_port().number();
        if port.is_some_and(|port| port != 0) && port == http.port {
            self.clash(&["http_port", "grpc_port"], "http_port and grpc_port must differ");
        }
        GrpcConfig {
            host: http.host,
            port,
            port_setting: "--grpc-port",
            socket_path: server.grpc_socket_path.clone(),
            max_message_bytes: server.grpc_max_message_bytes().0,
            tls: None,
            health_service: true,
        }
    }

    fn repository(&mut self, settings: &Settings, environment: &Environment) -> RepositoryConfig {
        let server = &settings.server;
        let mut sources = Vec::new();
        let shared = self.model(&settings.each, &settings.batching);
        let name = self.model_name(settings);
        for path in &settings.paths {
            let (path, name) = (model_path(path), name.clone());
            sources.push(SourceConfig { path, name, model: shared.clone() });
        }
        for model in &settings.models {
            sources.extend(self.source(model, settings));
        }
        self.no_duplicates(&sources);
        RepositoryConfig {
            sources,
            common: shared,
            poll_interval: Some(server.poll_interval().0).filter(|interval| !interval.is_zero()),
            load_threads: server.load_threads(),
            longest_turn: LONGEST_TURN,
            second_look: SECOND_LOOK,
            release_state: Some(release_state(server, environment)),
            memory_limit: self.memory_amount("memory_limit", server.memory_limit),
            max_load_retries: server.max_load_retries(),
            load_retry_interval: server.load_retry_interval().0,
        }
    }

    /// The source of a `[[models]]` table, unless it has no path.
    fn source(&mut self, model: &ModelSettings, settings: &Settings) -> Option<SourceConfig> {
        let name = model.name.clone();
        let shown = name.as_deref().map_or(String::new(), |name| format!("model {name:?}: "));
        let mut origins = self.origins.clone();
        origins.extend(model.origins.clone());
        let mut check = Check::new(shown, origins);
        if model.path.is_none() {
            check.wrong("models", "the path of the model is missing");
        }
        if name.as_deref().is_some_and(|name| !is_model_name(name)) {
            check.wrong("name", "a model's name must not be empty or contain / or :");
        }
        let each = model.each.clone().or(&settings.each);
        let batching = model.batching.clone().or(&settings.batching);
        let mut checked = check.model(&each, &batching);
        checked.labels.clone_from(&model.labels);
        check.traffic(model, &mut checked.traffic);
        self.mistakes.extend(&check.mistakes);
        Some(SourceConfig { path: model_path(model.path.clone()?), name, model: checked })
    }

    fn no_duplicates(&mut self, sources: &[SourceConfig]) {
        let mut names: Vec<&str> = sources.iter().filter_map(|s| s.name.as_deref()).collect();
        names.sort_unstable();
        for pair in names.windows(2) {
            if let [a, b] = pair
                && a == b
            {
                self.mistake(format!("model {a:?} is configured twice"));
            }
        }
    }

    fn model(&mut self, each: &EachModelSettings, batching: &BatchSettings) -> ModelConfig {
        self.values(each.mistakes());
        self.values(batching.mistakes());
        let named = each.platform.as_deref().map(super::platform);
        let platform =
            named.and_then(|known| known.map_err(|why| self.wrong("platform", why)).ok());
        ModelConfig {
            platform: self.runner(each).or(platform),
            runner: runner_options(each),
            policy: self.policy(&each.version_policy()),
            transition: each.version_transition(),
            release: self.release(each),
            tags: each.tags().0,
            ops: OpPolicy { deny: listed(&each.deny_ops), allow: listed(&each.allow_ops) },
            isolated: each.isolation() == Isolation::Process,
            labels: Default::default(),
            traffic: common_traffic(each),
            images: each.images(),
            warm_up: each.warm_up(),
            warm_up_iterations: each.warm_up_iterations(),
            log: log(each),
            receipts: each.receipts(),
            optimize: each.optimize(),
            engine: each.engine(),
            max_concurrent_requests: each.max_concurrent_requests,
            batching: self.batching(batching),
            batching_file: false,
            code: each.code.clone(),
        }
    }

    fn policy(&mut self, text: &str) -> VersionPolicy {
        let (kind, argument) = match text.split_once(':') {
            Some((kind, argument)) => (kind, Some(argument)),
            None => (text, None),
        };
        let policy = match (kind, argument) {
            ("latest", None) => Some(VersionPolicy::Latest(1)),
            ("latest", Some(n)) => n.parse().ok().filter(|&n| n > 0).map(VersionPolicy::Latest),
            ("all", None) => Some(VersionPolicy::All),
            ("specific", Some(list)) => {
                let versions = list.parse().ok().map(|CommaSeparated(versions)| versions);
                versions.filter(|v| !v.is_empty()).map(VersionPolicy::Specific)
            }
            _ => None,
        };
        policy.unwrap_or_else(|| {
            let rule = "is not latest, latest:N, all or specific:1,2";
            self.wrong("version_policy", format!("{text:?} {rule}"));
            VersionPolicy::Latest(1)
        })
    }

    fn batching(&mut self, batching: &BatchSettings) -> BatchConfig {
        let config = BatchConfig::unchecked(&batching.parameters());
        for mistake in config.mistakes() {
            let names = BatchSettings::NAMES.iter().copied();
            let involved: Vec<&str> = names.filter(|name| mistake.contains(name)).collect();
            self.clash(&involved, mistake);
        }
        config
    }
}

fn workers(server: &ServerSettings, environment: &Environment, cores: usize) -> WorkersConfig {
    let python = server.python.clone().unwrap_or_else(|| "python3".into());
    let cache = || environment.cache_directory().join("python");
    WorkersConfig {
        python: environment.program(python),
        count: server.handler_workers.unwrap_or(cores.clamp(2, 8)),
        threads: server.handler_threads(),
        timeout: server.handler_timeout().0,
        memory_limit: server.handler_memory_limit.map(|ByteSize(size)| size),
        variables: Vec::new(),
        environments: server.python_environments.clone().unwrap_or_else(cache),
    }
}

fn log(each: &EachModelSettings) -> LogConfig {
    LogConfig {
        prefix: each.request_log.clone(),
        sampling_rate: each.request_log_sampling_rate(),
        max_file_bytes: u64::try_from(each.request_log_file_bytes().0).unwrap_or(u64::MAX),
    }
}

/// The settings of the runtime in the Python package `package`; `library` is the path that the user named.
#[cfg(any(feature = "onnx", feature = "tflite", feature = "openvino"))]
fn runtime(
    library: Option<PathBuf>,
    package: &str,
    server: &ServerSettings,
    environment: &Environment,
) -> RuntimeConfig {
    RuntimeConfig {
        library,
        search: environment.library_directories(package),
        intra_op_threads: server.intra_op_threads.unwrap_or(0).max(0),
    }
}

#[cfg(feature = "tensorflow")]
fn tensorflow(server: &ServerSettings, environment: &Environment) -> TensorFlowConfig {
    TensorFlowConfig {
        session_target: server.session_target.clone().unwrap_or_default(),
        library: server.libtensorflow.clone(),
        search: environment.library_directories("tensorflow"),
        custom_ops: listed(&server.custom_op_paths),
        log_level: environment.runtime_log_level(server.log_level.as_deref()),
        is_alone_on_stderr: false,
        intra_op_threads: server.intra_op_threads.unwrap_or(0).max(0),
        inter_op_threads: server.inter_op_threads.unwrap_or(0).max(0),
        gpu: GpuConfig {
            // Zero leaves it to libtensorflow, which then takes all.
            memory_fraction: server.gpu_memory_fraction.unwrap_or(0.0),
            allow_growth: server.gpu_allow_growth(),
            visible_devices: server.gpu_visible_devices.clone().unwrap_or_default(),
            cuda_visible_devices: environment.get("CUDA_VISIBLE_DEVICES").map(str::to_owned),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::units::Port;
    use super::*;

    fn checked(settings: Settings) -> Result<Config> {
        Config::new(settings, &Environment::default())
    }

    #[test]
    fn defaults_are_safe() {
        let config = checked(Settings::default()).expect("valid");
        assert!(config.http.host.is_loopback());
        assert_eq!(config.http.port, Some(8500));
        assert!(config.grpc.host.is_loopback());
        assert_eq!(config.grpc.port, Some(8501));
        assert_eq!(config.http.max_body_bytes, 64 << 20);
    }

    #[test]
    fn the_console_is_read_only_for_unauthenticated_clients() {
        let console = |host: &str, configure: &dyn Fn(&mut ServerSettings)| {
            let mut settings = Settings::default();
            settings.server.host = Some(host.to_owned());
            configure(&mut settings.server);
            checked(settings).map(|config| config.http.admin.allowed)
        };
        assert_eq!(console("127.0.0.1", &|_| ()).ok(), Some(true));
        assert_eq!(console("::1", &|_| ()).ok(), Some(true));
        assert_eq!(console("0.0.0.0", &|_| ()).ok(), Some(false));
        let with_users = |server: &mut ServerSettings| server.auth_file = Some("auth.toml".into());
        assert_eq!(console("0.0.0.0", &with_users).ok(), Some(true));
        let admin = |server: &mut ServerSettings| server.console_admin = Some(true);
        let error = console("0.0.0.0", &admin).expect_err("open to all");
        for remedy in ["auth_file", "127.0.0.1", "allow_unauthenticated_admin"] {
            assert!(error.message().contains(remedy), "{error}");
        }
        let unauthenticated = |server: &mut ServerSettings| {
            server.console_admin = Some(true);
            server.allow_unauthenticated_admin = Some(true);
        };
        assert_eq!(console("0.0.0.0", &unauthenticated).ok(), Some(true));
        let off = |server: &mut ServerSettings| server.console_admin = Some(false);
        assert_eq!(console("127.0.0.1", &off).ok(), Some(false));
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let mut settings = Settings::default();
        settings.server.host = Some("nowhere".into());
        settings.server.http_threads = Some(0);
        settings.each.version_policy = Some("newest".into());
        settings.batching.batching = Some("sometimes".into());
        settings.batching.allowed_batch_sizes = Some(CommaSeparated(vec![4, 2]));
        let error = checked(settings).expect_err("wrong");
        for part in ["host", "http_threads", "version_policy", "sometimes", "ascend", "expected 64"]
        {
            assert!(error.message().contains(part), "{part} is not in {error}");
        }
    }

    #[test]
    fn listeners_can_be_off_but_not_all() {
        let mut settings = Settings::default();
        settings.server.http_port = Some(Port::Off);
        let config = checked(settings.clone()).expect("gRPC is enabled");
        assert_eq!((config.http.port, config.grpc.port), (None, Some(8501)));
        settings.server.grpc_port = Some(Port::Off);
        assert!(checked(settings.clone()).is_err());
        settings.server.grpc_socket_path = Some("/tmp/grpc".into());
        assert!(checked(settings.clone()).is_ok());
        settings.server.http_port = Some(Port::Number(9000));
        settings.server.grpc_port = Some(Port::Number(9000));
        assert!(checked(settings).is_err());
    }

    #[test]
    fn operations_are_names_or_external() {
        let ops = |entries: &[&str]| {
            let mut settings = Settings::default();
            settings.paths.push("x".into());
            let list = entries.iter().map(|&entry| entry.to_owned()).collect();
            settings.each.deny_ops = Some(CommaSeparated(list));
            checked(settings).map(|config| config.repository.common.ops.deny)
        };
        let valid = ["external", "ReadFile", "_Send"];
        assert_eq!(ops(&valid).ok(), Some(valid.map(str::to_owned).to_vec()));
        let error = ops(&["ReadFile", "files"]).expect_err("wrong");
        assert!(error.message().contains("deny_ops: \"files\" is neither"), "{error}");
    }

    #[test]
    fn policies() {
        let policy = |text: &str| {
            let mut settings = Settings::default();
            settings.paths.push("x".into());
            settings.each.version_policy = Some(text.into());
            checked(settings).map(|c| c.repository.sources[0].model.policy.clone())
        };
        assert_eq!(policy("latest:2").ok(), Some(VersionPolicy::Latest(2)));
        assert_eq!(policy("all").ok(), Some(VersionPolicy::All));
        assert_eq!(policy("specific:1,7").ok(), Some(VersionPolicy::Specific(vec![1, 7])));
        for wrong in ["latest:0", "specific", "specific:", "all:1", ""] {
            assert!(policy(wrong).is_err(), "{wrong}");
        }
    }
}
