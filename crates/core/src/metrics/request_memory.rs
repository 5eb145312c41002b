//! Metrics of the memory that requests use together.

use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use tensorserve_tensor::budget::MemoryBudget;

/// Metrics of the memory budget, which is read when the metrics are.
#[derive(Default)]
pub(super) struct RequestMemory {
    used: Gauge,
    limit: Gauge,
    refused: Counter,
}

impl RequestMemory {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = RequestMemory::default();
        registry.register(
            "request_memory_bytes",
            "Memory held by requests in flight: bodies, tensors and responses",
            metrics.used.clone(),
        );
        registry.register(
            "request_memory_limit_bytes",
            "The limit of it, max_request_memory",
            metrics.limit.clone(),
        );
        registry.register(
            "request_memory_refusals",
            "Reservations of memory that exceeded the limit",
            metrics.refused.clone(),
        );
        metrics
    }

    pub(super) fn set(&self, budget: &MemoryBudget) {
        self.used.set(i64::try_from(budget.used()).unwrap_or(i64::MAX));
        self.limit.set(i64::try_from(budget.limit()).unwrap_or(i64::MAX));
        self.refused.inner().store(budget.refused(), Relaxed);
    }
}
