//! The memory and the time that a request may use.
//!
//! A server has one [`MemoryBudget`]; each request has a [`RequestBudget`], which reserves memory
//! from it before the memory is allocated and returns all of it when dropped. Code that works for a
//! request runs *within* its budget ([`RequestBudget::enter`], [`Budgeted`]); decoders and encoders
//! then call [`reserve`] and [`check`] wherever a request determines how much they allocate or how
//! long they run. The budget belongs to the thread, not to a parameter of each of these functions,
//! so that a new protocol or decoder is bound by it without mentioning it. Outside of any budget
//! (warm-up, command line, tests) both succeed.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use crate::error::{Code, Error, Result};
use crate::memory::{AlignedVec, aligned_vec};
use crate::priority::PriorityGrant;

mod memory;
mod receipt;

pub use self::memory::MemoryBudget;
use self::memory::{BudgetState, INITIAL, ThreadBudget};
pub use self::receipt::{receipt, set_receipt};

/// Requests take more memory from the server's budget in steps of at least this size.
const STEP: usize = 64 << 10;

/// Requests of up to this size are small. The last part of the budget is theirs alone, so that a few large requests
/// cannot lock them out.
const SMALL: usize = 1 << 20;

/// The memory that one request holds, its deadline, its priority and its receipt. Clones share them.
#[derive(Clone, Debug)]
pub struct RequestBudget(Arc<RequestAccount>);

#[derive(Debug)]
struct RequestAccount {
    /// Of the thread on which it began.
    thread: Arc<ThreadBudget>,
    /// Taken from the server's budget.
    held: AtomicUsize,
    /// The part of it that is spoken for.
    reserved: AtomicUsize,
    deadline: OnceLock<Instant>,
    /// Not set for most requests.
    priority: OnceLock<PriorityGrant>,
    /// Set only if the answer is to have a receipt.
    receipt: OnceLock<String>,
    abandoned: AtomicBool,
}

impl RequestAccount {
    fn new(thread: Arc<ThreadBudget>) -> Self {
        RequestAccount {
            thread,
            held: AtomicUsize::new(0),
            reserved: AtomicUsize::new(0),
            deadline: OnceLock::new(),
            priority: OnceLock::new(),
            receipt: OnceLock::new(),
            abandoned: AtomicBool::new(false),
        }
    }

    fn server(&self) -> &BudgetState {
        self.thread.server()
    }
}

impl Drop for RequestAccount {
    fn drop(&mut self) {
        let held = *self.held.get_mut();
        self.server().give_back(held);
    }
}

impl RequestBudget {
    /// Holds what every request does, if it holds nothing yet.
    ///
    /// # Errors
    /// [`Error::overloaded`] if all memory is in use.
    pub fn begin(&self) -> Result<()> {
        let account = &*self.0;
        if account.held.load(Relaxed) > 0 {
            return Ok(());
        }
        if !account.server().take_initial() {
            return Err(account.server().refuse(INITIAL));
        }
        account.held.fetch_add(INITIAL, Relaxed);
        Ok(())
    }

    /// [`RequestBudget::begin`]; for a probe of the server's health also if all memory is in use.
    ///
    /// # Errors
    /// As [`RequestBudget::begin`], for what is no probe.
    pub fn begin_for(&self, is_probe: bool) -> Result<()> {
        match self.begin() {
            Err(_) if is_probe => {
                let account = &*self.0;
                account.server().take_anyway(INITIAL);
                account.held.fetch_add(INITIAL, Relaxed);
                Ok(())
            }
            begun => begun,
        }
    }

    /// Reserves memory until the request ends.
    ///
    /// # Errors
    /// [`Error::oversized`] if the request needs more than any request can get;
    /// [`Error::overloaded`] if others use the memory now.
    pub fn reserve(&self, bytes: usize) -> Result<()> {
        let account = &*self.0;
        let most = account.server().most();
        let before = account.reserved.load(Relaxed);
        let Some(total) = before.checked_add(bytes).filter(|total| *total <= most) else {
            account.server().count_refusal();
            return Err(Error::oversized(format!(
                "the request needs more than {most} bytes of memory, the most that \
                 max_request_memory allows one request"
            )));
        };
        if total > account.held.load(Relaxed) {
            self.hold_total(total)?;
        }
        account.reserved.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Takes memory from the server's budget that will probably be reserved soon.
    ///
    /// # Errors
    /// [`Error::overloaded`] if others use the memory now.
    pub fn expect(&self, bytes: usize) -> Result<()> {
        let account = &*self.0;
        let total = account.reserved.load(Relaxed).saturating_add(bytes);
        let total = total.min(account.server().most());
        if total <= account.held.load(Relaxed) { Ok(()) } else { self.hold_total(total) }
    }

    /// Whether `bytes` would fit into the server's budget now. Takes nothing: what a request only
    /// announces must not keep others out.
    ///
    /// # Errors
    /// [`Error::overloaded`] if others use the memory now.
    pub fn would_fit(&self, bytes: usize) -> Result<()> {
        let account = &*self.0;
        let server = account.server();
        let total = account.reserved.load(Relaxed).saturating_add(bytes).min(server.most());
        let missing = total.saturating_sub(account.held.load(Relaxed));
        if missing > server.most().saturating_sub(server.used()) {
            return Err(server.refuse(missing));
        }
        Ok(())
    }

    /// Holds at least `total` bytes.
    #[cold]
    fn hold_total(&self, total: usize) -> Result<()> {
        let account = &*self.0;
        let server = account.server();
        let limit = if total <= SMALL { server.limit() } else { server.most() };
        let held = account.held.load(Relaxed);
        let missing = total.saturating_sub(held);
        let taken = if held == 0 && missing <= INITIAL && server.take_initial() {
            INITIAL
        } else {
            let step = if held == 0 { INITIAL } else { STEP };
            let mut sizes = [missing.max(step), missing].into_iter();
            let taken = sizes.find(|&bytes| server.take(bytes, limit));
            taken.ok_or_else(|| server.refuse(missing))?
        };
        account.held.fetch_add(taken, Relaxed);
        Ok(())
    }

    /// The bytes that it holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.held.load(Relaxed)
    }

    /// Sets the deadline after which [`RequestBudget::check`] fails. The first one stays.
    pub fn set_deadline(&self, deadline: Instant) {
        let _ = self.0.deadline.set(deadline);
    }

    /// Sets the priority that it has and may ask for. The first one stays.
    pub fn set_priority(&self, grant: PriorityGrant) {
        let _ = self.0.priority.set(grant);
    }

    /// Marks the request as abandoned by its client.
    pub fn abandon(&self) {
        self.0.abandoned.store(true, Relaxed);
    }

    /// Whether work for the request is still of use.
    ///
    /// # Errors
    /// [`Code::Cancelled`] if the client has left; [`Code::DeadlineExceeded`] after the deadline.
    pub fn check(&self) -> Result<()> {
        if self.0.abandoned.load(Relaxed) {
            return Err(Error::new(Code::Cancelled, "the client has closed its connection"));
        }
        if self.0.deadline.get().is_some_and(|deadline| Instant::now() > *deadline) {
            let message = "the request's deadline passed while it was being processed";
            return Err(Error::new(Code::DeadlineExceeded, message));
        }
        Ok(())
    }

    /// Runs `work` within this budget.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = BudgetGuard::new(Some(self.clone()));
        work()
    }
}

thread_local! {
    static CURRENT: RefCell<Option<RequestBudget>> = const { RefCell::new(None) };
}

/// Makes a budget the current one of this thread, until it is dropped.
struct BudgetGuard {
    before: Option<RequestBudget>,
}

impl BudgetGuard {
    fn new(budget: Option<RequestBudget>) -> Self {
        BudgetGuard {
            before: CURRENT.with_borrow_mut(|current| std::mem::replace(current, budget)),
        }
    }
}

impl BudgetGuard {
    /// Makes the budget before it the current one again, and returns its own.
    fn leave(mut self) -> Option<RequestBudget> {
        let own = self.restore();
        std::mem::forget(self);
        own
    }

    fn restore(&mut self) -> Option<RequestBudget> {
        let before = self.before.take();
        CURRENT.with_borrow_mut(|current| std::mem::replace(current, before))
    }
}

impl Drop for BudgetGuard {
    fn drop(&mut self) {
        self.restore();
    }
}

/// The budget of the request that this thread works for.
#[must_use]
pub fn current() -> Option<RequestBudget> {
    CURRENT.with_borrow(Option::clone)
}

/// Reserves memory for the request that this thread works for.
///
/// # Errors
/// Those of [`RequestBudget::reserve`].
pub fn reserve(bytes: usize) -> Result<()> {
    CURRENT.with_borrow(|current| current.as_ref().map_or(Ok(()), |budget| budget.reserve(bytes)))
}

/// Returns `bytes` that were reserved for the request that this thread works for, and are free again.
pub fn release(bytes: usize) {
    CURRENT.with_borrow(|current| {
        if let Some(budget) = current {
            budget.0.reserved.fetch_sub(bytes, Relaxed);
        }
    });
}

/// The bytes that the request for which this thread works has reserved; 0 outside of any budget.
#[must_use]
pub fn reserved() -> usize {
    CURRENT
        .with_borrow(|current| current.as_ref().map_or(0, |budget| budget.0.reserved.load(Relaxed)))
}

/// Sets the deadline of the request that this thread works for.
pub fn set_deadline(deadline: Instant) {
    CURRENT.with_borrow(|current| {
        if let Some(budget) = current {
            budget.set_deadline(deadline);
        }
    });
}

/// The priority that the request that this thread works for has and may ask for.
#[must_use]
pub fn priority() -> PriorityGrant {
    let set = |budget: &RequestBudget| budget.0.priority.get().copied();
    CURRENT.with_borrow(|current| current.as_ref().and_then(set)).unwrap_or_default()
}

/// Reserves memory for what the capacity of `out` has to grow by to take `more` bytes, and grows it.
/// Encoders call it before each row or string.
///
/// # Errors
/// Those of [`RequestBudget::reserve`] and of [`RequestBudget::check`].
#[inline]
pub fn grow<T>(out: &mut Vec<T>, more: usize) -> Result<()> {
    if out.capacity() - out.len() >= more { Ok(()) } else { grow_by(out, more) }
}

#[cold]
fn grow_by<T>(out: &mut Vec<T>, more: usize) -> Result<()> {
    let size = size_of::<T>().max(1);
    if out.len() >= CHECKED_GROWTH / size {
        check()?;
    }
    let least = (MIN_GROWTH / size).max(1);
    let wanted = more.max(out.capacity().clamp(least, MAX_GROWTH / size + least));
    let grown = out.len().saturating_add(wanted).saturating_sub(out.capacity());
    reserve(grown.saturating_mul(size))?;
    out.try_reserve_exact(wanted).map_err(|_| exhausted())
}

/// The error of a request whose memory is reserved, and cannot be allocated: the process may have less left than its
/// requests may take, as loads of models need some, too.
#[must_use]
#[cold]
pub fn exhausted() -> Error {
    Error::overloaded("the process has no memory left for this request")
}

/// A buffer doubles until it grows by this much: writing as much takes less than 100 ms.
const MAX_GROWTH: usize = 16 << 20;

/// A buffer grows by at least this much.
const MIN_GROWTH: usize = 512;

/// The deadline is looked at when a buffer has reached this size.
const CHECKED_GROWTH: usize = 64 << 10;

/// Whether work for the request that this thread works for is still of use.
///
/// # Errors
/// Those of [`RequestBudget::check`].
pub fn check() -> Result<()> {
    CURRENT.with_borrow(|current| current.as_ref().map_or(Ok(()), RequestBudget::check))
}

/// Counts memory that is allocated little by little, and reserves it in steps.
#[derive(Debug, Default)]
pub struct Meter {
    pending: usize,
}

/// What an allocation takes besides its bytes.
pub const ALLOCATION: usize = 16;

/// A meter reserves this much at once.
const METER_STEP: usize = 8 << 10;

impl Meter {
    /// Counts `bytes`.
    ///
    /// # Errors
    /// Those of [`RequestBudget::reserve`] and of [`RequestBudget::check`].
    #[inline]
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.pending = self.pending.saturating_add(bytes);
        if self.pending < METER_STEP { Ok(()) } else { self.settle() }
    }

    /// Appends `value` to `list`, after counting what that grows by: it doubles.
    ///
    /// # Errors
    /// Those of [`Meter::add`].
    #[inline]
    pub fn push<T>(&mut self, list: &mut Vec<T>, value: T) -> Result<()> {
        if list.len() == list.capacity() {
            self.make_room(list, list.capacity().max(1))?;
        }
        list.push(value);
        Ok(())
    }

    /// Makes room for `more` values in `list`, after counting what that grows by.
    ///
    /// # Errors
    /// Those of [`Meter::add`].
    pub fn make_room<T>(&mut self, list: &mut Vec<T>, more: usize) -> Result<()> {
        let room = list.capacity() - list.len();
        if room < more {
            let bytes = (more - room).saturating_mul(size_of::<T>());
            self.add(if list.capacity() == 0 { bytes.saturating_add(ALLOCATION) } else { bytes })?;
            list.reserve_exact(more);
        }
        Ok(())
    }

    #[cold]
    fn settle(&mut self) -> Result<()> {
        check()?;
        reserve(std::mem::take(&mut self.pending))
    }
}

/// Memory that is reserved for a part of a request's work.
#[derive(Debug)]
pub struct Scratch {
    budget: Option<RequestBudget>,
    bytes: usize,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.0.reserved.fetch_sub(self.bytes, Relaxed);
        }
    }
}

/// Reserves memory until the result is dropped.
///
/// # Errors
/// Those of [`RequestBudget::reserve`].
pub fn scratch(bytes: usize) -> Result<Scratch> {
    reserve(bytes)?;
    Ok(Scratch { budget: current(), bytes })
}

/// An empty [`AlignedVec`] with room for `capacity` elements, after reserving that memory.
///
/// # Errors
/// Those of [`RequestBudget::reserve`]; if the process has no memory left.
pub fn reserved_vec<T>(capacity: usize) -> Result<AlignedVec<T>> {
    reserve(capacity.saturating_mul(size_of::<T>()))?;
    allocated_vec(capacity)
}

/// An empty [`AlignedVec`] with room for `capacity` elements, whose memory is reserved already.
///
/// # Errors
/// If the process has no memory left.
pub fn allocated_vec<T>(capacity: usize) -> Result<AlignedVec<T>> {
    let mut allocated = aligned_vec(0);
    allocated.try_reserve_exact(capacity).map_err(|_| exhausted())?;
    Ok(allocated)
}

/// A future that runs within a budget. If it is dropped before it is done, its request is abandoned.
pub struct Budgeted<F> {
    budget: Option<RequestBudget>,
    future: F,
}

impl<F: Future + Unpin> Budgeted<F> {
    /// `future`, within `budget`.
    pub fn new(budget: RequestBudget, future: F) -> Self {
        Budgeted { budget: Some(budget), future }
    }
}

impl<F: Future + Unpin> Future for Budgeted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let entered = BudgetGuard::new(this.budget.take());
        let polled = Pin::new(&mut this.future).poll(context);
        let own = entered.leave();
        if polled.is_pending() {
            this.budget = own;
        }
        polled
    }
}

impl<F> Drop for Budgeted<F> {
    fn drop(&mut self) {
        if let Some(budget) = &self.budget {
            budget.abandon();
        }
    }
}

#[cfg(test)]
mod tests;
