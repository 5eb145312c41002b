//! How far quantiles vary, by resampling windows.
//!
//! Latencies of neighbouring requests are alike, so that formulas for independent values would give intervals that are
//! far too small. Windows are nearly independent of each other: quantiles are computed of as many windows, drawn with
//! repetition (the block bootstrap), many times.

use std::collections::BTreeSet;

use crate::pace::SplitMix;
use crate::results::{SparseCounts, rank};

/// The most blocks that are drawn from.
const MOST_BLOCKS: usize = 20;

/// Latencies in blocks.
pub(crate) struct Blocks {
    values: Vec<u64>,
    /// How often each value was seen, for each block.
    blocks: Vec<Vec<u64>>,
}

impl Blocks {
    /// Neighbouring windows make a block. Windows without a response count, too: those of a stall.
    pub(crate) fn new(windows: &[SparseCounts]) -> Self {
        let size = windows.len().div_ceil(MOST_BLOCKS).max(1);
        let pairs = windows.iter().flat_map(|window| &window.0);
        let values: Vec<u64> =
            pairs.map(|(value, _)| *value).collect::<BTreeSet<_>>().into_iter().collect();
        let block = |windows: &[SparseCounts]| {
            let mut counts = vec![0u64; values.len()];
            for (value, count) in windows.iter().flat_map(|window| &window.0) {
                if let Ok(at) = values.binary_search(value)
                    && let Some(sum) = counts.get_mut(at)
                {
                    *sum += count;
                }
            }
            counts
        };
        let blocks = windows.chunks(size).map(block).collect();
        Blocks { values, blocks }
    }

    /// The quantiles of one drawing.
    pub(crate) fn draw(&self, random: &mut SplitMix, quantiles: &[f64]) -> Vec<u64> {
        let drawn = (0..self.blocks.len()).map(|_| random.below(self.blocks.len()));
        self.of_blocks(drawn, quantiles)
    }

    /// The quantiles of all blocks.
    pub(crate) fn quantiles(&self, quantiles: &[f64]) -> Vec<u64> {
        self.of_blocks(0..self.blocks.len(), quantiles)
    }

    fn of_blocks(&self, numbers: impl Iterator<Item = usize>, quantiles: &[f64]) -> Vec<u64> {
        let mut sums = vec![0u64; self.values.len()];
        for number in numbers {
            for (sum, count) in sums.iter_mut().zip(self.blocks.get(number).into_iter().flatten()) {
                *sum += count;
            }
        }
        let total: u64 = sums.iter().sum();
        let at = |quantile: &f64| {
            let (wanted, mut seen) = (rank(*quantile, total), 0);
            let found = sums.iter().position(|count| {
                seen += count;
                seen >= wanted
            });
            found.and_then(|at| self.values.get(at)).copied().unwrap_or(0)
        };
        quantiles.iter().map(at).collect()
    }
}

/// The bounds between which 95 % of the values lie.
pub(crate) fn interval(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let cut = values.len() / 40;
    let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
    (at(cut), at(last.saturating_sub(cut)))
}

/// Half the width of the interval of each quantile by its middle.
// Nanoseconds of an hour are exact.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn relative_spread(windows: &[SparseCounts], quantiles: &[f64]) -> Vec<f64> {
    const DRAWINGS: usize = 200;
    let (blocks, mut random) = (Blocks::new(windows), SplitMix(1));
    let draws: Vec<Vec<u64>> = (0..DRAWINGS).map(|_| blocks.draw(&mut random, quantiles)).collect();
    let spread = |index: usize| {
        let values = draws.iter().filter_map(|draw| draw.get(index)).map(|value| *value as f64);
        let (low, high) = interval(values.collect());
        if low + high > 0.0 { (high - low) / (high + low) } else { f64::INFINITY }
    };
    (0..quantiles.len()).map(spread).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(of: impl Fn(u64) -> u64) -> Vec<SparseCounts> {
        let window = |n: u64| {
            let mut counts = SparseCounts::default();
            (0..200).for_each(|i| counts.add(&SparseCounts(vec![(of(n * 200 + i), 1)])));
            counts
        };
        (0..20).map(window).collect()
    }

    #[test]
    fn steady_windows_have_a_small_spread_and_drifting_ones_a_large() {
        let steady = windows(|n| 1000 + n % 97);
        let spread = relative_spread(&steady, &[0.5, 0.99]);
        assert!(spread.iter().all(|spread| *spread < 0.01), "{spread:?}");
        let drifting = windows(|n| 1000 + n);
        let spread = relative_spread(&drifting, &[0.5, 0.99]);
        assert!(spread[0] > 0.1, "{spread:?}");
        assert_eq!(relative_spread(&[], &[0.5]), [f64::INFINITY]);
    }

    #[test]
    fn an_interval_leaves_out_a_fortieth_on_each_side() {
        assert_eq!(interval((0..1000).map(f64::from).collect()), (25.0, 974.0));
        assert_eq!(interval(vec![]), (0.0, 0.0));
        assert_eq!(interval(vec![2.0]), (2.0, 2.0));
    }
}
