//! Ends runs that take too long.
//!
//! One thread for all models, started by the first run that has a timeout, sleeps until the first
//! of them is due.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::ffi::RunOptions;
use tensorserve_tensor::error::{Error, Result};

/// Keeps the time of runs.
#[derive(Default)]
pub(super) struct Watchdog(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// By when they are due; the number tells two of the same moment apart.
    runs: BTreeMap<(Instant, u64), Arc<RunOptions>>,
    next: u64,
    started: bool,
    closed: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_watch(&self) {
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
    /// Ends the run with these options at `due`, unless the returned value is dropped before.
    pub(super) fn watch(&self, due: Instant, options: Arc<RunOptions>) -> Result<Watched<'_>> {
        let mut state = self.0.state();
        if !state.started {
            let shared = Arc::clone(&self.0);
            let builder = thread::Builder::new().name("onnx-timeouts".to_owned());
            let spawned = builder.spawn(move || shared.keep_watch());
            spawned.map_err(|e| Error::internal("a thread could not be started").with_source(e))?;
            state.started = true;
        }
        let key = (due, state.next);
        state.next += 1;
        state.runs.insert(key, options);
        let is_first = state.runs.first_key_value().is_some_and(|(first, _)| *first == key);
        drop(state);
        if is_first {
            self.0.changed.notify_one();
        }
        Ok(Watched { shared: &self.0, key })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.changed.notify_one();
    }
}

/// A run that is watched.
pub(super) struct Watched<'a> {
    shared: &'a Shared,
    key: (Instant, u64),
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.shared.state().runs.remove(&self.key);
    }
}
