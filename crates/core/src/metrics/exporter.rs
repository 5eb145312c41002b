//! Further sets of metrics, which protocols export under other names.

use std::sync::Arc;
use std::time::Duration;

use tensorserve_tensor::error::Code;

use crate::entry::EntryPoint;

/// A set of metrics besides ours, such as those of a server that we replace. It gets the events,
/// and keeps and exports its own metrics.
pub trait MetricsExporter: Send + Sync {
    /// The observer for events of `model`. Called when a version of it is loaded.
    fn model(&self, model: &Arc<str>) -> Arc<dyn ModelObserver>;

    /// The observer for requests whose model is not served.
    fn unknown_model(&self) -> Arc<dyn ModelObserver>;

    /// A load of the version in the directory `path` ended; it took `time`, or failed (`None`).
    fn load_ended(&self, path: &str, time: Option<Duration>);

    /// The `records` recorded requests of the version in the directory `path` were run, in `time`.
    fn warmed_up(&self, path: &str, code: Option<Code>, time: Duration, records: u64);

    /// Its metrics in Prometheus's text format, if our own page may have them, too.
    fn page(&self) -> Option<String> {
        None
    }
}

/// Counts the events of one model. Called on the request path: implementations must not lock or
/// allocate, only update a few atomic numbers.
pub trait ModelObserver: Send + Sync {
    /// A request succeeded after `time`; `runtime` is the time of its runs and their queue delay.
    fn succeeded(&self, entry: EntryPoint, time: Duration, runtime: Option<Duration>);

    /// A request failed.
    fn failed(&self, entry: EntryPoint, code: Code);

    /// A request for several inferences had this many examples.
    fn examples(&self, _count: usize) {}

    /// A sampled request was written to the request log, or could not be.
    fn logged(&self, _code: Option<Code>) {}

    /// A request of this many rows entered a batch queue.
    fn enqueued(&self, _rows: usize) {}

    /// A request left its batch queue after this long.
    fn dequeued(&self, _delay: Duration) {}

    /// A batch of this many rows ran for this long.
    fn ran(&self, _rows: usize, _time: Duration) {}

    /// This many rows of padding filled a batch up to `size`.
    fn padded(&self, _rows: usize, _size: usize) {}
}

/// The observers of one model, one for each exporter.
#[derive(Clone, Default)]
pub(super) struct Observers(Arc<[Arc<dyn ModelObserver>]>);

impl Observers {
    pub(super) fn of(
        exporters: &[Arc<dyn MetricsExporter>],
        observer: impl Fn(&Arc<dyn MetricsExporter>) -> Arc<dyn ModelObserver>,
    ) -> Self {
        Observers(exporters.iter().map(observer).collect())
    }

    pub(super) fn each(&self, tell: impl Fn(&dyn ModelObserver)) {
        self.0.iter().for_each(|observer| tell(&**observer));
    }
}
