//! Counts the spans that are sent and that are not.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry_otlp::SpanExporter as OtlpExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

/// How many spans were sent, and were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// The collector has taken them.
    pub exported: usize,
    /// The collector did not take them, or could not be reached.
    pub failed: usize,
    /// Too many waited for the collector.
    pub dropped: usize,
}

#[derive(Default)]
pub(super) struct ExportCounters {
    waiting: AtomicUsize,
    exported: AtomicUsize,
    failed: AtomicUsize,
    dropped: AtomicUsize,
    /// The last export failed, which has been logged.
    is_failing: AtomicBool,
}

impl ExportCounters {
    pub(super) fn read(&self) -> SpanCounts {
        SpanCounts {
            exported: self.exported.load(Relaxed),
            failed: self.failed.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
        }
    }

    /// Whether `spans` more may wait, of `most`. A trace is sent as a whole or not at all.
    pub(super) fn admit(&self, spans: usize, most: usize) -> bool {
        let waiting = self.waiting.fetch_add(spans, Relaxed);
        if waiting + spans <= most {
            return true;
        }
        self.waiting.fetch_sub(spans, Relaxed);
        self.dropped.fetch_add(spans, Relaxed);
        false
    }
}

/// An exporter whose spans are counted.
pub(super) struct CountedExporter {
    inner: OtlpExporter,
    counters: Arc<ExportCounters>,
}

impl CountedExporter {
    pub(super) fn new(inner: OtlpExporter, counters: Arc<ExportCounters>) -> Self {
        CountedExporter { inner, counters }
    }

    fn count(&self, spans: usize, outcome: &OTelSdkResult) {
        let counters = &self.counters;
        let Err(error) = outcome else {
            counters.exported.fetch_add(spans, Relaxed);
            if counters.is_failing.swap(false, Relaxed) {
                log::info!("the collector of traces takes spans again");
            }
            return;
        };
        counters.failed.fetch_add(spans, Relaxed);
        if !counters.is_failing.swap(true, Relaxed) {
            log::warn!(
                "spans cannot be sent to the collector, and are lost until they can: {error}"
            );
        }
    }
}

impl Debug for CountedExporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountedExporter").finish_non_exhaustive()
    }
}

impl SpanExporter for CountedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.counters.waiting.fetch_sub(spans, Relaxed);
        let outcome = self.inner.export(batch).await;
        self.count(spans, &outcome);
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_may_wait_are_dropped_whole() {
        let counters = ExportCounters::default();
        assert!(counters.admit(6, 10));
        assert!(!counters.admit(5, 10));
        assert!(counters.admit(4, 10));
        assert_eq!(counters.read().dropped, 5);
    }
}
