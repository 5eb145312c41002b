//! How many replicas a rate takes, and what makes an autoscaler start as many.

use serde::Serialize;

use super::super::bench::figures::{QUEUE_SECONDS, REQUEST_SECONDS, RequestSums};
use tensorserve_loadgen::summary::LoadSummary;

/// The share of its capacity that a replica is planned with: the rest is for bursts, and until another one has started.
pub(super) const HEADROOM: f64 = 0.7;

/// Fewer requests than this in a queue, on average, scale nothing.
const QUEUED: f64 = 0.05;

/// How many replicas of this capacity a rate takes.
// A number of replicas is far below 2^53.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub(super) fn replicas(rate: f64, capacity: f64) -> u64 {
    ((rate / (capacity * HEADROOM)).ceil() as u64).max(1)
}

/// The rate of one replica: its share of `rate`, or else all that it is planned for.
// Replicas are few.
#[allow(clippy::cast_precision_loss)]
pub(super) fn planned_rate(capacity: f64, rate: Option<f64>) -> f64 {
    rate.map_or(capacity * HEADROOM, |rate| rate / replicas(rate, capacity) as f64)
}

/// A replica at its planned rate.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PlannedLoad {
    pub(super) rate: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// Mean number of requests in progress, and of those in a queue, as the server counts them (Little's law).
    pub(super) requests_in_progress: Option<f64>,
    pub(super) requests_queued: Option<f64>,
    /// Cores that its process uses, and their percentage of all.
    pub(super) cpu_cores: Option<f64>,
    pub(super) cpu_percent: Option<f64>,
}

impl PlannedLoad {
    /// Of a run, with what the server has counted before and after it.
    // Cores are few.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn of(
        run: &LoadSummary,
        counted: Option<(RequestSums, RequestSums)>,
        cores: usize,
    ) -> Self {
        let rate = run.setting.rate.unwrap_or_default();
        let means = counted.and_then(|(before, after)| after.means_since(before));
        let cpu_cores = run.server.cpu_us_per_request.map(|us| us * 1e-6 * rate);
        PlannedLoad {
            rate,
            p50_ms: run.latency_ms.p50,
            p99_ms: run.latency_ms.p99,
            requests_in_progress: means.map(|(all, _)| all * rate),
            requests_queued: means.map(|(_, queued)| queued * rate),
            cpu_cores,
            cpu_percent: cpu_cores.map(|used| used / cores.max(1) as f64 * 100.0),
        }
    }

    /// The values of the Helm chart, with what each is compared with.
    pub(super) fn targets(&self) -> Vec<ScalingTarget> {
        let cpu = self.cpu_percent.map(|percent| ScalingTarget {
            value: "autoscaling.targetCPUUtilizationPercentage",
            target: format!("{:.0}", percent.clamp(1.0, 100.0)),
            metric: "HPA: cpu, averageUtilization".to_owned(),
        });
        let sum = |metric: &str| format!("KEDA: sum(rate({metric}_sum{{…}}[1m]))");
        let in_progress = self.requests_in_progress.map(|count| ScalingTarget {
            value: "keda.requestsInProgress",
            target: digits(count),
            metric: sum(REQUEST_SECONDS),
        });
        let queued = self.requests_queued.map(|count| ScalingTarget {
            value: "keda.requestsQueued",
            target: if count < QUEUED { "0".to_owned() } else { digits(count) },
            metric: sum(QUEUE_SECONDS),
        });
        cpu.into_iter().chain(in_progress).chain(queued).collect()
    }
}

/// A target of an autoscaler, as the chart takes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ScalingTarget {
    /// The value of the chart.
    pub(super) value: &'static str,
    pub(super) target: String,
    pub(super) metric: String,
}

/// A number with two or three digits, without zeros at its end.
fn digits(count: f64) -> String {
    let text = if count < 10.0 { format!("{count:.2}") } else { format!("{count:.0}") };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_have_room_for_bursts() {
        assert_eq!(replicas(1.0, 1000.0), 1);
        assert_eq!(replicas(700.0, 1000.0), 1);
        assert_eq!(replicas(701.0, 1000.0), 2);
        assert_eq!(replicas(70_000.0, 1000.0), 100);
        assert!((planned_rate(1000.0, None) - 700.0).abs() < 1e-9);
        assert!((planned_rate(1000.0, Some(1000.0)) - 500.0).abs() < 1e-9);
    }

    #[test]
    fn targets_have_the_names_of_the_chart() {
        let planned = PlannedLoad {
            rate: 700.0,
            p50_ms: 1.0,
            p99_ms: 3.0,
            requests_in_progress: Some(1.504),
            requests_queued: Some(0.001),
            cpu_cores: Some(1.26),
            cpu_percent: Some(63.2),
        };
        let targets = planned.targets();
        let shown: Vec<(&str, &str)> =
            targets.iter().map(|target| (target.value, target.target.as_str())).collect();
        let want = [
            ("autoscaling.targetCPUUtilizationPercentage", "63"),
            ("keda.requestsInProgress", "1.5"),
            ("keda.requestsQueued", "0"),
        ];
        assert_eq!(shown, want);
        let chart = include_str!("../../../deploy/helm/tensorserve/values.yaml");
        let object = include_str!("../../../deploy/helm/tensorserve/templates/scaledobject.yaml");
        for (value, _) in want {
            let name = value.split('.').next_back().expect("a name");
            assert!(chart.contains(&format!("  {name}:")), "{name}");
        }
        for metric in [REQUEST_SECONDS, QUEUE_SECONDS] {
            assert!(object.contains(&format!("sum(rate({metric}_sum")), "{metric}");
        }
    }
}
