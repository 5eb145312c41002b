//! Checks passwords one after another, on a thread of low priority.
//!
//! A check takes some 20 ms and 19 MiB on purpose, so a flood of wrong passwords must not cause
//! many: requests with the same credentials share a check, few checks may wait, and further requests
//! are refused as busy. Requests with verified credentials, and those with keys, need no check.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use tokio::sync::oneshot;

use super::accounts::{Accounts, ExpectedPassword};
use super::secret::CredentialTag;
use super::{AuthError, Identity, Permission};
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

/// The most checks that wait. They take about a second and a half.
const MAX_WAITING_CHECKS: usize = 64;

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
pub(super) struct PasswordChecker(SyncSender<PasswordCheck>);

struct PasswordCheck {
    accounts: Arc<Accounts>,
    tag: CredentialTag,
    expected: ExpectedPassword,
    password: Vec<u8>,
}

impl PasswordChecker {
    pub(super) fn start() -> Result<Self> {
        let (sender, receiver) = sync_channel(MAX_WAITING_CHECKS);
        let thread = thread::Builder::new().name("passwords".to_owned());
        thread
            .spawn(move || check_passwords(&receiver))
            .map_err(|e| Error::internal("a thread could not be started").with_source(e))?;
        Ok(PasswordChecker(sender))
    }

    /// Starts the check of a password of `user`, or joins the check of the same credentials that is
    /// in progress.
    pub(super) fn check(
        &self,
        accounts: &Arc<Accounts>,
        tag: CredentialTag,
        user: &str,
        password: Vec<u8>,
    ) -> Result<oneshot::Receiver<CheckResult>, AuthError> {
        let (sender, receiver) = oneshot::channel();
        let mut pending = accounts.pending();
        let vacant = match pending.entry(tag) {
            Entry::Occupied(mut waiting) if waiting.get().len() < MAX_REQUESTS_PER_CHECK => {
                waiting.get_mut().push(sender);
                return Ok(receiver);
            }
            Entry::Occupied(_) => return Err(AuthError::Busy),
            Entry::Vacant(vacant) => vacant,
        };
        let expected = accounts.expected_password(user).ok_or(AuthError::Wrong)?;
        let check = PasswordCheck { accounts: Arc::clone(accounts), tag, expected, password };
        // The thread needs the lock that is held here to send its result, so it cannot be done
        // before the sender is inserted.
        self.0.try_send(check).map_err(|_| AuthError::Busy)?;
        vacant.insert(vec![sender]);
        Ok(receiver)
    }
}

fn check_passwords(checks: &Receiver<PasswordCheck>) {
    os::lower_priority();
    for PasswordCheck { accounts, tag, expected, password } in checks {
        let is_right = expected.hash.is_of(&password);
        let account = expected.account.filter(|_| is_right);
        if let Some(account) = &account {
            accounts.set_verified(tag, account);
        }
        let result = account.map(|account| account.identity.clone()).ok_or(AuthError::Wrong);
        let waiting = accounts.pending().remove(&tag).unwrap_or_default();
        for sender in waiting {
            // The request may have been cancelled.
            let _ = sender.send(result.clone());
        }
    }
}

/// The identity, if it has the permission.
pub(super) fn permit(permission: Permission, identity: &Identity) -> Result<Identity, AuthError> {
    if permission.allows(identity.roles()) {
        return Ok(identity.clone());
    }
    Err(AuthError::Forbidden(permission))
}
