//! Simple TensorFlow Serving's JSON settings: the list of models and the session settings.

use serde_json::{Map, Value};

pub mod models;

use crate::config::Settings;
use tensorserve_tensor::error::{Error, Result};

/// The settings of a session config, and a line for each part of it that has no effect here.
///
/// # Errors
/// For JSON that is not an object, and values of the wrong type.
pub fn session(text: &str) -> Result<(Settings, Vec<String>)> {
    match serde_json::from_str(text) {
        Ok(Value::Object(config)) => session_of(&config),
        Ok(_) => Err(Error::invalid(format!("{text:?} is not a JSON object"))),
        Err(e) => Err(Error::invalid(format!("{text:?} is not a JSON object: {e}")).with_source(e)),
    }
}

/// The settings of a parsed session config, and a line for each part of it that has no effect here.
fn session_of(config: &Map<String, Value>) -> Result<(Settings, Vec<String>)> {
    let (mut settings, mut notes) = (Settings::default(), Vec::new());
    let server = &mut settings.server;
    for (name, value) in config {
        let wrong = |what: &str| Error::invalid(format!("{name} must be {what}, not {value}"));
        let flag = || value.as_bool().ok_or_else(|| wrong("true or false"));
        match name.as_str() {
            "allow_growth" => server.gpu_allow_growth = Some(flag()?),
            "per_process_gpu_memory_fraction" => {
                let part = value.as_f64().filter(|part| (0.0..=1.0).contains(part));
                server.gpu_memory_fraction = Some(part.ok_or_else(|| wrong("from 0 to 1"))?);
            }
            "allow_soft_placement" => {
                if !flag()? {
                    let why =
                        "models that were saved on a machine with GPUs must load on one without";
                    notes.push(format!("allow_soft_placement stays on: {why}"));
                }
            }
            "log_device_placement" => {
                if flag()? {
                    let how = "libtensorflow logs it with TF_CPP_MIN_LOG_LEVEL=0";
                    notes.push(format!("log_device_placement is ignored: {how}"));
                }
            }
            _ => notes.push(format!("{name} of the session config has no effect here")),
        }
    }
    Ok((settings, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_set_gpu_options() {
        let text = "{\"allow_growth\": false, \"per_process_gpu_memory_fraction\": 0.5, \
                    \"allow_soft_placement\": true, \"log_device_placement\": false}";
        let (settings, notes) = session(text).expect("valid");
        assert_eq!(settings.server.gpu_allow_growth, Some(false));
        assert_eq!(settings.server.gpu_memory_fraction, Some(0.5));
        assert_eq!(notes, Vec::<String>::new());
        let text = "{\"allow_soft_placement\": false, \"log_device_placement\": true, \"x\": 1}";
        let (settings, notes) = session(text).expect("valid");
        assert_eq!((settings, notes.len()), (Settings::default(), 3));
        assert_eq!(session("{}").expect("valid").0, Settings::default());
    }

    #[test]
    fn wrong_session_configs_are_refused() {
        for (text, part) in [
            ("", "is not a JSON object"),
            ("[]", "is not a JSON object"),
            ("{\"allow_growth\": \"yes\"}", "allow_growth must be true or false, not \"yes\""),
            ("{\"per_process_gpu_memory_fraction\": 2}", "must be from 0 to 1, not 2"),
        ] {
            let error = session(text).expect_err(text);
            assert!(error.message().contains(part), "{error}");
        }
    }
}
