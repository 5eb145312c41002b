//! The memory of all requests of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crossbeam::utils::CachePadded;

use super::{RequestAccount, RequestBudget};
use crate::error::Error;
use crate::sharded::Sharded;

/// What a request holds from its start. Most requests never need more.
pub(super) const INITIAL: usize = 16 << 10;

/// For so many requests a thread keeps what ended ones held from their start: most requests then change nothing that
/// other threads use.
const MOST_SPARE: usize = 8;

/// The part of the budget that is for small requests alone: one in this many bytes.
const SMALL_SHARE: usize = 8;

/// The memory that the requests of a server may use together. Cheap to clone.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    state: Arc<BudgetState>,
    threads: Arc<Sharded<Arc<ThreadBudget>>>,
}

/// A thread's own reference to the budget, so that its requests do not count those of others.
#[derive(Debug)]
pub(super) struct ThreadBudget(Arc<BudgetState>);

impl ThreadBudget {
    pub(super) fn server(&self) -> &BudgetState {
        &self.0
    }
}

#[derive(Debug)]
pub(super) struct BudgetState {
    limit: usize,
    /// What requests hold, and what threads keep.
    taken: AtomicUsize,
    refused: AtomicU64,
    /// How often a thread keeps [`INITIAL`] bytes.
    spare: Sharded<Box<CachePadded<AtomicUsize>>>,
}

impl Default for MemoryBudget {
    /// Without a limit.
    fn default() -> Self {
        MemoryBudget::new(usize::MAX)
    }
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let (taken, refused) = (AtomicUsize::new(0), AtomicU64::new(0));
        let state = BudgetState { limit, taken, refused, spare: Sharded::default() };
        MemoryBudget { state: Arc::new(state), threads: Arc::default() }
    }

    /// Its size in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.state.limit
    }

    /// The bytes that requests hold now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.state.used()
    }

    /// How many reservations have been refused.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.state.refused.load(Relaxed)
    }

    /// The budget of a request that has just begun.
    ///
    /// # Errors
    /// [`Error::overloaded`] if all memory is in use.
    pub fn request(&self) -> crate::error::Result<RequestBudget> {
        let request = self.silent_request();
        request.begin()?;
        Ok(request)
    }

    /// The budget of a request of which nothing has arrived yet. It holds no memory before it begins
    /// ([`RequestBudget::begin`]) or reserves some: a client that sends nothing keeps no other out.
    #[must_use]
    pub fn silent_request(&self) -> RequestBudget {
        let thread = self.threads.mine(|| Arc::new(ThreadBudget(Arc::clone(&self.state))));
        RequestBudget(Arc::new(RequestAccount::new(Arc::clone(thread))))
    }
}

impl BudgetState {
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The most that one request can ever hold.
    pub(super) fn most(&self) -> usize {
        self.limit - self.limit / SMALL_SHARE
    }

    pub(super) fn used(&self) -> usize {
        let spare = self.spare.parts().map(|spare| spare.load(Relaxed)).sum::<usize>();
        self.taken.load(Relaxed).saturating_sub(spare * INITIAL)
    }

    /// Takes [`INITIAL`] bytes, of what the thread keeps if it keeps some.
    pub(super) fn take_initial(&self) -> bool {
        let spare = self.spare.mine(Box::default);
        let kept = spare.fetch_update(Relaxed, Relaxed, |spare| spare.checked_sub(1));
        kept.is_ok() || self.take(INITIAL, self.limit)
    }

    /// Takes bytes, unless more than `limit` are taken then.
    pub(super) fn take(&self, bytes: usize, limit: usize) -> bool {
        self.take_free(bytes, limit) || (self.reclaim() && self.take_free(bytes, limit))
    }

    fn take_free(&self, bytes: usize, limit: usize) -> bool {
        let taken = self.taken.fetch_add(bytes, Relaxed);
        let fits = taken.checked_add(bytes).is_some_and(|total| total <= limit);
        if !fits {
            self.taken.fetch_sub(bytes, Relaxed);
        }
        fits
    }

    /// Takes bytes whatever else is taken.
    pub(super) fn take_anyway(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Relaxed);
    }

    /// Takes back what threads keep. Returns whether that was anything.
    fn reclaim(&self) -> bool {
        let spare = self.spare.parts().map(|spare| spare.swap(0, Relaxed)).sum::<usize>();
        self.taken.fetch_sub(spare * INITIAL, Relaxed);
        spare > 0
    }

    /// Gives back what a request held.
    pub(super) fn give_back(&self, held: usize) {
        let mut more = held;
        if held >= INITIAL && self.keep_initial() {
            more -= INITIAL;
        }
        if more > 0 {
            self.taken.fetch_sub(more, Relaxed);
        }
    }

    /// Keeps [`INITIAL`] bytes for the thread, if it does not keep enough, and they are not beyond the limit.
    fn keep_initial(&self) -> bool {
        if self.taken.load(Relaxed) > self.limit {
            return false;
        }
        let spare = self.spare.mine(Box::default);
        let kept = |spare: usize| (spare < MOST_SPARE).then_some(spare + 1);
        spare.fetch_update(Relaxed, Relaxed, kept).is_ok()
    }

    pub(super) fn count_refusal(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(super) fn refuse(&self, bytes: usize) -> Error {
        self.count_refusal();
        Error::overloaded(format!(
            "the request needs {bytes} more bytes of memory, and other requests use what \
             max_request_memory allows ({} bytes): try again",
            self.limit
        ))
    }
}
