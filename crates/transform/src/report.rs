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

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1c2430;--soft:#566170;--line:#d6dce4;--paper:#fff;--blue:#2a6fdb}\
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b5;--line:#343d49;--paper:#14181e;\
--blue:#6ea4ff}}\
*{box-sizing:border-box}body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);\
max-width:900px;margin:2rem auto;padding:0 1rem}h1{font-size:1.4rem;margin:0}\
h2{font-size:1.05rem;margin:2rem 0 .5rem}p{color:var(--soft);margin:.2rem 0}figure{margin:.6rem 0 0}\
figcaption,.axis{color:var(--soft)}.axis{display:flex;justify-content:space-between;font-size:.82rem;\
font-variant-numeric:tabular-nums}table{border-collapse:collapse;width:100%}\
td,th{padding:.3rem .6rem .3rem 0;border-bottom:1px solid var(--line);text-align:left;\
vertical-align:top;overflow-wrap:anywhere}th{color:var(--soft);font-weight:500}\
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}\
.big{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:1rem;margin:1.2rem 0}\
.big b{display:block;font-size:1.6rem;line-height:1.3}.bar{background:var(--line);height:.8rem;margin:.35rem 0;\
border-radius:2px}.bar i{display:block;height:100%;background:var(--blue);border-radius:2px}td.bars{width:45%}\
.plot{display:grid;grid-template-columns:auto 1fr;gap:.2rem .6rem;margin-top:.5rem}\
.plot .axis.y{flex-direction:column;height:12rem;text-align:right;line-height:1;margin:-.4rem 0}\
.plot .axis.x{grid-column:2}.plot svg{display:block;width:100%;height:11.2rem;margin:0;overflow:visible}\
svg path{fill:none;stroke:var(--blue);stroke-width:2;vector-effect:non-scaling-stroke}\
svg line{stroke:var(--line);vector-effect:non-scaling-stroke}\
@media(max-width:600px){body{margin:1rem auto}thead{position:absolute;clip-path:inset(50%);height:1px;overflow:hidden}\
tr{display:flex;flex-wrap:wrap;gap:0 1.2rem;padding:.45rem 0;border-bottom:1px solid var(--line)}\
td{border:0;padding:0}td:first-child,td:nth-child(2):last-child,td.bars{width:100%}td.n{text-align:left}\
td[data-label]::before{content:attr(data-label) ' ';color:var(--soft)}}";

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
         content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{STYLE}</style></head><body>\
         <main><h1>{title}</h1><p>{}</p>",
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
    page.push_str("</table></main></body></html>\n");
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
    let start = points.first().map_or(0.0, |point| point.seconds);
    if rates.len() < 2 || most <= 0.0 || end <= start {
        page.push_str("<p>The run was too short for a curve.</p>");
        return;
    }
    let least = rates.iter().map(|rate| rate.1).fold(f64::INFINITY, f64::min);
    let span = duration((end - start) / count(rates.len()));
    let end_text = duration(end);
    let _ = write!(
        page,
        "<figure><figcaption>Records that were run per second. Each point is the mean of {span}.</figcaption>\
         <div class=\"plot\"><div class=\"axis y\"><span>{}</span><span>{}</span><span>0</span></div>\
         <svg viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"Records per \
         second over {end_text}: at least {}, at most {}\">",
        rate_text(most),
        rate_text(most / 2.0),
        rate_text(least),
        rate_text(most)
    );
    for y in [0, 50, 100] {
        let _ = write!(page, "<line x1=\"0\" x2=\"1000\" y1=\"{y}\" y2=\"{y}\"/>");
    }
    page.push_str("<path d=\"");
    for (index, (seconds, rate)) in rates.iter().enumerate() {
        let letter = if index == 0 { 'M' } else { 'L' };
        let (x, y) = (seconds / end * 1000.0, 100.0 - rate / most * 100.0);
        let _ = write!(page, "{letter}{x:.1} {y:.1}");
    }
    let _ = write!(
        page,
        "\"/></svg><div class=\"axis x\"><span>0 s</span><span>{end_text}</span></div></div></figure>"
    );
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
pub fn counted(count: impl TryInto<u64>, one: &str) -> String {
    let count = count.try_into().unwrap_or(u64::MAX);
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

    #[test]
    fn numbers_are_for_people() {
        assert_eq!((bytes(1023).as_str(), bytes(3 << 19).as_str()), ("1023 B", "1.5 MiB"));
        let times = [0.25, 59.0, 125.0, 8000.0].map(duration);
        assert_eq!(times, ["250 ms", "59.0 s", "2 min 5 s", "2 h 13 min"]);
    }
}
