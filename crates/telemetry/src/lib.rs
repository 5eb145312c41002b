//! Sends the spans of requests to a collector of traces: OTLP over HTTP and over gRPC.
//!
//! Encoding, batches, retries and the `OTEL_*` variables about them are OpenTelemetry's SDK, on a
//! thread of its own. A request hands its spans over and never waits: while the collector is down or
//! slow, spans wait in a queue of limited length, and further ones are dropped and counted.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod client;
mod convert;
mod counted;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::KeyValue;
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanProcessor};
use tokio::runtime::Runtime;
use ureq::tls::Certificate;

use self::client::BlockingClient;
use self::convert::span_data;
pub use self::counted::SpanCounts;
use self::counted::{CountedExporter, ExportCounters};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_trace::{FinishedTrace, SpanSink};

/// How a collector is spoken to.
#[derive(Debug)]
pub enum OtlpProtocol {
    /// Protocol buffers over HTTP. HTTPS is verified against these certificates.
    Http(Vec<Certificate<'static>>),
    /// gRPC. HTTPS is verified against the certificates of the system.
    Grpc,
}

/// The collector.
#[derive(Debug)]
pub struct CollectorConfig {
    /// Its URL; `None` for that of `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, of
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`, or on this machine.
    pub endpoint: Option<String>,
    /// How it is spoken to.
    pub protocol: OtlpProtocol,
    /// The spans that may wait for it; `None` for [`SPANS_THAT_WAIT`].
    pub queue: Option<usize>,
    /// The time for an export; `None` for [`EXPORT_TIMEOUT`].
    pub timeout: Option<Duration>,
}

/// The spans that wait for a collector at most, of some 500 bytes each.
pub const SPANS_THAT_WAIT: usize = 8192;

/// The time for an export that OpenTelemetry's specification has as the default.
pub const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// The path of traces at a collector.
const TRACES_PATH: &str = "/v1/traces";

/// The name of the service, unless `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES` has another.
const SERVICE: &str = "tensorserve";

/// Sends spans to a collector.
pub struct Telemetry {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    counters: Arc<ExportCounters>,
    queue: usize,
    /// Of the connections of gRPC.
    _runtime: Option<Runtime>,
}

impl Telemetry {
    /// Starts to send. The collector need not be there.
    ///
    /// # Errors
    /// [`Error::invalid`] if the configuration or an `OTEL_EXPORTER_OTLP_*` variable is not valid.
    pub fn start(config: &CollectorConfig, version: &'static str) -> Result<Arc<Self>> {
        let endpoint = config.endpoint.as_deref();
        let timeout = config.timeout.unwrap_or(EXPORT_TIMEOUT);
        let (exporter, runtime) = match &config.protocol {
            OtlpProtocol::Http(roots) => (http_exporter(endpoint, timeout, roots)?, None),
            OtlpProtocol::Grpc => {
                let runtime = runtime()?;
                let _inside = runtime.enter();
                (grpc_exporter(endpoint, timeout)?, Some(runtime))
            }
        };
        let queue = config.queue.unwrap_or(SPANS_THAT_WAIT).max(1);
        let counters = Arc::new(ExportCounters::default());
        let exporter = CountedExporter::new(exporter, Arc::clone(&counters));
        let batches = BatchConfigBuilder::default().with_max_queue_size(queue).build();
        let mut processor = BatchSpanProcessor::new(exporter, batches);
        processor.set_resource(&resource(version));
        let scope = InstrumentationScope::builder(SERVICE).with_version(version).build();
        Ok(Arc::new(Telemetry { processor, scope, counters, queue, _runtime: runtime }))
    }

    /// How many spans were sent, and were not.
    #[must_use]
    pub fn counts(&self) -> SpanCounts {
        self.counters.read()
    }

    /// Sends what waits, for at most `time`, and ends. Blocks.
    pub fn stop(&self, time: Duration) {
        if let Err(error) = self.processor.shutdown_with_timeout(time) {
            log::warn!("not all spans could be sent to the collector before the end: {error}");
        }
    }
}

impl SpanSink for Telemetry {
    fn take(&self, finished: FinishedTrace) {
        let spans = finished.spans.len();
        if !self.counters.admit(spans, self.queue) {
            return;
        }
        for span in span_data(finished, &self.scope) {
            self.processor.on_end(span);
        }
    }
}

fn runtime() -> Result<Runtime> {
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("traces")
        .enable_all()
        .build();
    built.map_err(|e| Error::internal("the thread for traces could not be started").with_source(e))
}

fn invalid(why: impl Display) -> Error {
    Error::invalid(format!("traces cannot be sent: {why}"))
}

fn http_exporter(
    endpoint: Option<&str>,
    timeout: Duration,
    roots: &[Certificate<'static>],
) -> Result<SpanExporter> {
    let client = BlockingClient::new(roots, timeout);
    let mut builder = SpanExporter::builder().with_http().with_http_client(client);
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(traces_url(endpoint));
    }
    let protocol = opentelemetry_otlp::Protocol::HttpBinary;
    builder.with_protocol(protocol).with_timeout(timeout).build().map_err(invalid)
}

fn grpc_exporter(endpoint: Option<&str>, timeout: Duration) -> Result<SpanExporter> {
    let mut builder = SpanExporter::builder().with_tonic();
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    builder.with_timeout(timeout).build().map_err(invalid)
}

/// The URL for traces at a collector: one without a path gets the usual one.
fn traces_url(endpoint: &str) -> String {
    let after_scheme = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let path = after_scheme.find('/').and_then(|at| after_scheme.get(at..)).unwrap_or_default();
    match path {
        "" | "/" => format!("{}{TRACES_PATH}", endpoint.trim_end_matches('/')),
        _ => endpoint.to_owned(),
    }
}

/// What is said about this process with its spans.
fn resource(version: &'static str) -> Resource {
    let version = KeyValue::new("service.version", version);
    let process = KeyValue::new("process.pid", i64::from(std::process::id()));
    let builder = || Resource::builder().with_attributes([version.clone(), process.clone()]);
    let resource = builder().build();
    let name = resource.get(&"service.name".into()).map(|name| name.to_string());
    if name.is_none_or(|name| name.starts_with("unknown_service")) {
        return builder().with_service_name(SERVICE).build();
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_without_a_path_get_that_of_traces() {
        for (endpoint, url) in [
            ("http://collector:4318", "http://collector:4318/v1/traces"),
            ("http://collector:4318/", "http://collector:4318/v1/traces"),
            ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
        ] {
            assert_eq!(traces_url(endpoint), url);
        }
    }
}
