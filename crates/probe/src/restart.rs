//! Starts the probe host again when it ends: a fork of the server would lack the threads that it has by then, so the
//! program is started anew, and opens the same libraries with the same settings.

use std::io::{self, ErrorKind, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::{self, Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tensorserve_os::fork::{ForkedProcess, empty_stdin, end_with, fork, wait_for_joined_threads};
use tensorserve_os::lower_priority;
use tensorserve_platform::Platforms;
use tensorserve_tensor::error::Result;

use crate::host::{self, LONGEST_MESSAGE};
use crate::messages::ProbeReport;
use crate::monitor::describe;
use crate::state::{HostState, LONGEST_START, LinkState, lock};
use crate::{HOST_COMMAND, ProbeConfig};

/// How often the supervisor looks whether the host still runs.
const HOST_CHECK: Duration = Duration::from_millis(250);
/// The pause before the first start after an end; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A host that has lived this long is started again after the first pause.
const STABLE: Duration = Duration::from_secs(60);

/// The probe host. It is killed when this value is dropped.
pub(crate) enum HostProcess {
    Forked(ForkedProcess),
    Started(Child),
}

/// The process, which the link and its supervisor share: `None` once the link is gone.
pub(crate) type SharedHost = Arc<Mutex<Option<HostProcess>>>;

impl HostProcess {
    fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match self {
            HostProcess::Forked(process) => process.try_wait(),
            HostProcess::Started(child) => child.try_wait(),
        }
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        if let HostProcess::Started(child) = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a host that is started anew is told first.
#[derive(Serialize, Deserialize)]
struct HostStart {
    /// The process of the server.
    server: u32,
    config: ProbeConfig,
    /// The settings of the platforms, for whoever creates them.
    settings: String,
    /// The platforms whose libraries the server has opened.
    open: Vec<String>,
}

/// What it answers: whether it can fork.
#[derive(Serialize, Deserialize)]
enum HostAnswer {
    Ready,
    Failed(String),
}

/// How to start a host anew.
pub(crate) struct HostRestart {
    platforms: Platforms,
    config: ProbeConfig,
    settings: String,
}

impl HostRestart {
    pub(crate) fn new(platforms: Platforms, config: ProbeConfig, settings: String) -> Self {
        HostRestart { platforms, config, settings }
    }

    /// Starts a host and waits until it can fork.
    fn start(&self) -> io::Result<(HostProcess, UnixDatagram)> {
        let (socket, hosts) = UnixDatagram::pair()?;
        // The program that runs, also if its file was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tensorserve").arg(HOST_COMMAND).stdin(Stdio::from(OwnedFd::from(hosts)));
        let process = HostProcess::Started(command.spawn()?);
        // The other end is only in the host from now on.
        drop(command);
        let open = self.platforms.iter().filter(|platform| platform.runtime.library().is_some());
        let start = HostStart {
            server: process::id(),
            config: self.config.clone(),
            settings: self.settings.clone(),
            open: open.map(|platform| platform.info.name.to_owned()).collect(),
        };
        socket.send(&serde_json::to_vec(&start)?)?;
        socket.set_read_timeout(Some(LONGEST_START))?;
        let mut answer = vec![0; LONGEST_MESSAGE];
        let length = socket.recv(&mut answer)?;
        match serde_json::from_slice(answer.get(..length).unwrap_or_default())? {
            HostAnswer::Ready => Ok((process, socket)),
            HostAnswer::Failed(why) => Err(io::Error::other(why)),
        }
    }
}

/// What a host does that is started anew. `build` creates the platforms from their settings. Returns the exit status.
pub(crate) fn run(build: impl FnOnce(&str) -> Result<Platforms>) -> i32 {
    let taken = stdin().as_fd().try_clone_to_owned().map(UnixDatagram::from);
    let Ok(socket) = taken.and_then(|socket| empty_stdin().map(|()| socket)) else {
        return 1;
    };
    let mut message = vec![0; LONGEST_MESSAGE];
    let started = socket.recv(&mut message).ok().and_then(|length| {
        serde_json::from_slice::<HostStart>(message.get(..length).unwrap_or_default()).ok()
    });
    let Some(start) = started else {
        return 1;
    };
    end_with(start.server);
    let platforms = prepare(&start, build);
    let answer = match &platforms {
        Ok(_) => HostAnswer::Ready,
        Err(why) => HostAnswer::Failed(why.clone()),
    };
    let told = serde_json::to_vec(&answer).map_err(io::Error::other);
    match (told.and_then(|answer| socket.send(&answer)), platforms) {
        (Ok(_), Ok(platforms)) => host::serve(&socket, &platforms, &start.config),
        _ => 1,
    }
}

/// The platforms, with their libraries, in a process that can fork.
fn prepare(
    start: &HostStart,
    build: impl FnOnce(&str) -> Result<Platforms>,
) -> Result<Platforms, String> {
    let platforms = build(&start.settings).map_err(|error| error.to_string())?;
    open_libraries(&platforms, &start.open)?;
    let tried = fork(|| 0).and_then(|mut child| child.wait());
    tried.map(|_| platforms).map_err(|error| error.to_string())
}

/// Opens the libraries of the platforms that `open` names, which takes a core for about a second: a thread of low
/// priority does it, as the server answers requests meanwhile. It has ended before the process forks.
fn open_libraries(platforms: &Platforms, open: &[String]) -> Result<(), String> {
    thread::scope(|scope| {
        let opener = thread::Builder::new().name("libraries".to_owned());
        let opener = opener.spawn_scoped(scope, || {
            lower_priority();
            for platform in
                platforms.iter().filter(|it| open.iter().any(|open| open == it.info.name))
            {
                platform.runtime.describe().map_err(|error| error.to_string())?;
            }
            Ok(())
        });
        let opener = opener.map_err(|error| error.to_string())?;
        opener.join().unwrap_or_else(|_| Err("opening the libraries panicked".to_owned()))
    })?;
    wait_for_joined_threads();
    Ok(())
}

/// Passes the reports of a host on, and starts it again when it ends.
pub(crate) struct Supervisor {
    link: Weak<LinkState>,
    process: SharedHost,
    socket: Arc<UnixDatagram>,
    started: Instant,
    restart: HostRestart,
}

impl Supervisor {
    pub(crate) fn new(
        link: Weak<LinkState>,
        process: SharedHost,
        socket: Arc<UnixDatagram>,
        restart: HostRestart,
    ) -> Self {
        Supervisor { link, process, socket, started: Instant::now(), restart }
    }

    /// Starts its thread, which ends with the link. The kernel ends a host with the thread that has started it.
    pub(crate) fn spawn(self) -> io::Result<()> {
        thread::Builder::new().name("probe".to_owned()).spawn(|| self.run()).map(drop)
    }

    fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        while let Some(how) = self.follow() {
            let Some(link) = self.link.upgrade() else {
                return;
            };
            link.set(HostState::Starting);
            link.forget_waiting();
            log::error!(
                "the process that load probes and isolated models are forked from {how}; it is started again"
            );
            if self.started.elapsed() >= STABLE {
                pause = FIRST_PAUSE;
            }
            drop(link);
            if !self.start_again(&mut pause) {
                return;
            }
        }
    }

    /// Passes reports on until the host ends: how. `None` once the link is gone.
    fn follow(&mut self) -> Option<String> {
        let mut message = vec![0; LONGEST_MESSAGE];
        let _ = self.socket.set_read_timeout(Some(HOST_CHECK));
        loop {
            let received = self.socket.recv(&mut message);
            let link = self.link.upgrade()?;
            match received {
                Ok(length) => {
                    let text = message.get(..length).unwrap_or_default();
                    if let Ok(ProbeReport { id, outcome }) = serde_json::from_slice(text) {
                        link.report(id, outcome);
                    }
                    continue;
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => thread::sleep(HOST_CHECK),
            }
            match lock(&self.process).as_mut()?.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return Some(describe(status)),
                Err(error) => return Some(format!("has ended ({error})")),
            }
        }
    }

    /// Starts another host, whatever time it takes. False once the link is gone.
    fn start_again(&mut self, pause: &mut Duration) -> bool {
        loop {
            thread::sleep(*pause);
            *pause = (*pause * 2).min(LONGEST_PAUSE);
            let started = self.restart.start();
            let Some(link) = self.link.upgrade() else {
                return false;
            };
            match started {
                Ok((process, socket)) => {
                    *lock(&self.process) = Some(process);
                    self.socket = Arc::new(socket);
                    self.started = Instant::now();
                    link.set(HostState::Running(Arc::clone(&self.socket)));
                    log::info!(
                        "the process that load probes and isolated models are forked from runs again"
                    );
                    return true;
                }
                Err(error) => {
                    let why = format!(
                        "the process that load probes and isolated models are forked from cannot be started again: {error}"
                    );
                    log::error!("{why}; that is tried again");
                    link.set(HostState::Lost(why));
                }
            }
        }
    }
}
