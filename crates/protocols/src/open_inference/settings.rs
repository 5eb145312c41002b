//! Triton's settings of traces and logs, as far as they have a meaning here: what is in effect can be read,
//! and is changed where the server's other settings are.

use log::Level;
use serde_json::{Value, json};

use super::describe;
use super::request::NamedModel;
use tensorserve_core::engine::{Engine, Unresolved};
use tensorserve_tensor::error::{Code, Error, Result};

/// The settings of traces; each value is a list of text.
pub(super) const TRACE: [(&str, &str); 6] = [
    ("trace_level", "OFF"),
    ("trace_rate", "0"),
    ("trace_count", "-1"),
    ("log_frequency", "0"),
    ("trace_file", ""),
    ("trace_mode", "opentelemetry"),
];

/// The settings of logs.
pub(super) struct LogSettings {
    pub(super) info: bool,
    pub(super) warning: bool,
    pub(super) error: bool,
    pub(super) verbose_level: u32,
}

impl LogSettings {
    /// The settings in effect.
    pub(super) fn now() -> Self {
        let is_logged = |level| log::log_enabled!(target: "tensorserve", level);
        LogSettings {
            info: is_logged(Level::Info),
            warning: is_logged(Level::Warn),
            error: is_logged(Level::Error),
            verbose_level: u32::from(is_logged(Level::Debug)) + u32::from(is_logged(Level::Trace)),
        }
    }
}

/// Checks that there is a model of this name, or that none is named.
///
/// # Errors
/// For an unknown model.
pub(super) fn check_model(engine: &Engine, name: &str) -> Result<()> {
    match name.is_empty() || describe::is_known(engine, name) {
        true => Ok(()),
        false => Err(NamedModel::latest(name).not_served(Unresolved::Model)),
    }
}

/// The settings of traces over REST, where only the level is a list.
pub(super) fn trace() -> Value {
    let value = |(name, value): (&str, &str)| {
        let value = if name == "trace_level" { json!([value]) } else { json!(value) };
        (name.to_owned(), value)
    };
    Value::Object(TRACE.into_iter().map(value).collect())
}

/// The settings of logs over REST.
pub(super) fn log() -> Value {
    let LogSettings { info, warning, error, verbose_level } = LogSettings::now();
    json!({
        "log_file": "",
        "log_info": info,
        "log_warning": warning,
        "log_error": error,
        "log_verbose_level": verbose_level,
        "log_format": "default",
    })
}

/// The error for a change.
pub(super) fn refusal() -> Error {
    Error::new(
        Code::Unimplemented,
        "the settings of traces and logs cannot be changed by requests: set log_level and otlp_endpoint where the \
         server is started",
    )
}
