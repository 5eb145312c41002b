//! Counters and histograms that threads update without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tensorserve_tensor::error::Code;

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

/// A histogram of integers, such as nanoseconds, microseconds or examples.
#[derive(Debug)]
pub struct AtomicHistogram {
    limits: &'static [f64],
    /// One for each limit, and one for what is above all of them.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl AtomicHistogram {
    /// A histogram with these upper limits, ascending, and a last bucket for larger values.
    #[must_use]
    pub fn new(limits: &'static [f64]) -> Self {
        let buckets = (0..=limits.len()).map(|_| AtomicU64::new(0)).collect();
        AtomicHistogram { limits, buckets, sum: AtomicU64::new(0) }
    }

    /// The number of the bucket of a value.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn bucket(&self, value: u64) -> usize {
        self.limits.partition_point(|limit| *limit < value as f64)
    }

    /// Adds a value.
    pub fn observe(&self, value: u64) {
        if let Some(bucket) = self.buckets.get(self.bucket(value)) {
            bucket.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
    }

    /// Upper limits of its buckets.
    #[must_use]
    pub fn limits(&self) -> &'static [f64] {
        self.limits
    }

    /// The counts of the buckets, in the order of the limits, and the sum of all values.
    pub fn counts(&self) -> (impl Iterator<Item = u64> + '_, u64) {
        (self.buckets.iter().map(|bucket| bucket.load(Relaxed)), self.sum.load(Relaxed))
    }

    /// The counts so far.
    #[must_use]
    pub fn read(&self) -> HistogramReading {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        HistogramReading { limits: self.limits, counts, sum: self.sum.load(Relaxed) }
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
