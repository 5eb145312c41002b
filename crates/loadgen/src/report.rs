//! The report of a run, of a comparison or of a ramp: one HTML file.

use std::fmt::Write;

use tensorserve_report::{Plot, counted, duration, escaped, facts, page, table};

use crate::compare::{ChangeVerdict, ComparedFigure, RunComparison};
use crate::ramp::LoadRamp;
use crate::results::SparseCounts;
use crate::summary::{LoadQuantiles, LoadSummary};

/// The quantiles along the axis: each digit of nine takes the same width.
const DIGITS: f64 = 4.0;

/// The points of a curve of quantiles.
const POINTS: u32 = 200;

/// The report of a run, beside an earlier one if there is one.
#[must_use]
pub fn of_run(summary: &LoadSummary, earlier: Option<(&LoadSummary, &RunComparison)>) -> String {
    let mut body = String::new();
    big(&mut body, summary);
    notes(
        &mut body,
        summary.notes.iter().chain(earlier.iter().flat_map(|(_, comparison)| &comparison.notes)),
    );
    if let Some((_, comparison)) = earlier {
        compared(&mut body, comparison);
    }
    body.push_str(&by_quantile(summary, earlier.map(|(before, _)| before)));
    over_time(&mut body, summary);
    times(&mut body, summary);
    failures(&mut body, summary);
    body.push_str("<h2>Run</h2>");
    body.push_str(&facts(&run_facts(summary)));
    page(&title(summary), &load_words(summary), &body)
}

/// The report of a ramp.
#[must_use]
pub fn of_ramp(ramp: &LoadRamp) -> String {
    let mut body = String::new();
    let Some(first) = ramp.steps.first() else {
        return page("tensorserve bench", "no rate was measured", "");
    };
    body.push_str("<div class=\"big\">");
    let knee = ramp.knee_rate().map_or("none".to_owned(), |rate| format!("{rate:.0}"));
    let best = ramp.steps.iter().map(|step| step.requests_per_second).fold(0.0, f64::max);
    for (value, what) in
        [(knee, "knee, requests/s"), (format!("{best:.0}"), "most answered, requests/s")]
    {
        let _ = write!(body, "<div><b>{value}</b>{what}</div>");
    }
    body.push_str("</div>");
    notes(
        &mut body,
        ramp.steps
            .iter()
            .flat_map(|step| &step.notes)
            .filter(|note| note.starts_with("the client"))
            .take(1),
    );
    let knee = ramp.knee.map(|number| MarkedRate { number, name: "knee" });
    body.push_str(&by_rate(&ramp.steps, knee));
    if let Some(step) = ramp.knee.and_then(|knee| ramp.steps.get(knee)) {
        body.push_str(&by_quantile(step, None));
    }
    body.push_str("<h2>Run</h2>");
    body.push_str(&facts(&run_facts(first)));
    page(&title(first), "open loop with rising rates", &body)
}

fn title(summary: &LoadSummary) -> String {
    format!("tensorserve bench: {}", summary.setting.target)
}

fn load_words(summary: &LoadSummary) -> String {
    match summary.setting.rate {
        None => "closed loop".to_owned(),
        Some(rate) => format!("open loop with {rate} requests/s ({})", summary.setting.arrivals),
    }
}

fn big(body: &mut String, summary: &LoadSummary) {
    body.push_str("<div class=\"big\">");
    let latency = &summary.latency_ms;
    for (value, what) in [
        (format!("{:.0}", summary.requests_per_second), "requests/s".to_owned()),
        (time(latency.p50), "p50".to_owned()),
        (time(latency.p99), "p99".to_owned()),
        (time(latency.p999), "p99.9".to_owned()),
        (time(latency.max), "slowest".to_owned()),
        (summary.failed.to_string(), "failed".to_owned()),
    ] {
        let _ = write!(body, "<div><b>{value}</b>{what}</div>");
    }
    body.push_str("</div>");
}

fn notes<'n>(body: &mut String, notes: impl Iterator<Item = &'n String>) {
    for note in notes {
        let _ = write!(body, "<p>Note: {}.</p>", escaped(note));
    }
}

fn compared(body: &mut String, comparison: &RunComparison) {
    let tolerance = comparison.tolerance * 100.0;
    let verdict = if comparison.is_worse { "Worse" } else { "Not worse" };
    let _ = write!(
        body,
        "<h2>Compared with the earlier run</h2><p>{verdict} by more than {tolerance} %. Intervals hold 95 %, from \
         windows that are drawn again.</p>"
    );
    let names = ["", "before", "now", "change", "from", "to", "verdict"];
    body.push_str(&table(&names, &comparison.figures.iter().map(compared_row).collect::<Vec<_>>()));
}

fn compared_row(figure: &ComparedFigure) -> Vec<String> {
    let percent = |share: f64| format!("{:+.1} %", share * 100.0);
    let value = |value: f64| match figure.name.as_str() {
        "requests_per_second" => format!("{value:.1}"),
        "failed_share" => format!("{:.2} %", value * 100.0),
        _ => time(value),
    };
    let verdict = match figure.verdict {
        ChangeVerdict::Better => "better",
        ChangeVerdict::Same => "",
        ChangeVerdict::Worse => "<b>worse</b>",
    };
    vec![
        escaped(&figure.name.replace('_', " ")),
        value(figure.before),
        value(figure.after),
        percent(figure.change),
        percent(figure.low),
        percent(figure.high),
        verdict.to_owned(),
    ]
}

fn merged(summary: &LoadSummary) -> SparseCounts {
    let mut all = SparseCounts::default();
    summary.windows_ns.iter().for_each(|window| all.add(window));
    all
}

/// Latency by quantile, on an axis of nines.
#[must_use]
pub fn by_quantile(summary: &LoadSummary, before: Option<&LoadSummary>) -> String {
    let mut body = "<h2>Latency by quantile</h2>".to_owned();
    let runs: Vec<SparseCounts> =
        [Some(summary), before].into_iter().flatten().map(merged).collect();
    let curve = |counts: &SparseCounts| -> Vec<(f64, f64)> {
        let total = counts.total();
        // A quantile that a single value decides is not drawn.
        let last = digits(total).min(DIGITS);
        let point = |index: u32| {
            let nines = last * f64::from(index) / f64::from(POINTS);
            (nines / DIGITS, milliseconds(counts.quantile(1.0 - 10f64.powf(-nines))))
        };
        (0..=POINTS).map(point).collect()
    };
    let curves: Vec<Vec<(f64, f64)>> =
        runs.iter().filter(|counts| counts.total() > 1).map(curve).collect();
    let most = curves.iter().flatten().map(|point| point.1).fold(0.0, f64::max);
    if most <= 0.0 {
        body.push_str("<p>There were too few responses for a curve.</p>");
        return body;
    }
    let caption = match before {
        None => "The share of requests, from the left to the right, that took no longer than this.",
        Some(_) => {
            "The share of requests, from the left to the right, that took no longer than this; dashed: before."
        }
    };
    let latency = &summary.latency_ms;
    let plot = Plot {
        caption: caption.to_owned(),
        label: format!("Latency by quantile: p50 {}, p99 {}", time(latency.p50), time(latency.p99)),
        y: vec![time(most), time(most / 2.0), "0".to_owned()],
        x: ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"].map(str::to_owned).to_vec(),
        curves: curves
            .into_iter()
            .map(|curve| curve.into_iter().map(|(x, y)| (x, y / most)).collect())
            .collect(),
        marks: Vec::new(),
    };
    body.push_str(&plot.html());
    body
}

/// The number of nines that so many values can tell.
// Precise up to 2^53 values.
#[allow(clippy::cast_precision_loss)]
fn digits(total: u64) -> f64 {
    (total as f64).log10().max(0.0)
}

// Hours are exact.
#[allow(clippy::cast_precision_loss)]
fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}

/// The median and the 99th percentile of each window.
// Windows are few.
#[allow(clippy::cast_precision_loss)]
fn over_time(body: &mut String, summary: &LoadSummary) {
    let windows = &summary.windows_ns;
    let of = |quantile: f64| -> Vec<f64> {
        windows.iter().map(|window| milliseconds(window.quantile(quantile))).collect()
    };
    let (upper, lower) = (of(0.99), of(0.5));
    let most = upper.iter().copied().fold(0.0, f64::max);
    body.push_str("<h2>Latency over time</h2>");
    if windows.len() < 2 || most <= 0.0 {
        body.push_str("<p>The run was too short for a curve.</p>");
        return;
    }
    let curve = |values: &[f64]| {
        let last = (values.len() - 1) as f64;
        values.iter().enumerate().map(|(at, value)| (at as f64 / last, value / most)).collect()
    };
    let span = duration(summary.window_seconds);
    let plot = Plot {
        caption: format!("The 99th percentile and, dashed, the median of each {span}."),
        label: format!("Latency over {}: at most {}", duration(summary.seconds), time(most)),
        y: vec![time(most), time(most / 2.0), "0".to_owned()],
        x: vec!["0 s".to_owned(), duration(summary.seconds)],
        curves: vec![curve(&upper), curve(&lower)],
        marks: Vec::new(),
    };
    body.push_str(&plot.html());
}

fn times(body: &mut String, summary: &LoadSummary) {
    body.push_str("<h2>Times</h2>");
    let names = ["", "mean", "p50", "p90", "p99", "p99.9", "max"];
    let mut rows = Vec::new();
    let mut push = |name: String, of: &LoadQuantiles| {
        let times = [of.mean, of.p50, of.p90, of.p99, of.p999, of.max].map(time);
        rows.push([vec![name], times.to_vec()].concat());
    };
    push("latency".to_owned(), &summary.latency_ms);
    for (name, times) in &summary.server_timing_ms {
        push(format!("{} in the server", escaped(name)), times);
    }
    if summary.setting.rate.is_some() {
        push("lag of the client".to_owned(), &summary.lag_ms);
    }
    body.push_str(&table(&names, &rows));
}

fn failures(body: &mut String, summary: &LoadSummary) {
    body.push_str("<h2>Failures</h2>");
    if summary.failed + summary.unsent == 0 {
        body.push_str("<p>None.</p>");
        return;
    }
    let mut rows: Vec<(String, String)> = Vec::new();
    let is_success = |status: u16| match summary.setting.wire.as_str() {
        "grpc" => status == 0,
        _ => (200..300).contains(&status),
    };
    let statuses = summary.statuses.iter().filter(|(status, _)| !is_success(**status));
    rows.extend(statuses.map(|(status, count)| (format!("status {status}"), count.to_string())));
    let without = summary.failures.iter();
    rows.extend(without.map(|(kind, count)| (kind.words().to_owned(), count.to_string())));
    if summary.unsent > 0 {
        rows.push(("never sent".to_owned(), summary.unsent.to_string()));
    }
    if let Some(first) = &summary.first_failure {
        let status = first.status.map_or(String::new(), |status| format!("status {status}: "));
        rows.push(("the first".to_owned(), format!("{status}{}", first.text)));
    }
    body.push_str(&facts(&rows));
}

/// A run among others at other rates that is marked, such as the one of the knee.
#[derive(Clone, Copy, Debug)]
pub struct MarkedRate<'n> {
    /// Its number among the runs.
    pub number: usize,
    /// What it is.
    pub name: &'n str,
}

/// Latency against rate, on a logarithmic axis, and a table of the runs.
#[must_use]
pub fn by_rate(runs: &[LoadSummary], marked: Option<MarkedRate<'_>>) -> String {
    let mut body = "<h2>Latency by rate</h2>".to_owned();
    let steps = || runs.iter().filter(|step| step.latency_ms.p50 > 0.0);
    let rate = |step: &LoadSummary| step.setting.rate.unwrap_or_default();
    let widest = steps().map(rate).fold(0.0, f64::max);
    let least = steps().map(|step| step.latency_ms.p50).fold(f64::INFINITY, f64::min);
    let most = steps().map(|step| step.latency_ms.p99).fold(0.0, f64::max);
    if steps().count() > 1 && most > least {
        let height = |latency: f64| (latency / least).ln() / (most / least).ln();
        let curve = |of: fn(&LoadQuantiles) -> f64| {
            steps().map(|step| (rate(step) / widest, height(of(&step.latency_ms)))).collect()
        };
        let mark = marked.and_then(|mark| Some((rate(runs.get(mark.number)?), mark.name)));
        let plot = Plot {
            caption: format!(
                "The 99th percentile and, dashed, the median at each rate, on a logarithmic axis.{}",
                mark.map_or(String::new(), |(rate, name)| format!(
                    " The upright line is the {name}, {rate:.0} requests/s."
                ))
            ),
            label: format!(
                "Latency by rate up to {widest:.0} requests/s: from {} to {}",
                time(least),
                time(most)
            ),
            y: vec![time(most), time((least * most).sqrt()), time(least)],
            x: vec![
                "0".to_owned(),
                format!("{:.0}", widest / 2.0),
                format!("{widest:.0} requests/s"),
            ],
            curves: vec![curve(|latency| latency.p99), curve(|latency| latency.p50)],
            marks: mark.map(|(rate, _)| rate / widest).into_iter().collect(),
        };
        body.push_str(&plot.html());
    }
    body.push_str(&rates(runs, marked));
    body
}

fn rates(runs: &[LoadSummary], marked: Option<MarkedRate<'_>>) -> String {
    let names = ["requests/s", "answered", "p50", "p99", "p99.9", "failed", "never sent"];
    let row = |(number, step): (usize, &LoadSummary)| {
        let latency = &step.latency_ms;
        let mark = marked.filter(|mark| mark.number == number);
        let mark = mark.map_or(String::new(), |mark| format!(" ({})", mark.name));
        vec![
            format!("{:.1}{mark}", step.setting.rate.unwrap_or_default()),
            format!("{:.1}", step.requests_per_second),
            time(latency.p50),
            time(latency.p99),
            time(latency.p999),
            step.failed.to_string(),
            step.unsent.to_string(),
        ]
    };
    table(&names, &runs.iter().enumerate().map(row).collect::<Vec<_>>())
}

/// What was run, and what it has cost.
#[must_use]
pub fn run_facts(summary: &LoadSummary) -> Vec<(String, String)> {
    let setting = &summary.setting;
    let mut facts = vec![
        ("target", setting.target.clone()),
        ("requests", setting.requests.clone()),
        ("connections", setting.connections.to_string()),
        (
            "measured",
            format!(
                "{} after {} of warm-up",
                duration(summary.seconds),
                duration(setting.warm_up_seconds)
            ),
        ),
        ("succeeded", summary.succeeded.to_string()),
        (
            "client",
            format!(
                "{}, {:.1} µs of CPU for a request, {:.0} % of a core in the busiest",
                counted(summary.client.threads as u64, "thread"),
                summary.client_cpu_us_per_request,
                summary.client.busiest * 100.0
            ),
        ),
    ];
    if let Some(cpu) = summary.server.cpu_us_per_request {
        facts.push(("server", format!("{cpu:.1} µs of CPU for a request")));
    }
    if let Some(rows) = summary.server.rows_per_batch {
        facts.push(("batches", format!("{rows:.1} rows on average")));
    }
    facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A time with three digits.
#[must_use]
pub fn time(milliseconds: f64) -> String {
    match milliseconds {
        ms if ms < 0.9995 => format!("{} µs", three_digits(ms * 1e3)),
        ms if ms < 999.5 => format!("{} ms", three_digits(ms)),
        ms => format!("{} s", three_digits(ms / 1e3)),
    }
}

/// A number with three digits.
#[must_use]
pub fn three_digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::FailureSample;
    use crate::summary::tests::summary_of;

    fn run(scale: u64) -> LoadSummary {
        let window =
            |n: u64| SparseCounts((1..=100).map(|i| (scale * (i + n) * 1000, 1)).collect());
        let mut summary =
            LoadSummary { windows_ns: (0..12).map(window).collect(), ..summary_of(1200) };
        summary.setting.target = "<m>".to_owned();
        summary
    }

    #[test]
    fn a_report_is_one_page_without_links_scripts_or_markup_of_others() {
        let (before, mut after) = (run(1), run(3));
        after.failed = 1;
        after.first_failure =
            Some(FailureSample { status: Some(500), text: "<script>".to_owned() });
        let comparison = RunComparison::of(&before, &after, 0.05);
        let page = of_run(&after, Some((&before, &comparison)));
        assert!(page.contains("&lt;m&gt;") && page.contains("&lt;script&gt;"), "{page}");
        assert!(
            !page.contains("<script") && !page.contains("http://") && !page.contains("url("),
            "{page}"
        );
        for part in [
            "Latency by quantile",
            "dashed: before",
            "<b>worse</b>",
            "Latency over time",
            "status 500",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.matches("<svg").count(), 2, "{page}");
        assert_eq!(page.matches("<path").count(), 4, "{page}");
    }

    #[test]
    fn a_ramp_has_the_knee_in_its_plot() {
        let step = |(rate, p99): (f64, f64)| {
            let mut step = run(1);
            step.setting.rate = Some(rate);
            (step.latency_ms.p50, step.latency_ms.p99) = (1.0, p99);
            step
        };
        let ramp = LoadRamp::of([(100.0, 2.0), (200.0, 2.5), (400.0, 90.0)].map(step).to_vec());
        let page = of_ramp(&ramp);
        assert!(
            page.contains("200.0 (knee)") && page.contains("the knee, 200 requests/s"),
            "{page}"
        );
        assert!(page.contains("<line style=\"stroke:var(--soft)\" x1=\"500.0\""), "{page}");
        assert!(of_ramp(&LoadRamp::of(Vec::new())).contains("no rate was measured"));
    }

    #[test]
    fn times_have_three_digits() {
        let of = [0.0005, 0.01234, 0.9996, 12.345, 999.4, 999.9, 12_345.0].map(time);
        assert_eq!(of, ["0.50 µs", "12.3 µs", "1.00 ms", "12.3 ms", "999 ms", "1.00 s", "12.3 s"]);
    }
}
