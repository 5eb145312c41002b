//! The variables of SageMaker's TensorFlow Serving container, with its names, defaults and errors.

use std::str::FromStr;
use std::thread::available_parallelism;
use std::time::Duration;

use crate::config::environment::Environment;
use crate::config::units::{ByteSize, HumanDuration, Port};
use crate::config::{BatchSettings, Settings};

/// The values of the variables, checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SagemakerVariables {
    /// Their settings, with the container's defaults.
    pub settings: Settings,
    /// Models are loaded and unloaded by request.
    pub multi_model: bool,
    /// Time limit for a model that is loaded by request to be ready.
    pub load_timeout: Duration,
    /// A second HTTP port, that of TensorFlow Serving in the container.
    pub rest_port: u16,
    /// The port for gRPC.
    pub grpc_port: u16,
    /// Batching in the container's form, where it is on.
    pub batching: Option<String>,
    /// Variables without effect, for the log.
    pub notes: Vec<String>,
}

/// The variable that names the ports of TensorFlow Serving in the container.
pub const SAFE_PORTS: &str = "SAGEMAKER_SAFE_PORT_RANGE";

/// The container has no limit for bodies.
const MAX_BODY_BYTES: usize = i32::MAX as usize;

/// Variables for processes of the original container that do not exist here.
const WITHOUT_EFFECT: [(&str, &str); 2] = [
    ("SAGEMAKER_GUNICORN_LOGLEVEL", "there is no gunicorn; use SAGEMAKER_TFS_NGINX_LOGLEVEL"),
    ("SAGEMAKER_TFS_INSTANCE_COUNT", "one process uses all processors and GPUs"),
];

/// Variables that are read here, are for programs of the user, or are known to have no effect.
const KNOWN: [&str; 37] = [
    "SAGEMAKER_BATCH",
    "SAGEMAKER_BATCH_STRATEGY",
    "SAGEMAKER_BIND_TO_PORT",
    "SAGEMAKER_CONTAINER_LOG_LEVEL",
    "SAGEMAKER_GUNICORN_THREADS",
    "SAGEMAKER_GUNICORN_TIMEOUT_SECONDS",
    "SAGEMAKER_GUNICORN_WORKERS",
    "SAGEMAKER_GUNICORN_WORKER_CLASS",
    "SAGEMAKER_MANAGED_WARMPOOL_CACHE_DIRECTORY",
    "SAGEMAKER_MAX_CONCURRENT_TRANSFORMS",
    "SAGEMAKER_MAX_PAYLOAD_IN_MB",
    "SAGEMAKER_MODEL_DIR",
    "SAGEMAKER_MODEL_SERVER_TIMEOUT",
    "SAGEMAKER_MODEL_SERVER_WORKERS",
    "SAGEMAKER_MULTI_MODEL",
    "SAGEMAKER_MULTI_MODEL_UNIVERSAL_BUCKET",
    "SAGEMAKER_MULTI_MODEL_UNIVERSAL_PREFIX",
    "SAGEMAKER_NGINX_PROXY_READ_TIMEOUT_SECONDS",
    "SAGEMAKER_PROGRAM",
    "SAGEMAKER_REGION",
    "SAGEMAKER_REQUIREMENTS",
    SAFE_PORTS,
    "SAGEMAKER_SUBMIT_DIRECTORY",
    "SAGEMAKER_TFS_BATCH_TIMEOUT_MICROS",
    "SAGEMAKER_TFS_DEFAULT_MODEL_NAME",
    "SAGEMAKER_TFS_ENABLE_BATCHING",
    "SAGEMAKER_TFS_FRACTIONAL_GPU_MEM_MARGIN",
    "SAGEMAKER_TFS_INTER_OP_PARALLELISM",
    "SAGEMAKER_TFS_INTRA_OP_PARALLELISM",
    "SAGEMAKER_TFS_MAX_BATCH_SIZE",
    "SAGEMAKER_TFS_MAX_ENQUEUED_BATCHES",
    "SAGEMAKER_TFS_NGINX_LOGLEVEL",
    "SAGEMAKER_TFS_NUM_BATCH_THREADS",
    "SAGEMAKER_TFS_VERSION",
    "SAGEMAKER_TFS_WAIT_TIME_SECONDS",
    "SAGEMAKER_USE_NGINX",
    "SAGEMAKER_WORKER_CLASS",
];

/// Whether any variable of SageMaker is set.
pub(super) fn are_set(environment: &Environment) -> bool {
    environment.of_sagemaker().next().is_some()
}

/// Reads the variables. The mistakes in them, in the container's words where it has any, are among
/// those of the settings.
#[must_use]
pub fn read(environment: &Environment) -> SagemakerVariables {
    let mut reader = Reader { environment, mistakes: Vec::new() };
    let mut variables = reader.variables();
    let mistakes = &mut variables.settings.reading.mistakes;
    reader.mistakes.iter().for_each(|mistake| mistakes.add(mistake));
    variables
}

struct Reader<'a> {
    environment: &'a Environment,
    mistakes: Vec<String>,
}

impl Reader<'_> {
    fn variables(&mut self) -> SagemakerVariables {
        let multi_model = self.switch("SAGEMAKER_MULTI_MODEL");
        let mut variables = SagemakerVariables {
            settings: self.settings(),
            multi_model,
            load_timeout: self.load_timeout(),
            notes: self.notes(),
            ..SagemakerVariables::default()
        };
        self.ports(&mut variables);
        self.gpu(&mut variables.settings);
        if self.switch("SAGEMAKER_TFS_ENABLE_BATCHING") {
            self.batching(&mut variables);
        }
        variables
    }

    /// The value of a variable; an empty variable is not set.
    fn text(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(str::trim).filter(|value| !value.is_empty())
    }

    fn number<T: FromStr>(&mut self, name: &str, what: &str) -> Option<T> {
        let text = self.text(name)?.to_owned();
        let number = text.parse().ok();
        if number.is_none() {
            self.mistakes.push(format!("{name}: {text:?} is not {what}"));
        }
        number
    }

    fn count(&mut self, name: &str) -> Option<usize> {
        self.number(name, "a whole number of 0 or more")
    }

    fn seconds(&mut self, name: &str) -> Option<Duration> {
        self.number(name, "a whole number of seconds").map(Duration::from_secs)
    }

    fn switch(&mut self, name: &str) -> bool {
        let value = self.text(name).unwrap_or("false").to_ascii_lowercase();
        if !matches!(value.as_str(), "true" | "false") {
            self.mistakes.push(format!("{name} must be 'true' or 'false'; it is {value:?}"));
        }
        value == "true"
    }

    fn settings(&mut self) -> Settings {
        let mut settings = Settings::default();
        let server = &mut settings.server;
        server.host = Some("::".to_owned());
        let port = self.number("SAGEMAKER_BIND_TO_PORT", "a port (0 to 65535)");
        server.http_port = Some(Port::Number(port.unwrap_or(8080)));
        server.max_body_bytes = Some(ByteSize(MAX_BODY_BYTES));
        server.grpc_max_message_bytes = Some(ByteSize(MAX_BODY_BYTES));
        let gunicorn_timeout = self.seconds("SAGEMAKER_GUNICORN_TIMEOUT_SECONDS");
        let request_timeout = self.request_timeout(gunicorn_timeout);
        server.request_timeout = Some(HumanDuration(request_timeout));
        // SageMaker sends SIGKILL 30 s after SIGTERM.
        server.shutdown_timeout = Some(HumanDuration(Duration::from_secs(25)));
        // As the container runs TensorFlow Serving.
        server.max_load_retries = Some(0);
        // The unpacked models do not change.
        server.poll_interval = Some(HumanDuration(Duration::ZERO));
        server.log_level = self.log_level();
        server.sagemaker_default_model =
            self.text("SAGEMAKER_TFS_DEFAULT_MODEL_NAME").map(str::to_owned);
        let operations = ["INTRA", "INTER"].map(|kind| {
            let name = format!("SAGEMAKER_TFS_{kind}_OP_PARALLELISM");
            self.number::<i32>(&name, "a whole number").filter(|&threads| threads > 0)
        });
        [server.intra_op_threads, server.inter_op_threads] = operations;
        server.handler_workers =
            self.count("SAGEMAKER_GUNICORN_WORKERS").filter(|&workers| workers > 0);
        let overlaps = self.overlaps_calls();
        server.handler_threads = self.handler_threads(overlaps);
        // A worker of gunicorn whose calls wait is not silent, and so only nginx's timeout applies.
        server.handler_timeout = Some(HumanDuration(if overlaps {
            request_timeout
        } else {
            gunicorn_timeout.unwrap_or(Duration::from_secs(30)).max(Duration::from_secs(1))
        }));
        settings
    }

    /// Whether gunicorn's workers of this class serve other calls while one waits.
    fn overlaps_calls(&self) -> bool {
        let threads = self.text("SAGEMAKER_GUNICORN_THREADS").unwrap_or("1");
        // With several threads, gunicorn's sync means gthread.
        self.text("SAGEMAKER_GUNICORN_WORKER_CLASS") != Some("sync") || threads != "1"
    }

    /// The number of threads. One is also the container's default, with which its gevent workers
    /// overlap any number of calls.
    fn handler_threads(&mut self, overlaps: bool) -> Option<usize> {
        let class = self.text("SAGEMAKER_GUNICORN_WORKER_CLASS");
        let has_threads = matches!(class, Some("sync" | "gthread"));
        let threads = self.count("SAGEMAKER_GUNICORN_THREADS").filter(|&threads| threads > 0);
        match threads {
            Some(threads @ 2..) => Some(threads),
            _ if has_threads || !overlaps => Some(1),
            _ => None,
        }
    }

    /// The timeout of nginx, or that of gunicorn if it is longer.
    fn request_timeout(&mut self, gunicorn: Option<Duration>) -> Duration {
        let nginx = self.seconds("SAGEMAKER_NGINX_PROXY_READ_TIMEOUT_SECONDS");
        let time = nginx.unwrap_or(Duration::from_secs(60)).max(gunicorn.unwrap_or_default());
        time.max(Duration::from_secs(1))
    }

    /// The log level for a level of nginx.
    fn log_level(&mut self) -> Option<String> {
        let level = self.text("SAGEMAKER_TFS_NGINX_LOGLEVEL")?.to_ascii_lowercase();
        let ours = match level.as_str() {
            "debug" => "debug",
            "info" | "notice" => "info",
            "warn" => "warn",
            "error" | "crit" | "alert" | "emerg" => "error",
            _ => {
                self.mistakes.push(format!(
                    "SAGEMAKER_TFS_NGINX_LOGLEVEL: {level:?} is not debug, info, notice, warn, \
                     error, crit, alert or emerg"
                ));
                return None;
            }
        };
        Some(ours.to_owned())
    }

    fn instances(&mut self) -> usize {
        self.count("SAGEMAKER_TFS_INSTANCE_COUNT").unwrap_or(1).max(1)
    }

    /// How long the container waits for a model that is loaded by request.
    fn load_timeout(&mut self) -> Duration {
        let given = self.seconds("SAGEMAKER_TFS_WAIT_TIME_SECONDS").filter(|time| !time.is_zero());
        given.unwrap_or(Duration::from_secs(55))
    }

    fn ports(&mut self, variables: &mut SagemakerVariables) {
        (variables.grpc_port, variables.rest_port) = (9000, 8501);
        variables.settings.server.grpc_port = Some(Port::Number(9000));
        let instances = self.instances();
        let Some(range) = self.text(SAFE_PORTS).map(str::to_owned) else {
            return;
        };
        let bounds = range.split_once('-').and_then(|(low, high)| {
            Some((low.trim().parse::<u16>().ok()?, high.trim().parse::<u16>().ok()?))
        });
        let Some((low, high)) = bounds else {
            self.mistakes
                .push(format!("{SAFE_PORTS}: {range:?} is not LOW-HIGH, such as 9000-9999"));
            return;
        };
        let needed = usize::from(low).saturating_add(instances.saturating_mul(2));
        if needed > usize::from(high) {
            self.mistakes.push(format!("not enough ports available in {SAFE_PORTS} ({range})"));
            return;
        }
        (variables.grpc_port, variables.rest_port) = (low, low.saturating_add(1));
        variables.settings.server.grpc_port = Some(Port::Number(low));
    }

    /// Several instances leave a margin of the GPU memory; one does so only if the margin is set.
    fn gpu(&mut self, settings: &mut Settings) {
        let name = "SAGEMAKER_TFS_FRACTIONAL_GPU_MEM_MARGIN";
        let margin: Option<f64> = self.number(name, "a number from 0 to 1");
        if margin.is_some_and(|margin| !(0.0..1.0).contains(&margin)) {
            self.mistakes.push(format!("{name} must be 0 or more, and less than 1"));
            return;
        }
        if self.instances() > 1 || margin.is_some() {
            settings.server.gpu_memory_fraction = Some(1.0 - margin.unwrap_or(0.2));
        }
    }

    fn batching(&mut self, variables: &mut SagemakerVariables) {
        let cores = available_parallelism().map_or(1, std::num::NonZero::get);
        let is_transform = self.environment.get("SAGEMAKER_BATCH").is_some();
        let enqueued = if is_transform { 100_000_000 } else { cores };
        let mut defaulted = Vec::new();
        let mut value = |name: &'static str, default: usize| {
            let variable = format!("SAGEMAKER_TFS_{}", name.to_ascii_uppercase());
            if self.text(&variable).is_none() {
                defaulted.push(format!("{variable} (default: {default})"));
            }
            self.count(&variable).unwrap_or(default)
        };
        let max_batch_size = value("max_batch_size", 8);
        let timeout = value("batch_timeout_micros", 1000);
        let threads = value("num_batch_threads", cores);
        let max_enqueued = value("max_enqueued_batches", enqueued);
        variables.settings.batching = BatchSettings {
            batching: Some("on".to_owned()),
            max_batch_size: Some(max_batch_size),
            batch_timeout_micros: Some(u64::try_from(timeout).unwrap_or(u64::MAX)),
            max_enqueued_batches: Some(max_enqueued),
            ..BatchSettings::default()
        };
        variables.settings.server.num_batch_threads = Some(threads);
        variables.batching = Some(format!(
            "max_batch_size {{ value: {max_batch_size} }}\n\
             batch_timeout_micros {{ value: {timeout} }}\n\
             num_batch_threads {{ value: {threads} }}\n\
             max_enqueued_batches {{ value: {max_enqueued} }}"
        ));
        if !defaulted.is_empty() {
            let defaulted = defaulted.join(", ");
            variables.notes.push(format!("batching is on, without {defaulted}"));
        }
    }

    /// The variables that are set and have no effect.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for name in self.environment.of_sagemaker() {
            if let Some((_, why)) = WITHOUT_EFFECT.iter().find(|(known, _)| *known == name) {
                notes.push(format!("{name} has no effect: {why}"));
            } else if !KNOWN.contains(&name) {
                notes.push(format!("{name} is unknown and has no effect"));
            }
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::error::Result;

    fn of(pairs: &[(&str, &str)]) -> Result<SagemakerVariables> {
        let variables = read(&Environment::of(pairs));
        variables.settings.reading.mistakes.clone().result(variables)
    }

    #[test]
    fn defaults_are_the_containers() {
        let variables = of(&[]).expect("valid");
        let server = &variables.settings.server;
        assert_eq!(server.http_port, Some(Port::Number(8080)));
        assert_eq!(server.host.as_deref(), Some("::"));
        assert_eq!(server.request_timeout, Some(HumanDuration(Duration::from_secs(60))));
        assert_eq!((variables.grpc_port, variables.rest_port), (9000, 8501));
        assert!(!variables.multi_model && variables.batching.is_none());
        assert_eq!(variables.settings.batching, BatchSettings::default());
        assert!(variables.notes.is_empty(), "{:?}", variables.notes);
    }

    #[test]
    fn every_variable_has_its_effect() {
        let variables = of(&[
            ("SAGEMAKER_BIND_TO_PORT", "8081"),
            ("SAGEMAKER_SAFE_PORT_RANGE", "9100-9199"),
            ("SAGEMAKER_TFS_DEFAULT_MODEL_NAME", "m"),
            ("SAGEMAKER_TFS_NGINX_LOGLEVEL", "crit"),
            ("SAGEMAKER_NGINX_PROXY_READ_TIMEOUT_SECONDS", "63"),
            ("SAGEMAKER_GUNICORN_TIMEOUT_SECONDS", "90"),
            ("SAGEMAKER_GUNICORN_WORKERS", "3"),
            ("SAGEMAKER_GUNICORN_THREADS", "20"),
            ("SAGEMAKER_TFS_INTRA_OP_PARALLELISM", "2"),
            ("SAGEMAKER_TFS_INTER_OP_PARALLELISM", "0"),
            ("SAGEMAKER_TFS_FRACTIONAL_GPU_MEM_MARGIN", "0.25"),
            ("SAGEMAKER_TFS_WAIT_TIME_SECONDS", "7"),
            ("SAGEMAKER_MULTI_MODEL", "True"),
        ])
        .expect("valid");
        let server = &variables.settings.server;
        assert_eq!(server.http_port, Some(Port::Number(8081)));
        assert_eq!((variables.grpc_port, variables.rest_port), (9100, 9101));
        assert_eq!(server.sagemaker_default_model.as_deref(), Some("m"));
        assert_eq!(server.log_level.as_deref(), Some("error"));
        assert_eq!(server.request_timeout, Some(HumanDuration(Duration::from_secs(90))));
        assert_eq!(server.handler_timeout, Some(HumanDuration(Duration::from_secs(90))));
        assert_eq!(server.handler_workers, Some(3));
        assert_eq!(server.handler_threads, Some(20));
        assert_eq!((server.intra_op_threads, server.inter_op_threads), (Some(2), None));
        assert_eq!(server.gpu_memory_fraction, Some(0.75));
        assert_eq!(variables.load_timeout, Duration::from_secs(7));
        assert!(variables.multi_model);
    }

    #[test]
    fn the_worker_class_decides_how_calls_overlap() {
        let of = |class: &str, threads: &str| {
            let variables = of(&[
                ("SAGEMAKER_GUNICORN_WORKER_CLASS", class),
                ("SAGEMAKER_GUNICORN_THREADS", threads),
                ("SAGEMAKER_GUNICORN_TIMEOUT_SECONDS", "20"),
            ]);
            let server = variables.expect("valid").settings.server;
            let timeout = server.handler_timeout.map(|HumanDuration(time)| time.as_secs());
            (server.handler_threads, timeout)
        };
        // nginx's timeout is 60 s.
        assert_eq!(of("", ""), (None, Some(60)));
        assert_eq!(of("gevent", "1"), (None, Some(60)));
        assert_eq!(of("gevent", "4"), (Some(4), Some(60)));
        assert_eq!(of("gthread", "4"), (Some(4), Some(60)));
        assert_eq!(of("gthread", "1"), (Some(1), Some(60)));
        assert_eq!(of("sync", ""), (Some(1), Some(20)));
        assert_eq!(of("sync", "2"), (Some(2), Some(60)));
    }

    #[test]
    fn batching_is_printed_in_the_containers_form() {
        let variables = of(&[
            ("SAGEMAKER_TFS_ENABLE_BATCHING", "TRUE"),
            ("SAGEMAKER_TFS_MAX_BATCH_SIZE", "16"),
            ("SAGEMAKER_TFS_BATCH_TIMEOUT_MICROS", "500"),
            ("SAGEMAKER_TFS_NUM_BATCH_THREADS", "3"),
            ("SAGEMAKER_BATCH", "true"),
        ])
        .expect("valid");
        let text = "max_batch_size { value: 16 }\nbatch_timeout_micros { value: 500 }\n\
                    num_batch_threads { value: 3 }\nmax_enqueued_batches { value: 100000000 }";
        assert_eq!(variables.batching.as_deref(), Some(text));
        assert_eq!(variables.settings.server.num_batch_threads, Some(3));
        assert_eq!(variables.settings.batching.batching.as_deref(), Some("on"));
        let note =
            "batching is on, without SAGEMAKER_TFS_MAX_ENQUEUED_BATCHES (default: 100000000)";
        assert_eq!(variables.notes, [note]);
    }

    #[test]
    fn mistakes_are_reported_together() {
        let error = of(&[
            ("SAGEMAKER_TFS_ENABLE_BATCHING", "yes"),
            ("SAGEMAKER_MULTI_MODEL", "1"),
            ("SAGEMAKER_BIND_TO_PORT", "80800"),
            ("SAGEMAKER_TFS_FRACTIONAL_GPU_MEM_MARGIN", "1"),
            ("SAGEMAKER_TFS_NGINX_LOGLEVEL", "loud"),
            ("SAGEMAKER_SAFE_PORT_RANGE", "9000-9001"),
            ("SAGEMAKER_TFS_WAIT_TIME_SECONDS", "-1"),
        ])
        .expect_err("wrong");
        for part in [
            "SAGEMAKER_TFS_ENABLE_BATCHING must be 'true' or 'false'",
            "SAGEMAKER_MULTI_MODEL must be 'true' or 'false'",
            "SAGEMAKER_BIND_TO_PORT: \"80800\" is not a port",
            "SAGEMAKER_TFS_FRACTIONAL_GPU_MEM_MARGIN must be",
            "SAGEMAKER_TFS_NGINX_LOGLEVEL: \"loud\" is not",
            "not enough ports available in SAGEMAKER_SAFE_PORT_RANGE (9000-9001)",
            "SAGEMAKER_TFS_WAIT_TIME_SECONDS: \"-1\" is not",
        ] {
            assert!(error.message().contains(part), "{part:?} is not in: {error}");
        }
        // Two ports for each instance, and one more.
        let two = ("SAGEMAKER_TFS_INSTANCE_COUNT", "2");
        assert!(of(&[two, ("SAGEMAKER_SAFE_PORT_RANGE", "9000-9003")]).is_err());
        assert!(of(&[two, ("SAGEMAKER_SAFE_PORT_RANGE", "9000-9004")]).is_ok());
        assert!(of(&[("SAGEMAKER_SAFE_PORT_RANGE", "9000")]).is_err());
    }

    #[test]
    fn variables_without_effect_are_logged() {
        let notes = of(&[
            ("SAGEMAKER_PROGRAM", "inference.py"),
            ("SAGEMAKER_GUNICORN_LOGLEVEL", "info"),
            ("SAGEMAKER_TFS_MAX_BATCH_SZIE", "3"),
        ])
        .expect("valid")
        .notes;
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].starts_with("SAGEMAKER_GUNICORN_LOGLEVEL has no effect"));
        assert!(notes[1].starts_with("SAGEMAKER_TFS_MAX_BATCH_SZIE is unknown"));
    }
}
