//! The threads that run batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Instant;

use crossbeam::channel::{Receiver, Sender, bounded, select, unbounded};

use crate::progress::Progress;
use tensorserve_tensor::error::{Error, Result};

type Work = Box<dyn FnOnce() + Send>;

/// Who runs what is submitted to a [`Pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchThreads {
    /// The entry threads themselves, while they wait. For inputs and outputs that are here: no other threads
    /// compete for the cores, and a batch is mostly run on the core that has read it.
    Entry,
    /// Threads of the pool. For inputs or outputs that are far away: entry threads wait for the network.
    Pool,
}

/// Batches that wait, and the threads that run them. These end when the pool is dropped.
pub(crate) struct Pool {
    work: Sender<Work>,
    queue: Receiver<Work>,
    threads: usize,
    workers: BatchThreads,
}

/// A result that is being computed.
pub(crate) struct Pending<T>(Receiver<T>);

impl Pool {
    /// A pool that runs `threads` batches at a time.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn new(threads: usize, workers: BatchThreads) -> Result<Self> {
        // Entry threads bound what is under way.
        let (work, queue) = unbounded::<Work>();
        let own = if workers == BatchThreads::Pool { threads } else { 0 };
        for index in 0..own {
            let queue = queue.clone();
            let run = move || queue.into_iter().for_each(run_work);
            thread::Builder::new()
                .name(format!("run {index}"))
                .spawn(run)
                .map_err(|e| Error::internal("a thread could not be started").with_source(e))?;
        }
        Ok(Pool { work, queue, threads, workers })
    }

    /// The number of batches that run at a time.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// The number of entry threads: one more than threads, if they wait for the network.
    pub(crate) fn entry_threads(&self) -> usize {
        match self.workers {
            BatchThreads::Entry => self.threads,
            BatchThreads::Pool => self.threads + 1,
        }
    }

    /// Has `work` run.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Pending<T> {
        let (answer, pending) = bounded(1);
        let run = move || {
            // The entry thread may have given up.
            let _ = answer.send(work());
        };
        // The pool holds a receiver.
        let _ = self.work.send(Box::new(run));
        Pending(pending)
    }

    /// Waits for a message, and runs batches meanwhile if that is the work of entry threads. `None` if all senders
    /// are gone. `waited` gets the nanoseconds without work.
    pub(crate) fn receive<T>(&self, from: &Receiver<T>, waited: &AtomicU64) -> Option<T> {
        loop {
            let start = Instant::now();
            if self.workers == BatchThreads::Pool {
                let message = from.recv();
                Progress::spent(waited, start);
                return message.ok();
            }
            select! {
                recv(from) -> message => {
                    Progress::spent(waited, start);
                    return message.ok();
                }
                recv(self.queue) -> work => {
                    Progress::spent(waited, start);
                    work.into_iter().for_each(run_work);
                }
            }
        }
    }

    /// Waits for a result.
    ///
    /// # Errors
    /// If its computation panicked.
    pub(crate) fn wait<T>(&self, pending: &Pending<T>, waited: &AtomicU64) -> Result<T> {
        self.receive(&pending.0, waited)
            .ok_or_else(|| Error::internal("a batch could not be run: internal error; see the log"))
    }
}

/// The result of work that panics is missing, which its entry thread reports.
fn run_work(work: Work) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_back_and_a_panic_is_an_error() {
        for workers in [BatchThreads::Entry, BatchThreads::Pool] {
            let pool = Pool::new(2, workers).expect("threads");
            let waited = AtomicU64::new(0);
            let pending: Vec<_> = (0..50).map(|n| pool.submit(move || n * 2)).collect();
            for (n, pending) in pending.into_iter().enumerate() {
                assert_eq!(pool.wait(&pending, &waited).expect("a result"), n * 2);
            }
            let failed = pool.submit(|| -> usize { panic!("on purpose") });
            assert!(pool.wait(&failed, &waited).is_err());
            assert_eq!(pool.wait(&pool.submit(|| 1), &waited).expect("the thread lives"), 1);
        }
    }
}
