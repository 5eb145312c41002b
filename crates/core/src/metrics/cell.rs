//! Counters and histograms that threads update without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam::utils::CachePadded;
use tensorserve_tensor::error::Code;
use tensorserve_tensor::sharded::Sharded;

/// Upper limits of `N` buckets: `scale`, and each `growth` times the one before it.
#[must_use]
pub const fn exponential<const N: usize>(scale: f64, growth: f64) -> [f64; N] {
    let mut limits = [scale; N];
    let mut index = 1;
    while index < N {
        limits[index] = limits[index - 1] * growth;
        index += 1;
    }
    limits
}

/// Shows a value that changes less often than requests arrive: all threads read it, so it is written when it changes.
pub fn show(cell: &AtomicU64, value: u64) {
    if cell.load(Relaxed) != value {
        cell.store(value, Relaxed);
    }
}

/// A histogram of integers, such as nanoseconds, microseconds or examples.
#[derive(Debug)]
pub struct AtomicHistogram {
    limits: &'static [f64],
    /// By thread, one for each limit, one for what is above all of them, and the sum of the values.
    cells: Sharded<Box<[CellLine]>>,
}

/// Cells in cache lines of their own.
type CellLine = CachePadded<[AtomicU64; CELLS_PER_LINE]>;

const CELLS_PER_LINE: usize = 16;

fn cell(lines: &[CellLine], index: usize) -> Option<&AtomicU64> {
    lines.get(index / CELLS_PER_LINE)?.get(index % CELLS_PER_LINE)
}

impl AtomicHistogram {
    /// A histogram with these upper limits, ascending, and a last bucket for larger values.
    #[must_use]
    pub fn new(limits: &'static [f64]) -> Self {
        AtomicHistogram { limits, cells: Sharded::default() }
    }

    /// The number of the bucket of a value.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn bucket(&self, value: u64) -> usize {
        self.limits.partition_point(|limit| *limit < value as f64)
    }

    /// Adds a value.
    pub fn observe(&self, value: u64) {
        let lines = (self.limits.len() + 2).div_ceil(CELLS_PER_LINE);
        let cells = self.cells.mine(|| (0..lines).map(|_| CellLine::default()).collect());
        let (bucket, sum) = (self.bucket(value), self.limits.len() + 1);
        for (index, more) in [(bucket, 1), (sum, value)] {
            if let Some(cell) = cell(cells, index) {
                cell.fetch_add(more, Relaxed);
            }
        }
    }

    /// Upper limits of its buckets.
    #[must_use]
    pub fn limits(&self) -> &'static [f64] {
        self.limits
    }

    /// The counts of the buckets, in the order of the limits, and the sum of all values.
    pub fn counts(&self) -> (impl Iterator<Item = u64> + '_, u64) {
        let sum = self.total(self.limits.len() + 1);
        ((0..=self.limits.len()).map(|bucket| self.total(bucket)), sum)
    }

    /// The counts so far.
    #[must_use]
    pub fn read(&self) -> HistogramReading {
        let (counts, sum) = self.counts();
        HistogramReading { limits: self.limits, counts: counts.collect(), sum }
    }

    /// A cell of all threads.
    fn total(&self, index: usize) -> u64 {
        let parts = self.cells.parts().filter_map(|cells| cell(cells, index));
        parts.fold(0, |sum, cell| sum.wrapping_add(cell.load(Relaxed)))
    }
}

/// A histogram at one moment.
pub struct HistogramReading {
    /// Upper limits of the buckets.
    pub limits: &'static [f64],
    /// One for each limit, and one for what is above all of them.
    pub counts: Vec<u64>,
    /// The sum of all values.
    pub sum: u64,
}

impl HistogramReading {
    /// No values, with buckets of these limits.
    #[must_use]
    pub fn empty(limits: &'static [f64]) -> Self {
        HistogramReading { limits, counts: vec![0; limits.len() + 1], sum: 0 }
    }

    /// How many values there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds another one with the same limits.
    pub fn add(&mut self, other: &HistogramReading) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }
}

/// Counts of outcomes by gRPC status code: 0 is success, and there are 16 error codes.
#[derive(Default)]
pub struct Outcomes([AtomicU64; CODES]);

/// The number of gRPC status codes.
pub(super) const CODES: usize = 17;

impl Outcomes {
    /// Counts one outcome; `None` is success.
    pub fn count(&self, code: Option<Code>) {
        let number = code.map_or(0, Code::grpc);
        if let Some(count) = self.0.get(usize::from(number)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// The counts, in the order of the codes.
    pub(super) fn counts(&self) -> [u64; CODES] {
        std::array::from_fn(|number| self.0.get(number).map_or(0, |count| count.load(Relaxed)))
    }

    /// The counts above 0, by the name of the code.
    #[must_use]
    pub fn read(&self) -> Vec<(&'static str, u64)> {
        let all = (0..).map(Code::status_name).zip(self.0.iter().map(|count| count.load(Relaxed)));
        all.filter(|(_, count)| *count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LIMITS: [f64; 3] = exponential(10.0, 1.8);

    #[test]
    fn values_land_in_the_first_bucket_that_holds_them() {
        let histogram = AtomicHistogram::new(&LIMITS);
        for value in [0, 10, 11, 18, 32, 33, u64::MAX / 2] {
            histogram.observe(value);
        }
        let mut reading = histogram.read();
        assert_eq!(reading.counts, [2, 2, 1, 2]);
        assert_eq!(reading.sum, u64::MAX / 2 + 104);
        let other = AtomicHistogram::new(&LIMITS);
        other.observe(12);
        reading.add(&other.read());
        assert_eq!(reading.counts, [2, 3, 1, 2]);
        assert_eq!(reading.count(), 8);
    }

    #[test]
    fn outcomes_have_the_names_of_their_codes() {
        let outcomes = Outcomes::default();
        outcomes.count(None);
        (1..=16).for_each(|number| outcomes.count(Some(Code::from_grpc(number))));
        outcomes.count(Some(Code::NotFound));
        let all = outcomes.read();
        assert_eq!(all.len(), 17);
        assert!(all.contains(&("OK", 1)) && all.contains(&("NOT_FOUND", 2)), "{all:?}");
        assert!(all.contains(&("UNAUTHENTICATED", 1)), "{all:?}");
    }
}
