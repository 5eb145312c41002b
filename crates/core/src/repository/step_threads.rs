//! The threads of pre- and post-processing: short steps run on the thread of the connection; long
//! ones, such as the decoding of images, on other threads, at most one per core at a time.

use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, TryAcquireError};
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;

use tensorserve_tensor::error::{Code, Error, Result};

/// Steps that touch more numbers than this are long: about a third of a millisecond.
const LONG: usize = 100_000;

/// The most requests with long steps that run or wait.
const MOST: usize = 1000;

/// The threads. Cheap to clone.
#[derive(Clone)]
pub(super) struct StepThreads {
    /// A permit for each request that runs or waits.
    places: Arc<Semaphore>,
    /// A permit for each request that runs.
    cores: Arc<Semaphore>,
}

impl StepThreads {
    pub(super) fn new(cores: usize) -> Self {
        let (places, cores) = (Semaphore::new(MOST), Semaphore::new(cores));
        StepThreads { places: Arc::new(places), cores: Arc::new(cores) }
    }

    /// Runs `work`, which touches `cost` numbers.
    ///
    /// # Errors
    /// Those of the work; [`Code::Unavailable`] if too many wait; [`Code::DeadlineExceeded`].
    pub(super) async fn run<T: Send + 'static>(
        &self,
        cost: usize,
        deadline: Option<Instant>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        if cost <= LONG || Handle::try_current().is_err() {
            return work();
        }
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(full)?;
        let cores = Arc::clone(&self.cores);
        let working = async move {
            let core = cores.acquire_owned().await.map_err(|_| bug())?;
            // Both permits are held until the work is done, also if the client has disconnected.
            let work = move || {
                let done = work();
                drop((place, core));
                done
            };
            spawn_blocking(work).await.map_err(|e| bug().with_source(e))?
        };
        match deadline {
            None => working.await,
            Some(deadline) => timeout_at(deadline.into(), working).await.map_err(|_| expired())?,
        }
    }
}

fn full(_: TryAcquireError) -> Error {
    let message =
        format!("{MOST} requests are already in pre- or post-processing; try again later");
    Error::unavailable(message)
}

fn expired() -> Error {
    let message = "the request's deadline passed during pre- or post-processing";
    Error::new(Code::DeadlineExceeded, message)
}

fn bug() -> Error {
    Error::internal("pre- or post-processing failed: internal error; see the server log")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;
    use std::time::Duration;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
    }

    #[test]
    fn only_long_work_leaves_the_thread() {
        let threads = StepThreads::new(2);
        let here = thread::current().id();
        let place = || Ok(thread::current().id());
        let short = runtime().block_on(threads.run(LONG, None, place));
        assert_eq!(short.expect("done"), here);
        let long = runtime().block_on(threads.run(LONG + 1, None, place));
        assert_ne!(long.expect("done"), here);
    }

    #[test]
    fn no_more_are_at_work_than_there_are_cores() {
        let threads = StepThreads::new(2);
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let one = || {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            threads.run(usize::MAX, None, move || {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                thread::sleep(Duration::from_millis(5));
                now.fetch_sub(1, SeqCst);
                Ok(())
            })
        };
        let all = futures_util::future::join_all((0..10).map(|_| one()));
        assert!(runtime().block_on(all).iter().all(Result::is_ok));
        assert_eq!(most.load(SeqCst), 2);
    }

    #[test]
    fn who_comes_too_late_or_is_one_too_many_is_told_so() {
        let threads = StepThreads::new(1);
        let sleep = || {
            thread::sleep(Duration::from_millis(500));
            Ok(())
        };
        let runtime = runtime();
        let soon = Some(Instant::now() + Duration::from_millis(5));
        let late = runtime.block_on(threads.run(usize::MAX, soon, sleep)).expect_err("late");
        assert_eq!(late.code(), Code::DeadlineExceeded);
        let places = Arc::clone(&threads.places);
        let _all = places.try_acquire_many_owned(MOST as u32 - 1).expect("free places");
        // The step that missed its deadline is still running.
        let refused = runtime.block_on(threads.run(usize::MAX, None, sleep)).expect_err("full");
        assert_eq!(refused.code(), Code::Unavailable);
    }
}
