//! `simple_tensorflow_serving` and `stfs`: this binary under Simple TensorFlow Serving's names,
//! with its flags and its list of models.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use self::flags::Flags;
use super::logging::{LibraryLines, say};
use super::{exit_code, logging, print_clap, serve};
use crate::config::Settings;
use crate::config::environment::Environment;
use tensorserve_tensor::error::Result;

mod flags;
mod start;

/// The names by which it is called.
pub(super) const NAMES: [&str; 2] = ["simple_tensorflow_serving", "stfs"];

pub(super) fn run(
    program: &str,
    arguments: impl IntoIterator<Item = OsString>,
    environment: &Environment,
) -> ExitCode {
    let started = Instant::now();
    let flags = match Flags::parse_from(program, arguments) {
        Ok(flags) => flags,
        Err(found) => return print_clap(&found),
    };
    exit_code(serve(&flags, environment, started))
}

fn serve(flags: &Flags, environment: &Environment, started: Instant) -> Result<ExitCode> {
    let settings = Settings::of_environment(environment);
    let mut for_log = settings.clone();
    for_log.server.log_level = for_log.server.log_level.or(start::log_level(flags)?);
    logging::start(&for_log, environment, LibraryLines::InLog);
    let start = start::start(flags, &settings, environment)?;
    for note in &start.notes {
        log::warn!("{note}");
    }
    for (name, value) in flags.listed() {
        say(&format!("{name}: {value}"), &[]);
    }
    serve::serve(&start.config, environment, started, None, |_| Ok(()))
}
