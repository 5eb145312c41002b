//! TensorFlow Serving's text format of metrics: Prometheus's without `HELP` lines, with `:` for `/` in
//! names, and with braces even if there are no labels.
//!
//! Source: `util/prometheus_exporter.cc` of github.com/tensorflow/serving.

use std::fmt::Write;

use tensorserve_core::metrics::cell::HistogramReading;

/// The page, line by line.
#[derive(Default)]
pub(super) struct MetricsPage(String);

/// Names and values.
pub(super) type MetricLabels<'a> = &'a [(&'static str, &'a str)];

/// One metric of the page.
pub(super) struct TfsMetric<'p> {
    page: &'p mut MetricsPage,
    name: String,
}

impl MetricsPage {
    /// Begins a metric, such as the `counter` `/tensorflow/serving/request_count`.
    pub(super) fn metric(&mut self, name: &str, kind: &str) -> TfsMetric<'_> {
        let name = name.replace('/', ":");
        self.line(format_args!("# TYPE {name} {kind}"));
        TfsMetric { page: self, name }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

impl TfsMetric<'_> {
    /// Writes the value of a counter or gauge.
    pub(super) fn value(&mut self, labels: MetricLabels<'_>, value: u64) {
        let (name, labels) = (&self.name, joined(labels));
        self.page.line(format_args!("{name}{{{labels}}} {value}"));
    }

    /// Writes a histogram, unless it is empty.
    pub(super) fn histogram(&mut self, labels: MetricLabels<'_>, reading: &HistogramReading) {
        let count = reading.count();
        if count == 0 {
            return;
        }
        let (name, labels) = (&self.name, joined(labels));
        let comma = if labels.is_empty() { "" } else { "," };
        let limits = reading.limits.iter().map(|limit| six_digits(*limit));
        let mut cumulative = 0;
        for (limit, count) in limits.chain(["+Inf".to_owned()]).zip(&reading.counts) {
            cumulative += count;
            let line = format_args!("{name}_bucket{{{labels}{comma}le=\"{limit}\"}} {cumulative}");
            self.page.line(line);
        }
        // The reference writes six digits, which lose small additions to a large sum.
        self.page.line(format_args!("{name}_sum{{{labels}}} {}", reading.sum));
        self.page.line(format_args!("{name}_count{{{labels}}} {count}"));
    }
}

/// `a="1",b="2"`.
fn joined(labels: MetricLabels<'_>) -> String {
    let mut text = String::new();
    for (index, (name, value)) in labels.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        // A line break would end the line, as it does in the reference.
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{comma}{name}=\"{value}\"");
    }
    text
}

/// A number as C's `%g` writes it.
fn six_digits(value: f64) -> String {
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5 - exponent).unwrap_or(0);
        let fixed = format!("{value:.decimals$}");
        return if decimals > 0 { without_zeros(&fixed).to_owned() } else { fixed };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs())
}

/// A decimal number without trailing zeros after the point.
fn without_zeros(number: &str) -> &str {
    number.trim_end_matches('0').trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_core::metrics::cell::AtomicHistogram;

    #[test]
    fn numbers_have_six_significant_digits() {
        for (value, text) in [
            (10.0, "10"),
            (32.4, "32.4"),
            (188.956_8, "188.957"),
            (0.5, "0.5"),
            (512_000.0, "512000"),
            (1_088_921.6, "1.08892e+06"),
            (1e9, "1e+09"),
            (0.000_01, "1e-05"),
        ] {
            assert_eq!(six_digits(value), text);
        }
    }

    #[test]
    fn values_and_histograms() {
        static LIMITS: [f64; 2] = [10.0, 32.4];
        let mut page = MetricsPage::default();
        let mut metric = page.metric("/tensorflow/serving/request_count", "counter");
        metric.value(&[("model_name", "a\\b\"c"), ("status", "OK")], 3);
        page.metric("/tensorflow/core/graph_runs", "counter").value(&[], 1);
        let histogram = AtomicHistogram::new(&LIMITS);
        histogram.observe(7);
        histogram.observe(100);
        let mut metric = page.metric("/x", "histogram");
        metric.histogram(&[], &HistogramReading::empty(&LIMITS));
        metric.histogram(&[("API", "Predict")], &histogram.read());
        let want = "# TYPE :tensorflow:serving:request_count counter\n\
                    :tensorflow:serving:request_count{model_name=\"a\\\\b\\\"c\",status=\"OK\"} 3\n\
                    # TYPE :tensorflow:core:graph_runs counter\n\
                    :tensorflow:core:graph_runs{} 1\n\
                    # TYPE :x histogram\n\
                    :x_bucket{API=\"Predict\",le=\"10\"} 1\n\
                    :x_bucket{API=\"Predict\",le=\"32.4\"} 1\n\
                    :x_bucket{API=\"Predict\",le=\"+Inf\"} 2\n\
                    :x_sum{API=\"Predict\"} 107\n\
                    :x_count{API=\"Predict\"} 2\n";
        assert_eq!(page.into_text(), want);
    }
}
