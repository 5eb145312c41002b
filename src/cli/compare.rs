//! `tensorserve compare`: runs recorded requests on two versions of a model, and tells whether the new one may take the
//! place of the old one.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::comparison::{RuleArguments, table};
use super::versions::OfflineVersions;
use super::{print_line, print_note, print_text, warmup};
use crate::config::environment::Environment;
use crate::config::units::CommaSeparated;
use clap::Args;
use tensorserve_core::comparison::{MAX_SLOWDOWN, ReleaseRules};
use tensorserve_core::engine::{TrialReport, VersionTrial};
use tensorserve_protocols::console::TrialView;
use tensorserve_protocols::tfs::recorded::LoggedPrediction;
use tensorserve_protocols::tfs::warm_up::file_of;
use tensorserve_tensor::error::{Error, Result};

pub(super) const HELP: &str = "\
Each request runs on both versions, one after the other, in alternating order. Without a rule, values may differ by 1e-3 \
of the largest magnitude in their output (2e-2 for floats of 2 bytes), as those of two exports of one model do; everything \
else must be equal. A rule for all outputs is a value, one for an output has its name before it: scores=0.01. Where a \
rule asks for ranks or a distribution, values are compared only if there is a --tolerance, too: versions that were \
trained anew have other values.

A request that fails on the new version only, a signature or an output that is missing, and runs that take longer than \
--max-slowdown allows, are against the new version, too. The exit status is 0 if it may take the place of the old one, \
and 1 if not.

Examples:
  tensorserve compare models/ranker/3 models/ranker/4 --requests logs/ranker-1763733000-0001.tfrecord
  tensorserve compare models/ranker/3 models/ranker/4 --tolerance 0
  tensorserve compare old.onnx new.onnx --requests golden.tfrecord --top probabilities=1:0.99 --max-psi 0.1";

/// Failed requests whose errors are shown.
const SHOWN: usize = 5;

#[derive(Args)]
pub(super) struct Arguments {
    /// The version that is served today: a directory of a version, a model file, or a directory of versions (the
    /// newest is used)
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The version that is to take its place
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// File of a request log, or of recorded requests; repeatable [default: the recorded requests of the old version, or
    /// of the new one]
    #[arg(long, value_name = "FILE")]
    requests: Vec<PathBuf>,
    /// Maximum number of requests to run, spread evenly over the files
    #[arg(long, value_name = "N", default_value_t = 1000)]
    most: usize,
    /// Tags of the SavedModel graphs to load, separated by commas
    #[arg(long, value_name = "LIST", default_value = "serve")]
    tags: CommaSeparated<String>,

    #[command(flatten)]
    rules: RuleArguments,
    /// How many times as long as those of the old version the runs of the new one may take, by their medians
    #[arg(long, value_name = "FACTOR", default_value_t = MAX_SLOWDOWN, help_heading = "Rules")]
    max_slowdown: f64,
    /// Accept signatures, inputs and outputs that are missing or have another type or shape
    #[arg(long, help_heading = "Rules")]
    allow_changes: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Compares; see the help.
///
/// # Errors
/// If a rule cannot be read, a version cannot be loaded, or the requests cannot be read.
pub(super) fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode> {
    let rules = rules(arguments)?;
    let loaded =
        OfflineVersions::load(&[&arguments.old, &arguments.new], &arguments.tags, environment)?;
    let [old, new] = &loaded.versions[..] else {
        return Err(Error::internal("two versions were not loaded"));
    };
    let files = match arguments.requests.is_empty() {
        false => arguments.requests.clone(),
        true => recorded_requests(&old.folder, &new.folder)?,
    };
    let requests = warmup::of_logs(&files, arguments.most)?.into_iter();
    let requests: Vec<LoggedPrediction> = requests
        .map(|(source, record)| LoggedPrediction { source, record, max_bytes: loaded.max_bytes })
        .collect();
    let mut trial = VersionTrial::new(&old.handle, &new.handle, &rules);
    trial.run(&requests, |_| true);
    let report = trial.report();
    match arguments.json {
        true => print_text(&serde_json::json!(TrialView::new(&report)).to_string()),
        false => print(&report),
    }
    Ok(if report.against.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The recorded requests beside one of the versions.
fn recorded_requests(old: &Path, new: &Path) -> Result<Vec<PathBuf>> {
    let found = [file_of(old), file_of(new)].into_iter().find(|file| file.is_file());
    let missing = || {
        Error::not_found(
            "there are no recorded requests beside the versions (`tensorserve warmup record` makes them): name a file of \
             requests with --requests",
        )
    };
    Ok(vec![found.ok_or_else(missing)?])
}

fn rules(arguments: &Arguments) -> Result<ReleaseRules> {
    let Arguments { max_slowdown, allow_changes, .. } = arguments;
    if *max_slowdown <= 0.0 || max_slowdown.is_nan() {
        return Err(Error::invalid("--max-slowdown must be above 0"));
    }
    let mut rules = ReleaseRules {
        max_slowdown: *max_slowdown,
        allow_changes: *allow_changes,
        ..ReleaseRules::default()
    };
    arguments.rules.read_into(&mut rules)?;
    Ok(rules)
}

fn print(report: &TrialReport) {
    print_text(&table(&report.outputs));
    print_line("");
    let [old, new] = report.medians;
    print_line(&format!(
        "{} requests answered by both; median of a run {} and {}{}",
        report.requests,
        milliseconds(old),
        milliseconds(new),
        report.slowdown.map_or(String::new(), |slowdown| format!(" (x{slowdown:.2})"))
    ));
    if report.failed_in_both > 0 {
        print_line(&format!("{} requests fail on both", report.failed_in_both));
    }
    if report.failed_in_old > 0 {
        print_line(&format!("{} requests fail on the old version only", report.failed_in_old));
    }
    for (output, most) in &report.widened {
        print_line(&format!(
            "output {output:?} differs between two runs of the old version: the tolerance is {most:.2e}"
        ));
    }
    report.changes.added.iter().for_each(|what| print_line(what));
    for failed in report.errors.iter().skip(1).take(SHOWN) {
        print_note(failed);
    }
    if report.against.is_empty() {
        return print_line("accepted: the new version may take the place of the old one");
    }
    print_line("refused:");
    report.against.iter().for_each(|what| print_line(&format!("  {what}")));
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}
