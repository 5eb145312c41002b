//! The threads for batches whose runs are too long for a connection's thread.
//!
//! Queues with waiting requests are in a ring and are served round-robin. An idle thread takes
//! waiting requests at once, those of the highest priority first. Only while another batch of the same queue runs does
//! `batch_timeout_micros` let a batch grow: it is taken when it is full or when its oldest request
//! has waited that long, whichever is first.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::guards::lock;
use super::task::{
    BatchTask, TaskMessage, WaitingTask, WaitingTasks, expired, expired_in_run, failed,
};
use super::watch::Watched;
use super::{BatchOutput, BatcherShared, ModelLimit, QueueInner, assemble};
use tensorserve_tensor::error::{Error, Result, Shed};
use tensorserve_tensor::priority::Priority;

/// The queues with waiting requests, in a ring, and the threads that run them.
pub(super) struct Pool {
    ring: Mutex<Ring>,
    changed: Condvar,
    /// The number of threads.
    threads: usize,
    /// Whether its runs may never end.
    is_watched: bool,
    /// Wakes the thread that watches them.
    watch: Condvar,
}

#[derive(Default)]
struct Ring {
    queues: VecDeque<Arc<QueueInner>>,
    /// Whether requests of another than the usual priority may wait in them.
    has_priorities: bool,
    stopped: bool,
    watched: Watched,
}

/// The requests of one queue that wait for a thread.
#[derive(Default)]
pub(super) struct PoolQueue {
    state: Mutex<PoolQueueState>,
}

#[derive(Default)]
struct PoolQueueState {
    /// Those of a higher priority first, and those of one priority in the order of their arrival.
    tasks: VecDeque<WaitingTask>,
    rows: usize,
    /// Batches of this queue that are running.
    running: usize,
    /// Whether the queue is in the ring.
    listed: bool,
    /// When cancelled requests were last removed because it was full.
    swept: Option<Instant>,
}

/// How soon a thread is started that could not be started.
const START_AGAIN: Duration = Duration::from_secs(1);

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
    /// one of the first of its priority.
    fn has(&self, queued: Instant, priority: Priority) -> bool {
        let state = lock(&self.state);
        // The tasks of one priority are in the order in which they came here, a moment after they
        // were stamped.
        let first = state.tasks.partition_point(|waiter| waiter.task.priority > priority);
        let queued_at = state.tasks.range(first..).map(|waiter| waiter.task.queued);
        queued_at.take_while(|at| *at <= queued + STAMP_TO_QUEUE).any(|at| at == queued)
    }
}

/// Longer than the time between the stamp of a request and its place in the queue.
const STAMP_TO_QUEUE: Duration = Duration::from_millis(100);

impl Pool {
    /// A pool without threads. Those of one that is watched start with the first request.
    pub(super) fn new(threads: usize, is_watched: bool) -> Self {
        let (ring, changed, watch) = (Mutex::default(), Condvar::new(), Condvar::new());
        Pool { ring, changed, threads, is_watched, watch }
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        lock(&self.ring)
    }

    /// Starts the threads.
    ///
    /// # Errors
    /// If one cannot be started.
    pub(super) fn start(&self, shared: &Arc<BatcherShared>) -> Result<()> {
        self.hire(shared, &mut self.lock())
    }

    /// Starts the threads that are missing.
    ///
    /// # Errors
    /// If one cannot be started.
    fn hire(&self, shared: &Arc<BatcherShared>, ring: &mut Ring) -> Result<()> {
        let cannot = |e| Error::unavailable("a batch thread could not be started").with_source(e);
        let spawn = |name: String, work: fn(&Pool, &Arc<BatcherShared>)| {
            let (shared, is_watched) = (Arc::clone(shared), self.is_watched);
            let work = move || work(shared.pool(is_watched), &shared);
            thread::Builder::new().name(name).spawn(work).map(drop).map_err(cannot)
        };
        if self.is_watched && !ring.watched.is_started {
            spawn("batch watch".to_owned(), watch)?;
            ring.watched.is_started = true;
        }
        while ring.watched.threads < self.threads {
            let kind = if self.is_watched { "open-" } else { "" };
            spawn(format!("batch-{kind}{}", ring.watched.named), work)?;
            ring.watched.named += 1;
            ring.watched.threads += 1;
        }
        Ok(())
    }

    /// Waits until the watching thread is woken, at most until `until`.
    fn sleep<'r>(
        &self,
        ring: MutexGuard<'r, Ring>,
        until: Option<Instant>,
    ) -> MutexGuard<'r, Ring> {
        let Some(until) = until else {
            return self.watch.wait(ring).unwrap_or_else(PoisonError::into_inner);
        };
        let time = until.saturating_duration_since(Instant::now());
        self.watch.wait_timeout(ring, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Answers the newest of the requests under `limit` that wait and have the lowest priority, if
    /// that is below `priority`, so that another one can take its place. Returns whether there was one.
    pub(super) fn displace(&self, limit: &Arc<ModelLimit>, priority: Priority) -> bool {
        let ring = lock(&self.ring);
        let of_model = ring.queues.iter().filter(|queue| Arc::ptr_eq(&queue.limit, limit));
        let last = |queue: &&Arc<QueueInner>| {
            let state = lock(&queue.requests.waiting.state);
            state.tasks.back().map_or(Priority::High, |waiter| waiter.task.priority)
        };
        let mut queues: Vec<_> = of_model.map(|queue| (last(&queue), queue)).collect();
        queues.sort_by_key(|(priority, _)| *priority);
        for (_, queue) in queues {
            let mut state = lock(&queue.requests.waiting.state);
            while let Some(waiter) = state.pop_below(priority) {
                // The slot of one whose client has left is free already.
                if waiter.reply.send(TaskMessage::Done(Err(limit.reached()))).is_ok() {
                    return true;
                }
            }
        }
        false
    }

    /// Ends the threads. Waiting requests get an error.
    pub(super) fn stop(&self) {
        let mut ring = lock(&self.ring);
        ring.stopped = true;
        ring.queues.clear();
        self.changed.notify_all();
        self.watch.notify_one();
    }
}

/// Waits for a thread to run `task`.
pub(super) async fn submit(inner: &Arc<QueueInner>, task: BatchTask) -> Result<BatchOutput> {
    let ticket = Ticket::of(&task);
    wait(inner, enqueue(inner, task)?, ticket).await
}

/// What is known of a task while it waits.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    queued: Instant,
    deadline: Option<Instant>,
    priority: Priority,
}

impl Ticket {
    pub(super) fn of(task: &BatchTask) -> Self {
        let BatchTask { queued, deadline, priority, .. } = *task;
        Ticket { queued, deadline, priority }
    }
}

/// Puts `task` in the queue. In a full queue, requests of a lower priority make room for it: the
/// newest ones get the error that it would get.
///
/// # Errors
/// [`Code::Unavailable`](tensorserve_tensor::error::Code::Unavailable) if the queue is full.
pub(super) fn enqueue(
    inner: &Arc<QueueInner>,
    task: BatchTask,
) -> Result<oneshot::Receiver<TaskMessage>> {
    let (reply, verdict) = oneshot::channel();
    let pool = inner.shared.pool(inner.traits.unbounded);
    let mut ring = pool.lock();
    if pool.is_watched {
        if let Some(refusal) = inner.runaways.refusal() {
            return Err(refusal);
        }
        if !ring.watched.is_started {
            pool.hire(&inner.shared, &mut ring)?;
        }
    }
    let mut state = lock(&inner.requests.waiting.state);
    let rows = task.rows.max(1);
    if !state.has_room(inner, rows) {
        sweep(&mut state, task.queued);
        if !state.has_room(inner, rows) {
            let full = full(inner, &state);
            if !state.can_make_room(inner, rows, task.priority) {
                return Err(full);
            }
            while !state.has_room(inner, rows)
                && let Some(waiter) = state.pop_below(task.priority)
            {
                waiter.answer(Err(full.duplicate()));
            }
        }
    }
    ring.has_priorities |= task.priority != Priority::default();
    state.rows += rows;
    state.insert(WaitingTask { task, reply });
    if !state.listed {
        state.listed = true;
        ring.queues.push_back(Arc::clone(inner));
    }
    drop((state, ring));
    pool.changed.notify_one();
    Ok(verdict)
}

impl PoolQueueState {
    fn has_room(&self, inner: &QueueInner, rows: usize) -> bool {
        self.tasks.is_empty() || self.rows + rows <= inner.requests.room
    }

    /// Whether there is room for `rows` more rows without those of a lower priority.
    fn can_make_room(&self, inner: &QueueInner, rows: usize, priority: Priority) -> bool {
        let first = self.tasks.partition_point(|waiter| waiter.task.priority >= priority);
        let others = self.tasks.range(first..).map(|waiter| waiter.task.rows.max(1)).sum::<usize>();
        let is_alone = first == 0;
        is_alone || self.rows.saturating_sub(others) + rows <= inner.requests.room
    }

    /// Puts a task behind the others of its priority.
    fn insert(&mut self, waiter: WaitingTask) {
        let priority = waiter.task.priority;
        match self.tasks.back() {
            Some(last) if last.task.priority < priority => {
                let place = self.tasks.partition_point(|other| other.task.priority >= priority);
                self.tasks.insert(place, waiter);
            }
            _ => self.tasks.push_back(waiter),
        }
    }

    /// Takes the newest of the tasks of the lowest priority, if that is below `priority`.
    fn pop_below(&mut self, priority: Priority) -> Option<WaitingTask> {
        let is_below = self.tasks.back().is_some_and(|last| last.task.priority < priority);
        let waiter = if is_below { self.tasks.pop_back() } else { None }?;
        self.rows -= waiter.task.rows.max(1);
        Some(waiter)
    }

    /// Answers all tasks with this error.
    fn answer_all(&mut self, error: &Error) {
        self.rows = 0;
        for waiter in self.tasks.drain(..) {
            waiter.answer(Err(error.duplicate()));
        }
    }

    /// When the task that waits longest was queued.
    fn oldest(&self) -> Option<Instant> {
        let first = |priority| {
            let place = self.tasks.partition_point(|waiter| waiter.task.priority > priority);
            Some(self.tasks.get(place)?.task.queued)
        };
        Priority::ALL.into_iter().filter_map(first).min()
    }
}

/// The error of a request that a full queue refuses.
fn full(inner: &QueueInner, state: &PoolQueueState) -> Error {
    let most = inner.config.max_enqueued_batches;
    let size = inner.config.execution_size();
    let enqueued = state.rows.div_ceil(size.max(1));
    let error = Error::unavailable(format!(
        "The batch scheduling queue to which this task was submitted is full; currently \
         {enqueued} batches enqueued and max_enqueued_batches is {most}"
    ));
    error.shed_for(Shed::QueueFull)
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

/// Waits for the response to the task with this ticket, until its deadline.
pub(super) async fn wait(
    inner: &QueueInner,
    verdict: oneshot::Receiver<TaskMessage>,
    ticket: Ticket,
) -> Result<BatchOutput> {
    let Ticket { queued, deadline, priority } = ticket;
    let verdict = match deadline {
        None => verdict.await,
        Some(deadline) => match tokio::time::timeout_at(deadline.into(), verdict).await {
            Ok(verdict) => verdict,
            Err(_) if inner.requests.waiting.has(queued, priority) => return Err(expired()),
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

fn work(pool: &Pool, shared: &Arc<BatcherShared>) {
    let mut ring = pool.lock();
    while !ring.stopped {
        match next_batch(&mut ring) {
            NextStep::Batch(inner, batch) => {
                let watched = pool.is_watched.then(|| ring.watched.begin(&inner, &batch));
                drop(ring);
                if watched.is_some_and(|(_, is_sooner)| is_sooner) {
                    pool.watch.notify_one();
                }
                run(&inner, batch);
                ring = pool.lock();
                let mut state = lock(&inner.requests.waiting.state);
                state.running -= 1;
                drop(state);
                if watched.is_some_and(|(number, _)| ring.watched.end(shared, number)) {
                    // Further runs of the version may begin.
                    pool.changed.notify_one();
                    return;
                }
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

/// Watches the runs of the pool until it stops, and starts threads in place of those whose runs are overdue.
fn watch(pool: &Pool, shared: &Arc<BatcherShared>) {
    let mut ring = pool.lock();
    while !ring.stopped {
        if ring.watched.look(shared, Instant::now()) {
            // Requests that wait may have to be refused.
            pool.changed.notify_one();
        }
        let is_complete = pool.hire(shared, &mut ring).is_ok();
        let again = (!is_complete).then(|| Instant::now() + START_AGAIN);
        let next = [ring.watched.looks_at, again].into_iter().flatten().min();
        ring = pool.sleep(ring, next);
    }
}

impl Ring {
    /// Moves the first of the queues with a request of the highest priority to the front.
    fn put_highest_first(&mut self) {
        let (mut highest, mut has_priorities) = (None, false);
        for (place, queue) in self.queues.iter().enumerate() {
            let state = lock(&queue.requests.waiting.state);
            let ends = state.tasks.front().zip(state.tasks.back());
            let Some((first, last)) = ends.map(|(a, b)| (a.task.priority, b.task.priority)) else {
                continue;
            };
            has_priorities |= first != Priority::default() || last != Priority::default();
            if highest.is_none_or(|(priority, _)| first > priority) {
                highest = Some((first, place));
            }
        }
        self.has_priorities = has_priorities;
        if let Some((_, place)) = highest
            && let Some(queue) = self.queues.remove(place)
        {
            self.queues.push_front(queue);
        }
    }
}

/// Finds the first queue in the ring with a batch that is due.
fn next_batch(ring: &mut Ring) -> NextStep {
    let now = Instant::now();
    if ring.has_priorities {
        ring.put_highest_first();
    }
    let mut soonest: Option<Duration> = None;
    for _ in 0..ring.queues.len() {
        let Some(inner) = ring.queues.pop_front() else {
            break;
        };
        let mut state = lock(&inner.requests.waiting.state);
        drop_unwanted(&mut state, now);
        if let Some(refusal) = inner.runaways.refusal() {
            state.answer_all(&refusal);
        }
        if state.tasks.is_empty() {
            state.listed = false;
            continue;
        }
        if inner.runaways.are_most() {
            drop(state);
            ring.queues.push_back(inner);
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
    if state.running == 0 || state.rows >= limit || timeout.is_zero() {
        return Duration::ZERO;
    }
    let waited = state.oldest().map_or(timeout, |queued| now.saturating_duration_since(queued));
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
