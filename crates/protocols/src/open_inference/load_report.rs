//! The load of the server in a response, for balancers that ask for it (ORCA, Open Request Cost
//! Aggregation): the header `endpoint-load-metrics-format` of a request names the format.
//!
//! Source: `orca_load_report.proto` of github.com/cncf/xds, and Triton's `orca_http.cc`.

use tensorserve_core::engine::{Engine, LoadReport};

/// The header of a request with the format.
pub(super) const FORMAT: &str = "endpoint-load-metrics-format";

/// The header of a response with the report.
pub(super) const REPORT: &str = "endpoint-load-metrics";

/// The report in this format; `None` for other formats.
pub(super) fn written(engine: &Engine, format: &str) -> Option<String> {
    let write = match format.trim().to_ascii_lowercase().as_str() {
        "json" => json,
        "text" => text,
        _ => return None,
    };
    Some(write(&engine.load_report()))
}

fn json(report: &LoadReport) -> String {
    let LoadReport { cpu, request_memory, saturation, requests_per_second, .. } = report;
    format!(
        "JSON {{\"cpu_utilization\": {cpu:.4}, \"mem_utilization\": {request_memory:.4}, \
         \"application_utilization\": {saturation:.4}, \"rps_fractional\": {requests_per_second:.2}, \
         \"eps\": {:.2}, \"named_metrics\": {{\"queued\": {}}}}}",
        report.errors_per_second, report.queued
    )
}

fn text(report: &LoadReport) -> String {
    let LoadReport { cpu, request_memory, saturation, requests_per_second, .. } = report;
    format!(
        "TEXT cpu_utilization={cpu:.4}, mem_utilization={request_memory:.4}, \
         application_utilization={saturation:.4}, rps_fractional={requests_per_second:.2}, eps={:.2}, \
         named_metrics.queued={}",
        report.errors_per_second, report.queued
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: LoadReport = LoadReport {
        cpu: 0.5,
        request_memory: 0.25,
        saturation: 1.5,
        requests_per_second: 10.0,
        errors_per_second: 0.0,
        queued: 3,
    };

    #[test]
    fn reports_have_their_formats() {
        let json: serde_json::Value =
            serde_json::from_str(json(&REPORT).strip_prefix("JSON ").expect("a prefix"))
                .expect("JSON");
        assert_eq!(json["application_utilization"], 1.5);
        assert_eq!(json["named_metrics"]["queued"], 3);
        let text = text(&REPORT);
        assert!(
            text.starts_with("TEXT cpu_utilization=0.5000, mem_utilization=0.2500, "),
            "{text}"
        );
        assert!(text.ends_with("named_metrics.queued=3"), "{text}");
    }
}
