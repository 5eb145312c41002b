//! What we ask of the operating system's C library directly. An FFI file: the only unsafe code
//! outside the runtimes' bindings.
#![allow(unsafe_code)]

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

/// Ends the process without running any exit handlers: threads of a runtime that are still at
/// work must not find its globals destroyed.
pub fn exit_now(code: i32) -> ! {
    use std::io::Write;
    let _ = std::io::stdout().flush();
    // SAFETY: _exit never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}
