//! `docker`, as far as the local mode of SageMaker's SDK needs it: instead of a container of the
//! TensorFlow Serving image it starts this binary, with the container's volumes, ports and
//! environment.
//!
//! The server replaces this process (exec), so that it receives the signals and sets the exit code.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use super::super::{exit_code, is_help, print_help_of, print_line, print_text};
use super::compose::{self, Service};
use crate::config::environment::Environment;
use crate::config::sagemaker::{MODEL_DIR, MODELS_DIR};
use tensorserve_tensor::error::{Error, Result};

/// The command that is the same.
pub(crate) const NAME: &str = "docker-shim";

pub(crate) const HELP: &str = "\
Answers what SageMaker's local mode asks docker: info, context inspect, version, images, pull, login, and compose \
with version, up, down, stop, kill, rm, ps, pull and build. `compose up` runs `tensorserve serve --sagemaker` in its \
own place, with the volumes, ports and variables of the compose file; the others do nothing. All other commands are \
refused.

Example, with ~/bin before Docker on the PATH:
  ln -s \"$(command -v tensorserve)\" ~/bin/docker";

/// The names by which it is called.
pub(crate) const NAMES: [&str; 2] = ["docker", "docker-compose"];

/// Scripts check that this is version 2.
const COMPOSE_VERSION: &str = "Docker Compose version v2.0.0 (tensorserve docker-shim)";

/// Ports on which the container listens.
const MAIN_PORT: u16 = 8080;
const REST_PORT: u16 = 8501;

/// Runs the shim.
pub(crate) fn run(
    is_compose: bool,
    arguments: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> ExitCode {
    let arguments = arguments.into_iter().map(|argument| argument.to_string_lossy().into_owned());
    let mut arguments: Vec<String> = arguments.collect();
    if arguments.first().is_some_and(is_help) {
        print_help_of(NAME);
        return ExitCode::SUCCESS;
    }
    if is_compose {
        arguments.insert(0, "compose".to_owned());
    }
    exit_code(answer(&arguments, environment).map(|()| ExitCode::SUCCESS))
}

fn answer(arguments: &[String], environment: &Environment) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["info", ..] => print_text(
            "Server:\n Server Version: 28.0.0 (tensorserve docker-shim)\n Cgroup Driver: cgroupfs",
        ),
        ["context", "inspect", ..] => print_line(
            "[{\"Name\": \"default\", \"Metadata\": {}, \"Endpoints\": {\"docker\": {\"Host\": \
             \"unix:///var/run/docker.sock\", \"SkipTLSVerify\": false}}}]",
        ),
        ["version" | "--version" | "-v", ..] => {
            print_line("Docker version 28.0.0, build tensorserve docker-shim");
        }
        // There is no image to download: this binary replaces it.
        ["images", ..] => print_line("tensorserve"),
        ["pull", image, ..] => print_line(&format!("{image}: replaced by tensorserve")),
        ["login", ..] => print_line("Login Succeeded"),
        ["compose", rest @ ..] => return composed(rest, environment),
        _ => return Err(unknown(&arguments.join(" "))),
    }
    Ok(())
}

fn unknown(command: &str) -> Error {
    Error::invalid(format!(
        "docker {command}: tensorserve's docker-shim supports only the commands that SageMaker's \
         local mode needs: info, context inspect, version, images, pull, login, compose version, \
         up, down, stop and ps"
    ))
}

/// Options of `docker compose` that take a value.
const WITH_VALUE: [&str; 9] = [
    "-f",
    "--file",
    "-p",
    "--project-name",
    "--project-directory",
    "--env-file",
    "--profile",
    "--ansi",
    "--progress",
];

/// `docker compose [-f FILE] COMMAND [--flag…]`.
fn composed(words: &[&str], environment: &Environment) -> Result<()> {
    let mut file = None;
    let mut command = None;
    let mut words = words.iter();
    while let Some(&word) = words.next() {
        let (name, value) = word.split_once('=').map_or((word, None), |(n, v)| (n, Some(v)));
        if command.is_none() && WITH_VALUE.contains(&name) {
            let value = value.or_else(|| words.next().copied());
            if matches!(name, "-f" | "--file") {
                file = value.map(PathBuf::from);
            }
        } else if command.is_none() && !word.starts_with('-') {
            command = Some(word);
        }
    }
    match command {
        Some("version") => print_line(COMPOSE_VERSION),
        // The process that started the container stops it with a signal.
        Some("down" | "stop" | "kill" | "rm" | "ps" | "pull" | "build") => {}
        Some("up") => {
            let file = file.unwrap_or_else(|| PathBuf::from("docker-compose.yaml"));
            return up(&file, environment);
        }
        _ => return Err(unknown(&format!("compose {}", command.unwrap_or_default()))),
    }
    Ok(())
}

/// Replaces this process by the server that `file` describes.
fn up(file: &Path, environment: &Environment) -> Result<()> {
    let text = fs::read_to_string(file)
        .map_err(|e| Error::not_found(format!("{}: {e}", file.display())).with_source(e))?;
    let service = compose::service(&text).map_err(|e| e.context(file.display()))?;
    let container = Container::new(&service).map_err(|e| e.context(file.display()))?;
    for note in &container.notes {
        print_line(&format!("docker-shim: {note}"));
    }
    let failed =
        |e: std::io::Error| Error::internal("the server could not be started").with_source(e);
    let binary = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(binary);
    command.arg0("tensorserve").args(["serve", "--sagemaker"]);
    // A container does not inherit SageMaker's variables of its caller.
    for name in environment.of_sagemaker() {
        command.env_remove(name);
    }
    command.envs(container.variables);
    // The SDK reads only stdout.
    command.stderr(Stdio::from(std::io::stdout()));
    Err(failed(command.exec()))
}

/// The parts of a container that apply to a plain process.
#[derive(Debug, Default)]
struct Container {
    variables: Vec<(String, String)>,
    notes: Vec<String>,
}

impl Container {
    fn new(service: &Service) -> Result<Self> {
        if service.command != ["serve"] {
            let command = service.command.join(" ");
            return Err(Error::invalid(format!(
                "command {command:?}: tensorserve supports only the command serve in a container"
            )));
        }
        let mut container = Container { variables: service.environment.clone(), notes: Vec::new() };
        let mut bound = service.environment.iter();
        let bound = bound.find(|(name, _)| name == "SAGEMAKER_BIND_TO_PORT");
        let main = bound.and_then(|(_, port)| port.parse().ok()).unwrap_or(MAIN_PORT);
        for volume in &service.volumes {
            container.mount(volume);
        }
        for port in &service.ports {
            container.publish(port, main)?;
        }
        Ok(container)
    }

    fn set(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// `HOST:CONTAINER[:options]`.
    fn mount(&mut self, volume: &str) {
        let mut parts = volume.split(':');
        let (host, inside) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        match inside.trim_end_matches('/') {
            MODEL_DIR | MODELS_DIR => self.set("SAGEMAKER_MODEL_DIR", host),
            _ => self
                .notes
                .push(format!("volume {volume} is ignored: a model server does not use it")),
        }
    }

    /// `[ADDRESS:]HOST:CONTAINER`.
    fn publish(&mut self, port: &str, main: u16) -> Result<()> {
        let wrong = || Error::invalid(format!("ports: {port:?} is not HOST:CONTAINER"));
        let text = port.strip_suffix("/tcp").unwrap_or(port);
        let mut parts = text.rsplit(':').map(str::parse::<u16>);
        let (inside, outside) = (parts.next(), parts.next());
        let inside = inside.and_then(Result::ok).ok_or_else(wrong)?;
        let outside = outside.transpose().map_err(|_| wrong())?.unwrap_or(inside);
        if inside == main {
            self.set("SAGEMAKER_BIND_TO_PORT", &outside.to_string());
        } else if inside != REST_PORT {
            self.notes.push(format!("port {inside} of the container is not published"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(ports: &[&str], volumes: &[&str], command: &str) -> Service {
        let texts = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        Service {
            command: vec![command.to_owned()],
            environment: vec![("K".to_owned(), "a=b".to_owned())],
            volumes: texts(volumes),
            ports: texts(ports),
        }
    }

    #[test]
    fn a_container_becomes_variables() {
        let service = service(
            &["127.0.0.1:9090:8080", "8501:8501", "1:2"],
            &["/m:/opt/ml/model:z", "/x:/y"],
            "serve",
        );
        let container = Container::new(&service).expect("valid");
        let variables: Vec<String> =
            container.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = ["K=a=b", "SAGEMAKER_MODEL_DIR=/m", "SAGEMAKER_BIND_TO_PORT=9090"];
        assert_eq!(variables, expected);
        assert_eq!(container.notes.len(), 2, "{:?}", container.notes);
    }

    #[test]
    fn unsupported_commands_are_refused() {
        let error = Container::new(&service(&[], &[], "train")).expect_err("no training");
        assert!(error.message().contains("\"train\""), "{error}");
        let error = Container::new(&service(&["many"], &[], "serve")).expect_err("no port");
        assert!(error.message().contains("\"many\""), "{error}");
        let environment = Environment::default();
        let error = answer(&["swarm".to_owned(), "init".to_owned()], &environment);
        assert!(error.expect_err("unknown").message().contains("docker swarm init"));
    }
}
