//! Other sources at run time: what becomes of the models that are loaded.
//!
//! A model whose name stays but whose source does not is loaded anew from there, even where its
//! version numbers are the same. What was loaded from the old place (its predecessors) serves on
//! until a version from the new one is ready.

use super::LifecycleManager;
use super::control::Completion;
use crate::config::SourceConfig;
use crate::repository::State;
use crate::repository::version::Version;
use tensorserve_tensor::error::{Code, Error, Result};

/// A request that has changed the sources.
pub(super) struct Reload {
    completion: Completion,
    /// The new sources have been scanned.
    pub(super) is_scanned: bool,
}

impl LifecycleManager {
    /// Serves these sources from now on, instead of those before. `completion` is given when what is
    /// new is ready or has failed.
    pub(super) fn set_sources(&mut self, sources: Vec<SourceConfig>, completion: Completion) {
        log::info!("the list of models has changed");
        self.sources = sources;
        self.schedule.scan_sources_now();
        self.logged.clear();
        self.problems.clear();
        if let Some(earlier) = self.reload.replace(Reload { completion, is_scanned: false }) {
            let message = "another list of models came before this one was loaded";
            let error = Error::new(Code::Aborted, message);
            self.outcomes.push((earlier.completion, Err(error)));
        }
    }

    /// Completes the request that has changed the sources, when nothing is left to do for it.
    pub(super) fn complete_reload(&mut self) {
        let is_settled = |version: &Version| !version.aspired || version.is_settled();
        let is_scanned = self.reload.as_ref().is_some_and(|reload| reload.is_scanned);
        if is_scanned
            && self.configured_versions().all(is_settled)
            && let Some(reload) = self.reload.take()
        {
            self.outcomes.push((reload.completion, self.reload_outcome()));
        }
    }

    /// An error that names every model that is wanted and not there, in TensorFlow Serving's
    /// words.
    fn reload_outcome(&self) -> Result<()> {
        let mut failures = Vec::new();
        for (name, model) in self.models.iter().filter(|(_, model)| model.is_configured()) {
            let mut wanted = model.versions.iter().rev().filter(|(_, version)| version.aspired);
            if wanted.clone().any(|(_, version)| matches!(version.state, State::Ready)) {
                continue;
            }
            if let Some((number, version)) = wanted.next() {
                let why = version.state.to_string();
                failures.push(format!("{{name: {name} version: {number}}} due to error: {why}"));
            }
        }
        for (path, problem) in &self.problems {
            let source = self.sources.iter().find(|s| s.path.display().to_string() == *path);
            let name = source.and_then(|source| source.name.as_deref()).unwrap_or(path);
            failures.push(format!("{{name: {name}}} due to error: {path}: {problem}"));
        }
        if failures.is_empty() {
            return Ok(());
        }
        let (count, failures) = (failures.len(), failures.join(", "));
        let message = format!("{count} model(s) did not become available: {{{failures}, }}");
        Err(Error::new(Code::Unknown, message))
    }
}
