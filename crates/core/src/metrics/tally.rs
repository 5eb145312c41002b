//! The counts of a span of time, in a fixed size.

use tensorserve_tensor::error::Code;

use super::cell::CODES;

/// Nanoseconds from 20 microseconds (a tiny model, run inline) to 30 s (the default timeout).
pub(super) static TIME_LIMITS: [f64; 19] = [
    2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10, 3e10,
];

pub(super) static ROW_LIMITS: [f64; 11] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

const TIMES: usize = TIME_LIMITS.len() + 1;
const ROWS: usize = ROW_LIMITS.len() + 1;

/// The values of counters at one moment.
#[derive(Clone, Copy, Default)]
pub(crate) struct CounterReading {
    /// Successful requests, by latency bucket.
    pub(crate) latency: [u64; TIMES],
    /// Failed requests, by error code.
    pub(crate) errors: [u64; CODES],
    /// Queue delay of requests, in nanoseconds.
    pub(super) waited: u64,
    /// Duration of runs, in nanoseconds.
    pub(super) run: u64,
    /// Runs, by bucket of rows.
    pub(super) rows: [u64; ROWS],
    /// Rows of all runs.
    pub(super) row_sum: u64,
}

impl CounterReading {
    /// Adds the counters of another signature.
    pub(super) fn add(&mut self, more: &CounterReading) {
        let sums = |to: &mut [u64], more: &[u64]| {
            to.iter_mut().zip(more).for_each(|(to, more)| *to += more);
        };
        sums(&mut self.latency, &more.latency);
        sums(&mut self.errors, &more.errors);
        sums(&mut self.rows, &more.rows);
        self.waited += more.waited;
        self.run += more.run;
        self.row_sum += more.row_sum;
    }

    /// The increase since `before`.
    pub(crate) fn since(&self, before: &CounterReading) -> Tally {
        Tally {
            latency: grown(&self.latency, &before.latency),
            errors: grown(&self.errors, &before.errors),
            waited: self.waited.saturating_sub(before.waited),
            run: self.run.saturating_sub(before.run),
            rows: grown(&self.rows, &before.rows),
            row_sum: self.row_sum.saturating_sub(before.row_sum),
        }
    }
}

fn grown<const N: usize>(now: &[u64; N], before: &[u64; N]) -> [u32; N] {
    let mut grown = [0; N];
    for ((grown, now), before) in grown.iter_mut().zip(now).zip(before) {
        *grown = u32::try_from(now.saturating_sub(*before)).unwrap_or(u32::MAX);
    }
    grown
}

fn add<const N: usize>(to: &mut [u32; N], more: &[u32; N]) {
    for (to, more) in to.iter_mut().zip(more) {
        *to = to.saturating_add(*more);
    }
}

fn sum(counts: &[u32]) -> u64 {
    counts.iter().copied().map(u64::from).sum()
}

/// The counts of a span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    latency: [u32; TIMES],
    errors: [u32; CODES],
    waited: u64,
    run: u64,
    rows: [u32; ROWS],
    row_sum: u64,
}

impl Tally {
    /// Adds the counts of another signature or of another span.
    pub fn add(&mut self, more: &Tally) {
        add(&mut self.latency, &more.latency);
        add(&mut self.errors, &more.errors);
        add(&mut self.rows, &more.rows);
        self.waited = self.waited.saturating_add(more.waited);
        self.run = self.run.saturating_add(more.run);
        self.row_sum = self.row_sum.saturating_add(more.row_sum);
    }

    /// Only failures, by error code.
    pub(super) fn of_failures(now: &[u64; CODES], before: &[u64; CODES]) -> Self {
        Tally { errors: grown(now, before), ..Tally::default() }
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Tally::default()
    }

    fn well(&self) -> u64 {
        sum(&self.latency)
    }

    /// All requests, successful or failed.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.well() + self.errors()
    }

    /// Requests that failed.
    #[must_use]
    pub fn errors(&self) -> u64 {
        sum(&self.errors)
    }

    /// Error codes, and the number of requests that failed with each.
    pub fn errors_by_code(&self) -> impl Iterator<Item = (Code, u32)> + '_ {
        let all = (0..).zip(&self.errors).skip(1);
        all.filter(|(_, count)| **count > 0).map(|(n, count)| (Code::from_grpc(n), *count))
    }

    /// The quantile `q` of the latency of successful requests in milliseconds, interpolated within
    /// its bucket; `None` if there were none.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn quantile_ms(&self, q: f64) -> Option<f64> {
        let all = self.well();
        if all == 0 {
            return None;
        }
        let wanted = q * all as f64;
        let (mut below, mut start) = (0.0, 0.0);
        for (&count, &limit) in self.latency.iter().zip(&TIME_LIMITS) {
            let here = f64::from(count);
            if here > 0.0 && below + here >= wanted {
                return Some((start + (limit - start) * ((wanted - below) / here)) / 1e6);
            }
            below += here;
            start = limit;
        }
        Some(start / 1e6)
    }

    /// The mean queue delay of a request in milliseconds, with 0 for inline runs. `None` without a
    /// successful request.
    #[must_use]
    pub fn queue_ms(&self) -> Option<f64> {
        mean(self.waited, self.well()).map(|nanos| nanos / 1e6)
    }

    /// The mean duration of a batch run in milliseconds; `None` if none ran.
    #[must_use]
    pub fn compute_ms(&self) -> Option<f64> {
        mean(self.run, sum(&self.rows)).map(|nanos| nanos / 1e6)
    }

    /// The mean number of rows in a batch; `None` if none ran.
    #[must_use]
    pub fn rows_per_batch(&self) -> Option<f64> {
        mean(self.row_sum, sum(&self.rows))
    }

    /// Batches by rows: the upper limit of each bucket (`None` for no limit), and its count.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Small whole numbers.
    pub fn batches(&self) -> impl Iterator<Item = (Option<u32>, u32)> + '_ {
        let limits = ROW_LIMITS.iter().map(|&limit| Some(limit as u32)).chain([None]);
        limits.zip(self.rows.iter().copied())
    }
}

#[allow(clippy::cast_precision_loss)]
fn mean(sum: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum as f64 / count as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(latency: &[(usize, u32)]) -> Tally {
        let mut tally = Tally::default();
        latency.iter().for_each(|&(bucket, count)| tally.latency[bucket] = count);
        tally
    }

    #[test]
    fn quantiles_lie_within_their_buckets() {
        assert_eq!(tally(&[]).quantile_ms(0.5), None);
        // Ten requests of up to 20 microseconds: half of them up to 10, by linear interpolation.
        assert_eq!(tally(&[(0, 10)]).quantile_ms(0.5), Some(0.01));
        let mixed = tally(&[(5, 90), (8, 10)]);
        let (p50, p99) = (mixed.quantile_ms(0.5).unwrap(), mixed.quantile_ms(0.99).unwrap());
        assert!((0.5..=1.0).contains(&p50) && (5.0..=10.0).contains(&p99), "{p50} {p99}");
        // A value above all bounds is reported as the last bound.
        assert_eq!(tally(&[(19, 1)]).quantile_ms(0.5), Some(30_000.0));
    }

    #[test]
    fn a_tally_is_the_difference_of_two_readings() {
        let mut before = CounterReading::default();
        before.latency[3] = 5;
        let mut now = before;
        now.latency[3] = 7;
        now.errors[3] = 2;
        now.rows[2] = 4;
        (now.row_sum, now.run, now.waited) = (14, 8_000_000, 1_000_000);
        let tally = now.since(&before);
        assert_eq!((tally.requests(), tally.errors()), (4, 2));
        assert_eq!(tally.errors_by_code().collect::<Vec<_>>(), [(Code::InvalidArgument, 2)]);
        assert_eq!((tally.compute_ms(), tally.queue_ms()), (Some(2.0), Some(0.5)));
        assert_eq!(tally.rows_per_batch(), Some(3.5));
        assert_eq!(tally.batches().nth(2), Some((Some(4), 4)));
        let mut twice = tally.clone();
        twice.add(&tally);
        assert_eq!((twice.requests(), twice.rows_per_batch()), (8, Some(3.5)));
        assert!(now.since(&now).is_empty());
    }
}
