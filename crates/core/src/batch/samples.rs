//! Requests that are run alone and together before a version is ready: a second net below the proof
//! that rows are independent, with company that real requests seldom have.
//!
//! Nobody waits for these runs but the version's load. An error of the model says nothing: a batch
//! that fails is run again request by request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::assemble::{assemble, can_join, rows_of, split};
use super::run::UNSPLITTABLE;
use super::{BatchQueue, QueueInner};
use crate::comparison::same_outputs;
use tensorserve_platform::{RunOptions, SyntheticSample};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::Result;

/// The most recorded requests among the samples, and the most bytes of each.
const MOST_RECORDED: usize = 8;
const LARGEST_RECORDED: usize = 1 << 20;

/// How long the run of a recorded request may take, if it may never end.
const LONGEST_RECORDED: Duration = Duration::from_secs(60);

/// The most bytes of the inputs of a batch of samples.
const LARGEST_BATCH: usize = 16 << 20;

/// Numbers of requests that are run together, besides all and as many as a batch may have.
const SIZES: [usize; 3] = [2, 3, 7];

/// Requests of the warm-up, until they have been run together.
#[derive(Default)]
pub(super) struct RecordedSamples(Mutex<Vec<Vec<Tensor>>>);

impl RecordedSamples {
    fn push(&self, inputs: &[Tensor]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST_RECORDED && bytes_of(inputs) <= LARGEST_RECORDED {
            all.push(inputs.to_vec());
        }
    }

    fn take(&self) -> Vec<Vec<Tensor>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A request whose outputs are known.
struct Sample {
    name: String,
    inputs: Vec<Tensor>,
    rows: usize,
    outputs: Vec<Tensor>,
    /// Its outputs are compared. Those of extreme values depend on the order of additions.
    is_compared: bool,
}

impl BatchQueue {
    /// Runs a recorded request outside the queue, for the warm-up. Blocks.
    ///
    /// # Errors
    /// What the model reports.
    pub(crate) fn warm_on_record(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        if self.0.verification.may_be_refuted() {
            self.0.recorded.push(inputs);
        }
        self.warm(inputs, self.0.traits.unbounded.then_some(LONGEST_RECORDED))
    }

    /// Whether samples of requests can end joining.
    pub(crate) fn takes_samples(&self) -> bool {
        self.joins() && self.0.verification.may_be_refuted()
    }

    /// Runs `samples`, and the recorded requests of the warm-up, alone and together, until `end`. If
    /// an output of a request depends on the others, requests of this signature are not joined. Blocks.
    pub(crate) fn run_samples(&self, samples: Vec<SyntheticSample>, end: Instant) {
        let recorded = self.0.recorded.take().into_iter().enumerate();
        let recorded =
            recorded.map(|(at, inputs)| (format!("recorded request {}", at + 1), inputs, true));
        let synthetic = samples.into_iter().map(|it| (it.name.to_owned(), it.inputs, it.is_tame));
        let trial = SampleRuns { queue: &self.0, end };
        if let Err(why) = trial.run(recorded.chain(synthetic)) {
            self.0.stop_joining(&why);
        }
    }
}

/// Runs of samples. An error is what ends joining.
struct SampleRuns<'q> {
    queue: &'q Arc<QueueInner>,
    end: Instant,
}

impl SampleRuns<'_> {
    fn run(
        &self,
        requests: impl Iterator<Item = (String, Vec<Tensor>, bool)>,
    ) -> Result<(), String> {
        let mut samples = Vec::new();
        for (name, inputs, is_compared) in requests {
            samples.extend(self.alone(name, inputs, is_compared)?);
        }
        for (index, sample) in samples.iter().enumerate() {
            // All of one shape, once.
            let is_first = !samples.iter().take(index).any(|before| are_joinable(before, sample));
            if is_first {
                let all = samples.iter().filter(|other| are_joinable(sample, other));
                self.together(&all.collect::<Vec<_>>())?;
            }
        }
        for size in SIZES.into_iter().chain([usize::MAX]) {
            self.pairs(&samples, size)?;
        }
        Ok(())
    }

    /// The sample with its outputs; `None` if the model does not accept it, or there is no time left.
    fn alone(
        &self,
        name: String,
        inputs: Vec<Tensor>,
        is_compared: bool,
    ) -> Result<Option<Sample>, String> {
        let most = self.queue.config.execution_size();
        let Some(rows) = rows_of(&inputs).filter(|rows| *rows <= most) else {
            return Ok(None);
        };
        let Some(outputs) = self.outputs(&[&inputs], &[rows])? else {
            return Ok(None);
        };
        let outputs = outputs.into_iter().flatten().collect();
        Ok(Some(Sample { name, inputs, rows, outputs, is_compared }))
    }

    /// Runs each compared sample with each other one: `size` requests, or as many as a batch may have.
    fn pairs(&self, samples: &[Sample], size: usize) -> Result<(), String> {
        let mut turn = 0;
        for probe in samples.iter().filter(|sample| sample.is_compared) {
            for other in samples.iter().filter(|other| are_joinable(probe, other)) {
                turn += 1;
                let size = size.min(1 + self.room_beside(probe, other));
                if std::ptr::eq(probe, other) || size < 2 {
                    continue;
                }
                // First, in the middle and last in turn.
                let place = [0, size / 2, size - 1].get(turn % 3).copied().unwrap_or(0);
                let at = |index| if index == place { probe } else { other };
                self.together(&(0..size).map(at).collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }

    /// How often `other` fits into a batch beside `probe`.
    fn room_beside(&self, probe: &Sample, other: &Sample) -> usize {
        let rows = self.queue.config.execution_size().saturating_sub(probe.rows) / other.rows;
        rows.min(LARGEST_BATCH / bytes_of(&other.inputs).max(1))
    }

    /// Runs these samples, or as many of the first as a batch may have, as one batch.
    fn together(&self, samples: &[&Sample]) -> Result<(), String> {
        let (most, mut rows, mut bytes) = (self.queue.config.execution_size(), 0, 0);
        let fit = samples.iter().take_while(|sample| {
            rows += sample.rows;
            bytes += bytes_of(&sample.inputs);
            rows <= most && bytes <= LARGEST_BATCH
        });
        let samples: Vec<&Sample> = fit.copied().collect();
        let inputs: Vec<&[Tensor]> = samples.iter().map(|it| it.inputs.as_slice()).collect();
        let rows: Vec<usize> = samples.iter().map(|it| it.rows).collect();
        if samples.len() < 2 {
            return Ok(());
        }
        let Some(answers) = self.outputs(&inputs, &rows)? else {
            return Ok(());
        };
        let tolerance = self.queue.traits.tolerance();
        let mut pairs = samples.iter().zip(answers).enumerate();
        let differs = pairs.find(|(_, (sample, joined))| {
            sample.is_compared && !same_outputs(&sample.outputs, joined, tolerance)
        });
        match differs {
            None => Ok(()),
            Some((at, (sample, _))) => Err(difference(sample, at, &samples)),
        }
    }

    /// The outputs of each of these requests, run as one batch; `None` if the run fails, or there is no
    /// time left.
    fn outputs(
        &self,
        requests: &[&[Tensor]],
        rows: &[usize],
    ) -> Result<Option<Vec<Vec<Tensor>>>, String> {
        let left = self.end.saturating_duration_since(Instant::now());
        let size = self.queue.padded_rows(rows.iter().sum());
        let Some(inputs) = assemble(requests, size).ok().filter(|_| left > Duration::ZERO) else {
            return Ok(None);
        };
        let options = RunOptions { threads: 1, timeout: Some(left) };
        match self.queue.run_apart(&inputs, options) {
            Err(_) => Ok(None),
            Ok((outputs, _)) => match split(&outputs, rows, size) {
                Ok(answers) => Ok(Some(answers)),
                Err(_) => Err(UNSPLITTABLE.to_owned()),
            },
        }
    }
}

/// Whether both can be in one batch without padding.
fn are_joinable(a: &Sample, b: &Sample) -> bool {
    can_join(&a.inputs, &b.inputs, false)
}

/// What is said of a sample whose outputs in a batch, as number `at`, are not those that it has alone.
fn difference(sample: &Sample, at: usize, batch: &[&Sample]) -> String {
    let mut others: Vec<&str> = batch.iter().map(|other| other.name.as_str()).collect();
    others.remove(at);
    others.dedup();
    format!(
        "outputs for {} depend on the other requests in the batch ({} in all, number {}; the others: {})",
        sample.name,
        batch.len(),
        at + 1,
        others.join(", ")
    )
}

fn bytes_of(inputs: &[Tensor]) -> usize {
    inputs.iter().map(Tensor::byte_len).sum()
}
