//! Counters and gauges in the Prometheus registry that each request changes: threads have parts of their own.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};
use tensorserve_tensor::sharded::ShardedNumber;

/// A counter. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardedCounter(Arc<ShardedNumber>);

impl ShardedCounter {
    pub(super) fn inc(&self) {
        self.0.add(1);
    }
}

impl EncodeMetric for ShardedCounter {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), fmt::Error> {
        encoder.encode_counter::<NoLabelSet, _, u64>(&self.0.sum(), None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for ShardedCounter {
    const TYPE: MetricType = MetricType::Counter;
}

/// How many there are of something now. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardedGauge(Arc<ShardedNumber>);

impl ShardedGauge {
    pub(super) fn inc(&self) {
        self.0.add(1);
    }

    pub(super) fn dec(&self) {
        self.0.subtract(1);
    }

    pub(super) fn get(&self) -> i64 {
        self.0.sum().cast_signed()
    }
}

impl EncodeMetric for ShardedGauge {
    fn encode(&self, mut encoder: MetricEncoder) -> Result<(), fmt::Error> {
        encoder.encode_gauge(&self.get())
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for ShardedGauge {
    const TYPE: MetricType = MetricType::Gauge;
}
