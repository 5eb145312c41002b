//! The server's side of the probe host: requests to it, and their reports.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tensorserve_os::fork::fork;
use tensorserve_platform::{LoadOptions, Platforms};
use tensorserve_tensor::ImageEncoding;

use crate::messages::{ProbeOutcome, ProbeRequest};
use crate::restart::{HostProcess, HostRestart, SharedHost, Supervisor};
use crate::state::{HostState, LinkState, lock};
use crate::{ProbeConfig, descriptors, host};

/// How much later than a version's time limit its report may come.
const GRACE: Duration = Duration::from_secs(60);
/// How often a version is probed whose host ends meanwhile.
const MOST_ATTEMPTS: usize = 3;

/// The probe host, and the socket that leads to it.
pub(crate) struct HostLink {
    shared: Arc<LinkState>,
    process: SharedHost,
    /// Until its thread starts: the process that forks the host must not have any.
    supervisor: Mutex<Option<Supervisor>>,
    next: AtomicU64,
    timeout: Duration,
}

impl HostLink {
    /// Forks the host. `settings` are those of the platforms, for a host that is started again.
    ///
    /// # Errors
    /// If this process has other threads; those of the operating system.
    pub(crate) fn start(
        platforms: &Platforms,
        config: &ProbeConfig,
        settings: String,
    ) -> io::Result<Self> {
        let (socket, hosts) = UnixDatagram::pair()?;
        let host = fork(|| host::serve(&hosts, platforms, config))?;
        let (shared, socket) = (Arc::new(LinkState::default()), Arc::new(socket));
        shared.set(HostState::Running(Arc::clone(&socket)));
        let restart = HostRestart::new(platforms.clone(), config.clone(), settings);
        let process: SharedHost = Arc::new(Mutex::new(Some(HostProcess::Forked(host))));
        let link = Arc::downgrade(&shared);
        let supervisor = Supervisor::new(link, Arc::clone(&process), socket, restart);
        let (supervisor, next) = (Mutex::new(Some(supervisor)), AtomicU64::new(0));
        Ok(HostLink { shared, process, supervisor, next, timeout: config.timeout })
    }

    /// Probes a version. Blocks until its process has ended, or should have.
    ///
    /// # Errors
    /// If the host does not run, and cannot be started again.
    pub(crate) fn probe(
        &self,
        platform: &str,
        folder: &Path,
        options: &LoadOptions,
    ) -> io::Result<ProbeOutcome> {
        for _ in 0..MOST_ATTEMPTS {
            let request = self.request(platform, folder, options)?;
            let outcome = self.shared.wait_for(request.id);
            let sent = self.send(&request, &[]);
            let received = sent.map(|()| outcome.recv_timeout(self.timeout + GRACE));
            self.shared.forget(request.id);
            match received? {
                Ok(outcome) => return Ok(outcome),
                Err(RecvTimeoutError::Disconnected) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let why = "the load probe has not reported within its time limit; the version may have \
                               started processes that still run";
                    return Ok(ProbeOutcome::Failed(why.to_owned()));
                }
            }
        }
        let why =
            format!("the process that starts load probes has ended {MOST_ATTEMPTS} times in a row");
        Err(io::Error::other(why))
    }

    /// A request for a version.
    ///
    /// # Errors
    /// If the folder's absolute path is unknown.
    pub(crate) fn request(
        &self,
        platform: &str,
        folder: &Path,
        options: &LoadOptions,
    ) -> io::Result<ProbeRequest> {
        Ok(ProbeRequest {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            platform: platform.to_owned(),
            folder: std::path::absolute(folder)?,
            tags: options.tags.clone(),
            threads: options.threads,
            deny_ops: options.ops.deny.clone(),
            allow_ops: options.ops.allow.clone(),
            base64_images: options.images.map(|images| images == ImageEncoding::Base64Url),
            isolated: options.isolated_as.is_some(),
            form: options.form,
            as_other_engine: options.as_other_engine,
        })
    }

    /// Sends the host a request, with files for the child. Waits for a host that is being started again.
    ///
    /// # Errors
    /// If the host does not run, and cannot be started again.
    pub(crate) fn send(&self, request: &ProbeRequest, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.start_supervisor();
        let message = serde_json::to_vec(request)?;
        let mut socket = self.shared.running(None)?;
        loop {
            match descriptors::send(&socket, &message, files) {
                Err(error) if is_gone(&error) => socket = self.shared.running(Some(&socket))?,
                sent => return sent,
            }
        }
    }

    /// Time limit for loading and running a version in a child.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Starts the thread that passes reports on, and starts the host again when it ends. Without it, loads wait
    /// until their deadline.
    fn start_supervisor(&self) {
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor
            && let Err(error) = supervisor.spawn()
        {
            log::warn!("the thread for reports of load probes cannot start: {error}");
        }
    }
}

/// Whether nobody has the other end of a socket any more.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotConnected)
}

/// The host ends with its link: a server that has stopped leaves no process behind.
impl Drop for HostLink {
    fn drop(&mut self) {
        drop(lock(&self.process).take());
    }
}
