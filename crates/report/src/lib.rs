//! Reports: one HTML file each, which needs no network and runs no script.
//!
//! [`page`] puts a body between head and foot, [`Plot`] draws curves, and [`bytes`], [`counted`] and [`duration`] write
//! figures for people. It knows no run and no server.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::fmt::Write;

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

/// A page. The title and the words below it are text, the body is HTML.
#[must_use]
pub fn page(title: &str, words: &str, body: &str) -> String {
    let (title, words) = (escaped(title), escaped(words));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{STYLE}</style></head><body>\
         <main><h1>{title}</h1><p>{words}</p>{body}</main></body></html>\n"
    )
}

/// A table of names and values, which are text.
#[must_use]
pub fn facts(facts: &[(String, String)]) -> String {
    let mut table = "<table>".to_owned();
    for (name, value) in facts {
        let _ = write!(table, "<tr><td>{}</td><td>{}</td></tr>", escaped(name), escaped(value));
    }
    table.push_str("</table>");
    table
}

/// A table with a head; the first column is of names, the others are of numbers. All texts are HTML.
#[must_use]
pub fn table(names: &[&str], rows: &[Vec<String>]) -> String {
    let mut table = "<table><thead><tr>".to_owned();
    for (index, name) in names.iter().enumerate() {
        let class = if index == 0 { "" } else { " class=\"n\"" };
        let _ = write!(table, "<th{class} scope=\"col\">{name}</th>");
    }
    table.push_str("</tr></thead><tbody>");
    for row in rows {
        table.push_str("<tr>");
        for (index, (name, value)) in names.iter().zip(row).enumerate() {
            let _ = match index {
                0 => write!(table, "<td>{value}</td>"),
                _ => write!(table, "<td class=\"n\" data-label=\"{name}\">{value}</td>"),
            };
        }
        table.push_str("</tr>");
    }
    table.push_str("</tbody></table>");
    table
}

/// Curves in a frame. All texts are HTML.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// What is shown, below the heading.
    pub caption: String,
    /// What is shown, for those who cannot see it.
    pub label: String,
    /// The words at the upright axis, from the top to the bottom.
    pub y: Vec<String>,
    /// The words at the level axis, from the left to the right.
    pub x: Vec<String>,
    /// Points of each curve, as shares of the width from the left and of the height from the bottom.
    pub curves: Vec<Vec<(f64, f64)>>,
    /// Places that are marked by an upright line, as shares of the width.
    pub marks: Vec<f64>,
}

impl Plot {
    /// As HTML. Curves after the first are dashed, more so with each.
    #[must_use]
    pub fn html(&self) -> String {
        let words = |words: &[String]| {
            words.iter().map(|word| format!("<span>{word}</span>")).collect::<String>()
        };
        let mut plot = format!(
            "<figure><figcaption>{}</figcaption><div class=\"plot\"><div class=\"axis y\">{}</div>\
             <svg viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
            self.caption,
            words(&self.y),
            self.label
        );
        for y in [0, 50, 100] {
            let _ = write!(plot, "<line x1=\"0\" x2=\"1000\" y1=\"{y}\" y2=\"{y}\"/>");
        }
        for mark in &self.marks {
            let x = mark * 1000.0;
            let _ = write!(
                plot,
                "<line style=\"stroke:var(--soft)\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"100\"/>"
            );
        }
        for (number, curve) in self.curves.iter().enumerate() {
            match number {
                0 => plot.push_str("<path d=\""),
                _ => {
                    let _ = write!(plot, "<path stroke-dasharray=\"{}\" d=\"", 12 / number.min(6));
                }
            }
            for (index, (x, y)) in curve.iter().enumerate() {
                let letter = if index == 0 { 'M' } else { 'L' };
                let _ = write!(plot, "{letter}{:.1} {:.1}", x * 1000.0, 100.0 - y * 100.0);
            }
            plot.push_str("\"/>");
        }
        let _ = write!(plot, "</svg><div class=\"axis x\">{}</div></div></figure>", words(&self.x));
        plot
    }
}

/// Text for HTML.
#[must_use]
pub fn escaped(text: &str) -> String {
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
    fn a_page_has_no_links_and_no_markup_of_others() {
        let page = page("<a>", "b & c", &facts(&[("<i>".to_owned(), "\"x\"".to_owned())]));
        assert!(
            page.contains("<title>&lt;a&gt;</title>") && page.contains("<p>b &amp; c</p>"),
            "{page}"
        );
        assert!(page.contains("<td>&lt;i&gt;</td><td>&quot;x&quot;</td>"), "{page}");
        assert!(!page.contains("<script") && !page.contains("http"), "{page}");
    }

    #[test]
    fn a_table_names_its_columns_in_each_row() {
        let table = table(&["what", "count"], &[vec!["a".to_owned(), "1".to_owned()]]);
        for part in [
            "<th scope=\"col\">what</th><th class=\"n\" scope=\"col\">count</th>",
            "<tr><td>a</td><td class=\"n\" data-label=\"count\">1</td></tr>",
        ] {
            assert!(table.contains(part), "{part}: {table}");
        }
    }

    #[test]
    fn curves_are_drawn_from_the_lower_left() {
        let plot = Plot {
            y: vec!["2".to_owned(), "0".to_owned()],
            curves: vec![vec![(0.0, 0.0), (1.0, 1.0)], vec![(0.5, 0.5)]],
            marks: vec![0.25],
            ..Plot::default()
        };
        let html = plot.html();
        for part in [
            "<path d=\"M0.0 100.0L1000.0 0.0\"/>",
            "<path stroke-dasharray=\"12\" d=\"M500.0 50.0\"/>",
            "<line style=\"stroke:var(--soft)\" x1=\"250.0\"",
            "<span>2</span><span>0</span>",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
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
