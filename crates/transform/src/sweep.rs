//! Finds the number of records in a batch, and the size of ranges, by trying them.

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
    /// Bytes of the object per second; `None` if its records are no part of it.
    pub bytes_per_second: Option<f64>,
}

/// How long a range takes, which is lost by an interruption.
const RANGE_SECONDS: f64 = 2.0;

/// The smallest and the largest range. The output of each is a file or an object for a time.
const RANGES: std::ops::RangeInclusive<u64> = 64 << 10..=256 << 20;

/// The size of ranges where nothing was tried.
pub const RANGE: u64 = 16 << 20;

/// The size of ranges that take about two seconds each with batches of `rows` records; `None` if no trial tells.
#[must_use]
// Far below 2^53.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn range_bytes(trials: &[Trial], rows: usize) -> Option<u64> {
    let trial = trials.iter().find(|trial| trial.rows >= rows).or(trials.last())?;
    let bytes = trial.bytes_per_second? * RANGE_SECONDS;
    Some((bytes as u64).clamp(*RANGES.start(), *RANGES.end()))
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
        let per_second =
            |count: usize| count as f64 * f64::from(runs) / start.elapsed().as_secs_f64();
        let records_per_second = per_second(batch.len());
        let bytes_per_second = batch.bytes().map(per_second);
        trials.push(Trial { rows: batch.len(), records_per_second, bytes_per_second });
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
    for Trial { rows, records_per_second, .. } in trials {
        let _ = write!(text, "\n  {rows:>6} records in a batch: {records_per_second:.0} records/s");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_gain_does_not_make_batches_larger() {
        let trial =
            |rows, records_per_second| Trial { rows, records_per_second, bytes_per_second: None };
        let trials = [trial(32, 100.0), trial(128, 200.0), trial(512, 204.0), trial(2048, 150.0)];
        assert_eq!(best(&trials), Some(128));
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn ranges_take_seconds() {
        let trial =
            |rows, bytes| Trial { rows, records_per_second: 1.0, bytes_per_second: Some(bytes) };
        let trials = [trial(32, 1e6), trial(128, 4e6)];
        assert_eq!(range_bytes(&trials, 32), Some(2_000_000));
        assert_eq!(range_bytes(&trials, 128), Some(8_000_000));
        // A last, smaller batch tells for the larger one that it stands for.
        assert_eq!(range_bytes(&trials, 512), Some(8_000_000));
        assert_eq!(range_bytes(&[trial(32, 10.0)], 32), Some(64 << 10));
        assert_eq!(range_bytes(&[trial(32, 1e12)], 32), Some(256 << 20));
        assert_eq!(range_bytes(&[], 32), None);
    }
}
