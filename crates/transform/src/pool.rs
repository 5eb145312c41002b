//! The threads that run batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use crossbeam::channel::{Sender, bounded};

use tensorserve_tensor::error::{Error, Result};

type Work = Box<dyn FnOnce() + Send>;

/// Threads that run what is submitted to them. They end when the pool is dropped.
pub(crate) struct Pool {
    work: Sender<Work>,
    threads: usize,
}

/// A result that is being computed.
pub(crate) struct Pending<T>(mpsc::Receiver<T>);

impl Pool {
    /// A pool of `threads` threads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        // Short: lanes bound what is under way, and wait here for a thread.
        let (work, queue) = bounded::<Work>(threads);
        for index in 0..threads {
            let queue = queue.clone();
            let run = move || {
                for work in queue {
                    // The result of work that panics is missing, which its lane reports.
                    let _ = catch_unwind(AssertUnwindSafe(work));
                }
            };
            thread::Builder::new()
                .name(format!("run {index}"))
                .spawn(run)
                .map_err(|e| Error::internal("a thread could not be started").with_source(e))?;
        }
        Ok(Pool { work, threads })
    }

    /// The number of threads.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `work` on one of the threads. Blocks while all of them have work that waits.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        let (answer, pending) = mpsc::sync_channel(1);
        let run = move || {
            // The lane may have given up.
            let _ = answer.send(work());
        };
        // Only fails without threads, and then the result is missing.
        let _ = self.work.send(Box::new(run));
        Pending(pending)
    }
}

impl<T> Pending<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// If its computation panicked.
    pub(crate) fn wait(self) -> Result<T> {
        self.0
            .recv()
            .map_err(|_| Error::internal("a batch could not be run: internal error; see the log"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_back_and_a_panic_is_an_error() {
        let pool = Pool::new(2).expect("threads");
        let pending: Vec<_> = (0..50).map(|n| pool.submit(move || n * 2)).collect();
        for (n, pending) in pending.into_iter().enumerate() {
            assert_eq!(pending.wait().expect("a result"), n * 2);
        }
        let failed = pool.submit(|| -> usize { panic!("on purpose") });
        assert!(failed.wait().is_err());
        assert_eq!(pool.submit(|| 1).wait().expect("the thread lives"), 1);
    }
}
