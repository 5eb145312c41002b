//! The dynamic batcher: requests for one signature of one model version run together when that
//! is cheaper than running each alone.
//!
//! A [`BatchQueue`] holds the requests of one signature; the [`Batcher`] owns the threads that queues
//! share. Each request takes one of three paths, chosen by the measured cost of the signature's
//! runs:
//!
//! * **inline run**: a cheap request that cannot or need not be batched runs at once on the thread
//!   it arrived on, without a hand-off to another thread;
//! * **lane** ([`lane`]): a cheap request that gains from batching yields once, so that other
//!   requests that have arrived on its thread can join it; the first of them runs the batch on that
//!   thread, also without a hand-off;
//! * **pool** ([`pool`]): every other request waits for one of `num_batch_threads` threads, which
//!   take waiting requests as soon as they are idle. Runs that may never end have a pool of their own, whose
//!   threads are replaced when a run takes much longer than usual ([`watch`], [`runaways`]).
//!
//! This module does not depend on models, HTTP or libtensorflow.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

pub(crate) use self::assemble::joined;
use self::cost::CostModel;
use self::guards::{BusyGuard, CountGuard};
use self::lane::Lanes;
use self::limit::Limits;
pub use self::limit::ModelLimit;
use self::pool::{BatchPool, PoolQueue};
pub use self::runaways::Runaways;
use self::samples::RecordedSamples;
use self::task::BatchTask;
pub use self::traits::SignatureTraits;
use self::verification::BatchVerification;
pub use self::verification::Joining;
use crate::config::{BatchConfig, BatchMode};
use crate::metrics::{ObservedQueue, QueueLoad, QueueMetrics};
use tensorserve_platform::RunOptions;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Code, Error, Result, Shed};
use tensorserve_tensor::priority::Priority;
use tensorserve_trace as trace;

mod aside;
mod assemble;
mod cost;
mod gpu;
mod guards;
mod lane;
mod limit;
mod pool;
mod ready;
mod run;
mod runaways;
mod samples;
mod spans;
mod task;
#[cfg(test)]
mod tests;
mod traits;
mod verification;
mod waiting;
mod watch;

/// Runs a signature on the inputs of one batch. Blocks.
pub trait BatchRunner: Send + Sync {
    /// The outputs, in order.
    ///
    /// # Errors
    /// What the model's runtime reports.
    fn run(&self, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>>;
}

/// A request's part of a batch's outputs.
#[derive(Debug)]
pub struct BatchOutput {
    /// The outputs, in order.
    pub outputs: Vec<Tensor>,
    /// Where the request's time went.
    pub timing: RunTiming,
}

/// Where a request's time in a batch queue went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTiming {
    /// Until its batch began to run.
    pub queue_delay: Duration,
    /// While its batch ran.
    pub run: Duration,
}

/// When a run began, and how long it took.
#[derive(Clone, Copy)]
struct RunSpan {
    started: Instant,
    time: Duration,
}

impl RunSpan {
    /// The timing of a request of this run that entered the queue at `queued`.
    fn since(self, queued: Instant) -> RunTiming {
        RunTiming { queue_delay: self.started.saturating_duration_since(queued), run: self.time }
    }
}

/// Threads shared by all queues.
pub struct Batcher {
    shared: Arc<BatcherShared>,
    threads: usize,
}

/// What all queues share.
struct BatcherShared {
    pool: BatchPool,
    /// For runs that may never end: they take no thread from the others.
    unbounded: BatchPool,
    limits: Limits,
    /// Runs in progress in the whole process.
    active: AtomicUsize,
    /// Runs in progress that are given up.
    given_up: AtomicUsize,
    cores: usize,
    /// The longest run that may block a connection's thread.
    inline_budget: Duration,
}

impl BatcherShared {
    /// The pool of runs that may never end, or that of the others.
    fn pool(&self, unbounded: bool) -> &BatchPool {
        if unbounded { &self.unbounded } else { &self.pool }
    }
}

/// Runs expected to be shorter than this use one thread per operation: splitting an operation costs
/// more than it gains.
pub const WORTH_SPLITTING: Duration = Duration::from_millis(1);

/// Runs expected to be longer than this are cancelled by the runtime at their deadline. For shorter
/// ones it is enough that the client gets an error at the deadline.
const WORTH_CANCELLING: Duration = Duration::from_millis(500);

impl Batcher {
    /// A batcher with `threads` batch threads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(threads: usize, inline_budget: Duration) -> Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = threads.max(1);
        let shared = Arc::new(BatcherShared {
            pool: BatchPool::new(threads, false),
            unbounded: BatchPool::new(threads, true),
            limits: Limits::default(),
            active: AtomicUsize::new(0),
            given_up: AtomicUsize::new(0),
            cores,
            inline_budget,
        });
        shared.pool.start(&shared)?;
        Ok(Batcher { shared, threads })
    }

    /// The limit of the requests in the queues of `model`, to be set.
    #[must_use]
    pub fn limit(&self, model: &Arc<str>) -> Arc<ModelLimit> {
        self.shared.limits.of(model)
    }

    /// A queue for a signature that `run` runs, of the model with this limit and the version with these
    /// runaways.
    #[must_use]
    pub fn queue(
        &self,
        (limit, runaways): (&Arc<ModelLimit>, &Arc<Runaways>),
        config: BatchConfig,
        traits: SignatureTraits,
        metrics: QueueMetrics,
        run: Arc<dyn BatchRunner>,
    ) -> BatchQueue {
        let (verification, cost) = (BatchVerification::new(&config, &traits), Arc::default());
        let (shared, limit) = (Arc::clone(&self.shared), Arc::clone(limit));
        let requests = QueueRequests::new(&shared, &limit, &config, &metrics);
        BatchQueue::of(QueueInner {
            shared,
            limit,
            runaways: Arc::clone(runaways),
            config,
            traits,
            metrics,
            run,
            cost,
            verification,
            requests,
            recorded: RecordedSamples::default(),
        })
    }
}

impl Batcher {
    /// The number of batch threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.shared.pool.stop();
        self.shared.unbounded.stop();
    }
}

/// The requests of one signature of one model version.
pub struct BatchQueue(Arc<QueueInner>);

struct QueueInner {
    shared: Arc<BatcherShared>,
    limit: Arc<ModelLimit>,
    runaways: Arc<Runaways>,
    config: BatchConfig,
    traits: SignatureTraits,
    metrics: QueueMetrics,
    run: Arc<dyn BatchRunner>,
    cost: Arc<CostModel>,
    verification: BatchVerification,
    requests: Arc<QueueRequests>,
    /// Requests of the warm-up, to be joined with others before the version is ready.
    recorded: RecordedSamples,
}

/// The requests of a queue. The metrics observe it, and keep nothing else of the queue in memory.
struct QueueRequests {
    lanes: Lanes,
    waiting: PoolQueue,
    /// Requests in flight in this queue.
    present: AtomicUsize,
    /// The rows that may wait.
    room: usize,
}

impl ObservedQueue for QueueRequests {
    #[allow(clippy::cast_precision_loss)]
    fn load(&self, now: Instant) -> QueueLoad {
        let (pool, rows) = self.waiting.waiting_tasks();
        let lanes = self.lanes.waiting_tasks();
        let mut priorities = pool.priorities;
        priorities.add_all(&lanes.priorities);
        let oldest = [pool.oldest, lanes.oldest].into_iter().flatten().min();
        QueueLoad {
            present: self.present.load(Relaxed),
            waiting: pool.count + lanes.count,
            priorities,
            oldest: oldest.map_or(Duration::ZERO, |queued| now.saturating_duration_since(queued)),
            fill: rows as f64 / self.room.max(1) as f64,
        }
    }
}

/// How a request is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExecutionPath {
    Inline,
    Lane,
    Pool,
}

impl BatchQueue {
    fn of(inner: QueueInner) -> Self {
        if inner.verification.contradicts(&inner.traits) {
            log::warn!(
                "{}: requests are joined because rows = \"independent\" is set, but rows are {}",
                inner.metrics.name(),
                inner.traits.rows
            );
        }
        BatchQueue(Arc::new(inner))
    }

    /// Runs a request, alone or with others.
    ///
    /// # Errors
    /// What the model reports for this request; [`Code::DeadlineExceeded`] when `deadline` passes first;
    /// [`Code::Unavailable`] when the queue is full or the model has as many requests as it may have, also for a
    /// request that waits and makes room for one of a higher priority, when too many runs of the version have not
    /// ended at their deadlines, when no batch thread can be started, and when the server stops; [`Code::Internal`]
    /// when its batch panics. With [`BatchMode::On`] also [`Code::InvalidArgument`] for more rows than a batch may
    /// have, and [`Code::FailedPrecondition`] for outputs that do not have the rows of the inputs.
    pub async fn submit(
        &self,
        inputs: Vec<Tensor>,
        deadline: Option<Instant>,
        priority: Priority,
    ) -> Result<BatchOutput> {
        let inner = &self.0;
        let rows = inner.rows_of(&inputs)?;
        inner.metrics.asked(rows);
        let trace = trace::recording();
        let queued = Instant::now();
        let task = BatchTask { inputs, rows, deadline, queued, priority, trace };
        if deadline.is_some_and(|deadline| deadline <= task.queued) {
            let message = "the request's deadline passed before it ran";
            let error = Error::new(Code::DeadlineExceeded, message);
            return Err(error.shed_for(Shed::DeadlineInQueue));
        }
        let _counted = match inner.limit.is_set() {
            true => Some(inner.enter(priority)?),
            false => None,
        };
        let most = inner.config.execution_size();
        if rows > most && inner.config.mode == BatchMode::On {
            return self.split(task, most).await;
        }
        let _present = CountGuard::new(&inner.requests.present);
        match inner.execution_path(rows) {
            ExecutionPath::Inline => inner.run_alone(task),
            ExecutionPath::Lane => lane::submit(inner, task).await,
            ExecutionPath::Pool => pool::submit(inner, task).await,
        }
    }

    /// A queue for the same signature with other parameters, which keeps this one's measurements.
    /// Requests that are in this queue keep the old parameters.
    #[must_use]
    pub fn with_config(&self, config: BatchConfig) -> Self {
        self.replaced(config, Arc::clone(&self.0.run), Arc::clone(&self.0.cost))
    }

    /// A queue with the same parameters, and another runner.
    pub(crate) fn with_runner(&self, run: Arc<dyn BatchRunner>) -> Self {
        self.replaced(self.0.config.clone(), run, Arc::new(self.0.cost.renewed()))
    }

    fn replaced(
        &self,
        config: BatchConfig,
        run: Arc<dyn BatchRunner>,
        cost: Arc<CostModel>,
    ) -> Self {
        let QueueInner { shared, limit, traits, metrics, verification, .. } = &*self.0;
        let verification = verification.under(&config, traits);
        let (shared, limit) = (Arc::clone(shared), Arc::clone(limit));
        let runaways = Arc::clone(&self.0.runaways);
        let (metrics, traits) = (metrics.clone(), traits.clone());
        let requests = QueueRequests::new(&shared, &limit, &config, &metrics);
        BatchQueue::of(QueueInner {
            shared,
            limit,
            runaways,
            config,
            traits,
            metrics,
            run,
            cost,
            verification,
            requests,
            recorded: RecordedSamples::default(),
        })
    }

    /// Whether neither this queue nor a queue that it replaced has a request. Runs that are given up do not
    /// count: what they use stays in memory until they end.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let most = 1 + self.0.runaways.given_up();
        Arc::strong_count(&self.0) <= most && Arc::strong_count(&self.0.run) <= most
    }

    /// Requests in flight in this queue.
    #[must_use]
    pub fn present(&self) -> usize {
        self.0.requests.present.load(Relaxed)
    }

    /// The expected duration of a run of `rows` rows; `None` before the first run.
    #[must_use]
    pub fn expected(&self, rows: usize) -> Option<Duration> {
        self.0.cost.predict(rows)
    }

    /// Runs `inputs` outside the queue, for the warm-up. The measured duration counts for later decisions.
    /// Blocks.
    ///
    /// # Errors
    /// What the model reports.
    pub fn warm(&self, inputs: &[Tensor], timeout: Option<Duration>) -> Result<Vec<Tensor>> {
        let rows = assemble::rows_of(inputs).unwrap_or(1);
        // With the threads of a request's run: what is measured here decides about these.
        let threads = self.0.run_options(rows, None, 1).threads;
        let (outputs, time) = self.0.run_apart(inputs, RunOptions { threads, timeout })?;
        self.0.cost.record(rows, time);
        Ok(outputs)
    }

    /// Whether requests may be batched.
    #[must_use]
    pub fn joins(&self) -> bool {
        self.0.verification.may_join()
    }

    /// Whether requests may be batched, and why.
    #[must_use]
    pub fn joining(&self) -> Joining {
        self.0.verification.joining(&self.0.traits)
    }

    /// Runs a request of more rows than a batch takes, in pieces.
    async fn split(&self, task: BatchTask, most: usize) -> Result<BatchOutput> {
        let mut waiting = Vec::new();
        let mut start = 0;
        while start < task.rows {
            let rows = most.min(task.rows - start);
            let range = start..start + rows;
            let inputs = task.inputs.iter().map(|t| t.slice_rows(range.clone())).collect();
            let piece = task.with_inputs(inputs, rows);
            // Each piece counts as a request.
            let present = CountGuard::new(&self.0.requests.present);
            waiting.push((pool::enqueue(&self.0, piece)?, present));
            start += rows;
        }
        let mut pieces = Vec::with_capacity(waiting.len());
        let mut timing = RunTiming::default();
        for (piece, _present) in waiting {
            let piece = piece.answer().await?;
            // The queue delay is that of the first piece; the run time is the sum of all pieces.
            let of_piece = piece.timing;
            let first = if pieces.is_empty() { of_piece } else { timing };
            timing = RunTiming { queue_delay: first.queue_delay, run: timing.run + of_piece.run };
            pieces.push(piece.outputs);
        }
        Ok(BatchOutput { outputs: assemble::rejoin(&pieces)?, timing })
    }
}

impl QueueRequests {
    /// The requests of a queue with these parameters, which `metrics` observe.
    fn new(
        shared: &BatcherShared,
        limit: &ModelLimit,
        config: &BatchConfig,
        metrics: &QueueMetrics,
    ) -> Arc<Self> {
        let requests = Arc::new(QueueRequests {
            lanes: Lanes::new(shared.cores),
            waiting: PoolQueue::default(),
            present: AtomicUsize::new(0),
            room: config.max_enqueued_batches.saturating_mul(config.execution_size()),
        });
        let observed: Weak<QueueRequests> = Arc::downgrade(&requests);
        metrics.observe(observed);
        limit.add(&requests);
        requests
    }
}

impl QueueInner {
    /// Counts a request against the limit of its model. If that is reached, a request that waits and
    /// has a lower priority makes room.
    ///
    /// # Errors
    /// If there is none.
    fn enter(&self, priority: Priority) -> Result<CountGuard<'_>> {
        if let Some(counted) = self.limit.enter() {
            return Ok(counted);
        }
        if pool::displace(&self.limit, priority) {
            return Ok(self.limit.enter_instead());
        }
        Err(self.limit.reached())
    }

    /// The rows that a request adds to a batch; 0 if it must run alone.
    fn rows_of(&self, inputs: &[Tensor]) -> Result<usize> {
        if !self.verification.may_join() {
            return Ok(0);
        }
        if self.verification.is_proven() && !self.traits.are_as_declared(inputs) {
            return Ok(0);
        }
        let rows = assemble::rows_of(inputs).unwrap_or(0);
        let most = self.config.max_batch_size;
        if rows > most && self.config.mode == BatchMode::On {
            return Err(Error::invalid(format!(
                "Task size {rows} is larger than maximum input batch size {most}"
            )));
        }
        Ok(rows)
    }

    /// How a request of `rows` rows is executed.
    fn execution_path(&self, rows: usize) -> ExecutionPath {
        if !self.fits_inline(rows.max(1)) {
            return ExecutionPath::Pool;
        }
        let most = self.config.execution_size();
        if rows == 0 || rows >= most {
            return ExecutionPath::Inline;
        }
        let worthwhile = self.cost.rows_to_join(most);
        if worthwhile <= rows {
            return ExecutionPath::Inline;
        }
        // A batch that is short enough for this thread may be too small to gain anything.
        let here = self.largest_inline(worthwhile);
        if here > rows && self.cost.row_cost(here) <= self.cost.row_cost(worthwhile) * 1.5 {
            return ExecutionPath::Lane;
        }
        if self.requests.present.load(Relaxed) <= 1 {
            return ExecutionPath::Inline;
        }
        ExecutionPath::Pool
    }

    /// The largest batch, of up to `rows` rows, that a connection's thread may run.
    fn largest_inline(&self, rows: usize) -> usize {
        self.cost.rows_within(self.shared.inline_budget, rows, CostModel::predict)
    }

    /// Whether a run of `rows` rows is known to be short enough for a connection's thread.
    fn fits_inline(&self, rows: usize) -> bool {
        let expected = self.cost.predict(rows);
        !self.traits.unbounded && expected.is_some_and(|time| time <= self.shared.inline_budget)
    }

    /// The largest batch to run now, on a connection's thread or on a thread of the pool. Now and then a larger one is tried: on
    /// a connection's thread even one that is only expected to take too long because it has been interrupted, as it would
    /// never show otherwise that it does not.
    fn batch_limit(&self, inline: bool) -> usize {
        let most = self.config.execution_size();
        let worthwhile = self.cost.worthwhile_rows(most);
        let usual = if inline { self.largest_inline(worthwhile) } else { worthwhile };
        let Some(tried) = self.cost.rows_to_try(usual, most) else {
            return usual;
        };
        let (budget, time) = (self.shared.inline_budget, CostModel::predict_uninterrupted);
        if inline { self.cost.rows_within(budget, tried, time).max(usual) } else { tried }
    }

    /// The largest batch to run now, of `waiting` rows: all of them if they are at most a quarter more than the limit. The few that
    /// were left would cost more in a batch of their own: with 32 requests and a limit of 31, each took 5 % more CPU time.
    fn rows_now(&self, waiting: usize, inline: bool) -> usize {
        let limit = self.batch_limit(inline);
        let most = self.config.execution_size().min(limit.saturating_add(limit / 4));
        if waiting > limit && self.padded_rows(waiting) <= most { waiting } else { limit }
    }

    /// The options for a run of `rows` rows, given the number of runs in progress.
    fn run_options(&self, rows: usize, deadline: Option<Instant>, active: usize) -> RunOptions {
        let expected = self.cost.predict(rows);
        let short = |limit| expected.is_some_and(|time| time < limit);
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        RunOptions {
            threads: if short(WORTH_SPLITTING) {
                1
            } else {
                (self.shared.cores / active.max(1)).max(1)
            },
            timeout: match self.traits.unbounded || !short(WORTH_CANCELLING) {
                true => deadline.map(left),
                false => None,
            },
        }
    }

    /// Runs `tasks` once, whose inputs together are `inputs`, and measures the duration.
    fn run_once(
        &self,
        tasks: &[&BatchTask],
        inputs: &[Tensor],
        rows: usize,
        deadline: Option<Instant>,
    ) -> Result<(Vec<Tensor>, RunSpan)> {
        let active = &self.shared.active;
        // Decremented also when the run panics.
        let _running = CountGuard::new(active);
        // Threads that are given up have the lowest priority.
        let busy = active.load(Relaxed).saturating_sub(self.shared.given_up.load(Relaxed));
        let options = self.run_options(rows, deadline, busy);
        let mut busy = BusyGuard::new(&self.metrics);
        let outcome = self.run.run(inputs, options);
        let (started, time) = busy.end();
        spans::record(tasks, rows, started, time, outcome.as_ref().err());
        let outputs = outcome?;
        self.cost.record(rows.max(1), time);
        self.metrics.ran(rows.max(1), time);
        Ok((outputs, RunSpan { started, time }))
    }

    /// Records the padding of a batch, if there are allowed batch sizes.
    fn note_padding(&self, rows: usize, size: usize) {
        if !self.config.allowed_batch_sizes.is_empty() || self.pads_for_gpu() {
            self.metrics.padded(size.saturating_sub(rows), size);
        }
    }
}
