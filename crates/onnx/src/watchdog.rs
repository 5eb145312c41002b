//! Terminates runs at their deadline.
//!
//! One thread serves all models. The first run that has a deadline starts it, and it sleeps until
//! the earliest deadline.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::ffi::OnnxRunOptions;
use tensorserve_tensor::error::{Error, Result};

/// Watches the deadlines of runs.
#[derive(Default)]
pub(super) struct Watchdog(Arc<WatchdogShared>);

/// What the thread shares with the runs.
#[derive(Default)]
struct WatchdogShared {
    state: Mutex<WatchdogState>,
    changed: Condvar,
}

/// A run's deadline, and a number that distinguishes runs with the same deadline.
type RunKey = (Instant, u64);

#[derive(Default)]
struct WatchdogState {
    runs: BTreeMap<RunKey, Arc<OnnxRunOptions>>,
    next_number: u64,
    started: bool,
    closed: bool,
}

impl WatchdogShared {
    fn state(&self) -> MutexGuard<'_, WatchdogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: terminates each run at its deadline until the watchdog is closed.
    fn terminate_overdue_runs(&self) {
        let mut state = self.state();
        while !state.closed {
            let now = Instant::now();
            let wait = match state.runs.first_entry() {
                Some(first) if first.key().0 <= now => {
                    first.remove().terminate();
                    continue;
                }
                Some(first) => Some(first.key().0 - now),
                None => None,
            };
            state = match wait {
                Some(wait) => {
                    let woken = self.changed.wait_timeout(state, wait);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Watchdog {
    /// Terminates the run with `options` at `deadline`, unless the returned value is dropped
    /// earlier.
    ///
    /// # Errors
    /// [`Code::Internal`](tensorserve_tensor::error::Code::Internal) if the thread cannot be
    /// started.
    pub(super) fn watch(
        &self,
        deadline: Instant,
        options: Arc<OnnxRunOptions>,
    ) -> Result<DeadlineWatch<'_>> {
        let mut state = self.0.state();
        if !state.started {
            let shared = Arc::clone(&self.0);
            let builder = thread::Builder::new().name("onnx-timeouts".to_owned());
            let spawned = builder.spawn(move || shared.terminate_overdue_runs());
            spawned.map_err(|error| {
                Error::internal("the thread that terminates runs cannot be started")
                    .with_source(error)
            })?;
            state.started = true;
        }
        let key = (deadline, state.next_number);
        state.next_number += 1;
        state.runs.insert(key, options);
        let is_first = state.runs.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(state);
        if is_first {
            self.0.changed.notify_one();
        }
        Ok(DeadlineWatch { shared: &self.0, key })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.changed.notify_one();
    }
}

/// A run whose deadline is watched until this value is dropped.
pub(super) struct DeadlineWatch<'a> {
    shared: &'a WatchdogShared,
    key: RunKey,
}

impl Drop for DeadlineWatch<'_> {
    fn drop(&mut self) {
        self.shared.state().runs.remove(&self.key);
    }
}
