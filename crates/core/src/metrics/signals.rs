//! The load at one moment, for autoscalers: what runs and waits, how busy it is, and how much of the
//! server's capacity is in use. All of it is computed when the metrics are read.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;

use super::Metrics;
use super::activity::{Activity, RecentActivity};
use super::families::{PriorityLabels, SignatureLabels};
use tensorserve_tensor::priority::Priority;

/// The requests of a batch queue at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueLoad {
    /// Requests that wait or run.
    pub present: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// How many of those have each priority.
    pub priorities: PriorityCounts,
    /// How long the oldest of those has waited.
    pub oldest: Duration,
    /// The rows of those, as a share of what the queue holds before it refuses requests.
    pub fill: f64,
}

/// How many requests have each priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PriorityCounts {
    high: usize,
    normal: usize,
    low: usize,
}

impl PriorityCounts {
    /// Counts `more` requests of this priority.
    pub fn add(&mut self, priority: Priority, more: usize) {
        match priority {
            Priority::High => self.high += more,
            Priority::Normal => self.normal += more,
            Priority::Low => self.low += more,
        }
    }

    /// The number of requests of this priority.
    #[must_use]
    pub fn of(&self, priority: Priority) -> usize {
        match priority {
            Priority::High => self.high,
            Priority::Normal => self.normal,
            Priority::Low => self.low,
        }
    }

    /// Counts the requests of `others`, too.
    pub fn add_all(&mut self, others: &Self) {
        for priority in Priority::ALL {
            self.add(priority, others.of(priority));
        }
    }
}

/// A batch queue whose load is read with the metrics.
pub trait ObservedQueue: Send + Sync {
    /// Its load.
    fn load(&self, now: Instant) -> QueueLoad;
}

/// What the queues of a signature share: a queue is replaced when its parameters change, and a version
/// may be in memory twice.
#[derive(Default)]
pub(super) struct Observed {
    pub(super) activity: Activity,
    recent: Mutex<RecentActivity>,
    queues: Mutex<Vec<Weak<dyn ObservedQueue>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Observed {
    pub(super) fn add(&self, queue: Weak<dyn ObservedQueue>) {
        let mut queues = lock(&self.queues);
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(queue);
    }

    /// Remembers how busy it is. Called once a second.
    pub(super) fn note(&self) {
        lock(&self.recent).note(Instant::now(), self.activity.time());
    }

    /// The load of all queues together.
    pub(super) fn load(&self) -> SignatureLoad {
        let now = Instant::now();
        let run_seconds = lock(&self.recent).per_second(now, self.activity.time());
        let mut sum = QueueLoad::default();
        for queue in lock(&self.queues).iter().filter_map(Weak::upgrade) {
            let load = queue.load(now);
            sum.present += load.present;
            sum.waiting += load.waiting;
            sum.priorities.add_all(&load.priorities);
            sum.oldest = sum.oldest.max(load.oldest);
            sum.fill = sum.fill.max(load.fill);
        }
        SignatureLoad { queues: sum, run_seconds }
    }
}

/// The load of a signature.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SignatureLoad {
    pub(super) queues: QueueLoad,
    /// Seconds of runs per second.
    run_seconds: f64,
}

/// What the server has and uses besides its queues.
pub(crate) struct ServerCapacity {
    /// Batch threads.
    pub(crate) batch_threads: usize,
    /// Processor cores.
    pub(crate) cores: usize,
    /// Memory of requests: what is used, and its limit.
    pub(crate) request_memory: (usize, usize),
    /// How many versions of each model are in each state.
    pub(crate) versions: Vec<(Arc<str>, &'static str, usize)>,
}

/// What there is to write at one moment.
#[derive(Debug, Default)]
struct Readings {
    signatures: Vec<(SignatureLabels, SignatureLoad)>,
    batch_threads: usize,
    /// The share of each resource that is in use.
    utilization: [(&'static str, f64); 4],
    versions: Vec<(VersionStateLabels, f64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VersionStateLabels {
    model: Arc<str>,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabels {
    resource: &'static str,
}

/// The latest readings. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Signals(Arc<Mutex<Readings>>);

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signals")
    }
}

impl Metrics {
    /// Reads the load of all signatures and of the server.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn read_signals(&self, capacity: &ServerCapacity) {
        let mut signatures = self.signature_loads();
        signatures.sort_by(|(a, _), (b, _)| a.cmp(b));
        let threads = capacity.batch_threads.max(1) as f64;
        let run_seconds: f64 = signatures.iter().map(|(_, load)| load.run_seconds).sum();
        let fill = signatures.iter().map(|(_, load)| load.queues.fill).fold(0.0, f64::max);
        let (used, limit) = capacity.request_memory;
        let cores = capacity.cores.max(1) as f64;
        let utilization = [
            ("batch_threads", run_seconds / threads),
            ("cpu", self.recent_cpu_percent() / 100.0 / cores),
            ("queue", fill),
            ("request_memory", used as f64 / limit.max(1) as f64),
        ];
        let versions = capacity.versions.iter().map(|(model, state, count)| {
            (VersionStateLabels { model: Arc::clone(model), state }, *count as f64)
        });
        let versions = versions.collect();
        let batch_threads = capacity.batch_threads;
        *lock(&self.0.signals.0) = Readings { signatures, batch_threads, utilization, versions };
    }
}

/// The load of a server, as the metrics have it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadReport {
    /// The share of the processor cores that is in use, over the last 15 seconds.
    pub cpu: f64,
    /// The share of the memory of requests.
    pub request_memory: f64,
    /// `tensorserve_saturation`: 1 if the server has no capacity left.
    pub saturation: f64,
    /// Requests per second, over the last seconds.
    pub requests_per_second: f64,
    /// Failed requests per second.
    pub errors_per_second: f64,
    /// Requests that wait for their batch.
    pub queued: usize,
}

impl Metrics {
    /// The share of each resource that was in use when it was last read.
    pub(crate) fn utilization(&self) -> [(&'static str, f64); 4] {
        lock(&self.0.signals.0).utilization
    }

    /// The load when it was last read.
    pub(crate) fn load_report(&self) -> LoadReport {
        let rates = self.rates();
        let readings = lock(&self.0.signals.0);
        let share = |name: &str| {
            let found = readings.utilization.iter().find(|(resource, _)| *resource == name);
            found.map_or(0.0, |(_, share)| *share)
        };
        LoadReport {
            cpu: share("cpu"),
            request_memory: share("request_memory"),
            saturation: readings.saturation(),
            requests_per_second: rates.requests_per_second,
            errors_per_second: rates.errors_per_second,
            queued: readings.signatures.iter().map(|(_, load)| load.queues.waiting).sum(),
        }
    }
}

impl Readings {
    /// A value of every signature.
    fn each(&self, value: impl Fn(&SignatureLoad) -> f64) -> Vec<(SignatureLabels, f64)> {
        self.signatures.iter().map(|(labels, load)| (labels.clone(), value(load))).collect()
    }

    /// A value of the server, unless nothing was read yet.
    fn of_server<T>(&self, value: impl Fn(&Self) -> T) -> Option<T> {
        (self.batch_threads > 0).then(|| value(self))
    }

    /// The largest share of a resource that is in use.
    fn saturation(&self) -> f64 {
        self.utilization.iter().map(|(_, share)| *share).fold(0.0, f64::max)
    }
}

type EncodeResult = Result<(), fmt::Error>;

/// A gauge that is computed from the readings when the page is written.
trait Signal: Sync {
    fn encode(&self, readings: &Readings, encoder: &mut DescriptorEncoder<'_>) -> EncodeResult;
}

/// A gauge without labels. The page does not have it while it has no value.
struct Gauge {
    name: &'static str,
    help: &'static str,
    value: fn(&Readings) -> Option<f64>,
}

impl Signal for Gauge {
    fn encode(&self, readings: &Readings, encoder: &mut DescriptorEncoder<'_>) -> EncodeResult {
        let Some(value) = (self.value)(readings) else {
            return Ok(());
        };
        let kind = MetricType::Gauge;
        encoder.encode_descriptor(self.name, self.help, None, kind)?.encode_gauge(&value)
    }
}

/// A gauge with a series for each of several labels. The page does not have it while there are none.
struct Gauges<L: 'static> {
    name: &'static str,
    help: &'static str,
    series: fn(&Readings) -> Vec<(L, f64)>,
}

impl<L: EncodeLabelSet> Signal for Gauges<L> {
    fn encode(&self, readings: &Readings, encoder: &mut DescriptorEncoder<'_>) -> EncodeResult {
        let series = (self.series)(readings);
        if series.is_empty() {
            return Ok(());
        }
        let kind = MetricType::Gauge;
        let mut metric = encoder.encode_descriptor(self.name, self.help, None, kind)?;
        for (labels, value) in &series {
            metric.encode_family(labels)?.encode_gauge(value)?;
        }
        Ok(())
    }
}

/// All of them, in the order of the page.
#[allow(clippy::cast_precision_loss)]
static SIGNALS: &[&dyn Signal] = &[
    &Gauges::<SignatureLabels> {
        name: "requests_running",
        help: "Requests whose batch runs.",
        series: |readings| {
            readings.each(|load| load.queues.present.saturating_sub(load.queues.waiting) as f64)
        },
    },
    &Gauges::<SignatureLabels> {
        name: "requests_queued",
        help: "Requests that wait for their batch.",
        series: |readings| readings.each(|load| load.queues.waiting as f64),
    },
    &Gauges::<SignatureLabels> {
        name: "oldest_queued_seconds",
        help: "How long the oldest of those has waited.",
        series: |readings| readings.each(|load| load.queues.oldest.as_secs_f64()),
    },
    &Gauges::<SignatureLabels> {
        name: "queue_fill_ratio",
        help: "Rows that wait, as a share of those at which requests are refused.",
        series: |readings| readings.each(|load| load.queues.fill),
    },
    &Gauges::<SignatureLabels> {
        name: "busy_ratio",
        help: "Run time per second and batch thread in the last 15 seconds.",
        series: |readings| {
            let threads = readings.batch_threads.max(1) as f64;
            readings.each(|load| load.run_seconds / threads)
        },
    },
    &Gauges::<PriorityLabels> {
        name: "priority_requests_queued",
        help: "Requests of all models that wait for their batch, by priority.",
        series: |readings| {
            let mut waiting = PriorityCounts::default();
            for (_, load) in &readings.signatures {
                waiting.add_all(&load.queues.priorities);
            }
            let of = |priority: Priority| {
                (PriorityLabels { priority: priority.name() }, waiting.of(priority) as f64)
            };
            Priority::ALL.map(of).into()
        },
    },
    &Gauge {
        name: "batch_threads",
        help: "Threads for runs, num_batch_threads.",
        value: |readings| readings.of_server(|readings| readings.batch_threads as f64),
    },
    &Gauges::<ResourceLabels> {
        name: "utilization_ratio",
        help: "Share of a resource of the server that is in use.",
        series: |readings| {
            let of = |(resource, share)| (ResourceLabels { resource }, share);
            readings.of_server(|readings| readings.utilization.map(of).into()).unwrap_or_default()
        },
    },
    &Gauge {
        name: "saturation",
        help: "The largest utilization_ratio: at 1 the server has no capacity left.",
        value: |readings| readings.of_server(Readings::saturation),
    },
    &Gauges::<VersionStateLabels> {
        name: "model_versions",
        help: "Versions of a model, by the state in their lifecycle.",
        series: |readings| readings.versions.clone(),
    },
];

impl Collector for Signals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> EncodeResult {
        let readings = lock(&self.0);
        SIGNALS.iter().try_for_each(|signal| signal.encode(&readings, &mut encoder))
    }
}
