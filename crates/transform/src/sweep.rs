//! Finds the number of records in a batch and of batches at the same time, by trying them.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::batch::{Batch, RecordRunner};
use tensorserve_tensor::error::Result;

/// How long each size is tried, at least.
const TRIAL: Duration = Duration::from_millis(60);

/// The sizes to try.
pub const SIZES: [usize; 5] = [32, 128, 512, 2048, 4096];

/// A smaller batch is preferred to one that is this much faster.
const GAIN: f64 = 1.03;

/// What was tried.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Records in a batch.
    pub rows: usize,
    /// Records per second.
    pub records_per_second: f64,
}

/// Tries batches of the first records, smallest first, and returns what each size gave. A batch whose
/// records are bad still tells how long a run takes.
///
/// # Errors
/// If the model is not available.
pub fn try_sizes(runner: &RecordRunner, batches: &[Batch]) -> Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for batch in batches {
        // The first run of a size prepares what later ones reuse.
        runner.run(batch)?;
        let (start, mut runs) = (Instant::now(), 0_u32);
        while runs == 0 || start.elapsed() < TRIAL {
            runner.run(batch)?;
            runs += 1;
        }
        // Precise for any size of a batch.
        #[allow(clippy::cast_precision_loss)]
        let records = batch.len() as f64 * f64::from(runs);
        let records_per_second = records / start.elapsed().as_secs_f64();
        trials.push(Trial { rows: batch.len(), records_per_second });
    }
    Ok(trials)
}

/// The smallest size that is not much slower than the fastest.
#[must_use]
pub fn best(trials: &[Trial]) -> Option<usize> {
    let fastest = trials.iter().map(|trial| trial.records_per_second).fold(0.0, f64::max);
    let enough = |trial: &&Trial| trial.records_per_second * GAIN >= fastest;
    trials.iter().find(enough).map(|trial| trial.rows)
}

/// The trials in words.
#[must_use]
pub fn explained(trials: &[Trial]) -> String {
    let mut text = String::new();
    for Trial { rows, records_per_second } in trials {
        let _ = write!(text, "\n  {rows:>6} records in a batch: {records_per_second:.0} records/s");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_gain_does_not_make_batches_larger() {
        let trial = |rows, records_per_second| Trial { rows, records_per_second };
        let trials = [trial(32, 100.0), trial(128, 200.0), trial(512, 204.0), trial(2048, 150.0)];
        assert_eq!(best(&trials), Some(128));
        assert_eq!(best(&[]), None);
    }
}
