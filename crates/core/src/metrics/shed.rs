//! Counters of requests that were not answered because of the load.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Metrics;
use tensorserve_tensor::error::{Error, Shed};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShedLabels {
    reason: &'static str,
}

/// A counter for each reason.
pub(super) struct ShedMetrics(Family<ShedLabels, Counter>);

impl ShedMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let family = Family::default();
        let help = "Requests that were not answered because of the load, by reason";
        registry.register("shed_requests", help, family.clone());
        for reason in Shed::ALL {
            // Each is there from the start, so that its rate is known from its first request.
            drop(family.get_or_create_owned(&ShedLabels { reason: reason.name() }));
        }
        ShedMetrics(family)
    }
}

impl Metrics {
    /// Counts the request that this error is the response to, if it was shed.
    pub fn count_shed(&self, error: &Error) {
        if let Some(reason) = error.shed() {
            self.0.shed.0.get_or_create(&ShedLabels { reason: reason.name() }).inc();
        }
    }
}
