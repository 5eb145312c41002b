//! The moments at which requests are due.

use crate::plan::Arrivals;

/// The due times of one thread in nanoseconds from the start of the run, ascending.
pub(crate) struct Pace {
    arrivals: Arrivals,
    /// Between two requests of this thread, on average.
    interval: f64,
    next: f64,
    random: SplitMix,
}

impl Pace {
    /// The share of thread `index` of `threads` of an open loop; `None` for a closed one.
    ///
    /// Independent arrivals stay so when they are divided. Even ones are dealt out in turn.
    pub(crate) fn new(arrivals: Arrivals, index: usize, threads: usize) -> Option<Self> {
        let rate = arrivals.rate()?;
        let (index, threads) = (small(index), small(threads));
        let interval = 1e9 / rate * threads;
        let mut pace = Pace { arrivals, interval, next: 0.0, random: SplitMix(index.to_bits()) };
        pace.next = match arrivals {
            Arrivals::Poisson(_) => pace.step(),
            Arrivals::Closed | Arrivals::Fixed(_) => 1e9 / rate * index,
        };
        Some(pace)
    }

    /// When the next request is due.
    // Less than 2^53: a run lasts at most 7 days.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub(crate) fn due(&self) -> u64 {
        self.next as u64
    }

    /// Goes on to the request after it.
    pub(crate) fn advance(&mut self) {
        self.next += self.step();
    }

    fn step(&mut self) -> f64 {
        match self.arrivals {
            Arrivals::Poisson(_) => -self.random.above_zero().ln() * self.interval,
            Arrivals::Closed | Arrivals::Fixed(_) => self.interval,
        }
    }
}

// Threads are few.
#[allow(clippy::cast_precision_loss)]
fn small(number: usize) -> f64 {
    number as f64
}

/// SplitMix64 (Steele, Lea, Flood 2014): two runs with one plan have the same arrivals, which makes their comparison
/// sharper.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(pub(crate) u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
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

    fn times(arrivals: Arrivals, threads: usize, count: usize) -> Vec<u64> {
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
        assert!(Pace::new(Arrivals::Closed, 0, 1).is_none());
        let times = times(Arrivals::Fixed(1000.0), 4, 400);
        let want: Vec<u64> = (0..400).map(|n| n * 1_000_000).collect();
        assert_eq!(times, want);
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_independent_ones() {
        let times = times(Arrivals::Poisson(1000.0), 3, 60_000);
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
