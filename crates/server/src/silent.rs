//! Calls that wait for their client, which has sent nothing: neither a first message nor the next one of a
//! stream. They hold no memory for requests, but each costs the server a few KiB, so their number is limited:
//! of a client's address, and of all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::drain::ListenerActivity;

/// The most silent calls of one client. A proxy is one client, and mostly forwards what has arrived.
const OF_CLIENT: usize = 4096;

/// The most silent calls together, and those that a client may have while there are as many.
const OF_ALL: usize = 16 << 10;
const ALWAYS: usize = 64;

/// Counts silent calls. Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct SilentCalls(Arc<SilentCallsInner>);

#[derive(Default)]
struct SilentCallsInner {
    counts: Mutex<SilentCounts>,
    activity: ListenerActivity,
}

#[derive(Default)]
struct SilentCounts {
    all: usize,
    /// By the address of the client; that of a UNIX socket is `None`.
    of_clients: HashMap<Option<IpAddr>, usize>,
}

impl SilentCalls {
    /// Counts the silent calls of a listener.
    pub(super) fn new(activity: ListenerActivity) -> Self {
        SilentCalls(Arc::new(SilentCallsInner { activity, ..SilentCallsInner::default() }))
    }

    /// The activity of the listener.
    pub(super) fn activity(&self) -> &ListenerActivity {
        &self.0.activity
    }

    /// Counts a call of the client at `address` as silent until the result is dropped; `None` if there are
    /// too many.
    pub(super) fn enter(&self, address: Option<IpAddr>) -> Option<SilentCall> {
        let mut counts = self.0.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let most = if counts.all < OF_ALL { OF_CLIENT } else { ALWAYS };
        let own = counts.of_clients.entry(address).or_insert(0);
        if *own >= most {
            return None;
        }
        *own += 1;
        counts.all += 1;
        Some(SilentCall { calls: self.clone(), address })
    }
}

/// A call that is counted as silent.
pub(super) struct SilentCall {
    calls: SilentCalls,
    address: Option<IpAddr>,
}

impl Drop for SilentCall {
    fn drop(&mut self) {
        let mut counts = self.calls.0.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all = counts.all.saturating_sub(1);
        if let Some(own) = counts.of_clients.get_mut(&self.address) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                counts.of_clients.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: usize) -> Option<IpAddr> {
        Some(IpAddr::from(u32::try_from(number).unwrap().to_be_bytes()))
    }

    #[test]
    fn each_client_has_its_limit() {
        let calls = SilentCalls::default();
        let mut held: Vec<_> = (0..OF_CLIENT).map_while(|_| calls.enter(address(1))).collect();
        assert_eq!(held.len(), OF_CLIENT);
        assert!(calls.enter(address(1)).is_none());
        assert!(calls.enter(address(2)).is_some());
        held.pop();
        assert!(calls.enter(address(1)).is_some());
        drop(held);
        let counts = calls.0.counts.lock().unwrap();
        assert_eq!((counts.all, counts.of_clients.len()), (0, 0));
    }

    #[test]
    fn others_have_a_few_while_many_clients_are_silent() {
        let calls = SilentCalls::default();
        let clients = OF_ALL / OF_CLIENT;
        let held: Vec<_> = (0..OF_ALL).map_while(|n| calls.enter(address(n % clients))).collect();
        assert_eq!(held.len(), OF_ALL);
        assert!((0..clients).all(|client| calls.enter(address(client)).is_none()));
        let other: Vec<_> = (0..OF_ALL).map_while(|_| calls.enter(None)).collect();
        assert_eq!(other.len(), ALWAYS);
    }
}
