//! The metrics of one loaded version: of its signatures and of their queues. Handles are made
//! once, so that a request looks nothing up.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::MetricConstructor;
use prometheus_client::metrics::histogram::Histogram;

use super::tfs::ModelCells;
use super::{
    Api, LoadLabels, Metrics, ROWS, RequestLabels, SECONDS, SignatureLabels, VersionLabels,
};
use crate::error::Code;

/// The metrics of one loaded model version.
pub struct VersionMetrics {
    signatures: Vec<SignatureMetrics>,
    labels: VersionLabels,
    metrics: Metrics,
    tfs: Arc<ModelCells>,
}

impl VersionMetrics {
    pub(super) fn new(metrics: &Metrics, labels: VersionLabels, signatures: &[&str]) -> Self {
        let tfs = metrics.0.tfs.model(&labels.model);
        let of = |&signature: &&str| SignatureMetrics::new(metrics, &labels, signature, &tfs);
        let signatures = signatures.iter().map(of).collect();
        VersionMetrics { signatures, labels, metrics: metrics.clone(), tfs }
    }

    /// Notes that `records` recorded requests were read from its folder, at `path`, and run to
    /// warm it up, and how that ended.
    pub fn warmed_up(&self, path: &str, code: Option<Code>, time: Duration, records: u64) {
        self.metrics.0.tfs.warmed_up(path, code, time, records);
    }

    pub(super) fn tfs(&self) -> &ModelCells {
        &self.tfs
    }

    /// Those of signature number `index`.
    #[must_use]
    pub fn signature(&self, index: usize) -> Option<&SignatureMetrics> {
        self.signatures.get(index)
    }

    /// Notes that the version was loaded, in `time`, from files of `bytes` bytes.
    pub fn loaded(&self, bytes: u64, time: Duration) {
        let labels = LoadLabels { model: Arc::clone(&self.labels.model), result: "ok" };
        let inner = &self.metrics.0;
        inner.loads.get_or_create(&labels).inc();
        let time = time.as_secs_f64();
        inner.load_time.get_or_create(&self.labels).observe(time);
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        inner.model_bytes.get_or_create(&self.labels).set(bytes);
    }
}

impl Drop for VersionMetrics {
    fn drop(&mut self) {
        let mut versions = self.metrics.0.versions();
        if let Some(count) = versions.get_mut(&self.labels)
            && *count > 1
        {
            // Another one counts in the same series.
            *count -= 1;
            self.signatures.iter_mut().for_each(|signature| signature.shared = true);
            return;
        }
        versions.remove(&self.labels);
        drop(versions);
        self.metrics.0.load_time.remove(&self.labels);
        self.metrics.0.model_bytes.remove(&self.labels);
    }
}

/// The metrics of one signature of a loaded version.
pub struct SignatureMetrics {
    metrics: Metrics,
    labels: SignatureLabels,
    queue: QueueMetrics,
    /// Handles for requests that went well, which are nearly all, by [`Api::index`].
    ok: [OnceLock<RequestMetrics>; Api::COUNT],
    /// Series to remove in the end.
    series: Mutex<HashSet<RequestLabels>>,
    /// Whether another one goes on with the series.
    shared: bool,
    tfs: Arc<ModelCells>,
}

#[derive(Clone)]
struct RequestMetrics {
    count: Counter,
    latency: Histogram,
}

impl SignatureMetrics {
    fn new(
        metrics: &Metrics,
        version: &VersionLabels,
        signature: &str,
        tfs: &Arc<ModelCells>,
    ) -> Self {
        let labels = SignatureLabels {
            model: Arc::clone(&version.model),
            version: Arc::clone(&version.version),
            signature: signature.into(),
        };
        let name = format!("{} version {}, {signature}", version.model, version.version);
        let inner = &metrics.0;
        SignatureMetrics {
            queue: QueueMetrics {
                name: name.into(),
                waited: inner.queue.get_or_create_owned(&labels),
                run: inner.run.get_or_create_owned(&labels),
                rows: inner.rows.get_or_create_owned(&labels),
                panics: inner.panics.clone(),
                tfs: Arc::clone(tfs),
            },
            metrics: metrics.clone(),
            labels,
            ok: Default::default(),
            series: Mutex::default(),
            shared: false,
            tfs: Arc::clone(tfs),
        }
    }

    /// Those of its queue.
    #[must_use]
    pub fn queue(&self) -> QueueMetrics {
        self.queue.clone()
    }

    /// Counts a request that went well. `runtime` is the time of its runs and of their wait.
    pub fn succeeded(&self, api: Api, time: Duration, runtime: Option<Duration>) {
        self.tfs.succeeded(api, time, runtime);
        if let Some(slot) = self.ok.get(api.index()) {
            let metrics = slot.get_or_init(|| self.request(api, "OK"));
            metrics.count.inc();
            metrics.latency.observe(time.as_secs_f64());
        }
    }

    /// Counts a request that did not.
    pub fn failed(&self, api: Api, code: Code, time: Duration) {
        self.tfs.failed(api, code);
        let metrics = self.request(api, code.name());
        metrics.count.inc();
        metrics.latency.observe(time.as_secs_f64());
    }

    /// Counts the examples of a request for several inferences.
    pub fn examples(&self, count: usize) {
        self.tfs.examples(count);
    }

    /// Counts a request that was written to the log of requests, or could not be.
    pub fn logged(&self, code: Option<Code>) {
        self.tfs.logged(code);
    }

    fn request(&self, api: Api, code: &'static str) -> RequestMetrics {
        let labels = RequestLabels {
            model: Arc::clone(&self.labels.model),
            version: Arc::clone(&self.labels.version),
            signature: Arc::clone(&self.labels.signature),
            api: api.name(),
            code,
        };
        let inner = &self.metrics.0;
        let metrics = RequestMetrics {
            count: inner.requests.get_or_create_owned(&labels),
            latency: inner.latency.get_or_create_owned(&labels),
        };
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.insert(labels);
        metrics
    }
}

impl Drop for SignatureMetrics {
    fn drop(&mut self) {
        if self.shared {
            return;
        }
        let inner = &self.metrics.0;
        let series = self.series.get_mut().unwrap_or_else(PoisonError::into_inner);
        for labels in series.iter() {
            inner.requests.remove(labels);
            inner.latency.remove(labels);
        }
        inner.queue.remove(&self.labels);
        inner.run.remove(&self.labels);
        inner.rows.remove(&self.labels);
    }
}

/// What a batch queue reports.
#[derive(Clone)]
pub struct QueueMetrics {
    name: Arc<str>,
    waited: Histogram,
    run: Histogram,
    rows: Histogram,
    panics: Counter,
    tfs: Arc<ModelCells>,
}

impl QueueMetrics {
    /// Metrics that nobody reads, for a queue outside a server.
    #[must_use]
    pub fn unregistered(name: &str) -> Self {
        QueueMetrics {
            name: name.into(),
            waited: SECONDS.new_metric(),
            run: SECONDS.new_metric(),
            rows: ROWS.new_metric(),
            panics: Counter::default(),
            tfs: Arc::default(),
        }
    }

    /// Which queue it is, for the log.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A request of this many rows came; 0 if it can not be joined with others.
    pub fn asked(&self, rows: usize) {
        self.tfs.asked(rows.max(1));
    }

    /// A batch was filled up with this many rows, to this size.
    pub fn padded(&self, rows: usize, size: usize) {
        self.tfs.padded(rows, size);
    }

    /// A request waited this long for its batch.
    pub fn waited(&self, time: Duration) {
        self.tfs.waited(time);
        self.waited.observe(time.as_secs_f64());
    }

    /// A batch panicked.
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// A batch of this many rows ran for this long.
    #[allow(clippy::cast_precision_loss)]
    pub fn ran(&self, rows: usize, time: Duration) {
        self.tfs.ran(rows, time);
        self.rows.observe(rows as f64);
        self.run.observe(time.as_secs_f64());
    }
}
