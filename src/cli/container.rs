//! The entrypoint of the images: chooses what to run by the arguments and variables that a platform
//! starts the container with.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::model_server;
use crate::config::environment::Environment;
use crate::config::vertex;
use tensorserve_core::config::is_model_name;
use tensorserve_tensor::error::{Error, Result};

/// The command that is the entrypoint of the images.
pub(super) const NAME: &str = "container";

/// The command that is TensorFlow Serving's entrypoint alone.
pub(super) const TFS_ENTRYPOINT: &str = "tf_serving_entrypoint";

/// The folder of models in the images.
pub(super) const MODELS: &str = "/models";

/// The gRPC port of `serve`, unless a setting names another one.
const GRPC_PORT: u16 = 8501;

pub(super) const HELP: &str = "\
What runs, by the first rule that applies:
  1. The first ARGUMENT begins with --, and is neither --help nor --version: TensorFlow Serving, as \
     its image: port 8500 for gRPC and 8501 for HTTP, the model in MODEL_BASE_PATH/MODEL_NAME \
     (/models/model), then the ARGUMENTs, which are flags of tensorflow_model_server.
  2. There are other ARGUMENTs: `tensorserve ARGUMENT...`, such as `serve /models`.
  3. MODEL_NAME or MODEL_BASE_PATH is set, or /models has only the directory `model`: as 1.
  4. Otherwise `tensorserve serve`, with the model in AIP_STORAGE_URI (Vertex AI) or those in /models.

For `serve`, PORT (Cloud Run) is the HTTP port, unless --http-port, TENSORSERVE_HTTP_PORT or a \
platform's own variable (AIP_HTTP_PORT, SAGEMAKER_BIND_TO_PORT) names one.";

/// What a container runs.
#[derive(Debug, PartialEq)]
pub(super) enum ContainerCommand {
    /// `tensorflow_model_server` with these flags.
    ModelServer(Vec<OsString>),
    /// `tensorserve` with these arguments, and these settings in variables.
    Tensorserve(Vec<OsString>, Vec<(&'static str, String)>),
}

/// What a container with these arguments runs; `models` is the folder of models.
///
/// # Errors
/// For a variable with a wrong value.
pub(super) fn choose(
    arguments: Vec<OsString>,
    environment: &Environment,
    models: &Path,
) -> Result<ContainerCommand> {
    let is_for_tfs = match arguments.first() {
        Some(first) => is_flag_of_tfs(first),
        None => is_called_as_tfs(environment, models),
    };
    if is_for_tfs {
        return Ok(ContainerCommand::ModelServer(tfs_flags(arguments, environment)?));
    }
    let arguments = if arguments.is_empty() { default_command(environment) } else { arguments };
    let is_serve = arguments.first().is_some_and(|command| command == "serve");
    let variables = if is_serve { port_variables(&arguments, environment)? } else { Vec::new() };
    Ok(ContainerCommand::Tensorserve(arguments, variables))
}

/// Runs `tensorflow_model_server` as the entrypoint of TensorFlow Serving's image.
pub(super) fn run_tfs_entrypoint(
    arguments: Vec<OsString>,
    environment: &Environment,
) -> Result<ExitCode> {
    Ok(model_server::run(tfs_flags(arguments, environment)?, environment))
}

/// Whether the first argument is a flag of `tensorflow_model_server`. The commands of tensorserve
/// begin with a word.
fn is_flag_of_tfs(first: &OsStr) -> bool {
    first.as_encoded_bytes().starts_with(b"--") && first != "--help" && first != "--version"
}

/// Whether a container without arguments is meant to be TensorFlow Serving: its variables are set,
/// or the only model is where its image has the default one.
fn is_called_as_tfs(environment: &Environment, models: &Path) -> bool {
    let is_set = |name| environment.get(name).is_some();
    if is_set("MODEL_NAME") || is_set("MODEL_BASE_PATH") {
        return true;
    }
    let entries = fs::read_dir(models).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    let only = (names.next(), names.next());
    !vertex::is_called_for(environment)
        && only == (Some("model".into()), None)
        && models.join("model").is_dir()
}

/// The flags with which TensorFlow Serving's image starts its server. Of a flag that occurs twice, the
/// last one counts.
fn tfs_flags(arguments: Vec<OsString>, environment: &Environment) -> Result<Vec<OsString>> {
    let value = |name| environment.get(name).filter(|value| !value.is_empty());
    let name = value("MODEL_NAME").unwrap_or("model");
    let base = value("MODEL_BASE_PATH").unwrap_or(MODELS);
    let replaces_name = arguments
        .iter()
        .any(|argument| matches!(option_of(argument), "--model_config_file" | "--model_name"));
    if !is_model_name(name) && !replaces_name {
        return Err(Error::invalid(format!(
            "MODEL_NAME: {name:?} contains / or :, so that no URL could name the model. Move the \
             directories to MODEL_BASE_PATH: it is {base:?}"
        )));
    }
    let mut flags: Vec<OsString> = ["--port=8500", "--rest_api_port=8501"].map(Into::into).into();
    flags.push(format!("--model_name={name}").into());
    flags.push(format!("--model_base_path={base}/{name}").into());
    flags.extend(arguments);
    Ok(flags)
}

/// The arguments of a container without arguments.
fn default_command(environment: &Environment) -> Vec<OsString> {
    let has_storage = vertex::read(environment).is_some_and(|vertex| vertex.storage.is_some());
    if has_storage {
        return vec!["serve".into()];
    }
    vec!["serve".into(), MODELS.into()]
}

/// The settings for `PORT`, which Cloud Run and others set; none if something more specific names the
/// port of `serve`.
fn port_variables(
    arguments: &[OsString],
    environment: &Environment,
) -> Result<Vec<(&'static str, String)>> {
    let has = |name: &str| environment.get(name).is_some();
    let is_named = arguments.iter().any(|argument| option_of(argument) == "--http-port")
        || has("TENSORSERVE_HTTP_PORT")
        || has("AIP_HTTP_PORT")
        || environment.of_sagemaker().next().is_some();
    let Some(given) = environment.get("PORT").filter(|port| !port.is_empty() && !is_named) else {
        return Ok(Vec::new());
    };
    let port: u16 = given.parse().map_err(|_| {
        Error::invalid(format!("PORT: {given:?} is not a port (0 to 65535) for HTTP"))
    })?;
    let mut variables = vec![("TENSORSERVE_HTTP_PORT", port.to_string())];
    let names_grpc = arguments.iter().any(|argument| option_of(argument) == "--grpc-port")
        || has("TENSORSERVE_GRPC_PORT");
    if port == GRPC_PORT && !names_grpc {
        variables.push(("TENSORSERVE_GRPC_PORT", "off".to_owned()));
    }
    Ok(variables)
}

/// `--name` of `--name=value`.
fn option_of(argument: &OsStr) -> &str {
    let text = argument.to_str().unwrap_or_default();
    text.split_once('=').map_or(text, |(name, _)| name)
}

/// The command line of the server if the first process is one, as in a container, or starts one, as the
/// init of `docker run --init`; `None` on other machines.
pub(super) fn first_process() -> Option<Vec<OsString>> {
    let line = fs::read("/proc/1/cmdline").ok()?;
    let words = line
        .split(|byte| *byte == 0)
        .map(|word| OsString::from(String::from_utf8_lossy(word).into_owned()));
    server_of(words.collect())
}

/// A command line from the name of the server on.
fn server_of(mut words: Vec<OsString>) -> Option<Vec<OsString>> {
    let at = words.iter().position(|word| {
        let name = Path::new(word).file_name();
        name.is_some_and(|name| name == "tensorserve" || name == model_server::NAME)
    })?;
    // The kernel ends each word with a NUL.
    words.pop();
    words.drain(..at);
    Some(words)
}

/// What the process with this command line runs; `None` if it serves nothing.
pub(super) fn command_of(
    mut words: Vec<OsString>,
    environment: &Environment,
) -> Option<ContainerCommand> {
    let program = PathBuf::from(words.first()?);
    let is_alias = program.file_name()? == model_server::NAME;
    // The program and, unless its name says it, the command.
    let command = if is_alias { model_server::NAME.into() } else { words.get(1)?.clone() };
    words.drain(..if is_alias { 1 } else { 2 });
    let chosen = match command.to_str()? {
        model_server::NAME => ContainerCommand::ModelServer(words),
        TFS_ENTRYPOINT => ContainerCommand::ModelServer(tfs_flags(words, environment).ok()?),
        NAME => choose(words, environment, Path::new(MODELS)).ok()?,
        _ => {
            words.insert(0, command);
            ContainerCommand::Tensorserve(words, Vec::new())
        }
    };
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a container with these arguments and variables runs, in a shell's words.
    fn chosen(arguments: &[&str], variables: &[(&str, &str)], models: &[&str]) -> String {
        let folder = tempfile::tempdir().expect("a directory");
        for model in models {
            fs::create_dir(folder.path().join(model)).expect("a directory");
        }
        let arguments = arguments.iter().map(OsString::from).collect();
        match choose(arguments, &Environment::of(variables), folder.path()) {
            Ok(ContainerCommand::ModelServer(flags)) => format!("tfs {}", joined(&flags)),
            Ok(ContainerCommand::Tensorserve(words, variables)) => {
                let set = variables.iter().map(|(name, value)| format!("{name}={value} "));
                format!("{}{}", set.collect::<String>(), joined(&words))
            }
            Err(error) => error.message().to_owned(),
        }
    }

    fn joined(words: &[OsString]) -> String {
        let words: Vec<&str> = words.iter().map(|word| word.to_str().expect("text")).collect();
        words.join(" ")
    }

    const TFS: &str = "tfs --port=8500 --rest_api_port=8501";

    #[test]
    fn variables_of_tensorflow_servings_image() {
        for (variables, model) in [
            (&[("MODEL_NAME", "m")][..], "--model_name=m --model_base_path=/models/m"),
            (&[("MODEL_BASE_PATH", "/b")], "--model_name=model --model_base_path=/b/model"),
            (
                &[("MODEL_NAME", "m"), ("MODEL_BASE_PATH", "gs://b/x")],
                "--model_name=m --model_base_path=gs://b/x/m",
            ),
            (&[("MODEL_NAME", "a b")], "--model_name=a b --model_base_path=/models/a b"),
            (&[("MODEL_NAME", "")], "--model_name=model --model_base_path=/models/model"),
        ] {
            assert_eq!(chosen(&[], variables, &[]), format!("{TFS} {model}"), "{variables:?}");
        }
        let wrong = chosen(&[], &[("MODEL_NAME", "team/m")], &[]);
        assert!(wrong.starts_with("MODEL_NAME: \"team/m\" contains / or :"), "{wrong}");
        // The name is not used then.
        let list = ["--model_config_file=/models/models.config"];
        let listed = chosen(&list, &[("MODEL_NAME", "team/m")], &[]);
        assert!(listed.ends_with(list[0]), "{listed}");
    }

    #[test]
    fn flags_are_tensorflow_servings() {
        let model = "--model_name=model --model_base_path=/models/model";
        let list = "--model_config_file=/models/models.config";
        assert_eq!(chosen(&[list], &[], &["a", "b"]), format!("{TFS} {model} {list}"));
        let more = ["--rest_api_port=9000", "--unknown", "word"];
        let last = more.join(" ");
        assert_eq!(chosen(&more, &[], &[]), format!("{TFS} {model} {last}"));
    }

    #[test]
    fn commands_are_tensorserves() {
        let variables = [("MODEL_NAME", "m")];
        for words in [
            &["serve", "/models"][..],
            &["serve"],
            &["health"],
            &["--version"],
            &["--help"],
            &["-V"],
            &["tensorflow_model_server", "--port=1"],
        ] {
            assert_eq!(chosen(words, &variables, &["model"]), words.join(" "));
        }
    }

    #[test]
    fn without_arguments_the_folder_of_models_is_served() {
        assert_eq!(chosen(&[], &[], &[]), "serve /models");
        assert_eq!(chosen(&[], &[], &["a"]), "serve /models");
        assert_eq!(chosen(&[], &[], &["model", "b"]), "serve /models");
        let default = format!("{TFS} --model_name=model --model_base_path=/models/model");
        assert_eq!(chosen(&[], &[], &["model"]), default);
    }

    #[test]
    fn vertex_names_the_model() {
        let port = ("AIP_HTTP_PORT", "8080");
        let variables = [port, ("AIP_STORAGE_URI", "gs://b/m")];
        assert_eq!(chosen(&[], &variables, &["model"]), "serve");
        assert_eq!(chosen(&[], &[port, ("AIP_STORAGE_URI", "")], &["model"]), "serve /models");
        let tfs = chosen(&[], &[port, ("MODEL_NAME", "m")], &[]);
        assert!(tfs.starts_with(TFS), "{tfs}");
    }

    #[test]
    fn port_is_the_port_of_serve() {
        let port = ("PORT", "8080");
        let set = "TENSORSERVE_HTTP_PORT=8080 ";
        assert_eq!(chosen(&[], &[port], &[]), format!("{set}serve /models"));
        assert_eq!(chosen(&["serve", "/m"], &[port], &[]), format!("{set}serve /m"));
        assert_eq!(chosen(&[], &[("PORT", "")], &[]), "serve /models");
        assert_eq!(
            chosen(&[], &[("PORT", "8501")], &[]),
            "TENSORSERVE_HTTP_PORT=8501 TENSORSERVE_GRPC_PORT=off serve /models"
        );
        let kept = ["serve", "/m", "--grpc-port=8501"];
        assert!(!chosen(&kept, &[("PORT", "8501")], &[]).contains("GRPC_PORT=off"));
        for words in [&["serve", "--http-port=1"][..], &["serve", "--http-port", "1"], &["health"]]
        {
            assert_eq!(chosen(words, &[port], &[]), words.join(" "));
        }
        for other in ["TENSORSERVE_HTTP_PORT", "AIP_HTTP_PORT", "SAGEMAKER_BIND_TO_PORT"] {
            assert_eq!(chosen(&["serve"], &[port, (other, "1")], &[]), "serve", "{other}");
        }
        // As in its own image.
        assert!(chosen(&[], &[port, ("MODEL_NAME", "m")], &[]).starts_with(TFS));
        let wrong = chosen(&[], &[("PORT", "http")], &[]);
        assert_eq!(wrong, "PORT: \"http\" is not a port (0 to 65535) for HTTP");
    }

    fn of(line: &str) -> Option<ContainerCommand> {
        let words = line.split(' ').map(OsString::from).collect();
        command_of(words, &Environment::of(&[("MODEL_NAME", "m")]))
    }

    fn flags(line: &str) -> String {
        match of(line) {
            Some(ContainerCommand::ModelServer(flags)) => joined(&flags),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn the_server_may_be_started_by_an_init() {
        for (line, server) in [
            (
                "/usr/local/bin/tensorserve container --x=1 ",
                Some("/usr/local/bin/tensorserve container --x=1"),
            ),
            (
                "/sbin/docker-init -- /usr/local/bin/tensorserve container ",
                Some("/usr/local/bin/tensorserve container"),
            ),
            (
                "dumb-init tensorflow_model_server --port=1 ",
                Some("tensorflow_model_server --port=1"),
            ),
            ("/sbin/init ", None),
            ("", None),
        ] {
            let words = line.split(' ').map(OsString::from).collect();
            let found = server_of(words).map(|words| joined(&words));
            assert_eq!(found.as_deref(), server, "{line}");
        }
    }

    #[test]
    fn the_command_of_a_process() {
        assert_eq!(flags("/usr/bin/tensorflow_model_server --port=1"), "--port=1");
        assert_eq!(
            flags("/usr/local/bin/tensorserve tensorflow_model_server --port=1"),
            "--port=1"
        );
        let entrypoint = flags("tensorserve tf_serving_entrypoint --port=1");
        assert_eq!(entrypoint, flags("tensorserve container --port=1"));
        assert!(entrypoint.ends_with("--model_base_path=/models/m --port=1"), "{entrypoint}");
        let words = ["serve", "/models"].map(OsString::from).to_vec();
        let serve = Some(ContainerCommand::Tensorserve(words, Vec::new()));
        assert_eq!(of("tensorserve serve /models"), serve);
        assert_eq!(of("tensorserve container serve /models"), serve);
        assert_eq!(of("tensorserve"), None);
    }
}
