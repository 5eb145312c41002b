//! One worker process: its start, calls to it, and its end.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, watch};

use super::connection::WorkerConnection;
use super::log::ProcessLog;
use super::{WorkerProgram, leave_directory};
use tensorserve_os as os;
use tensorserve_tensor::error::{Code, Error, Result};

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

/// A running process, as its callers use it. Each of its connections serves one call at a time.
pub(super) struct Worker {
    pub(super) id: u64,
    pub(super) name: Arc<str>,
    /// The socket through which the process gets its connections.
    control: Arc<UnixStream>,
    /// The socket of the connection that the main thread serves.
    first_connection: Arc<UnixStream>,
    /// The number of lines that it has printed.
    pub(super) lines: Arc<AtomicU64>,
    /// That number when it got a call while it had none.
    pub(super) lines_before_call: AtomicU64,
    /// The number of replies that it has sent; the first reports that it is ready.
    pub(super) replies: Arc<AtomicU64>,
    /// The process gets no more calls, and is being replaced.
    pub(super) retired: AtomicBool,
    /// Notified when it is retired.
    pub(super) replacement: Notify,
    pub(super) commands: mpsc::UnboundedSender<KeeperCommand>,
    pub(super) end: watch::Receiver<Option<ProcessEnd>>,
}

/// A running process, as its keeper supervises it.
pub(super) struct WorkerProcess {
    pub(super) child: Child,
    /// Readable once the process has ended.
    pub(super) ended: AsyncFd<Arc<OwnedFd>>,
    pub(super) log: ProcessLog,
    pub(super) offers: Offers,
    pub(super) commands: mpsc::UnboundedReceiver<KeeperCommand>,
    pub(super) end: watch::Sender<Option<ProcessEnd>>,
}

/// A process that has been started, with the connection of its main thread.
pub(super) type StartedProcess = (Worker, WorkerConnection, WorkerProcess);

/// Starts a process. Call it on the keeper's runtime.
pub(super) fn start(program: &WorkerProgram, id: u64, name: Arc<str>) -> Result<StartedProcess> {
    let python = program.python.display();
    spawn(program, id, name).map_err(|e| {
        let message = format!(
            "{python} cannot be started: {e}; select another interpreter with the setting `{}`",
            program.subject.interpreter
        );
        Error::new(Code::FailedPrecondition, message).with_source(e)
    })
}

fn spawn(program: &WorkerProgram, id: u64, name: Arc<str>) -> io::Result<StartedProcess> {
    let (control, child_control) = UnixStream::pair()?;
    control.set_nonblocking(true)?;
    let replies = Arc::default();
    let connection = WorkerConnection::open(&control, &replies)?;
    let mut program_file = os::memory_file()?;
    program_file.write_all(program.text.as_bytes())?;
    let (output, child_output) = io::pipe()?;
    // No code runs between fork and exec, so the standard library need not copy this process's page
    // tables: with gigabytes of models in memory, that would take tens of milliseconds.
    let child = Command::new(&program.python)
        .args(["-c", RUN_MEMORY_FILE, &*name])
        .envs(program.variables.iter().map(|(name, value)| (name, value)))
        .stdin(OwnedFd::from(child_control))
        .stdout(program_file)
        .stderr(child_output)
        .process_group(0)
        .spawn()?;
    let mut unkept = UnkeptChild(Some(child));
    let control = Arc::new(control);
    let offers = Offers(os::await_readable(&control)?);
    let ended = os::await_readable(&Arc::new(os::process_descriptor(unkept.id())?))?;
    let log = ProcessLog::new(Arc::clone(&name), output.into())?;
    let (commands, received_commands) = mpsc::unbounded_channel();
    let (end, received_end) = watch::channel(None);
    let worker = Worker {
        id,
        name,
        control,
        first_connection: Arc::clone(&connection.socket),
        lines: log.counter(),
        lines_before_call: AtomicU64::new(0),
        replies,
        retired: AtomicBool::new(false),
        replacement: Notify::new(),
        commands,
        end: received_end,
    };
    let child = unkept.0.take().ok_or(io::ErrorKind::NotFound)?;
    Ok((
        worker,
        connection,
        WorkerProcess { child, ended, log, offers, commands: received_commands, end },
    ))
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

/// The control socket, on which a process offers to take another call.
pub(super) struct Offers(AsyncFd<Arc<UnixStream>>);

impl Offers {
    /// Waits for the next offer. Cancel-safe.
    pub(super) async fn next(&self) {
        let mut bytes = [0; 64];
        loop {
            let Ok(mut ready) = self.0.readable().await else {
                return std::future::pending().await;
            };
            match (&**self.0.get_ref()).read(&mut bytes) {
                Ok(0) => return std::future::pending().await,
                Ok(_) => return,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return std::future::pending().await,
            }
        }
    }
}

impl Worker {
    /// Closes the sockets, on which the process exits as soon as its main thread waits for a call.
    pub(super) fn close(&self) {
        let _ = self.control.shutdown(std::net::Shutdown::Both);
        let _ = self.first_connection.shutdown(std::net::Shutdown::Both);
    }

    /// Opens another connection; its thread begins with the calls that it finds there.
    pub(super) fn open_connection(&self) -> io::Result<WorkerConnection> {
        WorkerConnection::open(&self.control, &self.replies)
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
