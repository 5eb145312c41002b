//! `tensorflow_model_server`: this binary under TensorFlow Serving's name, with its flags, its
//! configuration files and its exit codes.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use self::flags::Flags;
use self::start::WatchedModelList;
use super::logging::{LibraryLines, say};
use super::printable::printable;
use super::reload::apply_models;
use super::{logging, print_line, print_text, serve};
use crate::config::environment::Environment;
use crate::config::units::Port;
use crate::config::{Config, ModelConfig, Settings, SourceConfig};
use crate::platforms;
use tensorserve_core::engine::Engine;
use tensorserve_tensor::error::{Error, Result};

mod flags;
mod start;

/// The name by which it is called.
pub(super) const NAME: &str = "tensorflow_model_server";

/// The exit code of TensorFlow Serving when it cannot start: -1, as the shell sees it.
const FAILED: u8 = 255;

pub(super) fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> ExitCode {
    let started = Instant::now();
    let arguments = arguments.into_iter().map(|argument| argument.to_string_lossy().into_owned());
    let arguments: Vec<String> = arguments.collect();
    if arguments.iter().any(|argument| argument == "--help") {
        print_text(&flags::usage(NAME));
        return ExitCode::SUCCESS;
    }
    let flags = match Flags::parse(arguments) {
        Ok(flags) => flags,
        Err(error) => {
            print_stderr(&format!("{error}\n{}", flags::usage(NAME)));
            return ExitCode::from(FAILED);
        }
    };
    if flags.is_set("version") {
        version(environment);
        return ExitCode::SUCCESS;
    }
    if !flags.unknown.is_empty() {
        let unknown = flags.unknown.iter().map(|argument| format!("unknown argument: {argument}"));
        let unknown: Vec<String> = unknown.collect();
        print_stderr(&format!("{}\n{}", unknown.join("\n"), flags::usage(NAME)));
    }
    match serve(&flags, environment, started) {
        Ok(code) => code,
        Err(error) => {
            // People read the log; scripts wait for the line on stdout.
            log::error!("{error}");
            let code = error.code().name();
            say(&format!("Failed to start server. Error: {code}: {error}"), &[]);
            ExitCode::from(FAILED)
        }
    }
}

/// A URL that responds when a server with these flags is ready; without HTTP, that of the gRPC port
/// (`tcp:`). `None` for flags with which no server starts.
pub(super) fn health_url(
    arguments: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> Option<String> {
    let arguments = arguments.into_iter().map(|argument| argument.to_string_lossy().into_owned());
    let flags = Flags::parse(arguments).ok()?;
    let set = Settings::of_environment(environment).server;
    let http = flags.int("rest_api_port").or_else(|| number(set.http_port)).unwrap_or(0);
    let is_encrypted = flags.text("rest_api_ssl_config_file").is_some()
        || set.tls_certificate.is_some()
        || set.http_tls_certificate.is_some();
    let scheme = if is_encrypted { "https" } else { "http" };
    if http != 0 {
        return Some(format!("{scheme}://127.0.0.1:{http}"));
    }
    let grpc = flags.int("port").or_else(|| number(set.grpc_port)).unwrap_or(8500);
    Some(format!("tcp://127.0.0.1:{grpc}"))
}

/// A port that a variable sets.
fn number(port: Option<Port>) -> Option<i64> {
    port.and_then(Port::number).map(i64::from)
}

fn serve(flags: &Flags, environment: &Environment, started: Instant) -> Result<ExitCode> {
    let settings = Settings::of_environment(environment);
    logging::start(&settings, environment, LibraryLines::InLog);
    let start = start::start(flags, &settings, environment)?;
    for note in &start.notes {
        log::warn!("{note}");
    }
    let config = &start.config;
    serve::serve(config, environment, started, None, |server| {
        if let Some(address) = server.address() {
            // Scripts wait for this line of TensorFlow Serving's.
            log::info!("Exporting HTTP/REST API at:localhost:{} ...", address.port());
        }
        let Some(watched) = start.watched else {
            return Ok(());
        };
        let repository = &config.repository;
        let (common, sources) = (repository.common.clone(), repository.sources.clone());
        let engine = server.engine().clone();
        let watch = move || watch(&watched, common, sources, &engine);
        let thread = thread::Builder::new().name("model list".to_owned()).spawn(watch);
        thread
            .map(drop)
            .map_err(|e| Error::internal("a thread could not be started").with_source(e))
    })
}

/// Reads the list of models and their batching parameters periodically, and applies each change. A
/// list that cannot be read changes nothing.
fn watch(
    watched: &WatchedModelList,
    mut common: ModelConfig,
    mut sources: Vec<SourceConfig>,
    engine: &Engine,
) {
    let path = watched.path.display();
    let mut last_problem = String::new();
    loop {
        thread::sleep(watched.every);
        let problem = match watched.read(&mut common) {
            Ok(Some(list)) => {
                last_problem.clear();
                if list.sources == sources {
                    continue;
                }
                sources = list.sources;
                for note in list.notes {
                    log::warn!("{note}");
                }
                apply_models(engine, sources.clone());
                continue;
            }
            // Perhaps the file is being written.
            Ok(None) => format!("{path}: the file has no model_config_list"),
            Err(error) => error.to_string(),
        };
        if problem != last_problem {
            log::error!("{problem}; the models stay unchanged");
            last_problem = problem;
        }
    }
}

fn version(environment: &Environment) {
    print_line(concat!("TensorFlow ModelServer: ", env!("CARGO_PKG_VERSION")));
    let settings = Settings::of_environment(environment);
    let library = library_version(settings, environment);
    print_line(&format!("TensorFlow Library: {library}"));
}

/// The version of libtensorflow, or why it cannot be found.
fn library_version(settings: Settings, environment: &Environment) -> String {
    let config = match Config::new(settings, environment) {
        Ok(config) => config,
        Err(error) => return error.to_string(),
    };
    let platforms = platforms::built_in(&config);
    let tensorflow = platforms.of_version(Path::new(""), Some("tensorflow"));
    match tensorflow.map(|platform| platform.runtime.describe()) {
        Some(Ok(description)) => description.trim_start_matches("libtensorflow ").to_owned(),
        Some(Err(error)) => error.to_string(),
        None => "none".to_owned(),
    }
}

fn print_stderr(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(text.trim_end()));
}
