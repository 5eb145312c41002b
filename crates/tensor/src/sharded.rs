//! Values of which each thread has a part of its own.
//!
//! A counter that several cores change moves from cache to cache with each change. On a machine with many cores that takes
//! longer than what is counted; a part that one thread alone changes stays where it is.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::available_parallelism;

use crossbeam::utils::CachePadded;

/// The most parts of a value. Threads beyond that share them.
const MOST_PARTS: usize = 256;

/// The parts for each core: a server has several threads for each, of which one runs at a time.
const PARTS_PER_CORE: usize = 8;

/// A value in parts, one for each thread that uses it. A part should be a pointer to what its thread changes: the pointers
/// lie side by side.
pub struct Sharded<T>(OnceLock<Box<[OnceLock<T>]>>);

impl<T> Default for Sharded<T> {
    fn default() -> Self {
        Sharded(OnceLock::new())
    }
}

impl<T> fmt::Debug for Sharded<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Sharded").field(&self.parts().count()).finish()
    }
}

impl<T> Sharded<T> {
    /// The part of this thread, which `make` makes if there is none.
    #[allow(clippy::indexing_slicing)] // There is at least one part.
    pub fn mine(&self, make: impl FnOnce() -> T) -> &T {
        let parts = self.0.get_or_init(|| (0..part_count()).map(|_| OnceLock::new()).collect());
        parts[this_thread() % parts.len()].get_or_init(make)
    }

    /// The parts that there are.
    pub fn parts(&self) -> impl Iterator<Item = &T> {
        self.0.get().into_iter().flatten().filter_map(OnceLock::get)
    }
}

/// A number that many threads change and few read. It wraps around.
#[derive(Debug, Default)]
pub struct ShardedNumber(Sharded<Box<CachePadded<AtomicU64>>>);

impl ShardedNumber {
    /// Adds to it.
    pub fn add(&self, value: u64) {
        self.0.mine(Box::default).fetch_add(value, Relaxed);
    }

    /// Subtracts from it.
    pub fn subtract(&self, value: u64) {
        self.add(value.wrapping_neg());
    }

    /// What has been added, less what has been subtracted.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.0.parts().fold(0, |sum, part| sum.wrapping_add(part.load(Relaxed)))
    }
}

fn part_count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let cores = available_parallelism().map_or(1, std::num::NonZero::get);
        cores.saturating_mul(PARTS_PER_CORE).min(MOST_PARTS)
    })
}

/// The number of this thread: the lowest that no other has.
fn this_thread() -> usize {
    thread_local! {
        static MINE: ThreadNumber = ThreadNumber::take();
    }
    // A thread that ends has none any more.
    MINE.try_with(|mine| mine.0).unwrap_or(0)
}

/// The number of a thread, until it ends.
struct ThreadNumber(usize);

struct FreeNumbers {
    /// Those of threads that have ended.
    returned: BTreeSet<usize>,
    next: usize,
}

static FREE: Mutex<FreeNumbers> = Mutex::new(FreeNumbers { returned: BTreeSet::new(), next: 0 });

fn free_numbers() -> MutexGuard<'static, FreeNumbers> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadNumber {
    fn take() -> Self {
        let mut free = free_numbers();
        ThreadNumber(free.returned.pop_first().unwrap_or_else(|| {
            free.next += 1;
            free.next - 1
        }))
    }
}

impl Drop for ThreadNumber {
    fn drop(&mut self) {
        free_numbers().returned.insert(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn threads_change_lines_of_their_own_and_nothing_is_lost() {
        let number = ShardedNumber::default();
        let barrier = Barrier::new(4);
        let addresses: BTreeSet<usize> = thread::scope(|scope| {
            let thread = || {
                scope.spawn(|| {
                    barrier.wait();
                    (0..1000).for_each(|_| number.add(3));
                    number.subtract(1);
                    let mine = number.0.mine(Box::default);
                    // All live at the same time, so that no number is used twice.
                    barrier.wait();
                    std::ptr::from_ref(&**mine).addr()
                })
            };
            let threads: Vec<_> = (0..4).map(|_| thread()).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(number.sum(), 4 * 2999);
        let parts = part_count().min(4);
        assert_eq!(addresses.len(), parts);
        assert!(addresses.iter().all(|address| address.is_multiple_of(128)), "{addresses:?}");
    }

    #[test]
    fn numbers_of_ended_threads_are_used_again() {
        let numbers: BTreeSet<usize> =
            (0..100).map(|_| thread::spawn(this_thread).join().expect("no panic")).collect();
        // Other tests run beside this one.
        assert!(numbers.len() < 50, "{numbers:?}");
    }
}
