//! Redirections of stderr, which libraries in C and C++ write to. An FFI file.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering::SeqCst};

/// Whether this process has threads besides the one that calls; true if that is unknown.
fn has_other_threads() -> bool {
    std::fs::read_dir("/proc/self/task").map_or(true, |threads| threads.count() != 1)
}

/// Runs `work` with stderr redirected to memory, and returns what was written to it. In a process
/// with other threads, whose messages would be lost, stderr stays as it is, unless the caller knows that `work` is
/// all that writes (`is_alone`).
///
/// libtensorflow writes messages while it is opened, before it reads its log level.
pub fn capture_stderr<T>(is_alone: bool, work: impl FnOnce() -> T) -> (T, String) {
    if !is_alone && has_other_threads() {
        return (work(), String::new());
    }
    // SAFETY: plain system calls on descriptors that are ours; the name is NUL-terminated.
    let (original, memory) = unsafe {
        let original = libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, 3);
        (original, libc::memfd_create(c"stderr".as_ptr(), libc::MFD_CLOEXEC))
    };
    if original < 0 || memory < 0 {
        return (work(), String::new());
    }
    // SAFETY: both descriptors are open and ours; File takes each over exactly once.
    let (original, mut memory) = unsafe {
        libc::dup2(memory, libc::STDERR_FILENO);
        (File::from_raw_fd(original), File::from_raw_fd(memory))
    };
    let result = work();
    let mut written = String::new();
    // SAFETY: `original` is the file that stderr was before.
    unsafe {
        libc::dup2(original.as_raw_fd(), libc::STDERR_FILENO);
    }
    // The redirected stderr shared the file's position: back to the start.
    if memory.seek(SeekFrom::Start(0)).is_ok() {
        let _ = memory.read_to_string(&mut written);
    }
    (result, written)
}

/// The end of a new pipe that is read, and the end that is written to.
fn new_pipe() -> io::Result<[File; 2]> {
    let mut ends = [-1; 2];
    // SAFETY: fills both elements if it returns 0.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors are new, and File takes each over exactly once.
    Ok(unsafe { ends.map(|end| File::from_raw_fd(end)) })
}

/// What this process and its children write to stderr from now on, and what stderr was before.
#[derive(Debug)]
pub struct RedirectedStderr {
    /// The end of the pipe that is read.
    pub written: File,
    /// The stderr before.
    pub original: File,
}

/// The size of the pipe, in bytes: what fits in before anybody reads.
const STDERR_PIPE: libc::c_int = 1 << 20;

/// Redirects stderr into a pipe.
///
/// # Errors
/// Those of the operating system.
pub fn redirect_stderr() -> io::Result<RedirectedStderr> {
    let [written, writer] = new_pipe()?;
    // SAFETY: plain system calls on open descriptors. A smaller pipe is good enough.
    let original = unsafe {
        libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, STDERR_PIPE);
        libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, 3)
    };
    if original < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and File takes it over exactly once.
    let original = unsafe { File::from_raw_fd(original) };
    // SAFETY: both descriptors are open; `writer` is closed below, the copy stays.
    if unsafe { libc::dup2(writer.as_raw_fd(), libc::STDERR_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(RedirectedStderr { written, original })
}

/// Makes `original` the stderr again. Readers of the pipe find its end, unless a child process still
/// has it.
pub fn restore_stderr(original: &File) {
    // SAFETY: a plain system call on open descriptors.
    unsafe {
        libc::dup2(original.as_raw_fd(), libc::STDERR_FILENO);
    }
}

/// The longest line that is kept for [`on_abort`], in bytes.
pub const LONGEST_KEPT: usize = 16 << 10;

/// The descriptors and the process for [`on_abort`].
static ABORT_FROM: AtomicI32 = AtomicI32::new(-1);
static ABORT_TO: AtomicI32 = AtomicI32::new(-1);
static ABORT_OF: AtomicI32 = AtomicI32::new(-1);

/// The beginning of a line whose end has not been written yet; it is out of the pipe.
static KEPT: [AtomicU8; LONGEST_KEPT] = [const { AtomicU8::new(0) }; LONGEST_KEPT];
static KEPT_LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Whether [`on_abort`] reads the pipe: nobody else may do so from then on.
static ABORTING: AtomicBool = AtomicBool::new(false);

/// If this process aborts, copies what [`UnloggedStderr`] has not taken out of the pipe to the stderr before:
/// a library that aborts has written the reason there a moment before. `redirected` must stay open.
pub fn copy_on_abort(redirected: &RedirectedStderr) {
    ABORT_FROM.store(redirected.written.as_raw_fd(), SeqCst);
    ABORT_TO.store(redirected.original.as_raw_fd(), SeqCst);
    // SAFETY: the handler makes only calls that are allowed in one.
    unsafe {
        ABORT_OF.store(libc::getpid(), SeqCst);
        let handler: extern "C" fn(libc::c_int) = on_abort;
        libc::signal(libc::SIGABRT, handler as libc::sighandler_t);
    }
}

extern "C" fn on_abort(signal: libc::c_int) {
    let (from, to) = (ABORT_FROM.load(SeqCst), ABORT_TO.load(SeqCst));
    let mut chunk = [0_u8; 4096];
    // SAFETY: only calls that are safe in signal handlers, on a buffer of this function. The pipe no
    // longer blocks a read, so the loop ends. A forked child has the pipe of its parent, and leaves
    // it alone.
    unsafe {
        if libc::getpid() == ABORT_OF.load(SeqCst) {
            ABORTING.store(true, SeqCst);
            for kept in KEPT.iter().take(KEPT_LENGTH.load(SeqCst)) {
                libc::write(to, kept.as_ptr().cast(), 1);
            }
            libc::fcntl(from, libc::F_SETFL, libc::O_NONBLOCK);
            loop {
                let count = libc::read(from, chunk.as_mut_ptr().cast(), chunk.len());
                let Ok(length @ 1..) = usize::try_from(count) else {
                    break;
                };
                libc::write(to, chunk.as_ptr().cast(), length);
            }
        }
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

/// Reads the pipe of a [`RedirectedStderr`] such that what has not been logged yet is there for
/// [`copy_on_abort`] at any time: in the pipe, or kept. A process that aborts between the read and the log
/// would lose its reason otherwise.
#[derive(Debug)]
pub struct UnloggedStderr {
    written: File,
    /// A pipe of our own, which is empty between two calls.
    copies: [File; 2],
}

impl UnloggedStderr {
    /// # Errors
    /// Those of the operating system: no descriptors.
    pub fn new(redirected: &RedirectedStderr) -> io::Result<Self> {
        Ok(Self { written: redirected.written.try_clone()?, copies: new_pipe()? })
    }

    /// Waits until something is in the pipe, and replaces `seen` by its beginning, without taking it out.
    /// Nothing at the end of the pipe.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn see(&mut self, seen: &mut Vec<u8>) -> io::Result<()> {
        /// What an empty pipe takes at least.
        const CAPACITY: usize = 4096;
        let [read, write] = &mut self.copies;
        let length = loop {
            // SAFETY: a plain system call on open descriptors.
            let copied =
                unsafe { libc::tee(self.written.as_raw_fd(), write.as_raw_fd(), CAPACITY, 0) };
            if let Ok(length) = usize::try_from(copied) {
                break length;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        seen.resize(length, 0);
        read.read_exact(seen)
    }

    /// Takes out the first bytes that [`Self::see`] has shown, which have been logged: kept bytes before them
    /// have been, too.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn take_logged(&mut self, bytes: &[u8]) -> io::Result<()> {
        KEPT_LENGTH.store(0, SeqCst);
        self.take(bytes)
    }

    /// Takes out the first bytes that [`Self::see`] has shown, which have not been logged, and keeps them;
    /// what is longer than [`LONGEST_KEPT`] together is not.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn take_kept(&mut self, bytes: &[u8]) -> io::Result<()> {
        let before = KEPT_LENGTH.load(SeqCst);
        for (kept, byte) in KEPT.iter().skip(before).zip(bytes) {
            kept.store(*byte, SeqCst);
        }
        KEPT_LENGTH.store((before + bytes.len()).min(LONGEST_KEPT), SeqCst);
        self.take(bytes)
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        if ABORTING.load(SeqCst) {
            return Ok(());
        }
        self.written.read_exact(&mut vec![0; bytes.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread that runs this test is not the only one of the process.
    #[test]
    fn stderr_is_not_redirected_while_other_threads_may_write_to_it() {
        let target = || std::fs::read_link("/proc/self/fd/2").expect("a link");
        let before = target();
        let (during, written) = capture_stderr(false, target);
        assert_eq!((during, written), (before, String::new()));
    }
}
