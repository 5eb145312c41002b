//! The figures of a run, as they are shown and kept.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::plan::{Arrivals, LoadPlan, WireKind};
use crate::results::{ClientCost, FailureKind, FailureSample, LoadResults, RunEnd, SparseCounts};

/// The version of the format.
const FORMAT: u32 = 1;

/// Above this, a thread of the client has no time left.
const BUSY: f64 = 0.9;

/// Above this share of the time without a CPU, latencies are partly the client's.
const STARVED: f64 = 0.05;

/// Requests that are sent later than this, and than a tenth of the median latency, are late.
const LATE: u64 = 200_000;

/// Quantiles, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadQuantiles {
    /// The arithmetic mean.
    pub mean: f64,
    /// The smallest value.
    pub min: f64,
    /// Half of the values are not above it.
    pub p50: f64,
    /// 90 %.
    pub p90: f64,
    /// 99 %.
    pub p99: f64,
    /// 99.9 %.
    #[serde(rename = "p99.9")]
    pub p999: f64,
    /// The largest value.
    pub max: f64,
}

impl LoadQuantiles {
    pub(crate) fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return LoadQuantiles::default();
        }
        let at = |quantile: f64| milliseconds(histogram.value_at_quantile(quantile));
        LoadQuantiles {
            mean: histogram.mean() / 1e6,
            min: milliseconds(histogram.min()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: milliseconds(histogram.max()),
        }
    }
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadSetting {
    /// What requests were sent to, in the words of the caller.
    pub target: String,
    /// What they were, in the words of the caller.
    pub requests: String,
    /// `http` or `grpc`: what statuses are of.
    pub wire: String,
    /// `closed`, `fixed`, `poisson` or `replay`.
    pub arrivals: String,
    /// Requests a second, of an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Connections.
    pub connections: usize,
    /// Seconds that were not measured.
    pub warm_up_seconds: f64,
}

impl LoadSetting {
    /// Of a plan.
    #[must_use]
    pub fn of(plan: &LoadPlan, target: String, requests: String) -> Self {
        let arrivals = match &plan.arrivals {
            Arrivals::Closed => "closed",
            Arrivals::Fixed(_) => "fixed",
            Arrivals::Poisson(_) => "poisson",
            Arrivals::Times(_) => "replay",
        };
        let wire = match plan.wire {
            WireKind::Http => "http",
            WireKind::Grpc => "grpc",
        };
        LoadSetting {
            target,
            requests,
            wire: wire.to_owned(),
            arrivals: arrivals.to_owned(),
            rate: plan.arrivals.rate(),
            connections: plan.connections,
            warm_up_seconds: plan.warm_up.as_secs_f64(),
        }
    }
}

/// What the server used, as far as the caller knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerUse {
    /// CPU time of its process for each response, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cpu_us_per_request: Option<f64>,
    /// Rows of a batch, on average.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rows_per_batch: Option<f64>,
}

/// The figures of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadSummary {
    /// The version of the format.
    pub format: u32,
    /// What was asked for.
    pub setting: LoadSetting,
    /// The measured time.
    pub seconds: f64,
    /// How the run ended.
    pub ended: RunEnd,
    /// Requests that were due in the measured time and sent.
    pub sent: u64,
    /// Those of them with a response of success.
    pub succeeded: u64,
    /// Those of them without.
    pub failed: u64,
    /// Requests that were due and never sent.
    pub unsent: u64,
    /// Requests that had to wait for a free connection.
    pub waited: u64,
    /// Responses of success in the measured time by its length.
    pub requests_per_second: f64,
    /// Responses by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests without a complete response.
    pub failures: BTreeMap<FailureKind, u64>,
    /// The first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_failure: Option<FailureSample>,
    /// Connections that were opened again.
    pub reconnects: u64,
    /// Bytes of requests that were answered.
    pub bytes_sent: u64,
    /// Bytes of their responses.
    pub bytes_received: u64,
    /// Latencies of successful requests, and of those that timed out.
    pub latency_ms: LoadQuantiles,
    /// Times that the server has reported, by name.
    pub server_timing_ms: BTreeMap<String, LoadQuantiles>,
    /// What the server used.
    #[serde(default)]
    pub server: ServerUse,
    /// How late requests were sent although a connection was free.
    pub lag_ms: LoadQuantiles,
    /// What the load has cost.
    pub client: ClientCost,
    /// CPU time of the client for each response, in microseconds.
    pub client_cpu_us_per_request: f64,
    /// Whether the client was too slow for its figures to be those of the server.
    pub is_client_saturated: bool,
    /// What makes the figures less than they seem, for people.
    pub notes: Vec<String>,
    /// The length of a window in seconds.
    pub window_seconds: f64,
    /// Latencies of each window: pairs of nanoseconds and how often they were seen.
    pub windows_ns: Vec<SparseCounts>,
}

impl LoadSummary {
    /// Of the results of a plan.
    #[must_use]
    // Counters of one run are exact.
    #[allow(clippy::cast_precision_loss)]
    pub fn of(setting: LoadSetting, results: &LoadResults) -> Self {
        let counts = &results.counts;
        let requests_per_second = counts.completed as f64 / results.seconds.max(1e-9);
        let client = results.client;
        let mut summary = LoadSummary {
            format: FORMAT,
            setting,
            seconds: results.seconds,
            ended: results.ended,
            sent: counts.sent(),
            succeeded: counts.succeeded,
            failed: counts.failed(),
            unsent: counts.unsent,
            waited: counts.waited,
            requests_per_second,
            statuses: counts.statuses.clone(),
            failures: counts.failures.clone(),
            first_failure: results.first_failure.clone(),
            reconnects: counts.reconnects,
            bytes_sent: counts.bytes_sent,
            bytes_received: counts.bytes_received,
            latency_ms: LoadQuantiles::of(&results.latency),
            server_timing_ms: results
                .timings
                .iter()
                .map(|(k, v)| (k.clone(), LoadQuantiles::of(v)))
                .collect(),
            server: ServerUse::default(),
            lag_ms: LoadQuantiles::of(&results.lag),
            client,
            client_cpu_us_per_request: client.cpu_seconds * 1e6 / counts.answered().max(1) as f64,
            is_client_saturated: false,
            notes: Vec::new(),
            window_seconds: results.window_seconds,
            windows_ns: results.windows.iter().map(|window| window.latency.clone()).collect(),
        };
        summary.note(results);
        summary
    }

    /// Whether all due requests were sent.
    #[must_use]
    pub fn held_its_rate(&self) -> bool {
        self.unsent == 0
    }

    /// Adds the remarks.
    #[allow(clippy::cast_precision_loss)]
    fn note(&mut self, results: &LoadResults) {
        let percent = |part: u64, all: u64| part as f64 / all.max(1) as f64 * 100.0;
        let due = self.sent + self.unsent;
        if self.unsent > 0 {
            let rate = self
                .setting
                .rate
                .map_or("of the log".to_owned(), |rate| format!("of {rate} requests/s"));
            self.notes.push(format!(
                "the rate {rate} was not held: {:.1} % of the requests that were due were never sent, \
                 and latencies grew for as long as the run lasted. The server answered {:.0} requests/s",
                percent(self.unsent, due),
                self.requests_per_second
            ));
        } else if percent(self.waited, due) > 1.0 {
            self.notes.push(format!(
                "{:.1} % of the requests waited for one of {} connections, which is part of their latency",
                percent(self.waited, due),
                self.setting.connections
            ));
        }
        if self.client.busiest > BUSY {
            self.is_client_saturated = true;
            self.notes.push(format!(
                "the client was saturated: a thread of it used {:.0} % of a core. More threads can send more",
                self.client.busiest * 100.0
            ));
        }
        if self.client.waited_for_cpu > STARVED {
            self.is_client_saturated = true;
            self.notes.push(format!(
                "the client waited for a CPU in {:.0} % of the time: latencies are in part its own. Other programs, or \
                 the server, use the same cores",
                self.client.waited_for_cpu * 100.0
            ));
        }
        let late = results.lag.value_at_quantile(0.99);
        if !results.lag.is_empty() && late > LATE.max(results.latency.value_at_quantile(0.5) / 10) {
            self.is_client_saturated = true;
            self.notes.push(format!(
                "the client sent requests up to {:.2} ms late (99 % of them), which is part of their latency",
                milliseconds(late)
            ));
        }
        match self.ended {
            RunEnd::ServerGone => {
                self.notes.push("the run ended early: the server accepts no connections".to_owned())
            }
            RunEnd::Stopped => self.notes.push("the run was stopped early".to_owned()),
            RunEnd::Duration | RunEnd::Steady => {}
        }
    }
}

// Hours are exact.
#[allow(clippy::cast_precision_loss)]
fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::results::{LoadCounts, histogram};

    fn results() -> LoadResults {
        let mut latency = histogram();
        (1..=100u64).for_each(|n| latency.saturating_record(n * 1_000_000));
        let counts = LoadCounts {
            statuses: [(200, 100)].into(),
            succeeded: 100,
            completed: 100,
            ..LoadCounts::default()
        };
        LoadResults {
            seconds: 2.0,
            ended: RunEnd::Duration,
            window_seconds: 1.0,
            windows: Vec::new(),
            counts,
            latency,
            lag: histogram(),
            timings: BTreeMap::new(),
            first_failure: None,
            client: ClientCost {
                threads: 1,
                cpu_seconds: 0.001,
                busiest: 0.1,
                waited_for_cpu: 0.0,
            },
        }
    }

    fn summary(results: &LoadResults) -> LoadSummary {
        let setting = LoadSetting { rate: Some(50.0), connections: 3, ..LoadSetting::default() };
        LoadSummary::of(setting, results)
    }

    /// Of a closed loop with so many successful requests.
    pub(crate) fn summary_of(requests: u64) -> LoadSummary {
        let mut results = results();
        results.counts.statuses = [(200, requests)].into();
        results.counts.succeeded = requests;
        let setting = LoadSetting { connections: 3, ..LoadSetting::default() };
        LoadSummary::of(setting, &results)
    }

    #[test]
    fn a_quiet_run_has_figures_and_no_remarks() {
        let summary = summary(&results());
        assert_eq!((summary.sent, summary.failed, summary.requests_per_second), (100, 0, 50.0));
        assert!((summary.latency_ms.p50 - 50.0).abs() < 0.1, "{:?}", summary.latency_ms);
        assert!((summary.client_cpu_us_per_request - 10.0).abs() < 1e-9);
        assert!(summary.notes.is_empty() && !summary.is_client_saturated, "{:?}", summary.notes);
    }

    #[test]
    fn what_spoils_a_run_is_said() {
        let said = |change: &dyn Fn(&mut LoadResults)| {
            let mut results = results();
            change(&mut results);
            let summary = summary(&results);
            (summary.notes.join("\n"), summary.is_client_saturated)
        };
        let (text, saturated) = said(&|results| results.counts.unsent = 100);
        assert!(text.contains("was not held: 50.0 %") && !saturated, "{text}");
        let (text, _) = said(&|results| results.counts.waited = 10);
        assert!(text.contains("10.0 % of the requests waited for one of 3"), "{text}");
        let (text, saturated) = said(&|results| results.client.busiest = 0.97);
        assert!(text.contains("97 % of a core") && saturated, "{text}");
        let (text, saturated) = said(&|results| results.client.waited_for_cpu = 0.2);
        assert!(text.contains("20 % of the time") && saturated, "{text}");
        let (text, saturated) = said(&|results| results.lag.saturating_record(9_000_000));
        assert!(text.contains("ms late") && saturated, "{text}");
        let (text, _) = said(&|results| results.ended = RunEnd::ServerGone);
        assert!(text.contains("accepts no connections"), "{text}");
    }
}
