//! Runs a plan.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::connection::LoadConnection;
use crate::load_thread::{End, LoadThread, Share};
use crate::pace::Pace;
use crate::plan::LoadPlan;
use crate::recorder::{Recorder, ThreadTotals, WindowPart};
use crate::results::{
    ClientCost, LoadCounts, LoadResults, LoadWindow, RunEnd, SparseCounts, histogram,
};
use crate::spread::relative_spread;
use tensorserve_tensor::error::{Error, Result};

/// How long a connection may take to open before the run.
const CONNECT: Duration = Duration::from_secs(10);

/// For how long a server may refuse all connections before the run ends.
const GONE: u64 = 2_000_000_000;

/// The fewest windows of a run that ends because its quantiles are steady.
const FEWEST_WINDOWS: usize = 10;

/// The quantiles that must be steady, and the half width of their interval that is.
const STEADY: [(f64, f64); 2] = [(0.5, 0.02), (0.99, 0.05)];

/// Within this time, every thread notices an earlier end.
const NOTICE: Duration = Duration::from_millis(150);

/// What a caller sees while a plan runs.
#[derive(Clone, Copy, Debug)]
pub struct LiveWindow<'w> {
    /// The window that is over.
    pub window: &'w LoadWindow,
    /// Its length in seconds.
    pub seconds: f64,
    /// Seconds that are measured so far, and at most.
    pub measured: f64,
    /// Seconds that are measured at most.
    pub of: f64,
}

/// Runs a plan. `observe` is called after each window, on this thread; the run ends early if it returns false.
///
/// # Errors
/// If the plan makes no run, the server cannot be connected to at the start, or a thread fails.
pub fn run(
    plan: &LoadPlan,
    observe: &mut dyn FnMut(LiveWindow<'_>) -> bool,
) -> Result<LoadResults> {
    plan.check()?;
    let threads = plan.threads.min(plan.connections);
    let mut connections = connect(plan)?;
    let start = Instant::now();
    let (from, window) = (nanoseconds(plan.warm_up), nanoseconds(plan.window()));
    let end: End = Arc::new(AtomicU64::new(from.saturating_add(nanoseconds(plan.duration))));
    let (sender, parts) = channel();
    let mut handles = Vec::new();
    for index in 0..threads {
        let share = Share {
            address: plan.address,
            tls: plan.tls.clone(),
            requests: Arc::clone(&plan.requests),
            connections: connections.pop().unwrap_or_default(),
            pace: Pace::new(&plan.arrivals, index, threads),
            timeout: plan.timeout,
            start,
            end: Arc::clone(&end),
            first: index,
            step: threads,
            recorder: Recorder::new(sender.clone(), from, window),
        };
        let failed =
            |e| Error::internal("a thread of the load could not be started").with_source(e);
        let name = format!("load-{index}");
        let handle = thread::Builder::new().name(name).spawn(move || LoadThread::new(share)?.run());
        handles.push(handle.map_err(failed)?);
    }
    drop(sender);
    let watch = RunWatch { plan, threads, start, from, end: &end, window };
    let (windows, ended) = watch.follow(&parts, observe);
    let mut totals = Vec::new();
    for handle in handles {
        let outcome =
            handle.join().map_err(|_| Error::internal("a thread of the load has failed"))?;
        let failed = |e| Error::internal("a thread of the load has failed").with_source(e);
        totals.push(outcome.map_err(failed)?);
    }
    let measured = end.load(Relaxed).saturating_sub(from);
    Ok(gather(windows, ended, totals, measured, plan.window().as_secs_f64()))
}

/// Opens all connections, dealt out to the threads.
fn connect(plan: &LoadPlan) -> Result<Vec<Vec<LoadConnection>>> {
    let threads = plan.threads.min(plan.connections);
    let mut all: Vec<Vec<LoadConnection>> = (0..threads).map(|_| Vec::new()).collect();
    for number in 0..plan.connections {
        let timeout = plan.timeout.min(CONNECT);
        let connection = LoadConnection::open(plan.address, plan.wire, plan.tls.as_ref(), timeout)
            .map_err(|e| {
                let message = match number {
                    0 => format!("{}: {e}", plan.address),
                    _ => format!(
                        "{}: connection {} of {}: {e}",
                        plan.address,
                        number + 1,
                        plan.connections
                    ),
                };
                Error::unavailable(message).with_source(e)
            })?;
        if let Some(of_thread) = all.get_mut(number % threads) {
            of_thread.push(connection);
        }
    }
    Ok(all)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The thread that follows the others.
struct RunWatch<'p> {
    plan: &'p LoadPlan,
    threads: usize,
    start: Instant,
    from: u64,
    end: &'p End,
    window: u64,
}

impl RunWatch<'_> {
    /// Puts windows together until all threads have ended.
    fn follow(
        &self,
        parts: &Receiver<WindowPart>,
        observe: &mut dyn FnMut(LiveWindow<'_>) -> bool,
    ) -> (Vec<LoadWindow>, RunEnd) {
        let mut open: BTreeMap<usize, (usize, LoadWindow, u64)> = BTreeMap::new();
        let (mut windows, mut ended) = (Vec::new(), RunEnd::Duration);
        let mut latencies: Vec<SparseCounts> = Vec::new();
        for part in parts {
            let (count, window, refused_for) =
                open.entry(part.index).or_insert_with(|| (0, LoadWindow::default(), u64::MAX));
            *count += 1;
            window.latency.add(&part.latency);
            window.counts.add(&part.counts);
            *refused_for = part.refused_for.min(*refused_for);
            if *count < self.threads || windows.len() != part.index {
                continue;
            }
            let Some((_, window, refused_for)) = open.remove(&part.index) else { continue };
            latencies.push(window.latency.clone());
            if ended == RunEnd::Duration {
                let why = self.why_to_end(&window, windows.len(), refused_for, &latencies, observe);
                if let Some(why) = why {
                    ended = why;
                    let at = nanoseconds(self.start.elapsed() + NOTICE);
                    self.end.fetch_min(at, Relaxed);
                }
            }
            windows.push(window);
        }
        // Threads may have ended in different windows, if the end was moved.
        windows.extend(open.into_values().map(|(_, window, _)| window));
        (windows, ended)
    }

    fn why_to_end(
        &self,
        window: &LoadWindow,
        index: usize,
        refused_for: u64,
        latencies: &[SparseCounts],
        observe: &mut dyn FnMut(LiveWindow<'_>) -> bool,
    ) -> Option<RunEnd> {
        let seconds = Duration::from_nanos(self.window).as_secs_f64();
        let of = self.plan.duration.as_secs_f64();
        let measured =
            (self.start.elapsed().saturating_sub(Duration::from_nanos(self.from))).as_secs_f64();
        if !observe(LiveWindow { window, seconds, measured: measured.min(of), of }) {
            return Some(RunEnd::Stopped);
        }
        if refused_for >= GONE {
            return Some(RunEnd::ServerGone);
        }
        let is_checked = self.plan.until_steady && index + 1 >= FEWEST_WINDOWS;
        (is_checked && are_steady(latencies)).then_some(RunEnd::Steady)
    }
}

fn are_steady(windows: &[SparseCounts]) -> bool {
    let spread = relative_spread(windows, &STEADY.map(|(quantile, _)| quantile));
    spread.iter().zip(STEADY).all(|(spread, (_, most))| *spread <= most)
}

// Counters of one run are exact.
#[allow(clippy::cast_precision_loss)]
fn gather(
    windows: Vec<LoadWindow>,
    ended: RunEnd,
    totals: Vec<ThreadTotals>,
    measured: u64,
    window_seconds: f64,
) -> LoadResults {
    let mut counts = LoadCounts::default();
    windows.iter().for_each(|window| counts.add(&window.counts));
    let seconds = Duration::from_nanos(measured).as_secs_f64();
    let (mut latency, mut lag, mut timings) = (histogram(), histogram(), BTreeMap::new());
    let mut client = ClientCost { threads: totals.len(), ..ClientCost::default() };
    let mut first_failure = None;
    for thread in totals {
        let _ = latency.add(&thread.latency);
        let _ = lag.add(&thread.lag);
        for (name, times) in thread.timings {
            let _ = timings.entry(name).or_insert_with(histogram).add(&times);
        }
        first_failure = first_failure.or(thread.first_failure);
        client.cpu_seconds += thread.cpu as f64 / 1e9;
        let of_time = |nanoseconds: u64| nanoseconds as f64 / (thread.measured.max(1) as f64);
        client.busiest = client.busiest.max(of_time(thread.cpu));
        client.waited_for_cpu = client.waited_for_cpu.max(of_time(thread.waited_for_cpu));
    }
    LoadResults {
        seconds,
        ended,
        window_seconds,
        windows,
        counts,
        latency,
        lag,
        timings,
        first_failure,
        client,
    }
}
