//! TensorFlow Serving's flags, and the parser for its command lines.
//!
//! Its rules: `--flag=value`, a bool also as `--flag`; the last occurrence is used; an argument that
//! is not a flag is reported and ignored; a value that cannot be parsed is an error.

use std::collections::BTreeMap;

use tensorserve_tensor::error::{Error, Result};

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagType {
    Bool,
    Int,
    Float,
    Text,
}

/// A flag.
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) kind: FlagType,
    /// As `--help` shows it.
    pub(super) default: &'static str,
    pub(super) help: &'static str,
    /// Why it has no effect here, if it has none.
    pub(super) idle: Option<&'static str>,
}

const fn flag(
    name: &'static str,
    kind: FlagType,
    default: &'static str,
    help: &'static str,
) -> Flag {
    Flag { name, kind, default, help, idle: None }
}

const fn idle(
    name: &'static str,
    kind: FlagType,
    default: &'static str,
    why: &'static str,
) -> Flag {
    Flag { name, kind, default, help: "accepted, without effect", idle: Some(why) }
}

const TFLITE: &str = "TensorFlow Lite models are not served";
const POOL: &str = "models are loaded and unloaded by the same threads, see --num_load_threads";
const XLA: &str = "set TF_XLA_FLAGS instead, which libtensorflow reads";

use FlagType::{Bool, Float, Int, Text};

/// All flags, in TensorFlow Serving's order.
pub(super) const FLAGS: &[Flag] = &[
    flag("port", Int, "8500", "TCP port for gRPC; 0 means none"),
    flag("grpc_socket_path", Text, "", "UNIX socket for gRPC; none if empty"),
    flag("rest_api_port", Int, "0", "port for HTTP; 0 means no HTTP"),
    flag("rest_api_num_threads", Int, "one per core", "threads that serve HTTP"),
    flag(
        "rest_api_timeout_in_ms",
        Int,
        "30000",
        "time limit for answering a request, in milliseconds",
    ),
    flag("rest_api_enable_cors_support", Bool, "false", "send CORS headers"),
    flag(
        "enable_batching",
        Bool,
        "false",
        "batch requests, with the parameters of --batching_parameters_file",
    ),
    idle(
        "allow_version_labels_for_unavailable_models",
        Bool,
        "false",
        "labels may always name versions that are not loaded yet",
    ),
    flag("batching_parameters_file", Text, "", "BatchingParameters as text protobuf"),
    flag(
        "enable_per_model_batching_parameters",
        Bool,
        "false",
        "read batching_params.pbtxt from the directory of each version",
    ),
    flag("model_config_file", Text, "", "ModelServerConfig as text protobuf"),
    flag(
        "model_config_file_poll_wait_seconds",
        Int,
        "0",
        "interval for rereading that file, in seconds; 0 means never",
    ),
    flag("model_name", Text, "default", "name of the model at --model_base_path"),
    flag("model_base_path", Text, "", "directory of the versions of the model"),
    flag(
        "num_load_threads",
        Int,
        "2",
        "maximum number of concurrent loads and unloads; 0 means the default",
    ),
    idle("num_unload_threads", Int, "0", POOL),
    flag("max_num_load_retries", Int, "5", "number of retries after a failed load"),
    flag(
        "load_retry_interval_micros",
        Int,
        "5000000",
        "delay before the first retry, in microseconds; it doubles",
    ),
    flag(
        "file_system_poll_wait_seconds",
        Int,
        "1",
        "interval for scanning for versions, in seconds; 0 scans once, at startup",
    ),
    idle("flush_filesystem_caches", Bool, "true", "the operating system manages its caches"),
    flag("tensorflow_session_parallelism", Int, "0", "threads within and between operations"),
    flag("tensorflow_intra_op_parallelism", Int, "0", "threads within one operation"),
    flag("tensorflow_inter_op_parallelism", Int, "0", "threads between operations"),
    flag("tensorflow_session_config_file", Text, "", "ConfigProto as text protobuf"),
    idle(
        "use_alts_credentials",
        Bool,
        "false",
        "ALTS is not supported; gRPC is not encrypted by it",
    ),
    flag("ssl_config_file", Text, "", "SSLConfig as text protobuf, for gRPC"),
    flag(
        "rest_api_ssl_config_file",
        Text,
        "",
        "SSLConfig as text protobuf, for HTTP; not in TensorFlow Serving",
    ),
    flag("platform_config_file", Text, "", "PlatformConfigMap as text protobuf"),
    flag(
        "per_process_gpu_memory_fraction",
        Float,
        "0",
        "maximum fraction of each GPU's memory to allocate; 0 means all",
    ),
    flag("saved_model_tags", Text, "serve", "tags of the graph to load, separated by commas"),
    idle("grpc_channel_arguments", Text, "", "the settings are of another gRPC library"),
    idle("grpc_max_threads", Int, "0", "gRPC runs on the threads of the server"),
    flag(
        "enable_model_warmup",
        Bool,
        "true",
        "run recorded requests and synthetic inputs before a version is ready",
    ),
    flag(
        "num_request_iterations_for_warmup",
        Int,
        "0",
        "number of times to run each recorded request; 0 means once",
    ),
    flag("version", Bool, "false", "print the version and exit"),
    flag("monitoring_config_file", Text, "", "MonitoringConfig as text protobuf"),
    idle(
        "remove_unused_fields_from_bundle_metagraph",
        Bool,
        "true",
        "unused fields of a graph are never kept",
    ),
    idle("prefer_tflite_model", Bool, "false", TFLITE),
    idle("num_tflite_pools", Int, "0", TFLITE),
    idle("num_tflite_interpreters_per_pool", Int, "1", TFLITE),
    idle("enable_signature_method_name_check", Bool, "false", "method names are not checked"),
    idle("xla_cpu_compilation_enabled", Bool, "false", XLA),
    idle("xla_gpu_compilation_enabled", Bool, "false", XLA),
    idle("enable_profiler", Bool, "true", "there is no profiler service"),
    idle("thread_pool_factory_config_file", Text, "", "thread pools cannot be replaced"),
    idle("mixed_precision", Text, "", "graphs run in the precision they were saved with"),
    idle("skip_initialize_tpu", Bool, "false", "there is no TPU support"),
    flag("enable_grpc_healthcheck_service", Bool, "false", "serve grpc.health.v1.Health"),
    flag(
        "enable_serialization_as_tensor_content",
        Bool,
        "false",
        "send tensors over gRPC as raw bytes",
    ),
];

/// A command line.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Flags {
    given: BTreeMap<&'static str, FlagValue>,
    /// Arguments that are not flags.
    pub(super) unknown: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum FlagValue {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

impl Flags {
    /// Parses arguments (without the program's name).
    ///
    /// # Errors
    /// For a value that is not of its flag's type.
    pub(super) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut flags = Flags::default();
        for argument in arguments {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (argument.as_str(), None),
            };
            let name = name.strip_prefix("--").unwrap_or_default();
            let flag = FLAGS.iter().find(|flag| flag.name == name);
            let text = match (flag, value) {
                (Some(_), Some(value)) => value,
                (Some(Flag { kind: Bool, .. }), None) => "true",
                _ => {
                    flags.unknown.push(argument);
                    continue;
                }
            };
            if let Some(flag) = flag {
                flags.given.insert(flag.name, value_of(flag, text)?);
            }
        }
        Ok(flags)
    }

    /// The flags on this command line that have no effect here, and why.
    pub(super) fn idle(&self) -> Vec<String> {
        let idle = FLAGS.iter().filter(|flag| self.given.contains_key(flag.name));
        let line = |flag: &Flag| flag.idle.map(|why| format!("--{} is ignored: {why}", flag.name));
        idle.filter_map(line).collect()
    }

    /// Whether the bool `name` is set; `false` without it.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.bool(name).unwrap_or(false)
    }

    pub(super) fn bool(&self, name: &str) -> Option<bool> {
        match self.given.get(name)? {
            FlagValue::Bool(value) => Some(*value),
            FlagValue::Int(_) | FlagValue::Float(_) | FlagValue::Text(_) => None,
        }
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        match self.given.get(name)? {
            FlagValue::Int(value) => Some(*value),
            FlagValue::Bool(_) | FlagValue::Float(_) | FlagValue::Text(_) => None,
        }
    }

    pub(super) fn float(&self, name: &str) -> Option<f64> {
        match self.given.get(name)? {
            FlagValue::Float(value) => Some(*value),
            FlagValue::Bool(_) | FlagValue::Int(_) | FlagValue::Text(_) => None,
        }
    }

    /// The text of `name`; `None` also if it is empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.given.get(name)? {
            FlagValue::Text(value) => Some(value.as_str()).filter(|text| !text.is_empty()),
            FlagValue::Bool(_) | FlagValue::Int(_) | FlagValue::Float(_) => None,
        }
    }
}

fn value_of(flag: &Flag, text: &str) -> Result<FlagValue> {
    let value = match flag.kind {
        Bool => text.parse().ok().map(FlagValue::Bool),
        Int => text.trim().parse().ok().map(FlagValue::Int),
        Float => text.trim().parse().ok().map(FlagValue::Float),
        Text => Some(FlagValue::Text(text.to_owned())),
    };
    let name = flag.name;
    value.ok_or_else(|| {
        let want = match flag.kind {
            Bool => "true or false",
            Int => "a number",
            Float => "a fraction",
            Text => "text",
        };
        Error::invalid(format!(
            "Couldn't interpret value {text:?} for flag {name}: it must be {want}"
        ))
    })
}

/// What `--help` prints, and what follows an error.
pub(super) fn usage(program: &str) -> String {
    let mut usage = format!("usage: {program}\nFlags:\n");
    for flag in FLAGS {
        let Flag { name, kind, default, help, idle } = flag;
        let kind = match kind {
            Bool => "bool",
            Int => "int",
            Float => "float",
            Text => "string",
        };
        let why = idle.map_or(String::new(), |why| format!(": {why}"));
        let default = if default.is_empty() { "\"\"" } else { default };
        usage.push_str(&format!("  --{name}={default}\n      {kind}  {help}{why}\n"));
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Flags> {
        Flags::parse(arguments.iter().map(|&argument| argument.to_owned()))
    }

    #[test]
    fn values_of_every_kind() {
        let flags = parse(&[
            "--port=9000",
            "--enable_batching",
            "--enable_model_warmup=false",
            "--model_name=a=b",
            "--per_process_gpu_memory_fraction=0.5",
            "--file_system_poll_wait_seconds=-1",
        ])
        .expect("valid");
        assert_eq!(flags.int("port"), Some(9000));
        assert!(flags.is_set("enable_batching"));
        assert_eq!(flags.bool("enable_model_warmup"), Some(false));
        assert_eq!(flags.text("model_name"), Some("a=b"));
        assert_eq!(flags.float("per_process_gpu_memory_fraction"), Some(0.5));
        assert_eq!(flags.int("file_system_poll_wait_seconds"), Some(-1));
        assert_eq!(flags.int("rest_api_port"), None);
        assert!(flags.unknown.is_empty());
    }

    #[test]
    fn the_last_one_counts_and_empty_text_is_none() {
        let flags = parse(&["--port=1", "--port=2", "--model_name=x", "--model_name="]);
        let flags = flags.expect("valid");
        assert_eq!((flags.int("port"), flags.text("model_name")), (Some(2), None));
    }

    #[test]
    fn unknown_arguments_are_reported() {
        let arguments = ["--prot=1", "-port=1", "--port", "8500", "--", "--port =1"];
        let flags = parse(&arguments).expect("started");
        assert_eq!(flags.unknown, arguments);
        assert_eq!(flags.int("port"), None);
    }

    #[test]
    fn values_that_cannot_be_parsed() {
        for wrong in ["--port=many", "--port=", "--enable_batching=1", "--enable_batching=yes"] {
            let error = parse(&[wrong]).expect_err(wrong);
            assert!(error.message().starts_with("Couldn't interpret value"), "{error}");
        }
    }

    #[test]
    fn flags_without_effect_have_a_reason() {
        let flags = parse(&["--prefer_tflite_model", "--port=1"]).expect("valid");
        let idle = flags.idle();
        assert_eq!(idle.len(), 1);
        assert!(idle[0].contains("TensorFlow Lite"), "{idle:?}");
    }

    #[test]
    fn every_flag_is_there_once_and_in_the_usage() {
        let usage = usage("x");
        for flag in FLAGS {
            assert_eq!(FLAGS.iter().filter(|f| f.name == flag.name).count(), 1, "{}", flag.name);
            assert!(usage.contains(&format!("--{}=", flag.name)));
        }
        // The flags of TensorFlow Serving, and --rest_api_ssl_config_file.
        assert_eq!(FLAGS.len(), 48 + 1);
    }
}
