//! The workers of one program, and who may call which.
//!
//! A worker takes one call at a time. Calls wait in line for a free one; calls that go on with
//! what a worker has begun go first, to the same worker if that is free.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::process::{Broken, End, Order, Worker};
use super::wire::Frame;
use super::{Failure, Program};
use tensorserve_tensor::error::{Code, Error};

/// Calls that may wait. More would wait for longer than their clients do.
const LONGEST_QUEUE: usize = 4096;

/// After so many starts in a row that came to nothing there is no use in waiting.
const MANY_FAILURES: u32 = 8;

/// How long it may take until the keeper has seen a process end that has closed its socket.
const END_SEEN: Duration = Duration::from_millis(800);

/// What its workers share.
pub(super) struct Shared {
    pub(super) program: Program,
    /// The longest a call may take.
    pub(super) timeout: Duration,
    pub(super) memory_limit: Option<usize>,
    /// Where its keepers run.
    pub(super) keepers: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All that run.
    alive: Vec<Arc<Worker>>,
    /// Those of them without a call, the last one used at the end: its memory is warm.
    free: Vec<Arc<Worker>>,
    waiting: VecDeque<oneshot::Sender<Lease>>,
    /// Calls that go on with what was begun.
    resuming: VecDeque<oneshot::Sender<Lease>>,
    /// Starts in a row that came to nothing.
    failures: u32,
    /// Why there is none, if that is the script's fault.
    broken: Option<String>,
    stopped: bool,
}

impl Shared {
    pub(super) fn new(
        program: Program,
        timeout: Duration,
        memory_limit: Option<usize>,
        keepers: Handle,
    ) -> Self {
        Shared { program, timeout, memory_limit, keepers, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker is ready for calls.
    pub(super) fn joined(self: &Arc<Self>, worker: Arc<Worker>) {
        {
            let mut state = self.state();
            state.broken = None;
            state.failures = 0;
            state.alive.push(Arc::clone(&worker));
        }
        self.release(worker);
    }

    /// A worker has ended.
    pub(super) fn left(&self, worker: &Worker) {
        let mut state = self.state();
        state.alive.retain(|other| other.id != worker.id);
        state.free.retain(|other| other.id != worker.id);
    }

    /// A worker could not be started; `is_certain` if it will be the same with the next one. Else
    /// it may have been killed by hand, and who waits goes on waiting for some more.
    pub(super) fn failed(&self, why: &str, is_certain: bool) {
        let mut state = self.state();
        state.failures += 1;
        if !is_certain && state.failures < MANY_FAILURES {
            return;
        }
        state.broken = Some(why.to_owned());
        if state.alive.is_empty() {
            // Who waits sees the line break off.
            state.waiting.clear();
            state.resuming.clear();
        }
    }

    /// Gives a worker to the next call, or notes that it is free.
    fn release(self: &Arc<Self>, worker: Arc<Worker>) {
        let mut lease = Lease { shared: Arc::clone(self), worker: Some(worker), has_call: false };
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
                // Its call was given up meanwhile.
                Some(Err(unsent)) => lease = unsent,
                _ => return,
            }
        }
    }

    /// A worker is to be replaced, after its call if it has one.
    pub(super) fn retire(&self, worker: &Worker) {
        let mut state = self.state();
        worker.retired.store(true, Relaxed);
        let free = state.free.len();
        state.free.retain(|other| other.id != worker.id);
        if state.free.len() < free {
            let _ = worker.orders.send(Order::End);
        }
    }

    /// Kills all workers, whatever they do.
    pub(super) fn kill(&self) {
        for worker in &self.state().alive {
            let _ = worker.orders.send(Order::Kill("was stopped with the server".to_owned()));
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.state().stopped
    }

    /// Ends all workers once they have answered.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        for worker in &state.alive {
            worker.retired.store(true, Relaxed);
        }
        state.waiting.clear();
        state.resuming.clear();
        for worker in state.free.drain(..) {
            let _ = worker.orders.send(Order::End);
        }
    }

    /// A worker for a call: `wanted`, if that is free, else any. Waits until `until`.
    async fn lease(
        self: &Arc<Self>,
        wanted: Option<u64>,
        until: Instant,
    ) -> Result<Lease, Failure> {
        let waiting = {
            let mut state = self.state();
            let preferred = state.free.iter().rposition(|worker| Some(worker.id) == wanted);
            let free = match preferred {
                Some(at) => Some(state.free.remove(at)),
                None => state.free.pop(),
            };
            if let Some(worker) = free {
                let shared = Arc::clone(self);
                return Ok(Lease { shared, worker: Some(worker), has_call: false });
            }
            self.check(&state)?;
            let (sender, receiver) = oneshot::channel();
            if wanted.is_some() {
                state.resuming.push_back(sender);
            } else {
                // Those whose clients have gone need no place.
                if state.waiting.len() >= LONGEST_QUEUE {
                    state.waiting.retain(|waiting| !waiting.is_closed());
                }
                if state.waiting.len() >= LONGEST_QUEUE {
                    let message = format!("{LONGEST_QUEUE} requests wait for inference.py already");
                    return Err(Failure::of(Error::unavailable(message)));
                }
                state.waiting.push_back(sender);
            }
            receiver
        };
        match tokio::time::timeout_at(until.into(), waiting).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(_)) => {
                self.check(&self.state())?;
                Err(Failure::of(Error::unavailable("the worker processes have ended")))
            }
            Err(_) => {
                let message = "no worker process was free in time; handler_workers sets how many \
                               there are";
                Err(Failure::of(Error::new(Code::DeadlineExceeded, message)))
            }
        }
    }

    /// Whether it is worth while to wait.
    fn check(&self, state: &State) -> Result<(), Failure> {
        if state.stopped {
            return Err(Failure::of(Error::unavailable("the model is being unloaded")));
        }
        match &state.broken {
            Some(why) if state.alive.is_empty() => {
                let message = format!("inference.py can not be run: {why}");
                Err(Failure { status: 502, ..Failure::of(Error::unavailable(message)) })
            }
            _ => Ok(()),
        }
    }

    /// Makes a call; says which worker answered.
    pub(super) async fn call(
        self: &Arc<Self>,
        wanted: Option<u64>,
        call: &Call<'_>,
        until: Instant,
    ) -> Result<(Frame, u64), Failure> {
        let mut may_try_again = true;
        loop {
            let mut lease = self.lease(wanted, until).await?;
            let Some(worker) = lease.worker.clone() else {
                return Err(Failure::of(Error::internal("a lease without a worker")));
            };
            match lease.exchange(&worker, call, until).await {
                // It ended while it was free. Nothing has been done with the call.
                Err(Trouble::NotSent) if may_try_again => may_try_again = false,
                Err(trouble) => return Err(self.explain(&worker, trouble).await),
                Ok(frame) => return Ok((frame, worker.id)),
            }
        }
    }

    async fn explain(&self, worker: &Worker, trouble: Trouble) -> Failure {
        if let Trouble::TooLate = trouble {
            let message = "the request's time is over, and inference.py has not answered yet";
            return Failure::of(Error::new(Code::DeadlineExceeded, message));
        }
        let mut end = worker.end.clone();
        let seen = tokio::time::timeout(END_SEEN, end.wait_for(Option::is_some)).await;
        let end = seen.ok().and_then(|seen| seen.ok()?.clone());
        let end =
            end.unwrap_or_else(|| End { what: "has ended".to_owned(), last_lines: String::new() });
        let mut message = format!("the process of inference.py {}", end.what);
        if !end.last_lines.is_empty() {
            message.push_str("; it printed last:\n");
            message.push_str(&end.last_lines);
        }
        Failure { status: 502, ..Failure::of(Error::unavailable(message)) }
    }
}

/// A call of a function of the program.
pub(super) struct Call<'a> {
    pub(super) function: u8,
    pub(super) fields: &'a [Option<&'a str>],
    pub(super) body: &'a [u8],
}

/// Why a call has no answer.
enum Trouble {
    NotSent,
    Gone,
    /// The request's own time is over.
    TooLate,
}

/// A worker that is somebody's, until this is dropped.
pub(super) struct Lease {
    shared: Arc<Shared>,
    worker: Option<Arc<Worker>>,
    /// Whether it is at work on a call that nobody has the answer of.
    has_call: bool,
}

impl Lease {
    async fn exchange(
        &mut self,
        worker: &Worker,
        call: &Call<'_>,
        until: Instant,
    ) -> Result<Frame, Trouble> {
        let limit = Instant::now() + self.shared.timeout;
        let line = worker.line().map_err(|_| Trouble::NotSent)?;
        // From the first byte on the worker has a call; until it has answered it can take no other.
        self.has_call = true;
        let exchange = async {
            line.send(call.function, call.fields, call.body).await?;
            line.receive().await
        };
        let first = limit.min(until);
        match tokio::time::timeout_at(first.into(), exchange).await {
            Ok(Ok(frame)) => {
                self.has_call = false;
                Ok(frame)
            }
            Ok(Err(broken)) => {
                self.worker = None;
                Err(worker.is_broken(broken))
            }
            // The call goes on until its own time is over.
            Err(_) if until < limit => Err(Trouble::TooLate),
            Err(_) => {
                worker.take_too_long(self.shared.timeout);
                self.worker = None;
                Err(Trouble::Gone)
            }
        }
    }

    /// Back to the free ones; ends it if there is to be no more use for it.
    fn give_back(&mut self, state: &mut State) {
        let Some(worker) = self.worker.take() else {
            return;
        };
        if worker.retired.load(Relaxed) || state.stopped {
            let _ = worker.orders.send(Order::End);
        } else if state.alive.iter().any(|other| other.id == worker.id) {
            state.free.push(worker);
        }
    }
}

impl Worker {
    /// It is of no more use; its keeper sees to its end.
    fn is_broken(&self, broken: Broken) -> Trouble {
        let (order, trouble) = match broken {
            Broken::NotSent => (Order::Finish, Trouble::NotSent),
            Broken::Gone => (Order::Finish, Trouble::Gone),
            Broken::Nonsense(error) => {
                (Order::Kill(format!("was stopped: {error}")), Trouble::Gone)
            }
        };
        let _ = self.orders.send(order);
        trouble
    }

    fn take_too_long(&self, time: Duration) {
        let why = format!("was stopped: it had not answered after {} s", time.as_secs_f32());
        let _ = self.orders.send(Order::Kill(why));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else {
            return;
        };
        if !self.has_call {
            let shared = Arc::clone(&self.shared);
            shared.release(worker);
            return;
        }
        // Whoever waited for the answer has gone. It is awaited all the same, and thrown away.
        let shared = Arc::clone(&self.shared);
        let answer = async move {
            let received = match worker.line() {
                Ok(line) => tokio::time::timeout(shared.timeout, line.receive()).await,
                Err(_) => Ok(Err(Broken::Gone)),
            };
            match received {
                Ok(Ok(_)) => shared.release(worker),
                Ok(Err(broken)) => drop(worker.is_broken(broken)),
                Err(_) => worker.take_too_long(shared.timeout),
            }
        };
        self.shared.keepers.spawn(answer);
    }
}
