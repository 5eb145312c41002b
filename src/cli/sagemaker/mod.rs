//! `serve` as SageMaker calls it: this binary as the TensorFlow Serving container of an endpoint,
//! with its folders and environment variables.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;

use super::{say, serve};
use crate::config::environment::Environment;
use crate::config::{Settings, sagemaker};
use tensorserve_tensor::error::Result;

mod compose;
pub(super) mod docker;
mod start;

/// The name that SageMaker calls a container's program by.
pub(super) const NAME: &str = "serve";

/// Options of `serve` that are SageMaker's.
#[derive(Args)]
#[command(next_help_heading = "SageMaker")]
pub(super) struct Arguments {
    /// Be SageMaker's TensorFlow Serving container: port 8080, its variables, its folders. So is
    /// `serve` alone where SAGEMAKER_ variables or /opt/ml/model are there
    #[arg(long)]
    sagemaker: bool,
    /// The same, with the models in this folder or model.tar.gz and not in /opt/ml/model (for a
    /// multi-model endpoint /opt/ml/models); also SAGEMAKER_MODEL_DIR
    #[arg(long, value_name = "PATH")]
    model_dir: Option<PathBuf>,
}

impl Arguments {
    /// Whether SageMaker's container is meant: because it is asked for, or because there is
    /// nothing else to serve and SageMaker seems to be the caller.
    pub(super) fn are_meant(&self, settings: &Settings, environment: &Environment) -> bool {
        if self.sagemaker || self.model_dir.is_some() {
            return true;
        }
        let names_nothing = settings.paths.is_empty() && settings.config.is_none();
        names_nothing && sagemaker::is_called_for(environment)
    }
}

pub(super) fn run(
    mut settings: Settings,
    arguments: &Arguments,
    environment: &Environment,
) -> Result<ExitCode> {
    let started = Instant::now();
    let variables = sagemaker::read(environment);
    let log_level = settings.server.log_level.clone();
    let mut for_log = Settings::default();
    for_log.server.log_level = log_level.or(variables.settings.server.log_level.clone());
    serve::start_log(&for_log, environment);
    if !settings.paths.is_empty() {
        settings.reading.mistakes.add(
            "--sagemaker and --model-dir cannot be used with PATH; name the models' directory with \
             --model-dir alone",
        );
    }
    let model_dir = arguments.model_dir.clone();
    let start = start::start(settings, variables, model_dir, environment)?;
    for note in &start.notes {
        log::warn!("{note}");
    }
    say(start.report.trim_end());
    serve::serve(&start.config, environment, started, |_| Ok(()))
}
