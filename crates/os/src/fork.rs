//! Processes that are forked from this one, and the limits that they give themselves. An FFI file.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use crate::exit_now;

/// The exit status of a forked process whose work has panicked.
const PANICKED: i32 = 101;

/// A process that this one has forked. It is killed when this value is dropped.
#[derive(Debug)]
pub struct ForkedProcess {
    pid: libc::pid_t,
    status: Option<ExitStatus>,
}

/// The number of threads of this process.
fn threads() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

/// Waits until the calling thread is the only one of this process: the kernel counts a thread for a moment after it
/// has been joined. Gives up after a second, and [`fork`] fails then.
pub fn wait_for_joined_threads() {
    let end = Instant::now() + Duration::from_secs(1);
    while threads().is_ok_and(|threads| threads > 1) && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a copy of this process, which runs `work` and ends with the status that `work` returns. The
/// kernel kills it when the calling thread ends.
///
/// # Errors
/// If this process has other threads: the copy would have only the calling one, and locks that the
/// others hold would stay held. Else those of the operating system.
pub fn fork(work: impl FnOnce() -> i32) -> io::Result<ForkedProcess> {
    let threads = threads()?;
    if threads != 1 {
        return Err(io::Error::other(format!("this process has {threads} threads, not one")));
    }
    // SAFETY: getpid has no arguments and cannot fail.
    let parent = unsafe { libc::getpid() };
    // SAFETY: the calling thread is the only one, so the copy has every thread, and no lock is held
    // by a thread that it lacks.
    let pid = unsafe { libc::fork() };
    match pid {
        ..0 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: plain system calls. The parent may have ended before the first one.
            let has_parent = unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::getppid() == parent
            };
            if !has_parent {
                exit_now(0);
            }
            // The work must not return into the caller's frames, which belong to the parent.
            exit_now(catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED))
        }
        pid => Ok(ForkedProcess { pid, status: None }),
    }
}

impl ForkedProcess {
    /// Waits until the process ends.
    ///
    /// # Errors
    /// If it cannot be waited for, because its end was ignored.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.wait_with(0)?.ok_or_else(|| io::Error::other("the process has not ended"))
    }

    /// The status of the process if it has ended.
    ///
    /// # Errors
    /// As [`ForkedProcess::wait`].
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.wait_with(libc::WNOHANG)
    }

    fn wait_with(&mut self, options: i32) -> io::Result<Option<ExitStatus>> {
        while self.status.is_none() {
            let mut status = 0;
            // SAFETY: the process is ours and not yet waited for; `status` outlives the call.
            let ended = unsafe { libc::waitpid(self.pid, &raw mut status, options) };
            if ended == self.pid {
                self.status = Some(ExitStatus::from_raw(status));
            } else if ended == 0 {
                break;
            } else {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
        Ok(self.status)
    }

    /// Kills the process, unless it was waited for.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            // SAFETY: a plain system call. The process was not waited for, so its ID is still its
            // own.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
            }
        }
    }
}

impl Drop for ForkedProcess {
    fn drop(&mut self) {
        self.kill();
        let _ = self.wait();
    }
}

/// Makes this process the leader of a session of its own, so that signals of the terminal do not
/// reach it.
pub fn start_session() {
    // SAFETY: a plain system call; it fails if the process leads a group, and changes nothing then.
    unsafe {
        libc::setsid();
    }
}

/// Ignores the signals that ask a process to stop, in this process and in those that it forks: a supervisor that sends
/// them to every process of a service, as systemd does, means the server, which still needs this one.
pub fn ignore_requests_to_stop() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: sets no handler of ours.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

/// Whether processes that this one has forked vanish when they end, without being waited for.
pub fn ignore_ended_children(ignore: bool) {
    let action = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: sets no handler of ours.
    unsafe {
        libc::signal(libc::SIGCHLD, action);
    }
}

/// Lets the kernel kill this process when its parent ends, which is the process `parent`; ends it now if that has ended.
/// More exactly, the end of the thread counts that has started this process.
pub fn end_with(parent: u32) {
    // SAFETY: plain system calls. The parent may have ended before the first one.
    let present = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::getppid()
    };
    if u32::try_from(present) != Ok(parent) {
        exit_now(0);
    }
}

/// Reads stdin from `/dev/null`.
///
/// # Errors
/// If `/dev/null` cannot be opened.
pub fn empty_stdin() -> io::Result<()> {
    let null = File::open("/dev/null")?;
    redirect(null.as_fd(), libc::STDIN_FILENO);
    Ok(())
}

/// Reads stdin from `/dev/null`, and writes stdout and stderr to `output`.
///
/// # Errors
/// If `/dev/null` cannot be opened.
pub fn redirect_standard_streams(output: &impl AsFd) -> io::Result<()> {
    empty_stdin()?;
    redirect(output.as_fd(), libc::STDOUT_FILENO);
    redirect(output.as_fd(), libc::STDERR_FILENO);
    Ok(())
}

fn redirect(file: BorrowedFd<'_>, standard: i32) {
    // SAFETY: both descriptors are open, and the standard streams stay open.
    unsafe {
        libc::dup2(file.as_raw_fd(), standard);
    }
}

/// Limits the private memory that this process can allocate (`RLIMIT_DATA`, in bytes), and lets it
/// write no core file. The kernel chooses it first when memory is exhausted.
///
/// # Errors
/// If the limit cannot be set.
pub fn limit_private_memory(bytes: u64) -> io::Result<()> {
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    let set = |resource, bytes| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: `limit` outlives the call.
        match unsafe { libc::setrlimit(resource, &raw const limit) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let _ = set(libc::RLIMIT_CORE, 0);
    set(libc::RLIMIT_DATA, bytes)
}

/// The name of a signal, such as `SIGABRT`; `None` for one that no fault of a program causes.
#[must_use]
pub fn signal_name(signal: i32) -> Option<&'static str> {
    match signal {
        libc::SIGABRT => Some("SIGABRT"),
        libc::SIGBUS => Some("SIGBUS"),
        libc::SIGFPE => Some("SIGFPE"),
        libc::SIGILL => Some("SIGILL"),
        libc::SIGKILL => Some("SIGKILL"),
        libc::SIGSEGV => Some("SIGSEGV"),
        libc::SIGSYS => Some("SIGSYS"),
        libc::SIGTERM => Some("SIGTERM"),
        libc::SIGTRAP => Some("SIGTRAP"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_copied() {
        // The test harness has threads of its own.
        let error = fork(|| 0).expect_err("refused");
        assert!(error.to_string().contains("threads"), "{error}");
    }
}
