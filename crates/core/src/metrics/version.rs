//! The metrics of one loaded version: of its signatures and of their queues. Handles are created
//! once, so that a request needs no lookup.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::MetricConstructor;

use super::cell::{CODES, Outcomes};
use super::exporter::Observers;
use super::families::{
    Buckets, Histograms, ModelResultLabels, ROWS, RequestLabels, SECONDS, SignatureLabels,
    VersionLabels,
};
use super::histogram::Histogram;
use super::sharded::ShardedCounter;
use super::signals::{Observed, ObservedQueue, SignatureLoad};
use super::statistics::{MoreCounts, Statistics, Total};
use super::tally::{CounterReading, Tally};
use super::{Cells, Metrics, clamped, nanos};
use crate::entry::EntryPoint;
use tensorserve_tensor::error::Code;
use tensorserve_trace as trace;

/// The warm-up of a version on recorded requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmUpTiming {
    /// The number of recorded requests.
    pub records: u64,
    /// How long their runs took.
    pub time: Duration,
}

/// The metrics of one loaded model version.
pub struct VersionMetrics {
    signatures: Vec<SignatureMetrics>,
    /// Of requests that failed before their signature was known.
    unnamed: SignatureMetrics,
    warm_up: OnceLock<WarmUpTiming>,
    labels: VersionLabels,
    metrics: Metrics,
    observers: Observers,
}

impl VersionMetrics {
    pub(super) fn new(metrics: &Metrics, labels: VersionLabels, signatures: &[&str]) -> Self {
        let observers =
            Observers::of(&metrics.0.exporters, |exporter| exporter.model(&labels.model));
        let of = |signature: &str| SignatureMetrics::new(metrics, &labels, signature, &observers);
        let (signatures, unnamed) = (signatures.iter().map(|name| of(name)).collect(), of(""));
        let (warm_up, metrics) = (OnceLock::new(), metrics.clone());
        VersionMetrics { signatures, unnamed, warm_up, labels, metrics, observers }
    }

    /// Counts a request that failed after `time`, before its signature was known.
    pub fn failed(&self, entry: EntryPoint, code: Code, time: Duration) {
        self.unnamed.failed(entry, code, time);
    }

    /// Records that `records` recorded requests from the version's directory, `path`, were run to
    /// warm it up, and with which error code, if any.
    pub fn warmed_up(&self, path: &str, code: Option<Code>, time: Duration, records: u64) {
        let _ = self.warm_up.set(WarmUpTiming { records, time });
        for exporter in &self.metrics.0.exporters {
            exporter.warmed_up(path, code, time, records);
        }
    }

    /// What is counted of all its signatures, since it was loaded.
    pub(crate) fn reading(&self) -> CounterReading {
        let mut sum = self.unnamed.cells.read();
        self.signatures.iter().for_each(|signature| sum.add(&signature.cells.read()));
        sum
    }

    /// Its warm-up on recorded requests, if it has any.
    #[must_use]
    pub fn warm_up(&self) -> Option<WarmUpTiming> {
        self.warm_up.get().copied()
    }

    pub(super) fn observers(&self) -> &Observers {
        &self.observers
    }

    /// The metrics of signature number `index`.
    #[must_use]
    pub fn signature(&self, index: usize) -> Option<&SignatureMetrics> {
        self.signatures.get(index)
    }

    /// Records that the version was loaded in `time` from files of `bytes` bytes.
    pub fn loaded(&self, bytes: u64, time: Duration) {
        let labels = ModelResultLabels { model: Arc::clone(&self.labels.model), result: "ok" };
        let families = &self.metrics.0.families;
        families.loads.get_or_create(&labels).inc();
        families.load_duration_seconds.get_or_create(&self.labels).observe(nanos(time));
        families.model_bytes.get_or_create(&self.labels).set(clamped(bytes));
    }
}

impl Drop for VersionMetrics {
    fn drop(&mut self) {
        let mut versions = self.metrics.0.versions();
        if let Some(count) = versions.get_mut(&self.labels)
            && *count > 1
        {
            // Another copy of the version uses the same series.
            *count -= 1;
            self.signatures.iter_mut().for_each(|signature| signature.shared = true);
            self.unnamed.shared = true;
            return;
        }
        versions.remove(&self.labels);
        drop(versions);
        let families = &self.metrics.0.families;
        families.load_duration_seconds.remove(&self.labels);
        families.model_bytes.remove(&self.labels);
    }
}

/// The metrics of one signature of a loaded version.
pub struct SignatureMetrics {
    metrics: Metrics,
    labels: SignatureLabels,
    queue: QueueMetrics,
    cells: Arc<SignatureCells>,
    /// Whether another copy of the version keeps using the series.
    shared: bool,
    observers: Observers,
}

#[derive(Clone)]
struct RequestMetrics {
    count: ShardedCounter,
    latency: Histogram,
}

impl RequestMetrics {
    fn record(&self, time: Duration) {
        self.count.inc();
        self.latency.observe(nanos(time));
        if let Some(trace) = trace::recording() {
            self.latency.exemplify(nanos(time), trace.context().trace);
        }
    }
}

/// Entry points for which a signature keeps handles.
const ENTRY_POINTS: usize = 32;

/// Handles for each entry point that was used, so that a request needs no lookup by name.
#[derive(Default)]
struct EntryPointMetrics {
    /// Filled from the front: the few protocols that clients use are found first.
    slots: [OnceLock<(EntryPoint, RequestMetrics)>; ENTRY_POINTS],
}

impl EntryPointMetrics {
    /// Counts a request of `entry`. `make` creates its handles if there are none yet.
    fn record(&self, entry: EntryPoint, time: Duration, make: impl Fn() -> RequestMetrics) {
        for slot in &self.slots {
            let (known, metrics) = slot.get_or_init(|| (entry, make()));
            if *known == entry {
                return metrics.record(time);
            }
        }
        // There are more entry points than slots: look the handles up.
        make().record(time);
    }

    fn all(&self) -> impl Iterator<Item = &RequestMetrics> {
        self.slots.iter().filter_map(|slot| Some(&slot.get()?.1))
    }
}

/// The counts of which the metrics of other servers are computed.
#[derive(Clone, Default)]
pub(super) struct AliasCounts {
    pub(super) statistics: Statistics,
    /// By the numbers of their codes.
    pub(super) failures: [u64; CODES],
    /// Requests that wait.
    pub(super) waiting: usize,
}

impl AliasCounts {
    pub(super) fn add(&mut self, other: &AliasCounts) {
        self.statistics = self.statistics.plus(other.statistics);
        add(&mut self.failures, other.failures.into_iter());
        self.waiting += other.waiting;
    }
}

/// The counters of a signature. If its version is in memory twice, both copies use them. Requests that failed before
/// their signature was known have some without its name, and those that named no version that is served some without
/// its number.
pub(super) struct SignatureCells {
    labels: SignatureLabels,
    version: Option<i64>,
    /// Handles for requests that succeeded, which are nearly all requests.
    ok: EntryPointMetrics,
    /// Requests that failed.
    failures: Outcomes,
    /// Series to remove when the version is unloaded.
    series: Mutex<HashSet<RequestLabels>>,
    waited: Histogram,
    run: Histogram,
    rows: Histogram,
    more: MoreCounts,
    observed: Arc<Observed>,
    /// The counters when the history was last written.
    written: Mutex<CounterReading>,
}

impl SignatureCells {
    fn new(metrics: &Metrics, labels: &SignatureLabels) -> Self {
        let families = &metrics.0.families;
        // Nothing runs without a signature: series that stay empty would say nothing.
        let runs = !labels.signature.is_empty();
        let histogram = |family: &Histograms<SignatureLabels>, buckets: Buckets| match runs {
            true => family.get_or_create_owned(labels),
            false => buckets.new_metric(),
        };
        SignatureCells {
            labels: labels.clone(),
            version: labels.version.parse().ok(),
            ok: EntryPointMetrics::default(),
            failures: Outcomes::default(),
            series: Mutex::default(),
            waited: histogram(&families.queue_duration_seconds, SECONDS),
            run: histogram(&families.run_duration_seconds, SECONDS),
            rows: histogram(&families.batch_rows, ROWS),
            more: MoreCounts::default(),
            observed: Arc::default(),
            written: Mutex::default(),
        }
    }

    /// The name of its model.
    pub(super) fn model(&self) -> &Arc<str> {
        &self.labels.model
    }

    /// The number of its version.
    pub(super) fn version(&self) -> Option<i64> {
        self.version
    }

    /// Counts a request that failed after `time`.
    pub(super) fn failed(&self, metrics: &Metrics, entry: EntryPoint, code: Code, time: Duration) {
        self.failures.count(Some(code));
        self.more.failed(time);
        self.request(metrics, entry, code.name()).record(time);
    }

    fn request(&self, metrics: &Metrics, entry: EntryPoint, code: &'static str) -> RequestMetrics {
        let labels = RequestLabels {
            model: Arc::clone(&self.labels.model),
            version: Arc::clone(&self.labels.version),
            signature: Arc::clone(&self.labels.signature),
            protocol: entry.protocol,
            method: entry.method.name(),
            code,
        };
        let families = &metrics.0.families;
        let metrics = RequestMetrics {
            count: families.requests.get_or_create_owned(&labels),
            latency: families.request_duration_seconds.get_or_create_owned(&labels),
        };
        self.series().insert(labels);
        metrics
    }

    fn series(&self) -> MutexGuard<'_, HashSet<RequestLabels>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what a page of metrics has of it.
    fn remove_series(&self, metrics: &Metrics) {
        let families = &metrics.0.families;
        for labels in self.series().iter() {
            families.requests.remove(labels);
            families.request_duration_seconds.remove(labels);
        }
        families.queue_duration_seconds.remove(&self.labels);
        families.run_duration_seconds.remove(&self.labels);
        families.batch_rows.remove(&self.labels);
    }

    /// The counts since the last call.
    pub(super) fn since_last(&self) -> Tally {
        self.observed.note();
        let now = self.read();
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = now.since(&written);
        *written = now;
        tally
    }

    fn statistics(&self) -> Statistics {
        let total = |histogram: &Histogram| {
            let (counts, nanoseconds) = histogram.counts();
            Total { count: counts.sum(), nanoseconds }
        };
        let succeeded = self.ok.all().map(|metrics| total(&metrics.latency));
        Statistics {
            succeeded: succeeded.fold(Total::default(), Total::plus),
            failed: Total {
                count: self.failures.counts().iter().sum(),
                nanoseconds: self.more.failed_nanoseconds(),
            },
            queued: total(&self.waited),
            runs: total(&self.run),
            rows: self.rows.counts().1,
            last_success: self.more.last_success(),
        }
    }

    fn read(&self) -> CounterReading {
        let mut reading =
            CounterReading { errors: self.failures.counts(), ..CounterReading::default() };
        for metrics in self.ok.all() {
            add(&mut reading.latency, metrics.latency.counts().0);
        }
        let (rows, row_sum) = self.rows.counts();
        add(&mut reading.rows, rows);
        reading.row_sum = row_sum;
        reading.waited = self.waited.counts().1;
        reading.run = self.run.counts().1;
        reading
    }
}

fn add(to: &mut [u64], more: impl Iterator<Item = u64>) {
    for (to, more) in to.iter_mut().zip(more) {
        *to += more;
    }
}

impl Metrics {
    fn cells(&self) -> MutexGuard<'_, Cells> {
        self.0.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters of every signature that is in memory.
    fn live_cells(&self) -> Vec<(SignatureLabels, Arc<SignatureCells>)> {
        let cells = self.cells();
        cells.live.iter().map(|(labels, cells)| (labels.clone(), Arc::clone(cells))).collect()
    }

    /// The load of every signature that is in memory.
    pub(super) fn signature_loads(&self) -> Vec<(SignatureLabels, SignatureLoad)> {
        // Only signatures have a load.
        let live = self.live_cells().into_iter().filter(|(labels, _)| !labels.signature.is_empty());
        live.map(|(labels, cells)| (labels, cells.observed.load())).collect()
    }

    /// The counters of requests for `model` that name no version that is served.
    pub(super) fn unserved(&self, model: &Arc<str>) -> Arc<SignatureCells> {
        let labels = SignatureLabels { model: Arc::clone(model), ..SignatureLabels::default() };
        let mut all = self.cells();
        let cells = all.live.entry(labels.clone());
        Arc::clone(cells.or_insert_with(|| Arc::new(SignatureCells::new(self, &labels))))
    }

    /// The models that have such counters.
    pub(super) fn unserved_models(&self) -> Vec<Arc<str>> {
        let cells = self.cells();
        let unserved = cells.live.keys().filter(|labels| labels.version.is_empty());
        unserved.map(|labels| Arc::clone(&labels.model)).collect()
    }

    /// Removes such counters of a model that is no more.
    pub(super) fn forget_unserved(&self, model: &Arc<str>) {
        let labels = SignatureLabels { model: Arc::clone(model), ..SignatureLabels::default() };
        let mut all = self.cells();
        if let Some(cells) = all.live.remove(&labels) {
            all.ended.push(Arc::clone(&cells));
            drop(all);
            cells.remove_series(self);
        }
    }

    /// The counts of every version that is in memory, by parts, with its labels.
    pub(super) fn alias_counts(&self) -> impl Iterator<Item = (VersionLabels, AliasCounts)> {
        let versions = self.live_cells().into_iter().filter(|(_, cells)| cells.version.is_some());
        versions.map(|(SignatureLabels { model, version, .. }, cells)| {
            let counts = AliasCounts {
                statistics: cells.statistics(),
                failures: cells.failures.counts(),
                waiting: cells.observed.load().queues.waiting,
            };
            (VersionLabels { model, version }, counts)
        })
    }

    /// The counters of every signature, and whether it is in memory. Those that are not are
    /// removed.
    pub(super) fn take_cells(&self) -> Vec<(Arc<SignatureCells>, bool)> {
        let mut cells = self.cells();
        let ended = std::mem::take(&mut cells.ended);
        let live = cells.live.values().map(|cells| (Arc::clone(cells), true));
        live.chain(ended.into_iter().map(|cells| (cells, false))).collect()
    }
}

impl SignatureMetrics {
    fn new(
        metrics: &Metrics,
        version: &VersionLabels,
        signature: &str,
        observers: &Observers,
    ) -> Self {
        let labels = SignatureLabels {
            model: Arc::clone(&version.model),
            version: Arc::clone(&version.version),
            signature: signature.into(),
        };
        let name = format!("{} version {}, {signature}", version.model, version.version);
        let mut all = metrics.cells();
        let cells = all.live.entry(labels.clone());
        let cells = cells.or_insert_with(|| Arc::new(SignatureCells::new(metrics, &labels)));
        let cells = Arc::clone(cells);
        drop(all);
        SignatureMetrics {
            queue: QueueMetrics {
                name: name.into(),
                waited: cells.waited.clone(),
                run: cells.run.clone(),
                rows: cells.rows.clone(),
                panics: metrics.0.families.panics.clone(),
                observed: Arc::clone(&cells.observed),
                observers: observers.clone(),
            },
            metrics: metrics.clone(),
            labels,
            cells,
            shared: false,
            observers: observers.clone(),
        }
    }

    /// The metrics of the signature's queue.
    #[must_use]
    pub fn queue(&self) -> QueueMetrics {
        self.queue.clone()
    }

    /// Counts a request that succeeded after `time`. `runtime` is the time of its runs and their
    /// queue delay.
    pub fn succeeded(&self, entry: EntryPoint, time: Duration, runtime: Option<Duration>) {
        self.observers.each(|observer| observer.succeeded(entry, time, runtime));
        self.cells.ok.record(entry, time, || self.cells.request(&self.metrics, entry, "OK"));
        self.cells.more.succeeded();
    }

    /// Counts a request that failed after `time`.
    pub fn failed(&self, entry: EntryPoint, code: Code, time: Duration) {
        self.observers.each(|observer| observer.failed(entry, code));
        self.cells.failed(&self.metrics, entry, code, time);
    }

    /// The totals since the version was loaded.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.cells.statistics()
    }

    /// Counts the examples of a request for several inferences.
    pub fn examples(&self, count: usize) {
        self.observers.each(|observer| observer.examples(count));
    }
}

impl Drop for SignatureMetrics {
    fn drop(&mut self) {
        if self.shared {
            return;
        }
        let mut all = self.metrics.cells();
        if let Some(cells) = all.live.remove(&self.labels) {
            all.ended.push(cells);
        }
        drop(all);
        self.cells.remove_series(&self.metrics);
    }
}

/// The metrics of a batch queue.
#[derive(Clone)]
pub struct QueueMetrics {
    name: Arc<str>,
    waited: Histogram,
    run: Histogram,
    rows: Histogram,
    panics: Counter,
    observed: Arc<Observed>,
    observers: Observers,
}

impl QueueMetrics {
    /// Metrics without a registry, for a queue outside a server.
    #[must_use]
    pub fn unregistered(name: &str) -> Self {
        QueueMetrics {
            name: name.into(),
            waited: SECONDS.new_metric(),
            run: SECONDS.new_metric(),
            rows: ROWS.new_metric(),
            panics: Counter::default(),
            observed: Arc::default(),
            observers: Observers::default(),
        }
    }

    /// The queue's name for the log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the load of a queue with the metrics, for as long as it exists.
    pub fn observe(&self, queue: Weak<dyn ObservedQueue>) {
        self.observed.add(queue);
    }

    /// A run began. It must end.
    pub fn begins(&self, at: Instant) {
        self.observed.activity.begin(at);
    }

    /// The run ended, or failed.
    pub fn ends(&self, at: Instant) {
        self.observed.activity.end(at);
    }

    /// A request of this many rows arrived; 0 if it cannot be batched.
    pub fn asked(&self, rows: usize) {
        self.observers.each(|observer| observer.enqueued(rows.max(1)));
    }

    /// This many rows of padding filled a batch up to `size`.
    pub fn padded(&self, rows: usize, size: usize) {
        self.observers.each(|observer| observer.padded(rows, size));
    }

    /// A request waited this long for its batch.
    pub fn waited(&self, time: Duration) {
        self.observers.each(|observer| observer.dequeued(time));
        self.waited.observe(nanos(time));
    }

    /// A batch panicked.
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// A batch of this many rows ran for this long.
    pub fn ran(&self, rows: usize, time: Duration) {
        self.observers.each(|observer| observer.ran(rows, time));
        self.rows.observe(rows as u64);
        self.run.observe(nanos(time));
    }
}
