//! The threads for batches whose runs are too long for a connection's thread.
//!
//! Queues with waiting requests are in a list and take turns. An idle thread takes
//! waiting requests at once, those of the highest priority first. Only while another batch of the same queue runs does
//! `batch_timeout` let a batch grow: it is taken when it is full or when its oldest request
//! has waited that long, whichever is first.
//!
//! The requests of all models meet at the lock of the list, which is therefore held only to put a queue there or
//! to take one. Each queue has a lock of its own, under which a batch is chosen from a bounded number of requests; it is taken
//! before that of the list, never the other way round. Requests are answered and dropped without a lock.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::gpu::RUNS_ON_A_GPU;
use super::guards::lock;
use super::ready::{Due, QueuePlace, ReadyList};
use super::task::{
    BatchTask, TaskMessage, WaitingTask, WaitingTasks, expired, expired_in_run, failed,
};
use super::waiting::{TaskKey, WaitingRequests};
use super::watch::{Watched, WatchedRun};
use super::{BatchOutput, BatcherShared, ModelLimit, QueueInner, QueueRequests, assemble};
use tensorserve_tensor::error::{Error, Result, Shed};
use tensorserve_tensor::priority::Priority;

/// The queues with waiting requests, and the threads that run them.
pub(super) struct BatchPool {
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
    queues: ReadyList<Arc<QueueInner>>,
    /// Threads that wait for a batch.
    idle: usize,
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
    waiting: WaitingRequests,
    /// Batches of this queue that are running.
    running: usize,
    place: QueuePlace,
}

/// How soon a thread is started that could not be started.
const START_AGAIN: Duration = Duration::from_secs(1);

/// The most waiting requests that a batch is chosen from, where each counts once, and once for each of its inputs:
/// others wait for the queue meanwhile.
const MOST_COMPARED: usize = 8 << 10;

impl PoolQueue {
    /// The requests that wait, and how many rows are waiting.
    pub(super) fn waiting_tasks(&self) -> (WaitingTasks, usize) {
        let state = lock(&self.state);
        (state.waiting.summary(), state.waiting.rows())
    }

    /// Locked as by a thread that forms a batch.
    #[cfg(test)]
    pub(super) fn locked(&self) -> impl Sized + '_ {
        lock(&self.state)
    }

    fn lowest_priority(&self) -> Option<Priority> {
        lock(&self.state).waiting.lowest()
    }

    fn pop_below(&self, priority: Priority) -> Option<WaitingTask> {
        lock(&self.state).waiting.pop_below(priority)
    }
}

impl BatchPool {
    /// A pool without threads. Those of one that is watched start with the first request.
    pub(super) fn new(threads: usize, is_watched: bool) -> Self {
        let (ring, changed, watch) = (Mutex::default(), Condvar::new(), Condvar::new());
        BatchPool { ring, changed, threads, is_watched, watch }
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

    /// Starts the threads of a pool that is watched, if they have not been started.
    ///
    /// # Errors
    /// If one cannot be started.
    fn begin_watching(&self, shared: &Arc<BatcherShared>) -> Result<()> {
        let mut ring = self.lock();
        if ring.watched.is_started {
            return Ok(());
        }
        self.hire(shared, &mut ring)
    }

    /// Starts the threads that are missing.
    ///
    /// # Errors
    /// If one cannot be started.
    fn hire(&self, shared: &Arc<BatcherShared>, ring: &mut Ring) -> Result<()> {
        let cannot = |e| Error::unavailable("a batch thread could not be started").with_source(e);
        let spawn = |name: String, work: fn(&BatchPool, &Arc<BatcherShared>)| {
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

    /// Waits until there is a batch, or one has grown.
    fn rest<'r>(&self, mut ring: MutexGuard<'r, Ring>, now: Instant) -> MutexGuard<'r, Ring> {
        let grows = ring.queues.grown_at().map(|until| until.saturating_duration_since(now));
        ring.idle += 1;
        ring = match grows {
            None => self.changed.wait(ring).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let waited = self.changed.wait_timeout(ring, time);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        ring.idle -= 1;
        ring
    }

    /// Ends the threads. Waiting requests get an error.
    pub(super) fn stop(&self) {
        let mut ring = self.lock();
        ring.stopped = true;
        let queues = std::mem::take(&mut ring.queues);
        drop(ring);
        self.changed.notify_all();
        self.watch.notify_one();
        // The last of a queue may be among them.
        drop(queues);
    }
}

/// Answers the newest of the requests under `limit` that wait and have the lowest priority, if
/// that is below `priority`, so that another one can take its place. Returns whether there was one.
pub(super) fn displace(limit: &ModelLimit, priority: Priority) -> bool {
    let lowest = |queue: &QueueRequests| queue.waiting.lowest_priority().unwrap_or(Priority::High);
    let queues = limit.queues();
    let mut queues: Vec<_> = queues.iter().map(|queue| (lowest(queue), queue)).collect();
    queues.sort_by_key(|(priority, _)| *priority);
    for (_, queue) in queues {
        while let Some(waiter) = queue.waiting.pop_below(priority) {
            // The slot of one whose client is leaving is free already.
            if waiter.reply.send(TaskMessage::Done(Err(limit.reached()))).is_ok() {
                return true;
            }
        }
    }
    false
}

/// Waits for a thread to run `task`.
pub(super) async fn submit(inner: &Arc<QueueInner>, task: BatchTask) -> Result<BatchOutput> {
    enqueue(inner, task)?.answer().await
}

/// A request that waits in a queue, and leaves it when this is dropped.
pub(super) struct QueuedRequest<'q> {
    inner: &'q QueueInner,
    /// `None` when it has been answered.
    key: Option<TaskKey>,
    deadline: Option<Instant>,
    verdict: oneshot::Receiver<TaskMessage>,
}

impl QueuedRequest<'_> {
    /// The response to it, at its deadline an error.
    pub(super) async fn answer(mut self) -> Result<BatchOutput> {
        let verdict = match self.deadline {
            None => (&mut self.verdict).await,
            Some(deadline) => {
                match tokio::time::timeout_at(deadline.into(), &mut self.verdict).await {
                    Ok(verdict) => verdict,
                    Err(_) if self.leave() => return Err(expired()),
                    Err(_) => return Err(expired_in_run()),
                }
            }
        };
        self.key = None;
        match verdict {
            Ok(TaskMessage::Done(answer)) => answer,
            Ok(TaskMessage::Lead(_)) | Err(_) => Err(Error::unavailable("the server is stopping")),
        }
    }

    /// Takes the request out of the queue. Returns whether it still waited.
    fn leave(&mut self) -> bool {
        let Some(key) = self.key.take() else {
            return false;
        };
        let pool = self.inner.pool();
        let mut state = lock(&self.inner.requests.waiting.state);
        let waiter = state.waiting.remove(key);
        // A queue without requests may be dropped.
        let queue = if state.waiting.is_empty() { state.take_from_list(pool) } else { None };
        drop(state);
        drop(queue);
        waiter.is_some()
    }
}

impl Drop for QueuedRequest<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Puts `task` in the queue. In a full queue, requests of a lower priority make room for it: the
/// newest ones get the error that it would get.
///
/// # Errors
/// [`Code::Unavailable`](tensorserve_tensor::error::Code::Unavailable) if the queue is full.
pub(super) fn enqueue(inner: &Arc<QueueInner>, task: BatchTask) -> Result<QueuedRequest<'_>> {
    let pool = inner.pool();
    if pool.is_watched {
        if let Some(refusal) = inner.runaways.refusal() {
            return Err(refusal);
        }
        pool.begin_watching(&inner.shared)?;
    }
    let (reply, verdict) = oneshot::channel();
    let (rows, priority, deadline) = (task.rows.max(1), task.priority, task.deadline);
    let mut displaced = Vec::new();
    let mut state = lock(&inner.requests.waiting.state);
    let enqueued = state.waiting.rows();
    if !state.has_room(inner, rows) && !state.can_make_room(inner, rows, priority) {
        drop(state);
        return Err(full(inner, enqueued));
    }
    while !state.has_room(inner, rows)
        && let Some(waiter) = state.waiting.pop_below(priority)
    {
        displaced.push(waiter);
    }
    let key = Some(state.waiting.add(WaitingTask { task, reply }));
    let wakes = state.list_with_another(pool, inner);
    drop(state);
    if wakes {
        pool.changed.notify_one();
    }
    for waiter in displaced {
        waiter.answer(Err(full(inner, enqueued)));
    }
    Ok(QueuedRequest { inner, key, deadline, verdict })
}

impl QueueInner {
    /// The threads that run its batches.
    fn pool(&self) -> &BatchPool {
        self.shared.pool(self.traits.unbounded)
    }
}

impl PoolQueueState {
    fn has_room(&self, inner: &QueueInner, rows: usize) -> bool {
        self.waiting.is_empty() || self.waiting.rows() + rows <= inner.requests.room
    }

    /// Whether there is room for `rows` more rows without those of a lower priority.
    fn can_make_room(&self, inner: &QueueInner, rows: usize, priority: Priority) -> bool {
        let others = self.waiting.rows_from(priority);
        others.is_none_or(|others| others + rows <= inner.requests.room)
    }

    /// When the next batch may run.
    fn due(&self, inner: &QueueInner) -> Due {
        if inner.traits.unbounded && inner.runaways.are_most() {
            return Due::Held;
        }
        let timeout = inner.config.batch_timeout;
        let waits_for_gpu = inner.shares_gpu() && self.running >= RUNS_ON_A_GPU;
        if self.running == 0 || (timeout.is_zero() && !waits_for_gpu) {
            return Due::Now;
        }
        if self.waiting.rows() >= inner.batch_limit(false) {
            return Due::Now;
        }
        if waits_for_gpu {
            return Due::Held;
        }
        let until = self.waiting.oldest().and_then(|queued| queued.checked_add(timeout));
        until.map_or(Due::Now, Due::At)
    }

    /// Puts the queue, which is nowhere, in the list if requests wait. Returns whether a thread must be woken.
    fn list(&mut self, pool: &BatchPool, queue: Arc<QueueInner>, due: Due) -> bool {
        self.place = QueuePlace::Nowhere;
        let Some(priority) = self.waiting.highest() else {
            return false;
        };
        let mut ring = pool.lock();
        if !ring.stopped {
            self.place = ring.queues.put(queue, due, priority);
        }
        ring.idle > 0 && due != Due::Held
    }

    /// The queue, unless it is nowhere in the list or a thread is about to look at it.
    fn take_from_list(&mut self, pool: &BatchPool) -> Option<Arc<QueueInner>> {
        if self.place == QueuePlace::Nowhere {
            return None;
        }
        let queue = pool.lock().queues.remove(self.place)?;
        self.place = QueuePlace::Nowhere;
        Some(queue)
    }

    /// Puts the queue where it belongs with one more request. Returns whether a thread must be woken.
    fn list_with_another(&mut self, pool: &BatchPool, inner: &Arc<QueueInner>) -> bool {
        let is_higher = self.waiting.highest() > self.place.priority();
        let due = match self.place {
            QueuePlace::Nowhere => return self.list(pool, Arc::clone(inner), self.due(inner)),
            QueuePlace::Ready(_) if is_higher => Due::Now,
            QueuePlace::Growing(until, _) => {
                let due = self.due(inner);
                if !is_higher && !due.is_before(until) {
                    return false;
                }
                due
            }
            QueuePlace::Held(_) => {
                let due = self.due(inner);
                if due == Due::Held {
                    return false;
                }
                due
            }
            QueuePlace::Ready(_) => return false,
        };
        let queue = self.take_from_list(pool);
        queue.is_some_and(|queue| self.list(pool, queue, due))
    }
}

/// The error of a request that is refused because the queue is full with `rows` rows.
fn full(inner: &QueueInner, rows: usize) -> Error {
    let most = inner.config.max_enqueued_batches;
    let size = inner.config.execution_size();
    let enqueued = rows.div_ceil(size.max(1));
    let error = Error::unavailable(format!(
        "The batch scheduling queue to which this task was submitted is full; currently \
         {enqueued} batches enqueued and max_enqueued_batches is {most}"
    ));
    error.shed_for(Shed::QueueFull)
}

fn work(pool: &BatchPool, shared: &Arc<BatcherShared>) {
    let mut ring = pool.lock();
    while !ring.stopped {
        let now = Instant::now();
        let Some(inner) = ring.queues.next(now) else {
            ring = pool.rest(ring, now);
            continue;
        };
        // This thread may have been woken to wait for a batch that grows.
        let hands_on = ring.idle > 0 && ring.queues.grown_at().is_some();
        drop(ring);
        if hands_on {
            pool.changed.notify_one();
        }
        if let Some(batch) = next_batch(pool, &inner, now)
            && !run_watched(pool, shared, &inner, batch)
        {
            return;
        }
        drop(inner);
        ring = pool.lock();
    }
}

/// Runs a batch. Returns whether this thread goes on: in place of one whose run was overdue there is another.
fn run_watched(
    pool: &BatchPool,
    shared: &BatcherShared,
    inner: &Arc<QueueInner>,
    batch: Vec<WaitingTask>,
) -> bool {
    let number = pool.is_watched.then(|| {
        let run = WatchedRun::of(inner, &batch);
        let (number, is_sooner) = pool.lock().watched.begin(run);
        if is_sooner {
            pool.watch.notify_one();
        }
        number
    });
    run(inner, batch);
    let mut state = lock(&inner.requests.waiting.state);
    state.running -= 1;
    let is_awaited = match state.place {
        QueuePlace::Growing(..) => state.running == 0,
        QueuePlace::Held(_) => true,
        QueuePlace::Nowhere | QueuePlace::Ready(_) => false,
    };
    if is_awaited && let Some(queue) = state.take_from_list(pool) {
        let due = state.due(inner);
        state.list(pool, queue, due);
    }
    drop(state);
    let Some(number) = number else {
        return true;
    };
    let mut ring = pool.lock();
    if !ring.watched.end(shared, number) {
        return true;
    }
    // Further runs of the version may begin.
    ring.queues.release();
    drop(ring);
    pool.changed.notify_all();
    false
}

/// Watches the runs of the pool until it stops, and starts threads in place of those whose runs are overdue.
fn watch(pool: &BatchPool, shared: &Arc<BatcherShared>) {
    let mut ring = pool.lock();
    while !ring.stopped {
        if ring.watched.look(shared, Instant::now()) {
            // Requests that wait may have to be refused.
            ring.queues.release();
            pool.changed.notify_all();
        }
        let is_complete = pool.hire(shared, &mut ring).is_ok();
        let again = (!is_complete).then(|| Instant::now() + START_AGAIN);
        let next = [ring.watched.looks_at, again].into_iter().flatten().min();
        ring = pool.sleep(ring, next);
    }
}

/// The next batch of this queue, if one is due. Puts the queue back where it belongs.
fn next_batch(pool: &BatchPool, inner: &Arc<QueueInner>, now: Instant) -> Option<Vec<WaitingTask>> {
    let mut state = lock(&inner.requests.waiting.state);
    if let Some(refusal) = inner.runaways.refusal() {
        let refused = state.waiting.take_all();
        state.place = QueuePlace::Nowhere;
        drop(state);
        refused.for_each(|waiter| waiter.answer(Err(refusal.duplicate())));
        return None;
    }
    let mut chosen = Chosen::default();
    if state.due(inner).is_past(now) {
        chosen = choose(inner, &state.waiting, now);
    }
    let take = |keys: Vec<TaskKey>, state: &mut PoolQueueState| -> Vec<WaitingTask> {
        keys.into_iter().filter_map(|key| state.waiting.remove(key)).collect()
    };
    let (batch, unwanted) = (take(chosen.batch, &mut state), take(chosen.unwanted, &mut state));
    state.running += usize::from(!batch.is_empty());
    let due = state.due(inner);
    let wakes = state.list(pool, Arc::clone(inner), due);
    drop(state);
    // This thread itself waits for a batch that grows.
    if wakes && due == Due::Now {
        pool.changed.notify_one();
    }
    for waiter in unwanted {
        // It gets its error.
        let _ = waiter.if_wanted(now);
    }
    (!batch.is_empty()).then_some(batch)
}

/// What is taken out of a queue for its next batch.
#[derive(Default)]
struct Chosen {
    /// The requests of the next batch.
    batch: Vec<TaskKey>,
    /// The requests before and between them whose clients have disconnected or whose deadline has passed.
    unwanted: Vec<TaskKey>,
}

/// Chooses the first request, and later ones that can join its batch.
fn choose(inner: &QueueInner, waiting: &WaitingRequests, now: Instant) -> Chosen {
    let padding = inner.config.pad_variable_length_inputs;
    let limit = inner.rows_now(waiting.rows(), false);
    let most = inner.verification.most_requests();
    let mut chosen = Chosen::default();
    let (mut first, mut padded): (Option<&BatchTask>, _) = (None, None);
    let (mut rows, mut compared) = (0, 0);
    for (key, waiter) in waiting.iter() {
        let task = &waiter.task;
        compared += 1 + task.inputs.len();
        if compared > MOST_COMPARED && (first.is_some() || !chosen.unwanted.is_empty()) {
            break;
        }
        if !waiter.is_wanted(now) {
            chosen.unwanted.push(key);
            continue;
        }
        let joins = first.is_none_or(|first| {
            task.rows > 0
                && rows + task.rows <= limit
                && assemble::can_join(&first.inputs, &task.inputs, padding)
                && padded
                    .as_mut()
                    .is_none_or(|batch: &mut assemble::PaddedBatch| batch.try_add(&task.inputs))
        });
        if joins {
            rows += task.rows.max(1);
            chosen.batch.push(key);
        }
        if first.is_none() {
            first = Some(task);
            padded = padding.then(|| assemble::PaddedBatch::of(&task.inputs));
        }
        if first.is_some_and(|first| first.rows == 0) || rows >= limit || chosen.batch.len() >= most
        {
            break;
        }
    }
    chosen
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
