//! Other sources at run time: what becomes of the models that are loaded.
//!
//! A model whose name stays but whose source does not is loaded anew from there, even where its
//! version numbers are the same. What was loaded from the old place (its predecessors) serves on
//! until a version from the new one is ready.

use std::sync::Arc;
use std::time::Instant;

use super::LifecycleManager;
use super::control::Completion;
use super::entry::{FormerStage, Origin};
use crate::config::SourceConfig;
use crate::repository::State;
use crate::repository::source::DiscoveredModel;
use tensorserve_tensor::error::{Code, Error, Result};

impl LifecycleManager {
    /// Serves these sources from now on, instead of those before. `completion` is given when what is
    /// new is ready or has failed.
    pub(super) fn set_sources(&mut self, sources: Vec<SourceConfig>, completion: Completion) {
        log::info!("the list of models has changed");
        self.sources = sources;
        self.scans_sources = true;
        self.next_scan = Instant::now();
        self.logged.clear();
        self.shared.board().problems.clear();
        if let Some(earlier) = self.reload.replace(completion) {
            let message = "another list of models came before this one was loaded";
            earlier.finish(Err(Error::new(Code::Aborted, message)));
        }
    }

    /// Tells whoever waits for a reload how it went, when nothing is left to do for it.
    pub(super) fn complete_reload(&mut self) {
        let settled =
            self.configured_versions().filter(|version| version.aspired).all(|v| v.is_settled());
        if settled && let Some(completion) = self.reload.take() {
            completion.finish(self.outcome());
        }
    }

    /// An error that names every model that is wanted and not there, in TensorFlow Serving's
    /// words.
    fn outcome(&self) -> Result<()> {
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
        for (path, problem) in &self.shared.board().problems {
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

    /// Takes over what a source has of a model: its settings, and where it comes from.
    pub(super) fn adopt(&mut self, name: &Arc<str>, found: &DiscoveredModel) {
        let entry = self.entry(name);
        if !entry.is_configured() {
            entry.begin_incarnation(Origin::Source, found.source.clone(), found.config.clone());
            return;
        }
        let relabelled = entry.config.labels != found.config.labels;
        let relogged = entry.config.log != found.config.log;
        let moved = entry.source != found.source;
        if moved {
            entry.begin_incarnation(Origin::Source, found.source.clone(), found.config.clone());
        } else {
            entry.config = found.config.clone();
        }
        if moved || relabelled || relogged {
            self.publish(name);
        }
    }

    /// Unloads versions of earlier incarnations that no request holds any more.
    pub(super) fn unload_former(&mut self) {
        let mut idle = Vec::new();
        for entry in self.models.values_mut() {
            for former in &mut entry.former {
                if former.can_be_unloaded()
                    && let FormerStage::Draining(servable) =
                        std::mem::replace(&mut former.stage, FormerStage::Unloading)
                {
                    idle.push((former.key.clone(), servable));
                }
            }
        }
        for (key, servable) in idle {
            self.unload(key, servable);
        }
    }
}
