//! What a run has shown, for people.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use super::super::printable::on_one_line;
use super::super::table::columns;
use super::super::{print_line, print_text};
use tensorserve_loadgen::plan::LoadPlan;
use tensorserve_loadgen::report::{three_digits, time};
use tensorserve_loadgen::results::{FailureSample, RunEnd};
use tensorserve_loadgen::run::LiveWindow;
use tensorserve_loadgen::summary::{LoadQuantiles, LoadSummary, ServerUse};

/// How much of an error's body is shown.
const SHOWN: usize = 500;

/// The latest window, on a terminal.
pub(super) struct LiveView {
    bar: Option<ProgressBar>,
}

impl LiveView {
    pub(super) fn new(plan: &LoadPlan) -> Self {
        if !std::io::stderr().is_terminal() {
            return LiveView { bar: None };
        }
        let bar = ProgressBar::new(u64::try_from(plan.duration.as_millis()).unwrap_or(u64::MAX));
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {wide_msg}") {
            bar.set_style(style);
        }
        bar.set_message("warm-up");
        LiveView { bar: Some(bar) }
    }

    // A few seconds are a small number.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    pub(super) fn show(&self, live: LiveWindow<'_>) {
        let Some(bar) = &self.bar else { return };
        bar.set_position((live.measured * 1e3) as u64);
        let window = live.window;
        let quantile = |quantile| time(window.latency.quantile(quantile) as f64 / 1e6);
        bar.set_message(format!(
            "{:.0} of {:.0} s, {:.0} requests/s, p50 {}, p99 {}, {} failed",
            live.measured,
            live.of,
            window.counts.completed as f64 / live.seconds.max(1e-9),
            quantile(0.5),
            quantile(0.99),
            window.counts.failed(),
        ));
    }

    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Prints the figures.
pub(super) fn print(summary: &LoadSummary) {
    print_line(&headline(summary));
    print_line("");
    print_text(&columns(&counts(summary)));
    print_line("");
    print_text(&columns(&quantiles(summary)));
    print_line("");
    let client = &summary.client;
    print_line(&format!(
        "client: {:.1} µs of CPU for a request, {:.0} % of a core in the busiest of {} thread{}",
        summary.client_cpu_us_per_request,
        client.busiest * 100.0,
        client.threads,
        if client.threads == 1 { "" } else { "s" }
    ));
    if let Some(text) = server_text(&summary.server) {
        print_line(&text);
    }
    for note in &summary.notes {
        print_line(&format!("note: {note}"));
    }
    if let Some(failure) = &summary.first_failure {
        print_line(&format!("first failure: {}", failure_text(failure)));
    }
}

fn server_text(server: &ServerUse) -> Option<String> {
    let cpu = server.cpu_us_per_request.map(|cpu| format!("{cpu:.1} µs of CPU for a request"));
    let batches = server.rows_per_batch.map(|rows| format!("{rows:.1} rows in a batch"));
    let parts: Vec<String> = cpu.into_iter().chain(batches).collect();
    (!parts.is_empty()).then(|| format!("server: {}", parts.join(", ")))
}

fn headline(summary: &LoadSummary) -> String {
    let setting = &summary.setting;
    let load = match setting.rate {
        None => "closed loop".to_owned(),
        Some(rate) => format!("open loop with {rate} requests/s ({})", setting.arrivals),
    };
    let ended = match summary.ended {
        RunEnd::Steady => ", until the quantiles were steady",
        RunEnd::Duration | RunEnd::ServerGone | RunEnd::Stopped => "",
    };
    format!(
        "{}, {}: {load}, {} connection{}, {:.1} s after {:.1} s of warm-up{ended}",
        setting.target,
        setting.requests,
        setting.connections,
        if setting.connections == 1 { "" } else { "s" },
        summary.seconds,
        setting.warm_up_seconds
    )
}

fn counts(summary: &LoadSummary) -> Vec<Vec<String>> {
    let mut rows = vec![
        vec!["requests/s".to_owned(), format!("{:.1}", summary.requests_per_second)],
        vec!["succeeded".to_owned(), summary.succeeded.to_string()],
        vec!["failed".to_owned(), summary.failed.to_string()],
    ];
    let is_grpc = summary.setting.wire == "grpc";
    let is_success = |status: u16| if is_grpc { status == 0 } else { (200..300).contains(&status) };
    let others = summary.statuses.iter().filter(|(status, _)| !is_success(**status));
    rows.extend(
        others.map(|(status, count)| vec![format!("  status {status}"), count.to_string()]),
    );
    let without = summary.failures.iter();
    rows.extend(
        without.map(|(kind, count)| vec![format!("  {}", kind.words()), count.to_string()]),
    );
    if summary.unsent > 0 {
        rows.push(vec!["never sent".to_owned(), summary.unsent.to_string()]);
    }
    if summary.reconnects > 0 {
        rows.push(vec!["connected again".to_owned(), summary.reconnects.to_string()]);
    }
    rows.push(vec!["sent".to_owned(), rate_of_bytes(summary.bytes_sent, summary.seconds)]);
    rows.push(vec!["received".to_owned(), rate_of_bytes(summary.bytes_received, summary.seconds)]);
    rows
}

fn quantiles(summary: &LoadSummary) -> Vec<Vec<String>> {
    let words = ["", "mean", "p50", "p90", "p99", "p99.9", "max"];
    let mut rows = vec![words.map(str::to_owned).to_vec()];
    let mut push = |name: String, of: &LoadQuantiles| {
        let times = [of.mean, of.p50, of.p90, of.p99, of.p999, of.max].map(time);
        rows.push([vec![name], times.to_vec()].concat());
    };
    push("latency".to_owned(), &summary.latency_ms);
    for (name, times) in &summary.server_timing_ms {
        push(format!("  {name} in the server"), times);
    }
    if summary.setting.rate.is_some() {
        push("lag of the client".to_owned(), &summary.lag_ms);
    }
    rows
}

/// A failure on one line.
pub(in crate::cli) fn failure_text(failure: &FailureSample) -> String {
    let mut text: String = failure.text.chars().take(SHOWN).collect();
    if text.len() < failure.text.len() {
        text.push('…');
    }
    let text = on_one_line(&text);
    match failure.status {
        Some(status) => format!("status {status}: {text}"),
        None => text.into_owned(),
    }
}

// Three digits are shown.
#[allow(clippy::cast_precision_loss)]
fn rate_of_bytes(bytes: u64, seconds: f64) -> String {
    let (mut value, mut unit) = (bytes as f64 / seconds.max(1e-9), 0);
    while value >= 1000.0 && unit < 3 {
        value /= 1000.0;
        unit += 1;
    }
    format!(
        "{} {}/s",
        three_digits(value),
        ["B", "kB", "MB", "GB"].get(unit).copied().unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits() {
        assert_eq!(rate_of_bytes(25_000_000, 10.0), "2.50 MB/s");
    }

    #[test]
    fn what_servers_write_stays_on_its_line() {
        let failure =
            FailureSample { status: Some(400), text: format!("a\nb\u{1b}[2J{}", "x".repeat(900)) };
        let text = failure_text(&failure);
        assert!(text.starts_with("status 400: a\\nb\\u{1b}[2Jxx") && text.ends_with('…'), "{text}");
    }
}
