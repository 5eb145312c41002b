//! Other sources while the server runs.
//!
//! A model whose name stays but whose source changes is loaded anew from there, even where its
//! version numbers are the same. What was loaded from the old source (its predecessors) serves
//! until a version from the new one is ready.

use super::LifecycleManager;
use super::control::Completion;
use crate::config::SourceConfig;
use crate::repository::version::Version;
use tensorserve_tensor::error::{Code, Error, Result};

impl LifecycleManager {
    /// Replaces the sources. Done when every version of the new ones is ready or has failed.
    pub(super) fn set_sources(&mut self, sources: Vec<SourceConfig>, completion: Completion) {
        log::info!("the list of models has changed");
        self.logged.clear();
        if let Some(earlier) = self.sources.replace(sources, completion) {
            let message = "another list of models replaced this one before it was loaded";
            self.outcomes.push((earlier, Err(Error::new(Code::Aborted, message))));
        }
    }

    /// Completes the request that has replaced the sources, when nothing is left to do for it.
    pub(super) fn complete_reload(&mut self) {
        let is_settled = |version: &Version| !version.aspired || version.is_settled();
        if self.sources.are_replaced() && self.configured_versions().all(is_settled) {
            let outcome = self.reload_outcome();
            let replacement = self.sources.take_replacement();
            self.outcomes.extend(replacement.map(|completion| (completion, outcome)));
        }
    }

    /// An error that names every model that has an aspired version and no ready one, in TensorFlow
    /// Serving's words.
    fn reload_outcome(&self) -> Result<()> {
        let mut failures = Vec::new();
        for (name, entry) in self.models.iter().filter(|(_, entry)| entry.is_configured()) {
            let mut aspired = entry.versions.iter().rev().filter(|(_, version)| version.aspired);
            if aspired.clone().any(|(_, version)| version.is_ready()) {
                continue;
            }
            if let Some((number, version)) = aspired.next() {
                let why = version.state.to_string();
                failures.push(format!("{{name: {name} version: {number}}} due to error: {why}"));
            }
        }
        for (path, problem) in self.sources.problems() {
            let name = self.sources.name_of(path).unwrap_or(path);
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
