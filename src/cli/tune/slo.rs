//! The promise that settings must keep: a quantile of the latency, and its limit.

use std::fmt;
use std::time::Duration;

use crate::config::units::HumanDuration;
use tensorserve_loadgen::summary::{LoadQuantiles, LoadSummary};

/// The accepted forms, for errors.
const FORMS: &str =
    "write a quantile (p50, p90, p99 or p99.9) and a duration with its unit, for example p99=20ms";

/// Requests that may be unanswered at the end of a run: as many as a server has in progress.
const IN_PROGRESS: f64 = 10.0;

/// The least share of the requests that are due in a run which must be answered in it: with fewer, a queue grows.
const LEAST_ANSWERED: f64 = 0.95;

/// Quantiles that runs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SloQuantile {
    P50,
    P90,
    P99,
    P999,
}

/// What a run of an open loop has shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SlowCount {
    /// Requests that were due.
    pub(super) requests: f64,
    /// Those that were not answered with success and in time.
    pub(super) slow: f64,
}

impl SlowCount {
    /// Whether no larger share was slow than may be.
    pub(super) fn is_kept(self, slow_share: f64) -> bool {
        self.requests > 0.0 && self.slow <= slow_share * self.requests
    }

    pub(super) fn share(self) -> f64 {
        (self.slow / self.requests).clamp(0.0, 1.0)
    }
}

/// So large a share of the requests is to be answered within the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LatencySlo {
    quantile: SloQuantile,
    limit: Duration,
}

impl LatencySlo {
    /// Reads `p99=20ms`.
    ///
    /// # Errors
    /// A text that names the accepted forms, if it is something else.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{text:?} is no promise: {why}; {FORMS}");
        let (name, limit) = text.split_once('=').ok_or_else(|| wrong("there is no ="))?;
        let quantile = match name.trim() {
            "p50" => SloQuantile::P50,
            "p90" => SloQuantile::P90,
            "p99" => SloQuantile::P99,
            "p99.9" => SloQuantile::P999,
            other => return Err(wrong(&format!("{other:?} is not one of the quantiles"))),
        };
        let limit = limit.trim();
        if !limit.ends_with(|last: char| last.is_ascii_alphabetic()) {
            return Err(wrong("the duration has no unit"));
        }
        let limit = limit.parse::<HumanDuration>().map_err(|why| wrong(&why))?.0;
        match limit.is_zero() || limit > Duration::from_secs(600) {
            true => Err(wrong("the duration must be above 0 and at most 10m")),
            false => Ok(LatencySlo { quantile, limit }),
        }
    }

    /// The name of the quantile.
    pub(super) fn name(self) -> &'static str {
        match self.quantile {
            SloQuantile::P50 => "p50",
            SloQuantile::P90 => "p90",
            SloQuantile::P99 => "p99",
            SloQuantile::P999 => "p99.9",
        }
    }

    /// The share of requests that may take longer.
    pub(super) fn slow_share(self) -> f64 {
        match self.quantile {
            SloQuantile::P50 => 0.5,
            SloQuantile::P90 => 0.1,
            SloQuantile::P99 => 0.01,
            SloQuantile::P999 => 0.001,
        }
    }

    pub(super) fn limit(self) -> Duration {
        self.limit
    }

    /// The limit in milliseconds.
    pub(super) fn limit_ms(self) -> f64 {
        self.limit.as_secs_f64() * 1e3
    }

    /// The quantile among others, in milliseconds.
    pub(super) fn of(self, latency: &LoadQuantiles) -> f64 {
        match self.quantile {
            SloQuantile::P50 => latency.p50,
            SloQuantile::P90 => latency.p90,
            SloQuantile::P99 => latency.p99,
            SloQuantile::P999 => latency.p999,
        }
    }

    /// Whether a latency in nanoseconds is within the limit.
    pub(super) fn allows(self, nanoseconds: u64) -> bool {
        u128::from(nanoseconds) <= self.limit.as_nanos()
    }

    /// How many requests of an open loop were slow, of all that were due; all, if those that are not answered become
    /// more and more.
    // Counters of one run are exact.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn slow_in(self, run: &LoadSummary) -> SlowCount {
        let due = (run.sent + run.unsent) as f64;
        let counts = run.windows_ns.iter().flat_map(|window| &window.0);
        let in_time: u64 = counts.filter(|(at, _)| self.allows(*at)).map(|(_, count)| count).sum();
        // A request that is given up at the end of a run may have waited for less than the limit.
        let in_time = in_time.min(run.succeeded);
        let answered = run.requests_per_second * run.seconds;
        let is_growing = answered < LEAST_ANSWERED * due - IN_PROGRESS;
        let slow = if is_growing { due } else { (due - in_time as f64).max(0.0) };
        SlowCount { requests: due, slow }
    }
}

impl fmt::Display for LatencySlo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.name(), HumanDuration(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;
    use std::collections::BTreeMap;
    use tensorserve_loadgen::results::{ClientCost, LoadCounts, LoadResults, RunEnd, SparseCounts};
    use tensorserve_loadgen::summary::LoadSetting;

    #[test]
    fn promises_are_a_quantile_and_a_limit() {
        for (text, share, limit) in [
            ("p99=20ms", 0.01, 20.0),
            ("p50=1.5ms", 0.5, 1.5),
            ("p90 = 2s", 0.1, 2000.0),
            ("p99.9=700us", 0.001, 0.7),
        ] {
            let slo = LatencySlo::read(text).expect(text);
            assert_eq!((slo.slow_share(), slo.limit_ms()), (share, limit), "{text}");
        }
        assert_eq!(LatencySlo::read("p99=20ms").expect("valid").to_string(), "p99=20ms");
    }

    /// A run of a second with so many latencies in milliseconds.
    fn run(latencies: &[(u64, u64)], unsent: u64) -> LoadSummary {
        let pairs = latencies.iter().map(|(ms, count)| (ms * 1_000_000, *count));
        let windows_ns = vec![SparseCounts(pairs.collect())];
        let count: u64 = latencies.iter().map(|(_, count)| count).sum();
        let statuses = [(200, count)].into();
        let answered = LoadCounts { statuses, succeeded: count, ..LoadCounts::default() };
        let results = LoadResults {
            seconds: 1.0,
            ended: RunEnd::Duration,
            window_seconds: 1.0,
            windows: Vec::new(),
            counts: LoadCounts { completed: count, unsent, ..answered },
            latency: Histogram::new(3).expect("a histogram"),
            lag: Histogram::new(3).expect("a histogram"),
            timings: BTreeMap::new(),
            first_failure: None,
            client: ClientCost::default(),
        };
        LoadSummary { windows_ns, ..LoadSummary::of(LoadSetting::default(), &results) }
    }

    #[test]
    fn a_promise_is_kept_by_all_that_was_due() {
        let slo = LatencySlo::read("p90=5ms").expect("valid");
        let is_kept = |run: &LoadSummary| slo.slow_in(run).is_kept(slo.slow_share());
        assert!(is_kept(&run(&[(1, 900), (9, 100)], 0)));
        assert!(!is_kept(&run(&[(1, 890), (9, 110)], 0)));
        // What was never sent, and what has failed, was not in time.
        assert!(!is_kept(&run(&[(1, 900)], 101)));
        let mut failed = run(&[(1, 1000)], 0);
        failed.sent += 200;
        assert!(!is_kept(&failed));
        // Given up after a time below the limit.
        let mut given_up = run(&[(1, 1000)], 0);
        given_up.succeeded = 800;
        assert!(!is_kept(&given_up));
        // A queue that grows, within the limit so far.
        let mut growing = run(&[(1, 1000)], 0);
        growing.requests_per_second = 900.0;
        assert!(!is_kept(&growing));
        assert_eq!(slo.slow_in(&growing).share(), 1.0);
        assert!(!is_kept(&run(&[], 0)));
    }

    #[test]
    fn everything_else_is_refused_with_the_forms() {
        for text in
            ["", "foo", "p99", "p99=", "p99=20", "p98=1ms", "p99=x", "p99=0ms", "p99=-1ms", "=1ms"]
        {
            let why = LatencySlo::read(text).expect_err(text);
            assert!(why.contains("p50, p90, p99 or p99.9") && why.contains("p99=20ms"), "{why}");
        }
        let why = LatencySlo::read("p99=2h").expect_err("too long");
        assert!(why.contains("10m"), "{why}");
    }
}
