//! Counters of requests that were not answered because of the load.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Metrics;
use tensorserve_tensor::error::{Error, Shed};
use tensorserve_tensor::priority::Priority;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ShedLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PriorityLabels {
    pub(super) priority: &'static str,
}

/// A counter for each reason, and one for each priority.
pub(super) struct ShedMetrics {
    reasons: Family<ShedLabels, Counter>,
    priorities: Family<PriorityLabels, Counter>,
}

impl ShedMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let reasons = Family::default();
        let help = "Requests that were not answered because of the load, by reason";
        registry.register("shed_requests", help, reasons.clone());
        for reason in Shed::ALL {
            // Each is there from the start, so that its rate is known from its first request.
            drop(reasons.get_or_create_owned(&ShedLabels { reason: reason.name() }));
        }
        let priorities = Family::default();
        let help = "Inferences that were not answered because of the load, by priority";
        registry.register("priority_shed_requests", help, priorities.clone());
        for priority in Priority::ALL {
            let labels = PriorityLabels { priority: priority.name() };
            drop(priorities.get_or_create_owned(&labels));
        }
        ShedMetrics { reasons, priorities }
    }
}

impl Metrics {
    /// Counts the request that this error is the response to, if it was shed.
    pub fn count_shed(&self, error: &Error) {
        if let Some(reason) = error.shed() {
            self.0.shed.reasons.get_or_create(&ShedLabels { reason: reason.name() }).inc();
        }
    }

    /// Counts the inference that this error is the response to, also by priority, if it was shed.
    pub(crate) fn count_shed_inference(&self, error: &Error, priority: Priority) {
        self.count_shed(error);
        if error.shed().is_some() {
            let labels = PriorityLabels { priority: priority.name() };
            self.0.shed.priorities.get_or_create(&labels).inc();
        }
    }
}
