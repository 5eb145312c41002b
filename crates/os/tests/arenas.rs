//! Threads and the arenas of the C allocator, in a process of their own.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![allow(clippy::expect_used)]

use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use tensorserve_os::arenas::in_turn_over_arenas;
use tensorserve_os::limit_malloc_arenas;

const ARENAS: usize = 4;
/// The parts of an arena but the first begin at multiples of this.
const HEAP: usize = 64 << 20;

/// The arena of this thread. Smaller pieces that other threads allocated may be given out again without it.
fn arena() -> usize {
    let piece = vec![1_u8; 5000];
    piece.as_ptr().addr() / HEAP
}

/// A thread that waits for its end.
struct Started {
    thread: JoinHandle<()>,
    /// It ends when this is dropped.
    keep: Sender<()>,
    arena: usize,
}

impl Started {
    /// Returns when the thread has an arena.
    fn new() -> Self {
        let (sender, allocated) = channel();
        let (keep, end) = channel::<()>();
        let thread = thread::spawn(move || {
            sender.send(arena()).expect("a listener");
            let _ = end.recv();
        });
        Started { thread, keep, arena: allocated.recv().expect("an arena") }
    }

    /// Returns when the thread has given up its arena.
    fn end(self) {
        drop(self.keep);
        self.thread.join().expect("no panic");
    }
}

#[test]
fn threads_that_are_started_in_turn_have_arenas_of_their_own() {
    limit_malloc_arenas(ARENAS);
    let mut others = Vec::new();
    for round in 0..200 {
        // Threads that come and go leave arenas that nobody has, and the turn anywhere.
        (0..round % 7).for_each(|_| others.push(Started::new()));
        let left = others.len().min(round % 5);
        others.drain(..others.len() - left).for_each(Started::end);
        let both = in_turn_over_arenas(ARENAS, || [Started::new(), Started::new()]);
        assert_ne!(both[0].arena, both[1].arena, "round {round}");
        both.into_iter().for_each(Started::end);
    }
}
