//! What is measured: the default settings at first, scores of candidates, and capacities.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::candidates::{ServedFacts, TrialSettings};
use super::capacity::{CapacityEstimate, RUNS, highest_rate};
use super::rig::{TrialServer, TuneRig};
use super::search::TrialEnd;
use super::sizing::PlannedLoad;
use super::slo::{LatencySlo, SlowCount};
use tensorserve_loadgen::summary::LoadSummary;
use tensorserve_tensor::error::Error;

/// Connections of the closed loops at first.
const LADDER: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A closed loop whose throughput is below this share of the best is past it.
const PAST: f64 = 0.9;

/// The fewest connections with so large a share of the best throughput are enough.
const ENOUGH: f64 = 0.97;

/// How much faster settings may make a single request: no more than this, or than there are cores.
const FASTER: usize = 4;

/// The parts of the time for a capacity: the length of a run. There are a closed loop, open loops, and a last one at the
/// planned rate.
const PARTS: u32 = 1 + RUNS + 1;

/// A closed loop.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LadderStep {
    pub(super) connections: usize,
    pub(super) requests_per_second: f64,
    /// The quantile of the promise.
    pub(super) slo_ms: f64,
}

impl LadderStep {
    fn of(run: &LoadSummary, slo: LatencySlo) -> Self {
        LadderStep {
            connections: run.setting.connections,
            requests_per_second: run.requests_per_second,
            slo_ms: slo.of(&run.latency_ms),
        }
    }

    /// The throughput, less where the promise is not kept: the more so, the further from it.
    fn score(&self, slo: LatencySlo) -> f64 {
        self.requests_per_second * (slo.limit_ms() / self.slo_ms.max(1e-6)).min(1.0)
    }
}

/// What the default settings have shown at first.
#[derive(Clone, Debug)]
pub(super) struct FirstLook {
    pub(super) place: String,
    pub(super) words: String,
    pub(super) facts: ServedFacts,
    pub(super) ladder: Vec<LadderStep>,
    /// Connections with which the throughput within the promise is highest.
    pub(super) connections: usize,
    /// That throughput.
    pub(super) throughput: f64,
    /// The time that a trial takes besides its load.
    pub(super) overhead: Duration,
}

impl FirstLook {
    /// Looks at the default settings, with closed loops of `each`.
    ///
    /// # Errors
    /// If they do not work, or no settings could keep the promise.
    pub(super) fn take(rig: &TuneRig<'_>, cores: usize, each: Duration) -> Result<Self, TrialEnd> {
        let slo = rig.arguments.slo;
        let mut server = rig.start(&TrialSettings::default())?;
        let facts = server.facts(cores);
        let ladder = climb(&mut server, slo, rig.connections(), each)?;
        let (place, words) = (server.place.clone(), server.words.clone());
        let (started_in, before) = (server.started_in, Instant::now());
        drop(server);
        let best = ladder.iter().map(|step| step.score(slo)).fold(0.0, f64::max);
        let enough = ladder.iter().find(|step| step.score(slo) >= best * ENOUGH);
        Ok(FirstLook {
            place,
            words,
            facts,
            connections: enough.map_or(1, |step| step.connections),
            throughput: best,
            ladder,
            overhead: started_in + before.elapsed(),
        })
    }
}

/// Closed loops with more and more connections, until that does not help.
fn climb(
    server: &mut TrialServer<'_>,
    slo: LatencySlo,
    most: usize,
    each: Duration,
) -> Result<Vec<LadderStep>, TrialEnd> {
    let mut ladder: Vec<LadderStep> = Vec::new();
    for connections in LADDER.into_iter().filter(|connections| *connections <= most) {
        let run = server.closed(connections, each)?;
        if ladder.is_empty() {
            server.check_failures(&run)?;
            check_possible(&run, slo)?;
        } else if server.check_failures(&run).is_err() {
            // A server may refuse what is too much for its queues.
            break;
        }
        ladder.push(LadderStep::of(&run, slo));
        let best = ladder.iter().map(|step| step.score(slo)).fold(0.0, f64::max);
        if ladder.last().is_some_and(|last| last.score(slo) < PAST * best) {
            break;
        }
    }
    Ok(ladder)
}

/// # Errors
/// If even one request at a time takes far longer than is promised.
fn check_possible(run: &LoadSummary, slo: LatencySlo) -> Result<(), TrialEnd> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    // Small numbers.
    #[allow(clippy::cast_precision_loss)]
    let fastest = run.latency_ms.p50 / cores.max(FASTER) as f64;
    if fastest <= slo.limit_ms() {
        return Ok(());
    }
    Err(TrialEnd::Fatal(unkept(slo, slo.of(&run.latency_ms), "with one request at a time")))
}

/// The error for a promise that cannot be kept.
pub(super) fn unkept(slo: LatencySlo, best_ms: f64, when: &str) -> Error {
    let time = tensorserve_loadgen::report::time;
    Error::precondition(format!(
        "{slo} cannot be kept at any rate: the best {} is {}, {when}. Promise a longer time, or make the requests or the \
         model smaller",
        slo.name(),
        time(best_ms)
    ))
}

/// What a trial is to find out.
#[derive(Clone, Copy, Debug)]
pub(super) enum TrialGoal {
    /// The highest throughput within the promise, with these connections and more.
    Throughput(usize),
    /// The lowest latency at a rate.
    LatencyAt(f64),
}

/// The score of settings, of which a higher one is better.
///
/// # Errors
/// If they do not work.
pub(super) fn score(
    rig: &TuneRig<'_>,
    settings: &TrialSettings,
    goal: TrialGoal,
    time: Duration,
) -> Result<f64, TrialEnd> {
    let slo = rig.arguments.slo;
    let mut server = rig.start(settings)?;
    match goal {
        TrialGoal::Throughput(connections) => {
            // Settings that join more requests show it with more connections.
            let more = (connections * 4).min(rig.connections());
            let run = server.closed(connections, time / 2)?;
            server.check_failures(&run)?;
            let score = LadderStep::of(&run, slo).score(slo);
            let run = server.closed(more, time / 2)?;
            match server.check_failures(&run).is_ok() {
                true => Ok(score.max(LadderStep::of(&run, slo).score(slo))),
                false => Ok(score),
            }
        }
        TrialGoal::LatencyAt(rate) => {
            let (run, _) = server.open(rate, time)?;
            match slo.of(&run.latency_ms) {
                latency if latency > 0.0 => Ok(1.0 / latency),
                _ => Err(TrialEnd::Out("no request was answered".to_owned())),
            }
        }
    }
}

/// A run of an open loop.
#[derive(Clone, Debug)]
pub(super) struct RatedRun {
    pub(super) summary: LoadSummary,
    pub(super) is_kept: bool,
}

/// The capacity of settings, as far as it is known.
#[derive(Clone, Debug)]
pub(super) struct MeasuredCapacity {
    pub(super) settings: TrialSettings,
    /// The highest rate that keeps the promise.
    pub(super) found: Option<CapacityEstimate>,
    /// In the order in which they ran.
    pub(super) runs: Vec<RatedRun>,
    pub(super) planned: Option<PlannedLoad>,
}

impl MeasuredCapacity {
    /// Nothing yet.
    pub(super) fn of(settings: &TrialSettings) -> Self {
        MeasuredCapacity {
            settings: settings.clone(),
            found: None,
            runs: Vec::new(),
            planned: None,
        }
    }

    /// The highest rate that keeps the promise.
    pub(super) fn rate(&self) -> Option<f64> {
        self.found.map(|found| found.rate)
    }

    /// The run closest to the capacity of those that have kept the promise.
    pub(super) fn confirmed(&self) -> Option<&RatedRun> {
        let capacity = self.rate()?;
        let apart = |run: &RatedRun| (run.summary.setting.rate.unwrap_or(0.0) - capacity).abs();
        let kept = self.runs.iter().filter(|run| run.is_kept);
        kept.min_by(|a, b| apart(a).total_cmp(&apart(b)))
    }

    /// The lowest quantile of the promise in any run.
    pub(super) fn best_ms(&self, slo: LatencySlo) -> f64 {
        let quantiles = self.runs.iter().map(|run| slo.of(&run.summary.latency_ms));
        quantiles.filter(|ms| *ms > 0.0).fold(f64::INFINITY, f64::min)
    }

    /// Measures, in about `time`; what was found is kept when it ends early. `planned` is the rate that a replica of a
    /// capacity is planned for.
    ///
    /// # Errors
    /// If the settings do not work.
    pub(super) fn measure(
        &mut self,
        rig: &TuneRig<'_>,
        look: &FirstLook,
        time: Duration,
        planned: &dyn Fn(f64) -> f64,
    ) -> Result<(), TrialEnd> {
        let each = time / PARTS;
        let mut server = rig.start(&self.settings)?;
        let connections = (look.connections * 4).min(rig.connections());
        // The throughput of all connections, whatever their latency is: no open loop can have more.
        let closed = server.closed(connections, each)?.requests_per_second;
        let runs = &mut self.runs;
        let slow_share = rig.arguments.slo.slow_share();
        self.found = highest_rate(closed, slow_share, &mut |rate| {
            let (summary, seen) = server.open(rate, each)?;
            runs.push(RatedRun { summary, is_kept: seen.is_kept(slow_share) });
            Ok::<SlowCount, TrialEnd>(seen)
        })?;
        if let Some(rate) = self.rate() {
            let before = server.requests();
            let (run, _) = server.open(planned(rate), each)?;
            let counted = before.zip(server.requests());
            self.planned = Some(PlannedLoad::of(&run, counted, look.facts.cores));
        }
        Ok(())
    }
}
