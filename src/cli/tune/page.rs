//! The report of a tune: one HTML file.

use std::fmt::Write;

use super::TuneLog;
use super::outcome::{CandidateFigures, TuneOutcome, sorted};
use super::sizing::ScalingTarget;
use tensorserve_loadgen::report::{
    MarkedRate, by_quantile, by_rate, run_facts, three_digits, time,
};
use tensorserve_loadgen::summary::LoadSummary;
use tensorserve_report::{duration, escaped, facts, page, table};

/// The report; `None` without a capacity.
pub(super) fn html(outcome: &TuneOutcome, log: &TuneLog) -> Option<String> {
    let chosen = log.capacities.last()?;
    let confirmed = &chosen.confirmed()?.summary;
    let mut body = String::new();
    big(&mut body, outcome);
    for words in [outcome.choice_words(), outcome.replica_words()] {
        let _ = write!(body, "<p>{}.</p>", escaped(&words));
    }
    for note in &outcome.notes {
        let _ = write!(body, "<p>Note: {}.</p>", escaped(note));
    }
    let runs: Vec<LoadSummary> =
        sorted(chosen).into_iter().map(|run| run.summary.clone()).collect();
    let number = outcome.curve.iter().position(|point| point.is_capacity);
    let mark = number.map(|number| MarkedRate { number, name: "capacity" });
    body.push_str(&by_rate(&runs, mark));
    body.push_str(&by_quantile(confirmed, None));
    if !outcome.candidates.is_empty() {
        body.push_str("<h2>Settings</h2>");
        body.push_str(&candidates(&outcome.candidates));
    }
    if !outcome.autoscaling.is_empty() {
        body.push_str("<h2>Autoscaling</h2>");
        body.push_str(&targets(&outcome.autoscaling));
    }
    body.push_str("<h2>Run</h2>");
    let mut all = vec![
        ("promise".to_owned(), outcome.slo.to_string()),
        ("time".to_owned(), duration(outcome.seconds)),
        ("cores".to_owned(), outcome.cores.to_string()),
    ];
    all.extend(run_facts(confirmed));
    body.push_str(&facts(&all));
    let title = format!("tensorserve tune: {}", outcome.target);
    Some(page(&title, &format!("the highest rate with {}", outcome.slo), &body))
}

fn big(body: &mut String, outcome: &TuneOutcome) {
    body.push_str("<div class=\"big\">");
    let mut figures = vec![(three_digits(outcome.capacity), "capacity, requests/s".to_owned())];
    if let Some(count) = outcome.replicas {
        let rate = outcome.rate.unwrap_or_default();
        figures.push((count.to_string(), format!("replicas for {rate} requests/s")));
    }
    if let Some(planned) = &outcome.planned {
        figures.push((three_digits(planned.rate), "planned, requests/s".to_owned()));
        figures.push((time(planned.p99_ms), "p99 at that rate".to_owned()));
    }
    for (value, what) in figures {
        let _ = write!(body, "<div><b>{}</b>{}</div>", escaped(&value), escaped(&what));
    }
    body.push_str("</div>");
}

fn candidates(all: &[CandidateFigures]) -> String {
    let row = |one: &CandidateFigures| {
        let result = match (&one.out, one.ratio) {
            (Some(why), _) => format!("out: {why}"),
            (None, Some(ratio)) => format!("{ratio:.3}"),
            (None, None) => "-".to_owned(),
        };
        vec![escaped(&one.settings.words()), one.trials.to_string(), escaped(&result)]
    };
    table(&["settings", "trials", "times the default"], &all.iter().map(row).collect::<Vec<_>>())
}

fn targets(all: &[ScalingTarget]) -> String {
    let row = |target: &ScalingTarget| {
        vec![escaped(&format!("{}: {}", target.value, target.target)), escaped(&target.metric)]
    };
    table(&["value of the chart", "compared with"], &all.iter().map(row).collect::<Vec<_>>())
}
