//! What we ask of the operating system's C library directly. An FFI file: the only unsafe code
//! outside the runtimes' bindings.
#![allow(unsafe_code)]

use std::io::{Read, Seek, SeekFrom};

/// Gives memory that was freed back to the system. The allocator keeps it otherwise, and a server
/// that unloads a model of 2 GB would stay 2 GB larger than it need be.
pub fn release_memory() {
    // SAFETY: malloc_trim takes the allocator's own locks and touches only free memory.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bounds the number of heaps that the C allocator spreads threads over. By default there are
/// eight per core, each keeping what a model's load left in it.
pub fn bound_heaps(heaps: i32) {
    // SAFETY: mallopt only sets a parameter of the allocator; called before threads are started.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, heaps);
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = heaps;
}

/// How far [`lower_priority`] goes: to a tenth of the processor time of a thread as usual, where
/// both want it. Less would let loads starve on a busy server.
#[cfg(target_os = "linux")]
const STEPS_DOWN: libc::c_int = 10;

/// Lets other threads go before this one, and before those that it starts, from now on. There is
/// no way back: only the administrator may raise a priority.
pub fn lower_priority() {
    // SAFETY: a plain system call; on Linux it changes the calling thread alone.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::nice(STEPS_DOWN);
    }
}

/// Ends the process without running any exit handlers: threads of a runtime that are still at
/// work must not find its globals destroyed.
pub fn exit_now(code: i32) -> ! {
    use std::io::Write;
    let _ = std::io::stdout().flush();
    // SAFETY: _exit never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// Sets a variable of this process's environment, for a library that reads its settings there.
/// To be called before that library is opened, while all other threads are our own.
pub fn set_variable(name: &str, value: &str) {
    // SAFETY: changing the environment races with threads that read it through libc. Callers see
    // to it that only our own threads exist, and those read the environment only through std,
    // which takes a lock that this call takes too.
    unsafe { std::env::set_var(name, value) };
}

/// Does `work` with stderr going to a file in memory, and returns what was written to it.
///
/// Opening the library writes notes before the library looks at its own log level. The server
/// opens it before it starts any thread that could have something to say meanwhile.
pub fn with_stderr_kept<T>(work: impl FnOnce() -> T) -> (T, String) {
    // SAFETY: plain system calls on descriptors that are ours; the name is NUL-terminated.
    let (kept, memory) = unsafe {
        let kept = libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 3);
        (kept, libc::memfd_create(c"stderr".as_ptr(), libc::MFD_CLOEXEC))
    };
    if kept < 0 || memory < 0 {
        return (work(), String::new());
    }
    // SAFETY: both descriptors are open and ours; File takes each over exactly once.
    let (stderr, mut memory) = unsafe {
        use std::os::fd::FromRawFd;
        libc::dup2(memory, 2);
        (std::fs::File::from_raw_fd(kept), std::fs::File::from_raw_fd(memory))
    };
    let result = work();
    let mut written = String::new();
    // SAFETY: `stderr` is what descriptor 2 was before.
    unsafe {
        use std::os::fd::AsRawFd;
        libc::dup2(stderr.as_raw_fd(), 2);
    }
    // The position is shared with descriptor 2, which wrote: back to the start.
    if memory.seek(SeekFrom::Start(0)).is_ok() {
        let _ = memory.read_to_string(&mut written);
    }
    (result, written)
}
