//! The memory that a target takes.
#![allow(unsafe_code)] // An allocator cannot be written without.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tensorserve_tensor::budget;

/// What the memory of a target is compared with.
#[derive(Clone, Copy)]
pub enum MemoryRule {
    /// The decoder of a request, which reserves its memory before it takes it: at no moment may it have more
    /// than [`UNRESERVED`] beyond twice what the request holds then.
    Reserved,
    /// The decoder of a file: it may have `fixed` bytes, and `per_byte` for each byte of its input.
    OfFile { fixed: usize, per_byte: usize },
}

/// What a request may take besides twice what it has reserved.
const UNRESERVED: isize = 64 << 10;

/// The memory that an input took, in bytes, at the moment when it was nearest to what was allowed or furthest
/// beyond.
#[derive(Clone, Copy, Default)]
pub struct MemoryUse {
    pub taken: usize,
    pub allowed: usize,
}

impl MemoryUse {
    /// What was taken of what was allowed: more than 1 is too much.
    pub fn share(self) -> f64 {
        self.taken as f64 / self.allowed.max(1) as f64
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
    /// What it had taken, and what it was allowed, when the former was the largest part of the latter.
    static WORST: Cell<(isize, isize)> = const { Cell::new((0, 1)) };
}

/// Compares what the request of this thread has allocated with what it holds of the server's memory.
fn watch(held: isize) {
    // The budget is not looked at while it is looked at.
    if let Some(began) = BEGAN.take() {
        let reserved = budget::current().map_or(0, |request| request.held()).cast_signed();
        let allowed = reserved.wrapping_mul(2).wrapping_add(UNRESERVED);
        let taken = held.wrapping_sub(began);
        let (most, then_allowed) = WORST.get();
        if taken.wrapping_mul(then_allowed) > most.wrapping_mul(allowed) {
            WORST.set((taken, allowed));
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

/// Calls `function`, whose memory is not the request's: a check, or the start of a server.
pub fn unwatched<T>(function: impl FnOnce() -> T) -> T {
    let (began, before) = (BEGAN.take(), HELD.get());
    let result = function();
    BEGAN.set(began.map(|began| began.wrapping_add(HELD.get().wrapping_sub(before))));
    result
}

/// The memory that this thread takes while it calls `function`, which decodes an input of `length` bytes.
pub fn use_of(rule: MemoryRule, length: usize, function: impl FnOnce()) -> MemoryUse {
    let before = HELD.get();
    match rule {
        MemoryRule::Reserved => {
            WORST.set((0, UNRESERVED));
            BEGAN.set(Some(before));
            function();
            BEGAN.set(None);
            let (taken, allowed) = WORST.get();
            MemoryUse { taken: taken.unsigned_abs(), allowed: allowed.unsigned_abs() }
        }
        MemoryRule::OfFile { fixed, per_byte } => {
            PEAK.set(before);
            function();
            let taken = usize::try_from(PEAK.get().wrapping_sub(before)).unwrap_or(0);
            MemoryUse { taken, allowed: fixed + per_byte * length }
        }
    }
}
