//! The first minutes of a version that has passed its trial: live requests count, too.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::servable::Servable;
use crate::comparison::{NamedOutputs, VersionComparison};
use crate::metrics::{CounterReading, Tally};
use tensorserve_tensor::error::Code;

/// The fewest requests, of either version, whose latencies are compared.
const TIMED: u64 = 100;

/// Latencies that differ by less are no reason: their histograms have wide buckets.
const LEAST_DELAY_MS: f64 = 1.0;

/// The fewest errors that can be a reason.
const LEAST_ERRORS: u64 = 5;

/// Standard deviations by which shares of errors have to differ: chance does so once in a thousand times.
const DEVIATIONS: f64 = 3.0;

/// How often a live request also runs on the version before: its answers are compared, at little cost.
const COMPARED_EVERY: Duration = Duration::from_millis(100);

/// The fewest live requests for an output whose values are a distribution, or whose ranks a share.
const DISTRIBUTED: u64 = 100;

/// Answers of a version to live requests beside those of the version before it.
pub(crate) struct LiveComparison {
    old: Arc<Servable>,
    /// The number of the version that answers.
    new: i64,
    began: Instant,
    /// When the next request is to be compared, in microseconds since the beginning.
    next: AtomicU64,
    seen: Mutex<VersionComparison>,
}

impl LiveComparison {
    /// From now on, by the rules of `seen`, which has seen nothing. `None` if runs of the version before change something:
    /// they must not take place twice.
    fn begin(old: &Arc<Servable>, new: &Servable, seen: VersionComparison) -> Option<Arc<Self>> {
        let may_run_twice =
            old.external_ops().is_empty() && old.signatures().iter().all(|it| it.read_only);
        let live = || LiveComparison {
            old: Arc::clone(old),
            new: new.version(),
            began: Instant::now(),
            next: AtomicU64::new(0),
            seen: Mutex::new(seen),
        };
        may_run_twice.then(|| Arc::new(live()))
    }

    /// Whether a request that the version `number` answers is to run on the version before, too.
    pub(super) fn wants(&self, number: i64) -> bool {
        let now = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let next = self.next.load(Relaxed);
        let after = now.saturating_add(u64::try_from(COMPARED_EVERY.as_micros()).unwrap_or(0));
        number == self.new
            && now >= next
            && self.next.compare_exchange(next, after, Relaxed, Relaxed).is_ok()
    }

    /// The version before.
    pub(crate) fn old(&self) -> &Servable {
        &self.old
    }

    /// Compares the outputs of both versions for a run. Returns whether they are alike.
    pub(crate) fn add(&self, old: &NamedOutputs, new: &NamedOutputs) -> bool {
        let mut seen = self.seen();
        let number = seen.requests() + 1;
        seen.add(number, old, new).is_empty()
    }

    fn seen(&self) -> MutexGuard<'_, VersionComparison> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What live answers say against the new version.
    fn against(&self) -> Option<String> {
        let against = self.seen().against_seen(DISTRIBUTED);
        (!against.is_empty()).then(|| format!("live requests: {}", against.join("; ")))
    }
}

/// A version that has taken the place of another one a short time ago.
pub(super) struct ReleaseWatch {
    until: Instant,
    /// Answers to live requests, by both versions, if they are compared.
    pub(super) live: Option<Arc<LiveComparison>>,
    /// What the version had counted when it took traffic: it may have had some before.
    before: CounterReading,
    /// The requests of the version before it.
    old: Tally,
}

impl ReleaseWatch {
    /// From now on, for `time`. `rules` is a comparison that has seen nothing.
    pub(super) fn begin(
        old: &Arc<Servable>,
        new: &Servable,
        rules: VersionComparison,
        time: Duration,
    ) -> Self {
        let live = LiveComparison::begin(old, new, rules);
        let old = old.version_metrics().reading().since(&CounterReading::default());
        let before = new.version_metrics().reading();
        ReleaseWatch { until: Instant::now() + time, live, before, old }
    }

    /// Whether its time is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// What live requests say against the version.
    pub(super) fn against(&self, new: &Servable, max_slowdown: f64) -> Option<String> {
        let new = new.version_metrics().reading().since(&self.before);
        let live = || self.live.as_ref().and_then(|live| live.against());
        against(&self.old, &new, max_slowdown).or_else(live)
    }
}

fn against(old: &Tally, new: &Tally, max_slowdown: f64) -> Option<String> {
    let failed = (failures(old), failures(new));
    let all = (old.requests(), new.requests());
    let most_before = share_bound(failed.0, all.0, DEVIATIONS);
    let least_now = share_bound(failed.1, all.1, -DEVIATIONS);
    if failed.1 >= LEAST_ERRORS && least_now > most_before {
        let code = most_frequent(new);
        return Some(format!(
            "{} of {} live requests failed (most with {code}), and {} of {} on the version before",
            failed.1, all.1, failed.0, all.0
        ));
    }
    if all.0 < TIMED || all.1 < TIMED {
        return None;
    }
    let (was, is) = (old.quantile_ms(0.5)?, new.quantile_ms(0.5)?);
    let is_slow = is > was * max_slowdown && is - was >= LEAST_DELAY_MS;
    is_slow.then(|| {
        format!(
            "the median latency of live requests is {is:.1} ms, and was {was:.1} ms on the version before; it may be \
             {max_slowdown} times that"
        )
    })
}

/// Whether the version can be to blame for an error: not for clients that go away or may not ask, nor for load.
fn may_be_to_blame(code: Code) -> bool {
    match code {
        Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::Internal
        | Code::Unknown
        | Code::OutOfRange
        | Code::DataLoss => true,
        Code::Cancelled
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::Unavailable => false,
    }
}

fn failures(tally: &Tally) -> u64 {
    blamed(tally).map(|(_, count)| u64::from(count)).sum()
}

fn most_frequent(tally: &Tally) -> &'static str {
    blamed(tally).max_by_key(|(_, count)| *count).map_or("", |(code, _)| code.name())
}

fn blamed(tally: &Tally) -> impl Iterator<Item = (Code, u32)> + '_ {
    tally.errors_by_code().filter(|(code, _)| may_be_to_blame(*code))
}

/// A bound of the share of which `count` of `all` are a sample: Wilson's score interval, on the side of `deviations`.
// Counts are far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn share_bound(count: u64, all: u64, deviations: f64) -> f64 {
    if all == 0 {
        return if deviations > 0.0 { 1.0 } else { 0.0 };
    }
    let (n, z) = (all as f64, deviations);
    let share = count as f64 / n;
    let spread = (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
    (share + z * z / (2.0 * n) + z * spread) / (1.0 + z * z / n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(well: u64, bucket: usize, failed: u64, code: Code) -> Tally {
        let mut reading = CounterReading::default();
        reading.latency[bucket] = well;
        reading.errors[code.grpc() as usize] = failed;
        reading.since(&CounterReading::default())
    }

    fn verdict(old: (u64, u64), new: (u64, u64)) -> Option<String> {
        let of = |(well, failed)| tally(well, 3, failed, Code::InvalidArgument);
        against(&of(old), &of(new), 1.5)
    }

    #[test]
    fn more_errors_than_before_are_a_reason() {
        assert_eq!(verdict((10_000, 0), (1_000, 0)), None);
        let found = verdict((10_000, 0), (990, 10)).expect("a reason");
        assert!(found.contains("10 of 1000 live requests failed (most with INVALID_ARGUMENT)"));
        assert!(verdict((10_000, 0), (0, 5)).is_some(), "the first five");
        assert_eq!(verdict((10_000, 0), (0, 4)), None, "too few to say");
        assert_eq!(verdict((9_000, 1_000), (900, 110)), None, "as many as before");
        assert!(verdict((9_000, 1_000), (700, 300)).is_some());
        assert_eq!(verdict((3, 0), (20, 6)), None, "hardly anything is known of the old version");
    }

    #[test]
    fn clients_and_load_are_no_reason() {
        let old = tally(10_000, 3, 0, Code::Cancelled);
        for code in [Code::Cancelled, Code::ResourceExhausted, Code::Unauthenticated] {
            assert_eq!(against(&old, &tally(100, 3, 900, code), 1.5), None, "{code:?}");
        }
        assert!(against(&old, &tally(100, 3, 900, Code::Internal), 1.5).is_some());
    }

    #[test]
    fn a_slower_version_is_found_where_it_matters() {
        let of = |well, bucket| tally(well, bucket, 0, Code::Internal);
        // Medians of about 3.5 and 7.5 ms.
        let found = against(&of(1_000, 7), &of(1_000, 8), 1.5).expect("a reason");
        assert!(found.contains("may be 1.5 times"), "{found}");
        assert_eq!(against(&of(1_000, 7), &of(50, 8), 1.5), None, "too few");
        assert_eq!(against(&of(1_000, 0), &of(1_000, 2), 1.5), None, "microseconds");
    }
}
