//! The request log: sampled requests with their responses, written to files as records.
//!
//! The thread of a request draws a random number, and queues the request with its response; it
//! never waits, and a request that does not fit into the queue is dropped and counted. One thread
//! encodes the records ([`RequestLogFormat`], which a protocol implements) and writes them to the
//! model's file ([`file`](mod@file)).

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use crossbeam::channel::{Receiver, Sender, bounded};

use self::file::LogFile;
use crate::config::LogConfig;
use crate::entry::Method;
use crate::metrics::{Metrics, RecordOutcome};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::random::{STEP, split_mix};
use tensorserve_tensor::{Signature, Tensor};

mod file;

/// The files of a model's request log, the newest first. They may have requests to other models, too.
pub(crate) fn log_files(config: &LogConfig, model: &str) -> Vec<PathBuf> {
    config.prefix.as_deref().map_or_else(Vec::new, |prefix| file::files_of(prefix, model))
}

/// The most requests that wait to be written, and the most memory that they hold.
const MOST_WAITING: usize = 1024;
const MOST_BYTES: usize = 64 << 20;

/// A sampled inference with its response. It does not keep the version in memory.
pub struct LoggedInference {
    /// The model's name.
    pub model: Arc<str>,
    /// The version's number.
    pub version: i64,
    /// The version's signatures.
    pub signatures: Arc<[Signature]>,
    /// The method of the request.
    pub method: Method,
    /// Its runs, in order.
    pub runs: Vec<LoggedRun>,
    /// When the response was complete.
    pub at: SystemTime,
    /// The fraction of requests that is logged, 0 to 1.
    pub sampling_rate: f64,
}

/// One run of a logged inference.
pub struct LoggedRun {
    /// The signature's number in [`LoggedInference::signatures`].
    pub signature: usize,
    /// The method that the run served.
    pub method: Method,
    /// One tensor for each of its inputs.
    pub inputs: Vec<Tensor>,
    /// The requested outputs, by number, in this order; empty for all.
    pub output_filter: Vec<usize>,
    /// One tensor for each requested output.
    pub outputs: Vec<Tensor>,
}

impl LoggedInference {
    /// Memory that its tensors hold until the record is written, in bytes.
    fn kept_len(&self) -> usize {
        let tensors = self.runs.iter().flat_map(|run| run.inputs.iter().chain(&run.outputs));
        tensors.map(Tensor::kept_len).fold(0, usize::saturating_add)
    }
}

/// The format of the records of a request log.
pub trait RequestLogFormat: Send + Sync {
    /// The bytes of the record; `None` if this format has no record for it.
    fn record(&self, inference: &LoggedInference) -> Option<Vec<u8>>;
}

/// The logs of a server's models. Cheap to clone.
#[derive(Clone)]
pub struct RequestLogs(Arc<RequestLogsShared>);

struct RequestLogsShared {
    metrics: Metrics,
    format: Arc<dyn RequestLogFormat>,
    /// The queue of the thread, which is started with the first log.
    queue: Mutex<Option<RecordQueue>>,
    logs: Mutex<BTreeMap<Arc<str>, Arc<RequestLog>>>,
}

#[derive(Clone)]
struct RecordQueue {
    items: Sender<RecordQueueItem>,
    /// Memory that the queued requests hold.
    bytes: Arc<AtomicUsize>,
}

enum RecordQueueItem {
    Request(PendingRecord),
    /// Sent on once everything queued before is written.
    Flush(Sender<()>),
}

/// A request that waits to be written.
struct PendingRecord {
    inference: LoggedInference,
    /// Memory that it holds until then.
    bytes: usize,
    target: Arc<RecordTarget>,
}

/// The log file of a model.
struct RecordTarget {
    model: Arc<str>,
    file: Mutex<LogFile>,
}

/// The log of one model.
pub struct RequestLog {
    config: LogConfig,
    sampler: Sampler,
    target: Arc<RecordTarget>,
    queue: RecordQueue,
    metrics: Metrics,
}

impl RequestLogs {
    /// Without any log yet.
    #[must_use]
    pub fn new(metrics: Metrics, format: Arc<dyn RequestLogFormat>) -> Self {
        let (queue, logs) = (Mutex::default(), Mutex::default());
        RequestLogs(Arc::new(RequestLogsShared { metrics, format, queue, logs }))
    }

    /// The log of `model` with these settings: the existing one if they have not changed. `None` if
    /// nothing is to be logged.
    #[must_use]
    pub fn of(&self, model: &Arc<str>, config: &LogConfig) -> Option<Arc<RequestLog>> {
        let mut logs = self.0.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = logs.get(model)
            && log.config == *config
        {
            return Some(Arc::clone(log));
        }
        logs.remove(model);
        let prefix = config.prefix.as_deref().filter(|_| config.sampling_rate > 0.0)?;
        let queue = match self.queue() {
            Ok(queue) => queue,
            Err(error) => {
                log::error!("the requests of {model} are not logged: {error}");
                return None;
            }
        };
        let file = Mutex::new(LogFile::new(prefix, model, config.max_file_bytes));
        let log = Arc::new(RequestLog {
            config: config.clone(),
            sampler: Sampler::new(config.sampling_rate),
            target: Arc::new(RecordTarget { model: Arc::clone(model), file }),
            queue,
            metrics: self.0.metrics.clone(),
        });
        logs.insert(Arc::clone(model), Arc::clone(&log));
        Some(log)
    }

    /// Closes the log of a model that is no longer served.
    pub fn forget(&self, model: &str) {
        self.0.logs.lock().unwrap_or_else(PoisonError::into_inner).remove(model);
    }

    /// Waits until all queued requests are written, for at most `patience`.
    pub fn flush(&self, patience: Duration) {
        let queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(queue) = queue else {
            return;
        };
        let (done, written) = bounded(1);
        let sent = queue.items.send_timeout(RecordQueueItem::Flush(done), patience);
        if sent.is_err() || written.recv_timeout(patience).is_err() {
            log::warn!("the request log was not written completely within {patience:?}");
        }
    }

    /// The queue of the thread, which is started by the first call.
    fn queue(&self) -> Result<RecordQueue> {
        let mut slot = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = &*slot {
            return Ok(queue.clone());
        }
        let (items, received) = bounded(MOST_WAITING);
        let bytes = Arc::new(AtomicUsize::new(0));
        let (kept, metrics) = (Arc::clone(&bytes), self.0.metrics.clone());
        let format = Arc::clone(&self.0.format);
        let thread = thread::Builder::new().name("request log".to_owned());
        thread.spawn(move || write_all(&received, &kept, &*format, &metrics)).map_err(|e| {
            Error::internal("the request log thread could not be started").with_source(e)
        })?;
        let queue = RecordQueue { items, bytes };
        *slot = Some(queue.clone());
        Ok(queue)
    }
}

/// The thread: writes queued requests until all senders are dropped.
fn write_all(
    items: &Receiver<RecordQueueItem>,
    kept: &AtomicUsize,
    format: &dyn RequestLogFormat,
    metrics: &Metrics,
) {
    for item in items {
        match item {
            RecordQueueItem::Flush(done) => drop(done.send(())),
            RecordQueueItem::Request(PendingRecord { inference, bytes, target }) => {
                let record = catch_unwind(AssertUnwindSafe(|| format.record(&inference)));
                drop(inference);
                kept.fetch_sub(bytes, Relaxed);
                let mut file = target.file.lock().unwrap_or_else(PoisonError::into_inner);
                let outcome = match record {
                    Ok(None) => continue,
                    Ok(Some(record)) if file.write(&record) => RecordOutcome::Written,
                    Ok(Some(_)) => RecordOutcome::Failed,
                    Err(_) => {
                        metrics.panicked();
                        RecordOutcome::Failed
                    }
                };
                metrics.logged(&target.model, outcome);
            }
        }
    }
}

impl RequestLog {
    /// Whether to log a request, at random.
    pub fn samples(&self) -> bool {
        self.sampler.draw()
    }

    /// The fraction of requests that is logged.
    #[must_use]
    pub fn sampling_rate(&self) -> f64 {
        self.config.sampling_rate
    }

    /// Queues a sampled request, to be written by the log's thread.
    pub fn write(&self, inference: LoggedInference) {
        let bytes = inference.kept_len();
        // A request larger than the limit is accepted if nothing else waits.
        let waiting = self.queue.bytes.fetch_add(bytes, Relaxed);
        let fits = waiting == 0 || waiting.saturating_add(bytes) <= MOST_BYTES;
        let target = Arc::clone(&self.target);
        let item = RecordQueueItem::Request(PendingRecord { inference, bytes, target });
        if !fits || self.queue.items.try_send(item).is_err() {
            self.queue.bytes.fetch_sub(bytes, Relaxed);
            self.metrics.logged(&self.target.model, RecordOutcome::Dropped);
        }
    }
}

/// A random generator, good enough for sampling and cheap enough for every request.
struct Sampler {
    state_counter: AtomicU64,
    /// Values below this are sampled.
    threshold: u64,
    always: bool,
}

impl Sampler {
    fn new(rate: f64) -> Self {
        // Servers that start at the same time must not sample the same requests.
        let seed = RandomState::new().hash_one(0);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // The cast saturates.
        let threshold = (rate * 2f64.powi(64)) as u64;
        Sampler { state_counter: AtomicU64::new(seed), threshold, always: rate >= 1.0 }
    }

    fn draw(&self) -> bool {
        if self.always {
            return true;
        }
        split_mix(self.state_counter.fetch_add(STEP, Relaxed)) < self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{Shape, StringsBuilder};

    /// Writes the bytes of an inference's only input. The record `first` waits for the gate.
    struct Bytes(Option<Receiver<()>>);

    impl RequestLogFormat for Bytes {
        fn record(&self, inference: &LoggedInference) -> Option<Vec<u8>> {
            let bytes = inference.runs[0].inputs[0].strings()?.iter().next()?.to_vec();
            if let (Some(gate), b"first") = (&self.0, &bytes[..]) {
                let _ = gate.recv();
            }
            assert_ne!(bytes, b"a bug");
            // A large inference is large only while it waits.
            Some(if bytes.len() > 100 { b"large".to_vec() } else { bytes })
        }
    }

    fn inference(bytes: &[u8]) -> LoggedInference {
        let mut strings = StringsBuilder::default();
        strings.push(bytes);
        let input = Tensor::from_strings(Shape::vector(1), strings).expect("a tensor");
        let run = LoggedRun {
            signature: 0,
            method: Method::Predict,
            inputs: vec![input],
            output_filter: Vec::new(),
            outputs: Vec::new(),
        };
        LoggedInference {
            model: "m".into(),
            version: 1,
            signatures: [].into(),
            method: Method::Predict,
            runs: vec![run],
            at: SystemTime::now(),
            sampling_rate: 1.0,
        }
    }

    fn logs_of(format: Bytes) -> RequestLogs {
        RequestLogs::new(Metrics::default(), Arc::new(format))
    }

    fn log(rate: f64, folder: &std::path::Path) -> (RequestLogs, Arc<RequestLog>) {
        log_with(rate, folder, Bytes(None))
    }

    fn log_with(
        rate: f64,
        folder: &std::path::Path,
        format: Bytes,
    ) -> (RequestLogs, Arc<RequestLog>) {
        let logs = logs_of(format);
        let prefix = Some(folder.to_owned());
        let config = LogConfig { prefix, sampling_rate: rate, max_file_bytes: 1 << 20 };
        let log = logs.of(&Arc::from("m"), &config).expect("a log");
        (logs, log)
    }

    fn written(folder: &std::path::Path) -> usize {
        let files = std::fs::read_dir(folder).expect("a directory");
        files.map(|file| file.expect("an entry").metadata().expect("a file").len()).sum::<u64>()
            as usize
    }

    #[test]
    fn so_many_are_sampled_as_asked_for() {
        let wins = |rate: f64| {
            let sampler = Sampler::new(rate);
            (0..100_000).filter(|_| sampler.draw()).count()
        };
        assert_eq!(wins(1.0), 100_000);
        assert_eq!(wins(1e-30), 0);
        assert!((9_000..11_000).contains(&wins(0.1)), "{}", wins(0.1));
        assert!((49_000..51_000).contains(&wins(0.5)), "{}", wins(0.5));
    }

    #[test]
    fn nothing_is_logged_without_a_place_or_a_rate() {
        let logs = logs_of(Bytes(None));
        let model = Arc::from("m");
        let config = LogConfig { prefix: None, sampling_rate: 1.0, max_file_bytes: 1 };
        assert!(logs.of(&model, &config).is_none());
        let prefix = Some("/tmp/x".into());
        let config = LogConfig { prefix, sampling_rate: 0.0, max_file_bytes: 1 };
        assert!(logs.of(&model, &config).is_none());
        assert!(logs.0.queue.lock().expect("a lock").is_none(), "no thread must start");
    }

    #[test]
    fn the_same_settings_keep_the_log() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let (logs, log) = log(0.5, folder.path());
        let model = Arc::from("m");
        let same = logs.of(&model, &log.config).expect("a log");
        assert!(Arc::ptr_eq(&same, &log));
        let other = LogConfig { sampling_rate: 0.25, ..log.config.clone() };
        assert!(!Arc::ptr_eq(&logs.of(&model, &other).expect("a log"), &log));
        logs.forget("m");
        assert!(logs.0.logs.lock().expect("a lock").is_empty());
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_nobody_waits() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let (open, gate) = bounded::<()>(0);
        let (logs, log) = log_with(1.0, folder.path(), Bytes(Some(gate)));
        log.write(inference(b"first"));
        // More than the queue accepts, by number and by size.
        for _ in 0..MOST_WAITING + 10 {
            log.write(inference(b"x"));
        }
        log.write(inference(&vec![0; MOST_BYTES]));
        drop(open);
        logs.flush(Duration::from_secs(20));
        let text = log.metrics.encode().expect("text");
        let count = |result: &str| -> usize {
            let series =
                format!("tensorserve_logged_requests_total{{model=\"m\",result=\"{result}\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&series));
            value.expect(result).parse().expect("a number")
        };
        assert_eq!(count("written") + count("dropped"), MOST_WAITING + 12);
        assert!(count("dropped") >= 10, "{text}");
        assert_eq!(written(folder.path()), 16 + 5 + 17 * (count("written") - 1));
        assert_eq!(log.queue.bytes.load(Relaxed), 0);
        // The empty queue accepts even an inference above its size limit.
        log.write(inference(&vec![0; 2 * MOST_BYTES]));
        logs.flush(Duration::from_secs(20));
        log.write(inference(b"a bug"));
        logs.flush(Duration::from_secs(20));
        assert!(log.metrics.encode().expect("text").contains("result=\"failed\"} 1"));
    }
}
