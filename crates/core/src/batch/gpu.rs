//! Batches on a GPU, which does the operations of several runs one after the other, and those of a large batch in
//! little more time than those of a single row.

use super::assemble::allowed_size;
use super::{BatchQueue, QueueInner};
use crate::config::BatchMode;

/// The most runs of a queue on a GPU at a time, while a batch can grow: what the processor does for one, the GPU does for
/// the other meanwhile. A GPU has one queue of operations for all runs, so that more of them only wait there, each for
/// its own rows.
pub(super) const RUNS_ON_A_GPU: usize = 2;

impl BatchQueue {
    /// The numbers of rows to warm up: powers of two, or what they are padded to. On a GPU, these are all that runs will
    /// have.
    #[must_use]
    pub fn warm_rows(&self) -> Vec<usize> {
        if !self.joins() {
            return vec![1];
        }
        let most = self.0.config.execution_size();
        let powers = (0..usize::BITS).map(|power| self.0.padded_rows(1 << power));
        let mut rows: Vec<usize> = powers.take_while(|rows| *rows < most).chain([most]).collect();
        rows.dedup();
        rows
    }

    /// Whether all sizes of batches have to be warmed up, also if runs are long.
    #[must_use]
    pub fn needs_all_sizes_warm(&self) -> bool {
        self.joins() && self.0.pads_for_gpu()
    }
}

impl QueueInner {
    /// Whether its runs take turns on a GPU, and requests that wait for it may join. Nobody waits for runs that may never
    /// end.
    pub(super) fn shares_gpu(&self) -> bool {
        self.traits.on_gpu
            && !self.traits.unbounded
            && self.config.mode == BatchMode::Auto
            && self.verification.may_join()
    }

    /// Whether batches are padded to a power of two rows: in the first run of each number of rows on a GPU, the runtime
    /// tries its algorithms, which takes some tens of times as long as a run.
    pub(super) fn pads_for_gpu(&self) -> bool {
        self.shares_gpu() && self.config.allowed_batch_sizes.is_empty()
    }

    /// The rows that a batch of `rows` rows is padded to.
    pub(super) fn padded_rows(&self, rows: usize) -> usize {
        let most = self.config.execution_size();
        if self.pads_for_gpu() && (1..=most).contains(&rows) {
            return rows.next_power_of_two().min(most);
        }
        allowed_size(rows, &self.config.allowed_batch_sizes)
    }
}
