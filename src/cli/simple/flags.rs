//! Simple TensorFlow Serving's flags, each with the environment variable that holds its default.
//!
//! As in the original, a flag may be abbreviated where that is unambiguous (`--model_base`), and its
//! value follows `=` or a space. A switch takes true, false, and empty for false; in the original
//! any text is true.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{CommandFactory, FromArgMatches, Parser};

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Switch(pub(super) bool);

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "" | "false" | "no" | "off" | "0" | "none" => Ok(Switch(false)),
            "true" | "yes" | "on" | "1" => Ok(Switch(true)),
            _ => Err("it must be true or false; empty is false".to_owned()),
        }
    }
}

/// Inference server with the flags of Simple TensorFlow Serving
#[derive(Debug, Parser)]
#[command(
    name = "simple_tensorflow_serving",
    rename_all = "snake_case",
    infer_long_args = true,
    args_override_self = true,
    disable_version_flag = true,
    after_help = HELP
)]
pub(super) struct Flags {
    /// IP address to listen on
    #[arg(long, env = "STFS_HOST", default_value = "0.0.0.0")]
    pub(super) host: String,
    /// HTTP port
    #[arg(long, env = "STFS_PORT", default_value = "8500")]
    pub(super) port: u16,
    /// Serve HTTPS instead of HTTP
    #[arg(long, env = "STFS_ENABLE_SSL", default_value = "", num_args = 0..=1,
        default_missing_value = "true")]
    pub(super) enable_ssl: Switch,
    /// TLS certificate, PEM
    #[arg(long, env = "STFS_SECRET_PEM", default_value = "secret.pem")]
    pub(super) secret_pem: PathBuf,
    /// Private key of the TLS certificate, PEM
    #[arg(long, env = "STFS_SECRET_KEY", default_value = "secret.key")]
    pub(super) secret_key: PathBuf,
    /// Name of the model
    #[arg(long, env = "STFS_MODEL_NAME", default_value = "default")]
    pub(super) model_name: String,
    /// Directory of the versions of the model
    #[arg(long, env = "STFS_MODEL_BASE_PATH", default_value = "./model")]
    pub(super) model_base_path: String,
    /// Platform of the model
    #[arg(long, env = "STFS_MODEL_PLATFORM", default_value = "tensorflow")]
    pub(super) model_platform: String,
    /// File with a list of models (JSON), instead of one model
    #[arg(long, env = "STFS_MODEL_CONFIG_FILE", default_value = "")]
    pub(super) model_config_file: String,
    /// Load versions that are added and unload those that are removed; empty means true
    #[arg(long, env = "STFS_RELOAD_MODELS", default_value = "", num_args = 0..=1,
        default_missing_value = "true", hide_default_value = true)]
    pub(super) reload_models: String,
    /// Libraries of custom operations, and directories of such libraries, separated by commas
    #[arg(long, env = "STFS_CUSTOM_OP_PATHS", default_value = "")]
    pub(super) custom_op_paths: String,
    /// Session settings (JSON): allow_growth and per_process_gpu_memory_fraction
    #[arg(long, env = "STFS_SESSION_CONFIG", default_value = "{}")]
    pub(super) session_config: String,
    /// Log at level debug
    #[arg(long, env = "STFS_DEBUG", default_value = "", num_args = 0..=1,
        default_missing_value = "true")]
    pub(super) debug: Switch,
    /// Log level: critical, error, warning, info or debug
    #[arg(long, env = "STFS_LOG_LEVEL", default_value = "info")]
    pub(super) log_level: String,
    /// Require a user name and a password
    #[arg(long, env = "STFS_ENABLE_AUTH", default_value = "", num_args = 0..=1,
        default_missing_value = "true")]
    pub(super) enable_auth: Switch,
    /// User name that clients must send
    #[arg(long, env = "STFS_AUTH_USERNAME", default_value = "admin")]
    pub(super) auth_username: String,
    /// Password that clients must send
    #[arg(long, env = "STFS_AUTH_PASSWORD", default_value = "admin", hide_env_values = true)]
    pub(super) auth_password: String,
    /// Allow cross-origin requests (CORS) from any origin
    #[arg(long, env = "STFS_ENABLE_CORS", default_value = "True", num_args = 0..=1,
        default_missing_value = "true")]
    pub(super) enable_cors: Switch,
    /// Without effect: objects {"b64": …} are always decoded to bytes
    #[arg(long, env = "STFS_B64_AUTOCONVERT", default_value = "", num_args = 0..=1,
        default_missing_value = "true")]
    pub(super) enable_b64_autoconvert: Switch,
    /// Without effect: uploads are never written to disk
    #[arg(long, env = "STFS_DOWNLOAD_INFERENCE_IMAGES", default_value = "True", num_args = 0..=1,
        default_missing_value = "true")]
    pub(super) download_inference_images: Switch,
}

const HELP: &str = "\
Other settings of tensorserve can be set as environment variables (TENSORSERVE_GRPC_PORT=8501).
docs/simple-tensorflow-serving.md describes the differences from Simple TensorFlow Serving.";

impl Flags {
    /// Parses arguments (without the program's name) and the variables.
    pub(super) fn parse_from(
        program: &str,
        arguments: impl IntoIterator<Item = std::ffi::OsString>,
    ) -> Result<Self, clap::Error> {
        let command = Flags::command().bin_name(program.to_owned());
        let arguments = [program.into()].into_iter().chain(arguments);
        let matches = command.try_get_matches_from(arguments)?;
        Flags::from_arg_matches(&matches)
    }

    /// All settings with their values, as they are printed at the start. The password is not.
    pub(super) fn listed(&self) -> Vec<(&'static str, String)> {
        let switch = |Switch(on): Switch| on.to_string();
        let path = |path: &PathBuf| path.display().to_string();
        let password = if self.auth_password.is_empty() { "" } else { "(not shown)" };
        vec![
            ("host", self.host.clone()),
            ("port", self.port.to_string()),
            ("enable_ssl", switch(self.enable_ssl)),
            ("secret_pem", path(&self.secret_pem)),
            ("secret_key", path(&self.secret_key)),
            ("model_name", self.model_name.clone()),
            ("model_base_path", self.model_base_path.clone()),
            ("model_platform", self.model_platform.clone()),
            ("model_config_file", self.model_config_file.clone()),
            ("reload_models", self.reload_models.clone()),
            ("custom_op_paths", self.custom_op_paths.clone()),
            ("session_config", self.session_config.clone()),
            ("debug", switch(self.debug)),
            ("log_level", self.log_level.clone()),
            ("enable_auth", switch(self.enable_auth)),
            ("auth_username", self.auth_username.clone()),
            ("auth_password", password.to_owned()),
            ("enable_cors", switch(self.enable_cors)),
            ("enable_b64_autoconvert", switch(self.enable_b64_autoconvert)),
            ("download_inference_images", switch(self.download_inference_images)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Flags, clap::Error> {
        Flags::parse_from("stfs", arguments.iter().map(Into::into))
    }

    #[test]
    fn the_flags_are_consistent_and_each_has_a_variable() {
        let command = Flags::command();
        command.clone().debug_assert();
        for argument in command.get_arguments().filter(|a| a.get_id() != "help") {
            let variable = argument.get_env().expect("one").to_str().expect("text");
            let name = argument.get_id().as_str();
            let named_otherwise = name == "enable_b64_autoconvert";
            let want = format!("STFS_{}", name.to_uppercase());
            assert!(variable == want || named_otherwise, "{name}: {variable}");
        }
        let listed = parse(&[]).expect("defaults").listed();
        assert_eq!(listed.len(), command.get_arguments().filter(|a| a.get_id() != "help").count());
    }

    #[test]
    fn defaults_are_simple_tensorflow_servings() {
        let flags = parse(&[]).expect("valid");
        assert_eq!((flags.host.as_str(), flags.port), ("0.0.0.0", 8500));
        assert_eq!((&*flags.model_name, &*flags.model_base_path), ("default", "./model"));
        assert_eq!(flags.enable_auth, Switch(false));
        assert_eq!(flags.enable_cors, Switch(true));
        assert_eq!(flags.enable_ssl, Switch(false));
    }

    #[test]
    fn switches_mean_what_they_say() {
        let auth = |value: &str| parse(&[&format!("--enable_auth={value}")]).map(|f| f.enable_auth);
        for (value, on) in [("True", true), ("true", true), ("", false), ("False", false)] {
            assert_eq!(auth(value).expect(value), Switch(on), "{value:?}");
        }
        assert!(auth("maybe").expect_err("neither").to_string().contains("true or false"));
        let bare = parse(&["--enable_auth", "--port", "9000"]).expect("valid");
        assert_eq!((bare.enable_auth, bare.port), (Switch(true), 9000));
    }

    #[test]
    fn the_command_lines_of_its_documentation() {
        let flags = parse(&["--model_base", "./models/a", "--port=8501", "--port=8502"]);
        let flags = flags.expect("abbreviated and repeated flags");
        assert_eq!((&*flags.model_base_path, flags.port), ("./models/a", 8502));
        let text = "{\"allow_growth\": true}";
        let flags = parse(&["--session_config", text, "--custom_op_paths=./ops/,./more"]);
        assert_eq!(flags.expect("valid").session_config, text);
        assert!(parse(&["--model"]).is_err(), "an ambiguous abbreviation");
        assert!(parse(&["--port=many"]).is_err());
        assert!(parse(&["model"]).is_err());
    }

    #[test]
    fn the_password_is_not_listed() {
        let flags = parse(&["--auth_password=hunter2"]).expect("valid");
        assert!(flags.listed().iter().all(|(_, value)| !value.contains("hunter2")));
    }
}
