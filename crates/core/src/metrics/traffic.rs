//! Counters of shadow requests and of the response cache.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::metrics::counter::Counter;

use super::families::ModelResultLabels;
use super::{Metrics, clamped};

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
            let labels = ModelResultLabels { model: Arc::clone(model), result };
            self.0.families.shadow_requests.get_or_create_owned(&labels)
        };
        ShadowCounters(["same", "different", "failed", "dropped"].map(counter))
    }

    /// The counters of a model whose responses are cached.
    pub(crate) fn cache(&self, model: &Arc<str>) -> CacheCounters {
        let counter = |result| {
            let labels = ModelResultLabels { model: Arc::clone(model), result };
            self.0.families.response_cache_lookups.get_or_create_owned(&labels)
        };
        CacheCounters { hits: counter("hit"), misses: counter("miss") }
    }

    /// Sets the metrics of the response cache.
    pub(crate) fn set_cache(&self, reading: CacheReading) {
        let families = &self.0.families;
        families.response_cache_bytes.set(clamped(reading.bytes));
        families.response_cache_limit_bytes.set(clamped(reading.limit));
        families.response_cache_entries.set(clamped(reading.entries));
        families.response_cache_evictions.inner().store(reading.evictions, Relaxed);
    }
}
