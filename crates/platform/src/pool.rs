//! Objects that run a model, each for one run at a time, made when they are needed.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tensorserve_tensor::error::{Code, Error, Result};

/// Makes another object.
type Make<T> = Box<dyn Fn() -> Result<T> + Send + Sync>;

/// The objects of a model: interpreters, or whatever a runtime has for a run.
pub struct InstancePool<T> {
    make: Make<T>,
    /// The most objects: as many runs as there are cores gain from running at the same time.
    most: usize,
    state: Mutex<InstancePoolState<T>>,
    /// An object is idle, or may be made.
    returned: Condvar,
}

struct InstancePoolState<T> {
    idle: Vec<T>,
    /// How many exist, or are being made.
    count: usize,
}

impl<T> InstancePool<T> {
    /// A pool of at most `most` objects, with the first one.
    ///
    /// # Errors
    /// That of `make`, which makes an object.
    pub fn new(most: usize, make: impl Fn() -> Result<T> + Send + Sync + 'static) -> Result<Self> {
        let state = Mutex::new(InstancePoolState { idle: vec![make()?], count: 1 });
        Ok(InstancePool {
            make: Box::new(make),
            most: most.max(1),
            state,
            returned: Condvar::new(),
        })
    }

    /// Calls `run` with an object, if possible one that is `preferred`. Waits while all are in use, until
    /// `deadline` at most.
    ///
    /// # Errors
    /// Those of `run`, and of making an object; [`Code::DeadlineExceeded`].
    pub fn with<R>(
        &self,
        preferred: impl Fn(&T) -> bool,
        deadline: Option<Instant>,
        run: impl FnOnce(&mut T) -> Result<R>,
    ) -> Result<R> {
        let mut borrowed = Borrowed { pool: self, object: self.take(preferred, deadline)? };
        match &mut borrowed.object {
            Some(object) => run(object),
            place => run(place.insert((self.make)()?)),
        }
    }

    /// An idle object, or `None` for the right to make one.
    fn take(&self, preferred: impl Fn(&T) -> bool, deadline: Option<Instant>) -> Result<Option<T>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(index) = state.idle.iter().rposition(&preferred) {
                return Ok(Some(state.idle.swap_remove(index)));
            }
            if let Some(any) = state.idle.pop() {
                return Ok(Some(any));
            }
            if state.count < self.most {
                state.count += 1;
                return Ok(None);
            }
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.returned.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    let why =
                        "other runs of the model were in progress until the request's deadline";
                    return Err(Error::new(Code::DeadlineExceeded, why));
                }
                Some(left) => {
                    let waited = self.returned.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// An object in use, or the right to have one, which is given back on drop.
struct Borrowed<'a, T> {
    pool: &'a InstancePool<T>,
    object: Option<T>,
}

impl<T> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.object.take() {
            Some(object) => state.idle.push(object),
            None => state.count -= 1,
        }
        drop(state);
        self.pool.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn no_more_objects_are_made_than_allowed_and_each_has_one_run_at_a_time() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let pool =
            InstancePool::new(2, move || Ok(count.fetch_add(1, Ordering::SeqCst))).expect("a pool");
        let runs = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    pool.with(
                        |_| false,
                        None,
                        |_| {
                            assert!(runs.fetch_add(1, Ordering::SeqCst) < 2);
                            thread::yield_now();
                            runs.fetch_sub(1, Ordering::SeqCst);
                            Ok(())
                        },
                    )
                });
            }
        });
        assert!((1..=2).contains(&made.load(Ordering::SeqCst)));
    }

    #[test]
    fn the_preferred_object_is_used_and_a_failed_making_can_be_tried_again() {
        let made = AtomicUsize::new(0);
        let pool = InstancePool::new(3, move || match made.fetch_add(1, Ordering::SeqCst) {
            1 => Err(Error::internal("once")),
            number => Ok(number),
        });
        let pool = pool.expect("a pool");
        let both = |number: usize| {
            pool.with(
                |_| true,
                None,
                |first| {
                    let second = pool.with(|_| true, None, |second| Ok(*second));
                    second.map(|second| (*first, second))
                },
            )
            .map(|pair| (pair, number))
        };
        assert!(both(1).is_err());
        assert_eq!(both(2).expect("made").0, (0, 2));
        for wanted in [0, 2, 0] {
            assert_eq!(pool.with(|it| *it == wanted, None, |it| Ok(*it)).expect("idle"), wanted);
        }
    }

    #[test]
    fn nobody_waits_longer_than_until_the_deadline() {
        let pool = InstancePool::new(1, || Ok(())).expect("a pool");
        let deadline = Some(Instant::now());
        let inner = |(): &mut ()| pool.with(|()| true, deadline, |()| Ok(()));
        let error = pool.with(|()| true, None, inner).expect_err("late");
        assert_eq!(error.code(), Code::DeadlineExceeded);
        pool.with(|()| true, deadline, |()| Ok(())).expect("idle");
    }
}
