//! Keeps one place in a pool filled: starts a process, watches it, sees it end, starts the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::time::{interval, sleep, sleep_until, timeout};

use super::pool::Shared;
use super::process::{self, Broken, End, Order, Process, Worker};
use tensorserve_os::{self as os, machine};
use tensorserve_tensor::error::{Code, Error, Result};

/// A script must have been imported after this long.
const START_LIMIT: Duration = Duration::from_secs(300);

/// How long a process may take to end by itself.
const END_LIMIT: Duration = Duration::from_secs(2);

/// The same for one that has closed its socket, which is mostly dead by then.
const LAST_MOMENTS: Duration = Duration::from_millis(300);

/// The wait before a start after one that came to nothing; it doubles.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// How often its memory is looked at.
const MEMORY_CHECK: Duration = Duration::from_millis(200);

/// Most bytes of its last lines that are told when it has died.
const LAST_WORDS: usize = 1500;

/// Kinds of frames from a process that has just started, as in `python/worker.py`.
const READY: u8 = 1;
const BROKEN: u8 = 2;

/// How the first start went: what the program says about itself.
pub(super) type Report = std::sync::mpsc::Sender<Result<Vec<Option<String>>>>;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Keeps place number `place` filled until the pool stops. The first start is reported, and if it
/// fails there is no other.
pub(super) async fn keep(shared: Arc<Shared>, place: usize, report: Report) {
    let name: Arc<str> = format!("{} worker {place}", shared.program.name).into();
    let mut report = Some(report);
    let mut wait = Duration::ZERO;
    while !shared.is_stopped() {
        if !wait.is_zero() {
            pause(&shared, wait).await;
            if shared.is_stopped() {
                break;
            }
        }
        let life = live(&shared, &name, &mut report).await;
        match life {
            // It was of use: the next one comes at once.
            Ok(answered) if answered > 0 => wait = Duration::ZERO,
            Ok(_) => wait = (wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT),
            Err(NotReady { error, is_certain }) => {
                shared.failed(error.message(), is_certain);
                if let Some(report) = report.take() {
                    let _ = report.send(Err(error));
                    return;
                }
                log::error!("{name}: {error}");
                wait = (wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
            }
        }
    }
}

/// Waits, unless the pool stops.
async fn pause(shared: &Shared, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end && !shared.is_stopped() {
        sleep(Duration::from_millis(20)).await;
    }
}

/// Why a process did not get ready.
struct NotReady {
    error: Error,
    /// Whether the next one will not, either.
    is_certain: bool,
}

/// One process from its start to its end; says how many calls it answered.
async fn live(
    shared: &Arc<Shared>,
    name: &Arc<str>,
    report: &mut Option<Report>,
) -> Result<u64, NotReady> {
    let id = NEXT_ID.fetch_add(1, Relaxed);
    let certain = |error| NotReady { error, is_certain: true };
    let started = process::start(&shared.program, id, Arc::clone(name));
    let (worker, mut process) = started.map_err(certain)?;
    let worker = Arc::new(worker);
    match begin(&worker, &mut process, shared).await {
        Begun::Ready(about) => match report.take() {
            Some(report) => drop(report.send(Ok(about))),
            None => log::info!("{name}: ready"),
        },
        Begun::Failed(error) => {
            process.bury(&worker, None);
            return Err(certain(error));
        }
        Begun::Ended => {
            // Its socket is closed before it has ended, and how it ends is to be told.
            let _ = timeout(LAST_MOMENTS, process.ended.readable()).await;
            let End { what, last_lines } = process.bury(&worker, None);
            let message = format!("its process {what} before it was ready\n{last_lines}");
            let error = Error::precondition(message.trim_end().to_owned());
            return Err(NotReady { error, is_certain: false });
        }
    }
    shared.joined(Arc::clone(&worker));
    let reason = watch(&worker, &mut process, shared).await;
    shared.left(&worker);
    let end = process.bury(&worker, reason);
    if !worker.retired.load(Relaxed) {
        log::warn!("{name}: its process {}", end.what);
    }
    let _ = process.end.send(Some(end));
    Ok(worker.answered.load(Relaxed).saturating_sub(1))
}

/// How a start went.
enum Begun {
    /// What the program says about itself.
    Ready(Vec<Option<String>>),
    Failed(Error),
    Ended,
}

/// Waits until the process has set itself up.
async fn begin(worker: &Worker, process: &mut Process, shared: &Shared) -> Begun {
    let line = match worker.line() {
        Ok(line) => line,
        Err(error) => {
            let message = format!("a socket can not be watched: {error}");
            return Begun::Failed(Error::unavailable(message).with_source(error));
        }
    };
    let answer = line.receive();
    tokio::pin!(answer);
    let limit = pause(shared, START_LIMIT);
    tokio::pin!(limit);
    let frame = loop {
        tokio::select! {
            frame = &mut answer => break frame,
            () = process.log.read() => {}
            () = &mut limit => {
                let message = format!("not ready after {} s", START_LIMIT.as_secs());
                return Begun::Failed(Error::new(Code::DeadlineExceeded, message));
            }
        }
    };
    match frame {
        Ok(frame) if frame.kind == READY => Begun::Ready(frame.fields),
        Ok(frame) if frame.kind == BROKEN => {
            let text = frame.fields.into_iter().flatten().next().unwrap_or_default();
            Begun::Failed(Error::precondition(text.trim_end().to_owned()))
        }
        Err(Broken::Nonsense(error)) => Begun::Failed(error),
        Ok(_) | Err(Broken::Gone | Broken::NotSent) => Begun::Ended,
    }
}

/// Waits for the end of a process, and sees to it that it comes when it should. Returns why it was
/// killed, if it was.
async fn watch(worker: &Worker, process: &mut Process, shared: &Shared) -> Option<String> {
    let mut reason = None;
    let mut late = None;
    let mut check = interval(MEMORY_CHECK);
    let limit = shared.memory_limit;
    let never = tokio::time::Instant::now() + Duration::from_secs(u64::from(u32::MAX));
    let end_by = sleep_until(never);
    tokio::pin!(end_by);
    loop {
        tokio::select! {
            _ = process.ended.readable() => return reason,
            () = process.log.read() => {}
            order = process.orders.recv() => match order {
                Some(Order::Kill(why)) => {
                    reason.get_or_insert(why);
                    process.kill();
                }
                Some(Order::End) | None => {
                    worker.close();
                    end_by.as_mut().reset(tokio::time::Instant::now() + END_LIMIT);
                }
                Some(Order::Finish) => {
                    worker.close();
                    late = Some("was stopped: it had closed its socket");
                    end_by.as_mut().reset(tokio::time::Instant::now() + LAST_MOMENTS);
                }
            },
            () = &mut end_by => {
                reason = reason.or(late.take().map(str::to_owned));
                process.kill();
                end_by.as_mut().reset(never);
            }
            _ = check.tick(), if limit.is_some() => {
                if let Some(why) = check_memory(worker, process, shared) {
                    reason.get_or_insert(why);
                    process.kill();
                }
            }
        }
    }
}

/// A process that holds too much is replaced after its call; one that holds half as much again is
/// killed, for the reason that is returned.
fn check_memory(worker: &Worker, process: &Process, shared: &Shared) -> Option<String> {
    let (held, limit) = (process.resident()?, shared.memory_limit?);
    if held <= limit {
        return None;
    }
    let mib = |bytes: usize| bytes >> 20;
    if held > limit.saturating_add(limit / 2) {
        let (held, limit) = (mib(held), mib(limit));
        return Some(format!(
            "was stopped: it held {held} MiB of memory, and handler_memory_limit is {limit} MiB"
        ));
    }
    if !worker.retired.load(Relaxed) {
        let (name, held) = (&worker.name, mib(held));
        log::warn!("{name}: holds {held} MiB of memory, and is replaced");
        shared.retire(worker);
    }
    None
}

impl Process {
    /// Kills it, and those it has started.
    fn kill(&self) {
        os::kill_process_group(self.child.id());
    }

    /// The memory it holds, in bytes.
    fn resident(&self) -> Option<usize> {
        machine::resident_memory(Some(self.child.id()))?.try_into().ok()
    }

    /// Ends it if it has not ended, and what it has started; says how it went. No process is left,
    /// nor its number ours, after that.
    fn bury(&mut self, worker: &Worker, reason: Option<String>) -> End {
        self.kill();
        let status = self.child.wait();
        self.log.finish();
        let what = reason.unwrap_or_else(|| match status {
            Ok(status) => process::describe(status),
            Err(error) => format!("has ended: {error}"),
        });
        let since = worker.lines_before.load(Relaxed);
        End { what, last_lines: self.log.last_lines(since, LAST_WORDS) }
    }
}
