//! Which warnings of the library are logged: each once for a session. Many are about the model, and
//! the library repeats them in every run.

use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The most warnings of a session that are logged. They may contain what clients choose, such as the
/// shape of an input.
const MAX_WARNINGS: usize = 20;

/// The warnings that were logged, by the log ID of their session.
static LOGGED: LazyLock<Mutex<HashMap<String, HashSet<String>>>> = LazyLock::new(Mutex::default);

fn logged() -> MutexGuard<'static, HashMap<String, HashSet<String>>> {
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether to log a warning. Later calls for the same warning of the same session return false.
pub(super) fn is_new(session: &str, warning: &str) -> bool {
    let mut logged = logged();
    let Some(warnings) = logged.get_mut(session) else {
        logged.insert(session.to_owned(), HashSet::from([warning.to_owned()]));
        return true;
    };
    warnings.len() < MAX_WARNINGS && warnings.insert(warning.to_owned())
}

/// Forgets the warnings of a session that is closed.
pub(super) fn forget(session: &str) {
    logged().remove(session);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_logged_once_for_a_session() {
        assert!(is_new("once", "a") && is_new("once", "b") && is_new("other", "a"));
        assert!(!is_new("once", "a") && !is_new("other", "a"));
        forget("once");
        assert!(is_new("once", "a") && !is_new("other", "a"));
    }

    #[test]
    fn the_warnings_of_a_session_are_limited() {
        let new = (0..1000).filter(|number| is_new("many", &format!("shape {number}"))).count();
        assert_eq!(new, MAX_WARNINGS);
    }
}
