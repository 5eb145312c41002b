//! Runs of a version's signatures: through its batch queues, with pre- and post-processing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::servable::Servable;
use crate::batch::{BatchOutput, BatchQueue};
use tensorserve_platform::{Executable, Profiled, RunOptions};
use tensorserve_preprocessing::ProcessingSteps;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::priority::Priority;
use tensorserve_tensor::{Signature, Tensor};

impl Servable {
    /// Runs signature number `index` on `inputs`, one for each of its inputs in order.
    ///
    /// # Errors
    /// What [`BatchQueue::submit`] reports, and [`Code::InvalidArgument`] for inputs of the wrong number
    /// or type.
    pub(crate) async fn infer(
        &self,
        index: usize,
        inputs: Vec<Tensor>,
        deadline: Option<Instant>,
        priority: Priority,
    ) -> Result<BatchOutput> {
        let queue = self.queue(index, &inputs)?;
        let Some(steps) = self.steps(index) else {
            return queue.submit(inputs, deadline, priority).await;
        };
        // Boxed, so that the future of every other request stays small.
        Box::pin(self.infer_with(steps, queue, inputs, deadline, priority)).await
    }

    /// Runs a request through its queue, between pre- and post-processing.
    async fn infer_with(
        &self,
        steps: &Arc<ProcessingSteps>,
        queue: &BatchQueue,
        inputs: Vec<Tensor>,
        deadline: Option<Instant>,
        priority: Priority,
    ) -> Result<BatchOutput> {
        let threads = &self.loaded.step_threads;
        let (cost, before) = (steps.preprocess_cost(&inputs), Arc::clone(steps));
        let inputs = threads
            .run(cost, deadline, move |between| before.preprocess_in_turns(&inputs, between))
            .await?;
        steps.model_signature().check_shapes(&inputs)?;
        let BatchOutput { outputs, timing } = queue.submit(inputs, deadline, priority).await?;
        let (cost, behind) = (steps.postprocess_cost(&outputs), Arc::clone(steps));
        let outputs = threads.run(cost, deadline, move |_| behind.postprocess(outputs)).await?;
        Ok(BatchOutput { outputs, timing })
    }

    fn steps(&self, index: usize) -> Option<&Arc<ProcessingSteps>> {
        self.loaded.steps.get(index)?.as_ref()
    }

    /// Runs a recorded request at once, on this thread and outside the queue, for the warm-up. Blocks.
    ///
    /// # Errors
    /// Those of the model, and those for inputs of the wrong number or type.
    pub(crate) fn run_now(&self, index: usize, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let queue = self.queue(index, inputs)?;
        self.with_steps(index, inputs, |inputs| queue.warm_on_record(inputs))
    }

    /// Runs a request that nobody waits for, outside the queue: the run is counted, and ends at `deadline`. Blocks.
    ///
    /// # Errors
    /// Those of the model, and those for inputs of the wrong number or type.
    pub(crate) fn run_aside(
        &self,
        index: usize,
        inputs: &[Tensor],
        deadline: Instant,
    ) -> Result<Vec<Tensor>> {
        let queue = self.queue(index, inputs)?;
        self.with_steps(index, inputs, |inputs| queue.run_aside(inputs, deadline))
    }

    /// Calls `run` between the pre- and the post-processing of a signature.
    fn with_steps(
        &self,
        index: usize,
        inputs: &[Tensor],
        run: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        let Some(steps) = self.steps(index) else {
            return run(inputs);
        };
        let prepared = steps.preprocess(inputs)?;
        steps.model_signature().check_shapes(&prepared)?;
        steps.postprocess(run(&prepared)?)
    }

    /// Runs for at most `timeout`, with a profile of every operation. Blocks.
    ///
    /// # Errors
    /// Those of [`Servable::run_now`]; [`Code::Unimplemented`] if the model's runtime has no
    /// profiler.
    pub(crate) fn profile(
        &self,
        index: usize,
        inputs: &[Tensor],
        timeout: Duration,
    ) -> Result<Profiled> {
        self.queue(index, inputs)?;
        let options = RunOptions { threads: self.loaded.threads, timeout: Some(timeout) };
        let Some(steps) = self.steps(index) else {
            return self.loaded.executable.profile(index, inputs, options);
        };
        let prepared = steps.preprocess(inputs)?;
        steps.model_signature().check_shapes(&prepared)?;
        let (outputs, runs) = self.loaded.executable.profile(index, &prepared, options)?;
        Ok((steps.postprocess(outputs)?, runs))
    }

    /// The queue of signature number `index`, after a check of the inputs.
    fn queue(&self, index: usize, inputs: &[Tensor]) -> Result<&BatchQueue> {
        let (Some(signature), Some(queue)) =
            (self.loaded.signatures.get(index), self.queues.get(index))
        else {
            return Err(Error::internal("no such signature number"));
        };
        check(signature, inputs)?;
        Ok(queue)
    }
}

/// Checks that there is one tensor for each declared input, and that requests can contain all
/// declared dtypes. Dtypes, and shapes unless the signature insists on them, are left to the runtime,
/// which checks them against the graph: existing models declare wrong ones (TensorFlow Serving's
/// half_plus_three takes strings for a declared float).
fn check(signature: &Signature, inputs: &[Tensor]) -> Result<()> {
    if inputs.len() != signature.inputs.len() {
        let (want, got) = (signature.inputs.len(), inputs.len());
        let name = &signature.name;
        return Err(Error::invalid(format!("signature {name:?} takes {want} inputs, not {got}")));
    }
    let Some(spec) = signature.inputs.iter().find(|spec| spec.dtype().is_none()) else {
        return signature.check_shapes(inputs);
    };
    let (alias, number) = (&spec.alias, spec.dtype_number);
    let message =
        format!("input {alias:?} has dtype number {number}, which requests cannot contain");
    Err(Error::new(Code::Unimplemented, message))
}
