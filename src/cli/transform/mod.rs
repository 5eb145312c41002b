//! `tensorserve transform`: whole datasets through a model, without a server.
//!
//! [`options`] turns what the user has written into a job, [`inputs`] finds its objects, [`model`] loads
//! the model, [`mod@prepare`] freezes or resumes the plan, and [`show`] tells how far the job is. The work is
//! done in the crate `transform`.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::interrupt::{INTERRUPTED, stop_on_signals};
use super::{print_error, print_line, probe_host};
use crate::config::environment::Environment;
use crate::config::{Config, Settings};
use crate::platforms;
use tensorserve_os as os;
use tensorserve_probe::probed;
use tensorserve_tensor::error::{Code, Result};

mod arguments;
mod inputs;
mod metrics;
mod model;
mod options;
mod prepare;
mod show;

pub(in crate::cli) use self::arguments::{Arguments, HELP};
use self::prepare::{PreparedCommand, prepare};

/// The exit statuses besides 0.
const SOME_FAILED: u8 = 1;
const WRONG_OPTIONS: u8 = 2;
const CANNOT_GO_ON: u8 = 3;

/// Runs a job, and returns the exit status.
pub(super) fn run(arguments: Arguments, environment: &Environment) -> ExitCode {
    // One arena per core keeps lock contention low.
    let cores = thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
    os::limit_malloc_arenas(cores);
    os::keep_freed_memory(usize::MAX);
    let status = match run_job(arguments, environment) {
        Ok(status) => status,
        Err(error) => {
            print_error(&error);
            if matches!(error.code(), Code::InvalidArgument | Code::NotFound) {
                WRONG_OPTIONS
            } else if error.code() == Code::Cancelled {
                INTERRUPTED
            } else {
                CANNOT_GO_ON
            }
        }
    };
    // Without the clean-up of the runtimes, which can hang or crash while threads are at work.
    os::exit_now(status.into())
}

fn run_job(arguments: Arguments, environment: &Environment) -> Result<u8> {
    // First: the process that probes models is forked while there is one thread.
    let config = Config::new(Settings::default().or_environment(environment), environment)?;
    let config = config.with_stderr_for_libraries();
    let host = probe_host::settings(&config);
    let platforms = probed(platforms::built_in(&config), &config.probe, host);
    let platforms = platforms::with_engines(platforms);
    raise_descriptor_limit();
    let stop = Arc::new(AtomicBool::new(false));
    // The run ends when its batches are done.
    let note = "interrupted: what is done stays done, and the same command goes on with the rest";
    stop_on_signals(Arc::clone(&stop), note)?;
    match prepare(arguments, environment, platforms, &stop)? {
        PreparedCommand::Finished => Ok(0),
        PreparedCommand::Job(job) => {
            let outcome = job.run()?;
            if outcome.is_interrupted {
                return Ok(INTERRUPTED);
            }
            Ok(if outcome.failed.is_empty() { 0 } else { SOME_FAILED })
        }
    }
}

/// Outputs that are written hold a file descriptor each, of which many systems allow 1,024 at first.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Without it, jobs with small objects on many cores may fail, and say why.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Prints a line of JSON on stdout.
fn print_json(value: &impl serde::Serialize) {
    if let Ok(text) = serde_json::to_string(value) {
        print_line(&text);
    }
}
