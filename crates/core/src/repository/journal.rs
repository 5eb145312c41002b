//! What happened to models, for people: the last of it for each.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// How much is remembered of a model.
const MOST: usize = 32;

/// Of how many models; of more, those to which nothing happened for longest are forgotten.
const MOST_MODELS: usize = 2000;

/// The longest text of an error that is remembered.
const LONGEST_ERROR: usize = 1000;

/// Something that happened to a model.
#[derive(Clone, Debug)]
pub struct Happening {
    /// When.
    pub at: SystemTime,
    /// To which of its versions; `None` for all of them.
    pub version: Option<i64>,
    /// What it was.
    pub what: &'static str,
    /// How long it took.
    pub took: Option<Duration>,
    /// Who wanted it: a user, or [`WATCH`] or [`REQUEST`].
    pub who: Arc<str>,
    /// Why it failed.
    pub error: Option<String>,
}

/// The one who looks at the sources.
pub(super) const WATCH: &str = "watch";

/// A client without a name that asked for it.
pub const REQUEST: &str = "request";

/// The journal of all models.
#[derive(Default)]
pub(super) struct Journal(Mutex<HashMap<String, VecDeque<Happening>>>);

impl Journal {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Happening>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, model: &str, mut happening: Happening) {
        if let Some(error) = &mut happening.error {
            let is_boundary = |at: &usize| error.is_char_boundary(*at);
            let end = (0..=LONGEST_ERROR.min(error.len())).rev().find(is_boundary).unwrap_or(0);
            error.truncate(end);
        }
        let mut all = self.lock();
        if !all.contains_key(model) && all.len() >= MOST_MODELS {
            let quiet = all.iter().min_by_key(|(_, own)| own.back().map(|last| last.at));
            if let Some(quiet) = quiet.map(|(name, _)| name.clone()) {
                all.remove(&quiet);
            }
        }
        let own = all.entry(model.to_owned()).or_default();
        if own.len() >= MOST {
            own.pop_front();
        }
        own.push_back(happening);
    }

    /// What happened to a model, the oldest first.
    pub(super) fn of(&self, model: &str) -> Vec<Happening> {
        self.lock().get(model).into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn happening(at: u64, error: Option<String>) -> Happening {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
        let who = WATCH.into();
        Happening { at, version: Some(1), what: "failed", took: None, who, error }
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let journal = Journal::default();
        for at in 0..100 {
            journal.note("m", happening(at, Some("€".repeat(1000))));
        }
        let all = journal.of("m");
        assert_eq!(all.len(), MOST);
        assert_eq!(all.last().unwrap().at, SystemTime::UNIX_EPOCH + Duration::from_secs(99));
        assert_eq!(all[0].error.as_deref().unwrap().len(), 999);
        for number in 0..MOST_MODELS as u64 {
            journal.note(&format!("n{number}"), happening(1000 + number, None));
        }
        assert!(journal.of("m").is_empty() && journal.of("n0").len() == 1);
    }
}
