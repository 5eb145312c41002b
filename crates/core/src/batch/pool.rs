//! The threads for batches whose runs are too long for a connection's thread.
//!
//! Queues with waiting requests are in a ring and are served round-robin. An idle thread takes
//! waiting requests at once. Only while another batch of the same queue runs does
//! `batch_timeout_micros` let a batch grow: it is taken when it is full or when its oldest request
//! has waited that long, whichever is first.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::task::{
    BatchTask, TaskMessage, WaitingTask, WaitingTasks, expired, expired_in_run, failed,
};
use super::{BatchOutput, BatcherShared, QueueInner, assemble};
use tensorserve_tensor::error::{Error, Result, Shed};

/// The queues with waiting requests, in a ring.
#[derive(Default)]
pub(super) struct Pool {
    ring: Mutex<Ring>,
    changed: Condvar,
}

#[derive(Default)]
struct Ring {
    queues: VecDeque<Arc<QueueInner>>,
    stopped: bool,
}

/// The requests of one queue that wait for a thread.
#[derive(Default)]
pub(super) struct PoolQueue {
    state: Mutex<PoolQueueState>,
}

#[derive(Default)]
struct PoolQueueState {
    tasks: VecDeque<WaitingTask>,
    rows: usize,
    /// Batches of this queue that are running.
    running: usize,
    /// Whether the queue is in the ring.
    listed: bool,
    /// When cancelled requests were last removed because it was full.
    swept: Option<Instant>,
}

/// A full queue is searched for cancelled requests at most this often: each search delays the
/// request that triggers it.
const SWEEP_EVERY: Duration = Duration::from_millis(10);

impl PoolQueue {
    /// The requests that wait, and how many rows are waiting, including those of clients that have left.
    pub(super) fn waiting_tasks(&self) -> (WaitingTasks, usize) {
        let state = lock(&self.state);
        (state.tasks.iter().collect(), state.rows)
    }

    /// Whether the request that was queued at `queued` still waits. Called at its deadline, when it is
    /// one of the first.
    fn has(&self, queued: Instant) -> bool {
        let state = lock(&self.state);
        // The tasks are in the order in which they came here, a moment after they were stamped.
        let queued_at = state.tasks.iter().map(|waiter| waiter.task.queued);
        queued_at.take_while(|at| *at <= queued + STAMP_TO_QUEUE).any(|at| at == queued)
    }
}

/// Longer than the time between the stamp of a request and its place in the queue.
const STAMP_TO_QUEUE: Duration = Duration::from_millis(100);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// Ends the threads. Waiting requests get an error.
    pub(super) fn stop(&self) {
        let mut ring = lock(&self.ring);
        ring.stopped = true;
        ring.queues.clear();
        self.changed.notify_all();
    }
}

/// Starts the threads.
pub(super) fn start(shared: &Arc<BatcherShared>, threads: usize) -> Result<()> {
    for number in 0..threads {
        let shared = Arc::clone(shared);
        thread::Builder::new()
            .name(format!("batch-{number}"))
            .spawn(move || work(&shared.pool))
            .map_err(|e| Error::internal("a batch thread could not be started").with_source(e))?;
    }
    Ok(())
}

/// Waits for a thread to run `task`.
pub(super) async fn submit(inner: &Arc<QueueInner>, task: BatchTask) -> Result<BatchOutput> {
    let (queued, deadline) = (task.queued, task.deadline);
    wait(inner, enqueue(inner, task)?, queued, deadline).await
}

/// Puts `task` in the queue.
///
/// # Errors
/// [`Code::Unavailable`](tensorserve_tensor::error::Code::Unavailable) if the queue is full.
pub(super) fn enqueue(
    inner: &Arc<QueueInner>,
    task: BatchTask,
) -> Result<oneshot::Receiver<TaskMessage>> {
    let (reply, verdict) = oneshot::channel();
    let mut ring = lock(&inner.shared.pool.ring);
    let mut state = lock(&inner.requests.waiting.state);
    let rows = task.rows.max(1);
    if check_room(inner, &state, rows).is_err() {
        sweep(&mut state, task.queued);
        check_room(inner, &state, rows)?;
    }
    state.rows += rows;
    state.tasks.push_back(WaitingTask { task, reply });
    if !state.listed {
        state.listed = true;
        ring.queues.push_back(Arc::clone(inner));
    }
    drop((state, ring));
    inner.shared.pool.changed.notify_one();
    Ok(verdict)
}

fn check_room(inner: &QueueInner, state: &PoolQueueState, rows: usize) -> Result<()> {
    let most = inner.config.max_enqueued_batches;
    let size = inner.config.execution_size();
    if state.tasks.is_empty() || state.rows + rows <= most.saturating_mul(size) {
        return Ok(());
    }
    let enqueued = state.rows.div_ceil(size.max(1));
    let error = Error::unavailable(format!(
        "The batch scheduling queue to which this task was submitted is full; currently \
         {enqueued} batches enqueued and max_enqueued_batches is {most}"
    ));
    Err(error.shed_for(Shed::QueueFull))
}

/// Removes requests whose clients have disconnected or whose deadline has passed, so that they do
/// not cause load shedding until the next batch forms.
fn sweep(state: &mut PoolQueueState, now: Instant) {
    if state.swept.is_some_and(|swept| now < swept + SWEEP_EVERY) {
        return;
    }
    state.swept = Some(now);
    let PoolQueueState { tasks, rows, .. } = state;
    tasks.retain(|waiter| {
        let is_wanted = !waiter.reply.is_closed();
        if !is_wanted {
            *rows -= waiter.task.rows.max(1);
        }
        is_wanted
    });
}

/// Waits for the response to the task that was queued at `queued`, until `deadline`.
pub(super) async fn wait(
    inner: &QueueInner,
    verdict: oneshot::Receiver<TaskMessage>,
    queued: Instant,
    deadline: Option<Instant>,
) -> Result<BatchOutput> {
    let verdict = match deadline {
        None => verdict.await,
        Some(deadline) => match tokio::time::timeout_at(deadline.into(), verdict).await {
            Ok(verdict) => verdict,
            Err(_) if inner.requests.waiting.has(queued) => return Err(expired()),
            Err(_) => return Err(expired_in_run()),
        },
    };
    match verdict {
        Ok(TaskMessage::Done(answer)) => answer,
        Ok(TaskMessage::Lead(_)) | Err(_) => Err(Error::unavailable("the server is stopping")),
    }
}

/// The next step of a pool thread.
enum NextStep {
    Batch(Arc<QueueInner>, Vec<WaitingTask>),
    /// No batch is due before this much time has passed.
    Later(Option<Duration>),
}

fn work(pool: &Pool) {
    let mut ring = lock(&pool.ring);
    while !ring.stopped {
        match next_batch(&mut ring) {
            NextStep::Batch(inner, batch) => {
                drop(ring);
                run(&inner, batch);
                ring = lock(&pool.ring);
                let mut state = lock(&inner.requests.waiting.state);
                state.running -= 1;
            }
            NextStep::Later(None) => {
                ring = pool.changed.wait(ring).unwrap_or_else(PoisonError::into_inner);
            }
            NextStep::Later(Some(time)) => {
                let waited = pool.changed.wait_timeout(ring, time);
                ring = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// Finds the first queue in the ring with a batch that is due.
fn next_batch(ring: &mut Ring) -> NextStep {
    let now = Instant::now();
    let mut soonest: Option<Duration> = None;
    for _ in 0..ring.queues.len() {
        let Some(inner) = ring.queues.pop_front() else {
            break;
        };
        let mut state = lock(&inner.requests.waiting.state);
        drop_unwanted(&mut state, now);
        if state.tasks.is_empty() {
            state.listed = false;
            continue;
        }
        let limit = inner.batch_limit(false);
        let wait = time_to_wait(&inner, &state, limit, now);
        if wait.is_zero() {
            let batch = take(&inner, &mut state, limit);
            state.running += 1;
            state.listed = !state.tasks.is_empty();
            let listed = state.listed;
            drop(state);
            if listed {
                ring.queues.push_back(Arc::clone(&inner));
            }
            return NextStep::Batch(inner, batch);
        }
        drop(state);
        ring.queues.push_back(inner);
        soonest = Some(soonest.map_or(wait, |s| s.min(wait)));
    }
    NextStep::Later(soonest)
}

/// Removes requests whose clients have disconnected or whose deadline has passed.
fn drop_unwanted(state: &mut PoolQueueState, now: Instant) {
    let PoolQueueState { tasks, rows, .. } = state;
    let waiters = std::mem::take(tasks);
    tasks.extend(waiters.into_iter().filter_map(|waiter| {
        let size = waiter.task.rows.max(1);
        let wanted = waiter.if_wanted(now);
        if wanted.is_none() {
            *rows -= size;
        }
        wanted
    }));
}

/// How long the queue's next batch may still grow.
fn time_to_wait(
    inner: &QueueInner,
    state: &PoolQueueState,
    limit: usize,
    now: Instant,
) -> Duration {
    let timeout = inner.config.timeout;
    let oldest = state.tasks.front().map(|waiter| waiter.task.queued);
    if state.running == 0 || state.rows >= limit || timeout.is_zero() {
        return Duration::ZERO;
    }
    let waited = oldest.map_or(timeout, |queued| now.saturating_duration_since(queued));
    timeout.saturating_sub(waited)
}

/// Takes the first request, and later ones that can join its batch.
fn take(inner: &QueueInner, state: &mut PoolQueueState, limit: usize) -> Vec<WaitingTask> {
    let padding = inner.config.pad_variable_length_inputs;
    let most = inner.verification.most_requests();
    let mut batch: Vec<WaitingTask> = Vec::new();
    let mut left = VecDeque::with_capacity(state.tasks.len());
    let mut rows = 0;
    let mut padded = None;
    for waiter in state.tasks.drain(..) {
        let joins = match batch.first() {
            None => {
                padded = padding.then(|| assemble::PaddedBatch::of(&waiter.task.inputs));
                true
            }
            Some(first) => {
                let (a, b) = (&first.task, &waiter.task);
                a.rows > 0
                    && b.rows > 0
                    && rows + b.rows <= limit
                    && batch.len() < most
                    && assemble::can_join(&a.inputs, &b.inputs, padding)
                    && padded.as_mut().is_none_or(|batch| batch.try_add(&b.inputs))
            }
        };
        if joins {
            rows += waiter.task.rows.max(1);
            batch.push(waiter);
        } else {
            left.push_back(waiter);
        }
    }
    state.rows -= rows;
    state.tasks = left;
    batch
}

fn run(inner: &QueueInner, batch: Vec<WaitingTask>) {
    let tasks: Vec<&BatchTask> = batch.iter().map(|waiter| &waiter.task).collect();
    // A panic during a run must fail this batch only, and not end the thread.
    let answers =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inner.run_together(&tasks)));
    let answers = answers.unwrap_or_else(|_| {
        inner.metrics.panicked();
        Vec::new()
    });
    let missing = std::iter::repeat_with(|| Err(failed()));
    for (waiter, answer) in batch.into_iter().zip(answers.into_iter().chain(missing)) {
        waiter.answer(answer);
    }
}
