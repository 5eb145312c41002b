//! What a job has done so far, for people and for programs.

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Objects whose times are kept.
const SLOWEST: usize = 20;

/// Failures whose texts are kept.
const FAILURES: usize = 100;

/// Points in time at which the throughput is kept. Their distance doubles when there are more.
const POINTS: usize = 600;

/// Counters, which the entry threads increase.
pub struct Progress {
    started: Instant,
    /// What remains for this process at its start.
    pub total_objects: u64,
    /// The bytes of these.
    pub total_bytes: u64,
    /// Objects that are done.
    pub objects: AtomicU64,
    /// Objects that have failed.
    pub failed: AtomicU64,
    /// Objects that are not what the job takes, and were left out.
    pub skipped: AtomicU64,
    /// Bytes that have been read of objects, and of batches of objects that are done.
    pub bytes: AtomicU64,
    /// Records with their outputs written, or with what was wrong noted.
    pub records: AtomicU64,
    /// Records that have been run, each time that they were. The throughput over time is theirs: the
    /// outputs of several batches are written at once.
    pub ran: AtomicU64,
    /// Records that have no output.
    pub bad: AtomicU64,
    /// Bytes of outputs.
    pub out_bytes: AtomicU64,
    /// Nanoseconds that entry threads spent on reading and splitting.
    pub reading: AtomicU64,
    /// Nanoseconds that entry threads waited for the model.
    pub waiting: AtomicU64,
    /// Nanoseconds that entry threads spent on writing.
    pub writing: AtomicU64,
    /// Nanoseconds that entry threads spent on publishing outputs.
    pub publishing: AtomicU64,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    slowest: Vec<SlowObject>,
    /// Objects that are split into ranges.
    ranges: HashMap<String, SlowObject>,
    failures: Vec<FailureNote>,
    skips: Vec<FailureNote>,
    points: Vec<Point>,
    /// Points to skip between two that are kept.
    stride: usize,
    skipped: usize,
}

/// How long an object took.
#[derive(Clone, Debug, Serialize)]
pub struct SlowObject {
    /// Its key.
    pub object: String,
    /// Seconds of work on it: reading, running, writing and publishing. What is done for several objects at once
    /// counts for each with its share, and waiting for other objects does not count.
    pub seconds: f64,
    /// Its bytes.
    pub bytes: u64,
    /// Its records.
    pub records: u64,
}

/// An object that failed, or a bad record of one.
#[derive(Clone, Debug, Serialize)]
pub struct FailureNote {
    /// The key of the object.
    pub object: String,
    /// What was wrong, and where.
    pub reason: String,
}

/// What was done at a point in time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Seconds since the start.
    pub seconds: f64,
    /// Records that have been run by then.
    pub ran: u64,
}

/// All counters at one time.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Seconds since the start.
    pub seconds: f64,
    /// Objects that are done.
    pub objects: u64,
    /// Objects that this process had to do.
    pub total_objects: u64,
    /// Objects that failed.
    pub failed_objects: u64,
    /// Objects that are not what the job takes, and were left out.
    pub skipped_objects: u64,
    /// Bytes of input that are done.
    pub bytes: u64,
    /// Bytes that this process had to do.
    pub total_bytes: u64,
    /// Records that have been run.
    pub records: u64,
    /// Records without an output.
    pub bad_records: u64,
    /// Bytes of output.
    pub output_bytes: u64,
    /// Records per second, on average.
    pub records_per_second: f64,
    /// Seconds until the end at this rate; absent at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<f64>,
}

impl Progress {
    /// Counters at zero.
    #[must_use]
    pub fn new(total_objects: u64, total_bytes: u64) -> Self {
        let zero = AtomicU64::default;
        Progress {
            started: Instant::now(),
            total_objects,
            total_bytes,
            objects: zero(),
            failed: zero(),
            skipped: zero(),
            bytes: zero(),
            records: zero(),
            ran: zero(),
            bad: zero(),
            out_bytes: zero(),
            reading: zero(),
            waiting: zero(),
            writing: zero(),
            publishing: zero(),
            notes: Mutex::default(),
        }
    }

    /// Adds the time since `start` to a counter of nanoseconds, and returns it.
    pub(crate) fn spent(counter: &AtomicU64, start: Instant) -> Duration {
        let spent = start.elapsed();
        counter.fetch_add(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        spent
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Notes how long a range of an object took. The times of all of them are those of the object.
    pub(crate) fn range_took(&self, range: SlowObject) {
        let mut notes = self.notes();
        match notes.ranges.get_mut(&range.object) {
            Some(object) => {
                object.seconds += range.seconds;
                object.bytes += range.bytes;
                object.records += range.records;
            }
            None => drop(notes.ranges.insert(range.object.clone(), range)),
        }
    }

    /// Notes how long an object took.
    pub(crate) fn took(&self, slow: SlowObject) {
        let mut notes = self.notes();
        let at = notes.slowest.partition_point(|other| other.seconds >= slow.seconds);
        if at < SLOWEST {
            notes.slowest.insert(at, slow);
            notes.slowest.truncate(SLOWEST);
        }
    }

    /// Counts an object that fails before the run.
    pub fn fails(&self, object: &str, reason: &str) {
        self.failed.fetch_add(1, Relaxed);
        self.failed_with(object, reason);
    }

    /// Notes a failure.
    pub(crate) fn failed_with(&self, object: &str, reason: &str) {
        note_first(&mut self.notes().failures, object, reason);
    }

    /// Counts an object that is left out, and notes why.
    pub(crate) fn skips_one(&self, object: &str, reason: &str) {
        self.skipped.fetch_add(1, Relaxed);
        note_first(&mut self.notes().skips, object, reason);
    }

    /// The first objects that were left out, and why.
    #[must_use]
    pub fn skips(&self) -> Vec<FailureNote> {
        self.notes().skips.clone()
    }

    /// Keeps the current throughput. Called at a steady rate.
    pub fn keep_point(&self) {
        let point =
            Point { seconds: self.started.elapsed().as_secs_f64(), ran: self.ran.load(Relaxed) };
        let mut notes = self.notes();
        if notes.skipped < notes.stride {
            notes.skipped += 1;
            return;
        }
        notes.skipped = 0;
        notes.points.push(point);
        if notes.points.len() >= POINTS {
            let mut index = 0;
            notes.points.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            notes.stride = notes.stride * 2 + 1;
        }
    }

    /// The throughput so far, the slowest objects and the first failures.
    #[must_use]
    pub fn history(&self) -> (Vec<Point>, Vec<SlowObject>, Vec<FailureNote>) {
        let notes = self.notes();
        let mut slowest: Vec<SlowObject> =
            notes.slowest.iter().chain(notes.ranges.values()).cloned().collect();
        slowest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        slowest.truncate(SLOWEST);
        (notes.points.clone(), slowest, notes.failures.clone())
    }

    /// All counters.
    #[must_use]
    // Precise up to 2^53.
    #[allow(clippy::cast_precision_loss)]
    pub fn snapshot(&self) -> Snapshot {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let seconds = self.started.elapsed().as_secs_f64();
        let (bytes, records) = (load(&self.bytes).min(self.total_bytes), load(&self.records));
        let left = self.total_bytes - bytes;
        let is_begun = seconds > 1.0 && bytes > 0;
        Snapshot {
            seconds,
            objects: load(&self.objects),
            total_objects: self.total_objects,
            failed_objects: load(&self.failed),
            skipped_objects: load(&self.skipped),
            bytes,
            total_bytes: self.total_bytes,
            records,
            bad_records: load(&self.bad),
            output_bytes: load(&self.out_bytes),
            records_per_second: records as f64 / seconds.max(1e-9),
            seconds_left: is_begun.then(|| seconds * left as f64 / bytes as f64),
        }
    }

    /// The time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Notes an object and why, if it is one of the first.
fn note_first(notes: &mut Vec<FailureNote>, object: &str, reason: &str) {
    if notes.len() < FAILURES {
        notes.push(FailureNote { object: object.to_owned(), reason: reason.to_owned() });
    }
}

/// Counts the bytes of an object while they are read: compressed ones as they are stored, and no more than the
/// object has, since the last line of a range ends in the next one. An object that is read again is counted anew.
pub(crate) struct ReadCount {
    progress: Arc<Progress>,
    /// The bytes of the object, or of its range.
    all: u64,
    counted: AtomicU64,
}

impl ReadCount {
    /// A count for an object with this many bytes.
    pub(crate) fn new(progress: &Arc<Progress>, all: u64) -> Arc<Self> {
        Arc::new(ReadCount { progress: Arc::clone(progress), all, counted: AtomicU64::new(0) })
    }

    fn add(&self, count: usize) {
        let counted = self.counted.load(Relaxed);
        let more = u64::try_from(count).unwrap_or(u64::MAX).min(self.all - counted.min(self.all));
        // One thread reads an object.
        self.counted.store(counted + more, Relaxed);
        self.progress.bytes.fetch_add(more, Relaxed);
    }

    /// Counts nothing: the object is read again.
    pub(crate) fn restart(&self) {
        self.progress.bytes.fetch_sub(self.counted.swap(0, Relaxed), Relaxed);
    }

    /// Counts all: the object is done, or has failed.
    pub(crate) fn complete(&self) {
        let counted = self.counted.swap(self.all, Relaxed);
        self.progress.bytes.fetch_add(self.all - counted, Relaxed);
    }
}

/// A source whose bytes are counted.
pub(crate) struct CountedRead<R> {
    source: R,
    count: Arc<ReadCount>,
}

impl<R> CountedRead<R> {
    pub(crate) fn new(source: R, count: Arc<ReadCount>) -> Self {
        CountedRead { source, count }
    }
}

impl<R: Read> Read for CountedRead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.count.add(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_while_they_are_read_and_once() {
        let progress = Arc::new(Progress::new(1, 100));
        let read = |count: &Arc<ReadCount>, bytes: &[u8], most: usize| {
            let mut source = CountedRead::new(bytes, Arc::clone(count));
            let mut buffer = vec![0; most];
            source.read_exact(&mut buffer).expect("enough");
        };
        let count = ReadCount::new(&progress, 10);
        read(&count, &[0; 20], 4);
        assert_eq!(progress.snapshot().bytes, 4);
        // The line that ends in the next range.
        read(&count, &[0; 20], 20);
        assert_eq!(progress.snapshot().bytes, 10);
        count.restart();
        assert_eq!(progress.snapshot().bytes, 0);
        read(&count, &[0; 20], 3);
        count.complete();
        assert_eq!(progress.snapshot().bytes, 10);
    }

    #[test]
    fn the_slowest_objects_and_an_even_history_are_kept() {
        let progress = Progress::new(1, 1);
        for n in 0..100_u32 {
            let slow =
                SlowObject { object: n.to_string(), seconds: n.into(), bytes: 0, records: 0 };
            progress.took(slow);
        }
        for _ in 0..5000 {
            progress.keep_point();
        }
        let (points, slowest, _) = progress.history();
        assert_eq!(slowest.len(), SLOWEST);
        assert_eq!((slowest[0].object.as_str(), slowest[19].object.as_str()), ("99", "80"));
        assert!(points.len() < POINTS && points.len() >= POINTS / 4, "{}", points.len());
        // Two ranges of an object are one object.
        for _ in 0..2 {
            let object = "large".to_owned();
            progress.range_took(SlowObject { object, seconds: 60.0, bytes: 1, records: 2 });
        }
        let (_, slowest, _) = progress.history();
        let SlowObject { object, seconds, bytes, records } = &slowest[0];
        assert_eq!((object.as_str(), *seconds, *bytes, *records), ("large", 120.0, 2, 4));
        assert_eq!((slowest.len(), slowest[1].object.as_str()), (SLOWEST, "99"));
    }
}
