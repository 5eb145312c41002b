//! From Simple TensorFlow Serving's flags to the [`Config`] that the server runs on.
//!
//! Flags override tensorserve's environment variables, and these override Simple TensorFlow
//! Serving's defaults.

use std::path::{Path, PathBuf};

use super::flags::{Flags, Switch};
use crate::config::environment::Environment;
use crate::config::simple::models::{self, ListedModel, ModelList};
use crate::config::simple::session;
use crate::config::units::{CommaSeparated, HumanDuration, Port};
use crate::config::{Config, Cors, Settings, VersionPolicy};
use tensorserve_tensor::error::{Error, Result};

/// What to serve, and how.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) config: Config,
    /// Warnings for the log.
    pub(super) notes: Vec<String>,
}

/// Checks the flags, reads the list of models, and fills in defaults.
///
/// # Errors
/// Wrong settings; a list without a model that can be served.
pub(super) fn start(flags: &Flags, from: &Settings, environment: &Environment) -> Result<Start> {
    let mut notes = Vec::new();
    let list = list(flags, &mut notes)?;
    let settings = settings(flags)?.or(&list.settings).or(from).or(&defaults());
    let pinned = settings.each.version_policy.is_some();
    let mut config = Config::new(settings, environment)?;
    config.http.cors = if flags.enable_cors.0 { Cors::AnyOrigin } else { Cors::Off };
    config.protocols.replaces_simple = true;
    // It has no flag for gRPC.
    (config.http.port_setting, config.grpc.port_setting) = ("--port", "TENSORSERVE_GRPC_PORT");
    if flags.enable_auth.0 {
        config = config.with_one_user(&flags.auth_username, &flags.auth_password);
    }
    let common = &config.repository.common;
    // Simple TensorFlow Serving serves all versions.
    let policy = if pinned { common.policy.clone() } else { VersionPolicy::All };
    let source = |model: &ListedModel| model.source(common, policy.clone());
    config.repository.sources = list.models.iter().map(source).collect();
    notes.extend(list.notes);
    notes.extend(list.refused.iter().map(|why| format!("{why}; the model is not served")));
    if flags.download_inference_images.0 {
        log::info!(
            "--download_inference_images has no effect: uploaded images are never written to disk"
        );
    }
    Ok(Start { config, notes })
}

/// The models of the list, or the one that the flags name.
fn list(flags: &Flags, notes: &mut Vec<String>) -> Result<ModelList> {
    let list = if flags.model_config_file.is_empty() {
        one_model(flags, notes)?
    } else {
        models::read(Path::new(&flags.model_config_file))?
    };
    if list.models.is_empty() {
        let why = match list.refused.is_empty() {
            true => format!("{}: the list of models is empty", flags.model_config_file),
            false => list.refused.join("\n"),
        };
        return Err(Error::invalid(why));
    }
    Ok(list)
}

fn one_model(flags: &Flags, notes: &mut Vec<String>) -> Result<ModelList> {
    let model = ListedModel::one(&flags.model_name, &flags.model_base_path, &flags.model_platform);
    let mut list = ModelList::default();
    match model.refusal() {
        Some(why) => list.refused.push(why),
        None => list.models.push(model),
    }
    let (settings, of_session) =
        session(&flags.session_config).map_err(|e| e.context("--session_config"))?;
    list.settings = settings;
    list.notes = of_session;
    let paths: CommaSeparated<PathBuf> = flags.custom_op_paths.parse().map_err(Error::invalid)?;
    let (there, missing): (Vec<_>, Vec<_>) = paths.0.into_iter().partition(|path| path.exists());
    let missing = missing.iter().map(|path| path.display());
    notes.extend(missing.map(|path| format!("--custom_op_paths: {path} does not exist")));
    list.settings.server.custom_op_paths =
        Some(CommaSeparated(there)).filter(|CommaSeparated(p)| !p.is_empty());
    Ok(list)
}

/// The settings that the flags contain.
fn settings(flags: &Flags) -> Result<Settings> {
    let mut settings = Settings::default();
    let server = &mut settings.server;
    server.host = Some(flags.host.clone());
    server.http_port = Some(Port::Number(flags.port));
    server.log_level = log_level(flags)?;
    if flags.enable_ssl.0 {
        server.http_tls_certificate = Some(flags.secret_pem.clone());
        server.http_tls_key = Some(flags.secret_key.clone());
    }
    // Reloading does not work in Simple TensorFlow Serving; here it is on by default.
    let reload = match flags.reload_models.trim() {
        "" => true,
        text => {
            let Switch(reload) = text
                .parse()
                .map_err(|why| Error::invalid(format!("--reload_models {text:?}: {why}")))?;
            reload
        }
    };
    if !reload {
        server.poll_interval = Some(HumanDuration(std::time::Duration::ZERO));
    }
    Ok(settings)
}

/// The log level under tensorserve's name.
pub(super) fn log_level(flags: &Flags) -> Result<Option<String>> {
    if flags.debug.0 {
        return Ok(Some("debug".to_owned()));
    }
    let level = match flags.log_level.to_ascii_lowercase().as_str() {
        "debug" => "debug",
        // The default, which RUST_LOG and TENSORSERVE_LOG_LEVEL override.
        "info" => return Ok(None),
        "warning" | "warn" => "warn",
        "error" | "critical" => "error",
        other => {
            let rule = "is not critical, error, warning, info or debug";
            return Err(Error::invalid(format!("--log_level: {other:?} {rule}")));
        }
    };
    Ok(Some(level.to_owned()))
}

/// Simple TensorFlow Serving's defaults, where they differ from tensorserve's.
fn defaults() -> Settings {
    let mut settings = Settings::default();
    // It has no gRPC, and several servers may run on one machine.
    settings.server.grpc_port = Some(Port::Off);
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AuthConfig;

    fn started(arguments: &[&str]) -> Result<Start> {
        let flags = Flags::parse_from("stfs", arguments.iter().map(Into::into)).expect("valid");
        start(&flags, &Settings::default(), &Environment::default())
    }

    #[test]
    fn defaults_are_simple_tensorflow_servings() {
        let Start { config, notes } = started(&[]).expect("valid");
        assert!(config.http.host.is_unspecified() && config.http.host.is_ipv4());
        assert_eq!((config.http.port, config.grpc.port), (Some(8500), None));
        assert!(config.protocols.replaces_simple && config.http.cors == Cors::AnyOrigin);
        let source = &config.repository.sources[0];
        assert_eq!(source.name.as_deref(), Some("default"));
        assert_eq!(source.path, Path::new("./model"));
        assert_eq!(source.model.policy, VersionPolicy::All);
        assert!(config.repository.poll_interval.is_some(), "the sources must be polled");
        assert!(config.tensorflow.gpu.allow_growth && config.http.tls.is_none());
        assert_eq!(notes, Vec::<String>::new());
    }

    #[test]
    fn flags_set_what_they_name() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let ops = folder.path().display().to_string();
        let Start { config, notes } = started(&[
            "--host=127.0.0.1",
            "--port=9000",
            "--model_name=m",
            "--model_base_path=/models/m",
            "--reload_models=False",
            "--enable_cors=",
            "--session_config={\"allow_growth\": false, \"per_process_gpu_memory_fraction\": 0.4}",
            &format!("--custom_op_paths={ops},/no/such/folder"),
        ])
        .expect("valid");
        assert_eq!((config.http.port, config.http.cors), (Some(9000), Cors::Off));
        assert_eq!(config.repository.sources[0].name.as_deref(), Some("m"));
        assert_eq!(config.repository.poll_interval, None);
        assert!(!config.tensorflow.gpu.allow_growth);
        assert_eq!(config.tensorflow.gpu.memory_fraction, 0.4);
        assert_eq!(config.tensorflow.custom_ops, [folder.path()]);
        assert_eq!(notes, ["--custom_op_paths: /no/such/folder does not exist"]);
    }

    #[test]
    fn authentication_has_one_user() {
        let auth = |arguments: &[&str]| started(arguments).expect("valid").config.auth;
        assert_eq!(auth(&["--enable_auth=False", "--auth_username=u"]), None);
        let user = |name: &str, password: &str| {
            Some(AuthConfig::OneUser { name: name.into(), password: password.into() })
        };
        assert_eq!(auth(&["--enable_auth"]), user("admin", "admin"));
        let given = ["--enable_auth=True", "--auth_username=u", "--auth_password=p"];
        assert_eq!(auth(&given), user("u", "p"));
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        let unknown = format!(
            "platform \"caffe2\" is unknown; the platforms are: {}",
            crate::config::PLATFORMS.join(", ")
        );
        for (arguments, part) in [
            (&["--model_platform=caffe2"][..], unknown.as_str()),
            (&["--model_base_path=hdfs:///models/m"], "is not a directory of this machine"),
            (&["--model_base_path=swift://bucket/m"], "from swift:// and name the directory"),
            (&["--model_name=a/b"], "a name must not be empty or contain / or :"),
            (&["--session_config=[]"], "--session_config: \"[]\" is not a JSON object"),
            (&["--log_level=loud"], "--log_level: \"loud\" is not"),
            (&["--reload_models=maybe"], "--reload_models \"maybe\": it must be true or false"),
            (&["--model_config_file=/no/such.json"], "/no/such.json: No such file"),
            (&["--enable_ssl=true", "--secret_key=/no/key"], "/no/key: No such file"),
        ] {
            let error = started(arguments).expect_err(part);
            assert!(error.message().contains(part), "{error}");
        }
    }

    #[test]
    fn log_levels_are_translated() {
        let level = |arguments: &[&str]| {
            let flags = Flags::parse_from("stfs", arguments.iter().map(Into::into));
            log_level(&flags.expect("valid")).expect("known")
        };
        assert_eq!(level(&[]), None);
        assert_eq!(level(&["--log_level=WARNING"]).as_deref(), Some("warn"));
        assert_eq!(level(&["--debug=True", "--log_level=error"]).as_deref(), Some("debug"));
    }
}
