//! `tensorflow_model_server`: this binary under TensorFlow Serving's name, with its flags, its
//! files and its ways to fail.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use self::flags::Flags;
use self::start::Watched;
use super::{say, serve};
use crate::config::environment::Environment;
use crate::config::{Config, ModelConfig, Settings, SourceConfig};
use crate::platforms;
use tensorserve_core::engine::Engine;
use tensorserve_tensor::error::{Error, Result};

mod flags;
mod start;

/// The name it is called by.
pub(super) const NAME: &str = "tensorflow_model_server";

/// How TensorFlow Serving ends when it can not start: -1, as the shell sees it.
const FAILED: u8 = 255;

pub(super) fn run(
    arguments: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> ExitCode {
    let started = Instant::now();
    let arguments = arguments.into_iter().map(|argument| argument.to_string_lossy().into_owned());
    let arguments: Vec<String> = arguments.collect();
    if arguments.iter().any(|argument| argument == "--help") {
        say(flags::usage(NAME).trim_end());
        return ExitCode::SUCCESS;
    }
    let flags = match Flags::parse(arguments) {
        Ok(flags) => flags,
        Err(error) => {
            complain(&format!("{error}\n{}", flags::usage(NAME)));
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
        complain(&format!("{}\n{}", unknown.join("\n"), flags::usage(NAME)));
    }
    match serve(&flags, environment, started) {
        Ok(code) => code,
        Err(error) => {
            // The log is where people look; the line on stdout is what scripts wait for.
            log::error!("{error}");
            say(&format!("Failed to start server. Error: {}: {error}", error.code().name()));
            ExitCode::from(FAILED)
        }
    }
}

fn serve(flags: &Flags, environment: &Environment, started: Instant) -> Result<ExitCode> {
    let settings = Settings::of_environment(environment);
    serve::start_log(&settings, environment);
    let start = start::start(flags, &settings, environment)?;
    for note in &start.notes {
        log::warn!("{note}");
    }
    let config = &start.config;
    serve::serve(config, environment, started, |server| {
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
        thread.map(drop).map_err(|e| Error::internal("a thread could not start").with_source(e))
    })
}

/// Reads the list of models, and their batching parameters, again and again, and serves it when
/// it has changed. A list that can not be read changes nothing.
fn watch(
    watched: &Watched,
    mut common: ModelConfig,
    mut sources: Vec<SourceConfig>,
    engine: &Engine,
) {
    let path = watched.path.display();
    let mut told = String::new();
    loop {
        thread::sleep(watched.every);
        let trouble = match watched.read(&mut common) {
            Ok(Some(list)) => {
                told.clear();
                if list.sources == sources {
                    continue;
                }
                sources = list.sources;
                for note in list.notes {
                    log::warn!("{note}");
                }
                // The next list need not wait for the models of this one.
                let (engine, sources) = (engine.clone(), sources.clone());
                let spawned = thread::Builder::new()
                    .name("model reload".to_owned())
                    .spawn(move || reload(&engine, sources));
                match spawned {
                    Ok(_) => continue,
                    Err(error) => format!("{path}: a thread could not start: {error}"),
                }
            }
            // Perhaps it is being written.
            Ok(None) => format!("{path}: it has no model_config_list"),
            Err(error) => error.to_string(),
        };
        if trouble != told {
            log::error!("{trouble}; the models stay as they are");
            told = trouble;
        }
    }
}

fn reload(engine: &Engine, sources: Vec<SourceConfig>) {
    let count = sources.len();
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(engine.reload(sources)),
        Err(error) => Err(Error::internal("the list could not be applied").with_source(error)),
    };
    match outcome {
        Ok(()) => log::info!("the new list of {count} models is served"),
        Err(error) => log::error!("the new list of {count} models: {error}"),
    }
}

fn version(environment: &Environment) {
    say(concat!("TensorFlow ModelServer: ", env!("CARGO_PKG_VERSION")));
    let settings = Settings::of_environment(environment);
    let library = library_version(settings, environment);
    say(&format!("TensorFlow Library: {library}"));
}

/// The version of libtensorflow, or why there is none.
fn library_version(settings: Settings, environment: &Environment) -> String {
    let config = match Config::new(settings, environment) {
        Ok(config) => config,
        Err(error) => return error.to_string(),
    };
    let platforms = platforms::built_in(&config);
    let tensorflow = platforms.of_version(Path::new(""), Some("tensorflow"));
    match tensorflow.map(|platform| platform.describe()) {
        Some(Ok(description)) => description.trim_start_matches("libtensorflow ").to_owned(),
        Some(Err(error)) => error.to_string(),
        None => "none".to_owned(),
    }
}

fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}
