//! The report of a run: one HTML file, which needs no network.

use std::fmt::Write;

use crate::progress::{FailureNote, Point, Progress, SlowObject, Snapshot};

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

const LEFT: f64 = 100.0;
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 200.0;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d6dce4;--paper:#fff;--blue:#2a6fdb}\
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b5;--line:#343d49;--paper:#14181e;\
--blue:#6ea4ff}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:900px;\
margin:2rem auto;padding:0 1rem}h1{font-size:1.4rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .5rem}\
p{color:var(--soft);margin:.2rem 0}table{border-collapse:collapse;width:100%}\
td,th{padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--line);text-align:left;\
vertical-align:top;overflow-wrap:anywhere}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;\
white-space:nowrap}.big{display:grid;grid-template-columns:repeat(4,auto);gap:1rem;margin:1.2rem 0}.big b{display:block;\
font-size:1.6rem}.bar{background:var(--line);height:.8rem;border-radius:2px}.bar i{display:block;\
height:100%;background:var(--blue);border-radius:2px}svg{width:100%;height:auto}\
svg path{fill:none;stroke:var(--blue);stroke-width:2}svg line{stroke:var(--line)}\
svg text{fill:var(--soft);font-size:12px}";

/// The report as HTML.
#[must_use]
pub fn html(title: &str, progress: &Progress, facts: &ReportFacts) -> String {
    let now = progress.snapshot();
    let (points, slowest, failures) = progress.history();
    let skips = progress.skips();
    let mut page = String::new();
    let title = escaped(title);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body>\
         <h1>{title}</h1><p>{}</p>",
        escaped(&facts.ended)
    );
    figures(&mut page, &now);
    throughput(&mut page, &points);
    stages(&mut page, progress, facts, &now);
    slow(&mut page, &slowest);
    failed(&mut page, &failures, &now);
    skipped(&mut page, &skips, &now);
    page.push_str("<h2>Job</h2><table>");
    for (name, value) in &facts.facts {
        let _ = write!(page, "<tr><td>{}</td><td>{}</td></tr>", escaped(name), escaped(value));
    }
    page.push_str("</table></body></html>\n");
    page
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
    if rates.len() < 2 || most <= 0.0 || end <= 0.0 {
        page.push_str("<p>The run was too short for a curve.</p>");
        return;
    }
    let _ = write!(page, "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\">", HEIGHT + 30.0);
    for part in [0.0, 0.5, 1.0] {
        let y = HEIGHT - part * (HEIGHT - 20.0);
        let _ = write!(
            page,
            "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"0\" y=\"{:.1}\">\
             {:.0} records/s</text>",
            y + 4.0,
            most * part
        );
    }
    page.push_str("<path d=\"");
    for (index, (seconds, rate)) in rates.iter().enumerate() {
        let letter = if index == 0 { 'M' } else { 'L' };
        let (x, y) =
            (LEFT + seconds / end * (WIDTH - LEFT), HEIGHT - rate / most * (HEIGHT - 20.0));
        let _ = write!(page, "{letter}{x:.1} {y:.1}");
    }
    let _ = write!(
        page,
        "\"/><text x=\"{LEFT}\" y=\"{0:.1}\">0 s</text><text x=\"{WIDTH}\" y=\"{0:.1}\" \
         text-anchor=\"end\">{1}</text></svg>",
        HEIGHT + 18.0,
        duration(end)
    );
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
        "<h2>Where the time went</h2><p>Seconds of all threads together. Entry threads read, write and publish, \
         run batches or wait for those that others run.</p><table>",
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
    for (what, seconds) in rows {
        let _ = write!(
            page,
            "<tr><td>{what}</td><td class=\"n\">{seconds:.1} s</td><td style=\"width:50%\"><div \
             class=\"bar\"><i style=\"width:{:.1}%\"></i></div></td></tr>",
            seconds / most * 100.0
        );
    }
    page.push_str("</table>");
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
        "<h2>Slowest objects</h2><table><tr><th>object</th><th class=\"n\">time</th><th class=\"n\">\
         records</th><th class=\"n\">output</th></tr>",
    );
    for object in slowest {
        let _ = write!(
            page,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            escaped(&object.object),
            duration(object.seconds),
            object.records,
            bytes(object.bytes)
        );
    }
    page.push_str("</table>");
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

/// Text for HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            letter => out.push(letter),
        }
    }
    out
}

/// A number of bytes for people.
#[must_use]
// One digit after the point.
#[allow(clippy::cast_precision_loss)]
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = units.get(unit).copied().unwrap_or_default();
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {name}") }
}

/// A number of things for people: `1 object`, `2 objects`, `3 entries`.
#[must_use]
pub fn counted(count: u64, one: &str) -> String {
    match one {
        _ if count == 1 => format!("1 {one}"),
        _ if one.ends_with("ch") => format!("{count} {one}es"),
        _ => match one.strip_suffix('y') {
            Some(stem) => format!("{count} {stem}ies"),
            None => format!("{count} {one}s"),
        },
    }
}

/// A time for people.
#[must_use]
pub fn duration(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds * 1000.0);
    }
    if seconds < 120.0 {
        return format!("{seconds:.1} s");
    }
    let minutes = (seconds / 60.0).floor();
    if minutes < 120.0 {
        return format!("{minutes:.0} min {:.0} s", seconds - minutes * 60.0);
    }
    let hours = (minutes / 60.0).floor();
    format!("{hours:.0} h {:.0} min", minutes - hours * 60.0)
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
    fn one_is_singular() {
        let found = [(1, "object"), (0, "object"), (1, "entry"), (2, "entry"), (3, "batch")];
        let found = found.map(|(count, one)| counted(count, one));
        assert_eq!(found, ["1 object", "0 objects", "1 entry", "2 entries", "3 batches"]);
    }

    #[test]
    fn numbers_are_for_people() {
        assert_eq!((bytes(1023).as_str(), bytes(3 << 19).as_str()), ("1023 B", "1.5 MiB"));
        let times = [0.25, 59.0, 125.0, 8000.0].map(duration);
        assert_eq!(times, ["250 ms", "59.0 s", "2 min 5 s", "2 h 13 min"]);
    }
}
