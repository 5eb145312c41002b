//! Threads that run a copy of a model, in place of those that run the model itself: oneDNN keeps what it has prepared for an
//! operation by thread, for the number of threads within an operation of the session that ran first.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use super::loaded_graph::LoadedGraph;
use tensorserve_platform::RunOptions;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Error, Result};

/// The threads of a copy. They end when this is dropped.
pub(super) struct CopyThreads(Sender<CopyJob>);

/// A run, and who waits for its outputs.
struct CopyJob {
    signature: usize,
    inputs: Vec<Tensor>,
    options: RunOptions,
    asked: Instant,
    outputs: SyncSender<Result<Vec<Tensor>>>,
}

impl CopyThreads {
    /// Starts so many threads.
    ///
    /// # Errors
    /// If the system starts none.
    pub(super) fn start(graph: LoadedGraph, count: usize) -> Result<Self> {
        let (sender, jobs) = channel();
        let (graph, jobs) = (Arc::new(graph), Arc::new(Mutex::new(jobs)));
        for number in 0..count {
            let (graph, jobs) = (Arc::clone(&graph), Arc::clone(&jobs));
            let thread = thread::Builder::new().name(format!("one-thread-{number}"));
            thread.spawn(move || work(&graph, &jobs)).map_err(|e| {
                Error::unavailable(format!("the system starts no thread: {e}")).with_source(e)
            })?;
        }
        Ok(CopyThreads(sender))
    }

    /// Threads that have ended.
    #[cfg(test)]
    pub(super) fn ended() -> Self {
        CopyThreads(channel().0)
    }

    /// Runs a signature on one of the threads, and waits for its outputs or its error. `None` if the thread ends before it has
    /// one, by a panic.
    pub(super) fn run(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Option<Result<Vec<Tensor>>> {
        let (outputs, found) = sync_channel(1);
        let asked = Instant::now();
        let job = CopyJob { signature, inputs: inputs.to_vec(), options, asked, outputs };
        self.0.send(job).ok()?;
        found.recv().ok()
    }
}

fn work(graph: &LoadedGraph, jobs: &Mutex<Receiver<CopyJob>>) {
    loop {
        // One thread waits for a job at a time, and lets the next one wait as soon as it has one.
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(CopyJob { signature, inputs, options, asked, outputs }) = job else {
            return;
        };
        let found = graph.run(signature, &inputs, options.left_since(asked));
        // Released before whoever waits goes on, as if that had run it.
        drop(inputs);
        let _ = outputs.send(found);
    }
}
