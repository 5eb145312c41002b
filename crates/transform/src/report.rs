//! The report of a run: one HTML file, which needs no network.

use std::fmt::Write;

use crate::progress::{FailureNote, Point, Progress, SlowObject, Snapshot};
use tensorserve_report::{Plot, escaped};
pub use tensorserve_report::{bytes, counted, duration};

/// What a report says besides the counters.
#[derive(Clone, Debug, Default)]
pub struct ReportFacts {
    /// Lines of a table: name and value.
    pub facts: Vec<(String, String)>,
    /// How the run ended, in a word or two.
    pub ended: String,
    /// The time that the model's threads were busy, in nanoseconds.
    pub busy: u64,
    /// The threads of the model.
    pub threads: usize,
}

/// The report as HTML.
#[must_use]
pub fn html(title: &str, progress: &Progress, facts: &ReportFacts) -> String {
    let now = progress.snapshot();
    let (points, slowest, failures) = progress.history();
    let skips = progress.skips();
    let mut page = String::new();
    figures(&mut page, &now);
    throughput(&mut page, &points);
    stages(&mut page, progress, facts, &now);
    slow(&mut page, &slowest);
    failed(&mut page, &failures, &now);
    skipped(&mut page, &skips, &now);
    page.push_str("<h2>Job</h2>");
    page.push_str(&tensorserve_report::facts(&facts.facts));
    tensorserve_report::page(title, &facts.ended, &page)
}

fn figures(page: &mut String, now: &Snapshot) {
    // The number and the noun apart.
    let of = |count: u64, one: &str| {
        let text = counted(count, one);
        let (number, noun) = text.split_once(' ').unwrap_or((&text, one));
        (number.to_owned(), noun.to_owned())
    };
    page.push_str("<div class=\"big\">");
    for (value, what) in [
        of(now.objects, "object"),
        of(now.records, "record"),
        (format!("{:.0}", now.records_per_second), "records/s".to_owned()),
        (bytes(now.bytes), "read".to_owned()),
        (bytes(now.output_bytes), "written".to_owned()),
        (duration(now.seconds), "time".to_owned()),
        of(now.failed_objects, "failed object"),
        of(now.bad_records, "bad record"),
    ] {
        let _ = write!(page, "<div><b>{value}</b>{what}</div>");
    }
    if now.skipped_objects > 0 {
        let (value, what) = of(now.skipped_objects, "skipped object");
        let _ = write!(page, "<div><b>{value}</b>{what}</div>");
    }
    page.push_str("</div>");
}

/// Records per second over time.
fn throughput(page: &mut String, points: &[Point]) {
    page.push_str("<h2>Throughput</h2>");
    let rates = rates(points);
    let most = rates.iter().map(|rate| rate.1).fold(0.0, f64::max);
    let end = rates.last().map_or(0.0, |rate| rate.0);
    let start = points.first().map_or(0.0, |point| point.seconds);
    if rates.len() < 2 || most <= 0.0 || end <= start {
        page.push_str("<p>The run was too short for a curve.</p>");
        return;
    }
    let least = rates.iter().map(|rate| rate.1).fold(f64::INFINITY, f64::min);
    let span = duration((end - start) / count(rates.len()));
    let end_text = duration(end);
    let curve = rates.iter().map(|(seconds, rate)| (seconds / end, rate / most)).collect();
    let plot = Plot {
        caption: format!("Records that were run per second. Each point is the mean of {span}."),
        label: format!(
            "Records per second over {end_text}: at least {}, at most {}",
            rate_text(least),
            rate_text(most)
        ),
        y: vec![rate_text(most), rate_text(most / 2.0), "0".to_owned()],
        x: vec!["0 s".to_owned(), end_text],
        curves: vec![curve],
        marks: Vec::new(),
    };
    page.push_str(&plot.html());
}

/// A number of records per second for people.
fn rate_text(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

// Precise up to 2^53.
#[allow(clippy::cast_precision_loss)]
fn count(number: usize) -> f64 {
    number as f64
}

/// Spans of time for which a rate is shown: in shorter ones a batch ends, or does not.
const RATES: usize = 60;

/// The rates of even spans of time.
// Precise up to 2^53 records.
#[allow(clippy::cast_precision_loss)]
fn rates(points: &[Point]) -> Vec<(f64, f64)> {
    let of_pair = |pair: &[Point]| match pair {
        [before, after] if after.seconds > before.seconds => {
            let records = after.ran.saturating_sub(before.ran) as f64;
            Some((after.seconds, records / (after.seconds - before.seconds)))
        }
        _ => None,
    };
    let step = points.len().div_ceil(RATES).max(1);
    // From the last point, so that no time is left out at the end.
    let mut kept: Vec<Point> = points.iter().rev().step_by(step).copied().collect();
    kept.reverse();
    kept.windows(2).filter_map(of_pair).collect()
}

/// Where the time went.
// Precise up to 2^53 ns, which are 104 days.
#[allow(clippy::cast_precision_loss)]
fn stages(page: &mut String, progress: &Progress, facts: &ReportFacts, now: &Snapshot) {
    use std::sync::atomic::Ordering::Relaxed;
    page.push_str(
        "<h2>Where the time went</h2><p>Seconds of all threads together, and their share of the sum. Entry threads \
         read, write and publish, run batches or wait for those that others run.</p><table><thead><tr>\
         <th scope=\"col\">work</th><th class=\"n\" scope=\"col\">time</th><th class=\"n\" scope=\"col\">share</th>\
         <th scope=\"col\">compared with the longest</th></tr></thead><tbody>",
    );
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let model = seconds(facts.busy);
    let rows = [
        ("decode, run and encode", model),
        ("read and split", seconds(progress.reading.load(Relaxed))),
        ("wait for batches", seconds(progress.waiting.load(Relaxed))),
        ("write", seconds(progress.writing.load(Relaxed))),
        ("publish", seconds(progress.publishing.load(Relaxed))),
    ];
    let most = rows.iter().map(|row| row.1).fold(1e-9, f64::max);
    let sum = rows.iter().map(|row| row.1).sum::<f64>().max(1e-9);
    for (what, seconds) in rows {
        let _ = write!(
            page,
            "<tr><td>{what}</td><td class=\"n\">{seconds:.1} s</td><td class=\"n\">{:.0} %</td>\
             <td class=\"bars\"><div class=\"bar\"><i style=\"width:{:.1}%\"></i></div></td></tr>",
            seconds / sum * 100.0,
            seconds / most * 100.0
        );
    }
    page.push_str("</tbody></table>");
    let all = now.seconds * facts.threads.max(1) as f64;
    if all > 0.0 {
        let _ = write!(
            page,
            "<p>Of {} batches at the same time, {:.0} % were run on average.</p>",
            facts.threads,
            model / all * 100.0
        );
    }
}

fn slow(page: &mut String, slowest: &[SlowObject]) {
    page.push_str(
        "<h2>Slowest objects</h2><p>The time is that of the work on the object: reading, running, writing and \
         publishing, without waiting. The time of work on several objects at once is divided among them.</p>\
         <table><thead><tr><th scope=\"col\">object</th><th class=\"n\" scope=\"col\">time</th>\
         <th class=\"n\" scope=\"col\">records</th><th class=\"n\" scope=\"col\">output</th></tr></thead><tbody>",
    );
    for object in slowest {
        let _ = write!(
            page,
            "<tr><td>{}</td><td class=\"n\" data-label=\"time\">{}</td><td class=\"n\" data-label=\"records\">{}</td>\
             <td class=\"n\" data-label=\"output\">{}</td></tr>",
            escaped(&object.object),
            duration(object.seconds),
            object.records,
            bytes(object.bytes)
        );
    }
    page.push_str("</tbody></table>");
}

fn skipped(page: &mut String, skipped: &[FailureNote], now: &Snapshot) {
    if skipped.is_empty() {
        return;
    }
    page.push_str("<h2>Skipped</h2>");
    if now.skipped_objects > u64::try_from(skipped.len()).unwrap_or(u64::MAX) {
        let _ = write!(page, "<p>The first {} of {}.</p>", skipped.len(), now.skipped_objects);
    }
    notes(page, skipped);
}

fn notes(page: &mut String, notes: &[FailureNote]) {
    page.push_str("<table>");
    for FailureNote { object, reason } in notes {
        let _ = write!(page, "<tr><td>{}</td><td>{}</td></tr>", escaped(object), escaped(reason));
    }
    page.push_str("</table>");
}

fn failed(page: &mut String, failures: &[FailureNote], now: &Snapshot) {
    page.push_str("<h2>Failures</h2>");
    if failures.is_empty() {
        page.push_str("<p>None.</p>");
        return;
    }
    let all = now.failed_objects + now.bad_records;
    if all > u64::try_from(failures.len()).unwrap_or(u64::MAX) {
        let _ = write!(page, "<p>The first {} of {all}.</p>", failures.len());
    }
    notes(page, failures);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_page_without_links_and_without_markup_of_others() {
        let progress = Progress::new(2, 100);
        progress.failed_with("<script>", "line 1: \"&\"");
        for _ in 0..3 {
            progress.ran.fetch_add(10, std::sync::atomic::Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(2));
            progress.keep_point();
        }
        let facts =
            ReportFacts { facts: vec![("input".into(), "a<b".into())], ..Default::default() };
        let page = html("job", &progress, &facts);
        assert!(page.contains("&lt;script&gt;") && page.contains("a&lt;b"), "{page}");
        assert!(!page.contains("<script") && !page.contains("http"), "{page}");
        assert!(page.contains("<path d=\"M"), "{page}");
        // All failures are there: there is no first part of them.
        assert!(!page.contains("The first"), "{page}");
        (0..150).for_each(|n| progress.fails(&n.to_string(), "no"));
        let page = html("job", &progress, &facts);
        assert!(page.contains("<p>The first 100 of 150.</p>"), "{page}");
    }

    #[test]
    fn charts_say_what_they_count() {
        let progress = Progress::new(2, 100);
        for _ in 0..3 {
            progress.ran.fetch_add(10, std::sync::atomic::Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_millis(2));
            progress.keep_point();
        }
        let page = html("job", &progress, &ReportFacts::default());
        assert!(
            page.contains("<figcaption>Records that were run per second. Each point"),
            "{page}"
        );
        assert!(page.contains("role=\"img\" aria-label=\"Records per second over"), "{page}");
        assert!(page.contains("Seconds of all threads together, and their share"), "{page}");
    }
}
