//! What a tune has found, as text and JSON.

use super::super::table::columns;
use super::super::{print_line, print_note, print_text};
use super::TuneLog;
use super::candidates::LeftOutSettings;
use super::outcome::{CandidateFigures, CurvePoint, TuneOutcome, ranked};
use tensorserve_loadgen::report::{three_digits, time};

/// Prints all of it as JSON.
pub(super) fn json(outcome: &TuneOutcome) {
    print_line(&serde_json::to_string(outcome).unwrap_or_default());
}

/// Prints all of it for people.
pub(super) fn text(outcome: &TuneOutcome) {
    print_line(&format!(
        "{}, {}: {} on {} cores, {:.0} s",
        outcome.target, outcome.requests, outcome.slo, outcome.cores, outcome.seconds
    ));
    if !outcome.candidates.is_empty() {
        print_line("");
        print_text(&candidates(&outcome.candidates));
    }
    left_out(&outcome.left_out);
    print_line("");
    print_text(&curve(outcome));
    print_line("");
    print_line(&format!("settings: {}", outcome.choice_words()));
    print_line(&format!("capacity: {}", outcome.capacity_words()));
    if let (false, Some(default)) = (outcome.is_default_best, outcome.default_capacity) {
        print_line(&format!("  with the default settings: {} requests/s", three_digits(default)));
    }
    print_line(&format!("replicas: {}", outcome.replica_words()));
    planned(outcome);
    outcome.notes.iter().for_each(|note| print_line(&format!("note: {note}")));
    print_line(&format!("written: {}", outcome.file));
}

/// What was not tried, by reason.
fn left_out(all: &[LeftOutSettings]) {
    let mut reasons: Vec<&str> = all.iter().map(|one| one.why.as_str()).collect();
    reasons.dedup();
    for why in reasons {
        let words = all.iter().filter(|one| one.why == why).map(|one| one.settings.words());
        let words: Vec<String> = words.collect();
        print_line(&format!("not tried, because {why}: {}", words.join("; ")));
    }
}

/// A replica at its planned rate, and the targets of autoscalers.
fn planned(outcome: &TuneOutcome) {
    let Some(planned) = &outcome.planned else { return };
    let cpu = planned.cpu_cores.map_or(String::new(), |cores| format!(", {cores:.2} cores"));
    print_line(&format!(
        "a replica at {} requests/s: p50 {}, p99 {}{cpu}",
        three_digits(planned.rate),
        time(planned.p50_ms),
        time(planned.p99_ms)
    ));
    let row = |target: &super::sizing::ScalingTarget| {
        vec![format!("  {}", target.value), target.target.clone(), target.metric.clone()]
    };
    let mut rows =
        vec![vec!["  autoscaling".to_owned(), "target".to_owned(), "compared with".to_owned()]];
    rows.extend(outcome.autoscaling.iter().map(row));
    print_text(&columns(&rows));
}

fn candidates(all: &[CandidateFigures]) -> String {
    let mut rows =
        vec![["settings", "trials", "times the default", ""].map(str::to_owned).to_vec()];
    for one in all {
        let out = one.out.as_ref().map_or(String::new(), |why| format!("out: {why}"));
        rows.push(vec![
            one.settings.words(),
            one.trials.to_string(),
            one.ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
            out,
        ]);
    }
    columns(&rows)
}

fn curve(outcome: &TuneOutcome) -> String {
    let is_own = matches!(outcome.slo.name(), "p50" | "p99");
    let mut head = vec!["rate", "answered/s", "p50", "p99"];
    if !is_own {
        head.push(outcome.slo.name());
    }
    head.extend(["time", "held", ""]);
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for point in &outcome.curve {
        let CurvePoint { rate, answered, p50_ms, p99_ms, .. } = point;
        let mut row =
            vec![format!("{rate:.1}"), format!("{answered:.1}"), time(*p50_ms), time(*p99_ms)];
        if !is_own {
            row.push(time(point.slo_ms));
        }
        row.push(format!("{:.1} s", point.seconds));
        row.push(if point.is_held { "yes" } else { "no" }.to_owned());
        row.push(if point.is_capacity { "capacity" } else { "" }.to_owned());
        rows.push(row);
    }
    columns(&rows)
}

/// Says what was found until the interruption.
pub(super) fn interrupted(log: &TuneLog) {
    let Some(look) = &log.look else {
        return print_note("nothing was measured, and nothing is written");
    };
    print_note(&format!(
        "the default settings: {} requests/s in a closed loop of {} connections",
        three_digits(look.throughput),
        look.connections
    ));
    for one in ranked(log).iter().filter(|one| one.trials > 0) {
        let ratio = one.ratio.unwrap_or(1.0);
        print_note(&format!(
            "{}: {ratio:.3} times the default settings in {} of the trials",
            one.settings.words(),
            one.trials
        ));
    }
    for capacity in &log.capacities {
        let rate = capacity.runs.iter().filter(|run| run.is_kept);
        let rate = rate.filter_map(|run| run.summary.setting.rate).fold(0.0, f64::max);
        print_note(&format!(
            "{}: held {} requests/s",
            capacity.settings.words(),
            three_digits(rate)
        ));
    }
    print_note("nothing is written");
}
