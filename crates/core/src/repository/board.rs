//! The status of models and sources for readers. Only the lifecycle manager writes it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::{LoadedModel, VersionState, VersionStatus};

/// The status of all models and sources.
#[derive(Default)]
pub(super) struct Board {
    /// Models that a source has or a request has loaded, or is loading.
    pub(super) models: BTreeMap<Arc<str>, ModelStatus>,
    /// Sources that cannot be used, by path, and why.
    pub(super) problems: BTreeMap<String, String>,
    /// Whether every model found at the start has been loaded or has failed.
    pub(super) started: bool,
    /// Set once: the lifecycle manager loads nothing more, and its thread ends.
    pub(super) stopped: bool,
}

/// The status of one model.
pub(super) struct ModelStatus {
    /// Where it comes from.
    pub(super) origin: ModelOrigin,
    /// The path of its source.
    pub(super) source: PathBuf,
    /// An operator has taken it out of service.
    pub(super) is_out_of_service: bool,
    pub(super) versions: BTreeMap<i64, VersionStatus>,
}

/// Why a model is on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelOrigin {
    /// A source has it.
    Source,
    /// A request is loading it.
    Loading,
    /// A request has loaded it.
    Loaded,
}

impl ModelStatus {
    /// Whether it is there because of a request, and not because a source has it.
    pub(super) fn is_requested(&self) -> bool {
        self.origin != ModelOrigin::Source
    }
}

impl Board {
    /// The status of every version of a model, highest number first.
    pub(super) fn versions(&self, model: &str) -> Vec<VersionStatus> {
        let versions = self.models.get(model).into_iter().flat_map(|status| &status.versions);
        let mut versions: Vec<_> = versions.map(|(_, status)| status.clone()).collect();
        versions.reverse();
        versions
    }

    /// The models that requests have loaded, sorted by name.
    pub(super) fn loaded_models(&self) -> Vec<LoadedModel> {
        let loaded = self.models.iter().filter(|(_, it)| it.origin == ModelOrigin::Loaded);
        let models = loaded.map(|(name, status)| LoadedModel {
            name: name.to_string(),
            path: status.source.clone(),
        });
        models.collect()
    }

    /// Reasons why not every source and model is ready. `is_ready` reports whether a model has a
    /// ready version.
    pub(super) fn obstacles(&self, is_ready: impl Fn(&str) -> bool) -> Vec<String> {
        let mut obstacles = Vec::new();
        if !self.started {
            obstacles.push("models are being discovered and loaded".to_owned());
        }
        for (model, status) in &self.models {
            // A request that loads a model reports its outcome itself.
            if status.is_requested() {
                continue;
            }
            if is_ready(model) {
                let blocked = status.versions.values().filter_map(|it| Some((it, it.obstacle()?)));
                obstacles.extend(blocked.map(|(it, why)| {
                    format!("model {model}: version {}: {}", it.version, why.message())
                }));
                continue;
            }
            // A model whose last version is unloaded was removed on purpose.
            if let Some(latest) = status.versions.values().rev().find(|it| stays(&it.state)) {
                let (version, state) = (latest.version, latest.state.on_one_line());
                obstacles.push(format!("model {model}: version {version}: {state}"));
            }
        }
        let problems = self.problems.iter().map(|(path, problem)| format!("{path}: {problem}"));
        obstacles.extend(problems);
        obstacles
    }
}

/// Whether a version in this state serves, or is meant to serve.
fn stays(state: &VersionState) -> bool {
    !matches!(state, VersionState::Draining | VersionState::Unloaded)
}
