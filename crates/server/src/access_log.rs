//! The access log: a line for each request that is sampled for it.

use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use log::kv::Value;

use tensorserve_trace::{RequestFacts, TraceContext};

/// The target of its lines in the log.
pub const ACCESS_LOG: &str = "tensorserve_access";

/// A line of the access log: text for people, and the same as keys and values.
pub(crate) struct AccessLine<'a> {
    /// `http` or `grpc`.
    pub(crate) protocol: &'static str,
    pub(crate) method: &'a str,
    /// The path, as it was sent.
    pub(crate) path: &'a str,
    /// The status of the response; `None` if the client left before it.
    pub(crate) status: Option<&'a str>,
    pub(crate) request_id: &'a str,
    pub(crate) client: Option<IpAddr>,
    pub(crate) response_bytes: u64,
    pub(crate) time: Duration,
    pub(crate) trace: Option<TraceContext>,
    pub(crate) facts: &'a RequestFacts,
}

/// The value of `status` of a request whose client has left.
const CANCELLED: &str = "cancelled";

fn millis(time: Duration) -> f64 {
    // Microseconds are exact enough, and short in a line.
    (time.as_secs_f64() * 1e6).round() / 1e3
}

impl AccessLine<'_> {
    pub(crate) fn write(&self) {
        if !log::log_enabled!(target: ACCESS_LOG, log::Level::Info) {
            return;
        }
        let facts = self.facts;
        let client = self.client.map(|client| client.to_string());
        let (trace, span) = match self.trace {
            Some(context) => (Some(context.trace.to_string()), Some(context.span.to_string())),
            None => (None, None),
        };
        // A number for HTTP, a name for gRPC.
        let number = self.status.and_then(|status| status.parse::<u64>().ok());
        let status = number.map_or(Value::from(self.status.unwrap_or(CANCELLED)), Value::from);
        let request_id = Some(self.request_id).filter(|id| !id.is_empty());
        let values = [
            ("protocol", Some(Value::from(self.protocol))),
            ("method", Some(Value::from(self.method))),
            ("path", Some(Value::from(self.path))),
            ("status", Some(status)),
            ("model", facts.model.as_deref().map(Value::from)),
            ("version", facts.version.map(Value::from)),
            ("signature", facts.signature.as_deref().map(Value::from)),
            ("request_bytes", Some(Value::from(facts.request_bytes))),
            ("response_bytes", Some(Value::from(self.response_bytes))),
            ("duration_ms", Some(Value::from(millis(self.time)))),
            ("queue_ms", facts.queue_delay.map(|time| Value::from(millis(time)))),
            ("run_ms", facts.run.map(|time| Value::from(millis(time)))),
            ("client", client.as_deref().map(Value::from)),
            ("request_id", request_id.map(Value::from)),
            ("trace_id", trace.as_deref().map(Value::from)),
            ("span_id", span.as_deref().map(Value::from)),
        ];
        let values: Vec<_> =
            values.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        let text = self.text();
        log::logger().log(
            &log::Record::builder()
                .target(ACCESS_LOG)
                .level(log::Level::Info)
                .key_values(&values)
                .args(format_args!("{text}"))
                .build(),
        );
    }

    fn text(&self) -> String {
        let AccessLine { method, path, status, response_bytes, time, facts, .. } = self;
        let mut text = format!("{method} {path:?} {}", status.unwrap_or(CANCELLED));
        // Writing to a String cannot fail.
        let _ = write!(text, ", {} B in, {response_bytes} B out", facts.request_bytes);
        let _ = write!(text, ", {} ms", millis(*time));
        if let (Some(queue), Some(run)) = (facts.queue_delay, facts.run) {
            let _ = write!(text, " (queue {}, run {})", millis(queue), millis(run));
        }
        if let Some(model) = &facts.model {
            let _ = write!(text, ", {model}");
        }
        if let Some(version) = facts.version {
            let _ = write!(text, "/{version}");
        }
        if let Some(trace) = self.trace {
            let _ = write!(text, ", trace {}", trace.trace);
        }
        text
    }
}
