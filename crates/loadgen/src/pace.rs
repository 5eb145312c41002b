//! The moments at which requests are due.

use std::sync::Arc;

use crate::plan::Arrivals;
use tensorserve_tensor::random::{STEP, split_mix};

/// The due times of one thread in nanoseconds from the start of the run, ascending.
pub(crate) struct Pace {
    steps: Steps,
    /// Of the next request, but for those of a list.
    next: f64,
}

/// From one request of the thread to the next.
enum Steps {
    /// So many nanoseconds.
    Even(f64),
    /// So many on average.
    Random(f64, SplitMix),
    /// Those at these times, from `at` on in steps.
    Listed { times: Arc<[u64]>, at: usize, step: usize },
}

impl Pace {
    /// The share of thread `index` of `threads` of an open loop; `None` for a closed one.
    ///
    /// Independent arrivals stay so when they are divided. Others are dealt out in turn.
    pub(crate) fn new(arrivals: &Arrivals, index: usize, threads: usize) -> Option<Self> {
        let (turn, parts) = (small(index), small(threads));
        let random = SplitMix(turn.to_bits());
        let (steps, next) = match arrivals {
            Arrivals::Closed => return None,
            Arrivals::Fixed(rate) => (Steps::Even(1e9 / rate * parts), 1e9 / rate * turn),
            Arrivals::Poisson(rate) => (Steps::Random(1e9 / rate * parts, random), 0.0),
            Arrivals::Times(times) => {
                (Steps::Listed { times: Arc::clone(times), at: index, step: threads }, 0.0)
            }
        };
        let mut pace = Pace { steps, next };
        if matches!(pace.steps, Steps::Random(..)) {
            pace.advance();
        }
        Some(pace)
    }

    /// When the next request is due; never, after the last of a list.
    // Less than 2^53: a run lasts at most 7 days.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(crate) fn due(&self) -> u64 {
        match &self.steps {
            Steps::Even(_) | Steps::Random(..) => self.next as u64,
            Steps::Listed { times, at, .. } => times.get(*at).copied().unwrap_or(u64::MAX),
        }
    }

    /// Goes on to the request after it.
    pub(crate) fn advance(&mut self) {
        match &mut self.steps {
            Steps::Even(interval) => self.next += *interval,
            Steps::Random(mean, random) => self.next -= random.above_zero().ln() * *mean,
            Steps::Listed { at, step, .. } => *at += *step,
        }
    }
}

// Threads are few.
#[allow(clippy::cast_precision_loss)]
fn small(number: usize) -> f64 {
    number as f64
}

/// A generator of numbers: two runs with one plan have the same arrivals, which makes their comparison
/// sharper.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        split_mix(self.0)
    }

    /// Evenly distributed in (0, 1].
    // 53 bits are exact.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn above_zero(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Evenly distributed in 0..`limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        let limit = limit.max(1) as u64;
        usize::try_from(self.next() % limit).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: &Arrivals, threads: usize, count: usize) -> Vec<u64> {
        let mut all = Vec::new();
        for index in 0..threads {
            let mut pace = Pace::new(arrivals, index, threads).expect("an open loop");
            for _ in 0..count / threads {
                all.push(pace.due());
                pace.advance();
            }
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn fixed_arrivals_are_even_over_all_threads() {
        assert!(Pace::new(&Arrivals::Closed, 0, 1).is_none());
        let times = times(&Arrivals::Fixed(1000.0), 4, 400);
        let want: Vec<u64> = (0..400).map(|n| n * 1_000_000).collect();
        assert_eq!(times, want);
    }

    #[test]
    fn listed_arrivals_are_dealt_out() {
        let list = Arrivals::Times([1, 1, 5, 9].into());
        assert_eq!(times(&list, 2, 6), [1, 1, 5, 9, u64::MAX, u64::MAX]);
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_independent_ones() {
        let times = times(&Arrivals::Poisson(1000.0), 3, 60_000);
        let span = times[50_000] as f64 / 1e9;
        assert!((span - 50.0).abs() < 1.0, "{span}");
        // Intervals of a Poisson process are exponential: their deviation is their mean.
        let gaps: Vec<f64> =
            times[..50_000].windows(2).map(|w| (w[1] - w[0]) as f64 / 1e6).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
