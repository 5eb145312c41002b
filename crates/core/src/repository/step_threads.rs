//! The threads of pre- and post-processing: short steps run on the thread of the connection; long
//! ones, such as the decoding of images, on other threads, at most one per core at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::task::spawn_blocking;
use tokio::time::timeout_at;

use tensorserve_preprocessing::Between;
use tensorserve_tensor::budget::{self, RequestBudget};
use tensorserve_tensor::error::{Code, Error, Result, Shed};

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
        work: impl FnOnce(Between<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let handle = match Handle::try_current() {
            Ok(handle) if cost > LONG => handle,
            _ => return work(&mut budget::check),
        };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(full)?;
        let (cores, budget) = (Arc::clone(&self.cores), budget::current());
        let working = async move {
            let core = Arc::clone(&cores).acquire_owned().await.map_err(|_| bug())?;
            // Both permits are held until the work is done, also if the client has disconnected.
            let work = move || {
                let mut turn = Turn { cores, core: Some(core), handle, began: Instant::now() };
                let done = entered(budget, || work(&mut || turn.next()));
                drop((place, turn));
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

/// How long a request keeps its core while others wait for one.
const TURN: Duration = Duration::from_millis(50);

/// The turn of a request on one of the cores.
struct Turn {
    cores: Arc<Semaphore>,
    core: Option<OwnedSemaphorePermit>,
    handle: Handle,
    began: Instant,
}

impl Turn {
    /// Goes on, after letting others run if this request has had its turn. Fails when the result is
    /// of no use any more.
    fn next(&mut self) -> Result<()> {
        budget::check()?;
        if self.began.elapsed() < TURN {
            return Ok(());
        }
        // The semaphore is fair: those who wait come first.
        self.core = None;
        let core = self.handle.block_on(Arc::clone(&self.cores).acquire_owned());
        self.core = Some(core.map_err(|_| bug())?);
        self.began = Instant::now();
        budget::check()
    }
}

fn entered<T>(budget: Option<RequestBudget>, work: impl FnOnce() -> T) -> T {
    match budget {
        Some(budget) => budget.enter(work),
        None => work(),
    }
}

fn full(_: TryAcquireError) -> Error {
    let message =
        format!("{MOST} requests are already in pre- or post-processing; try again later");
    Error::unavailable(message).shed_for(Shed::StepsFull)
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
    use tensorserve_tensor::budget::{Budgeted, MemoryBudget};

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
    }

    #[test]
    fn only_long_work_leaves_the_thread() {
        let threads = StepThreads::new(2);
        let here = thread::current().id();
        let place = |_: Between<'_>| Ok(thread::current().id());
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
            threads.run(usize::MAX, None, move |_| {
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
    fn long_work_lets_others_have_their_turn() {
        let threads = StepThreads::new(1);
        let parts = |count: usize| {
            threads.run(usize::MAX, None, move |between| {
                for _ in 0..count {
                    between()?;
                    thread::sleep(Duration::from_millis(10));
                }
                Ok(Instant::now())
            })
        };
        let both = async { futures_util::future::join(parts(100), parts(1)).await };
        let (long, short) = runtime().block_on(both);
        let ahead = long.expect("done").saturating_duration_since(short.expect("done"));
        assert!(ahead > Duration::from_millis(500), "{ahead:?}");
    }

    #[test]
    fn work_ends_when_its_request_is_abandoned() {
        let threads = StepThreads::new(1);
        let request = MemoryBudget::new(1 << 20).request().expect("memory");
        let began = Instant::now();
        let abandoned = request.clone();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            abandoned.abandon();
        });
        let endless = threads.run(usize::MAX, None, |between: Between<'_>| -> Result<()> {
            loop {
                between()?;
                thread::sleep(Duration::from_millis(5));
            }
        });
        let ended = runtime().block_on(Budgeted::new(request, Box::pin(endless)));
        assert_eq!(ended.expect_err("abandoned").code(), Code::Cancelled);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }

    #[test]
    fn who_comes_too_late_or_is_one_too_many_is_told_so() {
        let threads = StepThreads::new(1);
        let sleep = |_: Between<'_>| {
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
