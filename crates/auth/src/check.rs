//! Checks passwords one after another, on a thread of low priority.
//!
//! A check takes some 20 ms and 19 MiB on purpose, so a flood of wrong passwords must not cause
//! many: requests with the same credentials share a check, few checks may wait, and further requests
//! are refused as busy. Client addresses take turns, so that a flood delays only its own address.
//! Requests with verified credentials, and those with keys, need no check.

use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use super::accounts::{Accounts, ExpectedPassword};
use super::secret::CredentialTag;
use super::turns::FairQueue;
use super::{AuthError, Identity, Permission};
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

/// The most checks of one client that wait. They take about a second and a half.
const MAX_WAITING_PER_CLIENT: usize = 64;

/// The most checks that wait.
const MAX_WAITING_CHECKS: usize = 512;

/// The most requests that wait for one check.
const MAX_REQUESTS_PER_CHECK: usize = 4096;

type CheckResult = Result<Identity, AuthError>;

/// A password check in progress.
pub struct PendingCheck {
    pub(super) permission: Permission,
    pub(super) result: oneshot::Receiver<CheckResult>,
}

impl PendingCheck {
    /// Waits for the result.
    ///
    /// # Errors
    /// If the password is wrong, or its user lacks the permission.
    pub async fn result(self) -> Result<Identity, AuthError> {
        let result = self.result.await.unwrap_or(Err(AuthError::Busy));
        result.and_then(|identity| permit(self.permission, &identity))
    }
}

/// The thread that checks passwords. It ends when this is dropped.
pub(super) struct PasswordChecker(Arc<WaitingChecks>);

/// The checks that wait for the thread.
struct WaitingChecks {
    queue: Mutex<CheckQueue>,
    changed: Condvar,
}

struct CheckQueue {
    checks: FairQueue<ClientNetwork, PasswordCheck>,
    is_closed: bool,
}

struct PasswordCheck {
    accounts: Arc<Accounts>,
    tag: CredentialTag,
    expected: ExpectedPassword,
    password: Vec<u8>,
}

/// The clients that share a turn: an IPv4 address, the /64 network of an IPv6 address (all of which
/// one machine can use), or all clients whose address is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ClientNetwork(Option<IpAddr>);

impl ClientNetwork {
    fn of(address: Option<IpAddr>) -> Self {
        ClientNetwork(address.map(|address| match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
            }
        }))
    }
}

impl Drop for PasswordChecker {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_one();
    }
}

impl WaitingChecks {
    fn lock(&self) -> MutexGuard<'_, CheckQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next check; `None` at the end.
    fn next(&self) -> Option<PasswordCheck> {
        let mut queue = self.lock();
        loop {
            if queue.is_closed {
                return None;
            }
            if let Some(check) = queue.checks.pop() {
                return Some(check);
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl PasswordCheck {
    /// Reports the result to the requests that wait for it.
    fn report(&self, result: &CheckResult) {
        let waiting = self.accounts.pending().remove(&self.tag).unwrap_or_default();
        for sender in waiting {
            // The request may have been cancelled.
            let _ = sender.send(result.clone());
        }
    }
}

impl PasswordChecker {
    pub(super) fn start() -> Result<Self> {
        let checks = FairQueue::new(MAX_WAITING_PER_CLIENT, MAX_WAITING_CHECKS);
        let queue = Mutex::new(CheckQueue { checks, is_closed: false });
        let waiting = Arc::new(WaitingChecks { queue, changed: Condvar::new() });
        let checker = PasswordChecker(Arc::clone(&waiting));
        let thread = thread::Builder::new().name("passwords".to_owned());
        thread
            .spawn(move || check_passwords(&waiting))
            .map_err(|e| Error::internal("a thread could not be started").with_source(e))?;
        Ok(checker)
    }

    /// Starts the check of a password of `user` for the client at `address`, or joins the check of
    /// the same credentials that is in progress.
    pub(super) fn check(
        &self,
        accounts: &Arc<Accounts>,
        tag: CredentialTag,
        address: Option<IpAddr>,
        user: &str,
        password: Vec<u8>,
    ) -> Result<oneshot::Receiver<CheckResult>, AuthError> {
        let (sender, receiver) = oneshot::channel();
        let mut pending = accounts.pending();
        match pending.entry(tag) {
            Entry::Occupied(mut waiting) if waiting.get().len() < MAX_REQUESTS_PER_CHECK => {
                waiting.get_mut().push(sender);
                return Ok(receiver);
            }
            Entry::Occupied(_) => return Err(AuthError::Busy),
            Entry::Vacant(vacant) => vacant.insert(vec![sender]),
        };
        let Some(expected) = accounts.expected_password(user) else {
            pending.remove(&tag);
            return Err(AuthError::Wrong);
        };
        drop(pending);
        let check = PasswordCheck { accounts: Arc::clone(accounts), tag, expected, password };
        let displaced = self.0.lock().checks.push(ClientNetwork::of(address), check);
        self.0.changed.notify_one();
        if let Some(displaced) = displaced {
            displaced.report(&Err(AuthError::Busy));
        }
        Ok(receiver)
    }
}

fn check_passwords(waiting: &WaitingChecks) {
    os::lower_priority();
    while let Some(check) = waiting.next() {
        let PasswordCheck { accounts, tag, expected, password } = &check;
        let is_right = expected.hash.is_of(password);
        let account = expected.account.as_ref().filter(|_| is_right);
        if let Some(account) = account {
            accounts.set_verified(*tag, account);
        }
        check.report(&account.map(|account| account.identity.clone()).ok_or(AuthError::Wrong));
    }
}

/// The identity, if it has the permission.
pub(super) fn permit(permission: Permission, identity: &Identity) -> Result<Identity, AuthError> {
    if permission.allows(identity.roles()) {
        return Ok(identity.clone());
    }
    Err(AuthError::Forbidden(permission))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_machine_has_one_turn() {
        let network = |address: &str| ClientNetwork::of(Some(address.parse().expect("an address")));
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1:2:3"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.2"), network("10.0.0.1"));
    }
}
