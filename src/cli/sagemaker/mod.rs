//! `serve` as SageMaker calls it: as the TensorFlow Serving container of an endpoint, with the
//! container's directories and environment variables.

#[cfg(feature = "transform")]
use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::Args;

use super::logging::{LibraryLines, say, says_events};
use super::{logging, print_text, serve};
#[cfg(feature = "transform")]
use crate::config::Config;
use crate::config::environment::Environment;
use crate::config::{SagemakerConfig, Settings, sagemaker};
use tensorserve_core::engine::{Engine, VersionState};
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

mod compose;
pub(super) mod docker;
mod start;

/// The name by which SageMaker starts the program of a container.
pub(super) const NAME: &str = "serve";

/// Options of `serve` for SageMaker.
#[derive(Args)]
#[command(next_help_heading = "SageMaker")]
pub(super) struct Arguments {
    /// Run as SageMaker's TensorFlow Serving container, with its port (8080), variables and
    /// directories [default: only if no PATH and no --config is given, and a SAGEMAKER_ variable,
    /// /opt/ml/model or /opt/ml/models exists]
    #[arg(long)]
    sagemaker: bool,
    /// Run as SageMaker's container with the models in this directory or model.tar.gz
    /// [default: SAGEMAKER_MODEL_DIR, or /opt/ml/model; /opt/ml/models for multi-model endpoints]
    #[arg(long, value_name = "PATH")]
    model_dir: Option<PathBuf>,
}

impl Arguments {
    /// The mistake that options of SageMaker's container are used with paths of models.
    pub(super) fn conflict(&self, settings: &Settings) -> Option<&'static str> {
        (self.are_given() && !settings.paths.is_empty()).then_some(
            "--sagemaker and --model-dir cannot be used with PATH; name the models' directory with \
             --model-dir alone",
        )
    }

    /// Whether SageMaker's container is requested by an option.
    pub(super) fn are_given(&self) -> bool {
        self.sagemaker || self.model_dir.is_some()
    }

    /// Whether to run as SageMaker's container: on request, or if there is nothing else to serve
    /// and SageMaker seems to have started the program.
    pub(super) fn are_requested(&self, settings: &Settings, environment: &Environment) -> bool {
        if self.are_given() {
            return true;
        }
        let nothing_is_named = settings.paths.is_empty() && settings.config.is_none();
        nothing_is_named && sagemaker::is_called_for(environment)
    }
}

pub(super) fn run(
    settings: Settings,
    arguments: &Arguments,
    environment: &Environment,
) -> Result<ExitCode> {
    let started = Instant::now();
    let variables = sagemaker::read(environment);
    let mut for_log = settings.clone().or_file();
    let server = &mut for_log.server;
    server.log_level = server.log_level.take().or(variables.settings.server.log_level.clone());
    logging::start(&for_log, environment, LibraryLines::InLog);
    let model_dir = arguments.model_dir.clone();
    let start = start::start(settings, variables, model_dir, environment)?;
    for note in &start.notes {
        log::warn!("{note}");
    }
    match says_events() {
        true => {
            start.report.lines().filter(|line| !line.is_empty()).for_each(|line| say(line, &[]))
        }
        false => print_text(&start.report),
    }
    let SagemakerConfig { default_model, multi_model, .. } = &start.config.protocols.sagemaker;
    let awaited = default_model.clone().filter(|_| multi_model.is_none());
    serve::serve(&start.config, environment, started, None, |server| match awaited {
        Some(model) => end_without(server.engine().clone(), model),
        None => Ok(()),
    })
}

/// The configuration for the models in `model_dir`, as SageMaker's container would serve them.
///
/// # Errors
/// Wrong settings; no models in the directory.
#[cfg(feature = "transform")]
pub(super) fn config_of(
    settings: Settings,
    model_dir: &Path,
    environment: &Environment,
) -> Result<Config> {
    let variables = sagemaker::read(environment);
    let start = start::start(settings, variables, Some(model_dir.to_owned()), environment)?;
    start.notes.iter().for_each(|note| log::warn!("{note}"));
    Ok(start.config)
}

/// Ends the program if no version of the default model can be loaded, as the container ends when it
/// has waited for it in vain: whoever started it learns at once that it will never respond to pings.
fn end_without(engine: Engine, model: String) -> Result<()> {
    let wait = move || {
        engine.wait_until_started(|_| ());
        let versions = engine.repository().status(&model);
        if versions.iter().all(|version| matches!(version.state, VersionState::Failed(_))) {
            log::error!("the default model {model:?} cannot be loaded: the container ends");
            os::exit_now(1);
        }
    };
    let started = thread::Builder::new().name("default model".to_owned()).spawn(wait);
    let failed = |e| Error::internal("a thread could not be started").with_source(e);
    started.map(drop).map_err(failed)
}
