//! Keeps one slot of a pool filled: starts a process, supervises it, reaps it, and starts the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::time::{interval, sleep, sleep_until, timeout};

use super::ActiveKeeper;
use super::connection::{ExchangeError, WorkerConnection};
use super::pool::WorkerPool;
use super::process::{self, KeeperCommand, ProcessEnd, Worker, WorkerProcess};
use tensorserve_os::{self as os, machine};
use tensorserve_tensor::error::{Code, Error, Result};

/// The time in which a script must be imported.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// The time in which a process must exit by itself.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The time in which a process must exit that has closed its socket, and is mostly dead by then.
const EXIT_TIMEOUT_AFTER_CLOSE: Duration = Duration::from_millis(300);

/// The wait before a start after a process without a call; it doubles each time, up to a maximum.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The interval at which a wait checks whether the pool has stopped.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The interval of memory checks.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The most bytes of a process's last lines that describe its end.
const MAX_LAST_LINES_BYTES: usize = 4000;

/// The kinds of replies of a process that has just started, as in `python/worker.py`.
const READY: u8 = 1;
const SETUP_FAILED: u8 = 2;

/// Receives the outcome of a first start: what the program reports about itself.
pub(super) type StartReport = std::sync::mpsc::Sender<Result<Vec<Option<String>>>>;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Keeps a slot filled until the pool stops. The first start is reported, and is the last if it
/// fails.
pub(super) async fn keep(pool: Arc<WorkerPool>, slot: usize, report: StartReport) {
    let name: Arc<str> = format!("{} worker {slot}", pool.program.name).into();
    let mut report = Some(report);
    let mut wait = Duration::ZERO;
    while !pool.is_stopped() {
        if !wait.is_zero() {
            pause(&pool, wait).await;
            if pool.is_stopped() {
                break;
            }
        }
        match run_process(&pool, &name, &mut report).await {
            // It worked, so the next one starts at once.
            Ok(calls) if calls > 0 => wait = Duration::ZERO,
            Ok(_) => wait = (wait * 2).clamp(FIRST_BACKOFF, MAX_BACKOFF),
            Err(StartError { .. }) if pool.is_stopped() => break,
            Err(StartError { error, is_permanent }) => {
                pool.start_failed(error.message(), is_permanent);
                if let Some(report) = report.take() {
                    let _ = report.send(Err(error));
                    return;
                }
                log::error!("{name}: {error}");
                wait = (wait * 2).clamp(FIRST_BACKOFF, MAX_BACKOFF);
            }
        }
    }
}

/// Waits, but not beyond the stop of the pool.
async fn pause(pool: &WorkerPool, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end && !pool.is_stopped() {
        sleep(STOP_CHECK_INTERVAL).await;
    }
}

/// Why a process did not become ready.
struct StartError {
    error: Error,
    /// Whether another start would fail in the same way.
    is_permanent: bool,
}

impl StartError {
    fn permanent(error: Error) -> Self {
        StartError { error, is_permanent: true }
    }
}

/// Runs one process from its start to its end, or until it is to be replaced. Returns the number of
/// calls that it has answered.
async fn run_process(
    pool: &Arc<WorkerPool>,
    name: &Arc<str>,
    report: &mut Option<StartReport>,
) -> Result<u64, StartError> {
    let id = NEXT_ID.fetch_add(1, Relaxed);
    let started = process::start(&pool.program, id, Arc::clone(name));
    let (worker, connection, mut process) = started.map_err(StartError::permanent)?;
    let worker = Arc::new(worker);
    match wait_until_ready(&connection, &mut process, pool).await {
        StartOutcome::Ready(about) => match report.take() {
            Some(report) => drop(report.send(Ok(about))),
            None => log::info!("{name}: ready"),
        },
        StartOutcome::Failed(error) => {
            process.reap(&worker, None);
            return Err(StartError::permanent(error));
        }
        StartOutcome::Ended => {
            // A process closes its socket before it has ended, and the error describes its end.
            let _ = timeout(EXIT_TIMEOUT_AFTER_CLOSE, process.ended.readable()).await;
            let ProcessEnd { cause, last_lines } = process.reap(&worker, None);
            let message = format!("its process {cause} before it was ready\n{last_lines}");
            let error = Error::precondition(message.trim_end().to_owned());
            return Err(StartError { error, is_permanent: false });
        }
    }
    pool.add(Arc::clone(&worker), connection);
    let active = ActiveKeeper::new(&pool.active_keepers);
    let (worker_of_task, pool_of_task) = (Arc::clone(&worker), Arc::clone(pool));
    let mut running = tokio::spawn(async move {
        run_to_end(&worker_of_task, process, &pool_of_task).await;
        drop(active);
    });
    tokio::select! {
        _ = &mut running => {}
        () = worker.replacement.notified() => {}
    }
    // The first reply is the one that it is ready.
    Ok(worker.replies.load(Relaxed).saturating_sub(1))
}

/// Supervises a process until it has ended, and reports its end.
async fn run_to_end(worker: &Worker, mut process: WorkerProcess, pool: &Arc<WorkerPool>) {
    let reason = supervise(worker, &mut process, pool).await;
    pool.remove(worker);
    let end = process.reap(worker, reason);
    if !worker.retired.load(Relaxed) {
        log::warn!("{}: its process {}", worker.name, end.cause);
    }
    let _ = process.end.send(Some(end));
}

/// The outcome of a start.
enum StartOutcome {
    /// What the program reports about itself.
    Ready(Vec<Option<String>>),
    Failed(Error),
    /// The process has ended, or is about to.
    Ended,
}

/// Waits until the process has set itself up.
async fn wait_until_ready(
    connection: &WorkerConnection,
    process: &mut WorkerProcess,
    pool: &WorkerPool,
) -> StartOutcome {
    let watched = match connection.watched() {
        Ok(watched) => watched,
        Err(error) => {
            let message = format!("its socket cannot be watched: {error}");
            return StartOutcome::Failed(Error::unavailable(message).with_source(error));
        }
    };
    let reply = watched.receive();
    tokio::pin!(reply);
    let limit = pause(pool, START_TIMEOUT);
    tokio::pin!(limit);
    let frame = loop {
        tokio::select! {
            frame = &mut reply => break frame,
            () = process.log.read() => {}
            () = &mut limit => {
                let message = format!("not ready after {} s", START_TIMEOUT.as_secs());
                return StartOutcome::Failed(Error::new(Code::DeadlineExceeded, message));
            }
        }
    };
    match frame {
        Ok(frame) if frame.kind == READY => StartOutcome::Ready(frame.fields),
        Ok(frame) if frame.kind == SETUP_FAILED => {
            // A line that says it all, and the traceback.
            let text: Vec<String> = frame.fields.into_iter().flatten().collect();
            StartOutcome::Failed(Error::precondition(text.join("\n").trim_end().to_owned()))
        }
        Err(ExchangeError::Invalid(error)) => StartOutcome::Failed(error),
        Ok(_) | Err(ExchangeError::Closed | ExchangeError::NotSent) => StartOutcome::Ended,
    }
}

/// Waits for the end of a process, forwards its output, executes commands, and enforces the memory
/// limit. Returns why the process was killed, if it was.
async fn supervise(
    worker: &Worker,
    process: &mut WorkerProcess,
    pool: &Arc<WorkerPool>,
) -> Option<String> {
    let mut reason = None;
    let mut timeout_reason = None;
    let mut memory_check = interval(MEMORY_CHECK_INTERVAL);
    let has_memory_limit = pool.limits.memory.is_some();
    let never = tokio::time::Instant::now() + Duration::from_secs(u64::from(u32::MAX));
    let exit_deadline = sleep_until(never);
    tokio::pin!(exit_deadline);
    loop {
        tokio::select! {
            _ = process.ended.readable() => return reason,
            () = process.log.read() => {}
            () = process.offers.next() => pool.take_offer(worker),
            command = process.commands.recv() => match command {
                Some(KeeperCommand::Kill(why)) => {
                    reason.get_or_insert(why);
                    process.kill();
                }
                Some(KeeperCommand::Shutdown) | None => {
                    worker.close();
                    exit_deadline.as_mut().reset(tokio::time::Instant::now() + EXIT_TIMEOUT);
                }
                Some(KeeperCommand::Reap) => {
                    worker.close();
                    timeout_reason = Some("was stopped: it had closed its socket");
                    let deadline = tokio::time::Instant::now() + EXIT_TIMEOUT_AFTER_CLOSE;
                    exit_deadline.as_mut().reset(deadline);
                }
            },
            () = &mut exit_deadline => {
                reason = reason.or(timeout_reason.take().map(str::to_owned));
                process.kill();
                exit_deadline.as_mut().reset(never);
            }
            _ = memory_check.tick(), if has_memory_limit => {
                if let Some(why) = check_memory(worker, process, pool) {
                    reason.get_or_insert(why);
                    process.kill();
                }
            }
        }
    }
}

/// Retires a process above the memory limit, which is replaced. One above one and a half
/// times the limit must be killed, for the reason that is returned.
fn check_memory(worker: &Worker, process: &WorkerProcess, pool: &WorkerPool) -> Option<String> {
    let (used, limit) = (process.resident_memory()?, pool.limits.memory?);
    if used <= limit {
        return None;
    }
    let (used_mib, limit_mib) = (used >> 20, limit >> 20);
    let setting = pool.program.subject.memory_limit;
    if used > limit.saturating_add(limit / 2) {
        return Some(format!(
            "was stopped: it used {used_mib} MiB of memory, and {setting} is {limit_mib} MiB"
        ));
    }
    if !worker.retired.load(Relaxed) {
        let name = &worker.name;
        log::warn!("{name}: uses {used_mib} MiB of memory, above {setting}; it will be replaced");
        pool.retire(worker);
    }
    None
}

impl WorkerProcess {
    /// Kills the process and its children.
    fn kill(&self) {
        os::kill_process_group(self.child.id());
    }

    /// The resident memory of the process in bytes.
    fn resident_memory(&self) -> Option<usize> {
        machine::resident_memory(Some(self.child.id()))?.try_into().ok()
    }

    /// Kills the process and its children if they still run, waits for it, and describes its end.
    /// Afterwards its process ID may belong to another process.
    fn reap(&mut self, worker: &Worker, reason: Option<String>) -> ProcessEnd {
        self.kill();
        let status = self.child.wait();
        self.log.finish();
        let cause = reason.unwrap_or_else(|| match status {
            Ok(status) => process::describe(status),
            Err(error) => format!("has ended: {error}"),
        });
        let since = worker.lines_before_call.load(Relaxed);
        ProcessEnd { cause, last_lines: self.log.last_lines(since, MAX_LAST_LINES_BYTES) }
    }
}
