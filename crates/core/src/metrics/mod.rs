//! Every metric of the server: its name, labels and buckets, declared once.
//!
//! Our own are here and in [`version`]; protocols add others, under other names, as a
//! [`MetricsExporter`].
//!
//! Labels never have values from clients: a request for an unknown model is counted under empty
//! labels, so that clients cannot fill the memory with invented names. The series of a model
//! version are removed with it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use self::cell::Outcomes;
use self::exporter::Observers;
use self::histogram::Histogram;
use self::history::History;
use self::request_memory::RequestMemory;
use self::shed::ShedMetrics;
use self::signals::Signals;
use self::spans::SpanMetrics;
use self::stores::StoreMetrics;
use self::tally::{ROW_LIMITS, TIME_LIMITS};
use self::traffic::TrafficMetrics;
use self::version::SignatureCells;
use crate::entry::EntryPoint;
use tensorserve_os::machine;
use tensorserve_tensor::budget::MemoryBudget;
use tensorserve_tensor::error::Code;

mod activity;
mod aliases;
pub mod cell;
mod exemplars;
mod exporter;
mod histogram;
mod history;
mod request_memory;
mod shed;
mod signals;
mod spans;
mod statistics;
mod stores;
mod tally;
mod traffic;
mod version;

pub use self::aliases::MetricsAlias;
pub use self::exporter::{MetricsExporter, ModelObserver};
pub use self::history::{HistoryPoint, Rates, ServerLoad, TimeSpan};
pub(crate) use self::signals::ServerCapacity;
pub use self::signals::{LoadReport, ObservedQueue, PriorityCounts, QueueLoad};
pub use self::statistics::{Statistics, Total};
pub use self::stores::StoreReport;
pub use self::tally::Tally;
pub(crate) use self::traffic::{CacheCounters, CacheReading, ShadowCounters, ShadowResult};
pub use self::version::{QueueMetrics, SignatureMetrics, VersionMetrics, WarmUpTiming};

/// The content type of [`Metrics::encode`]'s text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    model: Arc<str>,
    version: Arc<str>,
    signature: Arc<str>,
    protocol: &'static str,
    method: &'static str,
    code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct SignatureLabels {
    model: Arc<str>,
    version: Arc<str>,
    signature: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct VersionLabels {
    model: Arc<str>,
    version: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LoadLabels {
    model: Arc<str>,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LogLabels {
    model: Arc<str>,
    result: &'static str,
}

/// The result of logging a sampled request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// The request is written to the file.
    Written,
    /// The queue of the request log was full.
    Dropped,
    /// The file could not be written.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

/// Buckets of a histogram, as a constructor that a [`Family`] can clone. Values are integers; the
/// exported unit is `per_unit` of them.
#[derive(Clone, Copy)]
struct Buckets {
    limits: &'static [f64],
    per_unit: f64,
}

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.limits, self.per_unit)
    }
}

/// Nanoseconds in a second.
const NANOS: f64 = 1e9;

const SECONDS: Buckets = Buckets { limits: &TIME_LIMITS, per_unit: NANOS };

const ROWS: Buckets = Buckets { limits: &ROW_LIMITS, per_unit: 1.0 };

/// Loads take from milliseconds to minutes.
const LOAD_SECONDS: Buckets = Buckets {
    limits: &[1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9, 2e9, 5e9, 1e10, 2e10, 6e10, 1.2e11, 3e11],
    per_unit: NANOS,
};

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

type Histograms<L> = Family<L, Histogram, Buckets>;

/// All metrics of one server. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<MetricsInner>);

struct MetricsInner {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    latency: Histograms<RequestLabels>,
    queue: Histograms<SignatureLabels>,
    run: Histograms<SignatureLabels>,
    rows: Histograms<SignatureLabels>,
    in_flight: Gauge,
    loads: Family<LoadLabels, Counter>,
    load_time: Histograms<VersionLabels>,
    model_bytes: Family<VersionLabels, Gauge>,
    logged: Family<LogLabels, Counter>,
    refusals: Family<RefusalLabels, Counter>,
    ready: Gauge,
    panics: Counter,
    resident: Gauge,
    cpu: Counter<f64, AtomicU64>,
    request_memory: RequestMemory,
    stores: StoreMetrics,
    shed: ShedMetrics,
    spans: SpanMetrics,
    traffic: TrafficMetrics,
    signals: Signals,
    /// How often a version is in memory: twice while it is loaded again from another source.
    versions: Mutex<HashMap<VersionLabels, usize>>,
    exporters: Vec<Arc<dyn MetricsExporter>>,
    aliases: Vec<MetricsAlias>,
    unknown_model: Observers,
    /// Failed requests for which no signature was resolved.
    nameless: Outcomes,
    /// Counters of signatures that are in memory, or were since the history was last written.
    cells: Mutex<Cells>,
    history: Mutex<History>,
}

/// The counters of signatures, by their labels.
#[derive(Default)]
struct Cells {
    live: HashMap<SignatureLabels, Arc<SignatureCells>>,
    ended: Vec<Arc<SignatureCells>>,
}

impl MetricsInner {
    fn versions(&self) -> MutexGuard<'_, HashMap<VersionLabels, usize>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new(Vec::new(), Vec::new())
    }
}

impl Metrics {
    /// Registers all metrics. `exporters` get the same events. The metrics are also written under the
    /// names of `aliases`.
    #[must_use]
    pub fn new(exporters: Vec<Arc<dyn MetricsExporter>>, aliases: Vec<MetricsAlias>) -> Self {
        let mut registry = Registry::with_prefix("tensorserve");
        let r = &mut registry;
        let requests = Family::default();
        let latency = Family::new_with_constructor(SECONDS);
        let queue = Family::new_with_constructor(SECONDS);
        let run = Family::new_with_constructor(SECONDS);
        let rows = Family::new_with_constructor(ROWS);
        let in_flight = Gauge::default();
        let loads = Family::default();
        let load_time = Family::new_with_constructor(LOAD_SECONDS);
        let model_bytes = Family::default();
        let logged = Family::default();
        let refusals = Family::default();
        let ready = Gauge::default();
        let panics = Counter::default();
        let resident = Gauge::default();
        let cpu = Counter::default();
        let build = Family::<BuildLabels, Gauge>::default();
        let version = env!("CARGO_PKG_VERSION");
        build.get_or_create(&BuildLabels { version }).set(1);
        r.register("requests", "Inference requests answered", requests.clone());
        r.register(
            "request_duration_seconds",
            "Time from the end of a request's headers to its response",
            latency.clone(),
        );
        r.register(
            "queue_duration_seconds",
            "Queue delay of requests that waited for a batch",
            queue.clone(),
        );
        r.register("run_duration_seconds", "Duration of a batch run in the runtime", run.clone());
        r.register("batch_rows", "Rows of a batch, including padding", rows.clone());
        r.register("in_flight_requests", "Requests in flight", in_flight.clone());
        r.register("loads", "Model versions loaded, by result", loads.clone());
        r.register("load_duration_seconds", "Time to load and warm a version", load_time.clone());
        r.register("model_bytes", "Size of a loaded version's files", model_bytes.clone());
        r.register(
            "logged_requests",
            "Sampled requests, by result of logging them",
            logged.clone(),
        );
        r.register(
            "auth_failures",
            "Requests refused by authentication or authorization, by reason",
            refusals.clone(),
        );
        r.register(
            "ready",
            "1 if every configured model has a ready version, else 0",
            ready.clone(),
        );
        r.register("panics", "Internal errors caught as panics; should stay 0", panics.clone());
        r.register("resident_memory_bytes", "Resident memory of the process", resident.clone());
        r.register("cpu_seconds", "CPU time used by the process", cpu.clone());
        r.register("build_info", "Constant 1, with the version", build);
        let request_memory = RequestMemory::new(r);
        let (stores, traffic) = (StoreMetrics::new(r), TrafficMetrics::new(r));
        let (shed, signals) = (ShedMetrics::new(r), Signals::default());
        let spans = SpanMetrics::new(r);
        r.register_collector(Box::new(signals.clone()));
        let unknown_model = Observers::of(&exporters, |exporter| exporter.unknown_model());
        Metrics(Arc::new(MetricsInner {
            registry,
            requests,
            latency,
            queue,
            run,
            rows,
            in_flight,
            loads,
            load_time,
            model_bytes,
            logged,
            refusals,
            ready,
            panics,
            resident,
            cpu,
            request_memory,
            stores,
            shed,
            spans,
            traffic,
            signals,
            versions: Mutex::default(),
            exporters,
            aliases,
            unknown_model,
            nameless: Outcomes::default(),
            cells: Mutex::default(),
            history: Mutex::default(),
        }))
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// Never in practice: writing to a string does not fail.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        if let Some((resident, cpu)) = process_usage() {
            self.0.resident.set(resident);
            self.0.cpu.inner().store(cpu.to_bits(), Relaxed);
        }
        let mut out = exemplars::annotated(|| {
            let mut out = String::new();
            text::encode_registry(&mut out, &self.0.registry).map(|()| out)
        })?;
        self.write_aliases(&mut out)?;
        text::encode_eof(&mut out)?;
        Ok(out)
    }

    /// The metrics of a model version's signatures. Their series live as long as the result.
    #[must_use]
    pub fn version(&self, model: &str, version: i64, signatures: &[&str]) -> VersionMetrics {
        let labels = VersionLabels { model: model.into(), version: version.to_string().into() };
        *self.0.versions().entry(labels.clone()).or_default() += 1;
        VersionMetrics::new(self, labels, signatures)
    }

    /// Counts a failed request for which no signature was resolved, but perhaps `version`.
    pub fn unresolved(
        &self,
        entry: EntryPoint,
        version: Option<&VersionMetrics>,
        code: Code,
        time: Duration,
    ) {
        let observers = version.map_or(&self.0.unknown_model, VersionMetrics::observers);
        observers.each(|observer| observer.failed(entry, code));
        self.0.nameless.count(Some(code));
        let labels = RequestLabels {
            model: "".into(),
            version: "".into(),
            signature: "".into(),
            protocol: entry.protocol,
            method: entry.method.name(),
            code: code.name(),
        };
        self.0.requests.get_or_create(&labels).inc();
        self.0.latency.get_or_create(&labels).observe(nanos(time));
    }

    /// Records that the load of the model in the directory `path` took `time`, or failed (`None`).
    pub fn load_ended(&self, path: &str, time: Option<Duration>) {
        self.0.exporters.iter().for_each(|exporter| exporter.load_ended(path, time));
    }

    /// Counts a load that failed.
    pub fn load_failed(&self, model: &str) {
        let labels = LoadLabels { model: model.into(), result: "error" };
        self.0.loads.get_or_create(&labels).inc();
    }

    /// Counts a sampled request of `model`.
    pub fn logged(&self, model: &Arc<str>, outcome: RecordOutcome) {
        let result = match outcome {
            RecordOutcome::Written => "written",
            RecordOutcome::Dropped => "dropped",
            RecordOutcome::Failed => "failed",
        };
        let labels = LogLabels { model: Arc::clone(model), result };
        self.0.logged.get_or_create(&labels).inc();
        let code = match outcome {
            RecordOutcome::Written => None,
            RecordOutcome::Dropped => Some(Code::ResourceExhausted),
            RecordOutcome::Failed => Some(Code::Internal),
        };
        let observers = Observers::of(&self.0.exporters, |exporter| exporter.model(model));
        observers.each(|observer| observer.logged(code));
    }

    /// Counts a request as in flight until the result is dropped.
    #[must_use]
    pub fn in_flight(&self) -> InFlight {
        self.0.in_flight.inc();
        InFlight(self.clone())
    }

    /// How many requests are in flight.
    #[must_use]
    pub fn in_flight_count(&self) -> i64 {
        self.0.in_flight.get()
    }

    /// The counter of requests that authentication or authorization refuses for this reason.
    #[must_use]
    pub fn refusals(&self, reason: &'static str) -> Counter {
        self.0.refusals.get_or_create_owned(&RefusalLabels { reason })
    }

    /// Counts a caught panic.
    pub fn panicked(&self) {
        self.0.panics.inc();
    }

    /// Sets the metrics of the memory of requests.
    pub(crate) fn set_request_memory(&self, budget: &MemoryBudget) {
        self.0.request_memory.set(budget);
    }

    /// Sets the metrics of the stores that models come from, and of their cache: its size and limit.
    pub(crate) fn set_stores(&self, reports: &[StoreReport], cache: Option<(u64, u64)>) {
        self.0.stores.set(reports, cache);
    }

    /// Sets whether the server is ready.
    pub fn set_ready(&self, ready: bool) {
        self.0.ready.set(i64::from(ready));
    }
}

/// A request in flight.
pub struct InFlight(Metrics);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.0.in_flight.dec();
    }
}

/// Resident memory in bytes and CPU time in seconds, where the system reports them.
fn process_usage() -> Option<(i64, f64)> {
    let resident = machine::resident_memory(None)?.try_into().ok()?;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The fields after the process name, which may itself contain blanks and brackets.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    // User and system time; Linux counts both in hundredths of a second for user space.
    Some((resident, (ticks(11)? + ticks(12)?) / 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Method;

    #[test]
    fn series_come_and_go_with_their_version() {
        let metrics = Metrics::default();
        let entry = |protocol| EntryPoint { protocol, method: Method::Predict };
        let version = metrics.version("digits", 2, &["serving_default"]);
        let signature = version.signature(0).expect("one signature");
        signature.succeeded(entry("tfs_rest"), Duration::from_millis(1), None);
        signature.failed(entry("simple"), Code::InvalidArgument, Duration::from_millis(1));
        signature.queue().ran(8, Duration::from_millis(1));
        version.loaded(100, Duration::from_secs(1));
        let text = metrics.encode().expect("text");
        let labels = "model=\"digits\",version=\"2\",signature=\"serving_default\"";
        for line in [
            format!(
                "tensorserve_requests_total{{{labels},protocol=\"tfs_rest\",method=\"predict\",code=\"OK\"}} 1"
            ),
            format!(
                "tensorserve_requests_total{{{labels},protocol=\"simple\",method=\"predict\",code=\"INVALID_ARGUMENT\"}} 1"
            ),
            format!("tensorserve_batch_rows_sum{{{labels}}} 8.0"),
            // Without this name of the last bucket, Prometheus computes no quantiles.
            format!("tensorserve_batch_rows_bucket{{le=\"+Inf\",{labels}}} 1"),
            "tensorserve_model_bytes{model=\"digits\",version=\"2\"} 100".to_owned(),
        ] {
            assert!(text.contains(&line), "{line} is not in {text}");
        }
        drop(version);
        let text = metrics.encode().expect("text");
        assert!(!text.contains("version=\"2\""), "{text}");
        assert!(text.contains("tensorserve_loads_total{model=\"digits\",result=\"ok\"} 1"));
    }
}
