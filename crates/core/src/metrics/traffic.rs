//! Counters of shadow requests and of the response cache.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Metrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    model: Arc<str>,
    result: &'static str,
}

/// The families of these counters.
#[derive(Default)]
pub(super) struct TrafficMetrics {
    shadow: Family<ResultLabels, Counter>,
    cache: Family<ResultLabels, Counter>,
    bytes: Gauge,
    limit: Gauge,
    entries: Gauge,
    evictions: Counter,
}

impl TrafficMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = TrafficMetrics::default();
        let help = "Requests that were also meant for a shadow version, by result";
        registry.register("shadow_requests", help, metrics.shadow.clone());
        let help = "Runs looked up in the response cache, by result";
        registry.register("response_cache_lookups", help, metrics.cache.clone());
        let help = "Memory of cached responses and the inputs they belong to";
        registry.register("response_cache_bytes", help, metrics.bytes.clone());
        let help = "The limit of it, response_cache_bytes";
        registry.register("response_cache_limit_bytes", help, metrics.limit.clone());
        registry.register("response_cache_entries", "Cached responses", metrics.entries.clone());
        let help = "Cached responses removed to make room for others";
        registry.register("response_cache_evictions", help, metrics.evictions.clone());
        metrics
    }
}

/// What became of a request that was also meant for a shadow version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShadowResult {
    /// Its outputs are those of the response.
    Same,
    /// Its outputs are not those of the response.
    Different,
    /// The shadow version could not run it.
    Failed,
    /// The request was not run on the shadow version, because others were not done.
    Dropped,
}

/// A model's counters of shadow requests. They are there from the start, so that rates are known from
/// the first request.
pub(crate) struct ShadowCounters([Counter; 4]);

impl ShadowCounters {
    /// Counts a request.
    pub(crate) fn count(&self, result: ShadowResult) {
        let [same, different, failed, dropped] = &self.0;
        let counter = match result {
            ShadowResult::Same => same,
            ShadowResult::Different => different,
            ShadowResult::Failed => failed,
            ShadowResult::Dropped => dropped,
        };
        counter.inc();
    }
}

/// A model's counters of lookups in the response cache.
pub(crate) struct CacheCounters {
    pub(crate) hits: Counter,
    pub(crate) misses: Counter,
}

/// The state of the response cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheReading {
    /// The memory of its entries.
    pub(crate) bytes: u64,
    /// The limit of it.
    pub(crate) limit: u64,
    /// The number of its entries.
    pub(crate) entries: u64,
    /// How many were removed for others.
    pub(crate) evictions: u64,
}

impl Metrics {
    /// The counters of a model that has a shadow version.
    pub(crate) fn shadow(&self, model: &Arc<str>) -> ShadowCounters {
        let counter = |result| {
            let labels = ResultLabels { model: Arc::clone(model), result };
            self.0.traffic.shadow.get_or_create_owned(&labels)
        };
        ShadowCounters(["same", "different", "failed", "dropped"].map(counter))
    }

    /// The counters of a model whose responses are cached.
    pub(crate) fn cache(&self, model: &Arc<str>) -> CacheCounters {
        let counter = |result| {
            let labels = ResultLabels { model: Arc::clone(model), result };
            self.0.traffic.cache.get_or_create_owned(&labels)
        };
        CacheCounters { hits: counter("hit"), misses: counter("miss") }
    }

    /// Sets the metrics of the response cache.
    pub(crate) fn set_cache(&self, reading: CacheReading) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let traffic = &self.0.traffic;
        traffic.bytes.set(gauge(reading.bytes));
        traffic.limit.set(gauge(reading.limit));
        traffic.entries.set(gauge(reading.entries));
        traffic.evictions.inner().store(reading.evictions, Relaxed);
    }
}
