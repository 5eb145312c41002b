//! Runs of two engines: one that is quicker where it computes the same, and one that is always right.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorserve_openvino::saved_model::{SavedModelPlan, are_finite};
use tensorserve_platform::{Executable, Profiled, RunOptions};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Error, Result};

/// The longest run in the engine. Its process may have been stopped from outside; a request must not wait for it.
const LONGEST_RUN: Duration = Duration::from_secs(2);

/// What the other engine runs.
pub(crate) struct EngineRuns {
    /// The signature's number in the model.
    pub(crate) signature: usize,
    /// On which inputs.
    pub(crate) plan: SavedModelPlan,
    /// Runs it as signature 0.
    pub(crate) executable: Arc<dyn Executable>,
}

/// A model on two engines.
pub(crate) struct GuardedExecutable {
    engine: EngineRuns,
    /// The model on its own engine.
    present: Arc<dyn Executable>,
    /// For messages.
    model: String,
}

impl GuardedExecutable {
    pub(crate) fn new(engine: EngineRuns, present: Arc<dyn Executable>, model: String) -> Self {
        GuardedExecutable { engine, present, model }
    }

    /// The outputs of the engine; `None` if the model's own has to run.
    fn run_in_engine(&self, inputs: &[Tensor], options: RunOptions) -> Option<Vec<Tensor>> {
        let timeout = options.timeout.map_or(LONGEST_RUN, |timeout| timeout.min(LONGEST_RUN));
        let options = RunOptions { timeout: Some(timeout), ..options };
        match self.engine.executable.run(0, inputs, options) {
            Ok(outputs) => are_finite(&outputs).then_some(outputs),
            Err(error) => {
                log::debug!("{}: runs on its own engine: {error}", self.model);
                None
            }
        }
    }
}

impl Executable for GuardedExecutable {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let began = Instant::now();
        let outputs = match signature == self.engine.signature && self.engine.plan.takes(inputs) {
            true => self.run_in_engine(inputs, options),
            false => None,
        };
        if let Some(outputs) = outputs {
            return Ok(outputs);
        }
        let timeout = options.timeout.map(|timeout| timeout.saturating_sub(began.elapsed()));
        self.present.run(signature, inputs, RunOptions { timeout, ..options })
    }

    fn waits(&self) -> bool {
        self.present.waits()
    }

    fn runs_on_gpu(&self) -> bool {
        self.present.runs_on_gpu()
    }

    fn obstacle(&self) -> Option<Error> {
        self.present.obstacle()
    }

    fn other_cpu_time(&self) -> Option<Duration> {
        self.engine.executable.other_cpu_time()
    }

    fn profile(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<Profiled> {
        self.present.profile(signature, inputs, options)
    }
}
