//! The workers of one program, and the queue of calls to them.
//!
//! A worker serves one call on each of its connections. It gets a call if it has none, or if it has offered
//! to take more because all of its calls wait; a call goes to the worker with the fewest. Calls
//! wait in a queue for room. Those that continue what a worker has begun come first, and
//! go to the same worker if it has room.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use self::lease::{ConnectionLease, LeasedConnection};
use super::blocking;
use super::connection::{ExchangeError, WorkerConnection};
use super::process::{KeeperCommand, ProcessEnd, Worker};
use super::wire::WireFrame;
use super::{HandlerError, WorkerProgram};
use tensorserve_tensor::error::{Code, Error};

mod lease;

/// The most calls that wait. Further ones would wait for longer than their clients do.
const MAX_QUEUE: usize = 4096;

/// The number of consecutive failed starts after which calls no longer wait for another one.
const MAX_FAILED_STARTS: u32 = 8;

/// The time in which the keeper of a process that has closed its socket observes its end.
const END_TIMEOUT: Duration = Duration::from_millis(800);

/// The status of a response if the handler's process is at fault.
const BAD_GATEWAY: u16 = 502;

/// What applies to each worker of a pool.
#[derive(Clone, Copy)]
pub(super) struct WorkerLimits {
    /// The most calls that a worker serves at a time.
    pub(super) threads: usize,
    /// The longest duration of a call.
    pub(super) timeout: Duration,
    /// The resident memory in bytes above which a worker is replaced.
    pub(super) memory: Option<usize>,
}

/// The workers of one program.
pub(super) struct WorkerPool {
    pub(super) program: WorkerProgram,
    pub(super) limits: WorkerLimits,
    /// The runtime of the keepers.
    pub(super) keepers: Handle,
    /// The number of tasks that keep or supervise processes, of all pools.
    pub(super) active_keepers: Arc<AtomicU64>,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// The workers that are ready, and those that only finish their calls.
    alive: Vec<PooledWorker>,
    /// Calls that wait for a connection.
    waiting: VecDeque<oneshot::Sender<ConnectionLease>>,
    /// Calls that wait and continue what a worker has begun.
    resuming: VecDeque<oneshot::Sender<ConnectionLease>>,
    /// The number of leases so far.
    leases: u64,
    /// Consecutive failed starts.
    failed_starts: u32,
    /// Why workers cannot be started, if the program is at fault.
    start_error: Option<String>,
    stopped: bool,
}

struct PooledWorker {
    worker: Arc<Worker>,
    /// Its open connections without a call; the most recently used is last.
    free: Vec<WorkerConnection>,
    /// The calls that it serves.
    busy: usize,
    /// The further calls that it may get: it has offered to take some, because all of its calls wait.
    offered: usize,
    /// The connections whose call has timed out; their threads may never end.
    stuck: usize,
    /// The number of the latest lease. The memory of a worker used recently is in the caches.
    last_lease: u64,
    /// The worker gets no more calls.
    is_closed: bool,
}

impl PooledWorker {
    fn has_room(&self, threads: usize) -> bool {
        let may_overlap = self.offered > 0 && self.busy < threads;
        !self.is_closed && (self.busy == 0 || may_overlap)
    }

    /// Ends a worker that gets no more calls and has none.
    fn end_if_idle(&self, timeout: Duration) {
        if self.busy > 0 || !self.worker.retired.load(Relaxed) {
            return;
        }
        let command = match self.stuck {
            0 => KeeperCommand::Shutdown,
            _ => KeeperCommand::Kill(no_reply_after(timeout)),
        };
        let _ = self.worker.commands.send(command);
    }
}

impl PoolState {
    /// Takes a connection: of the preferred worker if it has room, otherwise of the one with the fewest
    /// calls. `None` in the result is a connection that is still to be opened.
    fn take_connection(
        &mut self,
        preferred: Option<u64>,
        threads: usize,
    ) -> Option<LeasedConnection> {
        let with_room = || self.alive.iter().enumerate().filter(|(_, w)| w.has_room(threads));
        let wanted = with_room().find(|(_, pooled)| Some(pooled.worker.id) == preferred);
        let least = || with_room().min_by_key(|(_, w)| (w.busy, Reverse(w.last_lease)));
        let (index, _) = wanted.or_else(least)?;
        self.leases += 1;
        let pooled = self.alive.get_mut(index)?;
        pooled.last_lease = self.leases;
        if pooled.busy == 0 {
            let worker = &pooled.worker;
            worker.lines_before_call.store(worker.lines.load(Relaxed), Relaxed);
        }
        pooled.offered = if pooled.busy == 0 { 0 } else { pooled.offered.saturating_sub(1) };
        pooled.busy += 1;
        Some(LeasedConnection { worker: Arc::clone(&pooled.worker), connection: pooled.free.pop() })
    }

    fn find(&mut self, worker: &Worker) -> Option<&mut PooledWorker> {
        self.alive.iter_mut().find(|pooled| pooled.worker.id == worker.id)
    }

    /// Returns a connection after a call; one that is `None` cannot be used any more.
    fn return_connection(&mut self, leased: LeasedConnection, timeout: Duration) {
        if let Some(pooled) = self.find(&leased.worker) {
            pooled.busy -= 1;
            pooled.free.extend(leased.connection);
            pooled.end_if_idle(timeout);
        }
    }

    /// Whether no worker takes calls.
    fn is_closed(&self) -> bool {
        self.alive.iter().all(|pooled| pooled.is_closed)
    }

    fn next_call(&mut self) -> Option<oneshot::Sender<ConnectionLease>> {
        self.resuming.pop_front().or_else(|| self.waiting.pop_front())
    }
}

impl WorkerPool {
    pub(super) fn new(
        program: WorkerProgram,
        limits: WorkerLimits,
        keepers: Handle,
        active_keepers: Arc<AtomicU64>,
    ) -> Self {
        WorkerPool { program, limits, keepers, active_keepers, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a worker that is ready, with its first connection.
    pub(super) fn add(self: &Arc<Self>, worker: Arc<Worker>, connection: WorkerConnection) {
        {
            let mut state = self.state();
            state.start_error = None;
            state.failed_starts = 0;
            let is_closed = state.stopped;
            worker.retired.fetch_or(is_closed, Relaxed);
            let free = vec![connection];
            let pooled = PooledWorker {
                worker,
                free,
                busy: 0,
                offered: 0,
                stuck: 0,
                last_lease: 0,
                is_closed,
            };
            pooled.end_if_idle(self.limits.timeout);
            state.alive.push(pooled);
        }
        self.dispatch();
    }

    /// Gives further calls to a worker whose calls all wait: as many as it has, so that their number
    /// grows in few steps.
    pub(super) fn take_offer(self: &Arc<Self>, worker: &Worker) {
        if let Some(pooled) = self.state().find(worker) {
            pooled.offered = pooled.busy;
        }
        self.dispatch();
    }

    /// Removes a worker that has ended.
    pub(super) fn remove(&self, worker: &Worker) {
        self.state().alive.retain(|pooled| pooled.worker.id != worker.id);
    }

    /// Records a failed start. Unless it is permanent, the process may have been killed from outside,
    /// and calls wait for a few more starts.
    pub(super) fn start_failed(&self, reason: &str, is_permanent: bool) {
        let mut state = self.state();
        state.failed_starts += 1;
        if !is_permanent && state.failed_starts < MAX_FAILED_STARTS {
            return;
        }
        state.start_error = Some(reason.to_owned());
        if state.is_closed() {
            // Dropping the senders ends the waits.
            state.waiting.clear();
            state.resuming.clear();
        }
    }

    /// Hands connections to the calls that wait.
    fn dispatch(self: &Arc<Self>) {
        loop {
            let (next, lease) = {
                let mut state = self.state();
                if state.resuming.is_empty() && state.waiting.is_empty() {
                    return;
                }
                let Some(leased) = state.take_connection(None, self.limits.threads) else {
                    return;
                };
                (state.next_call(), ConnectionLease::new(self, leased))
            };
            // A call may have been cancelled while it waited.
            if let Some(Err(mut unsent)) = next.map(|next| next.send(lease))
                && let Some(leased) = unsent.leased.take()
            {
                self.state().return_connection(leased, self.limits.timeout);
            }
        }
    }

    /// Returns a connection after a call, and hands it to the next one.
    fn release(self: &Arc<Self>, leased: LeasedConnection) {
        self.state().return_connection(leased, self.limits.timeout);
        self.dispatch();
    }

    /// Marks a worker to be replaced at once; it ends when its calls have.
    pub(super) fn retire(&self, worker: &Worker) {
        let mut state = self.state();
        worker.retired.store(true, Relaxed);
        worker.replacement.notify_one();
        if let Some(pooled) = state.find(worker) {
            pooled.is_closed = true;
            pooled.end_if_idle(self.limits.timeout);
        }
    }

    /// Gives up a call that takes too long. Its worker is stopped, at once if it has no other calls,
    /// otherwise after them. Returns whether it is stopped at once.
    fn time_out(&self, worker: &Worker) -> bool {
        let timeout = self.limits.timeout;
        let mut state = self.state();
        let Some(pooled) = state.find(worker) else {
            return true;
        };
        pooled.busy -= 1;
        pooled.stuck += 1;
        pooled.is_closed = true;
        if pooled.busy == 0 {
            let _ = worker.commands.send(KeeperCommand::Kill(no_reply_after(timeout)));
            return true;
        }
        let (name, others, timeout) = (&worker.name, pooled.busy, timeout.as_secs_f32());
        log::warn!(
            "{name}: a call has no reply after {timeout} s; the process is replaced, and ends after \
             its {others} other calls"
        );
        drop(state);
        self.retire(worker);
        false
    }

    /// Has the keeper of a worker end its process after a failed exchange.
    fn fail(self: &Arc<Self>, mut leased: LeasedConnection, error: ExchangeError) -> CallError {
        let (command, error) = match error {
            ExchangeError::NotSent => (KeeperCommand::Reap, CallError::NotSent),
            ExchangeError::Closed => (KeeperCommand::Reap, CallError::Ended),
            ExchangeError::Invalid(error) => {
                (KeeperCommand::Kill(format!("was stopped: {error}")), CallError::Ended)
            }
        };
        if let Some(pooled) = self.state().find(&leased.worker) {
            pooled.is_closed = true;
        }
        let _ = leased.worker.commands.send(command);
        leased.connection = None;
        self.release(leased);
        error
    }

    /// Kills all workers, even during a call.
    pub(super) fn kill(&self) {
        for pooled in &self.state().alive {
            let reason = "was stopped with the server".to_owned();
            let _ = pooled.worker.commands.send(KeeperCommand::Kill(reason));
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Shuts all workers down: those without a call at once, the others after their calls.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        state.waiting.clear();
        state.resuming.clear();
        for pooled in &mut state.alive {
            pooled.is_closed = true;
            pooled.worker.retired.store(true, Relaxed);
            pooled.end_if_idle(self.limits.timeout);
        }
    }

    /// Leases a connection for a call, of the preferred worker if it has room.
    async fn lease(
        self: &Arc<Self>,
        preferred: Option<u64>,
        deadline: Instant,
    ) -> Result<ConnectionLease, HandlerError> {
        let waiting = match self.lease_or_wait(preferred)? {
            Leased::Now(lease) => return Ok(lease),
            Leased::Later(waiting) => waiting,
        };
        let waited = tokio::time::timeout_at(deadline.into(), waiting).await;
        self.waited(waited.ok().map(|lease| lease.ok()))
    }

    /// Leases a connection for a call on this thread, which it blocks.
    fn lease_blocking(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<ConnectionLease, HandlerError> {
        match self.lease_or_wait(None)? {
            Leased::Now(lease) => Ok(lease),
            Leased::Later(waiting) => {
                let waited = blocking::wait_until(waiting, deadline);
                self.waited(waited.map(|lease| lease.ok()))
            }
        }
    }

    /// The lease that a call has waited for: `None` at the deadline, and `Some(None)` if the queue has
    /// been cleared.
    fn waited(
        &self,
        waited: Option<Option<ConnectionLease>>,
    ) -> Result<ConnectionLease, HandlerError> {
        match waited {
            Some(Some(lease)) => Ok(lease),
            Some(None) => {
                self.check_available(&self.state())?;
                Err(HandlerError::of(Error::unavailable("the worker processes have ended")))
            }
            None => {
                let hint = self.program.subject.more_calls;
                let message = format!("no worker process became free before the deadline; {hint}");
                Err(HandlerError::of(Error::new(Code::DeadlineExceeded, message)))
            }
        }
    }

    /// Leases a connection, or puts the call into the queue.
    fn lease_or_wait(self: &Arc<Self>, preferred: Option<u64>) -> Result<Leased, HandlerError> {
        let mut state = self.state();
        if let Some(leased) = state.take_connection(preferred, self.limits.threads) {
            return Ok(Leased::Now(ConnectionLease::new(self, leased)));
        }
        self.check_available(&state)?;
        let (sender, receiver) = oneshot::channel();
        if preferred.is_some() {
            state.resuming.push_back(sender);
            return Ok(Leased::Later(receiver));
        }
        if state.waiting.len() >= MAX_QUEUE {
            // Cancelled calls do not count.
            state.waiting.retain(|waiting| !waiting.is_closed());
        }
        if state.waiting.len() >= MAX_QUEUE {
            let subject = self.program.subject.name;
            let message = format!("{MAX_QUEUE} requests are already waiting for {subject}");
            return Err(HandlerError::of(Error::unavailable(message)));
        }
        state.waiting.push_back(sender);
        Ok(Leased::Later(receiver))
    }

    /// Makes a call, and returns the reply with the ID of the worker that sent it. `preferred` is the
    /// worker that has begun what the call continues.
    pub(super) async fn call(
        self: &Arc<Self>,
        preferred: Option<u64>,
        call: &WorkerCall<'_>,
        deadline: Instant,
    ) -> Result<(WireFrame, u64), HandlerError> {
        let mut may_retry = true;
        loop {
            let mut lease = self.lease(preferred, deadline).await?;
            let worker = lease.worker()?;
            match lease.exchange(call, deadline).await {
                // The worker ended while it was free, and the call had no effect.
                Err(CallError::NotSent) if may_retry => may_retry = false,
                Err(error) => return Err(self.describe(&worker, error).await),
                Ok(frame) => return Ok((frame, worker.id)),
            }
        }
    }

    /// [`WorkerPool::call`] on this thread, which it blocks: without a runtime, and without waking another
    /// thread.
    pub(super) fn call_blocking(
        self: &Arc<Self>,
        call: &WorkerCall<'_>,
        deadline: Instant,
    ) -> Result<WireFrame, HandlerError> {
        let mut may_retry = true;
        loop {
            let mut lease = self.lease_blocking(deadline)?;
            let worker = lease.worker()?;
            let error = match lease.exchange_blocking(call, deadline) {
                Err(CallError::NotSent) if may_retry => {
                    may_retry = false;
                    continue;
                }
                Err(error) => error,
                Ok(frame) => return Ok(frame),
            };
            let end = || blocking::wait_for(&worker.end, END_TIMEOUT);
            return Err(self.failure(error).unwrap_or_else(|| self.ended(end())));
        }
    }

    /// The error for the client of a failed call.
    async fn describe(&self, worker: &Worker, error: CallError) -> HandlerError {
        if let Some(failure) = self.failure(error) {
            return failure;
        }
        let mut end = worker.end.clone();
        let observed = tokio::time::timeout(END_TIMEOUT, end.wait_for(Option::is_some)).await;
        self.ended(observed.ok().and_then(|end| end.ok()?.clone()))
    }

    /// The error for the client of a failed call; `None` if the process has ended.
    fn failure(&self, error: CallError) -> Option<HandlerError> {
        let subject = self.program.subject.name;
        match error {
            CallError::DeadlineExceeded => {
                let message = format!("the deadline passed before {subject} replied");
                Some(HandlerError::of(Error::new(Code::DeadlineExceeded, message)))
            }
            CallError::TimedOut => {
                let cause = no_reply_after(self.limits.timeout);
                let message = format!("the call of {subject} {cause}");
                let error = Error::new(self.program.subject.timed_out, message);
                Some(HandlerError::bad_gateway(error))
            }
            CallError::NoConnection(error) => {
                let message = format!("no further call can be sent to {subject}: {error}");
                Some(HandlerError::of(Error::unavailable(message).with_source(error)))
            }
            CallError::NotSent | CallError::Ended => None,
        }
    }

    /// The error for the client of a call whose process has ended. What it printed last is only for the
    /// log.
    fn ended(&self, end: Option<ProcessEnd>) -> HandlerError {
        let end = end.unwrap_or_else(|| ProcessEnd {
            cause: "has ended".to_owned(),
            last_lines: String::new(),
        });
        let subject = self.program.subject;
        let message = format!("the process of {} {}", subject.name, end.cause);
        if end.last_lines.is_empty() {
            return HandlerError::bad_gateway(Error::new(subject.ended, message));
        }
        let message = format!("{message}; the server log has its last output");
        let output = format!("its last output:\n{}", end.last_lines);
        HandlerError::bad_gateway(Error::new(subject.ended, message).with_source(output))
    }

    /// Refuses calls that no worker will ever serve.
    fn check_available(&self, state: &PoolState) -> Result<(), HandlerError> {
        if state.stopped {
            return Err(HandlerError::of(Error::unavailable("the model is being unloaded")));
        }
        match &state.start_error {
            Some(reason) if state.is_closed() => {
                let subject = self.program.subject.name;
                let message = format!("{subject} cannot be run; the server log has the reason");
                let error = Error::unavailable(message).with_source(reason.clone());
                Err(HandlerError::bad_gateway(error))
            }
            _ => Ok(()),
        }
    }
}

/// A leased connection, or a place in the queue for one.
enum Leased {
    Now(ConnectionLease),
    Later(oneshot::Receiver<ConnectionLease>),
}

/// Why a call was given up after the duration `timeout`.
fn no_reply_after(timeout: Duration) -> String {
    format!("was stopped: no reply after {} s", timeout.as_secs_f32())
}

impl HandlerError {
    fn bad_gateway(error: Error) -> Self {
        HandlerError { status: BAD_GATEWAY, ..HandlerError::of(error) }
    }
}

/// A call of a function of the program.
pub(super) struct WorkerCall<'a> {
    pub(super) function: u8,
    pub(super) fields: &'a [Option<&'a str>],
    /// The parts of the body, one after the other.
    pub(super) body: &'a [&'a [u8]],
}

/// Why a call has no reply.
enum CallError {
    NotSent,
    /// A connection could not be opened.
    NoConnection(io::Error),
    /// The process has ended, or is being killed.
    Ended,
    /// The call took longer than calls may.
    TimedOut,
    /// The request's deadline has passed.
    DeadlineExceeded,
}
