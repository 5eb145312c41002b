//! Changes of the list of models by clients (`HandleReloadConfigRequest`).

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::config::models;
use tensorserve_core::config::{ModelConfig, RepositoryConfig, SourceConfig};
use tensorserve_core::engine::Engine;
use tensorserve_proto::serving::ModelServerConfig;
use tensorserve_tensor::error::{Code, Error, Result};

/// The settings of models that clients cannot choose.
pub(super) struct ReloadPolicy {
    common: ModelConfig,
    /// The prefixes of request logs in the server's own configuration.
    log_prefixes: BTreeSet<PathBuf>,
}

impl ReloadPolicy {
    pub(super) fn new(config: &RepositoryConfig) -> Self {
        let models = config.sources.iter().map(|source| &source.model);
        let prefixes = models.chain([&config.common]).filter_map(|model| model.log.prefix.clone());
        ReloadPolicy { common: config.common.clone(), log_prefixes: prefixes.collect() }
    }

    /// Serves the models of `config` instead of the current ones.
    ///
    /// # Errors
    /// If the list is invalid, and for each model that did not become available.
    pub(super) async fn apply(
        &self,
        engine: &Engine,
        config: Option<&ModelServerConfig>,
    ) -> Result<()> {
        let list = match config {
            Some(config) => models::list(config, &self.common)?,
            None => None,
        };
        let list = list.ok_or_else(|| {
            Error::invalid(
                "ServerModelConfig type not supported by HandleReloadConfigRequest. Only \
                 ModelConfigList is currently supported",
            )
        })?;
        list.sources.iter().try_for_each(|source| self.check_log(source))?;
        list.notes.iter().for_each(|note| log::warn!("{note}"));
        engine.reload(list.sources).await
    }

    /// Checks that a client cannot choose where the server writes files.
    fn check_log(&self, source: &SourceConfig) -> Result<()> {
        let Some(prefix) = &source.model.log.prefix else {
            return Ok(());
        };
        if self.log_prefixes.contains(prefix) {
            return Ok(());
        }
        let name = source.name.as_deref().unwrap_or_default();
        let message = format!(
            "model {name}: a client cannot choose where requests are logged; name a \
             filename_prefix of the server's own --model_config_file"
        );
        Err(Error::new(Code::PermissionDenied, message))
    }
}

/// The error of a server whose list of models clients may not change.
pub(super) fn refusal() -> Error {
    Error::new(
        Code::PermissionDenied,
        "this server does not let clients choose its models: it was not started as \
         tensorflow_model_server",
    )
}
