//! The history of models for operators: the latest lifecycle events of each.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tensorserve_tensor::names::beginning;

/// Events that are kept of one model.
const MOST_EVENTS: usize = 32;

/// Models whose events are kept. Of more, the model whose latest event is oldest is forgotten.
const MOST_MODELS: usize = 2000;

/// Bytes of an error message that are kept.
const LONGEST_ERROR: usize = 1000;

/// One entry of a model's history.
#[derive(Clone, Debug)]
pub struct LifecycleEvent {
    /// When it happened.
    pub at: SystemTime,
    /// The version that it concerns; `None` for all versions.
    pub version: Option<i64>,
    /// Its kind, such as `loading`, `available`, `unload` or `label`.
    pub what: &'static str,
    /// How long the load or unload took that ended with it.
    pub took: Option<Duration>,
    /// Who requested it: a user, [`WATCH`] or [`REQUEST`].
    pub who: Arc<str>,
    /// Why the load failed.
    pub error: Option<String>,
}

/// [`LifecycleEvent::who`] of what follows from a scan of the sources.
pub(super) const WATCH: &str = "watch";

/// [`LifecycleEvent::who`] of a request by a client without a name.
pub const REQUEST: &str = "request";

/// The latest lifecycle events of all models.
#[derive(Default)]
pub(super) struct Journal(Mutex<HashMap<String, VecDeque<LifecycleEvent>>>);

impl Journal {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, VecDeque<LifecycleEvent>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record(&self, model: &str, mut event: LifecycleEvent) {
        if let Some(error) = &mut event.error {
            error.truncate(beginning(error, LONGEST_ERROR).len());
        }
        let mut all = self.lock();
        if !all.contains_key(model) && all.len() >= MOST_MODELS {
            let quiet = all.iter().min_by_key(|(_, own)| own.back().map(|last| last.at));
            if let Some(quiet) = quiet.map(|(name, _)| name.clone()) {
                all.remove(&quiet);
            }
        }
        let own = all.entry(model.to_owned()).or_default();
        if own.len() >= MOST_EVENTS {
            own.pop_front();
        }
        own.push_back(event);
    }

    /// The latest events of a model, the oldest first.
    pub(super) fn events_of(&self, model: &str) -> Vec<LifecycleEvent> {
        self.lock().get(model).into_iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: u64, error: Option<String>) -> LifecycleEvent {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
        let who = WATCH.into();
        LifecycleEvent { at, version: Some(1), what: "failed", took: None, who, error }
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let journal = Journal::default();
        for at in 0..100 {
            journal.record("m", event(at, Some("€".repeat(1000))));
        }
        let all = journal.events_of("m");
        assert_eq!(all.len(), MOST_EVENTS);
        assert_eq!(all.last().unwrap().at, SystemTime::UNIX_EPOCH + Duration::from_secs(99));
        assert_eq!(all[0].error.as_deref().unwrap().len(), 999);
        for number in 0..MOST_MODELS as u64 {
            journal.record(&format!("n{number}"), event(1000 + number, None));
        }
        assert!(journal.events_of("m").is_empty() && journal.events_of("n0").len() == 1);
    }
}
