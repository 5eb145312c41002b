//! The audit log: the last changes in memory, and all changes in the log with the target `audit`.
//!
//! Entries contain no secrets, only the names of users, models and directories, and numbers.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{ConsoleClient, ConsoleState, add_read, reply, status, text};
use tensorserve_auth::Permission;
use tensorserve_protocol::RouteGroup;
use tensorserve_tensor::error::Result;

/// The most changes that are kept in memory.
const MOST: usize = 1000;

/// The most characters of a text in an entry.
const LONGEST: usize = 500;

/// Adds the route that lists the changes.
pub(super) fn add_routes(group: &mut RouteGroup<'_, ConsoleState>) {
    let summary = "List the changes since the server started: by whom, what, and the outcome";
    add_read::<AuditLog>(group, "/api/v1/audit", Permission::Admin, summary, |state, _| {
        reply(Ok(state.audit.list()))
    });
}

/// The entries that are kept in memory.
#[derive(Default)]
pub(super) struct Audit(Mutex<VecDeque<AuditEntry>>);

/// The entries, the oldest first.
#[derive(Serialize, JsonSchema)]
struct AuditLog {
    entries: Vec<AuditEntry>,
}

/// An entry of the audit log.
#[derive(Clone, Serialize, JsonSchema)]
struct AuditEntry {
    /// When it was requested, in milliseconds since 1970.
    at: u64,
    /// The user or key that requested it.
    who: Option<String>,
    /// The address that the request came from.
    from: Option<String>,
    /// The kind of change.
    what: &'static str,
    /// The model that it is about.
    model: Option<String>,
    /// The parameters of the request.
    details: Value,
    /// `ok`, or the reason why nothing changed.
    outcome: String,
}

/// A change in progress. It is recorded when this is dropped, also if the client disconnects.
pub(super) struct PendingAuditEntry<'a> {
    audit: &'a Audit,
    entry: AuditEntry,
}

impl Audit {
    /// Begins to record a change.
    pub(super) fn begin(
        &self,
        client: &ConsoleClient,
        what: &'static str,
        model: Option<&str>,
        details: Value,
    ) -> PendingAuditEntry<'_> {
        let entry = AuditEntry {
            at: status::millis(SystemTime::now()),
            who: client.name.as_deref().map(cut),
            from: client.from.map(|from| from.to_string()),
            what,
            model: model.map(cut),
            details,
            outcome: "the client disconnected before it was done".to_owned(),
        };
        PendingAuditEntry { audit: self, entry }
    }

    /// All that is kept, as JSON.
    pub(super) fn list(&self) -> String {
        let entries: Vec<AuditEntry> = self.lock().iter().cloned().collect();
        text(&AuditLog { entries })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<AuditEntry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingAuditEntry<'_> {
    /// Records the outcome.
    pub(super) fn end(mut self, outcome: &Result<()>) {
        self.entry.outcome = match outcome {
            Ok(()) => "ok".to_owned(),
            Err(error) => cut(error.message()),
        };
    }
}

impl Drop for PendingAuditEntry<'_> {
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

/// The first characters of a text that may be long.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::error::Error;

    #[test]
    fn changes_are_kept_with_their_outcome_up_to_a_limit() {
        let (audit, client) =
            (Audit::default(), ConsoleClient { name: None, roles: Vec::new(), from: None });
        let model = "x".repeat(10_000);
        audit.begin(&client, "load", Some(&model), Value::Null).end(&Err(Error::not_found("no")));
        drop(audit.begin(&client, "unload", Some("m"), Value::Null));
        let list: Value = serde_json::from_str(&audit.list()).unwrap();
        assert_eq!(list["entries"][0]["outcome"], "no");
        assert_eq!(list["entries"][0]["model"].as_str().unwrap().len(), LONGEST);
        assert!(list["entries"][1]["outcome"].as_str().unwrap().contains("disconnected"));
        for _ in 0..MOST + 5 {
            audit.begin(&client, "drain", None, Value::Null).end(&Ok(()));
        }
        assert_eq!(audit.lock().len(), MOST);
    }
}
