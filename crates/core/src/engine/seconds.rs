//! A thread that runs once a second: it writes the metrics' history and calls hooks.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::{Engine, EngineInner};
use tensorserve_tensor::error::{Error, Result};

/// A function that is called once a second.
type Hook = Box<dyn Fn() + Send + Sync>;

/// The hooks, and the end of the thread.
#[derive(Default)]
pub(super) struct Seconds {
    hooks: Mutex<Vec<Hook>>,
    ends: Mutex<bool>,
    changed: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seconds {
    /// Ends the thread after one last round.
    pub(super) fn end(&self) {
        *lock(&self.ends) = true;
        self.changed.notify_all();
    }

    /// Waits until `at`. True if the thread must end.
    fn wait_until(&self, at: Instant) -> bool {
        let mut ends = lock(&self.ends);
        loop {
            let left = at.saturating_duration_since(Instant::now());
            if *ends || left.is_zero() {
                return *ends;
            }
            let waited = self.changed.wait_timeout(ends, left);
            ends = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Engine {
    /// Calls `hook` once a second, after the history is written, and once when the server stops.
    /// The hook must not block.
    pub fn each_second(&self, hook: impl Fn() + Send + Sync + 'static) {
        lock(&self.0.seconds.hooks).push(Box::new(hook));
    }

    /// Starts the thread. It ends when the server stops, or with the last [`Engine`].
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start_history(&self) -> Result<()> {
        let (inner, seconds) = (Arc::downgrade(&self.0), Arc::clone(&self.0.seconds));
        let thread = thread::Builder::new().name("history".to_owned());
        let started = thread.spawn(move || run(&inner, &seconds));
        started
            .map(drop)
            .map_err(|e| Error::internal("the history thread could not be started").with_source(e))
    }
}

fn run(inner: &Weak<EngineInner>, seconds: &Seconds) {
    let mut next = Instant::now();
    loop {
        next = (next + Duration::from_secs(1)).max(Instant::now());
        let ends = seconds.wait_until(next);
        let Some(inner) = inner.upgrade() else {
            return;
        };
        inner.metrics.forget_models(|model| inner.repository.name_of(model).is_some());
        inner.metrics.write_history();
        lock(&seconds.hooks).iter().for_each(|hook| hook());
        if ends {
            return;
        }
    }
}
