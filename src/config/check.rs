//! From what was written to what the program runs on. All mistakes are found before any is
//! reported.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::thread::available_parallelism;
use std::time::Duration;

#[cfg(feature = "onnx")]
use super::OnnxConfig;
use super::environment::Environment;
use super::settings::{BatchSettings, EachModelSettings, ServerSettings, Settings};
use super::units::{Amount, Bytes, List, Port, Span};
use super::{
    AdminAccess, AuthConfig, BatchConfig, BatchMode, BatchParameters, BatcherConfig, Config, Cors,
    GrpcConfig, HttpConfig, Images, LogConfig, ModelConfig, ProtocolsConfig, RepositoryConfig,
    SagemakerCompatibility, SagemakerConfig, ShutdownConfig, SourceConfig, TfsConfig,
    VersionPolicy, VersionTransition, WorkersConfig, file,
};
#[cfg(feature = "tensorflow")]
use super::{GpuConfig, TensorFlowConfig};
use tensorserve_core::config::is_model_name;
use tensorserve_os::machine;
use tensorserve_protocols::tfs::config::METRICS_PATH;
use tensorserve_tensor::error::{Error, Result};

impl Config {
    /// Checks settings from the command line and the environment, with those of the file they
    /// name below them, and fills in defaults.
    ///
    /// # Errors
    /// One error with all mistakes.
    pub fn new(settings: Settings, environment: &Environment) -> Result<Self> {
        let settings = match &settings.config {
            Some(path) => settings.clone().or(&file::read(path)?),
            None => settings,
        };
        let mut check = Check::default();
        for name in environment.unknown_settings() {
            check.mistake(name);
        }
        let config = check.config(&settings, environment);
        check.result(config)
    }
}

#[derive(Default)]
pub(super) struct Check {
    mistakes: Vec<String>,
}

impl Check {
    pub(super) fn mistake(&mut self, text: impl Display) {
        self.mistakes.push(text.to_string());
    }

    fn result<T>(self, checked: T) -> Result<T> {
        if self.mistakes.is_empty() {
            return Ok(checked);
        }
        Err(Error::invalid(self.mistakes.join("\n")))
    }

    fn config(&mut self, settings: &Settings, environment: &Environment) -> Config {
        let server = &settings.server;
        let cores = available_parallelism().map_or(1, std::num::NonZero::get);
        let mut http = self.http(server, cores);
        let mut grpc = self.grpc(server, &http);
        self.certify(server, &mut http, &mut grpc);
        if http.port.is_none() && grpc.port.is_none() && grpc.socket_path.is_none() {
            self.mistake("http_port and grpc_port are both off: nothing would be listened on");
        }
        Config {
            protocols: self.protocols(server, http.max_body_bytes),
            http,
            grpc,
            repository: self.repository(settings),
            auth: server.auth_file.clone().map(AuthConfig::File),
            batching: BatcherConfig {
                threads: self.at_least_one("num_batch_threads", server.num_batch_threads, cores),
                inline_budget: Duration::from_micros(server.inline_budget_micros.unwrap_or(1000)),
            },
            #[cfg(feature = "tensorflow")]
            tensorflow: self.tensorflow(server, environment),
            #[cfg(feature = "onnx")]
            onnx: OnnxConfig {
                library: server.libonnxruntime.clone(),
                search: environment.library_folders("onnxruntime"),
                intra_op_threads: server.intra_op_threads.unwrap_or(0).max(0),
            },
            workers: self.workers(server, environment, cores),
            shutdown: ShutdownConfig {
                delay: span(server.shutdown_delay, Duration::ZERO),
                timeout: span(server.shutdown_timeout, Duration::from_secs(30)),
            },
        }
    }

    fn http(&mut self, server: &ServerSettings, cores: usize) -> HttpConfig {
        let host = server.host.as_deref().unwrap_or("127.0.0.1");
        let host = match host {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.parse().unwrap_or_else(|_| {
                self.mistake(format!("host: {host:?} is no IP address, such as 127.0.0.1 or ::"));
                IpAddr::V4(Ipv4Addr::LOCALHOST)
            }),
        };
        let max_body = server.max_body_bytes.map_or(64 << 20, |Bytes(size)| size);
        HttpConfig {
            host,
            port: server.http_port.unwrap_or(Port::Number(8500)).number(),
            more_ports: Vec::new(),
            threads: self.at_least_one("http_threads", server.http_threads, cores),
            max_body_bytes: self.at_least_one("max_body_bytes", Some(max_body), 1),
            request_timeout: self.some_time("request_timeout", server.request_timeout, 30),
            body_timeout: self.some_time("body_timeout", server.body_timeout, 60),
            header_timeout: self.some_time("header_timeout", server.header_timeout, 10),
            keep_alive: self.some_time("keep_alive", server.keep_alive, 75),
            max_connections: self.at_least_one("max_connections", server.max_connections, 25_000),
            cors: Cors::Off,
            request_ids: true,
            server_timing: server.server_timing.unwrap_or(false),
            tls: None,
            admin: self.admin(server, host),
        }
    }

    fn protocols(&mut self, server: &ServerSettings, max_body: usize) -> ProtocolsConfig {
        ProtocolsConfig {
            tfs: TfsConfig {
                exact: false,
                metrics_path: Some(METRICS_PATH.to_owned()),
                reload: false,
                tensor_content: true,
            },
            replaces_simple: false,
            sagemaker: self.sagemaker(server, max_body),
            console: server.console.unwrap_or(true),
        }
    }

    /// Whether the console may change what is served: not if unauthenticated clients on other
    /// machines could then do so.
    fn admin(&mut self, server: &ServerSettings, host: IpAddr) -> AdminAccess {
        let is_safe = host.is_loopback()
            || server.auth_file.is_some()
            || server.allow_unauthenticated_admin == Some(true);
        let allowed = server.console_admin.unwrap_or(is_safe);
        if allowed && !is_safe {
            self.mistake(format!(
                "console_admin: every client that reaches {host} could change what is served; set \
                 auth_file (`tensorserve auth add-user NAME` creates it), listen on 127.0.0.1, or \
                 set allow_unauthenticated_admin"
            ));
        }
        let hosts = server.console_hosts.clone().map_or(Vec::new(), |List(hosts)| hosts);
        AdminAccess { allowed, hosts }
    }

    fn sagemaker(&mut self, server: &ServerSettings, max_body: usize) -> SagemakerConfig {
        let compatibility = match server.sagemaker_compatibility.as_deref() {
            None | Some("2.19") => SagemakerCompatibility::Tf219,
            Some("2.20") => SagemakerCompatibility::Tf220,
            Some("extended") => SagemakerCompatibility::Extended,
            Some(other) => {
                let rule = "is not 2.19, 2.20 or extended";
                self.mistake(format!("sagemaker_compatibility: {other:?} {rule}"));
                SagemakerCompatibility::Tf219
            }
        };
        let default_model = server.sagemaker_default_model.clone();
        let async_input = server.sagemaker_async_input.clone().map_or(Vec::new(), |List(f)| f);
        let async_output = server.sagemaker_async_output.clone();
        if let Some(folder) = async_output.iter().find(|folder| !folder.is_absolute()) {
            let folder = folder.display();
            self.mistake(format!("sagemaker_async_output: {folder} is no absolute path"));
        }
        SagemakerConfig {
            compatibility,
            default_model,
            is_container: false,
            multi_model: None,
            async_input,
            async_output,
            max_input_bytes: max_body,
        }
    }

    fn grpc(&mut self, server: &ServerSettings, http: &HttpConfig) -> GrpcConfig {
        let max_message = server.grpc_max_message_bytes.map_or(64 << 20, |Bytes(size)| size);
        let port = server.grpc_port.unwrap_or(Port::Number(8501)).number();
        if port.is_some_and(|port| port != 0) && port == http.port {
            self.mistake("http_port and grpc_port must differ");
        }
        GrpcConfig {
            host: http.host,
            port,
            socket_path: server.grpc_socket_path.clone(),
            max_message_bytes: self.at_least_one("grpc_max_message_bytes", Some(max_message), 1),
            tls: None,
            health_service: true,
        }
    }

    fn repository(&mut self, settings: &Settings) -> RepositoryConfig {
        let server = &settings.server;
        let mut sources = Vec::new();
        let shared = self.model(&settings.each, &settings.batching, "");
        for path in &settings.paths {
            sources.push(SourceConfig { path: path.clone(), name: None, model: shared.clone() });
        }
        for model in &settings.models {
            let name = model.name.clone();
            let place = name.as_deref().map_or(String::new(), |n| format!("model {n:?}: "));
            let Some(path) = model.path.clone() else {
                self.mistake(format!("{place}path is missing"));
                continue;
            };
            if name.as_deref().is_some_and(|name| !is_model_name(name)) {
                self.mistake(format!("{place}a name must not be empty or contain / or :"));
            }
            let each = model.each.clone().or(&settings.each);
            let batching = model.batching.clone().or(&settings.batching);
            let mut checked = self.model(&each, &batching, &place);
            checked.labels.clone_from(&model.labels);
            sources.push(SourceConfig { path, name, model: checked });
        }
        self.no_duplicates(&sources);
        RepositoryConfig {
            sources,
            common: shared,
            poll_interval: Some(span(server.poll_interval, Duration::from_secs(1)))
                .filter(|interval| !interval.is_zero()),
            load_threads: self.at_least_one("load_threads", server.load_threads, 2),
            memory_limit: self.memory_limit(server.memory_limit),
            max_load_retries: server.max_load_retries.unwrap_or(5),
            load_retry_interval: span(server.load_retry_interval, Duration::from_secs(5)),
        }
    }

    fn memory_limit(&mut self, amount: Option<Amount>) -> Option<u64> {
        let percent = match amount? {
            Amount::Bytes(size) => return u64::try_from(size).ok(),
            Amount::Percent(percent) => u64::from(percent),
        };
        let Some(memory) = machine::memory() else {
            self.mistake("memory_limit: it is not known how much memory there is; give a size");
            return None;
        };
        Some(memory / 100 * percent)
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

    fn model(
        &mut self,
        each: &EachModelSettings,
        batching: &BatchSettings,
        place: &str,
    ) -> ModelConfig {
        let images = match each.images.as_deref() {
            None | Some("auto") => Images::Auto,
            Some("raw") => Images::Raw,
            Some("base64") => Images::Base64,
            Some(other) => {
                self.mistake(format!("{place}images: {other:?} is not auto, raw or base64"));
                Images::Auto
            }
        };
        let tags = each.tags.clone().map_or(vec!["serve".to_owned()], |List(tags)| tags);
        let named = each.platform.as_deref().map(super::platform);
        let platform = named.and_then(|known| {
            known.map_err(|why| self.mistake(format!("{place}platform: {why}"))).ok()
        });
        ModelConfig {
            platform,
            policy: self.policy(each.version_policy.as_deref(), place),
            transition: self.transition(each.version_transition.as_deref(), place),
            tags,
            labels: Default::default(),
            images,
            warm_up: each.warm_up.unwrap_or(true),
            warm_up_iterations: self.at_least_one("warm_up_iterations", each.warm_up_iterations, 1),
            log: self.log(each, place),
            batching: self.batching(batching, place),
            batching_file: false,
            code: each.code.clone(),
        }
    }

    fn workers(
        &mut self,
        server: &ServerSettings,
        environment: &Environment,
        cores: usize,
    ) -> WorkersConfig {
        let python = server.python.clone().unwrap_or_else(|| "python3".into());
        let cache = || environment.cache_folder().join("python");
        WorkersConfig {
            python: environment.program(python),
            count: self.at_least_one("handler_workers", server.handler_workers, cores.clamp(2, 8)),
            timeout: self.some_time("handler_timeout", server.handler_timeout, 30),
            memory_limit: server.handler_memory_limit.map(|Bytes(size)| size),
            environments: server.python_environments.clone().unwrap_or_else(cache),
        }
    }

    fn transition(&mut self, text: Option<&str>, place: &str) -> VersionTransition {
        match text {
            None | Some("availability_preserving") => VersionTransition::AvailabilityPreserving,
            Some("resource_preserving") => VersionTransition::ResourcePreserving,
            Some(other) => {
                self.mistake(format!(
                    "{place}version_transition: {other:?} is not availability_preserving or \
                     resource_preserving"
                ));
                VersionTransition::AvailabilityPreserving
            }
        }
    }

    fn log(&mut self, each: &EachModelSettings, place: &str) -> LogConfig {
        let sampling_rate = each.request_log_sampling_rate.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&sampling_rate) {
            self.mistake(format!("{place}request_log_sampling_rate must be from 0 to 1"));
        }
        let max_bytes = each.request_log_file_bytes.map_or(64 << 20, |Bytes(size)| size);
        LogConfig {
            prefix: each.request_log.clone(),
            sampling_rate,
            max_file_bytes: u64::try_from(max_bytes).unwrap_or(u64::MAX),
        }
    }

    fn policy(&mut self, text: Option<&str>, place: &str) -> VersionPolicy {
        let text = text.unwrap_or("latest");
        let (kind, argument) = match text.split_once(':') {
            Some((kind, argument)) => (kind, Some(argument)),
            None => (text, None),
        };
        let policy = match (kind, argument) {
            ("latest", None) => Some(VersionPolicy::Latest(1)),
            ("latest", Some(n)) => n.parse().ok().filter(|&n| n > 0).map(VersionPolicy::Latest),
            ("all", None) => Some(VersionPolicy::All),
            ("specific", Some(list)) => {
                let versions = list.parse().ok().map(|List(versions)| versions);
                versions.filter(|v| !v.is_empty()).map(VersionPolicy::Specific)
            }
            _ => None,
        };
        policy.unwrap_or_else(|| {
            self.mistake(format!(
                "{place}version_policy: {text:?} is not latest, latest:N, all or specific:1,2"
            ));
            VersionPolicy::Latest(1)
        })
    }

    fn batching(&mut self, batching: &BatchSettings, place: &str) -> BatchConfig {
        let config = BatchConfig::unchecked(&BatchParameters {
            mode: batching.batching.as_deref().map(|mode| match mode {
                "auto" => BatchMode::Auto,
                "on" | "true" => BatchMode::On,
                "off" | "false" => BatchMode::Off,
                other => {
                    self.mistake(format!("{place}batching: {other:?} is not auto, on or off"));
                    BatchMode::Off
                }
            }),
            ..batching.parameters()
        });
        for mistake in config.mistakes() {
            self.mistake(format!("{place}{mistake}"));
        }
        config
    }

    #[cfg(feature = "tensorflow")]
    fn tensorflow(
        &mut self,
        server: &ServerSettings,
        environment: &Environment,
    ) -> TensorFlowConfig {
        let fraction = server.gpu_memory_fraction.unwrap_or(0.0);
        if !(0.0..=1.0).contains(&fraction) {
            self.mistake("gpu_memory_fraction must be from 0 to 1");
        }
        TensorFlowConfig {
            library: server.libtensorflow.clone(),
            search: environment.library_folders("tensorflow"),
            custom_ops: server.custom_op_paths.clone().map_or(Vec::new(), |List(paths)| paths),
            log_level: environment.runtime_log_level(server.log_level.as_deref()),
            intra_op_threads: server.intra_op_threads.unwrap_or(0).max(0),
            inter_op_threads: server.inter_op_threads.unwrap_or(0).max(0),
            gpu: GpuConfig {
                memory_fraction: fraction,
                allow_growth: server.gpu_allow_growth.unwrap_or(true),
                visible_devices: server.gpu_visible_devices.clone().unwrap_or_default(),
            },
        }
    }

    fn at_least_one(&mut self, name: &str, value: Option<usize>, default: usize) -> usize {
        if value == Some(0) {
            self.mistake(format!("{name} must be at least 1"));
        }
        value.unwrap_or(default)
    }

    fn some_time(&mut self, name: &str, value: Option<Span>, default: u64) -> Duration {
        let value = span(value, Duration::from_secs(default));
        if value.is_zero() {
            self.mistake(format!("{name} must be more than 0"));
        }
        value
    }
}

fn span(value: Option<Span>, default: Duration) -> Duration {
    value.map_or(default, |Span(value)| value)
}

#[cfg(test)]
mod tests {
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
    fn the_console_changes_nothing_for_just_anybody() {
        let console = |host: &str, configure: &dyn Fn(&mut ServerSettings)| {
            let mut settings = Settings::default();
            settings.server.host = Some(host.to_owned());
            configure(&mut settings.server);
            checked(settings).map(|config| config.http.admin.allowed)
        };
        assert_eq!(console("127.0.0.1", &|_| ()).ok(), Some(true));
        assert_eq!(console("::1", &|_| ()).ok(), Some(true));
        assert_eq!(console("0.0.0.0", &|_| ()).ok(), Some(false));
        let asks = |server: &mut ServerSettings| server.auth_file = Some("auth.toml".into());
        assert_eq!(console("0.0.0.0", &asks).ok(), Some(true));
        let wants = |server: &mut ServerSettings| server.console_admin = Some(true);
        let error = console("0.0.0.0", &wants).expect_err("open to all");
        for way in ["auth_file", "127.0.0.1", "allow_unauthenticated_admin"] {
            assert!(error.message().contains(way), "{error}");
        }
        let insists = |server: &mut ServerSettings| {
            server.console_admin = Some(true);
            server.allow_unauthenticated_admin = Some(true);
        };
        assert_eq!(console("0.0.0.0", &insists).ok(), Some(true));
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
        settings.batching.allowed_batch_sizes = Some(List(vec![4, 2]));
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
        let config = checked(settings.clone()).expect("gRPC is left");
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
