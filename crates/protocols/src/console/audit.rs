//! Who changed what: the last of it in memory, and all of it in the log, under the target `audit`.
//!
//! Nothing that is written here is a secret: names of users, models and folders, numbers.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;

use super::{Asker, status, text};
use tensorserve_tensor::error::Result;

/// How many changes are remembered.
const MOST: usize = 1000;

/// The longest text in a change.
const LONGEST: usize = 500;

/// The changes that are remembered.
#[derive(Default)]
pub(super) struct Audit(Mutex<VecDeque<Entry>>);

#[derive(Clone, Serialize)]
struct Entry {
    at: u64,
    who: Option<String>,
    from: Option<String>,
    what: &'static str,
    model: Option<String>,
    details: Value,
    outcome: String,
}

/// A change under way. It is written down in the end, also if whoever asked for it goes away.
pub(super) struct Pending<'a> {
    audit: &'a Audit,
    entry: Entry,
}

impl Audit {
    /// Begins to write down a change.
    pub(super) fn begin(
        &self,
        asker: &Asker,
        what: &'static str,
        model: Option<&str>,
        details: Value,
    ) -> Pending<'_> {
        let entry = Entry {
            at: status::millis(SystemTime::now()),
            who: asker.name.as_deref().map(cut),
            from: asker.from.map(|from| from.to_string()),
            what,
            model: model.map(cut),
            details,
            outcome: "whoever asked went away before it was done".to_owned(),
        };
        Pending { audit: self, entry }
    }

    /// All that is remembered, the oldest first.
    pub(super) fn list(&self) -> String {
        let entries: Vec<Entry> = self.lock().iter().cloned().collect();
        text(&serde_json::json!({ "entries": entries }))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending<'_> {
    /// Notes how it went.
    pub(super) fn end(mut self, outcome: &Result<()>) {
        self.entry.outcome = match outcome {
            Ok(()) => "ok".to_owned(),
            Err(error) => cut(error.message()),
        };
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let entry = self.entry.clone();
        // As JSON, so that no name can forge a line of the log.
        log::info!(target: "audit", "{}", text(&entry));
        let mut entries = self.audit.lock();
        if entries.len() >= MOST {
            entries.pop_front();
        }
        entries.push_back(entry);
    }
}

/// The beginning of a text that may be long.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::error::Error;

    #[test]
    fn changes_are_remembered_with_their_outcome_and_not_for_ever() {
        let (audit, asker) =
            (Audit::default(), Asker { name: None, roles: Vec::new(), from: None });
        let model = "x".repeat(10_000);
        audit.begin(&asker, "load", Some(&model), Value::Null).end(&Err(Error::not_found("no")));
        drop(audit.begin(&asker, "unload", Some("m"), Value::Null));
        let list: Value = serde_json::from_str(&audit.list()).unwrap();
        assert_eq!(list["entries"][0]["outcome"], "no");
        assert_eq!(list["entries"][0]["model"].as_str().unwrap().len(), LONGEST);
        assert!(list["entries"][1]["outcome"].as_str().unwrap().contains("went away"));
        for _ in 0..MOST + 5 {
            audit.begin(&asker, "drain", None, Value::Null).end(&Ok(()));
        }
        assert_eq!(audit.lock().len(), MOST);
    }
}
