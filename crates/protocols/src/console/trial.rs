//! What the trial of a version has shown, as JSON.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use tensorserve_core::comparison::OutputFigures;
use tensorserve_core::engine::TrialReport;

/// The result of recorded requests on two versions.
#[derive(Serialize, JsonSchema)]
pub struct TrialView {
    /// The new version may take the place of the old one.
    accepted: bool,
    /// What is against it.
    against: Vec<String>,
    /// Requests that both versions answered.
    requests: u64,
    /// The first requests that only the new version fails, with its errors.
    failed: Vec<String>,
    /// All of these requests.
    failed_in_new: u64,
    failed_in_both: u64,
    failed_in_old: u64,
    outputs: BTreeMap<String, OutputView>,
    /// Outputs in which the old version differs from itself, with what is allowed for that.
    widened_tolerances: BTreeMap<String, f64>,
    /// The medians of the runs of the old and of the new version.
    median_ms: [f64; 2],
    /// How many times as long the new version takes; null if too few requests ran.
    slowdown: Option<f64>,
    /// Memory that its runs leave behind, in bytes, in half of the runs; null if they leave none.
    leak_bytes: Option<u64>,
    signatures: ChangesView,
    /// What else is worth knowing, such as files that could not be read.
    notes: Vec<String>,
}

/// What an output had in common in all requests.
#[derive(Serialize, JsonSchema)]
pub struct OutputView {
    /// Requests in which both versions had it.
    requests: u64,
    /// Those with equal bits.
    equal: u64,
    /// Those in which it had another type or shape.
    reshaped: u64,
    /// Those in which values differ by more than the tolerance, if there is one.
    beyond_tolerance: u64,
    /// Values that are not finite in the new version and were so in the old one.
    no_longer_finite: u64,
    /// The largest difference, as a fraction of the largest finite magnitude; null if it is not finite.
    largest_difference: f64,
    /// The number of its request.
    largest_difference_in: u64,
    /// In which share of the rows what is ranked first is the same.
    same_top: Option<f64>,
    /// Population stability index of the values of all requests.
    psi: Option<f64>,
    /// Kolmogorov-Smirnov statistic of the values of all requests.
    ks: Option<f64>,
}

/// What the new version takes and gives differently.
#[derive(Serialize, JsonSchema)]
struct ChangesView {
    /// What clients of the old version may miss.
    lost: Vec<String>,
    added: Vec<String>,
}

impl TrialView {
    /// The report, for JSON.
    #[must_use]
    pub fn new(report: &TrialReport) -> Self {
        let outputs = report.outputs.iter();
        TrialView {
            accepted: report.against.is_empty(),
            against: report.against.clone(),
            requests: report.requests,
            failed: report.errors.clone(),
            failed_in_new: report.failed_in_new,
            failed_in_both: report.failed_in_both,
            failed_in_old: report.failed_in_old,
            outputs: outputs.map(|(name, it)| (name.clone(), OutputView::new(it))).collect(),
            widened_tolerances: report.widened.iter().cloned().collect(),
            median_ms: report.medians.map(|time| time.as_secs_f64() * 1e3),
            slowdown: report.slowdown,
            leak_bytes: report.leak,
            signatures: ChangesView {
                lost: report.changes.lost.clone(),
                added: report.changes.added.clone(),
            },
            notes: report.notes.clone(),
        }
    }
}

impl OutputView {
    /// The figures, for JSON.
    #[must_use]
    pub fn new(figures: &OutputFigures) -> Self {
        OutputView {
            requests: figures.requests,
            equal: figures.equal,
            reshaped: figures.reshaped,
            beyond_tolerance: figures.beyond,
            no_longer_finite: figures.no_longer_finite,
            largest_difference: figures.largest,
            largest_difference_in: figures.largest_in,
            same_top: figures.agreement,
            psi: figures.shift.map(|shift| shift.psi),
            ks: figures.shift.map(|shift| shift.ks),
        }
    }
}
