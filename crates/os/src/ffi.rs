//! Calls of the C library that std does not offer: allocator, priorities, process exit, terminal,
//! file descriptors. An FFI file.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Returns freed memory to the operating system. The allocator would keep it, and a server that
/// unloads a model of 2 GB would stay 2 GB larger than necessary.
pub fn release_memory() {
    // SAFETY: malloc_trim takes the allocator's own locks and touches only free memory.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Limits the number of arenas among which the C allocator distributes threads. The default is
/// eight per core, and each keeps the memory that loads of models freed in it.
pub fn limit_malloc_arenas(arenas: usize) {
    let arenas = i32::try_from(arenas).unwrap_or(i32::MAX);
    // SAFETY: mallopt only sets a parameter of the allocator; called before threads are started.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = arenas;
}

/// The arenas of a server: two for each core, so that each thread of connections has one that no other busy thread uses if
/// they are given in turn ([`in_turn_over_arenas`](crate::arenas::in_turn_over_arenas)).
/// With one for each core they share some in most starts, and then each request moves memory between cores. More of them
/// retain more memory after loads.
#[must_use]
pub fn server_arenas() -> usize {
    std::thread::available_parallelism().map_or(4, |cores| 2 * cores.get().max(2))
}

/// What a server lets [`keep_freed_memory`] keep: the buffers of requests, as much as glibc keeps by itself
/// after it has seen large ones.
pub const KEPT_BY_SERVER: usize = 64 << 20;

/// Lets the C allocator keep up to `bytes` of what is freed in each arena, in place of giving large buffers
/// back to the system each time: for programs that allocate the same sizes again and again. By itself glibc
/// adapts to the sizes that it has seen, and then gives back the two buffers of a request, or does not,
/// depending on their order.
pub fn keep_freed_memory(bytes: usize) {
    /// The most that glibc accepts.
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    const MMAP_THRESHOLD: i32 = 32 << 20;
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    // SAFETY: mallopt only sets parameters of the allocator; called before threads are started.
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD);
        libc::mallopt(libc::M_TRIM_THRESHOLD, bytes);
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
    let _ = bytes;
}

/// Whether file reads by libraries are split into short system calls (module `reads`). If not,
/// requests may have to wait for a load that reads large files.
#[must_use]
pub fn splits_file_reads() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
    return crate::reads::is_interposed();
    #[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
    return false;
}

/// The CPU time that this thread has used.
#[must_use]
pub fn thread_cpu_time() -> Option<Duration> {
    time_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The CPU time that all threads of this process have used.
#[must_use]
pub fn process_cpu_time() -> Option<Duration> {
    time_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn time_of(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a plain system call, which writes to the structure.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (status == 0).then(|| Duration::new(seconds, nanos))
}

/// The nice value that [`lower_priority`] adds: a thread with it gets about a tenth of the CPU time
/// of a thread at normal priority when both compete. Any less, and loads starve on a busy server.
#[cfg(target_os = "linux")]
const NICE_INCREMENT: libc::c_int = 10;

/// The nice value of the lowest priority.
#[cfg(target_os = "linux")]
const LOWEST_PRIORITY: libc::c_int = 19;

/// Lowers the scheduling priority of this thread and of threads that it starts later. This cannot
/// be undone: only a privileged user may raise a priority.
pub fn lower_priority() {
    // SAFETY: a plain system call; on Linux it changes the calling thread alone.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::nice(NICE_INCREMENT);
    }
}

/// A thread of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(#[cfg(target_os = "linux")] libc::pid_t);

/// This thread.
#[must_use]
pub fn thread_id() -> ThreadId {
    // The C library of the wheel's oldest systems (before glibc 2.30) has no function for it.
    // SAFETY: a plain system call without arguments.
    #[cfg(target_os = "linux")]
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    #[cfg(target_os = "linux")]
    return ThreadId(libc::pid_t::try_from(id).unwrap_or_default());
    #[cfg(not(target_os = "linux"))]
    ThreadId()
}

/// A scheduling priority below the normal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadPriority {
    /// That of [`lower_priority`].
    Low,
    /// The lowest: what is left of the CPU time.
    Lowest,
}

/// Lowers the scheduling priority of a thread that has not ended. This cannot be undone.
#[cfg_attr(not(target_os = "linux"), allow(unused_variables))]
pub fn lower_priority_of(thread: ThreadId, priority: ThreadPriority) {
    #[cfg(target_os = "linux")]
    let nice = match priority {
        ThreadPriority::Low => NICE_INCREMENT,
        ThreadPriority::Lowest => LOWEST_PRIORITY,
    };
    // SAFETY: plain system calls; on Linux they concern one thread alone.
    #[cfg(target_os = "linux")]
    unsafe {
        let id = thread.0.unsigned_abs();
        if libc::getpriority(libc::PRIO_PROCESS, id) < nice {
            libc::setpriority(libc::PRIO_PROCESS, id, nice);
        }
    }
}

/// Ends the process without exit handlers, which would destroy the globals of a runtime whose
/// threads still run.
pub fn exit_now(code: i32) -> ! {
    use std::io::Write;
    let _ = std::io::stdout().flush();
    // SAFETY: _exit never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// Runs `work` with the terminal's echo switched off, for the input of passwords.
pub fn without_echo<T>(work: impl FnOnce() -> T) -> T {
    let mut settings = std::mem::MaybeUninit::<libc::termios>::uninit();
    // SAFETY: fills the structure if it returns 0, and only then is it treated as initialized.
    let is_terminal = unsafe { libc::tcgetattr(libc::STDIN_FILENO, settings.as_mut_ptr()) == 0 };
    if !is_terminal {
        return work();
    }
    // SAFETY: tcgetattr has succeeded.
    let original = unsafe { settings.assume_init() };
    let mut silent = original;
    silent.c_lflag &= !libc::ECHO;
    // SAFETY: these are settings of this terminal; a failure leaves it unchanged.
    unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, &raw const silent) };
    let result = work();
    // SAFETY: as above.
    unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, &raw const original) };
    result
}

/// The effective user ID of this process.
#[must_use]
pub fn effective_user_id() -> u32 {
    // SAFETY: geteuid has no arguments, touches no memory and cannot fail.
    unsafe { libc::geteuid() }
}

/// Sets an environment variable of this process, for a library that reads its settings there.
/// Call it before that library is opened, while all other threads are our own.
pub fn set_environment_variable(name: &str, value: &str) {
    // SAFETY: changing the environment races with threads that read it through libc. Callers
    // ensure that only our own threads exist, and those read the environment only through std,
    // which takes the lock that this call takes.
    unsafe { std::env::set_var(name, value) };
}

/// An anonymous file in memory. Child processes inherit it only where it is passed to them.
///
/// # Errors
/// Those of the operating system: no descriptors or no memory.
pub fn memory_file() -> io::Result<File> {
    // SAFETY: the name is NUL-terminated; the descriptor is new, and File takes it over.
    unsafe {
        let memory = libc::memfd_create(c"tensorserve".as_ptr(), libc::MFD_CLOEXEC);
        if memory < 0 { Err(io::Error::last_os_error()) } else { Ok(File::from_raw_fd(memory)) }
    }
}

/// A descriptor of a child process that becomes readable when the process ends. Call it before the
/// child is waited for, so that `pid` still is that process.
///
/// # Errors
/// Those of the operating system: no descriptors, or Linux before 5.3.
pub fn process_descriptor(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the descriptor is new, and OwnedFd takes it over.
    unsafe {
        let opened = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        match i32::try_from(opened) {
            Ok(descriptor @ 0..) => Ok(OwnedFd::from_raw_fd(descriptor)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Kills the process group that a child process leads: the child and the processes it started.
/// Call it before the child is waited for.
pub fn kill_process_group(pid: u32) {
    let Some(group) = i32::try_from(pid).ok().filter(|group| *group > 1) else {
        return;
    };
    // SAFETY: a plain system call. The number is above 1, so it is neither our own group nor every
    // process.
    unsafe {
        libc::kill(-group, libc::SIGKILL);
    }
}

/// A type that owns one open descriptor, the same one until it is dropped.
pub trait OwnsDescriptor: AsRawFd {}

impl OwnsDescriptor for OwnedFd {}
impl OwnsDescriptor for UnixStream {}

/// Registers a descriptor with the current tokio runtime, to await that it becomes readable.
///
/// # Errors
/// Those of the operating system, such as no memory.
pub fn await_readable<T: OwnsDescriptor>(owner: &Arc<T>) -> io::Result<AsyncFd<Arc<T>>> {
    // SAFETY: the owner keeps its descriptor open and unchanged until it is dropped, and the result
    // holds the owner.
    let registered =
        unsafe { AsyncFd::register_with_interest(Arc::clone(owner), Interest::READABLE) };
    registered.map_err(io::Error::from)
}

/// Has the kernel drop packets to a TCP socket whose remaining number of hops is less than `least`; none
/// with 0. With 255 on a listener, these are the first packets of new connections, because systems begin with
/// 64 or 128. Sockets that are accepted from it begin with its value.
///
/// # Errors
/// Those of the operating system; also on systems other than Linux.
pub fn drop_packets_below(socket: &impl AsRawFd, least: u8) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let size = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(io::Error::other)?;
        let value = libc::c_int::from(least);
        let set = |level, name| {
            // SAFETY: the value is an integer of the given size, which is copied.
            let done = unsafe {
                let value = std::ptr::from_ref(&value).cast();
                libc::setsockopt(socket.as_raw_fd(), level, name, value, size)
            };
            if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        // A socket of IPv6 has both: it may take connections of IPv4.
        let fourth = set(libc::IPPROTO_IP, libc::IP_MINTTL);
        let sixth = set(libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT);
        fourth.or(sixth)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (socket, least);
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn a_listener_that_drops_packets_keeps_what_is_established() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(any) else { continue };
            let address = listener.local_addr().expect("bound");
            let mut earlier = TcpStream::connect(address).expect("connected");
            drop_packets_below(&listener, 255).expect("no privilege is necessary");
            let short = Duration::from_millis(200);
            assert!(TcpStream::connect_timeout(&address, short).is_err(), "{any}");
            let (mut accepted, _) = listener.accept().expect("was established");
            drop_packets_below(&accepted, 0).expect("no privilege is necessary");
            earlier.write_all(b"x").expect("open");
            let mut received = [0];
            accepted.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
            accepted.read_exact(&mut received).expect("arrives");
            drop_packets_below(&listener, 0).expect("no privilege is necessary");
            TcpStream::connect_timeout(&address, Duration::from_secs(10)).expect("connected");
        }
    }
}
