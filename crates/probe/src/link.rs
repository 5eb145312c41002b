//! The server's side of the probe host.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tensorserve_os::fork::{ForkedProcess, fork};
use tensorserve_platform::{LoadOptions, Platforms};
use tensorserve_tensor::ImageEncoding;

use crate::host::{self, LONGEST_MESSAGE};
use crate::messages::{ProbeOutcome, ProbeReport, ProbeRequest};
use crate::{ProbeConfig, descriptors};

/// How often a waiting load looks whether the host still runs.
const HOST_CHECK: Duration = Duration::from_millis(500);
/// How much later than a version's time limit its report may come.
const GRACE: Duration = Duration::from_secs(60);

/// Loads that wait for their reports, by the number of the request.
type Waiting = Mutex<HashMap<u64, Sender<ProbeOutcome>>>;

/// The probe host, and the socket that leads to it.
pub(crate) struct HostLink {
    host: Mutex<ForkedProcess>,
    socket: Arc<UnixDatagram>,
    waiting: Arc<Waiting>,
    next: AtomicU64,
    reader_started: Once,
    timeout: Duration,
}

impl HostLink {
    /// Forks the host.
    ///
    /// # Errors
    /// If this process has other threads; those of the operating system.
    pub(crate) fn start(platforms: &Platforms, config: &ProbeConfig) -> io::Result<Self> {
        let (socket, hosts) = UnixDatagram::pair()?;
        let host = fork(|| host::serve(&hosts, platforms, config))?;
        Ok(HostLink {
            host: Mutex::new(host),
            socket: Arc::new(socket),
            waiting: Arc::default(),
            next: AtomicU64::new(0),
            reader_started: Once::new(),
            timeout: config.timeout,
        })
    }

    /// Probes a version. Blocks until its process has ended, or should have.
    ///
    /// # Errors
    /// If the host does not run.
    pub(crate) fn probe(
        &self,
        platform: &str,
        folder: &Path,
        options: &LoadOptions,
    ) -> io::Result<ProbeOutcome> {
        self.reader_started.call_once(|| self.start_reader());
        let request = self.request(platform, folder, options)?;
        let (sender, outcome) = channel();
        lock(&self.waiting).insert(request.id, sender);
        let sent = self.send(&request, &[]);
        let outcome = sent.and_then(|()| self.wait(&outcome));
        lock(&self.waiting).remove(&request.id);
        outcome
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
        })
    }

    /// Sends the host a request, with files for the child.
    ///
    /// # Errors
    /// If the host does not run.
    pub(crate) fn send(&self, request: &ProbeRequest, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        descriptors::send(&self.socket, &serde_json::to_vec(request)?, files)
    }

    /// Time limit for loading and running a version in a child.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn wait(&self, outcome: &Receiver<ProbeOutcome>) -> io::Result<ProbeOutcome> {
        let deadline = Instant::now() + self.timeout + GRACE;
        loop {
            match outcome.recv_timeout(HOST_CHECK) {
                Ok(outcome) => return Ok(outcome),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::Error::other("its report was lost"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(status) = lock(&self.host).try_wait()? {
                return Err(io::Error::other(format!("its process has ended: {status}")));
            }
            if Instant::now() >= deadline {
                let why = "the process of the load probe does not report; the version may have \
                           started processes that still run";
                return Ok(ProbeOutcome::Failed(why.to_owned()));
            }
        }
    }

    /// Starts the thread that passes reports to the loads that wait for them.
    fn start_reader(&self) {
        let (socket, waiting) = (Arc::clone(&self.socket), Arc::clone(&self.waiting));
        let read = move || {
            let mut message = vec![0; LONGEST_MESSAGE];
            while let Ok(length) = socket.recv(&mut message) {
                let text = message.get(..length).unwrap_or_default();
                let Ok(ProbeReport { id, outcome }) = serde_json::from_slice(text) else {
                    continue;
                };
                if let Some(sender) = lock(&waiting).remove(&id) {
                    let _ = sender.send(outcome);
                }
            }
        };
        // Without it, loads wait until their deadline.
        if let Err(error) = thread::Builder::new().name("probe".to_owned()).spawn(read) {
            log::warn!("the thread for reports of load probes cannot start: {error}");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
