//! `tensorserve compare`: runs recorded requests on two versions of a model, and tells whether the new one may take the
//! place of the old one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::table::columns;
use super::versions::{OfflineVersion, OfflineVersions};
use super::{print_line, print_note, print_text, warmup};
use crate::config::environment::Environment;
use crate::config::units::CommaSeparated;
use tensorserve_core::comparison::{
    NamedOutputs, OutputRules, OutputStatistics, TopRule, VersionComparison,
};
use tensorserve_proto::serving::PredictionLog;
use tensorserve_protocols::tfs::warm_up::{self, file_of};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Signature, TensorSpec};

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

/// Requests of the old version that run twice, which tells whether it differs from itself.
const REPEATED: usize = 50;

/// The fewest requests whose times are judged.
const TIMED: usize = 30;

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

    /// How much values may differ, as a fraction of the largest finite magnitude in their output; 0 asks for equal bits
    #[arg(long, value_name = "[OUTPUT=]X", help_heading = "Rules")]
    tolerance: Vec<String>,
    /// In which share of all rows the K largest values must be at the same places; of labels, in which share they
    /// must be equal
    #[arg(long, value_name = "[OUTPUT=]K:SHARE", help_heading = "Rules")]
    top: Vec<String>,
    /// Largest population stability index of the values of all requests
    #[arg(long, value_name = "[OUTPUT=]X", help_heading = "Rules")]
    max_psi: Vec<String>,
    /// Largest Kolmogorov-Smirnov statistic of the values of all requests
    #[arg(long, value_name = "[OUTPUT=]X", help_heading = "Rules")]
    max_ks: Vec<String>,
    /// How many times as long as those of the old version the runs of the new one may take, by their medians
    #[arg(long, value_name = "FACTOR", default_value_t = 1.5, help_heading = "Rules")]
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
    if arguments.max_slowdown <= 0.0 || arguments.max_slowdown.is_nan() {
        return Err(Error::invalid("--max-slowdown must be above 0"));
    }
    let loaded =
        OfflineVersions::load(&[&arguments.old, &arguments.new], &arguments.tags, environment)?;
    let [old, new] = &loaded.versions[..] else {
        return Err(Error::internal("two versions were not loaded"));
    };
    let files = match arguments.requests.is_empty() {
        false => arguments.requests.clone(),
        true => recorded_requests(&old.folder, &new.folder)?,
    };
    let requests = warmup::of_logs(&files, arguments.most)?;
    let (everywhere, of_output) = rules;
    let mut trial = VersionTrial {
        old,
        new,
        max_bytes: loaded.max_bytes,
        comparison: VersionComparison::new(everywhere, of_output),
        widened: Vec::new(),
        old_times: Vec::new(),
        new_times: Vec::new(),
        failed: Vec::new(),
        failed_in_both: 0,
        mended: 0,
    };
    trial.measure_noise(&requests);
    for (number, (source, request)) in (1..).zip(&requests) {
        trial.run(number, source, request);
    }
    let mut against = trial.against(arguments.max_slowdown);
    let changes = changes(old.handle.signatures(), new.handle.signatures());
    if !arguments.allow_changes {
        against.extend(changes.lost.iter().cloned());
    }
    if arguments.json {
        print_text(&trial.json(&changes, &against).to_string());
    } else {
        trial.print(&changes, &against);
    }
    Ok(if against.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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

type AllRules = (OutputRules, BTreeMap<String, OutputRules>);

/// The rules for all outputs, and those for some.
fn rules(arguments: &Arguments) -> Result<AllRules> {
    let mut all = AllRules::default();
    let Arguments { tolerance, max_psi, max_ks, .. } = arguments;
    for (output, most) in limits("--tolerance", tolerance, "0.001")? {
        set(&mut all, output, |rules| rules.tolerance = Some(most));
    }
    for (output, most) in limits("--max-psi", max_psi, "0.1")? {
        set(&mut all, output, |rules| rules.most_psi = Some(most));
    }
    for (output, most) in limits("--max-ks", max_ks, "0.1")? {
        set(&mut all, output, |rules| rules.most_ks = Some(most));
    }
    for value in &arguments.top {
        let (output, text) = named(value);
        let parts = text.split_once(':').and_then(|(count, share)| {
            let count = count.parse().ok().filter(|count| *count > 0)?;
            Some(TopRule { count, share: not_negative(share).filter(|share| *share <= 1.0)? })
        });
        let top = parts.ok_or_else(|| {
            Error::invalid(format!(
                "--top {value}: give a number of places and a share, such as 1:0.99"
            ))
        })?;
        set(&mut all, output, |rules| rules.top = Some(top));
    }
    // What an output has no rule of its own for holds as for all.
    let (everywhere, of_output) = &mut all;
    for rules in of_output.values_mut() {
        rules.tolerance = rules.tolerance.or(everywhere.tolerance);
        rules.top = rules.top.or(everywhere.top);
        rules.most_psi = rules.most_psi.or(everywhere.most_psi);
        rules.most_ks = rules.most_ks.or(everywhere.most_ks);
    }
    Ok(all)
}

/// The values of an option, with the outputs that they are for.
fn limits<'a>(
    option: &str,
    values: &'a [String],
    example: &str,
) -> Result<Vec<(Option<&'a str>, f64)>> {
    let limit = |value: &'a String| {
        let (output, text) = named(value);
        let number = not_negative(text).ok_or_else(|| {
            let message = format!("{option} {value}: give a number from 0, such as {example}");
            Error::invalid(message)
        });
        Ok((output, number?))
    };
    values.iter().map(limit).collect()
}

fn not_negative(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number| *number >= 0.0)
}

/// The output that a rule names, if it names one, and the rest. Names of outputs may have `=` in them.
fn named(value: &str) -> (Option<&str>, &str) {
    value.rsplit_once('=').map_or((None, value), |(output, rest)| (Some(output), rest))
}

fn set(
    (everywhere, of_output): &mut AllRules,
    output: Option<&str>,
    change: impl FnOnce(&mut OutputRules),
) {
    change(match output {
        Some(output) => of_output.entry(output.to_owned()).or_default(),
        None => everywhere,
    });
}

/// What the new version takes and gives differently.
#[derive(Default)]
struct SignatureChanges {
    /// What clients of the old version may miss.
    lost: Vec<String>,
    added: Vec<String>,
}

fn changes(old: &[Signature], new: &[Signature]) -> SignatureChanges {
    let mut changes = SignatureChanges::default();
    for signature in old {
        let name = &signature.name;
        let Some(other) = new.iter().find(|other| other.name == *name) else {
            changes.lost.push(format!("signature {name:?} is missing"));
            continue;
        };
        let place = format!("signature {name:?}: input");
        changes.compare(&place, &signature.inputs, &other.inputs);
        // Clients of the old version do not send inputs that are new.
        changes.lost.extend(added(&place, &signature.inputs, &other.inputs));
        let place = format!("signature {name:?}: output");
        changes.compare(&place, &signature.outputs, &other.outputs);
        changes.added.extend(added(&place, &signature.outputs, &other.outputs));
    }
    for signature in new.iter().filter(|it| old.iter().all(|other| other.name != it.name)) {
        changes.added.push(format!("signature {:?} is new", signature.name));
    }
    changes
}

/// Inputs or outputs that the old version does not have.
fn added(place: &str, old: &[TensorSpec], new: &[TensorSpec]) -> Vec<String> {
    let is_new = |spec: &&TensorSpec| old.iter().all(|other| other.alias != spec.alias);
    new.iter().filter(is_new).map(|spec| format!("{place} {:?} is new", spec.alias)).collect()
}

impl SignatureChanges {
    /// Notes inputs or outputs that are missing or are declared in another way.
    fn compare(&mut self, place: &str, old: &[TensorSpec], new: &[TensorSpec]) {
        for spec in old {
            let what = format!("{place} {:?}", spec.alias);
            let Some(found) = new.iter().find(|other| other.alias == spec.alias) else {
                self.lost.push(format!("{what} is missing"));
                continue;
            };
            let dtype = |spec: &TensorSpec| spec.dtype().map_or("another type", DType::name);
            if found.dtype_number != spec.dtype_number {
                let (is, was) = (dtype(found), dtype(spec));
                self.lost.push(format!("{what} has the type {is} instead of {was}"));
            }
            if found.shape.sizes() != spec.shape.sizes() {
                let (is, was) = (&found.shape, &spec.shape);
                self.lost.push(format!("{what} has the shape {is} instead of {was}"));
            }
        }
    }
}

/// Both versions, and what requests have shown of them.
struct VersionTrial<'v> {
    old: &'v OfflineVersion,
    new: &'v OfflineVersion,
    max_bytes: usize,
    comparison: VersionComparison,
    /// Outputs in which the old version differs from itself, with what is allowed for that.
    widened: Vec<(String, f64)>,
    old_times: Vec<Duration>,
    new_times: Vec<Duration>,
    /// Requests that only the new version fails, with its error.
    failed: Vec<String>,
    failed_in_both: u64,
    /// Requests that only the old version fails.
    mended: u64,
}

impl VersionTrial<'_> {
    fn outputs(
        &self,
        version: &OfflineVersion,
        request: &PredictionLog,
    ) -> (Result<NamedOutputs>, Duration) {
        let start = Instant::now();
        let outputs = warm_up::outputs(&version.handle, request, self.max_bytes);
        (outputs, start.elapsed())
    }

    /// Runs requests twice on the old version: a model that draws random numbers differs from itself. The new version
    /// runs them, too, so that neither is measured cold.
    fn measure_noise(&mut self, requests: &[(String, PredictionLog)]) {
        let exact = OutputRules { tolerance: Some(0.0), ..OutputRules::default() };
        let mut noise = VersionComparison::new(exact, BTreeMap::new());
        for (number, (_, request)) in (1..).zip(requests.iter().take(REPEATED)) {
            let (first, _) = self.outputs(self.old, request);
            let (second, _) = self.outputs(self.old, request);
            if let (Ok(first), Ok(second)) = (first, second) {
                noise.add(number, &first, &second);
            }
            let _ = self.outputs(self.new, request);
        }
        self.widened = self.comparison.widen(&noise);
    }

    fn run(&mut self, number: u64, source: &str, request: &PredictionLog) {
        // Whoever runs second finds warm caches.
        let ((old, old_time), (new, new_time)) = if number % 2 == 1 {
            let old = self.outputs(self.old, request);
            (old, self.outputs(self.new, request))
        } else {
            let new = self.outputs(self.new, request);
            (self.outputs(self.old, request), new)
        };
        match (old, new) {
            (Ok(old), Ok(new)) => {
                self.old_times.push(old_time);
                self.new_times.push(new_time);
                self.comparison.add(number, &old, &new);
            }
            (Ok(_), Err(error)) => self.failed.push(format!("{source}: {error}")),
            (Err(_), Ok(_)) => self.mended += 1,
            (Err(_), Err(_)) => self.failed_in_both += 1,
        }
    }

    /// How many times as long the new version takes, by the medians; `None` if too few requests ran.
    fn slowdown(&self) -> Option<f64> {
        let (old, new) = (median(&self.old_times), median(&self.new_times));
        (self.old_times.len() >= TIMED).then(|| new.as_secs_f64() / old.as_secs_f64().max(1e-9))
    }

    /// What is against the new version.
    fn against(&self, max_slowdown: f64) -> Vec<String> {
        let mut against = self.comparison.against();
        if self.comparison.requests() == 0 {
            against.push("no request was answered by both versions".to_owned());
        }
        if !self.failed.is_empty() {
            let first = self.failed.first().map_or("", String::as_str);
            against.push(format!(
                "{} requests fail that the old version answers; the first: {first}",
                self.failed.len()
            ));
        }
        if let Some(slowdown) = self.slowdown().filter(|slowdown| *slowdown > max_slowdown) {
            against.push(format!(
                "its runs take {slowdown:.2} times as long, and may take {max_slowdown} times"
            ));
        }
        against
    }

    fn print(&self, changes: &SignatureChanges, against: &[String]) {
        let header =
            ["output", "requests", "equal bits", "largest difference", "same top", "PSI", "KS"];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        rows.extend(
            self.comparison.outputs().iter().map(|(name, statistics)| row(name, statistics)),
        );
        print_text(&columns(&rows));
        print_line("");
        let (old, new) = (median(&self.old_times), median(&self.new_times));
        print_line(&format!(
            "{} requests answered by both; median of a run {} and {}{}",
            self.comparison.requests(),
            milliseconds(old),
            milliseconds(new),
            self.slowdown().map_or(String::new(), |slowdown| format!(" (x{slowdown:.2})"))
        ));
        if self.failed_in_both > 0 {
            print_line(&format!("{} requests fail on both", self.failed_in_both));
        }
        if self.mended > 0 {
            print_line(&format!("{} requests fail on the old version only", self.mended));
        }
        for (output, most) in &self.widened {
            print_line(&format!(
                "output {output:?} differs between two runs of the old version: the tolerance is {most:.2e}"
            ));
        }
        changes.added.iter().for_each(|what| print_line(what));
        for failed in self.failed.iter().skip(1).take(SHOWN) {
            print_note(failed);
        }
        if against.is_empty() {
            return print_line("accepted: the new version may take the place of the old one");
        }
        print_line("refused:");
        against.iter().for_each(|what| print_line(&format!("  {what}")));
    }

    fn json(&self, changes: &SignatureChanges, against: &[String]) -> Value {
        let output = |(name, statistics): (&String, &OutputStatistics)| {
            let shift = statistics.shift();
            let of_output = json!({
                "requests": statistics.requests,
                "equal": statistics.equal,
                "reshaped": statistics.reshaped,
                "beyond_tolerance": statistics.beyond,
                "no_longer_finite": statistics.no_longer_finite,
                "largest_difference": statistics.largest,
                "largest_difference_in": statistics.largest_in,
                "same_top": statistics.agreement(),
                "psi": shift.map(|shift| shift.psi),
                "ks": shift.map(|shift| shift.ks),
            });
            (name.clone(), of_output)
        };
        let outputs: serde_json::Map<String, Value> =
            self.comparison.outputs().iter().map(output).collect();
        let widened: BTreeMap<&str, f64> =
            self.widened.iter().map(|(name, most)| (name.as_str(), *most)).collect();
        json!({
            "accepted": against.is_empty(),
            "against": against,
            "requests": self.comparison.requests(),
            "failed": self.failed,
            "failed_in_both": self.failed_in_both,
            "failed_in_old": self.mended,
            "outputs": outputs,
            "widened_tolerances": widened,
            "median_ms": [median(&self.old_times).as_secs_f64() * 1e3, median(&self.new_times).as_secs_f64() * 1e3],
            "slowdown": self.slowdown(),
            "signatures": {"lost": changes.lost, "added": changes.added},
        })
    }
}

/// A row of the table.
fn row(name: &str, statistics: &OutputStatistics) -> Vec<String> {
    let shift = statistics.shift();
    let share = |share: f64| format!("{:.2} %", share * 100.0);
    let largest = match statistics.largest {
        0.0 => "0".to_owned(),
        most if most.is_finite() => format!("{most:.2e} (request {})", statistics.largest_in),
        _ => format!("other values (request {})", statistics.largest_in),
    };
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.4}"));
    vec![
        name.to_owned(),
        statistics.requests.to_string(),
        statistics.equal.to_string(),
        largest,
        statistics.agreement().map_or("-".to_owned(), share),
        number(shift.map(|shift| shift.psi)),
        number(shift.map(|shift| shift.ks)),
    ]
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}
