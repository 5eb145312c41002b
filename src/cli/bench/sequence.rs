//! Several runs: rates one after the other, and a run beside an earlier one.

use std::fs;
use std::path::Path;

use serde::Serialize;

use super::super::table::columns;
use super::super::{print_line, print_text};
use tensorserve_loadgen::compare::{ChangeVerdict, ComparedFigure, RunComparison};
use tensorserve_loadgen::ramp::LoadRamp;
use tensorserve_loadgen::report::time;
use tensorserve_loadgen::summary::LoadSummary;
use tensorserve_tensor::error::{Code, Error, Result};

/// A run, and how it compares with an earlier one, as JSON.
#[derive(Serialize)]
pub(super) struct ComparedRun<'r> {
    #[serde(flatten)]
    pub(super) summary: &'r LoadSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) comparison: Option<&'r RunComparison>,
}

/// A share, as `5%` or `0.05`.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let number: Option<f64> = number.trim().parse().ok();
    let share = number.map(|number| number / unit).filter(|share| (0.0..=10.0).contains(share));
    share.ok_or_else(|| format!("{text:?} is not a share; write, for example, 5% or 0.05"))
}

/// The figures of an earlier run, which `--json` or `--save` has written.
///
/// # Errors
/// If the file has none.
pub(super) fn read(path: &Path) -> Result<LoadSummary> {
    let shown = path.display();
    let failed =
        |e: std::io::Error| Error::new(Code::of_io(&e), format!("--compare: {shown}: {e}"));
    let text = fs::read(path).map_err(failed)?;
    serde_json::from_slice(&text)
        .map_err(|e| Error::invalid(format!("--compare: {shown}: not the figures of a run: {e}")))
}

/// Writes a file.
///
/// # Errors
/// If it cannot be written.
pub(in crate::cli) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|e| {
        let message = format!("{} cannot be written: {e}", path.display());
        Error::new(Code::of_io(&e), message).with_source(e)
    })
}

/// Prints how a run compares with an earlier one.
pub(super) fn print_comparison(comparison: &RunComparison) {
    let mut rows =
        vec![["", "before", "now", "change", "95 % interval", ""].map(str::to_owned).to_vec()];
    rows.extend(comparison.figures.iter().map(row));
    print_line("");
    print_text(&columns(&rows));
    comparison.notes.iter().for_each(|note| print_line(&format!("note: {note}")));
    let tolerance = comparison.tolerance * 100.0;
    print_line(&match comparison.is_worse {
        true => format!("worse by more than {tolerance} %"),
        false => format!("not worse by more than {tolerance} %"),
    });
}

fn row(figure: &ComparedFigure) -> Vec<String> {
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    let value = |value: f64| match figure.name.as_str() {
        "requests_per_second" => format!("{value:.1}"),
        "failed_share" => format!("{:.2} %", value * 100.0),
        _ => time(value),
    };
    let verdict = match figure.verdict {
        ChangeVerdict::Better => "better",
        ChangeVerdict::Same => "",
        ChangeVerdict::Worse => "worse",
    };
    vec![
        figure.name.replace('_', " "),
        value(figure.before),
        value(figure.after),
        percent(figure.change),
        format!("{} to {}", percent(figure.low), percent(figure.high)),
        verdict.to_owned(),
    ]
}

/// Prints the runs of a ramp.
pub(super) fn print_ramp(ramp: &LoadRamp) {
    let words = ["rate", "answered/s", "p50", "p99", "p99.9", "failed", "never sent", ""];
    let mut rows = vec![words.map(str::to_owned).to_vec()];
    for (number, step) in ramp.steps.iter().enumerate() {
        let latency = &step.latency_ms;
        rows.push(vec![
            format!("{:.1}", step.setting.rate.unwrap_or_default()),
            format!("{:.1}", step.requests_per_second),
            time(latency.p50),
            time(latency.p99),
            time(latency.p999),
            step.failed.to_string(),
            step.unsent.to_string(),
            if ramp.knee == Some(number) { "knee".to_owned() } else { String::new() },
        ]);
    }
    if let Some(first) = ramp.steps.first() {
        let setting = &first.setting;
        print_line(&format!(
            "{}, {}: open loop ({}), {} connections, {:.1} s at each rate",
            setting.target, setting.requests, setting.arrivals, setting.connections, first.seconds
        ));
    }
    print_line("");
    print_text(&columns(&rows));
    print_line("");
    print_line(&match ramp.knee_rate() {
        Some(rate) => format!(
            "knee: {rate:.1} requests/s; every higher rate was not held, or has more than twice the p99 of the lowest"
        ),
        None if ramp.steps.first().is_some_and(LoadSummary::held_its_rate) => {
            "no knee: the server held every rate".to_owned()
        }
        None => "no knee: the server did not hold the lowest rate".to_owned(),
    });
    let mut notes: Vec<&String> = ramp.steps.iter().flat_map(|step| &step.notes).collect();
    notes.retain(|note| note.starts_with("the client"));
    if let Some(note) = notes.first() {
        print_line(&format!("note: {note}"));
    }
    let failure = ramp.steps.iter().find_map(|step| step.first_failure.as_ref());
    if let Some(failure) = failure {
        print_line(&format!("first failure: {}", super::show::failure_text(failure)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tolerances_are_shares() {
        assert_eq!((share("5%"), share("0.05"), share("0")), (Ok(0.05), Ok(0.05), Ok(0.0)));
        for text in ["", "x", "-1", "NaN", "5000%"] {
            assert!(share(text).expect_err(text).contains("5% or 0.05"), "{text}");
        }
    }
}
