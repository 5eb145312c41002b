//! What running a signature costs, learnt from its runs, by number of rows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Sizes 1, 2-3, 4-7, … up to 32,768 rows and more.
const BUCKETS: usize = 16;

/// Every so many batches a size that did not pay is tried again: models warm up, loads change.
const RETRY_EVERY: u32 = 256;

/// A model of run time by batch size. Updates from several threads may lose one another; the
/// averages do not mind.
#[derive(Default)]
pub(super) struct CostModel {
    buckets: [Bucket; BUCKETS],
    questions: AtomicU32,
}

#[derive(Default)]
struct Bucket {
    /// Moving average of nanoseconds per run; 0 while there was none.
    nanos: AtomicU64,
    /// Moving average of rows per run, times 256.
    rows: AtomicU64,
}

impl Bucket {
    /// Average nanoseconds and rows of a run of this size.
    fn average(&self) -> Option<(u64, u64)> {
        let nanos = self.nanos.load(Relaxed);
        (nanos > 0).then(|| (nanos, self.rows.load(Relaxed).max(1)))
    }

    /// Nanoseconds for one row, times 256.
    fn per_row(&self) -> Option<u64> {
        let (nanos, rows) = self.average()?;
        Some(nanos.saturating_mul(1 << 16) / rows)
    }
}

fn bucket_of(rows: usize) -> usize {
    let log2 = usize::BITS - 1 - rows.max(1).leading_zeros();
    (log2 as usize).min(BUCKETS - 1)
}

impl CostModel {
    /// Notes that a run of `rows` rows took `time`.
    pub(super) fn record(&self, rows: usize, time: Duration) {
        let Some(bucket) = self.buckets.get(bucket_of(rows)) else {
            return;
        };
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1);
        let rows = (rows as u64).saturating_mul(256);
        match bucket.average() {
            None => {
                bucket.nanos.store(nanos, Relaxed);
                bucket.rows.store(rows, Relaxed);
            }
            Some((old_nanos, old_rows)) => {
                // One run that waited for the processor must not spoil the picture.
                let nanos = nanos.min(old_nanos.saturating_mul(4));
                bucket.nanos.store(blend(old_nanos, nanos), Relaxed);
                bucket.rows.store(blend(old_rows, rows), Relaxed);
            }
        }
    }

    /// How long a run of `rows` rows is expected to take; `None` while nothing is known.
    pub(super) fn predict(&self, rows: usize) -> Option<Duration> {
        let index = bucket_of(rows);
        let rows = (rows as u64).saturating_mul(256);
        let known = |bucket: &Bucket| bucket.average();
        let below = self.buckets.get(..=index)?.iter().rev().find_map(known);
        if let Some((nanos, known_rows)) = below {
            // Linear in rows above what is known: never too low for a model that batches well.
            let scaled = u128::from(nanos) * u128::from(rows.max(known_rows)) / u128::from(known_rows);
            return Some(Duration::from_nanos(u64::try_from(scaled).unwrap_or(u64::MAX)));
        }
        // Only larger runs are known: this one costs no more than they did.
        let above = self.buckets.get(index..)?.iter().find_map(known);
        above.map(|(nanos, _)| Duration::from_nanos(nanos))
    }

    /// The most rows worth running together: up to where doubling them no longer makes a row
    /// cheaper by a thirtieth. Sizes not yet tried count as worth it.
    pub(super) fn worthwhile_rows(&self, most: usize) -> usize {
        let mut rows = 1;
        for (smaller, larger) in self.buckets.iter().zip(self.buckets.iter().skip(1)) {
            if rows >= most {
                return most;
            }
            let pays = match (smaller.per_row(), larger.per_row()) {
                (Some(smaller), Some(larger)) => larger < smaller - smaller / 30,
                _ => true,
            };
            if !pays {
                let asked = self.questions.fetch_add(1, Relaxed);
                let retry = asked % RETRY_EVERY == RETRY_EVERY - 1;
                return if retry { (rows * 4).min(most) } else { rows };
            }
            rows = (rows * 2 + 1).min(most);
        }
        most
    }
}

/// A moving average over about sixteen values.
fn blend(old: u64, new: u64) -> u64 {
    old - old / 16 + new / 16
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
        duration.is_some_and(|d| d.as_micros().abs_diff(u128::from(micros)) <= u128::from(micros / 50 + 1))
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
        // A model that batches well, as wide_mlp does.
        let well = learnt(&[(1, 57), (2, 65), (4, 80), (8, 122), (16, 220), (32, 406), (64, 800)]);
        assert!(well.worthwhile_rows(64) >= 32);
        // One that does not, as a large convolutional network.
        let not = learnt(&[(1, 85_000), (2, 170_000), (4, 340_000)]);
        assert_eq!(not.worthwhile_rows(64), 1);
    }

    #[test]
    fn a_size_that_did_not_pay_is_tried_again_now_and_then() {
        let model = learnt(&[(1, 100), (2, 200)]);
        let tried = (0..RETRY_EVERY).filter(|_| model.worthwhile_rows(64) > 1).count();
        assert_eq!(tried, 1);
    }

    #[test]
    fn one_slow_run_does_not_spoil_the_average() {
        let model = learnt(&[(1, 100)]);
        model.record(1, Duration::from_secs(10));
        assert!(model.predict(1).is_some_and(|d| d < Duration::from_micros(130)));
    }
}
