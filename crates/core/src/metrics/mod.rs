//! The metrics of the server.
//!
//! To add one, declare it as a field in `families`, with its labels, buckets and help, and count it where
//! something happens; or add an item to `signals`, if it can be computed when the page is read. A test
//! compares all of them with the tables of `docs/observability.md`. Protocols add others, under other
//! names, as a [`MetricsExporter`].
//!
//! Labels never have values from clients: a request for an unknown model is counted under empty
//! labels, so that clients cannot fill the memory with invented names. The series of a model and of a
//! version are removed with it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use self::cell::Outcomes;
use self::exporter::Observers;
use self::failures::LastErrors;
use self::families::{
    BuildLabels, Families, FormLabels, ModelResultLabels, ReasonLabels, RequestLabels,
    ResultLabels, SignatureLabels, VersionLabels,
};
use self::history::History;
use self::signals::Signals;
use self::version::SignatureCells;
use crate::entry::EntryPoint;
use tensorserve_os::machine;
use tensorserve_tensor::budget::MemoryBudget;
use tensorserve_tensor::error::Code;

mod activity;
mod aliases;
pub mod cell;
#[cfg(test)]
mod documentation;
mod exemplars;
mod exporter;
mod failures;
mod families;
mod histogram;
mod history;
mod sharded;
mod shed;
mod signals;
mod statistics;
mod stores;
mod tally;
mod text_format;
mod traffic;
mod version;

pub use self::aliases::MetricsAlias;
pub use self::exporter::{MetricsExporter, ModelObserver};
pub use self::failures::LastError;
pub use self::history::{HistoryPoint, Rates, ServerLoad, TimeSpan};
pub(crate) use self::signals::ServerCapacity;
pub use self::signals::{LoadReport, ObservedQueue, PriorityCounts, QueueLoad};
pub use self::statistics::{Statistics, Total};
pub use self::stores::StoreReport;
pub(crate) use self::tally::CounterReading;
pub use self::tally::Tally;
pub use self::text_format::{TEXT_CONTENT_TYPE, text_format};
pub(crate) use self::traffic::{CacheCounters, CacheReading, ShadowCounters, ShadowResult};
pub use self::version::{QueueMetrics, SignatureMetrics, VersionMetrics, WarmUpTiming};

/// The content type of [`Metrics::encode`]'s text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The value of a gauge. One that it cannot hold becomes its largest.
fn clamped(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// All metrics of one server. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<MetricsInner>);

struct MetricsInner {
    registry: Registry,
    families: Families,
    signals: Signals,
    /// How often a version is in memory: twice while it is loaded again from another source.
    versions: Mutex<HashMap<VersionLabels, usize>>,
    exporters: Vec<Arc<dyn MetricsExporter>>,
    aliases: Vec<MetricsAlias>,
    unknown_model: Observers,
    /// Failed requests for models that do not exist.
    nameless: Outcomes,
    /// Counters of signatures that are in memory, or were since the history was last written.
    cells: Mutex<Cells>,
    history: Mutex<History>,
    last_errors: LastErrors,
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
        let families = Families::register(&mut registry);
        let build = BuildLabels { version: env!("CARGO_PKG_VERSION") };
        families.build_info.get_or_create(&build).set(1);
        shed::start(&families);
        let signals = Signals::default();
        registry.register_collector(Box::new(signals.clone()));
        let unknown_model = Observers::of(&exporters, |exporter| exporter.unknown_model());
        Metrics(Arc::new(MetricsInner {
            registry,
            families,
            signals,
            versions: Mutex::default(),
            exporters,
            aliases,
            unknown_model,
            nameless: Outcomes::default(),
            cells: Mutex::default(),
            history: Mutex::default(),
            last_errors: LastErrors::default(),
        }))
    }

    /// All metrics as text.
    ///
    /// # Errors
    /// Never in practice: writing to a string does not fail.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        if let Some((resident, cpu)) = process_usage() {
            self.0.families.resident_memory_bytes.set(resident);
            self.0.families.cpu_seconds.inner().store(cpu.to_bits(), Relaxed);
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

    /// Counts a failed request for which no version was resolved, but perhaps `model`, which exists. Where a version
    /// of it is served, the exporters count the request for the model, as the servers do that they stand for.
    pub fn unresolved(
        &self,
        entry: EntryPoint,
        model: Option<&Arc<str>>,
        served: Option<&VersionMetrics>,
        code: Code,
        time: Duration,
    ) {
        let observers = served.map_or(&self.0.unknown_model, VersionMetrics::observers);
        observers.each(|observer| observer.failed(entry, code));
        if let Some(model) = model {
            return self.unserved(model).failed(self, entry, code, time);
        }
        self.0.nameless.count(Some(code));
        let labels = RequestLabels {
            model: "".into(),
            version: "".into(),
            signature: "".into(),
            protocol: entry.protocol,
            method: entry.method.name(),
            code: code.name(),
        };
        let families = &self.0.families;
        families.requests.get_or_create(&labels).inc();
        families.request_duration_seconds.get_or_create(&labels).observe(nanos(time));
    }

    /// Records that the load of the model in the directory `path` took `time`, or failed (`None`).
    pub fn load_ended(&self, path: &str, time: Option<Duration>) {
        self.0.exporters.iter().for_each(|exporter| exporter.load_ended(path, time));
    }

    /// Counts a load that failed.
    pub fn load_failed(&self, model: &str) {
        let labels = ModelResultLabels { model: model.into(), result: "error" };
        self.0.families.loads.get_or_create(&labels).inc();
    }

    /// Counts a sampled request of `model`.
    pub fn logged(&self, model: &Arc<str>, outcome: RecordOutcome) {
        let result = match outcome {
            RecordOutcome::Written => "written",
            RecordOutcome::Dropped => "dropped",
            RecordOutcome::Failed => "failed",
        };
        let labels = ModelResultLabels { model: Arc::clone(model), result };
        self.0.families.logged_requests.get_or_create(&labels).inc();
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
    pub fn in_flight(&self) -> InFlight<'_> {
        self.0.families.in_flight_requests.inc();
        InFlight(self)
    }

    /// How many requests are in flight.
    #[must_use]
    pub fn in_flight_count(&self) -> i64 {
        self.0.families.in_flight_requests.get()
    }

    /// Counts a version as one for which another form is looked for until the result is dropped.
    pub(crate) fn optimizing(&self) -> OptimizingVersion {
        self.0.families.optimizing_versions.inc();
        OptimizingVersion(self.clone())
    }

    /// Counts another form of a version, by its kind and what became of it.
    pub(crate) fn form_found(&self, model: &str, kind: &'static str, result: &'static str) {
        let labels = FormLabels { model: model.into(), kind, result };
        self.0.families.other_forms.get_or_create(&labels).inc();
    }

    /// The counter of requests that authentication or authorization refuses for this reason.
    #[must_use]
    pub fn refusals(&self, reason: &'static str) -> Counter {
        self.0.families.auth_failures.get_or_create_owned(&ReasonLabels { reason })
    }

    /// Counts a caught panic.
    pub fn panicked(&self) {
        self.0.families.panics.inc();
    }

    /// Sets the metrics of the memory of requests.
    pub(crate) fn set_request_memory(&self, budget: &MemoryBudget) {
        let families = &self.0.families;
        families.request_memory_bytes.set(clamped(budget.used()));
        families.request_memory_limit_bytes.set(clamped(budget.limit()));
        families.request_memory_refusals.inner().store(budget.refused(), Relaxed);
    }

    /// Sets how many spans had each result so far.
    pub fn set_trace_spans(&self, counts: &[(&'static str, u64)]) {
        for (result, count) in counts {
            let labels = ResultLabels { result };
            let counter = self.0.families.trace_spans.get_or_create_owned(&labels);
            counter.inner().store(*count, Relaxed);
        }
    }

    /// Sets whether the server is ready.
    pub fn set_ready(&self, ready: bool) {
        self.0.families.ready.set(i64::from(ready));
    }
}

/// A request in flight.
pub struct InFlight<'m>(&'m Metrics);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.0.families.in_flight_requests.dec();
    }
}

/// Resident memory in bytes and CPU time in seconds, where the system reports them.
fn process_usage() -> Option<(i64, f64)> {
    let resident = machine::resident_memory(None)?.try_into().ok()?;
    Some((resident, machine::cpu_time()?))
}

/// A version for which another form is looked for.
pub(crate) struct OptimizingVersion(Metrics);

impl Drop for OptimizingVersion {
    fn drop(&mut self) {
        self.0.0.families.optimizing_versions.dec();
    }
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
