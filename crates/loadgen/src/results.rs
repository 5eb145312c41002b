//! What a run has shown.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is told apart: an hour, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;

/// A histogram of nanoseconds with three significant digits.
// The constants are valid.
#[allow(clippy::expect_used)]
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, 3).expect("valid bounds")
}

/// Why a request has no complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// It took longer than the timeout, or than the run.
    Timeout,
    /// The connection was closed.
    Closed,
    /// The bytes that came are no response.
    Malformed,
    /// No connection could be opened.
    Connect,
}

impl FailureKind {
    /// For people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            FailureKind::Timeout => "timed out",
            FailureKind::Closed => "connection closed",
            FailureKind::Malformed => "not a response",
            FailureKind::Connect => "not connected",
        }
    }
}

/// The first failure, to be shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureSample {
    /// The status of the response, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The start of its body, or what has happened.
    pub text: String,
}

impl FailureSample {
    pub(crate) fn of_status(status: u16, body: &[u8]) -> Self {
        FailureSample { status: Some(status), text: String::from_utf8_lossy(body).into_owned() }
    }

    pub(crate) fn of_kind(kind: FailureKind, why: &str) -> Self {
        let text = format!("{}: {why}", kind.words());
        FailureSample { status: None, text }
    }
}

/// Counts of requests that were due in the measured time, unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadCounts {
    /// Responses by status: of HTTP, or the codes of gRPC.
    pub statuses: BTreeMap<u16, u64>,
    /// Responses with a status of success.
    pub succeeded: u64,
    /// Requests without a complete response.
    pub failures: BTreeMap<FailureKind, u64>,
    /// Successful responses that arrived in the measured time, whenever their requests were due.
    pub completed: u64,
    /// Requests of an open loop that were due and were never sent, because no connection was free.
    pub unsent: u64,
    /// Requests of an open loop that waited for a free connection.
    pub waited: u64,
    /// Connections that were opened again.
    pub reconnects: u64,
    /// Bytes of requests that were answered.
    pub bytes_sent: u64,
    /// Bytes of their responses.
    pub bytes_received: u64,
}

impl LoadCounts {
    /// Adds those of other requests.
    pub(crate) fn add(&mut self, other: &LoadCounts) {
        other.statuses.iter().for_each(|(k, n)| *self.statuses.entry(*k).or_default() += n);
        other.failures.iter().for_each(|(k, n)| *self.failures.entry(*k).or_default() += n);
        self.succeeded += other.succeeded;
        self.completed += other.completed;
        self.unsent += other.unsent;
        self.waited += other.waited;
        self.reconnects += other.reconnects;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }

    /// Responses of any status.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Requests that were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.answered() + self.failures.values().sum::<u64>()
    }

    /// Requests that were sent, and have no response with a status of success.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.sent() - self.succeeded
    }
}

/// Latencies of a window: pairs of nanoseconds and how often they were seen, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SparseCounts(pub Vec<(u64, u64)>);

impl SparseCounts {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        let pairs = histogram.iter_recorded();
        SparseCounts(pairs.map(|at| (at.value_iterated_to(), at.count_at_value())).collect())
    }

    pub(crate) fn add(&mut self, other: &SparseCounts) {
        let mut sums: BTreeMap<u64, u64> = self.0.iter().copied().collect();
        other.0.iter().for_each(|(value, count)| *sums.entry(*value).or_default() += count);
        self.0 = sums.into_iter().collect();
    }

    /// The sum of the counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// The value that the share `quantile` of all does not exceed; 0 without any.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> u64 {
        let rank = rank(quantile, self.total());
        let mut seen = 0;
        let found = self.0.iter().find(|(_, count)| {
            seen += count;
            seen >= rank
        });
        found.map_or(0, |(value, _)| *value)
    }
}

/// The number of the smallest values that are to be seen for a quantile, from 1.
// Exact up to 2^53 values.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(crate) fn rank(quantile: f64, total: u64) -> u64 {
    ((quantile * total as f64).ceil() as u64).max(1)
}

/// A part of the measured time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadWindow {
    /// Its latencies.
    pub latency: SparseCounts,
    /// Its counts.
    pub counts: LoadCounts,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunEnd {
    /// Its time was over.
    Duration,
    /// Its quantiles were steady.
    Steady,
    /// The server accepted no connection any more.
    ServerGone,
    /// The caller stopped it.
    Stopped,
}

/// What the load has cost the machine that made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClientCost {
    /// Threads.
    pub threads: usize,
    /// CPU time of all threads in the measured time, in seconds.
    pub cpu_seconds: f64,
    /// CPU time of the busiest thread by the measured time, 0 to 1.
    pub busiest: f64,
    /// The share of the measured time in which a thread was ready to run and had no CPU; of the thread that waited
    /// longest.
    pub waited_for_cpu: f64,
}

/// What a run has shown.
#[derive(Clone, Debug)]
pub struct LoadResults {
    /// The measured time.
    pub seconds: f64,
    /// How it ended.
    pub ended: RunEnd,
    /// The length of a window in seconds.
    pub window_seconds: f64,
    /// The measured time, window by window.
    pub windows: Vec<LoadWindow>,
    /// All counts.
    pub counts: LoadCounts,
    /// Latencies of successful requests in nanoseconds, and of those that timed out, with the time that they waited.
    pub latency: Histogram<u64>,
    /// How late requests of an open loop were sent although a connection was free, in nanoseconds.
    pub lag: Histogram<u64>,
    /// Times that the server has reported (`Server-Timing`), by name, in nanoseconds.
    pub timings: BTreeMap<String, Histogram<u64>>,
    /// The first failure.
    pub first_failure: Option<FailureSample>,
    /// The cost of the load itself.
    pub client: ClientCost,
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn quantiles_of_pairs_are_those_of_the_histogram() {
        let mut dense = histogram();
        let mut sparse = SparseCounts::default();
        for value in 1..=10_000u64 {
            dense.saturating_record(value * value);
            let mut one = histogram();
            one.saturating_record(value * value);
            if value % 1000 == 0 {
                sparse.add(&SparseCounts::of(&dense));
                dense.reset();
            }
        }
        let mut whole = histogram();
        (1..=10_000u64).for_each(|value| whole.saturating_record(value * value));
        assert_eq!(sparse.total(), 10_000);
        for quantile in [0.0, 0.5, 0.99, 0.999, 1.0] {
            let (a, b) = (sparse.quantile(quantile), whole.value_at_quantile(quantile));
            assert!(a.abs_diff(b) <= b / 500, "{quantile}: {a} {b}");
        }
        assert_eq!(SparseCounts::default().quantile(0.5), 0);
    }
}
