//! The run time of a signature by number of rows, learnt from its runs.
//!
//! A measured time can be many times the usual one: other processes interrupt the run, the more likely the longer it
//! takes, and the first run of a number of rows builds the runtime's plan for it. So that first run does not count. Of the
//! latest runs of a size, the median is what the next one is expected to take. Sizes are compared by the second fastest:
//! nothing makes a run faster than it is, and under full load more than half of the runs of a large batch are interrupted, so
//! that their median would say that it does not pay. A size that looked slow is found to be fast by its next two runs; one
//! that becomes slow, once all the latest runs are.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Sizes 1, 2-3, 4-7, … up to 32,768 rows and more.
const BUCKETS: usize = 16;

/// A size counts as known after this many runs.
const KNOWN_AFTER: usize = 3;

/// The latest runs of a size, which tell how long it takes.
const LATEST: usize = 16;

/// What a row must cost in a batch of twice the size, as a share, so that this pays.
const GAIN: f64 = 29.0 / 30.0;

/// Of this many requests, …
const PERIOD: u32 = 4096;
/// … this many are joined as if batch sizes that brought no gain had not been tried: load and run
/// times change, and a measurement may have been noise.
const TRIES: u32 = 32;

/// One in so many batches may have twice the rows that pay, …
const NEXT_SIZE_EVERY: u32 = 64;
/// … and one in so many any number of rows.
const ANY_SIZE_EVERY: u32 = 2048;

/// Numbers of rows whose first run is told from later ones.
const SINGLE_SIZES: usize = 1024;

/// A model of run time by batch size. Concurrent updates may overwrite one another, which hardly
/// changes the times.
#[derive(Default)]
pub(super) struct CostModel {
    buckets: [Bucket; BUCKETS],
    sizes: SizesSeen,
    requests: AtomicU32,
    batches: AtomicU32,
}

/// The numbers of rows that have been run.
#[derive(Default)]
struct SizesSeen([AtomicU64; SINGLE_SIZES / 64]);

impl SizesSeen {
    /// Whether this is the first run of `rows` rows.
    fn is_new(&self, rows: usize) -> bool {
        let Some(word) = self.0.get(rows / 64) else {
            return false;
        };
        let bit = 1 << (rows % 64);
        // Read first: all threads share it, and after a while nobody writes to it.
        word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0
    }
}

/// Runs of similar sizes. Costs are nanoseconds per row.
#[derive(Default)]
struct Bucket {
    runs: AtomicUsize,
    latest: [AtomicF64; LATEST],
    /// The second smallest of the latest costs; 0 before the first run.
    cost: AtomicF64,
    /// Their median, or as long as there are fewer the same: the runs of the warm-up are few.
    median: AtomicF64,
    /// Moving average of rows per run.
    rows: AtomicF64,
}

/// What the latest runs of similar sizes were like.
struct TypicalRun {
    cost: f64,
    median: f64,
    rows: f64,
}

#[derive(Default)]
struct AtomicF64(AtomicU64);

impl AtomicF64 {
    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }

    fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Relaxed);
    }
}

impl Bucket {
    fn usual(&self) -> Option<TypicalRun> {
        let cost = self.cost.get();
        let run = || TypicalRun { cost, median: self.median.get(), rows: self.rows.get() };
        (cost > 0.0).then(run)
    }

    /// Once enough runs were measured.
    fn known(&self) -> Option<TypicalRun> {
        self.usual().filter(|_| self.runs.load(Relaxed) >= KNOWN_AFTER)
    }

    fn known_cost(&self) -> Option<f64> {
        self.known().map(|run| run.cost)
    }

    /// Stands in for measurements until there is one.
    fn estimate(&self, rows: f64, cost: f64) {
        if self.usual().is_none() {
            self.rows.set(rows);
            self.median.set(cost);
            self.cost.set(cost);
        }
    }

    fn record(&self, rows: f64, cost: f64) {
        self.estimate(rows, cost);
        let runs = self.runs.fetch_add(1, Relaxed);
        if let Some(oldest) = self.latest.get(runs % LATEST) {
            oldest.set(cost);
        }
        let mut latest = self.latest.each_ref().map(AtomicF64::get);
        let Some(latest) = latest.get_mut(..LATEST.min(runs.saturating_add(1))) else {
            return;
        };
        latest.sort_unstable_by(f64::total_cmp);
        if let Some(second) = latest.get(1).or(latest.first()) {
            let median = if latest.len() < LATEST { second } else { &latest[LATEST / 2] };
            self.median.set(*median);
            self.cost.set(*second);
        }
        let average = self.rows.get();
        self.rows.set(average + (rows - average) / 16.0);
    }
}

fn bucket_of(rows: usize) -> usize {
    let log2 = usize::BITS - 1 - rows.max(1).leading_zeros();
    (log2 as usize).min(BUCKETS - 1)
}

impl CostModel {
    /// Records that a run of `rows` rows took `time`.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn record(&self, rows: usize, time: Duration) {
        let Some(bucket) = self.buckets.get(bucket_of(rows)) else {
            return;
        };
        let is_new = self.sizes.is_new(rows);
        let rows = rows.max(1) as f64;
        let cost = (time.as_secs_f64() * 1e9).max(1.0) / rows;
        if is_new { bucket.estimate(rows, cost) } else { bucket.record(rows, cost) }
    }

    /// What is known of runs like these, for a model that computes the same in another way: the next few runs of a size
    /// tell its time.
    pub(super) fn renewed(&self) -> Self {
        let renewed = Self::default();
        for (old, new) in self.buckets.iter().zip(&renewed.buckets) {
            let Some(TypicalRun { median, rows, .. }) = old.usual() else {
                continue;
            };
            new.estimate(rows, median);
            (0..old.runs.load(Relaxed).min(KNOWN_AFTER)).for_each(|_| new.record(rows, median));
        }
        renewed
    }

    /// The expected duration of a run of `rows` rows; `None` before the first run.
    pub(super) fn predict(&self, rows: usize) -> Option<Duration> {
        self.time_of(rows, |run| run.median)
    }

    /// The duration of a run of `rows` rows that nothing interrupts; `None` before the first run.
    pub(super) fn predict_uninterrupted(&self, rows: usize) -> Option<Duration> {
        self.time_of(rows, |run| run.cost)
    }

    /// The nanoseconds per row of a run of `rows` rows that nothing interrupts; 0 before the first run.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn row_cost(&self, rows: usize) -> f64 {
        let time = self.predict_uninterrupted(rows).unwrap_or_default();
        time.as_secs_f64() * 1e9 / rows.max(1) as f64
    }

    /// The duration of a run of `rows` rows, where one of similar size costs so many nanoseconds for each row.
    #[allow(clippy::cast_precision_loss)]
    fn time_of(&self, rows: usize, cost: impl Fn(&TypicalRun) -> f64) -> Option<Duration> {
        let index = bucket_of(rows);
        let below = self.buckets.get(..=index)?.iter().rev();
        let above = self.buckets.get(index..)?.iter();
        let time = |run: &TypicalRun, rows: f64| {
            Duration::try_from_secs_f64(cost(run) * rows / 1e9).unwrap_or(Duration::MAX)
        };
        // The first runs of a size can take a thousand times as long as later ones, so the time of
        // an unknown size is derived from a known one.
        if let Some(known) = below.clone().find_map(Bucket::known) {
            // Linear in rows above the known size: never too low for a model that gains from
            // batching.
            return Some(time(&known, known.rows.max(rows as f64)));
        }
        // Only larger runs are known: this one costs no more than they did.
        let usual = above.clone().find_map(Bucket::known).or_else(|| {
            let all = above.chain(below);
            all.into_iter().find_map(Bucket::usual)
        })?;
        Some(time(&usual, usual.rows))
    }

    /// The largest number of rows of up to `rows` for which a run takes at most `limit`, of times that `predict` tells; but at
    /// least 1. A time slightly above the limit costs an eighth of the rows, and not half of them: each request asks, and steps of a
    /// row would be hundreds where all sizes between two powers of two are expected to take the same time.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
    pub(super) fn rows_within(
        &self,
        limit: Duration,
        mut rows: usize,
        predict: impl Fn(&Self, usize) -> Option<Duration>,
    ) -> usize {
        while rows > 1 {
            let time = predict(self, rows).unwrap_or(Duration::MAX);
            if time <= limit {
                break;
            }
            let share = limit.as_secs_f64() / time.as_secs_f64();
            rows = ((share * rows as f64) as usize).clamp(rows / 2, rows - rows.div_ceil(8));
        }
        rows
    }

    /// The largest batch for a request to join, among those of up to `most` rows that pay; now and then `most`.
    pub(super) fn rows_to_join(&self, most: usize) -> usize {
        let asked = self.requests.fetch_add(1, Relaxed);
        if asked % PERIOD >= PERIOD - TRIES { most } else { self.worthwhile_rows(most) }
    }

    /// The rows of the next batch, if it is one that shows whether larger ones than those of `rows` rows would be better.
    /// They are seldom many times as large: most rows would soon be in those that were to be tried.
    pub(super) fn rows_to_try(&self, rows: usize, most: usize) -> Option<usize> {
        let asked = self.batches.fetch_add(1, Relaxed);
        if asked % ANY_SIZE_EVERY == ANY_SIZE_EVERY - 1 {
            return Some(most);
        }
        let tries = asked % NEXT_SIZE_EVERY == NEXT_SIZE_EVERY - 1;
        tries.then(|| rows.saturating_mul(2).saturating_add(1).min(most))
    }

    /// The largest batch that pays. A size pays if a row costs less there than in the largest smaller size that pays, by
    /// a thirtieth for each time that it is doubled in between; so a size that was measured badly does not hide larger
    /// ones. A size that was not tried yet counts as paying if the next smaller one pays.
    pub(super) fn worthwhile_rows(&self, most: usize) -> usize {
        let mut buckets = self.buckets.iter().enumerate();
        let mut bound = buckets.next().and_then(|(_, bucket)| bucket.known_cost());
        let mut largest = 0;
        for (size, bucket) in buckets.take_while(|(size, _)| most >> size > 0) {
            bound = bound.map(|cost| cost * GAIN);
            let cost = bucket.known_cost();
            let pays = match (bound, cost) {
                (Some(bound), Some(cost)) => cost < bound,
                (Some(_), None) => size == largest + 1,
                (None, _) => true,
            };
            if pays {
                (largest, bound) = (size, cost.or(bound));
            }
        }
        most.min((2usize << largest) - 1)
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
        let tried = (0..PERIOD).filter(|_| model.rows_to_join(64) > 1).count();
        assert_eq!(tried, TRIES as usize);
        let run: Vec<usize> =
            (0..ANY_SIZE_EVERY).filter_map(|_| model.rows_to_try(1, 64)).collect();
        let times = |rows| run.iter().filter(|it| **it == rows).count() as u32;
        let next = ANY_SIZE_EVERY / NEXT_SIZE_EVERY - 1;
        assert_eq!([times(3), times(64), run.len() as u32], [next, 1, next + 1]);
        // Nowhere more than may be run.
        assert!((0..PERIOD).all(|_| model.rows_to_join(2) <= 2));
        assert!((0..PERIOD).all(|_| model.rows_to_try(1, 2).is_none_or(|rows| rows == 2)));
    }

    #[test]
    fn a_large_batch_that_was_measured_badly_is_soon_known_to_pay() {
        let model = learnt(&[(1, 57), (2, 65), (4, 80), (8, 122), (16, 900)]);
        assert_eq!(model.worthwhile_rows(64), 15);
        for _ in 0..3 * NEXT_SIZE_EVERY {
            let usual = model.worthwhile_rows(64);
            let rows = model.rows_to_try(usual, 64).unwrap_or(usual);
            model.record(rows, Duration::from_micros(50 + 11 * rows as u64));
        }
        assert!(model.worthwhile_rows(64) >= 31);
    }

    #[test]
    fn first_runs_of_single_sizes_do_not_count() {
        let model = learnt(&[(1, 100), (2, 110), (4, 130), (8, 160)]);
        // Each builds a plan.
        (16..32).for_each(|rows| model.record(rows, Duration::from_millis(20)));
        assert_eq!(model.worthwhile_rows(64), 64);
        assert!(near(model.predict(16), 320), "{:?}", model.predict(16));
        (16..32).for_each(|rows| model.record(rows, Duration::from_micros(10 * rows as u64)));
        assert!(near(model.predict(31), 310), "{:?}", model.predict(31));
        // Sizes above those that are told apart count from the first run on.
        (0..3).for_each(|_| model.record(5000, Duration::from_micros(100)));
        assert!(near(model.predict(5000), 100));
    }

    #[test]
    fn interrupted_runs_do_not_make_a_size_look_slow() {
        let model = learnt(&[(1, 100), (2, 120), (4, 140), (8, 180), (16, 250), (32, 400)]);
        // Of long runs under full load, more than half are interrupted.
        for run in 0..1000 {
            let slow = if run % 5 < 3 { 9 } else { 1 };
            model.record(32, Duration::from_micros(400 * slow));
            assert_eq!(model.worthwhile_rows(63), 63);
        }
        // But the next one has to be expected to take as long as most do.
        assert!(near(model.predict(32), 3600), "{:?}", model.predict(32));
        assert!((12_000.0..13_000.0).contains(&model.row_cost(32)), "{}", model.row_cost(32));
    }

    #[test]
    fn a_faster_form_of_a_model_is_soon_known() {
        let old = learnt(&[(1, 1000), (2, 1100), (4, 5000)]);
        let model = old.renewed();
        assert_eq!(model.worthwhile_rows(64), 3);
        assert!(near(model.predict(1), 1000));
        // The first run builds a plan again.
        for time in [9000, 300, 310, 300, 310] {
            model.record(4, Duration::from_micros(time));
        }
        assert!(near(model.predict(4), 300), "{:?}", model.predict(4));
    }

    #[test]
    fn rows_within_a_time_are_as_many_as_are_expected_to_take_it() {
        let limit = Duration::from_millis(1);
        let within = |model: &CostModel, rows| model.rows_within(limit, rows, CostModel::predict);
        let model = learnt(&[(11, 415)]);
        assert!((25..=26).contains(&within(&model, 31)), "{}", within(&model, 31));
        assert_eq!([within(&model, 20), within(&model, 1)], [20, 1]);
        // Few steps where the time is the same for all sizes below that of the known runs.
        let (flat, asked) = (learnt(&[(1000, 1001)]), AtomicUsize::new(0));
        let rows = flat.rows_within(limit, 1000, |model, rows| {
            asked.fetch_add(1, Relaxed);
            model.predict(rows)
        });
        assert!(rows == 1 && asked.load(Relaxed) < 50, "{rows}, {asked:?}");
        // Of what nothing is known, no more than one row is.
        assert_eq!(within(&CostModel::default(), 31), 1);
        // What interrupts runs does not count without it.
        let busy = learnt(&[(16, 300)]);
        (0..LATEST).for_each(|run| {
            busy.record(16, Duration::from_micros(if run < 3 { 300 } else { 4000 }))
        });
        assert!(within(&busy, 31) < 16);
        assert_eq!(busy.rows_within(limit, 31, CostModel::predict_uninterrupted), 31);
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
        (0..LATEST).for_each(|_| model.record(1, Duration::from_micros(1000)));
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
