//! Versions that a command loads to run recorded requests on them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::inspect::models_at;
use super::set_libraries;
use crate::config::environment::Environment;
use crate::config::units::{CommaSeparated, HumanDuration};
use crate::config::{Config, ModelSettings, Settings};
use crate::{platforms, protocols};
use tensorserve_core::engine::{Engine, ModelHandle, ModelSpec, VersionSelector, VersionState};
use tensorserve_tensor::error::{Error, Result};

/// A version that is loaded.
pub(super) struct OfflineVersion {
    pub(super) handle: ModelHandle,
    pub(super) folder: PathBuf,
}

/// Versions that are loaded and served to nobody.
pub(super) struct OfflineVersions {
    /// As many as paths were given, in their order.
    pub(super) versions: Vec<OfflineVersion>,
    /// The most bytes of a tensor.
    pub(super) max_bytes: usize,
    // The last field, because it must be dropped after the versions.
    _engine: Engine,
}

impl OfflineVersions {
    /// Loads the version in each path, or the newest one of a directory of versions.
    ///
    /// # Errors
    /// If there is no model or there are several in a path, or one cannot be loaded.
    pub(super) fn load(
        paths: &[&Path],
        tags: &CommaSeparated<String>,
        environment: &Environment,
    ) -> Result<Self> {
        let mut settings = Settings::default();
        set_libraries(&mut settings, environment);
        // The versions are only loaded: not watched for changes, and not warmed up.
        settings.server.poll_interval = Some(HumanDuration(Duration::ZERO));
        settings.server.max_load_retries = Some(0);
        settings.each.warm_up = Some(false);
        settings.each.tags = Some(tags.clone());
        let config = Config::new(settings.clone(), environment)?.with_stderr_for_libraries();
        let platforms = platforms::built_in(&config);
        let mut found = Vec::new();
        for (number, path) in paths.iter().enumerate() {
            let [(name, folder)] = &models_at(path, &platforms, None)?[..] else {
                let place = path.display();
                return Err(Error::invalid(format!(
                    "{place} contains several models; name one of them"
                )));
            };
            // Two versions of a model are two models here.
            let name = if paths.len() == 1 { name.clone() } else { format!("{name}-{number}") };
            let (path, named) = (Some(folder.clone()), Some(name.clone()));
            settings.models.push(ModelSettings { name: named, path, ..ModelSettings::default() });
            found.push((name, folder.clone()));
        }
        let config = Config::new(settings, environment)?;
        let (engine, _) = protocols::engine(&config, platforms, &protocols::built_in(&config))?;
        engine.wait_until_started(|_| ());
        let mut versions = Vec::new();
        for (name, folder) in found {
            let spec = ModelSpec { name: &name, choice: VersionSelector::Latest };
            let handle = engine.repository().resolve(&spec);
            let handle = handle.map_err(|_| not_loaded(&engine, &name, &folder))?;
            versions.push(OfflineVersion { handle, folder });
        }
        Ok(OfflineVersions { versions, max_bytes: config.max_tensor_bytes(), _engine: engine })
    }
}

fn not_loaded(engine: &Engine, name: &str, folder: &Path) -> Error {
    let states = engine.repository().status(name).into_iter().map(|status| status.state);
    let failure = states.into_iter().find_map(|state| match state {
        VersionState::Failed(error) => Some(error.duplicate()),
        VersionState::Found(why) => Some(Error::precondition(why)),
        VersionState::Loading
        | VersionState::Warming
        | VersionState::Trial
        | VersionState::Held(_)
        | VersionState::Ready
        | VersionState::Draining
        | VersionState::Unloaded => None,
    });
    let failure = failure.unwrap_or_else(|| Error::not_found("the version could not be loaded"));
    failure.context(folder.display())
}
