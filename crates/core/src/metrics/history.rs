//! The metrics of the last fifteen minutes for the dashboard: once a second the increase of the
//! counters is recorded, in a fixed amount of memory, without any cost for requests.
//!
//! The totals are kept by the second: 900 points of about 300 bytes. Each model is kept in slots of
//! 15 seconds, without slots in which it had no request: at most 15 KiB, and so 15 MiB for a
//! thousand busy models. Quantiles are computed from histograms, so that points can be merged into
//! longer ones.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::cell::CODES;
use super::tally::Tally;
use super::{Metrics, process_usage};

/// How many points of one second are kept.
const POINTS: usize = 900;

/// The length of a model's slots in milliseconds, and how many are kept.
const SLOT: u64 = 15_000;
const SLOTS: u64 = 60;

/// Models whose history is kept. If there are more, the least recently used ones are dropped.
const MOST_MODELS: usize = 1000;

/// The length of a window. [`Rates`] are those of the current window and the previous one.
const WINDOW: Duration = Duration::from_secs(5);

/// The time that a point covers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeSpan {
    /// Its end, in milliseconds since 1970.
    pub at: u64,
    /// How long it is.
    pub seconds: f64,
}

/// The metrics of a span of time.
#[derive(Clone, Debug)]
pub struct HistoryPoint {
    /// The span.
    pub span: TimeSpan,
    /// The counts.
    pub tally: Tally,
    /// The state of the server at its end; `None` for a single model.
    pub server: Option<ServerLoad>,
}

/// The load of the server at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerLoad {
    /// Requests in flight.
    pub in_flight: i64,
    /// Memory of the process in bytes.
    pub memory: u64,
    /// CPU time since the previous point, in percent of one core.
    pub cpu_percent: f64,
}

/// The rates of a version, or of the server, in the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests per second.
    pub requests_per_second: f64,
    /// Failed requests per second.
    pub errors_per_second: f64,
    /// Failed requests in percent.
    pub error_percent: f64,
    /// The median latency of successful requests, in milliseconds.
    pub p50_ms: Option<f64>,
    /// Their 99th percentile.
    pub p99_ms: Option<f64>,
    /// The mean number of rows per batch.
    pub rows_per_batch: Option<f64>,
    /// When it last had a request, in milliseconds since 1970.
    pub last_used: Option<u64>,
}

#[derive(Default)]
pub(super) struct History {
    all: VecDeque<HistoryPoint>,
    /// By model, each slot with its number, ascending.
    models: HashMap<Arc<str>, VecDeque<(u64, Tally)>>,
    versions: HashMap<(Arc<str>, i64), RecentCounts>,
    /// Of requests that named a model, and no version that is served.
    unserved: HashMap<Arc<str>, RecentCounts>,
    nameless: [u64; CODES],
    /// When it was last written, and the CPU time used until then.
    before: Option<(Instant, f64)>,
    /// When the current window began, and the length of the previous one in seconds.
    window: Option<(Instant, f64)>,
}

/// The counts of a version in the current window and in the previous one.
#[derive(Default)]
struct RecentCounts {
    now: Tally,
    before: Tally,
    last_used: Option<u64>,
    /// Whether the version was in memory when the history was last written.
    is_there: bool,
}

impl Metrics {
    fn history(&self) -> MutexGuard<'_, History> {
        self.0.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the increase of all counters since the last call. Called once a second.
    pub fn write_history(&self) {
        let (now, at) = (Instant::now(), milliseconds());
        let usage = process_usage();
        let cells = self.take_cells();
        let mut history = self.history();
        let History { versions, unserved, models, nameless, before, .. } = &mut *history;
        let failures = self.0.nameless.counts();
        let mut all = Tally::of_failures(&failures, nameless);
        *nameless = failures;
        let all_recent = versions.values_mut().chain(unserved.values_mut());
        all_recent.for_each(|recent| recent.is_there = false);
        for (cells, is_live) in cells {
            let tally = cells.since_last();
            let model = Arc::clone(cells.model());
            match cells.version().filter(|_| is_live) {
                Some(version) => versions.entry((model, version)).or_default().add(&tally, at),
                None if is_live => unserved.entry(model).or_default().add(&tally, at),
                None => {}
            }
            if !tally.is_empty() {
                all.add(&tally);
                add_to_model(models, cells.model(), at / SLOT, &tally);
            }
        }
        versions.retain(|_, recent| recent.is_there);
        unserved.retain(|_, recent| recent.is_there);
        let (memory, cpu) = usage.unwrap_or_default();
        let (start, cpu_before) = before.replace((now, cpu)).unwrap_or((now, cpu));
        let seconds = (now - start).as_secs_f64();
        let cpu_percent = if seconds > 0.0 { (cpu - cpu_before) / seconds * 100.0 } else { 0.0 };
        let memory = u64::try_from(memory).unwrap_or(0);
        let server = ServerLoad { in_flight: self.in_flight_count(), memory, cpu_percent };
        history.push(HistoryPoint {
            span: TimeSpan { at, seconds },
            tally: all,
            server: Some(server),
        });
        history.turn_window(now);
        history.forget(at / SLOT);
    }

    /// The last fifteen minutes in points of `step` seconds, the oldest first.
    #[must_use]
    pub fn past(&self, step: usize) -> Vec<HistoryPoint> {
        let history = self.history();
        let mut points: Vec<HistoryPoint> = Vec::new();
        // From the end, so that the newest point is complete.
        for (index, point) in history.all.iter().rev().enumerate() {
            match points.last_mut() {
                Some(last) if index % step.max(1) != 0 => last.precede(point),
                _ => points.push(point.clone()),
            }
        }
        points.reverse();
        points
    }

    /// The last fifteen minutes of one model, in points of [`Metrics::model_step`] seconds.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn past_of(&self, model: &str) -> Vec<HistoryPoint> {
        let now = milliseconds();
        let history = self.history();
        let own = history.models.get(model);
        let slots = (now / SLOT + 1).saturating_sub(SLOTS)..=now / SLOT;
        let point = |slot: u64| {
            let found = own.and_then(|own| own.iter().find(|(number, _)| *number == slot));
            let tally = found.map_or_else(Tally::default, |(_, tally)| tally.clone());
            let at = ((slot + 1) * SLOT).min(now);
            let seconds = (at - slot * SLOT) as f64 / 1000.0;
            HistoryPoint { span: TimeSpan { at, seconds }, tally, server: None }
        };
        slots.map(point).collect()
    }

    /// The seconds that a point of a model's history covers.
    #[must_use]
    pub fn model_step(&self) -> u64 {
        SLOT / 1000
    }

    /// The point of the last second.
    #[must_use]
    pub fn last_second(&self) -> Option<HistoryPoint> {
        self.history().all.back().cloned()
    }

    /// The CPU time of the process in the last 15 seconds, in percent of one core.
    pub(super) fn recent_cpu_percent(&self) -> f64 {
        let history = self.history();
        let (mut used, mut seconds) = (0.0, 0.0);
        for point in history.all.iter().rev().take(15) {
            let load = point.server.unwrap_or_default();
            used += load.cpu_percent * point.span.seconds;
            seconds += point.span.seconds;
        }
        if seconds > 0.0 { used / seconds } else { 0.0 }
    }

    /// The rates of the server in the last seconds.
    #[must_use]
    pub fn rates(&self) -> Rates {
        let history = self.history();
        let (mut tally, mut seconds) = (Tally::default(), 0.0);
        for point in history.all.iter().rev() {
            if seconds >= WINDOW.as_secs_f64() {
                break;
            }
            tally.add(&point.tally);
            seconds += point.span.seconds;
        }
        rates(&tally, seconds, None)
    }

    /// The rates of versions in memory in the last seconds, by model and number.
    #[must_use]
    pub fn rates_of_versions(&self) -> HashMap<(Arc<str>, i64), Rates> {
        let history = self.history();
        let seconds = history.window_seconds();
        history.versions.iter().map(|(key, recent)| (key.clone(), recent.rates(seconds))).collect()
    }

    /// The rates of requests that named a model, and no version that is served, by model.
    #[must_use]
    pub fn rates_of_unserved(&self) -> HashMap<Arc<str>, Rates> {
        let history = self.history();
        let seconds = history.window_seconds();
        history.unserved.iter().map(|(key, recent)| (key.clone(), recent.rates(seconds))).collect()
    }
}

impl History {
    fn push(&mut self, point: HistoryPoint) {
        if self.all.len() >= POINTS {
            self.all.pop_front();
        } else if self.all.capacity() == 0 {
            self.all.reserve_exact(POINTS);
        }
        self.all.push_back(point);
    }

    fn turn_window(&mut self, now: Instant) {
        let (start, _) = *self.window.get_or_insert((now, 0.0));
        if now - start < WINDOW {
            return;
        }
        self.window = Some((now, (now - start).as_secs_f64()));
        for recent in self.versions.values_mut().chain(self.unserved.values_mut()) {
            recent.before = std::mem::take(&mut recent.now);
        }
    }

    /// The length of both windows together, up to when the history was last written.
    fn window_seconds(&self) -> f64 {
        let (Some((start, before)), Some((written, _))) = (self.window, self.before) else {
            return 0.0;
        };
        before + written.saturating_duration_since(start).as_secs_f64()
    }

    /// Drops what is older than fifteen minutes.
    fn forget(&mut self, slot: u64) {
        self.models.retain(|_, points| {
            while points.front().is_some_and(|(number, _)| number + SLOTS <= slot) {
                points.pop_front();
            }
            !points.is_empty()
        });
    }
}

impl RecentCounts {
    fn add(&mut self, tally: &Tally, at: u64) {
        self.is_there = true;
        if !tally.is_empty() {
            self.now.add(tally);
            self.last_used = Some(at);
        }
    }

    fn rates(&self, seconds: f64) -> Rates {
        let mut tally = self.before.clone();
        tally.add(&self.now);
        rates(&tally, seconds, self.last_used)
    }
}

impl HistoryPoint {
    /// Extends this point to the past by `earlier`.
    fn precede(&mut self, earlier: &HistoryPoint) {
        self.tally.add(&earlier.tally);
        let seconds = self.span.seconds + earlier.span.seconds;
        if let (Some(load), Some(before)) = (&mut self.server, &earlier.server)
            && seconds > 0.0
        {
            load.in_flight = load.in_flight.max(before.in_flight);
            let busy = load.cpu_percent * self.span.seconds;
            load.cpu_percent = (busy + before.cpu_percent * earlier.span.seconds) / seconds;
        }
        self.span.seconds = seconds;
    }
}

fn add_to_model(
    models: &mut HashMap<Arc<str>, VecDeque<(u64, Tally)>>,
    model: &Arc<str>,
    slot: u64,
    tally: &Tally,
) {
    if !models.contains_key(model) && models.len() >= MOST_MODELS {
        let age = |points: &VecDeque<(u64, Tally)>| points.back().map(|(slot, _)| *slot);
        let oldest = models.iter().min_by_key(|(_, points)| age(points));
        if let Some(oldest) = oldest.map(|(name, _)| Arc::clone(name)) {
            models.remove(&oldest);
        }
    }
    let points = models.entry(Arc::clone(model)).or_default();
    match points.back_mut() {
        Some((last, sum)) if *last == slot => sum.add(tally),
        _ => points.push_back((slot, tally.clone())),
    }
}

#[allow(clippy::cast_precision_loss)]
fn rates(tally: &Tally, seconds: f64, last_used: Option<u64>) -> Rates {
    let (requests, errors) = (tally.requests() as f64, tally.errors() as f64);
    let per_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
    Rates {
        requests_per_second: per_second(requests),
        errors_per_second: per_second(errors),
        error_percent: if requests > 0.0 { errors / requests * 100.0 } else { 0.0 },
        p50_ms: tally.quantile_ms(0.5),
        p99_ms: tally.quantile_ms(0.99),
        rows_per_batch: tally.rows_per_batch(),
        last_used,
    }
}

fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use crate::entry::{EntryPoint, Method};

    const PREDICT: EntryPoint = EntryPoint { protocol: "test", method: Method::Predict };
    use super::*;
    use tensorserve_tensor::error::Code;

    #[test]
    fn history_has_what_was_counted_once() {
        let metrics = Metrics::default();
        let version = metrics.version("digits", 2, &["serving_default"]);
        metrics.write_history();
        let signature = version.signature(0).expect("one signature");
        for _ in 0..3 {
            signature.succeeded(PREDICT, Duration::from_millis(3), None);
        }
        signature.failed(PREDICT, Code::InvalidArgument, Duration::from_millis(1));
        signature.queue().ran(4, Duration::from_millis(2));
        metrics.unresolved(PREDICT, None, None, Code::NotFound, Duration::from_millis(1));
        metrics.write_history();
        let counts = |points: &[HistoryPoint]| -> Vec<(u64, u64)> {
            points.iter().map(|p| (p.tally.requests(), p.tally.errors())).collect()
        };
        assert_eq!(counts(&metrics.past(1)), [(0, 0), (5, 2)]);
        // Requests without a model are not counted for any model.
        assert_eq!(counts(&metrics.past_of("digits")).last(), Some(&(4, 1)));
        assert_eq!(metrics.past_of("digits").len(), 60);
        let rates = metrics.rates_of_versions()[&("digits".into(), 2)];
        assert_eq!(rates.error_percent, 25.0);
        assert_eq!(rates.rows_per_batch, Some(4.0));
        assert!(rates.last_used.is_some() && rates.p50_ms.is_some_and(|ms| ms > 2.0));
        // Counts after the last second are kept although the version is unloaded.
        signature.succeeded(PREDICT, Duration::from_millis(3), None);
        drop(version);
        metrics.write_history();
        metrics.write_history();
        assert_eq!(counts(&metrics.past(1)), [(0, 0), (5, 2), (1, 0), (0, 0)]);
        assert_eq!(counts(&metrics.past(2)), [(5, 2), (1, 0)]);
        assert!(metrics.rates_of_versions().is_empty());
    }

    #[test]
    fn a_version_that_is_loaded_anew_is_counted_once() {
        let metrics = Metrics::default();
        let old = metrics.version("m", 1, &["s"]);
        let count = |version: &super::super::VersionMetrics| {
            version.signature(0).unwrap().succeeded(PREDICT, Duration::ZERO, None);
        };
        count(&old);
        metrics.write_history();
        let new = metrics.version("m", 1, &["s"]);
        count(&new);
        count(&old);
        metrics.write_history();
        drop(old);
        count(&new);
        metrics.write_history();
        let counts: Vec<u64> = metrics.past(1).iter().map(|p| p.tally.requests()).collect();
        assert_eq!(counts, [1, 2, 1]);
        drop(new);
        let again = metrics.version("m", 1, &["s"]);
        count(&again);
        metrics.write_history();
        assert_eq!(metrics.past(1).last().unwrap().tally.requests(), 1);
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let metrics = Metrics::default();
        for _ in 0..POINTS + 5 {
            metrics.write_history();
        }
        assert_eq!(metrics.past(1).len(), POINTS);
        let mut models = HashMap::new();
        let tally = Tally::default();
        for number in 0..MOST_MODELS + 1 {
            let model: Arc<str> = format!("m{number}").into();
            add_to_model(&mut models, &model, number as u64, &tally);
        }
        assert_eq!(models.len(), MOST_MODELS);
        assert!(!models.contains_key("m0") && models.contains_key("m1"));
        let mut history = History { models, ..History::default() };
        history.forget(SLOTS + 10);
        assert!(!history.models.contains_key("m10") && history.models.contains_key("m11"));
    }
}
