//! `tensorserve tune`: the settings with which a model keeps a promise at the highest rate, and how many replicas a
//! rate takes.
//!
//! [`rig`] starts servers with the settings of a trial, as `bench` does, and loads them. [`search`] decides which
//! settings are better than the default ones, [`capacity`] how high a rate may be, and [`sizing`] how many replicas
//! that makes: none of them knows a server. [`outcome`] is what [`show`], [`page`] and [`file`](mod@file) write down.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;

use self::candidates::{LeftOutSettings, TrialSettings, candidates};
use self::measure::{FirstLook, MeasuredCapacity, TrialGoal, score, unkept};
use self::outcome::TuneOutcome;
use self::rig::TuneRig;
use self::search::{SettingsSearch, TrialEnd, trials_of};
use self::sizing::planned_rate;
use self::slo::LatencySlo;
use super::bench::{PayloadArguments, sequence, target};
use super::interrupt::{INTERRUPTED, stop_on_signals};
use super::print_note;
use crate::config::environment::Environment;
use crate::config::units::HumanDuration;
use tensorserve_loadgen::report::three_digits;
use tensorserve_report::counted;
use tensorserve_tensor::error::{Error, Result};

mod candidates;
mod capacity;
#[cfg(test)]
mod chance;
mod file;
mod measure;
mod outcome;
mod page;
mod rig;
mod search;
mod show;
mod sizing;
mod slo;

pub(super) const HELP: &str = "\
A server is started for each trial, on free ports, with the settings of the environment (TENSORSERVE_…) and those of the \
trial. The settings of the environment alone, the default settings, run between the trials, and settings are chosen only \
if they are better by more than the default settings differ from themselves. The capacity is then measured with open loops, \
whose latencies count from when requests were due. Nothing is chosen that could change a response.

The time is about --budget, or a little more if the server starts slowly. Measure on a machine like those that will serve, \
with nothing else on it: the load comes from the same machine.

The exit status is 0 if the file was written, 1 if the promise cannot be kept or the model cannot be measured, and 130 \
after Ctrl-C, when nothing is written. Requests have the credentials in TENSORSERVE_KEY, or in TENSORSERVE_USER and \
TENSORSERVE_PASSWORD.

Examples:
  tensorserve tune models/half_plus_two --slo p99=20ms
  tensorserve tune models/ranker --slo p99=50ms --rate 3000 --data @body.json --output ranker.toml
  tensorserve tune models/ranker --slo p99.9=100ms --budget 10m --report tune.html --json";

/// The shortest budget: a server starts several times.
const LEAST_BUDGET: Duration = Duration::from_secs(5);

/// The share of the budget in which settings are looked for; the rest is for capacities.
const SEARCH: f64 = 0.55;

/// The parts of the budget for a closed loop of the first look.
const LOOKS: u32 = 240;

/// The most candidates of a search.
const MOST_CANDIDATES: usize = 12;

/// The least and the most time of a load that gives a score.
const LEAST_LOAD: f64 = 0.5;
const MOST_LOAD: f64 = 5.0;

/// Options of `tune`.
#[derive(Args)]
pub(super) struct Arguments {
    /// The model: a path, as `tensorserve serve` takes it
    #[arg(value_name = "PATH")]
    path: String,
    /// Name of the model, if there are several at the path
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The promise to keep: a quantile of the latency (p50, p90, p99 or p99.9) and its limit, such as p99=20ms
    #[arg(long, value_name = "QUANTILE=DURATION", value_parser = LatencySlo::read)]
    slo: LatencySlo,
    /// Requests a second that are to be served: finds the settings with the lowest latency at this rate, or at the share
    /// of it that a replica gets, and the number of replicas
    #[arg(long, value_name = "R")]
    rate: Option<f64>,
    /// Finds the settings with which one replica serves the highest rate; this is what happens without --rate
    #[arg(long, conflicts_with = "rate")]
    max: bool,

    #[command(flatten)]
    payload: PayloadArguments,

    /// The most connections, and so the most requests at a time [default: 128]
    #[arg(long, value_name = "N", help_heading = "Load")]
    connections: Option<usize>,
    /// Threads of the client [default: one for every four cores]
    #[arg(long, value_name = "N", help_heading = "Load")]
    threads: Option<usize>,
    /// Time for all of it
    #[arg(long, value_name = "DURATION", default_value = "2m", help_heading = "Load")]
    budget: HumanDuration,

    /// File that gets the settings
    #[arg(long, value_name = "FILE", default_value = "tensorserve.toml", help_heading = "Output")]
    output: PathBuf,
    /// Overwrite that file, if there is one
    #[arg(long, help_heading = "Output")]
    force: bool,
    /// Print the result as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write a report as one HTML file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    report: Option<PathBuf>,
}

/// What is known so far: it is shown when the command is interrupted.
#[derive(Default)]
pub(super) struct TuneLog {
    look: Option<FirstLook>,
    left_out: Vec<LeftOutSettings>,
    search: SettingsSearch,
    /// Of the best settings, and of the default ones; those that were chosen are last.
    capacities: Vec<MeasuredCapacity>,
    notes: Vec<String>,
}

/// Finds the settings, writes them, and returns the exit status.
pub(super) fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode> {
    check(arguments)?;
    file::check_place(&arguments.output, &arguments.path, arguments.force)?;
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_signals(Arc::clone(&stop), "interrupted: ending the server")?;
    let rig = TuneRig { arguments, environment, stop: &stop };
    let (mut log, start) = (TuneLog::default(), Instant::now());
    match tune(&rig, &mut log, start) {
        Ok(()) => finish(&rig, &log, start),
        Err(TrialEnd::Interrupted) => {
            show::interrupted(&log);
            Ok(ExitCode::from(INTERRUPTED))
        }
        Err(TrialEnd::Fatal(error)) => Err(error),
        Err(TrialEnd::Out(why)) => {
            Err(Error::precondition(format!("with the default settings: {why}")))
        }
    }
}

/// Refuses options that make no search.
fn check(arguments: &Arguments) -> Result<()> {
    arguments.payload.check()?;
    if target::is_url(&arguments.path) {
        return Err(Error::invalid(format!(
            "{}: tune starts servers itself, with different settings: give the path of a model, not the URL of a server",
            arguments.path
        )));
    }
    if arguments.budget.0 < LEAST_BUDGET {
        return Err(Error::invalid("--budget must be at least 5s"));
    }
    if arguments.rate.is_some_and(|rate| !(rate > 0.0 && rate <= 1e9)) {
        return Err(Error::invalid("--rate must be above 0 and at most 1e9 requests a second"));
    }
    match (arguments.connections, arguments.threads) {
        (Some(0), _) => Err(Error::invalid("--connections must be at least 1")),
        (_, Some(0)) => Err(Error::invalid("--threads must be at least 1")),
        _ => Ok(()),
    }
}

/// Looks, searches and measures.
fn tune(rig: &TuneRig<'_>, log: &mut TuneLog, start: Instant) -> Result<(), TrialEnd> {
    let budget = rig.arguments.budget.0;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    print_note("looking at the default settings");
    let each = (budget / LOOKS).clamp(Duration::from_millis(100), Duration::from_secs(2));
    let look = FirstLook::take(rig, cores, each)?;
    log.look = Some(look.clone());
    look_for_settings(rig, log, &look, start)?;
    let best = log.search.best().map(|best| best.settings.clone());
    let sessions = if best.is_some() { 2 } else { 1 };
    let left = budget.saturating_sub(start.elapsed()) / sessions;
    let time = left.saturating_sub(look.overhead).max(budget / 10);
    let chosen = match best {
        Some(best) => duel(rig, log, &look, &best, time)?,
        None => measure(rig, log, &look, &TrialSettings::default(), time)?,
    };
    if chosen.found.is_none() {
        let slo = rig.arguments.slo;
        let of_looks = look.ladder.iter().map(|step| step.slo_ms).fold(f64::INFINITY, f64::min);
        let best = log.capacities.iter().map(|one| one.best_ms(slo)).fold(of_looks, f64::min);
        return Err(TrialEnd::Fatal(unkept(slo, best, "with the best settings that were found")));
    }
    Ok(())
}

/// Tries candidates, in the share of the budget that is for them.
fn look_for_settings(
    rig: &TuneRig<'_>,
    log: &mut TuneLog,
    look: &FirstLook,
    start: Instant,
) -> Result<(), TrialEnd> {
    let until = rig.arguments.budget.0.mul_f64(SEARCH);
    let (mut all, left_out) = candidates(&look.facts);
    log.left_out = left_out;
    let seconds = until.saturating_sub(start.elapsed()).as_secs_f64();
    let Some(plan) = SearchPlan::of(all.len(), look.overhead.as_secs_f64(), seconds) else {
        log.notes.push(
            "the budget was too short to try other settings: --budget gives more time".to_owned(),
        );
        return Ok(());
    };
    log.left_out.extend(all.drain(plan.candidates..).map(|settings| {
        let why = "the budget was too short".to_owned();
        LeftOutSettings { settings, why }
    }));
    print_note(&format!(
        "trying {}, with loads of {:.1} s after a start of {:.1} s",
        counted(all.len(), "candidate"),
        plan.load.as_secs_f64(),
        look.overhead.as_secs_f64()
    ));
    let goal = match rig.arguments.rate {
        None => TrialGoal::Throughput(look.connections),
        // The throughput of closed loops is near the capacity.
        Some(rate) => TrialGoal::LatencyAt(planned_rate(look.throughput, Some(rate))),
    };
    let has_time = || start.elapsed() < until;
    let mut trial = |settings: &TrialSettings| {
        let outcome = score(rig, settings, goal, plan.load);
        if let Err(TrialEnd::Out(why)) = &outcome {
            print_note(&format!("{} is out: {why}", settings.words()));
        }
        outcome
    };
    log.search.run(&all, plan.repeats, &has_time, &mut trial)
}

/// How a search fits into its time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SearchPlan {
    candidates: usize,
    /// Trials of each in the first round.
    repeats: usize,
    /// Time of the load of a trial.
    load: Duration,
}

impl SearchPlan {
    /// As many candidates as there is time for; `None` if it is not even enough for one.
    // Trials are few.
    #[allow(clippy::cast_precision_loss)]
    fn of(count: usize, overhead: f64, seconds: f64) -> Option<Self> {
        let plans = (1..=count.min(MOST_CANDIDATES)).rev().map(|candidates| {
            // With few candidates, the default settings would run too rarely to show their noise.
            let repeats = if candidates < 3 { 3 } else { 1 };
            let load = seconds / trials_of(candidates, repeats) as f64 - overhead;
            (candidates, repeats, load)
        });
        let mut plans = plans.filter(|(_, _, load)| *load >= LEAST_LOAD);
        let (candidates, repeats, load) = plans.next()?;
        Some(SearchPlan { candidates, repeats, load: Duration::from_secs_f64(load.min(MOST_LOAD)) })
    }
}

/// Measures the best settings and the default ones, and chooses. The chosen ones are last in the log.
fn duel(
    rig: &TuneRig<'_>,
    log: &mut TuneLog,
    look: &FirstLook,
    best: &TrialSettings,
    time: Duration,
) -> Result<MeasuredCapacity, TrialEnd> {
    let default = measure(rig, log, look, &TrialSettings::default(), time)?;
    let (found, why) = match measure(rig, log, look, best, time) {
        Ok(found) => (Some(found), String::new()),
        Err(TrialEnd::Out(why)) => (None, why),
        Err(end) => return Err(end),
    };
    let needed = match rig.arguments.rate {
        None => default.rate(),
        // They have the lower latency at this rate, which they only have to hold.
        Some(rate) => default.rate().map(|default| planned_rate(default, Some(rate))),
    };
    match found {
        Some(found) if found.found.is_some() && found.rate() >= needed => Ok(found),
        Some(_) | None => {
            log.notes.push(why_not(best, found.and_then(|found| found.rate()), &why));
            log.capacities.rotate_left(1);
            Ok(default)
        }
    }
}

/// Why settings that were ahead are not chosen.
fn why_not(best: &TrialSettings, rate: Option<f64>, out: &str) -> String {
    let held = match rate {
        Some(rate) => format!("keep the promise at {} requests/s only", three_digits(rate)),
        None if out.is_empty() => "keep the promise at no rate".to_owned(),
        None => format!("have failed ({out})"),
    };
    format!(
        "the settings {} were ahead in the trials, but {held} in open loops: the default settings stay",
        best.words()
    )
}

/// Measures the capacity of settings, and adds it to the log.
fn measure(
    rig: &TuneRig<'_>,
    log: &mut TuneLog,
    look: &FirstLook,
    settings: &TrialSettings,
    time: Duration,
) -> Result<MeasuredCapacity, TrialEnd> {
    print_note(&format!("measuring the capacity: {}", settings.words()));
    let mut capacity = MeasuredCapacity::of(settings);
    let planned = |capacity: f64| planned_rate(capacity, rig.arguments.rate);
    let ended = capacity.measure(rig, look, time, &planned);
    log.capacities.push(capacity.clone());
    ended.map(|()| capacity)
}

/// Writes and prints what was found.
fn finish(rig: &TuneRig<'_>, log: &TuneLog, start: Instant) -> Result<ExitCode> {
    let arguments = rig.arguments;
    let missing = || Error::internal("nothing was measured");
    let outcome = TuneOutcome::of(rig, log, start.elapsed()).ok_or_else(missing)?;
    file::write(&arguments.output, &file::text(&outcome, rig.environment), arguments.force)?;
    if let Some(path) = &arguments.report {
        let missing = || Error::internal("nothing was measured");
        sequence::write(path, &page::html(&outcome, log).ok_or_else(missing)?)?;
    }
    match arguments.json {
        true => show::json(&outcome),
        false => show::text(&outcome),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_fits_into_its_time() {
        let plan = SearchPlan::of(12, 0.5, 66.0).expect("enough time");
        assert!(plan.candidates >= 8 && plan.repeats == 1, "{plan:?}");
        let trials = trials_of(plan.candidates, plan.repeats) as f64;
        assert!((plan.load.as_secs_f64() + 0.5) * trials <= 66.1, "{plan:?}");
        // Servers that start slowly leave time for fewer.
        let slow = SearchPlan::of(12, 5.0, 66.0).expect("enough time");
        assert!(slow.candidates < 4 && slow.candidates > 0, "{slow:?}");
        assert_eq!(SearchPlan::of(12, 30.0, 66.0), None);
        assert_eq!(SearchPlan::of(0, 0.1, 66.0), None);
        // A long time is not used up.
        let long = SearchPlan::of(12, 0.5, 6000.0).expect("enough time");
        assert_eq!((long.candidates, long.load), (12, Duration::from_secs(5)));
    }
}
