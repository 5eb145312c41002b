//! Checks passwords, one after another, on a thread of its own and behind all others.
//!
//! A check takes some 20 ms and 19 MiB on purpose, so wrong passwords must not be able to ask for
//! many: requests with the same credentials share a check, a few checks may wait, and whoever
//! comes then is told to try again. Requests whose credentials are known, and those with keys,
//! never come here.

use std::collections::hash_map::Entry as Place;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use tokio::sync::oneshot;

use super::authenticator::permit;
use super::people::{Password, People};
use super::secret::Tag;
use super::{Identity, Permission, Refusal};
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

/// Checks that may wait. They take about a second and a half.
const MOST_WAITING: usize = 64;

/// Requests that may wait for one check.
const MOST_SHARING: usize = 4096;

type Answer = Result<Identity, Refusal>;

/// A check of a password that is under way.
pub struct Checking {
    pub(super) access: Permission,
    pub(super) answer: oneshot::Receiver<Answer>,
}

impl Checking {
    /// How it went.
    ///
    /// # Errors
    /// If the password is wrong, or is not that of somebody who gets what was asked for.
    pub async fn answer(self) -> Answer {
        let answer = self.answer.await.unwrap_or(Err(Refusal::Busy));
        answer.and_then(|identity| permit(self.access, &identity))
    }
}

/// The thread that checks passwords. It ends when this is dropped.
pub(super) struct Checker(SyncSender<Check>);

struct Check {
    people: Arc<People>,
    tag: Tag,
    against: Password,
    password: Vec<u8>,
}

impl Checker {
    pub(super) fn start() -> Result<Self> {
        let (sender, receiver) = sync_channel(MOST_WAITING);
        let thread = thread::Builder::new().name("passwords".to_owned());
        thread
            .spawn(move || work(&receiver))
            .map_err(|e| Error::internal("a thread could not be started").with_source(e))?;
        Ok(Checker(sender))
    }

    /// Has a password of `user` checked, or waits for the check of the same that is under way.
    pub(super) fn check(
        &self,
        people: &Arc<People>,
        tag: Tag,
        user: &str,
        password: Vec<u8>,
    ) -> Result<oneshot::Receiver<Answer>, Refusal> {
        let (sender, receiver) = oneshot::channel();
        let mut checked = people.checked();
        let place = match checked.entry(tag) {
            Place::Occupied(mut others) if others.get().len() < MOST_SHARING => {
                others.get_mut().push(sender);
                return Ok(receiver);
            }
            Place::Occupied(_) => return Err(Refusal::Busy),
            Place::Vacant(place) => place,
        };
        let against = people.password_of(user).ok_or(Refusal::Wrong)?;
        let check = Check { people: Arc::clone(people), tag, against, password };
        // The thread can not be done before the sender is in its place: it has to wait for that.
        self.0.try_send(check).map_err(|_| Refusal::Busy)?;
        place.insert(vec![sender]);
        Ok(receiver)
    }
}

fn work(checks: &Receiver<Check>) {
    os::lower_priority();
    for Check { people, tag, against, password } in checks {
        let is_right = against.hash.is_of(&password);
        let entry = against.entry.filter(|_| is_right);
        if let Some(entry) = &entry {
            people.remember(tag, entry);
        }
        let answer = entry.map(|entry| entry.identity.clone()).ok_or(Refusal::Wrong);
        let waiting = people.checked().remove(&tag).unwrap_or_default();
        for sender in waiting {
            // Who has gone away need not hear it.
            let _ = sender.send(answer.clone());
        }
    }
}
