//! Metrics under the names of other servers, so that their users' dashboards work. They are computed
//! from our own when the metrics are read.
//!
//! The page is in the OpenMetrics format, in which the names of counters end in `_total`. Those of the
//! other servers do not, so that their type is `unknown` here.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::Metrics;
use super::families::VersionLabels;
use super::version::AliasCounts;
use tensorserve_tensor::error::Code;

/// A server whose names for metrics are served, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsAlias {
    /// Triton Inference Server: `nv_inference_…`.
    Triton,
    /// TensorFlow Serving: `:tensorflow:…`, which a protocol exports.
    TensorFlowServing,
}

impl MetricsAlias {
    /// Its name in the settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MetricsAlias::Triton => "triton",
            MetricsAlias::TensorFlowServing => "tfs",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [MetricsAlias::Triton, MetricsAlias::TensorFlowServing]
            .into_iter()
            .find(|alias| alias.name() == name)
    }
}

/// Triton's reasons of failures.
const REASONS: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

/// The index of Triton's reason for an error with this code.
fn reason(code: Code) -> usize {
    match code {
        Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded => 0,
        Code::Cancelled => 1,
        Code::Unknown | Code::Internal | Code::DataLoss | Code::Aborted => 2,
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => 3,
    }
}

/// A name, its help, its type and its value.
type TritonMetric = (&'static str, &'static str, &'static str, fn(&AliasCounts) -> u64);

const TRITON: [TritonMetric; 7] = [
    (
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        "unknown",
        |counts| counts.statistics.succeeded.count,
    ),
    ("nv_inference_count", "Number of inferences performed: rows of runs", "unknown", |counts| {
        counts.statistics.rows
    }),
    (
        "nv_inference_exec_count",
        "Number of model executions performed: runs of a batch",
        "unknown",
        |counts| counts.statistics.runs.count,
    ),
    (
        "nv_inference_request_duration_us",
        "Cumulative duration of successful inference requests in microseconds",
        "unknown",
        |counts| counts.statistics.succeeded.nanoseconds / 1000,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative queue delay of inference requests in microseconds",
        "unknown",
        |counts| counts.statistics.queued.nanoseconds / 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative duration of runs in microseconds",
        "unknown",
        |counts| counts.statistics.runs.nanoseconds / 1000,
    ),
    (
        "nv_inference_pending_request_count",
        "Number of requests that wait for their run",
        "gauge",
        |counts| counts.waiting as u64,
    ),
];

impl Metrics {
    /// Writes the metrics under the names of other servers, if they are configured.
    pub(super) fn write_aliases(&self, out: &mut String) -> fmt::Result {
        for alias in &self.0.aliases {
            match alias {
                MetricsAlias::Triton => write_triton(out, &self.counts_of_versions())?,
                MetricsAlias::TensorFlowServing => {
                    for page in self.0.exporters.iter().filter_map(|exporter| exporter.page()) {
                        write_page(out, &page);
                    }
                }
            }
        }
        Ok(())
    }

    /// The counts of all versions in memory, each of all its signatures together.
    fn counts_of_versions(&self) -> BTreeMap<VersionLabels, AliasCounts> {
        let mut versions: BTreeMap<VersionLabels, AliasCounts> = BTreeMap::new();
        for (labels, counts) in self.alias_counts() {
            versions.entry(labels).or_default().add(&counts);
        }
        versions
    }
}

fn write_triton(out: &mut String, versions: &BTreeMap<VersionLabels, AliasCounts>) -> fmt::Result {
    let labelled: Vec<(String, &AliasCounts)> = versions
        .iter()
        .map(|(labels, counts)| {
            let model = escaped(&labels.model);
            (format!("model=\"{model}\",version=\"{}\"", labels.version), counts)
        })
        .collect();
    for (name, help, kind, value) in TRITON {
        writeln!(out, "# HELP {name} {help}.\n# TYPE {name} {kind}")?;
        for (labels, counts) in &labelled {
            writeln!(out, "{name}{{{labels}}} {}", value(counts))?;
        }
    }
    let name = "nv_inference_request_failure";
    writeln!(out, "# HELP {name} Number of failed inference requests.\n# TYPE {name} unknown")?;
    for (labels, counts) in &labelled {
        let mut failures = [0; REASONS.len()];
        for (number, count) in (0..).zip(counts.failures).skip(1) {
            if let Some(sum) = failures.get_mut(reason(Code::from_grpc(number))) {
                *sum += count;
            }
        }
        for (reason, count) in REASONS.iter().zip(failures) {
            writeln!(out, "{name}{{{labels},reason=\"{reason}\"}} {count}")?;
        }
    }
    Ok(())
}

/// Writes a page of Prometheus's text format.
fn write_page(out: &mut String, page: &str) {
    for line in page.lines() {
        match line.strip_suffix(" counter").filter(|line| line.starts_with("# TYPE ")) {
            Some(line) => out.extend([line, " unknown\n"]),
            None => out.extend([line, "\n"]),
        }
    }
}

/// The value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
