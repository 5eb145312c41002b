//! Batches that form on the thread on which their requests arrive.
//!
//! A server thread wakes up for a set of readable connections and polls their tasks one after the
//! other. The first request of a signature becomes the lane's leader: it yields once, the tasks
//! after it in the set add their requests to the lane, and when the leader is polled again, it runs
//! them all as one batch on this thread. No other thread is woken, and a single request loses only
//! the time of one yield.
//!
//! A lane with followers always has a leader: the leader hands over to the next request when it
//! takes a batch. When a client disconnects, its request is dropped: while it yields as the leader, or after the lead
//! was handed to it and before it was polled again. A guard then hands the lead on.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crossbeam::utils::CachePadded;
use tokio::sync::oneshot;

use super::task::{BatchTask, TaskMessage, WaitingTask, WaitingTasks, expired, failed};
use super::{BatchOutput, QueueInner, assemble};
use tensorserve_tensor::error::{Error, Result};

/// After this many yields in a row without another request, most yields are skipped …
const FRUITLESS_YIELDS: u32 = 8;
/// … except one in this many.
const YIELD_EVERY: u32 = 16;

/// The lanes of a queue: one per server thread, so that threads do not contend for them.
pub(super) struct Lanes {
    lanes: Box<[CachePadded<Mutex<Lane>>]>,
}

#[derive(Default)]
struct Lane {
    has_leader: bool,
    followers: VecDeque<WaitingTask>,
    /// Yields in a row without another request.
    fruitless: u32,
}

impl Lane {
    /// Whether a leader should yield, so that other requests can join its batch.
    fn is_worth_yielding(&self) -> bool {
        self.fruitless < FRUITLESS_YIELDS || self.fruitless.is_multiple_of(YIELD_EVERY)
    }

    fn record_mates(&mut self, mates: usize) {
        self.fruitless = if mates > 0 { 0 } else { self.fruitless.wrapping_add(1).max(1) };
    }
}

impl Lanes {
    pub(super) fn new(cores: usize) -> Self {
        let count = (2 * cores).next_power_of_two();
        Lanes { lanes: (0..count).map(|_| CachePadded::default()).collect() }
    }

    fn lane(&self, index: usize) -> MutexGuard<'_, Lane> {
        // The number of lanes is a power of two and at least two.
        #[allow(clippy::indexing_slicing)]
        let lane = &self.lanes[index & (self.lanes.len() - 1)];
        lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests that wait for a leader.
    pub(super) fn waiting_tasks(&self) -> WaitingTasks {
        let mut all = WaitingTasks::default();
        for index in 0..self.lanes.len() {
            let lane: WaitingTasks = self.lane(index).followers.iter().collect();
            all.count += lane.count;
            all.priorities.add_all(&lane.priorities);
            all.oldest = [all.oldest, lane.oldest].into_iter().flatten().min();
        }
        all
    }
}

/// A number that identifies this server thread.
fn this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Relaxed);
    }
    MINE.with(|mine| *mine)
}

/// Runs `task` in a batch with other requests that have arrived on this thread.
pub(super) async fn submit(inner: &QueueInner, task: BatchTask) -> Result<BatchOutput> {
    let index = this_thread();
    let joined = {
        let mut lane = inner.requests.lanes.lane(index);
        if lane.has_leader {
            let (reply, verdict) = oneshot::channel();
            lane.followers.push_back(WaitingTask { task, reply });
            Ok(Follower { inner, index, verdict })
        } else {
            lane.has_leader = true;
            Err((task, lane.is_worth_yielding()))
        }
    };
    let task = match joined {
        Err((task, is_worth_yielding)) => {
            let guard = Leadership::new(inner, index);
            if is_worth_yielding {
                tokio::task::yield_now().await;
            }
            guard.pass_to_caller();
            task
        }
        Ok(mut follower) => match (&mut follower.verdict).await {
            Ok(TaskMessage::Done(answer)) => return answer,
            Ok(TaskMessage::Lead(task)) => task,
            Err(_) => return Err(failed()),
        },
    };
    lead(inner, index, task)
}

/// Hands the lead over, then runs one batch that includes `own`.
fn lead(inner: &QueueInner, index: usize, own: BatchTask) -> Result<BatchOutput> {
    let now = Instant::now();
    let mates = {
        let mut lane = inner.requests.lanes.lane(index);
        let waiting = lane.followers.iter().map(|follower| follower.task.rows).sum::<usize>();
        let limit = inner.rows_now(own.rows + waiting, true);
        let mates = take_mates(inner, &mut lane.followers, &own, limit, now);
        lane.record_mates(mates.len());
        hand_on(&mut lane);
        mates
    };
    if own.deadline.is_some_and(|deadline| deadline <= now) {
        // The other requests of the batch are still waited for.
        answer(inner, mates);
        return Err(expired());
    }
    if mates.is_empty() {
        return inner.run_alone(own);
    }
    let mut tasks = vec![&own];
    tasks.extend(mates.iter().map(|mate| &mate.task));
    let mut answers = inner.run_together(&tasks).into_iter();
    let own_answer = answers.next();
    for (mate, answer) in mates.into_iter().zip(answers) {
        mate.answer(answer);
    }
    own_answer
        .unwrap_or_else(|| Err(Error::internal("the batch returned no outputs for this request")))
}

/// Takes those followers, in order, that can join `own` in a batch of at most `limit` rows.
fn take_mates(
    inner: &QueueInner,
    followers: &mut VecDeque<WaitingTask>,
    own: &BatchTask,
    limit: usize,
    now: Instant,
) -> Vec<WaitingTask> {
    let padding = inner.config.pad_variable_length_inputs;
    let most = inner.verification.most_requests();
    let mut mates = Vec::new();
    let mut rows = own.rows;
    let mut padded = padding.then(|| assemble::PaddedBatch::of(&own.inputs));
    for _ in 0..followers.len() {
        let Some(follower) = followers.pop_front() else {
            break;
        };
        let Some(follower) = follower.if_wanted(now) else {
            continue;
        };
        let fits = rows + follower.task.rows <= limit && mates.len() + 1 < most;
        let inputs = &follower.task.inputs;
        if fits
            && assemble::can_join(&own.inputs, inputs, padding)
            && padded.as_mut().is_none_or(|batch| batch.try_add(inputs))
        {
            rows += follower.task.rows;
            mates.push(follower);
        } else {
            followers.push_back(follower);
        }
    }
    mates
}

/// Makes the first follower whose client still waits the leader. Without one, the lane has no
/// leader.
fn hand_on(lane: &mut Lane) {
    while let Some(WaitingTask { task, reply }) = lane.followers.pop_front() {
        if reply.send(TaskMessage::Lead(task)).is_ok() {
            return;
        }
    }
    lane.has_leader = false;
}

/// Runs the batch of requests whose leader's deadline has passed.
fn answer(inner: &QueueInner, mates: Vec<WaitingTask>) {
    let tasks: Vec<&BatchTask> = mates.iter().map(|mate| &mate.task).collect();
    if tasks.is_empty() {
        return;
    }
    let answers = inner.run_together(&tasks);
    for (mate, answer) in mates.into_iter().zip(answers) {
        mate.answer(answer);
    }
}

/// A request that waits in a lane.
struct Follower<'a> {
    inner: &'a QueueInner,
    index: usize,
    verdict: oneshot::Receiver<TaskMessage>,
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.verdict.close();
        if let Ok(TaskMessage::Lead(_)) = self.verdict.try_recv() {
            hand_on(&mut self.inner.requests.lanes.lane(self.index));
        }
    }
}

/// Hands the lead over if the leader is dropped while it yields (its client has disconnected).
struct Leadership<'a> {
    inner: &'a QueueInner,
    index: usize,
    held: bool,
}

impl<'a> Leadership<'a> {
    fn new(inner: &'a QueueInner, index: usize) -> Self {
        let held = true;
        Leadership { inner, index, held }
    }

    fn pass_to_caller(mut self) {
        self.held = false;
    }
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        if self.held {
            hand_on(&mut self.inner.requests.lanes.lane(self.index));
        }
    }
}
