//! Two runs beside each other.

use serde::Serialize;

use crate::pace::SplitMix;
use crate::spread::{Blocks, interval};
use crate::summary::LoadSummary;

/// How often both runs are resampled.
const DRAWINGS: usize = 1000;

/// The quantiles that are compared.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];

/// More failed requests than this, as a share of all, make a run worse.
const MORE_FAILURES: f64 = 0.001;

/// How a figure has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeVerdict {
    /// Better, beyond chance.
    Better,
    /// Not told apart, or worse within the tolerance.
    Same,
    /// Worse by more than the tolerance, beyond chance.
    Worse,
}

/// A figure of both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedFigure {
    /// `p50`, … in milliseconds, `requests_per_second`, or `failed_share`.
    pub name: String,
    /// In the earlier run.
    pub before: f64,
    /// In this run.
    pub after: f64,
    /// `after / before - 1`.
    pub change: f64,
    /// The 95 % confidence interval of the change.
    pub low: f64,
    /// Its upper bound.
    pub high: f64,
    /// What that means.
    pub verdict: ChangeVerdict,
}

/// Two runs beside each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunComparison {
    /// The share by which a figure may be worse.
    pub tolerance: f64,
    /// All figures.
    pub figures: Vec<ComparedFigure>,
    /// Whether one of them is worse.
    pub is_worse: bool,
    /// Why the runs cannot quite be compared, for people.
    pub notes: Vec<String>,
}

impl RunComparison {
    /// Compares a run with an earlier one.
    #[must_use]
    pub fn of(before: &LoadSummary, after: &LoadSummary, tolerance: f64) -> Self {
        let mut figures = latencies(before, after, tolerance);
        if before.setting.rate.is_none() && after.setting.rate.is_none() {
            figures.push(throughput(before, after, tolerance));
        }
        figures.push(failures(before, after));
        let is_worse = figures.iter().any(|figure| figure.verdict == ChangeVerdict::Worse);
        RunComparison { tolerance, figures, is_worse, notes: notes(before, after) }
    }
}

/// The change of a figure whose larger values are worse, with the changes of resampled runs.
fn figure(
    name: &str,
    before: f64,
    after: f64,
    changes: Vec<f64>,
    tolerance: f64,
) -> ComparedFigure {
    let (low, high) = interval(changes);
    let change = ratio(after, before);
    let verdict = if change > tolerance && low > 0.0 {
        ChangeVerdict::Worse
    } else if high < 0.0 {
        ChangeVerdict::Better
    } else {
        ChangeVerdict::Same
    };
    ComparedFigure { name: name.to_owned(), before, after, change, low, high, verdict }
}

fn ratio(after: f64, before: f64) -> f64 {
    if before > 0.0 { after / before - 1.0 } else { 0.0 }
}

// Nanoseconds of an hour are exact.
#[allow(clippy::cast_precision_loss)]
fn latencies(before: &LoadSummary, after: &LoadSummary, tolerance: f64) -> Vec<ComparedFigure> {
    let wanted = QUANTILES.map(|(_, quantile)| quantile);
    let (mut first, mut second) = (SplitMix(1), SplitMix(2));
    let (old, new) = (Blocks::new(&before.windows_ns), Blocks::new(&after.windows_ns));
    let draws: Vec<(Vec<u64>, Vec<u64>)> = (0..DRAWINGS)
        .map(|_| (old.draw(&mut first, &wanted), new.draw(&mut second, &wanted)))
        .collect();
    let (old, new) = (old.quantiles(&wanted), new.quantiles(&wanted));
    let of = |(index, (name, _)): (usize, (&str, f64))| {
        let at = |values: &[u64]| values.get(index).map_or(0.0, |value| *value as f64 / 1e6);
        let changes = draws.iter().map(|(old, new)| ratio(at(new), at(old))).collect();
        figure(name, at(&old), at(&new), changes, tolerance)
    };
    QUANTILES.into_iter().enumerate().map(of).collect()
}

/// Responses a second of a closed loop, of which more is better.
// Counts of one run are exact.
#[allow(clippy::cast_precision_loss)]
fn throughput(before: &LoadSummary, after: &LoadSummary, tolerance: f64) -> ComparedFigure {
    let rates = |summary: &LoadSummary| -> Vec<f64> {
        let seconds = summary.window_seconds.max(1e-9);
        summary.windows_ns.iter().map(|window| window.total() as f64 / seconds).collect()
    };
    let (old, new) = (rates(before), rates(after));
    let mut random = SplitMix(3);
    let mut mean = |rates: &[f64]| {
        let drawn =
            (0..rates.len()).map(|_| rates.get(random.below(rates.len())).copied().unwrap_or(0.0));
        drawn.sum::<f64>() / rates.len().max(1) as f64
    };
    // The change of what a response takes, which is worse when it is larger, as the others.
    let changes =
        (0..DRAWINGS).map(|_| (mean(&old), mean(&new))).map(|(old, new)| ratio(old, new)).collect();
    let (old, new) = (before.requests_per_second, after.requests_per_second);
    let inverse = figure("requests_per_second", new, old, changes, tolerance);
    let back = |change: f64| 1.0 / (1.0 + change).max(1e-9) - 1.0;
    ComparedFigure {
        before: old,
        after: new,
        change: back(inverse.change),
        low: back(inverse.high),
        high: back(inverse.low),
        ..inverse
    }
}

/// The share of requests that failed, or were never sent.
#[allow(clippy::cast_precision_loss)]
fn failures(before: &LoadSummary, after: &LoadSummary) -> ComparedFigure {
    let share = |summary: &LoadSummary| {
        let due = summary.sent + summary.unsent;
        (summary.failed + summary.unsent) as f64 / due.max(1) as f64
    };
    let (before, after) = (share(before), share(after));
    let change = after - before;
    let verdict = match change {
        more if more > MORE_FAILURES => ChangeVerdict::Worse,
        less if less < -MORE_FAILURES => ChangeVerdict::Better,
        _ => ChangeVerdict::Same,
    };
    ComparedFigure {
        name: "failed_share".to_owned(),
        before,
        after,
        change,
        low: change,
        high: change,
        verdict,
    }
}

fn notes(before: &LoadSummary, after: &LoadSummary) -> Vec<String> {
    let (old, new) = (&before.setting, &after.setting);
    let mut notes = Vec::new();
    let mut differs = |what: &str, old: String, new: String| {
        if old != new {
            notes.push(format!("the runs differ in {what}: {old} before, {new} now"));
        }
    };
    let rate = |rate: Option<f64>| rate.map_or("none".to_owned(), |rate| rate.to_string());
    differs("the requests", old.requests.clone(), new.requests.clone());
    differs("the arrivals", old.arrivals.clone(), new.arrivals.clone());
    differs("the rate", rate(old.rate), rate(new.rate));
    differs("the connections", old.connections.to_string(), new.connections.to_string());
    if before.is_client_saturated || after.is_client_saturated {
        notes.push(
            "the client was saturated in one of the runs: its own load is part of the difference"
                .to_owned(),
        );
    }
    if before.windows_ns.len() < 10 || after.windows_ns.len() < 10 {
        notes.push("a run has fewer than ten windows: intervals are too narrow".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::SparseCounts;
    use crate::summary::tests::summary_of;

    /// 20 windows of 500 latencies around `milliseconds`.
    fn run(milliseconds: f64, seed: u64) -> LoadSummary {
        let mut random = SplitMix(seed);
        let window = |_| {
            let mut window = SparseCounts::default();
            let values =
                (0..500).map(|_| milliseconds * 1e6 * (0.8 - 0.2 * random.above_zero().ln()));
            let mut values: Vec<(u64, u64)> =
                values.map(|value| (value as u64 / 50_000 * 50_000, 1)).collect();
            values.sort_unstable();
            window.add(&SparseCounts(
                values.chunk_by(|a, b| a == b).map(|same| (same[0].0, same.len() as u64)).collect(),
            ));
            window
        };
        let windows: Vec<SparseCounts> = (0..20).map(window).collect();
        LoadSummary { windows_ns: windows, requests_per_second: 500.0, ..summary_of(500 * 20) }
    }

    fn verdict(comparison: &RunComparison, name: &str) -> ChangeVerdict {
        comparison.figures.iter().find(|figure| figure.name == name).expect(name).verdict
    }

    #[test]
    fn equal_runs_are_not_told_apart() {
        for seed in 10..14 {
            let comparison = RunComparison::of(&run(10.0, seed), &run(10.0, seed + 100), 0.05);
            assert!(!comparison.is_worse, "{comparison:?}");
        }
    }

    #[test]
    fn a_slower_run_is_worse_beyond_the_tolerance_only() {
        let slower = RunComparison::of(&run(10.0, 1), &run(12.0, 2), 0.1);
        assert!(slower.is_worse && verdict(&slower, "p50") == ChangeVerdict::Worse, "{slower:?}");
        let p50 = &slower.figures[0];
        assert!(
            (p50.change - 0.2).abs() < 0.03 && p50.low <= p50.change && p50.change <= p50.high,
            "{p50:?}"
        );
        let tolerated = RunComparison::of(&run(10.0, 1), &run(12.0, 2), 0.3);
        assert!(!tolerated.is_worse, "{tolerated:?}");
        let faster = RunComparison::of(&run(12.0, 1), &run(10.0, 2), 0.1);
        assert!(!faster.is_worse && verdict(&faster, "p50") == ChangeVerdict::Better, "{faster:?}");
    }

    #[test]
    fn lower_throughput_and_more_failures_are_worse() {
        let before = run(10.0, 1);
        let mut after = run(10.0, 2);
        after.requests_per_second = 400.0;
        after.windows_ns.iter_mut().for_each(|window| window.0.truncate(window.0.len() * 4 / 5));
        let comparison = RunComparison::of(&before, &after, 0.1);
        let figure = comparison
            .figures
            .iter()
            .find(|figure| figure.name == "requests_per_second")
            .expect("a figure");
        assert_eq!(
            (figure.verdict, figure.before, figure.after),
            (ChangeVerdict::Worse, 500.0, 400.0)
        );
        assert!(
            (figure.change + 0.2).abs() < 1e-9 && figure.low <= figure.high && figure.high < 0.0,
            "{figure:?}"
        );
        let mut failing = run(10.0, 2);
        failing.failed = 100;
        assert_eq!(
            verdict(&RunComparison::of(&before, &failing, 0.1), "failed_share"),
            ChangeVerdict::Worse
        );
        failing.setting.connections = 99;
        let notes = RunComparison::of(&before, &failing, 0.1).notes.join("\n");
        assert!(notes.contains("the connections: 3 before, 99 now"), "{notes}");
    }
}
