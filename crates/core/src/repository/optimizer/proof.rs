//! Whether another form of a model computes the same as the present one, and how much CPU time it takes.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::samples::ComparedInputs;
use crate::comparison::{Tolerance, difference, same_outputs};
use tensorserve_os as os;
use tensorserve_platform::{Executable, RunOptions};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, Signature, Tensor, TensorSpec};

/// The longest run of a comparison, if it may never end.
const LONGEST_RUN: Duration = Duration::from_secs(10);

/// The shares of the CPU time that a form must take at most: on average, and for any request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worth {
    mean: f64,
    most: f64,
}

impl Worth {
    /// A form with less work.
    pub(super) const OPTIMIZED: Self = Worth { mean: 0.95, most: 1.05 };
    /// A form in another engine, which has its memory and a process.
    pub(super) const OTHER_ENGINE: Self = Worth { mean: 0.85, most: 1.05 };
    /// A form that is wanted in any case.
    pub(super) const ANY: Self = Worth { mean: f64::INFINITY, most: f64::INFINITY };

    /// The geometric mean of these shares of CPU time; an error says why they are not worth it.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn of(self, shares: &[f64]) -> Result<f64, String> {
        if shares.is_empty() {
            return Err("its CPU time could not be measured".to_owned());
        }
        let logs: f64 = shares.iter().map(|share| share.ln()).sum();
        let mean = (logs / shares.len() as f64).exp();
        let most = shares.iter().copied().fold(0.0, f64::max);
        if mean > self.mean {
            let limit = self.mean;
            return Err(format!(
                "it takes {mean:.2} of the CPU time, and must take at most {limit}"
            ));
        }
        if most > self.most {
            return Err(format!("it takes {most:.2} of the CPU time for some requests"));
        }
        Ok(mean)
    }
}

/// A form is timed in blocks of runs, one after the other: what a run finds in the caches of a core that has rested, or that
/// the other form has used, says little. A block takes about this time, and has at most so many runs.
const BLOCK: Duration = Duration::from_millis(3);
const MOST_IN_BLOCK: u128 = 32;

/// Blocks of each form: at least and at most so many, and no more after this time.
const FEWEST_BLOCKS: usize = 5;
const MOST_BLOCKS: usize = 60;
const LONG_ENOUGH: Duration = Duration::from_millis(800);

/// Runs, or the time of long runs and of the pauses between them, after which an engine has begun to prepare itself for
/// inputs of a size, and the longest wait until it has.
const OFTEN: usize = 30;
const LONG_OFTEN: Duration = Duration::from_secs(4);
const LONGEST_PREPARATION: Duration = Duration::from_secs(10);

/// Both forms of a model.
pub(super) struct TwoForms<'f> {
    pub(super) present: Arc<dyn Executable>,
    pub(super) other: &'f Arc<dyn Executable>,
    /// The threads of an operation with which the version was loaded.
    pub(super) threads: usize,
}

impl TwoForms<'_> {
    /// Compares the results of a run. Returns whether the other form has given outputs; an error is the reason why they are not the same.
    pub(super) fn compare(
        &self,
        (index, signature): (usize, &Signature),
        compared: &ComparedInputs,
        tolerance: Tolerance,
    ) -> Result<bool, String> {
        let timeout = (!signature.is_bounded).then_some(LONGEST_RUN);
        // A version with several threads may have a copy for runs on one, which is not what is compared.
        let threads = if compared.threads == 1 { self.threads } else { compared.threads };
        let options = RunOptions { threads, timeout };
        let present = self.present.run(index, &compared.inputs, options);
        let before = self.other.other_cpu_time();
        let other = self.other.run(index, &compared.inputs, options);
        let what = match (present, other) {
            (Ok(present), Ok(other)) if same_outputs(&present, &other, tolerance) => {
                // Another engine that has not run has shown nothing.
                return Ok(before.is_none() || before != self.other.other_cpu_time());
            }
            (Err(present), Err(other)) if present.code() == other.code() => return Ok(false),
            (Ok(present), Ok(other)) => first_difference(signature, (&present, &other), tolerance),
            (Ok(_), Err(error)) => format!("an error ({error})"),
            (Err(_), Ok(_)) => "outputs instead of an error".to_owned(),
            (Err(_), Err(error)) => format!("another error ({error})"),
        };
        Err(format!("signature {:?} has {what} for {}", signature.name, compared.name))
    }

    /// Lets an engine that prepares itself for inputs of a size that it gets often do so.
    fn prepare(&self, index: usize, inputs: &[Tensor], goes_on: &impl Fn() -> bool) {
        let began = Instant::now();
        let mut runs = 0;
        let begins = |runs| runs < OFTEN && began.elapsed() < LONG_OFTEN;
        while goes_on()
            && (begins(runs) || self.other.prepares())
            && began.elapsed() < LONGEST_PREPARATION
        {
            let turn = Instant::now();
            if self.other.run(index, inputs, self.options()).is_err() {
                return;
            }
            runs += 1;
            thread::sleep(turn.elapsed());
        }
    }

    /// As long as a run takes.
    fn options(&self) -> RunOptions {
        RunOptions { threads: self.threads, timeout: None }
    }

    /// As many runs as a block has; `None` if the inputs are refused.
    fn runs_in_block(&self, index: usize, inputs: &[Tensor]) -> Option<u32> {
        let began = Instant::now();
        self.present.run(index, inputs, self.options()).ok()?;
        let run = began.elapsed().as_nanos().max(1);
        u32::try_from((BLOCK.as_nanos() / run).clamp(1, MOST_IN_BLOCK)).ok()
    }

    /// The CPU time of the quickest of so many runs of one form, one after the other; `None` if the inputs are refused.
    fn cpu_time(
        &self,
        executable: &Arc<dyn Executable>,
        (index, inputs): (usize, &[Tensor]),
        runs: u32,
    ) -> Option<Duration> {
        // Threads of the runtime do not say for which run they work. What requests take meanwhile counts for both forms.
        let used = if self.threads == 1 { os::thread_cpu_time } else { os::process_cpu_time };
        let mut least = Duration::MAX;
        for _ in 0..runs {
            let (began, elsewhere) = (used()?, executable.other_cpu_time());
            executable.run(index, inputs, self.options()).ok()?;
            let here = used()?.saturating_sub(began);
            let there = match executable.other_cpu_time().zip(elsewhere) {
                None => Duration::ZERO,
                // What another engine does not run does not count.
                Some((end, began)) if end == began => return None,
                Some((end, began)) => end.saturating_sub(began),
            };
            least = least.min(here + there);
        }
        Some(least)
    }

    /// The CPU time of the other form as a share of that of the present one. Runs in turns. `None` if the inputs are refused,
    /// or there is no time for it.
    pub(super) fn share(
        &self,
        index: usize,
        inputs: &[Tensor],
        goes_on: &impl Fn() -> bool,
    ) -> Option<f64> {
        let (mut present, mut other) = (Vec::new(), Vec::new());
        let began = Instant::now();
        // The first runs at a size build plans.
        self.cpu_time(&self.present, (index, inputs), 1)?;
        self.cpu_time(self.other, (index, inputs), 1)?;
        if self.other.other_cpu_time().is_some() {
            self.prepare(index, inputs, goes_on);
        }
        let block = self.runs_in_block(index, inputs)?;
        while present.len() < FEWEST_BLOCKS
            || (present.len() < MOST_BLOCKS && began.elapsed() < LONG_ENOUGH)
        {
            if !goes_on() {
                return None;
            }
            let turn = Instant::now();
            present.push(self.cpu_time(&self.present, (index, inputs), block)?);
            other.push(self.cpu_time(self.other, (index, inputs), block)?);
            // Requests come first.
            thread::sleep(turn.elapsed());
        }
        // What else the machine does only adds to the CPU time of a run, so the quickest runs say most.
        let (present, other) = (present.iter().min()?, other.iter().min()?);
        (!present.is_zero()).then(|| other.as_secs_f64() / present.as_secs_f64())
    }
}

/// The first output that is not the same.
fn first_difference(
    signature: &Signature,
    (present, other): (&[Tensor], &[Tensor]),
    tolerance: Tolerance,
) -> String {
    let mut pairs = signature.outputs.iter().zip(present.iter().zip(other));
    let first = pairs.find_map(|(spec, (present, other))| {
        let what = difference(present, other, tolerance)?;
        Some(format!("another output {:?} ({what})", spec.alias))
    });
    first.unwrap_or_else(|| "another number of outputs".to_owned())
}

/// Fewer telling runs with outputs say nothing.
const FEWEST_TELLING: usize = 4;

/// Whether so many telling runs with the same outputs show that two forms of a signature compute the same; an error says why
/// not.
pub(super) fn tells_enough(signature: &Signature, telling: usize) -> Result<(), String> {
    let is_real = |spec: &TensorSpec| spec.dtype().is_some_and(DType::is_float);
    let name = &signature.name;
    if !signature.outputs.iter().any(is_real) {
        return Err(format!(
            "signature {name:?} has no output of real numbers, in which a difference would show"
        ));
    }
    if telling < FEWEST_TELLING {
        return Err(format!(
            "signature {name:?} was compared on {telling} telling inputs, and must be on {FEWEST_TELLING}: put recorded \
             requests beside the version"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_less_time_is_worth_it() {
        assert!((Worth::OPTIMIZED.of(&[0.5, 0.72]).expect("worth it") - 0.6).abs() < 0.001);
        assert_eq!(
            Worth::OPTIMIZED.of(&[0.9, 0.9, 0.9]).map(|mean| (mean * 100.0).round()),
            Ok(90.0)
        );
        for shares in [&[][..], &[0.97, 0.96], &[0.5, 1.06]] {
            assert!(Worth::OPTIMIZED.of(shares).is_err(), "{shares:?}");
        }
    }
}
