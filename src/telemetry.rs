//! Traces: the sampler and the export of spans, as the configuration asks for them.

use std::time::Duration;

use crate::config::Config;
use tensorserve_core::engine::Engine;
use tensorserve_tensor::error::Result;
use tensorserve_trace::Observer;

#[cfg(feature = "traces")]
pub(crate) use self::otlp::SpanExport;

/// What decides which requests are recorded, and the export of their spans, if there is one.
///
/// # Errors
/// If the collector's configuration is not valid.
#[cfg(feature = "traces")]
pub(crate) fn start(config: &Config) -> Result<(Observer, Option<SpanExport>)> {
    let observation = &config.observation;
    let Some(traces) = &observation.traces else {
        return Ok((Observer::new(None, observation.access_log), None));
    };
    let export = SpanExport::start(traces)?;
    let tracing = Some((traces.sampler, export.sink()));
    Ok((Observer::new(tracing, observation.access_log), Some(export)))
}

#[cfg(not(feature = "traces"))]
pub(crate) fn start(config: &Config) -> Result<(Observer, Option<SpanExport>)> {
    Ok((Observer::new(None, config.observation.access_log), None))
}

/// There is none in this build.
#[cfg(not(feature = "traces"))]
pub(crate) enum SpanExport {}

#[cfg(not(feature = "traces"))]
impl SpanExport {
    pub(crate) fn count_in(&self, _engine: &Engine) {
        match *self {}
    }

    pub(crate) fn stop(&self, _time: Duration) {
        match *self {}
    }
}

#[cfg(feature = "traces")]
mod otlp {
    use std::sync::Arc;

    use super::{Duration, Engine, Result};
    use crate::certificates::trusted;
    use crate::config::TracesConfig;
    use tensorserve_telemetry::{CollectorConfig, OtlpProtocol, Telemetry};
    use tensorserve_trace::SpanSink;

    /// The export of spans.
    pub(crate) struct SpanExport(Arc<Telemetry>);

    impl SpanExport {
        pub(super) fn start(traces: &TracesConfig) -> Result<Self> {
            let protocol = match traces.over_grpc {
                true => OtlpProtocol::Grpc,
                false => OtlpProtocol::Http(trusted(traces.ca.as_deref())?),
            };
            let &TracesConfig { ref endpoint, queue, timeout, .. } = traces;
            let endpoint = endpoint.clone();
            let collector = CollectorConfig { endpoint, protocol, queue, timeout };
            Ok(SpanExport(Telemetry::start(&collector, env!("CARGO_PKG_VERSION"))?))
        }

        pub(super) fn sink(&self) -> Arc<dyn SpanSink> {
            Arc::clone(&self.0) as Arc<dyn SpanSink>
        }

        /// Counts spans in the server's metrics.
        pub(crate) fn count_in(&self, engine: &Engine) {
            let (telemetry, metrics) = (Arc::clone(&self.0), engine.metrics().clone());
            let number = |count| u64::try_from(count).unwrap_or(u64::MAX);
            engine.each_second(move || {
                let counts = telemetry.counts();
                metrics.set_trace_spans(&[
                    ("exported", number(counts.exported)),
                    ("failed", number(counts.failed)),
                    ("dropped", number(counts.dropped)),
                ]);
            });
        }

        /// Sends what waits, for at most `time`. Blocks.
        pub(crate) fn stop(&self, time: Duration) {
            self.0.stop(time);
        }
    }
}
