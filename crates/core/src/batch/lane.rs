//! Batches that form on the thread their requests arrive on.
//!
//! A server thread wakes up to a set of connections with something to read, and polls their
//! tasks one after the other. The first request of a signature becomes the lane's leader: it
//! yields once, the tasks behind it in the set push their requests into the lane, and when the
//! leader is polled again it runs them all as one batch, in place. No other thread is woken, and
//! a request that is alone loses the time of one yield.
//!
//! Leadership is handed on, never lost: to the next in the lane when a batch is taken, and by a
//! guard when a leader is dropped half-way.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crossbeam::utils::CachePadded;
use tokio::sync::oneshot;

use super::{BatchOutput, Inner, Task, Verdict, Waiter, assemble, expired};
use tensorserve_tensor::error::{Error, Result};

/// After this many yields in a row that brought no company, most are left out …
const LONELY: u32 = 8;
/// … but for one in so many.
const HOPEFUL_EVERY: u32 = 16;

/// The lanes of a queue: one per server thread, so that threads do not meet in them.
pub(super) struct Lanes {
    lanes: Box<[CachePadded<Mutex<Lane>>]>,
    /// Yields in a row that brought no company.
    lonely: CachePadded<AtomicU32>,
}

#[derive(Default)]
struct Lane {
    has_leader: bool,
    followers: VecDeque<Waiter>,
}

impl Lanes {
    pub(super) fn new(cores: usize) -> Self {
        let count = (2 * cores).next_power_of_two();
        Lanes {
            lanes: (0..count).map(|_| CachePadded::default()).collect(),
            lonely: CachePadded::default(),
        }
    }

    fn lane(&self, index: usize) -> MutexGuard<'_, Lane> {
        // The number of lanes is a power of two and at least two.
        #[allow(clippy::indexing_slicing)]
        let lane = &self.lanes[index & (self.lanes.len() - 1)];
        lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request alone in its lane should step aside for others.
    fn is_worth_yielding(&self) -> bool {
        let lonely = self.lonely.load(Relaxed);
        lonely < LONELY || lonely.is_multiple_of(HOPEFUL_EVERY)
    }

    fn note_company(&self, mates: usize) {
        let lonely = self.lonely.load(Relaxed);
        let next = if mates > 0 { 0 } else { lonely.wrapping_add(1).max(1) };
        self.lonely.store(next, Relaxed);
    }
}

/// A number that tells server threads apart.
fn this_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Relaxed);
    }
    MINE.with(|mine| *mine)
}

/// Runs `task` with whatever else has arrived on this thread.
pub(super) async fn submit(inner: &Inner, task: Task) -> Result<BatchOutput> {
    let index = this_thread();
    let joined = {
        let mut lane = inner.lanes.lane(index);
        if lane.has_leader {
            let (reply, verdict) = oneshot::channel();
            lane.followers.push_back(Waiter { task, reply });
            Ok(verdict)
        } else {
            lane.has_leader = true;
            Err(task)
        }
    };
    let task = match joined {
        Err(task) => {
            let guard = Leadership::new(inner, index);
            if inner.lanes.is_worth_yielding() {
                tokio::task::yield_now().await;
            }
            guard.pass_to_caller();
            task
        }
        Ok(verdict) => match verdict.await {
            Ok(Verdict::Done(answer)) => return answer,
            Ok(Verdict::Lead(task)) => task,
            Err(_) => return Err(Error::internal("the batch could not be run; the log says why")),
        },
    };
    lead(inner, index, task)
}

/// Runs one batch with `own` in it, after handing on the lead.
fn lead(inner: &Inner, index: usize, own: Task) -> Result<BatchOutput> {
    let now = Instant::now();
    let limit = inner.batch_limit(true);
    let mates = {
        let mut lane = inner.lanes.lane(index);
        let mates = take_mates(inner, &mut lane.followers, &own, limit, now);
        hand_on(&mut lane);
        mates
    };
    inner.lanes.note_company(mates.len());
    if own.deadline.is_some_and(|deadline| deadline <= now) {
        // The others still want their answers.
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
    own_answer.unwrap_or_else(|| Err(Error::internal("a batch without an answer")))
}

/// Takes those followers, in order, that can join `own` in a batch of at most `limit` rows.
fn take_mates(
    inner: &Inner,
    followers: &mut VecDeque<Waiter>,
    own: &Task,
    limit: usize,
    now: Instant,
) -> Vec<Waiter> {
    let padding = inner.config.pad_variable_length_inputs;
    let most = inner.trust.most_requests();
    let mut mates = Vec::new();
    let mut rows = own.rows;
    for _ in 0..followers.len() {
        let Some(follower) = followers.pop_front() else {
            break;
        };
        let Some(follower) = follower.if_wanted(now) else {
            continue;
        };
        let fits = rows + follower.task.rows <= limit && mates.len() + 1 < most;
        if fits && assemble::can_join(&own.inputs, &follower.task.inputs, padding) {
            rows += follower.task.rows;
            mates.push(follower);
        } else {
            followers.push_back(follower);
        }
    }
    mates
}

/// Makes the first follower that still listens the leader; without one, nobody is.
fn hand_on(lane: &mut Lane) {
    while let Some(Waiter { task, reply }) = lane.followers.pop_front() {
        if reply.send(Verdict::Lead(task)).is_ok() {
            return;
        }
    }
    lane.has_leader = false;
}

/// Runs the batch of requests whose leader ran out of time.
fn answer(inner: &Inner, mates: Vec<Waiter>) {
    let tasks: Vec<&Task> = mates.iter().map(|mate| &mate.task).collect();
    if tasks.is_empty() {
        return;
    }
    let answers = inner.run_together(&tasks);
    for (mate, answer) in mates.into_iter().zip(answers) {
        mate.answer(answer);
    }
}

/// Hands the lead on if its holder is dropped while it yields (its client has gone away).
struct Leadership<'a> {
    inner: &'a Inner,
    index: usize,
    held: bool,
}

impl<'a> Leadership<'a> {
    fn new(inner: &'a Inner, index: usize) -> Self {
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
            hand_on(&mut self.inner.lanes.lane(self.index));
        }
    }
}
