//! Counters of requests that were not answered because of the load.

use super::Metrics;
use super::families::{Families, PriorityLabels, ReasonLabels};
use tensorserve_tensor::error::{Error, Shed};
use tensorserve_tensor::priority::Priority;

/// Makes a counter for each reason, and one for each priority. They are there from the start, so that
/// rates are known from the first request.
pub(super) fn start(families: &Families) {
    for reason in Shed::ALL {
        let labels = ReasonLabels { reason: reason.name() };
        drop(families.shed_requests.get_or_create_owned(&labels));
    }
    for priority in Priority::ALL {
        let labels = PriorityLabels { priority: priority.name() };
        drop(families.priority_shed_requests.get_or_create_owned(&labels));
    }
}

impl Metrics {
    /// Counts the request that this error is the response to, if it was shed.
    pub fn count_shed(&self, error: &Error) {
        if let Some(reason) = error.shed() {
            let labels = ReasonLabels { reason: reason.name() };
            self.0.families.shed_requests.get_or_create(&labels).inc();
        }
    }

    /// Counts the inference that this error is the response to, also by priority, if it was shed.
    pub(crate) fn count_shed_inference(&self, error: &Error, priority: Priority) {
        self.count_shed(error);
        if error.shed().is_some() {
            let labels = PriorityLabels { priority: priority.name() };
            self.0.families.priority_shed_requests.get_or_create(&labels).inc();
        }
    }
}
