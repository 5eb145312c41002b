//! TensorFlow Serving's metrics under their own names, for existing dashboards and alerts.
//!
//! As in the reference, they are per model and not per version. They remain when the model is
//! unloaded, because a counter must not decrease. A request costs a few atomic additions; names and
//! labels are formatted only when the page is requested. Requests for unknown models are counted
//! under the empty name.
//!
//! Sources: `servables/tensorflow/{util,saved_model_warmup_util}.cc`,
//! `batching/batching_session.cc` of github.com/tensorflow/serving; `core/framework/metrics.cc`,
//! `cc/saved_model/loader.cc` of github.com/tensorflow/tensorflow.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use self::text::MetricsPage;
use super::{GRPC, REST};
use tensorserve_core::engine::{EntryPoint, Method};
use tensorserve_core::metrics::cell::{
    AtomicHistogram, HistogramReading, Outcomes, exponential, show,
};
use tensorserve_core::metrics::{MetricsExporter, ModelObserver};
use tensorserve_tensor::error::Code;

mod text;

/// The content type of the page.
pub(super) const CONTENT_TYPE: &str = "text/plain";

/// Bucket limits of requests, runs and warm-ups in microseconds: up to about 20 minutes.
static MICROS: [f64; 33] = exponential(10.0, 1.8);
/// Bucket limits of queue delays in microseconds: up to about a second.
static QUEUE_MICROS: [f64; 52] = exponential(100.0, 1.2);
/// Bucket limits of graph runs in microseconds.
static GRAPH_MICROS: [f64; 20] = exponential(1000.0, 2.0);
static EXAMPLES: [f64; 15] = exponential(1.0, 2.0);

/// The values of the labels `API` and `entrypoint` of `request_latency`.
const CALLS: [(&str, &str); 7] = [
    ("predict", "REST"),
    ("classify", "REST"),
    ("regress", "REST"),
    ("Predict", "GRPC"),
    ("Classify", "GRPC"),
    ("Regress", "GRPC"),
    ("", "REST"),
];

/// The last of them: a request for a model's status or metadata.
const LOOK: usize = 6;

/// The values of the label `API` of `runtime_latency`.
const RUNS: [&str; 3] = ["Predict", "Classify", "Regress"];

/// The indices of an entry point in [`CALLS`] and in [`RUNS`]. Of multi-inference calls only the
/// examples are counted; other protocols do not belong to the reference.
fn place(entry: EntryPoint) -> Option<(usize, usize)> {
    let run = match entry.method {
        Method::Predict => 0,
        Method::Classify => 1,
        Method::Regress => 2,
        Method::MultiInference => return None,
    };
    match entry.protocol {
        REST => Some((run, run)),
        GRPC => Some((run + 3, run)),
        _ => None,
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A histogram that is allocated on first use: few models use every entry point.
type LazyHistogram = OnceLock<AtomicHistogram>;

/// The metrics of one model.
#[derive(Default)]
struct ModelCells {
    /// Successful calls, by index in [`CALLS`].
    latency: [LazyHistogram; CALLS.len()],
    /// By index in [`RUNS`].
    runtime: [LazyHistogram; RUNS.len()],
    /// Calls that failed.
    failures: Outcomes,
    examples: LazyHistogram,
    logged: Outcomes,
    queue: LazyHistogram,
    runs: LazyHistogram,
    sizes: Arc<BatchSizes>,
}

/// Rows of the last request and batch of any model.
#[derive(Default)]
struct BatchSizes {
    enqueued: AtomicU64,
    run: AtomicU64,
    /// The padding of the last batch, by batch size.
    padding: Mutex<BTreeMap<usize, u64>>,
}

impl ModelObserver for ModelCells {
    fn succeeded(&self, entry: EntryPoint, time: Duration, runtime: Option<Duration>) {
        let Some((call, run)) = place(entry) else {
            return;
        };
        self.answered(call, time);
        if let (Some(slot), Some(time)) = (self.runtime.get(run), runtime) {
            slot.get_or_init(|| AtomicHistogram::new(&MICROS)).observe(micros(time));
        }
    }

    fn failed(&self, entry: EntryPoint, code: Code) {
        if place(entry).is_some() {
            self.failures.count(Some(code));
        }
    }

    fn examples(&self, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.examples.get_or_init(|| AtomicHistogram::new(&EXAMPLES)).observe(count);
    }

    fn logged(&self, code: Option<Code>) {
        self.logged.count(code);
    }

    fn enqueued(&self, rows: usize) {
        show(&self.sizes.enqueued, rows as u64);
    }

    fn dequeued(&self, delay: Duration) {
        self.queue.get_or_init(|| AtomicHistogram::new(&QUEUE_MICROS)).observe(micros(delay));
    }

    fn ran(&self, rows: usize, time: Duration) {
        show(&self.sizes.run, rows as u64);
        self.runs.get_or_init(|| AtomicHistogram::new(&GRAPH_MICROS)).observe(micros(time));
    }

    fn padded(&self, rows: usize, size: usize) {
        lock(&self.sizes.padding).insert(size, rows as u64);
    }
}

impl ModelCells {
    fn answered(&self, call: usize, time: Duration) {
        if let Some(slot) = self.latency.get(call) {
            slot.get_or_init(|| AtomicHistogram::new(&MICROS)).observe(micros(time));
        }
    }

    fn described(&self, code: Option<Code>, time: Duration) {
        match code {
            None => self.answered(LOOK, time),
            Some(code) => self.failures.count(Some(code)),
        }
    }

    /// Requests by status.
    fn requests(&self) -> Vec<(&'static str, u64)> {
        let well = self.latency.iter().filter_map(OnceLock::get);
        let well: u64 = well.map(|histogram| histogram.read().count()).sum();
        let well = (well > 0).then_some(("OK", well));
        well.into_iter().chain(self.failures.read()).collect()
    }
}

/// The metrics of one version's directory.
#[derive(Default)]
struct DirectoryCells {
    /// By status.
    loads: BTreeMap<&'static str, u64>,
    load_micros: u64,
    /// By status.
    warm_ups: BTreeMap<&'static str, WarmUpCells>,
}

struct WarmUpCells {
    time: AtomicHistogram,
    records: u64,
}

impl WarmUpCells {
    fn new() -> Self {
        WarmUpCells { time: AtomicHistogram::new(&MICROS), records: 0 }
    }
}

/// The most directories with metrics, so that a server that keeps loading versions does not grow.
const MOST_FOLDERS: usize = 1000;

/// The metrics of directories, the oldest first.
#[derive(Default)]
struct VersionDirectories(VecDeque<(String, DirectoryCells)>);

impl VersionDirectories {
    fn of(&mut self, path: &str) -> &mut DirectoryCells {
        let known = self.0.iter().position(|(known, _)| known == path);
        let index = known.unwrap_or_else(|| {
            if self.0.len() >= MOST_FOLDERS {
                self.0.pop_front();
            }
            self.0.push_back((path.to_owned(), DirectoryCells::default()));
            self.0.len() - 1
        });
        // It was found or just inserted.
        #[allow(clippy::indexing_slicing)]
        &mut self.0[index].1
    }

    fn sorted(&self) -> Vec<&(String, DirectoryCells)> {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(path, _)| path);
        all
    }
}

/// TensorFlow Serving's metrics of one server.
#[derive(Default)]
pub(crate) struct TfsMetrics {
    models: Mutex<BTreeMap<Arc<str>, Arc<ModelCells>>>,
    /// The metrics of requests for unknown models.
    nameless: Arc<ModelCells>,
    folders: Mutex<VersionDirectories>,
    sizes: Arc<BatchSizes>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TfsMetrics {
    fn cells(&self, model: &Arc<str>) -> Arc<ModelCells> {
        let mut models = lock(&self.models);
        let new = || ModelCells { sizes: Arc::clone(&self.sizes), ..ModelCells::default() };
        Arc::clone(models.entry(Arc::clone(model)).or_insert_with(|| Arc::new(new())))
    }
}

impl MetricsExporter for TfsMetrics {
    fn model(&self, model: &Arc<str>) -> Arc<dyn ModelObserver> {
        self.cells(model)
    }

    fn unknown_model(&self) -> Arc<dyn ModelObserver> {
        Arc::clone(&self.nameless) as Arc<dyn ModelObserver>
    }

    fn load_ended(&self, path: &str, time: Option<Duration>) {
        let mut folders = lock(&self.folders);
        let folder = folders.of(path);
        let status = if time.is_some() { "success" } else { "fail" };
        *folder.loads.entry(status).or_default() += 1;
        folder.load_micros += time.map_or(0, micros);
    }

    fn warmed_up(&self, path: &str, code: Option<Code>, time: Duration, records: u64) {
        let mut folders = lock(&self.folders);
        let warm_ups = &mut folders.of(path).warm_ups;
        let warm_up =
            warm_ups.entry(code.map_or("OK", Code::name)).or_insert_with(WarmUpCells::new);
        warm_up.time.observe(micros(time));
        warm_up.records += records;
    }

    fn page(&self) -> Option<String> {
        Some(self.text())
    }
}

impl TfsMetrics {
    /// Counts a request for the status or the metadata of `model`; `None` for an unknown model.
    pub(super) fn described(&self, model: Option<&str>, code: Option<Code>, time: Duration) {
        let known = model.and_then(|model| lock(&self.models).get(model).cloned());
        known.as_ref().unwrap_or(&self.nameless).described(code, time);
    }

    /// All of them, in the order of their names.
    pub(super) fn text(&self) -> String {
        let models: Vec<_> = lock(&self.models)
            .iter()
            .map(|(name, cells)| (Arc::clone(name), Arc::clone(cells)))
            .collect();
        let named = models.iter().map(|(name, cells)| (&**name, &**cells));
        let models: Vec<(&str, &ModelCells)> =
            std::iter::once(("", &*self.nameless)).chain(named).collect();
        let mut page = MetricsPage::default();
        self.write_loads(&mut page);
        write_runs(&mut page, &models);
        self.write_batching(&mut page, &models);
        // Models have no ML Metadata identity here.
        page.metric("/tensorflow/serving/mlmd_map", "gauge");
        self.write_warm_ups(&mut page);
        write_requests(&mut page, &models);
        page.into_text()
    }

    fn write_loads(&self, page: &mut MetricsPage) {
        let folders = lock(&self.folders);
        let folders = folders.sorted();
        let mut metric = page.metric("/tensorflow/cc/saved_model/load_attempt_count", "counter");
        for (path, folder) in &folders {
            for (status, count) in &folder.loads {
                metric.value(&[("model_path", path), ("status", status)], *count);
            }
        }
        let mut metric = page.metric("/tensorflow/cc/saved_model/load_latency", "counter");
        for (path, folder) in folders.iter().filter(|(_, folder)| folder.load_micros > 0) {
            metric.value(&[("model_path", path)], folder.load_micros);
        }
    }

    fn write_batching(&self, page: &mut MetricsPage, models: &[(&str, &ModelCells)]) {
        const PREFIX: &str = "/tensorflow/serving/batching_session";
        let runs = sum(models, |cells| &cells.runs, &GRAPH_MICROS).count();
        let gauge = |page: &mut MetricsPage, name: &str, value: &AtomicU64| {
            let mut metric = page.metric(&format!("{PREFIX}/{name}"), "gauge");
            if runs > 0 {
                metric.value(&[], value.load(Relaxed));
            }
        };
        gauge(page, "input_batch_size", &self.sizes.enqueued);
        let mut metric = page.metric(&format!("{PREFIX}/padding_size"), "gauge");
        for (size, rows) in lock(&self.sizes.padding).iter() {
            metric.value(&[("execution_batch_size", &size.to_string())], *rows);
        }
        gauge(page, "processed_batch_size", &self.sizes.run);
        let waits = sum(models, |cells| &cells.queue, &QUEUE_MICROS);
        let mut metric = page.metric(&format!("{PREFIX}/queuing_latency"), "histogram");
        metric.histogram(&[("thread_pool_name", "")], &waits);
        let mut metric = page.metric(&format!("{PREFIX}/wrapped_run_count"), "counter");
        if runs > 0 {
            metric.value(&[], runs);
        }
    }

    fn write_warm_ups(&self, page: &mut MetricsPage) {
        let folders = lock(&self.folders);
        let folders = folders.sorted();
        let all = || {
            folders.iter().flat_map(|(path, folder)| {
                folder.warm_ups.iter().map(move |(status, warm_up)| (path, *status, warm_up))
            })
        };
        let mut metric = page.metric("/tensorflow/serving/model_warmup_latency", "histogram");
        for (path, status, warm_up) in all() {
            let labels = [("model_path", path.as_str()), ("status", status)];
            metric.histogram(&labels, &warm_up.time.read());
        }
        let mut metric = page.metric("/tensorflow/serving/model_warmup_records_read", "counter");
        for (path, status, warm_up) in all() {
            let labels = [("model_path", path.as_str()), ("status", status)];
            metric.value(&labels, warm_up.records);
        }
    }
}

/// A histogram of all models together.
fn sum(
    models: &[(&str, &ModelCells)],
    of: impl Fn(&ModelCells) -> &LazyHistogram,
    limits: &'static [f64],
) -> HistogramReading {
    let mut total = HistogramReading::empty(limits);
    for (_, cells) in models {
        if let Some(histogram) = of(cells).get() {
            total.add(&histogram.read());
        }
    }
    total
}

fn write_runs(page: &mut MetricsPage, models: &[(&str, &ModelCells)]) {
    let runs = sum(models, |cells| &cells.runs, &GRAPH_MICROS);
    let mut counter = |name: &str, value: u64| {
        let mut metric = page.metric(&format!("/tensorflow/core/{name}"), "counter");
        if runs.count() > 0 {
            metric.value(&[], value);
        }
    };
    counter("direct_session_runs", runs.count());
    counter("graph_run_time_usecs", runs.sum);
    let name = "/tensorflow/core/graph_run_time_usecs_histogram";
    page.metric(name, "histogram").histogram(&[], &runs);
    let mut metric = page.metric("/tensorflow/core/graph_runs", "counter");
    if runs.count() > 0 {
        metric.value(&[], runs.count());
    }
}

fn write_requests(page: &mut MetricsPage, models: &[(&str, &ModelCells)]) {
    let mut metric = page.metric("/tensorflow/serving/request_count", "counter");
    for (name, cells) in models {
        for (status, count) in cells.requests() {
            metric.value(&[("model_name", name), ("status", status)], count);
        }
    }
    let examples = || models.iter().filter_map(|(name, cells)| Some((name, cells.examples.get()?)));
    let mut metric = page.metric("/tensorflow/serving/request_example_count_total", "counter");
    for (name, histogram) in examples() {
        metric.value(&[("model", name)], histogram.read().sum);
    }
    let mut metric = page.metric("/tensorflow/serving/request_example_counts", "histogram");
    for (name, histogram) in examples() {
        metric.histogram(&[("model", name)], &histogram.read());
    }
    let mut metric = page.metric("/tensorflow/serving/request_latency", "histogram");
    for (name, cells) in models {
        for ((api, entrypoint), slot) in CALLS.iter().zip(&cells.latency) {
            let labels = [("model_name", *name), ("API", api), ("entrypoint", entrypoint)];
            if let Some(histogram) = slot.get() {
                metric.histogram(&labels, &histogram.read());
            }
        }
    }
    let mut metric = page.metric("/tensorflow/serving/request_log_count", "counter");
    for (name, cells) in models {
        for (status, count) in cells.logged.read() {
            metric.value(&[("model_name", name), ("status_code", status)], count);
        }
    }
    let mut metric = page.metric("/tensorflow/serving/runtime_latency", "histogram");
    for (name, cells) in models {
        for (api, slot) in RUNS.iter().zip(&cells.runtime) {
            let labels = [("model_name", *name), ("API", api), ("runtime", "TF1")];
            if let Some(histogram) = slot.get() {
                metric.histogram(&labels, &histogram.read());
            }
        }
    }
}
