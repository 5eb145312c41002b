//! The streams of a connection: what each may still receive and send.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::task::AbortHandle;

use crate::call::{CallPart, CallState};
use crate::frame::LARGEST_WINDOW;

/// A request of more bytes is not small.
const SMALL: usize = 16 << 10;

/// A call whose request or response is not complete.
pub(crate) struct OpenStream {
    pub(crate) call: Arc<CallState>,
    /// Whether it is being answered, and the task that does it if it has one of its own.
    has_begun: bool,
    task: Option<AbortHandle>,
    /// The client has sent the whole request.
    pub(crate) is_complete: bool,
    /// How many bytes the client may still send.
    pub(crate) granted: i64,
    /// How many bytes of the request have arrived, and how many it still has, if it says so.
    received: usize,
    left: Option<u64>,
    /// How many bytes the client still takes.
    pub(crate) window: i64,
    /// Parts of the response that wait.
    pub(crate) queue: VecDeque<CallPart>,
    /// It waits for its turn to send.
    pub(crate) is_ready: bool,
    pub(crate) has_response: bool,
    /// The tick of the connection at which a part of the response was last sent.
    pub(crate) moved: u32,
}

impl OpenStream {
    pub(crate) fn new(
        call: Arc<CallState>,
        granted: u32,
        left: Option<u64>,
        window: i64,
        tick: u32,
    ) -> Self {
        OpenStream {
            call,
            has_begun: false,
            task: None,
            is_complete: false,
            granted: i64::from(granted),
            received: 0,
            left,
            window,
            queue: VecDeque::new(),
            is_ready: false,
            has_response: false,
            moved: tick,
        }
    }

    pub(crate) fn answered_by(&mut self, task: Option<AbortHandle>) {
        (self.has_begun, self.task) = (true, task);
    }

    /// Whether the request is read and decoded in no time.
    pub(crate) fn is_small(&self) -> bool {
        self.received <= SMALL
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Counts bytes of the request. Whether it has as many as it said.
    pub(crate) fn counts(&mut self, bytes: usize, is_last: bool) -> bool {
        self.received = self.received.saturating_add(bytes);
        let Some(left) = &mut self.left else { return true };
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        match left.checked_sub(bytes) {
            Some(rest) => *left = rest,
            None => return false,
        }
        !is_last || *left == 0
    }

    /// The client takes so many bytes more, or less. Whether the window is one that may be.
    pub(crate) fn widen(&mut self, change: i64) -> bool {
        self.window += change;
        self.window <= i64::from(LARGEST_WINDOW)
    }

    /// Whether it has something to send and is not waiting for its turn yet, which it does from now on.
    pub(crate) fn begins_to_wait(&mut self) -> bool {
        !self.queue.is_empty() && !std::mem::replace(&mut self.is_ready, true)
    }

    /// The response is complete: its task ends by itself.
    pub(crate) fn finish(mut self) {
        self.task = None;
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            self.call.reset();
            task.abort();
        }
    }
}
