//! The workers of one program, and the queue of calls to them.
//!
//! A worker serves one call at a time, and calls wait in a queue for a free one. Calls that continue
//! what a worker has begun come first, and go to the same worker if it is free.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::process::{ExchangeError, KeeperCommand, ProcessEnd, Worker};
use super::wire::Frame;
use super::{HandlerError, Program};
use tensorserve_tensor::error::{Code, Error};

/// The most calls that wait. Further ones would wait for longer than their clients do.
const MAX_QUEUE: usize = 4096;

/// The number of consecutive failed starts after which calls no longer wait for another one.
const MAX_FAILED_STARTS: u32 = 8;

/// The time in which the keeper of a process that has closed its socket observes its end.
const END_TIMEOUT: Duration = Duration::from_millis(800);

/// The status of a response if the handler's process is at fault.
const BAD_GATEWAY: u16 = 502;

/// The workers of one program.
pub(super) struct WorkerPool {
    pub(super) program: Program,
    /// The longest duration of a call.
    pub(super) timeout: Duration,
    pub(super) memory_limit: Option<usize>,
    /// The runtime of the keepers.
    pub(super) keepers: Handle,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    /// The ready workers.
    alive: Vec<Arc<Worker>>,
    /// Those without a call; the most recently used, whose memory is in the caches, is last.
    free: Vec<Arc<Worker>>,
    /// Calls that wait for a worker.
    waiting: VecDeque<oneshot::Sender<WorkerLease>>,
    /// Calls that wait and continue what a worker has begun.
    resuming: VecDeque<oneshot::Sender<WorkerLease>>,
    /// Consecutive failed starts.
    failed_starts: u32,
    /// Why workers cannot be started, if the program is at fault.
    start_error: Option<String>,
    stopped: bool,
}

impl WorkerPool {
    pub(super) fn new(
        program: Program,
        timeout: Duration,
        memory_limit: Option<usize>,
        keepers: Handle,
    ) -> Self {
        WorkerPool { program, timeout, memory_limit, keepers, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a worker that is ready.
    pub(super) fn add(self: &Arc<Self>, worker: Arc<Worker>) {
        {
            let mut state = self.state();
            state.start_error = None;
            state.failed_starts = 0;
            state.alive.push(Arc::clone(&worker));
        }
        self.release(worker);
    }

    /// Removes a worker that has ended.
    pub(super) fn remove(&self, worker: &Worker) {
        let mut state = self.state();
        state.alive.retain(|other| other.id != worker.id);
        state.free.retain(|other| other.id != worker.id);
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
        if state.alive.is_empty() {
            // Dropping the senders ends the waits.
            state.waiting.clear();
            state.resuming.clear();
        }
    }

    /// Hands a worker to the next call, or marks it as free.
    fn release(self: &Arc<Self>, worker: Arc<Worker>) {
        let mut lease =
            WorkerLease { pool: Arc::clone(self), worker: Some(worker), has_call: false };
        loop {
            let next = {
                let mut state = self.state();
                let next = state.resuming.pop_front().or_else(|| state.waiting.pop_front());
                if next.is_none() || state.stopped {
                    lease.give_back(&mut state);
                    return;
                }
                next
            };
            match next.map(|next| next.send(lease)) {
                // The call was cancelled while it waited.
                Some(Err(unsent)) => lease = unsent,
                _ => return,
            }
        }
    }

    /// Marks a worker to be replaced, after its call if it has one.
    pub(super) fn retire(&self, worker: &Worker) {
        let mut state = self.state();
        worker.retired.store(true, Relaxed);
        let free = state.free.len();
        state.free.retain(|other| other.id != worker.id);
        if state.free.len() < free {
            let _ = worker.commands.send(KeeperCommand::Shutdown);
        }
    }

    /// Kills all workers, even during a call.
    pub(super) fn kill(&self) {
        for worker in &self.state().alive {
            let reason = "was stopped with the server".to_owned();
            let _ = worker.commands.send(KeeperCommand::Kill(reason));
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Shuts all workers down: free ones at once, the others after their call.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        for worker in &state.alive {
            worker.retired.store(true, Relaxed);
        }
        state.waiting.clear();
        state.resuming.clear();
        for worker in state.free.drain(..) {
            let _ = worker.commands.send(KeeperCommand::Shutdown);
        }
    }

    /// Leases a worker for a call: the preferred one if it is free, otherwise any.
    async fn lease(
        self: &Arc<Self>,
        preferred: Option<u64>,
        deadline: Instant,
    ) -> Result<WorkerLease, HandlerError> {
        let waiting = match self.lease_or_wait(preferred)? {
            Leased::Now(lease) => return Ok(lease),
            Leased::Later(waiting) => waiting,
        };
        match tokio::time::timeout_at(deadline.into(), waiting).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(_)) => {
                check_available(&self.state())?;
                Err(HandlerError::of(Error::unavailable("the worker processes have ended")))
            }
            Err(_) => {
                let message = "no worker process became free before the deadline; \
                               handler_workers sets their number";
                Err(HandlerError::of(Error::new(Code::DeadlineExceeded, message)))
            }
        }
    }

    /// Leases a free worker, or puts the call into the queue.
    fn lease_or_wait(self: &Arc<Self>, preferred: Option<u64>) -> Result<Leased, HandlerError> {
        let mut state = self.state();
        let preferred_index = state.free.iter().rposition(|worker| Some(worker.id) == preferred);
        let free = match preferred_index {
            Some(index) => Some(state.free.remove(index)),
            None => state.free.pop(),
        };
        if let Some(worker) = free {
            let pool = Arc::clone(self);
            return Ok(Leased::Now(WorkerLease { pool, worker: Some(worker), has_call: false }));
        }
        check_available(&state)?;
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
            let message = format!("{MAX_QUEUE} requests are already waiting for inference.py");
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
    ) -> Result<(Frame, u64), HandlerError> {
        let mut may_retry = true;
        loop {
            let mut lease = self.lease(preferred, deadline).await?;
            let Some(worker) = lease.worker.clone() else {
                return Err(HandlerError::of(Error::internal("a lease without a worker")));
            };
            match lease.exchange(&worker, call, deadline).await {
                // The worker ended while it was free, and the call had no effect.
                Err(CallError::NotSent) if may_retry => may_retry = false,
                Err(error) => return Err(describe(&worker, error).await),
                Ok(frame) => return Ok((frame, worker.id)),
            }
        }
    }
}

/// A leased worker, or a place in the queue for one.
enum Leased {
    Now(WorkerLease),
    Later(oneshot::Receiver<WorkerLease>),
}

/// Refuses calls that no worker will ever serve.
fn check_available(state: &PoolState) -> Result<(), HandlerError> {
    if state.stopped {
        return Err(HandlerError::of(Error::unavailable("the model is being unloaded")));
    }
    match &state.start_error {
        Some(reason) if state.alive.is_empty() => {
            let message = "inference.py cannot be run; the server log has the reason";
            Err(HandlerError::bad_gateway(Error::unavailable(message).with_source(reason.clone())))
        }
        _ => Ok(()),
    }
}

/// The error for the client of a failed call, with the end of the process if it has ended. What it
/// printed last is only for the log.
async fn describe(worker: &Worker, error: CallError) -> HandlerError {
    if matches!(error, CallError::DeadlineExceeded) {
        let message = "the deadline passed before inference.py replied";
        return HandlerError::of(Error::new(Code::DeadlineExceeded, message));
    }
    let mut end = worker.end.clone();
    let observed = tokio::time::timeout(END_TIMEOUT, end.wait_for(Option::is_some)).await;
    let end = observed.ok().and_then(|end| end.ok()?.clone());
    let end = end
        .unwrap_or_else(|| ProcessEnd { cause: "has ended".to_owned(), last_lines: String::new() });
    let message = format!("the process of inference.py {}", end.cause);
    if end.last_lines.is_empty() {
        return HandlerError::bad_gateway(Error::internal(message));
    }
    let message = format!("{message}; the server log has its last output");
    let output = format!("its last output:\n{}", end.last_lines);
    HandlerError::bad_gateway(Error::internal(message).with_source(output))
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
    pub(super) body: &'a [u8],
}

/// Why a call has no reply.
enum CallError {
    NotSent,
    /// The process has ended, or is being killed.
    Ended,
    /// The request's deadline has passed.
    DeadlineExceeded,
}

/// The exclusive use of a worker, until this is dropped.
pub(super) struct WorkerLease {
    pool: Arc<WorkerPool>,
    worker: Option<Arc<Worker>>,
    /// Whether the worker is processing a call whose reply has not been received.
    has_call: bool,
}

impl WorkerLease {
    async fn exchange(
        &mut self,
        worker: &Worker,
        call: &WorkerCall<'_>,
        deadline: Instant,
    ) -> Result<Frame, CallError> {
        let call_deadline = Instant::now() + self.pool.timeout;
        let channel = worker.channel().map_err(|_| CallError::NotSent)?;
        // From the first byte until it has replied, the worker can take no other call.
        self.has_call = true;
        let exchange = async {
            channel.send(call.function, call.fields, call.body).await?;
            channel.receive().await
        };
        let first = call_deadline.min(deadline);
        match tokio::time::timeout_at(first.into(), exchange).await {
            Ok(Ok(frame)) => {
                self.has_call = false;
                Ok(frame)
            }
            Ok(Err(error)) => {
                self.worker = None;
                Err(worker.fail(error))
            }
            // The worker goes on until the call's own deadline.
            Err(_) if deadline < call_deadline => Err(CallError::DeadlineExceeded),
            Err(_) => {
                worker.time_out(self.pool.timeout);
                self.worker = None;
                Err(CallError::Ended)
            }
        }
    }

    /// Returns the worker to the free ones, or shuts it down if it is not needed any more.
    fn give_back(&mut self, state: &mut PoolState) {
        let Some(worker) = self.worker.take() else {
            return;
        };
        if worker.retired.load(Relaxed) || state.stopped {
            let _ = worker.commands.send(KeeperCommand::Shutdown);
        } else if state.alive.iter().any(|other| other.id == worker.id) {
            state.free.push(worker);
        }
    }
}

impl Worker {
    /// Has its keeper end the process after a failed exchange.
    fn fail(&self, error: ExchangeError) -> CallError {
        let (command, error) = match error {
            ExchangeError::NotSent => (KeeperCommand::Reap, CallError::NotSent),
            ExchangeError::Closed => (KeeperCommand::Reap, CallError::Ended),
            ExchangeError::Invalid(error) => {
                (KeeperCommand::Kill(format!("was stopped: {error}")), CallError::Ended)
            }
        };
        let _ = self.commands.send(command);
        error
    }

    /// Has its keeper kill the process, whose call takes too long.
    fn time_out(&self, timeout: Duration) {
        let reason = format!("was stopped: no reply after {} s", timeout.as_secs_f32());
        let _ = self.commands.send(KeeperCommand::Kill(reason));
    }
}

impl Drop for WorkerLease {
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else {
            return;
        };
        let pool = Arc::clone(&self.pool);
        if !self.has_call {
            pool.release(worker);
            return;
        }
        // The caller has gone, but the worker is free only after its reply, which is discarded.
        let receive = async move {
            let received = match worker.channel() {
                Ok(channel) => tokio::time::timeout(pool.timeout, channel.receive()).await,
                Err(_) => Ok(Err(ExchangeError::Closed)),
            };
            match received {
                Ok(Ok(_)) => pool.release(worker),
                Ok(Err(error)) => drop(worker.fail(error)),
                Err(_) => worker.time_out(pool.timeout),
            }
        };
        self.pool.keepers.spawn(receive);
    }
}
