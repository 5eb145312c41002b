//! Everybody who is known, as of one state of the file, and whose credentials were found right.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::oneshot;

use super::file::{Entry, Secret};
use super::secret::{KeyHash, PasswordHashed, Tag};
use super::{Identity, Refusal};

/// Those who wait to hear how the check of some credentials went.
type Waiting = Vec<oneshot::Sender<Result<Identity, Refusal>>>;

pub(super) struct People {
    users: HashMap<String, (PasswordHashed, Arc<Entry>)>,
    keys: Vec<(KeyHash, Arc<Entry>)>,
    /// Checked for a user that is not there, so that this takes as long.
    stand_in: Option<PasswordHashed>,
    /// Credentials that were found right: one for each user and key, at most.
    known: ArcSwap<HashMap<Tag, Arc<Entry>>>,
    /// Credentials that are being checked.
    checked: Mutex<HashMap<Tag, Waiting>>,
}

/// A password to check.
pub(super) struct Password {
    /// What it has to be the password of.
    pub(super) hash: PasswordHashed,
    /// Whose that is; nobody's if it stands in.
    pub(super) entry: Option<Arc<Entry>>,
}

impl People {
    pub(super) fn new(entries: Vec<Entry>) -> Self {
        let (mut users, mut keys) = (HashMap::new(), Vec::new());
        let mut stand_in = None;
        for entry in entries {
            let entry = Arc::new(entry);
            match &entry.secret {
                Secret::Key(hash) => keys.push((*hash, Arc::clone(&entry))),
                Secret::Password(hash) => {
                    stand_in.get_or_insert_with(|| hash.clone());
                    let name = entry.identity.name().unwrap_or_default().to_owned();
                    users.insert(name, (hash.clone(), Arc::clone(&entry)));
                }
            }
        }
        let (known, checked) = (ArcSwap::default(), Mutex::default());
        People { users, keys, stand_in, known, checked }
    }

    /// Whose credentials these are, if they were found right before.
    pub(super) fn known(&self, tag: &Tag) -> Option<Identity> {
        self.known.load().get(tag).map(|entry| entry.identity.clone())
    }

    /// Credentials with this tag are right.
    pub(super) fn remember(&self, tag: Tag, entry: &Arc<Entry>) {
        self.known.rcu(|known| {
            let mut known = HashMap::clone(known);
            known.insert(tag, Arc::clone(entry));
            known
        });
    }

    /// Remembers the credentials that `old` did, of those who are here with the same secret.
    pub(super) fn remember_those_of(&self, old: &Self) {
        for (tag, entry) in old.known.load().iter() {
            let same = match &entry.secret {
                Secret::Password(hash) => {
                    let user = self.users.get(entry.identity.name().unwrap_or_default());
                    user.filter(|(new, _)| new == hash).map(|(_, entry)| entry)
                }
                Secret::Key(hash) => self.keys.iter().find(|(k, _)| k == hash).map(|(_, e)| e),
            };
            if let Some(entry) = same {
                self.remember(*tag, entry);
            }
        }
    }

    /// Whose key this is. All are compared, whichever it is.
    pub(super) fn with_key(&self, key: &[u8]) -> Option<Arc<Entry>> {
        let hash = KeyHash::of(key);
        let mut found = None;
        for (known, entry) in &self.keys {
            if known.is(&hash) {
                found = Some(entry);
            }
        }
        found.cloned()
    }

    /// What a password of `user` is checked against; `None` if nobody has a password.
    pub(super) fn password_of(&self, user: &str) -> Option<Password> {
        match self.users.get(user) {
            Some((hash, entry)) => {
                Some(Password { hash: hash.clone(), entry: Some(Arc::clone(entry)) })
            }
            None => Some(Password { hash: self.stand_in.clone()?, entry: None }),
        }
    }

    /// The credentials that are being checked.
    pub(super) fn checked(&self) -> MutexGuard<'_, HashMap<Tag, Waiting>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
