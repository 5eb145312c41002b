//! What a thread counts, window by window.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;

use hdrhistogram::Histogram;

use crate::connection::Answered;
use crate::cost::ThreadCost;
use crate::response::durations;
use crate::results::{FailureKind, FailureSample, LoadCounts, SparseCounts, histogram};

/// The most names of a `Server-Timing` that are kept.
const MOST_TIMINGS: usize = 8;

/// A window of one thread, complete.
pub(crate) struct WindowPart {
    pub(crate) index: usize,
    pub(crate) latency: SparseCounts,
    pub(crate) counts: LoadCounts,
    /// For how long every attempt to connect has been refused, in nanoseconds; 0 if the server accepts.
    pub(crate) refused_for: u64,
}

/// All of a thread, at its end.
pub(crate) struct ThreadTotals {
    pub(crate) latency: Histogram<u64>,
    pub(crate) lag: Histogram<u64>,
    pub(crate) timings: BTreeMap<String, Histogram<u64>>,
    pub(crate) first_failure: Option<FailureSample>,
    /// Nanoseconds from the start of the measured time to the end of the thread: all, on a CPU, and ready without one.
    pub(crate) measured: u64,
    pub(crate) cpu: u64,
    pub(crate) waited_for_cpu: u64,
}

pub(crate) struct Recorder {
    sender: Sender<WindowPart>,
    /// The measured time, in nanoseconds from the start of the run.
    from: u64,
    window: u64,
    index: usize,
    latency: Histogram<u64>,
    counts: LoadCounts,
    totals: ThreadTotals,
}

impl Recorder {
    pub(crate) fn new(sender: Sender<WindowPart>, from: u64, window: u64) -> Self {
        let totals = ThreadTotals {
            latency: histogram(),
            lag: histogram(),
            timings: BTreeMap::new(),
            first_failure: None,
            measured: 0,
            cpu: 0,
            waited_for_cpu: 0,
        };
        let (latency, counts) = (histogram(), LoadCounts::default());
        Recorder { sender, from, window: window.max(1), index: 0, latency, counts, totals }
    }

    /// When the current window ends.
    pub(crate) fn window_end(&self) -> u64 {
        let windows = (self.index as u64).saturating_add(1);
        self.from.saturating_add(windows.saturating_mul(self.window))
    }

    /// Ends the windows that are over. The last one stays open for what is in flight at `end`.
    pub(crate) fn turn(&mut self, now: u64, end: u64, refused_for: u64) {
        while self.window_end() <= now && self.window_end() < end {
            self.flush(refused_for);
        }
    }

    fn flush(&mut self, refused_for: u64) {
        let latency = SparseCounts::of(&self.latency);
        let _ = self.totals.latency.add(&self.latency);
        self.latency.reset();
        let counts = std::mem::take(&mut self.counts);
        let _ = self.sender.send(WindowPart { index: self.index, latency, counts, refused_for });
        self.index += 1;
    }

    /// Whether a request that is due at `due` counts.
    pub(crate) fn counts(&self, due: u64) -> bool {
        due >= self.from
    }

    /// A request that was sent this late although a connection was free.
    pub(crate) fn lag(&mut self, nanoseconds: u64) {
        self.totals.lag.saturating_record(nanoseconds.max(1));
    }

    /// A request that had to wait for a connection.
    pub(crate) fn waited(&mut self) {
        self.counts.waited += 1;
    }

    /// A successful response at this time, whenever its request was due.
    pub(crate) fn completed(&mut self, now: u64) {
        self.counts.completed += u64::from(now >= self.from);
    }

    /// A response.
    pub(crate) fn answered(&mut self, answer: &Answered<'_>, latency: u64) {
        *self.counts.statuses.entry(answer.status).or_default() += 1;
        if !answer.is_success {
            return;
        }
        self.counts.succeeded += 1;
        self.latency.saturating_record(latency.max(1));
        let timing = answer.timing;
        if timing.is_empty() {
            return;
        }
        for (name, nanoseconds) in durations(timing) {
            let timings = &mut self.totals.timings;
            if let Some(known) = timings.get_mut(name) {
                known.saturating_record(nanoseconds.max(1));
            } else if timings.len() < MOST_TIMINGS {
                let mut new = histogram();
                new.saturating_record(nanoseconds.max(1));
                timings.insert(name.to_owned(), new);
            }
        }
    }

    /// A request without a complete response. One that timed out has waited at least that long, and leaving it out
    /// would flatter the server.
    pub(crate) fn failed(&mut self, kind: FailureKind, latency: u64) {
        *self.counts.failures.entry(kind).or_default() += 1;
        if kind == FailureKind::Timeout {
            self.latency.saturating_record(latency.max(1));
        }
    }

    /// Keeps a failure to be shown, if it is the first.
    pub(crate) fn sample(&mut self, make: impl FnOnce() -> FailureSample) {
        if self.totals.first_failure.is_none() {
            self.totals.first_failure = Some(make());
        }
    }

    pub(crate) fn bytes(&mut self, sent: usize, received: u64) {
        self.counts.bytes_sent = self.counts.bytes_sent.saturating_add(sent as u64);
        self.counts.bytes_received = self.counts.bytes_received.saturating_add(received);
    }

    pub(crate) fn reconnected(&mut self) {
        self.counts.reconnects += 1;
    }

    pub(crate) fn unsent(&mut self, count: u64) {
        self.counts.unsent += count;
    }

    /// Ends the last window.
    pub(crate) fn finish(mut self, refused_for: u64, cost: ThreadCost) -> ThreadTotals {
        self.flush(refused_for);
        self.totals.measured = cost.at;
        self.totals.cpu = cost.cpu;
        self.totals.waited_for_cpu = cost.waited;
        self.totals
    }
}
