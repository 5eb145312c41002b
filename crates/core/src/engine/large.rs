//! Work on large requests, off the threads that serve connections: decompression, decoding, encoding.
//!
//! Many connections share a thread. Work on a payload of 60 MB takes more than half a second, in which the
//! others would wait; and only a thread that is free notices that a client has left. The work has as many
//! threads as there are cores, of low priority: where cores are scarce, small requests come first.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::thread;

use crossbeam::channel::{Sender, unbounded};
use tokio::sync::oneshot;

use tensorserve_os as os;
use tensorserve_tensor::Tensor;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};

/// A request that has reserved this many bytes for its payload, as received and as decompressed, is
/// large. JSON of this size takes some 20 ms; moving the work to another thread takes some 20 us.
const LARGE_REQUEST: usize = 2 << 20;

/// Outputs of this many bytes make a large response.
const LARGE_RESPONSE: usize = 1 << 20;

/// Whether this thread works for a large request.
pub(super) fn is_large_request() -> bool {
    budget::reserved() >= LARGE_REQUEST
}

/// Whether these outputs make a large response.
pub(super) fn is_large_response<'t>(outputs: impl Iterator<Item = &'t Tensor>) -> bool {
    outputs.map(Tensor::byte_len).sum::<usize>() >= LARGE_RESPONSE
}

type LargeJob = Box<dyn FnOnce() + Send>;

/// The threads for large requests, of all engines of the process. They start with the first request.
static THREADS: OnceLock<Sender<LargeJob>> = OnceLock::new();

/// Does `work` on a thread for large requests, within the budget that this thread works for. If the
/// result is no longer awaited because the client has left, the work ends when it next looks at its
/// budget.
///
/// # Errors
/// [`Code::Internal`](tensorserve_tensor::error::Code::Internal) if no thread could be started.
pub async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let budget = budget::current();
    let (sender, done) = oneshot::channel();
    let job = move || {
        let work = AssertUnwindSafe(|| match &budget {
            Some(budget) => budget.enter(work),
            None => work(),
        });
        let _ = sender.send(catch_unwind(work));
    };
    let _ = THREADS.get_or_init(start).send(Box::new(job));
    match done.await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(panic)) => resume_unwind(panic),
        Err(_) => Err(Error::internal("a thread for a large request could not be started")),
    }
}

fn start() -> Sender<LargeJob> {
    let (sender, jobs) = unbounded::<LargeJob>();
    for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
        let jobs = jobs.clone();
        let thread = thread::Builder::new().name("large".to_owned());
        let started = thread.spawn(move || {
            os::lower_priority();
            jobs.iter().for_each(|job| job());
        });
        if let Err(error) = started {
            log::error!("a thread for large requests could not be started: {error}");
        }
    }
    sender
}
