//! One worker process: its start, calls to it, and its end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::Ready;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

use super::log::ProcessLog;
use super::wire::{self, Frame, FramePrefix};
use super::{Program, leave_directory};
use tensorserve_os as os;
use tensorserve_tensor::error::{Code, Error, Result};

/// The size above which the memory file is truncated after a call, in bytes.
const MAX_IDLE_MEMORY: u64 = 4 << 20;

/// Size of the buffer that a reply is first read into, in bytes.
const FIRST_READ: usize = 8 << 10;

/// The wait before another attempt to write to a full socket.
const FULL_SOCKET_WAIT: Duration = Duration::from_millis(1);

/// A Python program that runs the program in the memory file. As a script, that file would have a
/// name, under which a printed traceback would open it again.
const RUN_MEMORY_FILE: &str =
    concat!(leave_directory!(), "import os; exec(os.pread(1, os.fstat(1).st_size, 0))");

/// A command to the keeper of a process.
pub(super) enum KeeperCommand {
    /// Kill the process, for this reason.
    Kill(String),
    /// Let the process exit.
    Shutdown,
    /// The process has closed its socket or cannot be reached: ensure that it ends.
    Reap,
}

/// How a process has ended.
#[derive(Clone, Debug)]
pub(super) struct ProcessEnd {
    /// A predicate: `was killed by signal 9 (SIGKILL)`.
    pub(super) cause: String,
    /// The last lines that it printed.
    pub(super) last_lines: String,
}

/// A running process, as its callers use it. It serves one call at a time.
pub(super) struct Worker {
    pub(super) id: u64,
    pub(super) name: Arc<str>,
    socket: Arc<UnixStream>,
    memory: File,
    /// Whether the call in progress has written to the memory file.
    uses_memory: AtomicBool,
    /// The number of lines that it has printed.
    pub(super) lines: Arc<AtomicU64>,
    /// That number at the start of the call in progress.
    pub(super) lines_before_call: AtomicU64,
    /// The number of replies that it has sent; the first reports that it is ready.
    pub(super) replies: AtomicU64,
    /// It gets no more calls, and will be replaced.
    pub(super) retired: AtomicBool,
    pub(super) commands: mpsc::UnboundedSender<KeeperCommand>,
    pub(super) end: watch::Receiver<Option<ProcessEnd>>,
}

/// A running process, as its keeper supervises it.
pub(super) struct WorkerProcess {
    pub(super) child: Child,
    /// Readable once the process has ended.
    pub(super) ended: AsyncFd<Arc<OwnedFd>>,
    pub(super) log: ProcessLog,
    pub(super) commands: mpsc::UnboundedReceiver<KeeperCommand>,
    pub(super) end: watch::Sender<Option<ProcessEnd>>,
}

/// Why the exchange with a process failed.
pub(super) enum ExchangeError {
    /// The call did not reach the process.
    NotSent,
    /// The process closed its socket.
    Closed,
    /// The process sent an invalid reply.
    Invalid(Error),
}

/// Starts a process. Call it on the keeper's runtime.
pub(super) fn start(program: &Program, id: u64, name: Arc<str>) -> Result<(Worker, WorkerProcess)> {
    let python = program.python.display();
    spawn(program, id, name).map_err(|e| {
        let message = format!(
            "{python} cannot be started: {e}; select another interpreter with the setting `python`"
        );
        Error::new(Code::FailedPrecondition, message).with_source(e)
    })
}

fn spawn(program: &Program, id: u64, name: Arc<str>) -> io::Result<(Worker, WorkerProcess)> {
    let (socket, child_socket) = UnixStream::pair()?;
    socket.set_nonblocking(true)?;
    let mut memory = os::memory_file()?;
    memory.write_all(program.text.as_bytes())?;
    let (output, child_output) = io::pipe()?;
    // No code runs between fork and exec, so the standard library need not copy this process's page
    // tables: with gigabytes of models in memory, that would take tens of milliseconds.
    let child = Command::new(&program.python)
        .args(["-c", RUN_MEMORY_FILE, &*name])
        .stdin(OwnedFd::from(child_socket))
        .stdout(memory.try_clone()?)
        .stderr(child_output)
        .process_group(0)
        .spawn()?;
    let mut unkept = UnkeptChild(Some(child));
    let ended = os::await_readable(&Arc::new(os::process_descriptor(unkept.id())?))?;
    let log = ProcessLog::new(Arc::clone(&name), output.into())?;
    let (commands, received_commands) = mpsc::unbounded_channel();
    let (end, received_end) = watch::channel(None);
    let worker = Worker {
        id,
        name,
        socket: Arc::new(socket),
        memory,
        uses_memory: AtomicBool::new(false),
        lines: log.counter(),
        lines_before_call: AtomicU64::new(0),
        replies: AtomicU64::new(0),
        retired: AtomicBool::new(false),
        commands,
        end: received_end,
    };
    let child = unkept.0.take().ok_or(io::ErrorKind::NotFound)?;
    Ok((worker, WorkerProcess { child, ended, log, commands: received_commands, end }))
}

/// A child process without a keeper; it is killed if it never gets one.
struct UnkeptChild(Option<Child>);

impl UnkeptChild {
    fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }
}

impl Drop for UnkeptChild {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            os::kill_process_group(child.id());
            let _ = child.wait();
        }
    }
}

impl Worker {
    /// Closes the socket, on which the process exits as soon as it waits for a call.
    pub(super) fn close(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Registers the socket with the caller's runtime for one call, so that the reply wakes no other
    /// thread.
    pub(super) fn channel(&self) -> io::Result<WorkerChannel<'_>> {
        Ok(WorkerChannel { worker: self, socket: os::await_readable(&self.socket)? })
    }
}

/// The connection to a process, for one call.
pub(super) struct WorkerChannel<'w> {
    worker: &'w Worker,
    socket: AsyncFd<Arc<UnixStream>>,
}

impl WorkerChannel<'_> {
    /// Sends a call of the function `kind`.
    pub(super) async fn send(
        &self,
        kind: u8,
        fields: &[Option<&str>],
        body: &[u8],
    ) -> Result<(), ExchangeError> {
        let worker = self.worker;
        worker.lines_before_call.store(worker.lines.load(Relaxed), Relaxed);
        let (frame, in_memory) = wire::encode(kind, fields, body);
        if in_memory {
            worker.memory.write_all_at(body, 0).map_err(|_| ExchangeError::NotSent)?;
            worker.uses_memory.store(true, Relaxed);
        }
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match (&*worker.socket).write(rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                // Only an extremely large header does not fit into the socket at once. That alone is
                // no reason to watch for writability.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(FULL_SOCKET_WAIT).await;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // An incomplete call has no effect on the process.
                Err(_) => return Err(ExchangeError::NotSent),
            }
        }
        Ok(())
    }

    /// Waits for the reply. It may be cancelled, but then not be called again.
    pub(super) async fn receive(&self) -> Result<Frame, ExchangeError> {
        let mut bytes = vec![0; FIRST_READ];
        let mut received = 0;
        let prefix = loop {
            received += self.read(bytes.get_mut(received..).unwrap_or_default()).await?;
            let start = bytes.get(..received).unwrap_or_default();
            let Some(prefix) = FramePrefix::read(start).map_err(ExchangeError::Invalid)? else {
                continue;
            };
            let size = prefix.frame_size();
            if received > size {
                let error = Error::internal("data follows the reply");
                return Err(ExchangeError::Invalid(error));
            }
            bytes.resize(size, 0);
            while received < size {
                received += self.read(bytes.get_mut(received..).unwrap_or_default()).await?;
            }
            break prefix;
        };
        let body = prefix.body_in_memory().map(|size| self.read_memory(size)).transpose()?;
        if body.is_some() || self.worker.uses_memory.swap(false, Relaxed) {
            self.shrink_memory();
        }
        self.worker.replies.fetch_add(1, Relaxed);
        prefix.decode(bytes, body).map_err(ExchangeError::Invalid)
    }

    /// Reads a body of `size` bytes from the memory file.
    fn read_memory(&self, size: usize) -> Result<Vec<u8>, ExchangeError> {
        let memory = &self.worker.memory;
        // The size comes from the process, which may be wrong; the file's length does not.
        let length = memory.metadata().map_or(0, |metadata| metadata.len());
        let mut body = vec![0; size.min(usize::try_from(length).unwrap_or(0))];
        match memory.read_exact_at(&mut body, 0) {
            Ok(()) if body.len() == size => Ok(body),
            _ => Err(ExchangeError::Invalid(Error::internal("the reply is incomplete"))),
        }
    }

    fn shrink_memory(&self) {
        let memory = &self.worker.memory;
        if memory.metadata().is_ok_and(|metadata| metadata.len() > MAX_IDLE_MEMORY) {
            let _ = memory.set_len(0);
        }
    }

    /// Reads available bytes, at least one.
    async fn read(&self, into: &mut [u8]) -> Result<usize, ExchangeError> {
        loop {
            // A read before this would mostly find nothing.
            let mut ready = self.socket.readable().await.map_err(|_| ExchangeError::Closed)?;
            match (&*self.worker.socket).read(into) {
                Ok(0) => return Err(ExchangeError::Closed),
                Ok(count) => return Ok(count),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready_matching(Ready::READABLE);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(ExchangeError::Closed),
            }
        }
    }
}

/// Describes the exit of a process.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, Some(number)) => {
            format!("was killed by signal {number} ({})", signal_name(number))
        }
        (None, None) => format!("ended: {status}"),
    }
}

fn signal_name(number: i32) -> &'static str {
    match number {
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGHUP => "SIGHUP",
        libc::SIGILL => "SIGILL",
        libc::SIGINT => "SIGINT",
        libc::SIGKILL => "SIGKILL; by hand, or out of memory",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGSYS => "SIGSYS",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        _ => "see `kill -l`",
    }
}
