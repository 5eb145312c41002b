//! The arenas of the C allocator: each thread gets one with its first allocation, and keeps it.
//!
//! glibc gives a new thread an arena that no thread has any more, a new one while there are fewer than the limit, or else
//! the next of all in turn. The next one in turn may be the one that the thread before was given because nobody had it.
//! Two busy threads with one arena wait for each other at most allocations: where that happened to those of connections, a
//! request took a quarter more CPU time.

use std::hint::black_box;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

/// Calls `start`, during which threads that are started get arenas in turn, so that up to as many as `arenas`, the limit, have
/// different ones.
pub fn in_turn_over_arenas<T>(arenas: usize, start: impl FnOnce() -> T) -> T {
    let gate = Mutex::new(());
    let (holders, changed) = (Mutex::new(0), Condvar::new());
    thread::scope(|scope| {
        let closed = gate.lock().unwrap_or_else(PoisonError::into_inner);
        let mut threads = Vec::with_capacity(2 * arenas);
        // Those that nobody has and new ones come first, at most each once; then each in turn.
        for started in 0..2 * arenas {
            let holder = thread::Builder::new().name("arena".to_owned()).stack_size(64 << 10);
            let (gate, holders, changed) = (&gate, &holders, &changed);
            let spawned = holder.spawn_scoped(scope, move || {
                drop(black_box(Box::new(0_u8)));
                // From here on it allocates nothing: an arena that is locked misses its turn.
                *holders.lock().unwrap_or_else(PoisonError::into_inner) += 1;
                changed.notify_one();
                drop(gate.lock());
            });
            // Without a thread more, nothing is lost but time.
            let Ok(thread) = spawned else {
                break;
            };
            threads.push(thread);
            let count = holders.lock().unwrap_or_else(PoisonError::into_inner);
            drop(changed.wait_while(count, |count| *count <= started));
        }
        let started = start();
        drop(closed);
        // The end of a scope does not wait until its threads have given up their arenas.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        started
    })
}
