//! The memory that a target takes.
#![allow(unsafe_code)] // An allocator cannot be written without.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tensorserve_tensor::budget;

/// The most memory that a target may take at once, by the length of its input.
#[derive(Clone, Copy)]
pub struct MemoryLimit {
    /// Bytes for every input.
    pub fixed: usize,
    /// Bytes for each byte of the input.
    pub per_byte: usize,
    /// Whether the target reserves its memory before it takes it, as requests do.
    pub reserves: bool,
}

impl MemoryLimit {
    /// The most bytes for an input of `length` bytes.
    pub fn of(self, length: usize) -> usize {
        self.fixed + self.per_byte * length
    }
}

/// Counts what each thread allocates. Threads that free memory of others may go below zero.
struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// What was held when a request began, while one is watched.
    static BEGAN: Cell<Option<isize>> = const { Cell::new(None) };
    /// The most that it took beyond twice what it had reserved.
    static EXCESS: Cell<isize> = const { Cell::new(0) };
}

/// Compares what the request of this thread has allocated with what it holds of the server's memory.
fn watch(held: isize) {
    // The budget is not looked at while it is looked at.
    if let Some(began) = BEGAN.take() {
        let reserved =
            budget::current().map_or(0, |request| request.held()).cast_signed().wrapping_mul(2);
        let excess = held.wrapping_sub(began).wrapping_sub(reserved);
        if excess > EXCESS.get() {
            EXCESS.set(excess);
        }
        BEGAN.set(Some(began));
    }
}

fn count(bytes: isize) {
    // Wrapping: a panic in an allocator aborts the process.
    let held = HELD.get().wrapping_add(bytes);
    HELD.set(held);
    if held > PEAK.get() {
        PEAK.set(held);
    }
    if bytes > 0 {
        watch(held);
    }
}

// SAFETY: every method passes its arguments on to the system's allocator unchanged, and returns its
// result.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size.cast_signed().wrapping_sub(layout.size().cast_signed()));
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(layout.size().cast_signed().wrapping_neg());
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// The most bytes that this thread allocates at once while it calls `function`, beyond twice those that the
/// request for which it works holds at that moment.
pub fn excess_of(function: impl FnOnce()) -> usize {
    EXCESS.set(0);
    BEGAN.set(Some(HELD.get()));
    function();
    BEGAN.set(None);
    usize::try_from(EXCESS.get()).unwrap_or(0)
}

/// Calls `function`, whose memory is not the request's: a check, or the start of a server.
pub fn unwatched<T>(function: impl FnOnce() -> T) -> T {
    let (began, before) = (BEGAN.take(), HELD.get());
    let result = function();
    BEGAN.set(began.map(|began| began.wrapping_add(HELD.get().wrapping_sub(before))));
    result
}

/// The most bytes that this thread holds at once while it calls `function`, beyond what it held before.
pub fn peak_of(function: impl FnOnce()) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    function();
    usize::try_from(PEAK.get().wrapping_sub(before)).unwrap_or(0)
}
