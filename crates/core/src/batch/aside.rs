//! Runs beside the queue, for requests that nobody waits for.

use std::sync::Arc;
use std::time::Instant;

use super::assemble::{assemble, split, unsplittable};
use super::{BatchQueue, BusyGuard, QueueInner};
use tensorserve_platform::RunOptions;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::Result;

/// Of a run that is expected to take less than this part of its time, and always ends, the runtime need not
/// watch the time.
const SURELY_IN_TIME: u32 = 10;

impl BatchQueue {
    /// Runs `inputs` alone and at once, with one thread within an operation. Requests in
    /// the queue do not wait for it. The run is counted like one of the queue, but its duration has no
    /// part in decisions about other requests: this thread may be of low priority. Blocks.
    ///
    /// # Errors
    /// What the model reports; [`Code::InvalidArgument`](tensorserve_tensor::error::Code) for more rows
    /// than the configured batch size allows.
    pub fn run_aside(&self, inputs: &[Tensor], deadline: Instant) -> Result<Vec<Tensor>> {
        let inner = &self.0;
        let rows = inner.rows_of(inputs)?;
        inner.metrics.asked(rows);
        let size = inner.padded_rows(rows);
        if rows == 0 || size == rows {
            let outputs = inner.run_uncosted(inputs, rows, deadline)?;
            inner.check_given(&outputs, rows)?;
            return Ok(outputs);
        }
        inner.note_padding(rows, size);
        let outputs = inner.run_uncosted(&assemble(&[inputs], size)?, size, deadline)?;
        split(&outputs, &[rows], size)?.pop().ok_or_else(unsplittable)
    }
}

impl QueueInner {
    fn run_uncosted(
        self: &Arc<Self>,
        inputs: &[Tensor],
        rows: usize,
        deadline: Instant,
    ) -> Result<Vec<Tensor>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let in_time = |time| time < left / SURELY_IN_TIME;
        let in_time = !left.is_zero() && self.cost.predict(rows).is_none_or(in_time);
        // A timeout would move the run to a thread of the runtime, which has not the priority of this one.
        let timeout = (self.traits.unbounded || !in_time).then_some(left);
        let mut busy = BusyGuard::new(&self.metrics);
        let (outputs, _) = self.run_apart(inputs, RunOptions { threads: 1, timeout })?;
        let (_, time) = busy.end();
        self.metrics.ran(rows.max(1), time);
        Ok(outputs)
    }
}
