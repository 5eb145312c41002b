//! Requests that wait for something to happen to a model.

use std::collections::BTreeSet;
use std::time::Instant;

use super::VersionKey;
use super::control::Completion;

/// The requests that wait for one model.
#[derive(Default)]
pub(super) struct Waiters {
    /// Loads it.
    load: Option<ReadyWaiter>,
    /// Returns it to service.
    return_to_service: Option<ReadyWaiter>,
    /// The sources must be scanned before it is known which versions return to service.
    awaits_scan: bool,
    /// Unload it.
    unloads: Vec<UnloadWaiter>,
}

/// A request that waits until a model is ready.
pub(super) struct ReadyWaiter {
    pub(super) deadline: Instant,
    pub(super) completion: Completion,
}

/// A request that waits until versions are out of memory.
struct UnloadWaiter {
    remaining: BTreeSet<VersionKey>,
    completion: Completion,
}

impl Waiters {
    /// A request loads the model.
    pub(super) fn wait_for_load(&mut self, waiter: ReadyWaiter) {
        self.load = Some(waiter);
    }

    /// A request returns the model to service. The next scan decides about its versions.
    pub(super) fn wait_for_return(&mut self, waiter: ReadyWaiter) {
        self.return_to_service = Some(waiter);
        self.awaits_scan = true;
    }

    /// A request waits until these versions are out of memory.
    pub(super) fn wait_for_unload(
        &mut self,
        remaining: BTreeSet<VersionKey>,
        completion: Completion,
    ) {
        self.unloads.push(UnloadWaiter { remaining, completion });
    }

    /// The sources have been scanned.
    pub(super) fn scanned(&mut self) {
        self.awaits_scan = false;
    }

    /// A version is out of memory.
    pub(super) fn released(&mut self, key: &VersionKey) {
        for waiter in &mut self.unloads {
            waiter.remaining.remove(key);
        }
    }

    /// The deadline of the request that loads the model.
    pub(super) fn load_deadline(&self) -> Option<Instant> {
        self.load.as_ref().map(|waiter| waiter.deadline)
    }

    /// The deadline of the request that returns the model to service, once the sources have been
    /// scanned for it.
    pub(super) fn return_deadline(&self) -> Option<Instant> {
        let waiter = self.return_to_service.as_ref().filter(|_| !self.awaits_scan);
        waiter.map(|waiter| waiter.deadline)
    }

    /// The earliest deadline.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.load_deadline().into_iter().chain(self.return_deadline()).min()
    }

    /// Whether a request that unloads the model has nothing left to wait for.
    pub(super) fn has_done_unload(&self) -> bool {
        self.unloads.iter().any(|waiter| waiter.remaining.is_empty())
    }

    /// The request that loads the model.
    pub(super) fn take_load(&mut self) -> Option<Completion> {
        self.load.take().map(|waiter| waiter.completion)
    }

    /// The request that returns the model to service.
    pub(super) fn take_return(&mut self) -> Option<Completion> {
        self.return_to_service.take().map(|waiter| waiter.completion)
    }

    /// Requests that unload the model and have nothing left to wait for.
    pub(super) fn take_done_unloads(&mut self) -> Vec<Completion> {
        let done = self.unloads.extract_if(.., |waiter| waiter.remaining.is_empty());
        done.map(|waiter| waiter.completion).collect()
    }

    /// Whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.load.is_none() && self.return_to_service.is_none() && self.unloads.is_empty()
    }
}
