//! A histogram in the Prometheus registry, on top of counters without a lock.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::cell;
use super::exemplars::Exemplars;
use tensorserve_trace::TraceId;

/// A histogram. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    cells: Arc<cell::AtomicHistogram>,
    /// How many counted units are one exported unit.
    per_unit: f64,
    exemplars: Arc<Exemplars>,
}

impl Histogram {
    pub(super) fn new(limits: &'static [f64], per_unit: f64) -> Self {
        let cells = Arc::new(cell::AtomicHistogram::new(limits));
        Histogram { cells, per_unit, exemplars: Arc::default() }
    }

    pub(super) fn observe(&self, value: u64) {
        self.cells.observe(value);
    }

    /// Makes the trace of an observed value the exemplar of its bucket.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn exemplify(&self, value: u64, trace: TraceId) {
        let bucket = self.cells.bucket(value);
        let buckets = self.cells.limits().len() + 1;
        self.exemplars.set(bucket, buckets, value as f64 / self.per_unit, trace);
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
        self.exemplars.tell(buckets.len());
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
