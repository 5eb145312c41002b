//! A histogram in the Prometheus registry, on top of counters without a lock.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::cell;

/// A histogram. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    cells: Arc<cell::AtomicHistogram>,
    /// How many counted units are one exported unit.
    per_unit: f64,
}

impl Histogram {
    pub(super) fn new(limits: &'static [f64], per_unit: f64) -> Self {
        Histogram { cells: Arc::new(cell::AtomicHistogram::new(limits)), per_unit }
    }

    pub(super) fn observe(&self, value: u64) {
        self.cells.observe(value);
    }

    /// The counts of the buckets, in the order of the limits, and the sum of all values.
    pub(super) fn counts(&self) -> (impl Iterator<Item = u64> + '_, u64) {
        self.cells.counts()
    }
}

impl EncodeMetric for Histogram {
    #[allow(clippy::cast_precision_loss)]
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), fmt::Error> {
        let (counts, sum) = self.cells.counts();
        let limits = self.cells.limits().iter().map(|limit| limit / self.per_unit);
        // The last bucket is for larger values.
        let buckets: Vec<(f64, u64)> = limits.chain([f64::INFINITY]).zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let no_exemplars: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;
        encoder.encode_histogram(sum as f64 / self.per_unit, count, &buckets, no_exemplars)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Histogram {
    const TYPE: MetricType = MetricType::Histogram;
}
