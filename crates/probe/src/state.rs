//! Whether the probe host runs, and who waits for its reports: what requests and its supervisor share.

use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::messages::ProbeOutcome;

/// How long a host may take to start.
pub(crate) const LONGEST_START: Duration = Duration::from_secs(60);

/// What requests and the supervisor share.
#[derive(Default)]
pub(crate) struct LinkState {
    host: Mutex<HostState>,
    changed: Condvar,
    /// Loads that wait for their reports, by the number of the request.
    waiting: Mutex<HashMap<u64, Sender<ProbeOutcome>>>,
}

/// The host, as requests see it.
#[derive(Default)]
pub(crate) enum HostState {
    Running(Arc<UnixDatagram>),
    /// The host is being started, or started again.
    #[default]
    Starting,
    /// The host cannot be started again, for this reason. Further attempts follow.
    Lost(String),
}

impl LinkState {
    /// Tells requests of another state of the host.
    pub(crate) fn set(&self, host: HostState) {
        *lock(&self.host) = host;
        self.changed.notify_all();
    }

    /// Passes a report to the load that waits for it.
    pub(crate) fn report(&self, id: u64, outcome: ProbeOutcome) {
        if let Some(sender) = lock(&self.waiting).remove(&id) {
            let _ = sender.send(outcome);
        }
    }

    /// The report on this request, when there is one.
    pub(crate) fn wait_for(&self, id: u64) -> Receiver<ProbeOutcome> {
        let (sender, outcome) = channel();
        lock(&self.waiting).insert(id, sender);
        outcome
    }

    /// Nobody waits for the report on this request any more.
    pub(crate) fn forget(&self, id: u64) {
        lock(&self.waiting).remove(&id);
    }

    /// No report will come any more: loads ask again.
    pub(crate) fn forget_waiting(&self) {
        lock(&self.waiting).clear();
    }

    /// The socket of a host that runs, and is not the one that `gone` led to. Waits for one that is being started.
    pub(crate) fn running(
        &self,
        gone: Option<&Arc<UnixDatagram>>,
    ) -> io::Result<Arc<UnixDatagram>> {
        let deadline = Instant::now() + LONGEST_START;
        let mut host = lock(&self.host);
        loop {
            match &*host {
                HostState::Running(socket)
                    if gone.is_none_or(|gone| !Arc::ptr_eq(gone, socket)) =>
                {
                    return Ok(Arc::clone(socket));
                }
                HostState::Lost(why) => return Err(io::Error::other(why.clone())),
                HostState::Running(_) | HostState::Starting => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::other("the process of load probes is still being started"));
            }
            host = self.changed.wait_timeout(host, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Ignores poisoning: what is locked here is whole at any time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
