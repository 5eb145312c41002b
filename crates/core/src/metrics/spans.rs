//! Counters of the spans that go to a collector of traces.

use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Metrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SpanLabels {
    result: &'static str,
}

/// A counter for each result.
pub(super) struct SpanMetrics(Family<SpanLabels, Counter>);

impl SpanMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let family = Family::default();
        let help = "Spans that the collector of traces has taken (exported), that it has not (failed), \
                    and that were too many to wait for it (dropped)";
        registry.register("trace_spans", help, family.clone());
        SpanMetrics(family)
    }
}

impl Metrics {
    /// Sets how many spans had each result so far.
    pub fn set_trace_spans(&self, counts: &[(&'static str, u64)]) {
        for (result, count) in counts {
            let counter = self.0.spans.0.get_or_create_owned(&SpanLabels { result });
            counter.inner().store(*count, Relaxed);
        }
    }
}
