//! What we ask of the operating system's C library directly. An FFI file: the only unsafe code
//! outside the runtimes' bindings.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

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
pub fn bound_heaps(heaps: usize) {
    let heaps = i32::try_from(heaps).unwrap_or(i32::MAX);
    // SAFETY: mallopt only sets a parameter of the allocator; called before threads are started.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, heaps);
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = heaps;
}

/// Whether what libraries read of files lets other threads have the core in between, whatever the
/// kernel: otherwise requests may wait for a load that reads much.
#[must_use]
pub fn reads_in_pieces() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    return crate::reads::are_in_pieces();
    #[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
    return false;
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

/// Does `work` while the terminal does not show what is typed: for passwords.
pub fn without_echo<T>(work: impl FnOnce() -> T) -> T {
    let mut shown = std::mem::MaybeUninit::<libc::termios>::uninit();
    // SAFETY: fills the structure when it returns 0, and only then is it taken for filled.
    let is_terminal = unsafe { libc::tcgetattr(libc::STDIN_FILENO, shown.as_mut_ptr()) == 0 };
    if !is_terminal {
        return work();
    }
    // SAFETY: it was filled.
    let shown = unsafe { shown.assume_init() };
    let mut hidden = shown;
    hidden.c_lflag &= !libc::ECHO;
    // SAFETY: both are settings of this terminal; a failure leaves it as it is.
    unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, &raw const hidden) };
    let done = work();
    // SAFETY: as above.
    unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, &raw const shown) };
    done
}

/// The number of the user that this process acts as.
#[must_use]
pub fn user() -> u32 {
    // SAFETY: geteuid has no arguments, touches no memory and can not fail.
    unsafe { libc::geteuid() }
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
        libc::dup2(memory, 2);
        (File::from_raw_fd(kept), File::from_raw_fd(memory))
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

/// A file in memory, without a name. Children get it only where they are given it.
///
/// # Errors
/// Without descriptors or memory.
pub fn file_in_memory() -> io::Result<File> {
    // SAFETY: the name is NUL-terminated; the descriptor is new, and File takes it over.
    unsafe {
        let memory = libc::memfd_create(c"tensorserve".as_ptr(), libc::MFD_CLOEXEC);
        if memory < 0 { Err(io::Error::last_os_error()) } else { Ok(File::from_raw_fd(memory)) }
    }
}

/// A descriptor that becomes readable when the process ends. To be called by its parent before
/// that has waited for it, so that the number still means that process.
///
/// # Errors
/// Without descriptors, or on Linux before 5.3.
pub fn process_descriptor(process: u32) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the descriptor is new, and OwnedFd takes it over.
    unsafe {
        let opened = libc::syscall(libc::SYS_pidfd_open, process, 0);
        match i32::try_from(opened) {
            Ok(descriptor @ 0..) => Ok(OwnedFd::from_raw_fd(descriptor)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Kills a process and those it has started, all that are in its process group. To be called by
/// its parent before that has waited for it.
pub fn kill_group(process: u32) {
    let Some(group) = i32::try_from(process).ok().filter(|group| *group > 1) else {
        return;
    };
    // SAFETY: a plain system call. The number is above 1, so that it means neither our own group
    // nor every process.
    unsafe {
        libc::kill(-group, libc::SIGKILL);
    }
}

/// What owns a descriptor and keeps it for as long as it lives.
pub trait Owner: AsRawFd {}

impl Owner for OwnedFd {}
impl Owner for UnixStream {}

/// Tells when there is something to read, on the runtime that this is called on.
///
/// # Errors
/// Without memory for it.
pub fn watch_for_input<T: Owner>(owner: &Arc<T>) -> io::Result<AsyncFd<Arc<T>>> {
    // SAFETY: an owner's descriptor stays open, and the same, until it is dropped, which is not
    // before the result is.
    let watched = unsafe { AsyncFd::register_with_interest(Arc::clone(owner), Interest::READABLE) };
    watched.map_err(io::Error::from)
}
