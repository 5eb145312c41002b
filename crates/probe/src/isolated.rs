//! The server's side of an isolated model: runs, and the supervision of its process.

use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tensorserve_platform::states::{FileStates, Strictness};
use tensorserve_platform::{
    EndedProcess, Executable, LoadOptions, Loaded, OpRun, Platform, Profiled, RunOptions,
};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Code, Error, Result};

use crate::descriptors::MOST_FILES;
use crate::isolation::{Channel, ChannelFrame, OpRunDescription, VersionDescription, kind, reply};
use crate::link::HostLink;
use crate::messages::ProbeRequest;

/// The pause before the first start after an end; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A process that has lived this long is started again after the first pause.
const STABLE: Duration = Duration::from_secs(60);
/// How long a failed run waits to learn how the process has ended.
const LONGEST_END: Duration = Duration::from_secs(2);
/// How much longer than its time limit a run may take, in which the process may end it by itself, before the
/// process is killed.
const GRACE: Duration = Duration::from_secs(1);

/// Starts the process of a version, which loads it.
///
/// # Errors
/// What the load reports; [`Code::FailedPrecondition`] if the process ends or takes too long.
pub(crate) fn load(
    link: &Arc<HostLink>,
    platform: &Platform,
    folder: &Path,
    options: &LoadOptions,
    model: &str,
) -> Result<Loaded> {
    let request = link.request(platform.info.name, folder, options).map_err(cannot_start)?;
    let files = FileStates::of(&request.folder);
    let (process, description, defaults) = ModelProcess::start(link, &request)?;
    let signatures = description.signatures(&defaults).map_err(cannot_start)?;
    let (bytes, marshalled_hooks) = (description.bytes, description.marshalled_hooks);
    let external_ops = match description.is_external {
        true => platform.loader.inspect(folder, options)?.external_ops,
        false => Vec::new(),
    };
    let isolated = Arc::new(Isolated {
        model: model.to_owned(),
        state: Mutex::new(ProcessState::Running(Arc::new(process))),
        changed: Condvar::new(),
        cpu_nanos: AtomicU64::new(0),
        prepares: AtomicBool::new(false),
    });
    let supervisor = Supervisor {
        isolated: Arc::clone(&isolated),
        link: Arc::clone(link),
        request,
        description,
        files,
    };
    let executable = Arc::new(IsolatedExecutable(isolated));
    let spawned = thread::Builder::new().name("isolated".to_owned()).spawn(|| supervisor.run());
    spawned.map_err(cannot_start)?;
    Ok(Loaded { signatures, executable, bytes, marshalled_hooks, external_ops })
}

fn cannot_start(error: io::Error) -> Error {
    let why = format!("the process of the isolated model cannot start: {error}");
    Error::unavailable(why).with_source(error)
}

/// The process of a model. It ends when this value is dropped.
struct ModelProcess {
    control: Channel,
    run_channels: Mutex<Option<Vec<Channel>>>,
    freed: Condvar,
    started: Instant,
}

impl ModelProcess {
    /// Starts a process and waits until it has loaded the version: its description and default values.
    fn start(
        link: &HostLink,
        request: &ProbeRequest,
    ) -> Result<(Self, VersionDescription, Vec<Tensor>)> {
        let control = send_request(link, request).map_err(cannot_start)?;
        let (process, timeout) = (control, link.timeout());
        let socket = &process.control.socket;
        socket.set_read_timeout(Some(timeout)).map_err(cannot_start)?;
        let report = match process.control.receive() {
            Ok(report) => report,
            Err(error) if is_timeout(&error) => {
                return Err(ended(&format!("did not end within {timeout:?}")));
            }
            Err(error) => return Err(cannot_start(error)),
        };
        process.control.socket.set_read_timeout(None).map_err(cannot_start)?;
        match report.kind {
            kind::LOADED => {
                let description = serde_json::from_str(&report.text).map_err(io::Error::other);
                Ok((process, description.map_err(cannot_start)?, report.tensors))
            }
            kind::ENDED => Err(ended(&report.text)),
            _ => Err(failure(&report)),
        }
    }

    /// A channel for one run, when one is free; none once the process has ended, or at `deadline`.
    fn take_channel(&self, deadline: Option<Instant>) -> ChannelWait {
        let mut run_channels = lock(&self.run_channels);
        loop {
            let Some(free) = run_channels.as_mut() else {
                return ChannelWait::Lost;
            };
            if let Some(channel) = free.pop() {
                return ChannelWait::Free(channel);
            }
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            run_channels = match left {
                None => self.freed.wait(run_channels).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return ChannelWait::Late,
                Some(left) => {
                    let waited = self.freed.wait_timeout(run_channels, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn give_back(&self, channel: Channel) {
        if let Some(run_channels) = &mut *lock(&self.run_channels) {
            run_channels.push(channel);
        }
        self.freed.notify_one();
    }

    /// Ends the process, and the waits for its run channels.
    fn end(&self) {
        *lock(&self.run_channels) = None;
        self.freed.notify_all();
        let _ = self.control.socket.shutdown(Shutdown::Both);
    }
}

impl Drop for ModelProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a run gets that asks for a run channel.
enum ChannelWait {
    Free(Channel),
    /// The process has ended.
    Lost,
    /// Other runs have all run channels until the deadline.
    Late,
}

/// Sends the host a request with one end of each channel, and keeps the other ends.
fn send_request(link: &HostLink, request: &ProbeRequest) -> io::Result<ModelProcess> {
    let cores = thread::available_parallelism().map_or(2, std::num::NonZero::get);
    // Runs come from the threads of connections and of batches, and some wait for others.
    let count = (4 * cores).min(MOST_FILES / 2 - 1);
    let (control, theirs) = Channel::pair()?;
    let (mut run_channels, mut others) = (Vec::new(), vec![theirs]);
    for _ in 0..count {
        let (channel, theirs) = Channel::pair()?;
        run_channels.push(channel);
        others.push(theirs);
    }
    let mut files: Vec<BorrowedFd<'_>> = Vec::new();
    for Channel { socket, memory } in &others {
        files.extend([UnixStream::as_fd(socket), File::as_fd(memory)]);
    }
    link.send(request, &files)?;
    let (run_channels, freed) = (Mutex::new(Some(run_channels)), Condvar::new());
    Ok(ModelProcess { control, run_channels, freed, started: Instant::now() })
}

fn ended(how: &str) -> Error {
    let why = format!("a child process {how} while loading it or running it on synthetic inputs");
    Error::new(Code::FailedPrecondition, why + " (isolation)").with_source(EndedProcess)
}

fn failure(frame: &ChannelFrame) -> Error {
    let [code, ..] = frame.numbers;
    let code = Code::from_grpc(i32::try_from(code).unwrap_or(0));
    Error::new(code, frame.text.clone())
}

fn late(why: &str) -> Error {
    Error::new(Code::DeadlineExceeded, format!("the request's deadline passed: {why}"))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// A version whose runs take place in its process.
struct IsolatedExecutable(Arc<Isolated>);

/// What runs and the supervisor share.
struct Isolated {
    /// The model and the version, for messages.
    model: String,
    state: Mutex<ProcessState>,
    changed: Condvar,
    /// The CPU time of all runs.
    cpu_nanos: AtomicU64,
    /// Whether the process prepared itself to run quicker, after the latest run.
    prepares: AtomicBool,
}

enum ProcessState {
    Running(Arc<ModelProcess>),
    /// The process is being started again.
    Ended {
        how: String,
        /// Why the last attempt has failed.
        why_not: Option<String>,
    },
    /// The version is unloaded.
    Unloaded,
}

impl Isolated {
    fn process(&self) -> Result<Arc<ModelProcess>> {
        match &*lock(&self.state) {
            ProcessState::Running(process) => Ok(Arc::clone(process)),
            ProcessState::Ended { how, why_not } => Err(self.unavailable(how, why_not.as_deref())),
            ProcessState::Unloaded => Err(self.unavailable("has ended", None)),
        }
    }

    fn unavailable(&self, how: &str, why_not: Option<&str>) -> Error {
        let model = &self.model;
        Error::unavailable(match why_not {
            None => format!("the process of {model} {how}; it is started again"),
            Some(why) => format!("the process of {model} {how} and cannot start again: {why}"),
        })
    }

    /// Why no run is possible until something changes.
    fn obstacle(&self) -> Option<Error> {
        match &*lock(&self.state) {
            ProcessState::Ended { how, why_not: Some(why) } => {
                Some(self.unavailable(how, Some(why)))
            }
            ProcessState::Ended { why_not: None, .. }
            | ProcessState::Running(_)
            | ProcessState::Unloaded => None,
        }
    }

    /// Runs a frame in the process.
    fn run(&self, frame: &ChannelFrame, timeout: Option<Duration>) -> Result<ChannelFrame> {
        let process = self.process()?;
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let channel = match process.take_channel(deadline) {
            ChannelWait::Free(channel) => channel,
            ChannelWait::Lost => return Err(self.lost(&process)),
            ChannelWait::Late => {
                return Err(late("other runs kept the model's process busy until then"));
            }
        };
        let limit = timeout.map(|timeout| timeout.saturating_add(GRACE));
        let answer = match exchange(&channel, frame, limit) {
            Ok(answer) => answer,
            Err(error) if is_timeout(&error) => {
                let model = &self.model;
                log::error!("{model}: its process does not answer at a deadline, and is killed");
                process.end();
                return Err(late("its process did not answer, and was killed"));
            }
            Err(_) => {
                // No run channel of a process that sends nonsense is of use.
                drop(channel);
                let error = self.lost(&process);
                process.end();
                return Err(error);
            }
        };
        channel.shrink(frame);
        channel.shrink(&answer);
        process.give_back(channel);
        if answer.kind == reply::DONE { Ok(answer) } else { Err(failure(&answer)) }
    }

    /// The error of a run whose process has ended. Waits for the supervisor to learn how.
    fn lost(&self, process: &Arc<ModelProcess>) -> Error {
        let deadline = Instant::now() + LONGEST_END;
        let mut state = lock(&self.state);
        while let ProcessState::Running(current) = &*state
            && Arc::ptr_eq(current, process)
        {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.unavailable("does not answer", None);
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        match &*state {
            ProcessState::Ended { how, why_not } => self.unavailable(how, why_not.as_deref()),
            ProcessState::Running(_) | ProcessState::Unloaded => {
                self.unavailable("has ended", None)
            }
        }
    }
}

/// Sends a frame and waits for the answer, without an end if there is no `limit`. A process that is stopped
/// reads nothing, either.
fn exchange(
    channel: &Channel,
    frame: &ChannelFrame,
    limit: Option<Duration>,
) -> io::Result<ChannelFrame> {
    if limit.is_some() {
        channel.socket.set_write_timeout(limit)?;
        channel.socket.set_read_timeout(limit)?;
    }
    channel.send(frame)?;
    let answer = channel.receive()?;
    if limit.is_some() {
        channel.socket.set_write_timeout(None)?;
        channel.socket.set_read_timeout(None)?;
    }
    Ok(answer)
}

fn request(kind: u32, signature: usize, inputs: &[Tensor], options: RunOptions) -> ChannelFrame {
    let timeout = options.timeout.map_or(0, |timeout| timeout.as_nanos().max(1));
    let timeout = u64::try_from(timeout).unwrap_or(u64::MAX);
    let numbers = [signature as u64, options.threads as u64, timeout];
    ChannelFrame { kind, numbers, text: String::new(), tensors: inputs.to_vec() }
}

impl Executable for IsolatedExecutable {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let frame = request(kind::RUN, signature, inputs, options);
        let answer = self.0.run(&frame, options.timeout)?;
        let [nanos, prepares, _] = answer.numbers;
        self.0.cpu_nanos.fetch_add(nanos, Ordering::Relaxed);
        self.0.prepares.store(prepares != 0, Ordering::Relaxed);
        Ok(answer.tensors)
    }

    fn prepares(&self) -> bool {
        self.0.prepares.load(Ordering::Relaxed)
    }

    fn other_cpu_time(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.0.cpu_nanos.load(Ordering::Relaxed)))
    }

    /// Its process can be stopped from outside.
    fn waits(&self) -> bool {
        true
    }

    fn obstacle(&self) -> Option<Error> {
        self.0.obstacle()
    }

    fn profile(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<Profiled> {
        let frame = request(kind::PROFILE, signature, inputs, options);
        let answer = self.0.run(&frame, options.timeout)?;
        let runs: Vec<OpRunDescription> = serde_json::from_str(&answer.text)
            .map_err(|error| Error::internal("the profile is invalid").with_source(error))?;
        Ok((answer.tensors, runs.into_iter().map(OpRun::from).collect()))
    }
}

impl Drop for IsolatedExecutable {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *lock(&self.0.state), ProcessState::Unloaded);
        if let ProcessState::Running(process) = state {
            process.end();
        }
        self.0.changed.notify_all();
    }
}

/// Starts the process of a version again when it ends.
struct Supervisor {
    isolated: Arc<Isolated>,
    link: Arc<HostLink>,
    request: ProbeRequest,
    /// What the version was when it was loaded.
    description: VersionDescription,
    files: FileStates,
}

impl Supervisor {
    fn run(self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let Ok(process) = self.isolated.process() else {
                return;
            };
            let how = match process.control.receive() {
                Ok(frame) => frame.text,
                Err(_) => "has ended".to_owned(),
            };
            if process.started.elapsed() >= STABLE {
                pause = FIRST_PAUSE;
            }
            if !self.set(ProcessState::Ended { how: how.clone(), why_not: None }) {
                return;
            }
            process.end();
            let model = &self.isolated.model;
            log::error!("{model}: its process {how}; runs there fail until it runs again");
            loop {
                if !self.sleep(pause) {
                    return;
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
                match self.start() {
                    Ok(process) => {
                        log::info!("{model}: its process runs again");
                        if !self.set(ProcessState::Running(Arc::new(process))) {
                            return;
                        }
                        break;
                    }
                    Err(error) => {
                        let why = error.message().to_owned();
                        log::error!("{model}: its process cannot start again: {why}");
                        if !self.set(ProcessState::Ended { how: how.clone(), why_not: Some(why) }) {
                            return;
                        }
                    }
                }
            }
        }
    }

    fn start(&self) -> Result<ModelProcess> {
        let (process, description, _) = ModelProcess::start(&self.link, &self.request)?;
        let why = "its files have changed since it was loaded; reload the model";
        let after = FileStates::of(&self.request.folder);
        // Whoever has asked it before would get answers of another version.
        if let Some(change) = self.files.change(&after, Strictness::Content) {
            return Err(Error::precondition(format!("{why} ({change})")));
        }
        match description == self.description {
            true => Ok(process),
            false => Err(Error::precondition(why)),
        }
    }

    /// Changes the state, unless the version is unloaded.
    fn set(&self, new: ProcessState) -> bool {
        let mut state = lock(&self.isolated.state);
        if matches!(*state, ProcessState::Unloaded) {
            return false;
        }
        *state = new;
        self.isolated.changed.notify_all();
        true
    }

    /// Waits; false as soon as the version is unloaded.
    fn sleep(&self, pause: Duration) -> bool {
        let state = lock(&self.isolated.state);
        let is_loaded = |state: &mut ProcessState| !matches!(state, ProcessState::Unloaded);
        let waited = self.isolated.changed.wait_timeout_while(state, pause, is_loaded);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        is_loaded(&mut state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
