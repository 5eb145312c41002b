//! Other sources at run time: what becomes of the models that are loaded.
//!
//! A model whose name stays but whose source does not is loaded anew from there, even where its
//! version numbers are the same. What was loaded from the old place (its predecessors) serves on
//! until a version from the new one is ready.

use std::sync::Arc;
use std::time::Instant;

use super::control::Completion;
use super::{LifecycleManager, VersionKey};
use crate::config::SourceConfig;
use crate::repository::State;
use crate::repository::servable::Servable;
use crate::repository::source::DiscoveredModel;
use tensorserve_tensor::error::{Code, Error, Result};

impl LifecycleManager {
    /// Serves these sources from now on, instead of those before. `completion` is given when what is
    /// new is ready or has failed.
    pub(super) fn set_sources(&mut self, sources: Vec<SourceConfig>, completion: Completion) {
        log::info!("the list of models has changed");
        self.sources = sources;
        self.looks = true;
        self.next_look = Instant::now();
        self.noted.clear();
        self.shared.board().problems.clear();
        if let Some(earlier) = self.reload.replace(completion) {
            let message = "another list of models came before this one was loaded";
            earlier.finish(Err(Error::new(Code::Aborted, message)));
        }
    }

    /// Tells whoever waits for a reload how it went, when nothing is left to do for it.
    pub(super) fn answer_reload(&mut self) {
        let settled = self.versions().filter(|version| version.aspired).all(|v| v.is_settled());
        if settled && let Some(completion) = self.reload.take() {
            completion.finish(self.outcome());
        }
    }

    /// An error that names every model that is wanted and not there, in TensorFlow Serving's
    /// words.
    fn outcome(&self) -> Result<()> {
        let mut failures = Vec::new();
        for (name, model) in self.models.iter().filter(|(_, model)| model.is_of_sources()) {
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

    /// Takes over what was found of a model: its settings, and where it comes from.
    pub(super) fn adopt(&mut self, name: &Arc<str>, found: &DiscoveredModel) {
        let Some(model) = self.models.get_mut(name) else {
            self.lives += 1;
            let model = super::Model::new(found, self.lives);
            self.models.insert(Arc::clone(name), model);
            return;
        };
        let relabelled = model.config.labels != found.config.labels;
        let relogged = model.config.log != found.config.log;
        let moved = model.source != found.source;
        model.config = found.config.clone();
        if moved {
            self.lives += 1;
            // What still loads from the old place reports to the old life, and is dropped then.
            let old = std::mem::replace(model, super::Model::new(found, self.lives));
            for (number, version) in old.versions {
                let serves = matches!(version.state, State::Ready);
                let Some(servable) = version.servable else {
                    continue;
                };
                let key = VersionKey { model: Arc::clone(name), version: number, life: old.life };
                if serves {
                    let name = Arc::clone(name);
                    self.predecessors.entry(name).or_default().push((key, servable));
                } else {
                    self.parting.push((key, servable));
                }
            }
        }
        if moved || relabelled || relogged {
            self.publish(name);
        }
    }

    /// What serves in place of a model that has no ready version of its own yet.
    pub(super) fn stand_ins(&self, name: &Arc<str>) -> Vec<Arc<Servable>> {
        let all = self.predecessors.get(name).into_iter().flatten();
        all.map(|(_, servable)| Arc::clone(servable)).collect()
    }

    /// No request gets the predecessors of `name` any more.
    pub(super) fn part_with_predecessors(&mut self, name: &Arc<str>) {
        self.parting.extend(self.predecessors.remove(name).into_iter().flatten());
    }

    /// Unloads those that no request holds any more.
    pub(super) fn finish_partings(&mut self) {
        let all = std::mem::take(&mut self.parting).into_iter();
        let (free, held) = all.partition(|(_, servable)| servable.is_idle());
        self.parting = held;
        let free: Vec<(VersionKey, Arc<Servable>)> = free;
        for (key, servable) in free {
            self.unload(key, servable);
        }
    }
}
