//! The run time of a signature by number of rows, learnt from its runs.
//!
//! A measured time can be many times the usual one: other processes use the machine, and the first
//! run of a size builds the runtime's plan. The model follows the median, which is robust to both.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Sizes 1, 2-3, 4-7, … up to 32,768 rows and more.
const BUCKETS: usize = 16;

/// A size counts as known after this many runs, …
const KNOWN_AFTER: u32 = 3;
/// … and up to this many runs the fastest counts: the others built plans and filled caches.
const FIRST_RUNS: u32 = 8;

/// What a row must cost in a batch of twice the size, as a share, so that this pays.
const GAIN: f64 = 29.0 / 30.0;

/// Of this many decisions, …
const PERIOD: u32 = 4096;
/// … this many are made as if batch sizes that brought no gain had not been tried: load and run
/// times change, and a measurement may have been noise.
const TRIES: u32 = 32;

/// A model of run time by batch size. Concurrent updates may overwrite one another, which hardly
/// changes the medians.
#[derive(Default)]
pub(super) struct CostModel {
    buckets: [Bucket; BUCKETS],
    questions: AtomicU32,
}

#[derive(Default)]
struct Bucket {
    runs: AtomicU32,
    /// Running median of nanoseconds per run; 0 before the first run.
    nanos: AtomicU64,
    /// Moving average of rows per run, times 256.
    rows: AtomicU64,
}

impl Bucket {
    /// Nanoseconds and rows (times 256) of a typical run of this size.
    fn usual(&self) -> Option<(u64, u64)> {
        let nanos = self.nanos.load(Relaxed);
        (nanos > 0).then(|| (nanos, self.rows.load(Relaxed).max(1)))
    }

    /// Nanoseconds and rows (times 256) of a typical run of this size, once enough runs were
    /// measured.
    fn known(&self) -> Option<(u64, u64)> {
        self.usual().filter(|_| self.runs.load(Relaxed) >= KNOWN_AFTER)
    }

    /// Nanoseconds for one row.
    #[allow(clippy::cast_precision_loss)]
    fn per_row(&self) -> Option<f64> {
        let (nanos, rows) = self.known()?;
        Some(nanos as f64 * 256.0 / rows as f64)
    }

    fn record(&self, rows: u64, nanos: u64) {
        let runs = self.runs.load(Relaxed);
        self.runs.store(runs.saturating_add(1), Relaxed);
        let Some((old_nanos, old_rows)) = self.usual() else {
            self.nanos.store(nanos, Relaxed);
            self.rows.store(rows, Relaxed);
            return;
        };
        let next = if runs < FIRST_RUNS {
            nanos.min(old_nanos)
        } else if nanos > old_nanos {
            old_nanos + old_nanos / 32 + 1
        } else {
            old_nanos - old_nanos / 32
        };
        self.nanos.store(next.max(1), Relaxed);
        self.rows.store(old_rows - old_rows / 16 + rows / 16, Relaxed);
    }
}

fn bucket_of(rows: usize) -> usize {
    let log2 = usize::BITS - 1 - rows.max(1).leading_zeros();
    (log2 as usize).min(BUCKETS - 1)
}

impl CostModel {
    /// Records that a run of `rows` rows took `time`.
    pub(super) fn record(&self, rows: usize, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let rows = (rows as u64).saturating_mul(256);
        if let Some(bucket) = self.buckets.get(bucket_of(rows as usize / 256)) {
            bucket.record(rows, nanos.clamp(1, u64::MAX / 2));
        }
    }

    /// The expected duration of a run of `rows` rows; `None` before the first run.
    pub(super) fn predict(&self, rows: usize) -> Option<Duration> {
        let index = bucket_of(rows);
        let rows = (rows as u64).saturating_mul(256);
        let below = self.buckets.get(..=index)?.iter().rev();
        let above = self.buckets.get(index..)?.iter();
        // The first runs of a size can take a thousand times as long as later ones, so the time of
        // an unknown size is derived from a known one.
        if let Some((nanos, known_rows)) = below.clone().find_map(Bucket::known) {
            if rows <= known_rows {
                return Some(Duration::from_nanos(nanos));
            }
            // Linear in rows above the known size: never too low for a model that gains from
            // batching.
            let scaled = u128::from(nanos) * u128::from(rows) / u128::from(known_rows);
            return Some(Duration::from_nanos(u64::try_from(scaled).unwrap_or(u64::MAX)));
        }
        // Only larger runs are known: this one costs no more than they did.
        let (nanos, _) = above.clone().find_map(Bucket::known).or_else(|| {
            let all = above.chain(below);
            all.into_iter().find_map(Bucket::usual)
        })?;
        Some(Duration::from_nanos(nanos))
    }

    /// The expected nanoseconds per row of a run of `rows` rows; 0 before the first run.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn row_cost(&self, rows: usize) -> f64 {
        let time = self.predict(rows).unwrap_or_default();
        time.as_secs_f64() * 1e9 / rows.max(1) as f64
    }

    /// The largest batch that pays. A size pays if a row costs less there than in the largest smaller size that pays, by
    /// a thirtieth for each time that it is doubled in between; so a size that was measured badly does not hide larger
    /// ones. A size that was not tried yet counts as paying if the next smaller one pays.
    pub(super) fn worthwhile_rows(&self, most: usize) -> usize {
        let mut buckets = self.buckets.iter().enumerate();
        let mut bound = buckets.next().and_then(|(_, bucket)| bucket.per_row());
        let mut largest = 0;
        for (size, bucket) in buckets.take_while(|(size, _)| most >> size > 0) {
            bound = bound.map(|cost| cost * GAIN);
            let cost = bucket.per_row();
            let pays = match (bound, cost) {
                (Some(bound), Some(cost)) => cost < bound,
                (Some(_), None) => size == largest + 1,
                (None, _) => true,
            };
            if pays {
                (largest, bound) = (size, cost.or(bound));
            }
        }
        let rows = (2usize << largest) - 1;
        if rows >= most || self.tries_anyway() { most } else { rows }
    }

    fn tries_anyway(&self) -> bool {
        self.questions.fetch_add(1, Relaxed) % PERIOD >= PERIOD - TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(times: &[(usize, u64)]) -> CostModel {
        let model = CostModel::default();
        for &(rows, micros) in times {
            for _ in 0..10 {
                model.record(rows, Duration::from_micros(micros));
            }
        }
        model
    }

    fn near(duration: Option<Duration>, micros: u64) -> bool {
        duration.is_some_and(|d| {
            d.as_micros().abs_diff(u128::from(micros)) <= u128::from(micros / 20 + 1)
        })
    }

    #[test]
    fn nothing_is_known_at_first() {
        let model = CostModel::default();
        assert_eq!(model.predict(1), None);
        assert_eq!(model.worthwhile_rows(64), 64);
    }

    #[test]
    fn predictions_are_linear_above_and_constant_below_what_is_known() {
        let model = learnt(&[(8, 100)]);
        assert!(near(model.predict(8), 100));
        assert!(near(model.predict(16), 200));
        assert!(near(model.predict(1), 100));
    }

    #[test]
    fn batching_stops_where_it_no_longer_pays() {
        // A model that batches well, such as wide_mlp.
        let well = learnt(&[(1, 57), (2, 65), (4, 80), (8, 122), (16, 220), (32, 406), (64, 800)]);
        assert!(well.worthwhile_rows(64) >= 32);
        // A model that does not, such as a large convolutional network.
        let not = learnt(&[(1, 85_000), (2, 170_000), (4, 340_000)]);
        assert_eq!(not.worthwhile_rows(64), 1);
    }

    #[test]
    fn a_size_that_was_measured_badly_hides_no_larger_ones() {
        let model = learnt(&[(1, 57), (2, 150), (4, 80), (8, 122), (16, 220)]);
        assert_eq!(model.worthwhile_rows(64), 64);
        // Twice doubled, a row must cost 2/30 less.
        assert_eq!(learnt(&[(1, 100), (2, 300), (4, 380)]).worthwhile_rows(64), 1);
        assert_eq!(learnt(&[(1, 100), (2, 300), (4, 360), (8, 900)]).worthwhile_rows(64), 7);
        // Between a known size that pays and one that does not, there may be one to try.
        assert_eq!(learnt(&[(1, 100), (4, 500)]).worthwhile_rows(64), 3);
    }

    #[test]
    fn a_size_that_did_not_pay_is_tried_again_now_and_then() {
        let model = learnt(&[(1, 100), (2, 200)]);
        let tried = (0..PERIOD).filter(|_| model.worthwhile_rows(64) > 1).count();
        assert_eq!(tried, TRIES as usize);
    }

    #[test]
    fn slow_runs_now_and_then_change_little() {
        let model = learnt(&[(1, 100)]);
        for _ in 0..100 {
            model.record(1, Duration::from_secs(10));
            (0..9).for_each(|_| model.record(1, Duration::from_micros(100)));
        }
        assert!(near(model.predict(1), 100), "{:?}", model.predict(1));
    }

    #[test]
    fn a_lasting_change_is_followed() {
        let model = learnt(&[(1, 100)]);
        (0..200).for_each(|_| model.record(1, Duration::from_micros(1000)));
        assert!(model.predict(1).is_some_and(|d| d > Duration::from_micros(900)));
    }

    #[test]
    fn the_first_run_of_a_size_is_no_verdict() {
        let model = learnt(&[(1, 100)]);
        model.record(2, Duration::from_millis(50));
        assert_eq!(model.worthwhile_rows(64), 64);
        assert!(near(model.predict(2), 200), "{:?}", model.predict(2));
    }
}
