//! Requests in a queue, and the messages to those that wait.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::BatchOutput;
use crate::metrics::PriorityCounts;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Code, Error, Result, Shed};
use tensorserve_tensor::priority::Priority;
use tensorserve_trace::RequestTrace;

/// One request in a queue.
pub(super) struct BatchTask {
    pub(super) inputs: Vec<Tensor>,
    /// Its 0-th dimension; 0 for a request that must run alone.
    pub(super) rows: usize,
    pub(super) deadline: Option<Instant>,
    pub(super) queued: Instant,
    pub(super) priority: Priority,
    /// The record of its request, if it is part of a trace.
    pub(super) trace: Option<Arc<RequestTrace>>,
}

impl BatchTask {
    /// This request with other inputs.
    pub(super) fn with_inputs(&self, inputs: Vec<Tensor>, rows: usize) -> Self {
        let BatchTask { deadline, queued, priority, ref trace, .. } = *self;
        BatchTask { inputs, rows, deadline, queued, priority, trace: trace.clone() }
    }
}

/// A task that waits, and the channel for its response.
pub(super) struct WaitingTask {
    pub(super) task: BatchTask,
    pub(super) reply: oneshot::Sender<TaskMessage>,
}

/// The message to a waiting task.
pub(super) enum TaskMessage {
    /// Its response.
    Done(Result<BatchOutput>),
    /// The task becomes the lane's leader: it runs the next batch, which includes itself.
    Lead(BatchTask),
}

impl WaitingTask {
    /// What it counts in the bounds of its queue.
    pub(super) fn size(&self) -> usize {
        self.task.rows.max(1)
    }

    /// Whether the client still waits, and the deadline has not passed.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        !self.reply.is_closed() && self.task.deadline.is_none_or(|deadline| deadline > now)
    }

    /// `self` if the client still waits. A task whose deadline has passed gets that error.
    pub(super) fn if_wanted(self, now: Instant) -> Option<Self> {
        if self.reply.is_closed() {
            return None;
        }
        if self.task.deadline.is_some_and(|deadline| deadline <= now) {
            self.answer(Err(expired()));
            return None;
        }
        Some(self)
    }

    pub(super) fn answer(self, answer: Result<BatchOutput>) {
        // A client that has disconnected is not an error.
        let _ = self.reply.send(TaskMessage::Done(answer));
    }
}

pub(super) fn expired() -> Error {
    let message = "the request's deadline passed while it waited in the batch queue";
    Error::new(Code::DeadlineExceeded, message).shed_for(Shed::DeadlineInQueue)
}

/// The error of a request whose batch takes too long.
pub(super) fn expired_in_run() -> Error {
    Error::new(Code::DeadlineExceeded, "the request's deadline passed while its batch ran")
}

/// The error of a batch whose run panicked.
pub(super) fn failed() -> Error {
    Error::internal("the batch could not be run: internal error; see the server log")
}

/// Requests that wait and whose clients have not left.
#[derive(Default)]
pub(super) struct WaitingTasks {
    pub(super) count: usize,
    pub(super) priorities: PriorityCounts,
    pub(super) oldest: Option<Instant>,
}

impl<'t> FromIterator<&'t WaitingTask> for WaitingTasks {
    fn from_iter<I: IntoIterator<Item = &'t WaitingTask>>(tasks: I) -> Self {
        let mut all = WaitingTasks::default();
        for waiter in tasks.into_iter().filter(|waiter| !waiter.reply.is_closed()) {
            all.count += 1;
            all.priorities.add(waiter.task.priority, 1);
            let queued = waiter.task.queued;
            all.oldest = Some(all.oldest.map_or(queued, |oldest| oldest.min(queued)));
        }
        all
    }
}
