//! The users and keys of one state of the file, and the credentials that have been verified.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::oneshot;

use super::file::{Account, SecretHash};
use super::secret::{CredentialTag, KeyHash, PasswordHash};
use super::{AuthError, Identity};

/// The requests that wait for the check of the same credentials.
type CheckWaiters = Vec<oneshot::Sender<Result<Identity, AuthError>>>;

pub(super) struct Accounts {
    users: HashMap<String, (PasswordHash, Arc<Account>)>,
    keys: Vec<(KeyHash, Arc<Account>)>,
    /// The hash that is checked for an unknown user, so that this takes as long as for a known one.
    decoy: Option<PasswordHash>,
    /// Credentials that have been verified: at most one for each user and key.
    verified: ArcSwap<HashMap<CredentialTag, Arc<Account>>>,
    /// Credentials that are being checked.
    pending: Mutex<HashMap<CredentialTag, CheckWaiters>>,
}

/// The hash that a password is checked against.
pub(super) struct ExpectedPassword {
    pub(super) hash: PasswordHash,
    /// The user's account; `None` for the decoy of an unknown user.
    pub(super) account: Option<Arc<Account>>,
}

impl Accounts {
    pub(super) fn new(accounts: Vec<Account>) -> Self {
        let (mut users, mut keys) = (HashMap::new(), Vec::new());
        let mut decoy = None;
        for account in accounts {
            let account = Arc::new(account);
            match &account.secret {
                SecretHash::Key(hash) => keys.push((*hash, Arc::clone(&account))),
                SecretHash::Password(hash) => {
                    decoy.get_or_insert_with(|| hash.clone());
                    let name = account.identity.name().unwrap_or_default().to_owned();
                    users.insert(name, (hash.clone(), Arc::clone(&account)));
                }
            }
        }
        let (verified, pending) = (ArcSwap::default(), Mutex::default());
        Accounts { users, keys, decoy, verified, pending }
    }

    /// The owner of credentials that have been verified before.
    pub(super) fn verified(&self, tag: &CredentialTag) -> Option<Identity> {
        self.verified.load().get(tag).map(|account| account.identity.clone())
    }

    /// Records that the credentials with this tag are those of `account`.
    pub(super) fn set_verified(&self, tag: CredentialTag, account: &Arc<Account>) {
        self.verified.rcu(|verified| {
            let mut verified = HashMap::clone(verified);
            verified.insert(tag, Arc::clone(account));
            verified
        });
    }

    /// Takes over the verified credentials of `old` whose accounts still have the same secret.
    pub(super) fn keep_verified(&self, old: &Self) {
        for (tag, account) in old.verified.load().iter() {
            let same = match &account.secret {
                SecretHash::Password(hash) => {
                    let user = self.users.get(account.identity.name().unwrap_or_default());
                    user.filter(|(new, _)| new == hash).map(|(_, account)| account)
                }
                SecretHash::Key(hash) => {
                    self.keys.iter().find(|(new, _)| new == hash).map(|(_, account)| account)
                }
            };
            if let Some(account) = same {
                self.set_verified(*tag, account);
            }
        }
    }

    /// The account of a key. Compares with every key, so that the time does not depend on which one
    /// it is.
    pub(super) fn with_key(&self, key: &[u8]) -> Option<Arc<Account>> {
        let hash = KeyHash::of(key);
        let mut found = None;
        for (known, account) in &self.keys {
            if known.is(&hash) {
                found = Some(account);
            }
        }
        found.cloned()
    }

    /// The hash to check a password of `user` against; `None` if there are no users.
    pub(super) fn expected_password(&self, user: &str) -> Option<ExpectedPassword> {
        match self.users.get(user) {
            Some((hash, account)) => {
                Some(ExpectedPassword { hash: hash.clone(), account: Some(Arc::clone(account)) })
            }
            None => Some(ExpectedPassword { hash: self.decoy.clone()?, account: None }),
        }
    }

    /// The credentials that are being checked.
    pub(super) fn pending(&self) -> MutexGuard<'_, HashMap<CredentialTag, CheckWaiters>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
