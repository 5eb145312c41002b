//! Runs of two engines: one that is quicker where it computes the same, and one that is always right.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tensorserve_openvino::saved_model::SavedModelPlan;
use tensorserve_platform::{Executable, Profiled, RunOptions};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Error, Result};

/// The longest run in the engine: its process may have been stopped from outside, and a request must not wait for it. The
/// first runs, which compare it, show how long it takes.
const FIRST_LIMIT: Duration = Duration::from_secs(30);

/// Later ones may take this, and so many times as long as the slowest, for more bytes in proportion.
const LEAST_LIMIT: Duration = Duration::from_secs(2);
const SLOWER: u32 = 10;

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
    /// The slowest run, as [`SlowRun::packed`]; 0 before the first.
    slowest: AtomicU64,
}

impl GuardedExecutable {
    pub(crate) fn new(engine: EngineRuns, present: Arc<dyn Executable>, model: String) -> Self {
        GuardedExecutable { engine, present, model, slowest: AtomicU64::new(0) }
    }

    /// The outputs of the engine; `None` if the model's own has to run.
    fn run_in_engine(&self, inputs: &[Tensor], options: RunOptions) -> Option<Vec<Tensor>> {
        let bytes: usize = inputs.iter().map(Tensor::byte_len).sum();
        let limit = SlowRun::unpacked(self.slowest.load(Relaxed)).limit(bytes);
        let timeout = options.timeout.map_or(limit, |timeout| timeout.min(limit));
        let options = RunOptions { timeout: Some(timeout), ..options };
        let began = Instant::now();
        match self.engine.executable.run(0, inputs, options) {
            Ok(outputs) => {
                self.slowest.fetch_max(SlowRun::of(began.elapsed(), bytes).packed(), Relaxed);
                // What is not finite may be another number in TensorFlow.
                let are_finite = outputs.iter().all(|it| it.has_floats_within(f32::MAX));
                are_finite.then_some(outputs)
            }
            Err(error) => {
                log::debug!("{}: runs on its own engine: {error}", self.model);
                None
            }
        }
    }
}

/// How long a run took, and how large its inputs were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlowRun {
    micros: u32,
    kibibytes: u32,
}

impl SlowRun {
    fn of(took: Duration, bytes: usize) -> Self {
        SlowRun {
            micros: u32::try_from(took.as_micros()).unwrap_or(u32::MAX).max(1),
            kibibytes: u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).max(1),
        }
    }

    /// A number that is the larger the longer the run took.
    fn packed(self) -> u64 {
        u64::from(self.micros) << 32 | u64::from(self.kibibytes)
    }

    #[allow(clippy::cast_possible_truncation)] // Both halves.
    fn unpacked(packed: u64) -> Self {
        SlowRun { micros: (packed >> 32) as u32, kibibytes: packed as u32 }
    }

    /// The longest run for so many bytes, if this one was the slowest.
    fn limit(self, bytes: usize) -> Duration {
        if self.micros == 0 {
            return FIRST_LIMIT;
        }
        let larger = SlowRun::of(Duration::ZERO, bytes).kibibytes.div_ceil(self.kibibytes.max(1));
        let slower = Duration::from_micros(self.micros.into()).saturating_mul(SLOWER);
        LEAST_LIMIT.saturating_add(slower.saturating_mul(larger))
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
        self.present.run(signature, inputs, options.left_since(began))
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

    fn prepares(&self) -> bool {
        self.engine.executable.prepares()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_may_take_some_times_as_long_as_the_slowest() {
        assert_eq!(SlowRun::unpacked(0).limit(1), FIRST_LIMIT);
        let (quick, slow) = (
            SlowRun::of(Duration::from_millis(30), 4),
            SlowRun::of(Duration::from_millis(50), 600 << 10),
        );
        let slowest = SlowRun::unpacked(quick.packed().max(slow.packed()));
        assert_eq!(slowest, slow);
        assert_eq!(slowest.limit(4), LEAST_LIMIT + Duration::from_millis(500));
        assert_eq!(slowest.limit(6000 << 10), LEAST_LIMIT + Duration::from_secs(5));
        assert!(SlowRun::of(Duration::MAX, 0).limit(usize::MAX) > FIRST_LIMIT);
    }
}
