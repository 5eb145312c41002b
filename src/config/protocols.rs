//! Settings of the protocols.

use super::check::{Check, listed};
use super::groups::ServerSettings;
use super::settings::Settings;
use super::units::CommaSeparated;
use super::{MetricsAlias, ProtocolsConfig, SagemakerConfig, TfsConfig};
use tensorserve_core::config::is_model_name;
use tensorserve_protocols::tfs::config::{METRICS_PATH, TensorContent};

pub(super) fn protocols(server: &ServerSettings, max_body: usize) -> ProtocolsConfig {
    ProtocolsConfig {
        tfs: TfsConfig {
            exact: false,
            metrics_path: Some(METRICS_PATH.to_owned()),
            reload: false,
            tensor_content: TensorContent::IfSent,
            kserve: server.kserve_v1(),
        },
        shared_memory: server.shared_memory(),
        replaces_simple: false,
        sagemaker: SagemakerConfig {
            compatibility: server.sagemaker_compatibility(),
            default_model: server.sagemaker_default_model.clone(),
            is_container: false,
            multi_model: None,
            async_input: listed(&server.sagemaker_async_input),
            async_output: server.sagemaker_async_output.clone(),
            max_input_bytes: max_body,
        },
        vertex: None,
        console: server.console(),
        metrics_aliases: metrics_aliases(server),
    }
}

/// The aliases, each once.
fn metrics_aliases(server: &ServerSettings) -> Vec<MetricsAlias> {
    let mut aliases = Vec::new();
    let names = server.metrics_aliases.iter().flat_map(|CommaSeparated(names)| names);
    for alias in names.filter_map(|name| MetricsAlias::named(name)) {
        if !aliases.contains(&alias) {
            aliases.push(alias);
        }
    }
    aliases
}

impl Check {
    /// The name of the one model that the command line has.
    pub(super) fn model_name(&mut self, settings: &Settings) -> Option<String> {
        let name = settings.server.model_name.clone()?;
        if !is_model_name(&name) {
            // That is a mistake already.
            return None;
        }
        if settings.paths.len() == 1 {
            return Some(name);
        }
        let count = settings.paths.len();
        self.wrong("model_name", format!("requires exactly one PATH, not {count}"));
        None
    }
}
