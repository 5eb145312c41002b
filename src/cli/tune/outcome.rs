//! What a tune has found, for people and programs.

use std::time::Duration;

use serde::Serialize;

use super::TuneLog;
use super::candidates::{LeftOutSettings, ServedFacts, TrialSettings};
use super::capacity::CERTAINTY;
use super::measure::{LadderStep, MeasuredCapacity, RatedRun};
use super::rig::TuneRig;
use super::search::CandidateStanding;
use super::sizing::{HEADROOM, PlannedLoad, ScalingTarget, replicas};
use super::slo::LatencySlo;
use tensorserve_loadgen::report::{three_digits, time};

/// The version of the format.
const FORMAT: u32 = 1;

/// A wider range of the capacity is worth a longer budget.
const WIDE: f64 = 1.15;

/// Above this, only settings that change much are told from the default ones.
const NOISY: f64 = 0.1;

/// All of it.
#[derive(Serialize)]
pub(super) struct TuneOutcome {
    pub(super) format: u32,
    /// The model, and what was sent to it.
    pub(super) target: String,
    pub(super) requests: String,
    #[serde(skip)]
    pub(super) path: String,
    /// The promise.
    #[serde(serialize_with = "shown")]
    pub(super) slo: LatencySlo,
    /// The rate that is asked for.
    pub(super) rate: Option<f64>,
    pub(super) cores: usize,
    pub(super) seconds: f64,
    pub(super) budget_seconds: f64,
    /// The settings to use, in addition to those of the environment; none if the default ones are best.
    pub(super) settings: TrialSettings,
    pub(super) is_default_best: bool,
    /// How many times as good as the default settings they were in the trials.
    pub(super) ratio: Option<f64>,
    /// The standard deviation of the logarithm of a score of the default settings.
    pub(super) noise: Option<f64>,
    /// The highest rate that keeps the promise, of one replica.
    pub(super) capacity: f64,
    /// It is between these with a probability of 80 %.
    pub(super) capacity_range: [f64; 2],
    /// That of the default settings.
    pub(super) default_capacity: Option<f64>,
    /// How many replicas the rate takes.
    pub(super) replicas: Option<u64>,
    /// The share of its capacity that a replica is planned with.
    pub(super) headroom: f64,
    pub(super) planned: Option<PlannedLoad>,
    pub(super) autoscaling: Vec<ScalingTarget>,
    /// Closed loops of the default settings.
    pub(super) closed_loops: Vec<LadderStep>,
    /// Open loops, from the lowest rate to the highest.
    pub(super) curve: Vec<CurvePoint>,
    pub(super) candidates: Vec<CandidateFigures>,
    pub(super) trials: Vec<TrialFigures>,
    pub(super) left_out: Vec<LeftOutSettings>,
    pub(super) notes: Vec<String>,
    /// The file with the settings.
    pub(super) file: String,
    #[serde(skip)]
    pub(super) facts: ServedFacts,
}

fn shown<S: serde::Serializer>(slo: &LatencySlo, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(slo)
}

/// A run of an open loop.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CurvePoint {
    pub(super) rate: f64,
    pub(super) answered: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// The quantile of the promise.
    pub(super) slo_ms: f64,
    pub(super) seconds: f64,
    pub(super) is_held: bool,
    /// The run closest to the capacity of those that have kept the promise.
    pub(super) is_capacity: bool,
}

/// What the trials have shown of settings.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CandidateFigures {
    pub(super) settings: TrialSettings,
    pub(super) trials: usize,
    /// How many times as good as the default settings around.
    pub(super) ratio: Option<f64>,
    /// Why they are out.
    pub(super) out: Option<String>,
}

impl CandidateFigures {
    fn of(standing: &CandidateStanding) -> Self {
        CandidateFigures {
            settings: standing.settings.clone(),
            trials: standing.trials(),
            ratio: standing.ratio(),
            out: standing.out.clone(),
        }
    }
}

/// The candidates, from the best to those that are out.
pub(super) fn ranked(log: &TuneLog) -> Vec<CandidateFigures> {
    let mut all: Vec<CandidateFigures> =
        log.search.standings.iter().map(CandidateFigures::of).collect();
    let key = |one: &CandidateFigures| match one.out {
        None => one.ratio.unwrap_or(0.0),
        Some(_) => -1.0,
    };
    all.sort_by(|a, b| key(b).total_cmp(&key(a)));
    all
}

/// A trial.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TrialFigures {
    pub(super) round: usize,
    pub(super) settings: TrialSettings,
    pub(super) score: Option<f64>,
    pub(super) out: Option<String>,
}

/// The runs from the lowest rate to the highest.
pub(super) fn sorted(capacity: &MeasuredCapacity) -> Vec<&RatedRun> {
    let rate = |run: &&RatedRun| run.summary.setting.rate.unwrap_or_default();
    let mut runs: Vec<&RatedRun> = capacity.runs.iter().collect();
    runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    runs
}

impl TuneOutcome {
    /// Of a log with a capacity.
    pub(super) fn of(rig: &TuneRig<'_>, log: &TuneLog, time: Duration) -> Option<Self> {
        let arguments = rig.arguments;
        let (look, chosen) = (log.look.as_ref()?, log.capacities.last()?);
        let found = chosen.found?;
        let is_default_best = chosen.settings == TrialSettings::default();
        let default = log.capacities.iter().find(|one| one.settings == TrialSettings::default());
        let standing = log.search.standings.iter().find(|one| one.settings == chosen.settings);
        let trial = |record: &super::search::TrialRecord| TrialFigures {
            round: record.round,
            settings: record.settings.clone(),
            score: record.score,
            out: record.out.clone(),
        };
        Some(TuneOutcome {
            format: FORMAT,
            target: look.place.clone(),
            requests: look.words.clone(),
            path: arguments.path.clone(),
            slo: arguments.slo,
            rate: arguments.rate,
            cores: look.facts.cores,
            seconds: time.as_secs_f64(),
            budget_seconds: arguments.budget.0.as_secs_f64(),
            settings: chosen.settings.clone(),
            is_default_best,
            ratio: standing.and_then(CandidateStanding::ratio),
            noise: log.search.noise(),
            capacity: found.rate,
            capacity_range: [found.low, found.high],
            default_capacity: default.and_then(MeasuredCapacity::rate),
            replicas: arguments.rate.map(|rate| replicas(rate, found.rate)),
            headroom: HEADROOM,
            planned: chosen.planned.clone(),
            autoscaling: chosen.planned.iter().flat_map(PlannedLoad::targets).collect(),
            closed_loops: look.ladder.clone(),
            curve: curve(chosen, arguments.slo),
            candidates: ranked(log),
            trials: log.search.records.iter().map(trial).collect(),
            left_out: log.left_out.clone(),
            notes: overridden(rig, chosen).into_iter().chain(notes(log, chosen)).collect(),
            file: arguments.output.display().to_string(),
            facts: look.facts.clone(),
        })
    }

    /// The capacity for people.
    pub(super) fn capacity_words(&self) -> String {
        let name = self.slo.name();
        let found = self.curve.iter().find(|point| point.is_capacity);
        let latency = found.map_or(String::new(), |point| {
            let p50 = match name {
                "p50" => String::new(),
                _ => format!("p50 {}, ", time(point.p50_ms)),
            };
            format!(" ({p50}{name} {} there)", time(point.slo_ms))
        });
        format!("{} requests/s with {}{latency}", three_digits(self.capacity), self.slo)
    }

    /// What the choice is.
    pub(super) fn choice_words(&self) -> String {
        let noise = self.noise.map_or(String::new(), |noise| {
            format!("; two runs of the default settings differ by {:.1} %", noise.exp_m1() * 100.0)
        });
        match (self.is_default_best, self.ratio) {
            (true, _) if self.trials.is_empty() => "the default settings".to_owned(),
            (true, _) => {
                format!("the default settings are best: none are better by more than chance{noise}")
            }
            (false, ratio) => {
                let ratio = ratio.unwrap_or(1.0);
                let what = if self.rate.is_some() { "1/latency" } else { "throughput" };
                format!(
                    "{}: {ratio:.2} times the {what} in the trials{noise}",
                    self.settings.words()
                )
            }
        }
    }

    /// How many replicas rates take.
    pub(super) fn replica_words(&self) -> String {
        let percent = self.headroom * 100.0;
        let each = three_digits(self.capacity * self.headroom);
        match (self.rate, self.replicas) {
            (Some(rate), Some(count)) => {
                let none = match rate > self.capacity {
                    true => format!("one replica cannot serve {rate} requests/s; "),
                    false => String::new(),
                };
                let many = if count == 1 { "replica" } else { "replicas" };
                format!(
                    "{none}{rate} requests/s take {count} {many}, of at most {each} requests/s ({percent:.0} % of the capacity)"
                )
            }
            _ => format!(
                "R requests/s take R / {each} replicas, rounded up ({percent:.0} % of the capacity each)"
            ),
        }
    }
}

fn curve(capacity: &MeasuredCapacity, slo: LatencySlo) -> Vec<CurvePoint> {
    let confirmed = capacity.confirmed();
    let point = |run: &RatedRun| {
        let RatedRun { summary, is_kept, .. } = run;
        CurvePoint {
            rate: summary.setting.rate.unwrap_or_default(),
            answered: summary.requests_per_second,
            p50_ms: summary.latency_ms.p50,
            p99_ms: summary.latency_ms.p99,
            slo_ms: slo.of(&summary.latency_ms),
            seconds: summary.seconds,
            is_held: *is_kept,
            is_capacity: confirmed.is_some_and(|confirmed| std::ptr::eq(confirmed, run)),
        }
    };
    sorted(capacity).into_iter().map(point).collect()
}

/// Variables of the environment that would override the file.
fn overridden(rig: &TuneRig<'_>, chosen: &MeasuredCapacity) -> Vec<String> {
    let variables = chosen.settings.variables();
    let set = variables.iter().filter(|(name, _)| rig.environment.is_set(name));
    let words = |(name, value): &(String, String)| {
        format!("{name} overrides the file: unset it, or set it to {value}")
    };
    set.map(words).collect()
}

/// What makes the figures less than they seem.
// Counters of one run are exact.
#[allow(clippy::cast_precision_loss)]
fn notes(log: &TuneLog, chosen: &MeasuredCapacity) -> Vec<String> {
    let mut notes = log.notes.clone();
    if let Some(noise) = log.search.noise().filter(|noise| *noise > NOISY) {
        notes.push(format!(
            "the machine is not quiet: scores of the default settings differ by {:.0} %, which hides what other settings \
             gain",
            noise.exp_m1() * 100.0
        ));
    }
    let Some((confirmed, found)) = chosen.confirmed().zip(chosen.found) else { return notes };
    let summary = &confirmed.summary;
    if found.high / found.low > WIDE {
        notes.push(format!(
            "the capacity is between {} and {} requests/s with a probability of {:.0} %: a longer --budget makes it more \
             certain",
            three_digits(found.low),
            three_digits(found.high),
            CERTAINTY * 100.0
        ));
    }
    notes.extend(summary.notes.iter().filter(|note| note.starts_with("the client")).cloned());
    let client = summary.client.cpu_seconds / summary.seconds.max(1e-9);
    if client > 0.05 {
        notes.push(format!(
            "the load used {:.0} % of a core of this machine, which the server did not have",
            client * 100.0
        ));
    }
    notes
}
