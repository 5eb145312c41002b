//! The metrics in Prometheus's text format, for what does not read OpenMetrics, such as `promtool check metrics`.
//!
//! Source: Prometheus, "Text-based format", version 0.0.4.

use std::collections::HashSet;
use std::fmt::Write;

/// The content type of [`text_format`]'s text.
pub const TEXT_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of OpenMetrics in the text format: counters are declared with the name of their samples, the type without a
/// name is `untyped`, and exemplars and the end are left out.
#[must_use]
pub fn text_format<'p>(page: &'p str) -> String {
    let of_counter = |line: &'p str| line.strip_prefix("# TYPE ")?.strip_suffix(" counter");
    let counters: HashSet<&str> = page.lines().filter_map(of_counter).collect();
    let mut text = String::with_capacity(page.len() + 16 * counters.len());
    for line in page.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        let Some((keyword, name, rest)) = declaration(line) else {
            text.push_str(without_exemplar(line));
            text.push('\n');
            continue;
        };
        let suffix = if counters.contains(name) { "_total" } else { "" };
        let rest = match (keyword, rest) {
            ("TYPE", "unknown") => "untyped".to_owned(),
            ("HELP", help) => help.replace("\\\"", "\""),
            (_, other) => other.to_owned(),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "# {keyword} {name}{suffix} {rest}");
    }
    text
}

/// The keyword, the name and the rest of a declaration of a metric.
fn declaration(line: &str) -> Option<(&str, &str, &str)> {
    let (keyword, rest) = line.strip_prefix("# ")?.split_once(' ')?;
    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    matches!(keyword, "HELP" | "TYPE").then_some((keyword, name, rest))
}

/// A sample without its exemplar, which follows its value. Values of labels may have any text.
fn without_exemplar(line: &str) -> &str {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, c) in line.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '#' if !is_quoted && at > 0 => return line.get(..at).unwrap_or(line).trim_end(),
            _ => {}
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::entry::{EntryPoint, Method};
    use crate::metrics::Metrics;

    #[test]
    fn a_page_of_openmetrics_becomes_one_of_the_text_format() {
        let page = "# HELP a_requests Of \\\"all\\\" kinds.\n# TYPE a_requests counter\n\
                    a_requests_total{m=\"a # {\\\"b}\"} 3 # {trace_id=\"x\"} 1 2.5\n\
                    # HELP b_total Not a counter.\n# TYPE b_total gauge\nb_total 1\n\
                    # TYPE c histogram\n# UNIT c seconds\nc_bucket{le=\"1.0\"} 1 # {trace_id=\"y\"} 0.5\n\
                    c_sum 0.5\nc_count 1\n# TYPE d unknown\nd{m=\"\\\\\"} 1\n# EOF\n";
        let text = "# HELP a_requests_total Of \"all\" kinds.\n# TYPE a_requests_total counter\n\
                    a_requests_total{m=\"a # {\\\"b}\"} 3\n\
                    # HELP b_total Not a counter.\n# TYPE b_total gauge\nb_total 1\n\
                    # TYPE c histogram\nc_bucket{le=\"1.0\"} 1\n\
                    c_sum 0.5\nc_count 1\n# TYPE d untyped\nd{m=\"\\\\\"} 1\n";
        assert_eq!(text_format(page), text);
    }

    /// Each series has the name of its declaration, as `promtool check metrics` demands.
    #[test]
    fn every_series_of_the_page_is_declared_by_its_name() {
        let metrics = Metrics::default();
        let version = metrics.version("m", 1, &["s"]);
        let entry = EntryPoint { protocol: "test", method: Method::Predict };
        version.signature(0).unwrap().succeeded(entry, Duration::from_millis(1), None);
        let text = text_format(&metrics.encode().expect("text"));
        let (mut name, mut kind, mut counters) = ("", "", 0);
        for line in text.lines() {
            if let Some((keyword, declared, rest)) = declaration(line) {
                assert!(keyword == "HELP" || declared == name, "{line}");
                (name, kind) = (declared, if keyword == "TYPE" { rest } else { "" });
                continue;
            }
            assert!(!line.starts_with('#'), "{line}");
            let series = line.split(['{', ' ']).next().unwrap();
            let suffix = series.strip_prefix(name).expect(line);
            match kind {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
                _ => assert_eq!(suffix, "", "{line}"),
            }
            counters += usize::from(kind == "counter");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        }
        assert!(counters > 3, "{text}");
    }
}
