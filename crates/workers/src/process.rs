//! One worker process: how it is started, how a call goes to it and back, how it has ended.

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

use super::Program;
use super::log::Log;
use super::wire::{self, Frame, Prefix};
use tensorserve_os as os;
use tensorserve_tensor::error::{Code, Error, Result};

/// A file in memory that has grown beyond this is made small again after a call.
const MEMORY_KEPT: u64 = 4 << 20;

/// What a frame is read into at first.
const FIRST_READ: usize = 8 << 10;

/// Python that runs what is in the file in memory. As a script that file would have a name, and be
/// opened again under it by whoever prints a traceback.
const RUN_MEMORY: &str = "import os; exec(os.pread(1, os.fstat(1).st_size, 0))";

/// What its keeper is told about a process.
pub(super) enum Order {
    /// Kill it, for this reason.
    Kill(String),
    /// Let it end.
    End,
    /// It has closed its socket, or can not be reached: it has to end.
    Finish,
}

/// How a process has ended.
#[derive(Clone, Debug)]
pub(super) struct End {
    /// What happened: `was killed by signal 9 (SIGKILL)`.
    pub(super) what: String,
    /// What it printed last.
    pub(super) last_lines: String,
}

/// A running process, as those see it who call it. One call at a time.
pub(super) struct Worker {
    pub(super) id: u64,
    pub(super) name: Arc<str>,
    socket: Arc<UnixStream>,
    memory: File,
    /// Whether the call under way has put anything into that.
    uses_memory: AtomicBool,
    /// Lines it has printed.
    pub(super) lines: Arc<AtomicU64>,
    /// Lines it had printed when the call under way began.
    pub(super) lines_before: AtomicU64,
    /// Calls it has answered.
    pub(super) answered: AtomicU64,
    /// No more calls: it is to be replaced.
    pub(super) retired: AtomicBool,
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) end: watch::Receiver<Option<End>>,
}

/// The same, as its keeper sees it.
pub(super) struct Process {
    pub(super) child: Child,
    pub(super) ended: AsyncFd<Arc<OwnedFd>>,
    pub(super) log: Log,
    pub(super) orders: mpsc::UnboundedReceiver<Order>,
    pub(super) end: watch::Sender<Option<End>>,
}

/// Why a call has no answer.
pub(super) enum Broken {
    /// It did not reach the process.
    NotSent,
    /// The process closed its socket.
    Gone,
    /// It sent nonsense.
    Nonsense(Error),
}

/// Starts a process. To be called on the keeper's runtime.
pub(super) fn start(program: &Program, id: u64, name: Arc<str>) -> Result<(Worker, Process)> {
    let python = program.python.display();
    spawn(program, id, name).map_err(|e| {
        let message = format!(
            "{python} can not be started: {e}; the setting `python` names another interpreter"
        );
        Error::new(Code::FailedPrecondition, message).with_source(e)
    })
}

fn spawn(program: &Program, id: u64, name: Arc<str>) -> io::Result<(Worker, Process)> {
    let (socket, theirs) = UnixStream::pair()?;
    socket.set_nonblocking(true)?;
    let mut memory = os::memory_file()?;
    memory.write_all(program.text.as_bytes())?;
    let (printed, prints) = io::pipe()?;
    // Without code between fork and exec, so that the standard library need not copy this
    // process's page tables: with models of gigabytes in memory that takes tens of milliseconds.
    let child = Command::new(&program.python)
        .args(["-c", RUN_MEMORY, &*name])
        .stdin(OwnedFd::from(theirs))
        .stdout(memory.try_clone()?)
        .stderr(prints)
        .process_group(0)
        .spawn()?;
    let mut started = Started(Some(child));
    let ended = os::await_readable(&Arc::new(os::process_descriptor(started.id())?))?;
    let log = Log::new(Arc::clone(&name), printed.into())?;
    let (orders, their_orders) = mpsc::unbounded_channel();
    let (end, their_end) = watch::channel(None);
    let worker = Worker {
        id,
        name,
        socket: Arc::new(socket),
        memory,
        uses_memory: AtomicBool::new(false),
        lines: log.counter(),
        lines_before: AtomicU64::new(0),
        answered: AtomicU64::new(0),
        retired: AtomicBool::new(false),
        orders,
        end: their_end,
    };
    let child = started.0.take().ok_or(io::ErrorKind::NotFound)?;
    Ok((worker, Process { child, ended, log, orders: their_orders, end }))
}

/// A process that has no keeper yet: ended if it does not get one.
struct Started(Option<Child>);

impl Started {
    fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            os::kill_process_group(child.id());
            let _ = child.wait();
        }
    }
}

impl Worker {
    /// Lets it end: it sees the end of its socket once it waits for a call.
    pub(super) fn close(&self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// The socket, for whoever has the process for a call; on the runtime of the caller, so that
    /// no other thread need be woken for the answer.
    pub(super) fn line(&self) -> io::Result<Line<'_>> {
        Ok(Line { worker: self, socket: os::await_readable(&self.socket)? })
    }
}

/// A way to a process, for one call.
pub(super) struct Line<'w> {
    worker: &'w Worker,
    socket: AsyncFd<Arc<UnixStream>>,
}

impl Line<'_> {
    /// Sends a call.
    pub(super) async fn send(
        &self,
        kind: u8,
        fields: &[Option<&str>],
        body: &[u8],
    ) -> Result<(), Broken> {
        let worker = self.worker;
        worker.lines_before.store(worker.lines.load(Relaxed), Relaxed);
        let (frame, in_memory) = wire::encode(kind, fields, body);
        if in_memory {
            worker.memory.write_all_at(body, 0).map_err(|_| Broken::NotSent)?;
            worker.uses_memory.store(true, Relaxed);
        }
        let mut rest = &frame[..];
        while !rest.is_empty() {
            match (&*worker.socket).write(rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                // Only a head of unheard-of size does not fit the socket at once; for that alone it
                // is not watched.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Whatever has arrived is no whole call.
                Err(_) => return Err(Broken::NotSent),
            }
        }
        Ok(())
    }

    /// Waits for the answer. Can be dropped while it waits, and then not be called again.
    pub(super) async fn receive(&self) -> Result<Frame, Broken> {
        let mut bytes = vec![0; FIRST_READ];
        let mut have = 0;
        let prefix = loop {
            have += self.read(bytes.get_mut(have..).unwrap_or_default()).await?;
            let there = bytes.get(..have).unwrap_or_default();
            let Some(prefix) = Prefix::read(there).map_err(Broken::Nonsense)? else {
                continue;
            };
            let whole = prefix.frame();
            if have > whole {
                return Err(Broken::Nonsense(Error::internal("more than an answer was sent")));
            }
            bytes.resize(whole, 0);
            while have < whole {
                have += self.read(bytes.get_mut(have..).unwrap_or_default()).await?;
            }
            break prefix;
        };
        let body = prefix.in_memory().map(|size| self.memory(size)).transpose()?;
        if body.is_some() || self.worker.uses_memory.swap(false, Relaxed) {
            self.shrink_memory();
        }
        self.worker.answered.fetch_add(1, Relaxed);
        prefix.finish(bytes, body).map_err(Broken::Nonsense)
    }

    fn memory(&self, size: usize) -> Result<Vec<u8>, Broken> {
        let memory = &self.worker.memory;
        // The size is the process's word; the file's size is the kernel's.
        let length = memory.metadata().map_or(0, |metadata| metadata.len());
        let mut body = vec![0; size.min(usize::try_from(length).unwrap_or(0))];
        match memory.read_exact_at(&mut body, 0) {
            Ok(()) if body.len() == size => Ok(body),
            _ => Err(Broken::Nonsense(Error::internal("an answer is not all there"))),
        }
    }

    fn shrink_memory(&self) {
        let memory = &self.worker.memory;
        if memory.metadata().is_ok_and(|metadata| metadata.len() > MEMORY_KEPT) {
            let _ = memory.set_len(0);
        }
    }

    /// Reads what is there, at least one byte.
    async fn read(&self, into: &mut [u8]) -> Result<usize, Broken> {
        loop {
            // Nothing is there yet: asking first would be in vain.
            let mut ready = self.socket.readable().await.map_err(|_| Broken::Gone)?;
            match (&*self.worker.socket).read(into) {
                Ok(0) => return Err(Broken::Gone),
                Ok(count) => return Ok(count),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    ready.clear_ready_matching(Ready::READABLE);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Broken::Gone),
            }
        }
    }
}

/// What a process's exit means, in words.
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
        libc::SIGKILL => "SIGKILL; by hand, or because memory ended",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGSYS => "SIGSYS",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        _ => "see `kill -l`",
    }
}
