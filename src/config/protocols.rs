//! Settings of the protocols.

use super::check::Check;
use super::groups::ServerSettings;
use super::settings::Settings;
use super::units::List;
use super::{MetricsAlias, ProtocolsConfig, SagemakerCompatibility, SagemakerConfig, TfsConfig};
use tensorserve_core::config::is_model_name;
use tensorserve_protocols::tfs::config::{METRICS_PATH, TensorContent};

impl Check {
    pub(super) fn protocols(
        &mut self,
        server: &ServerSettings,
        max_body: usize,
    ) -> ProtocolsConfig {
        ProtocolsConfig {
            tfs: TfsConfig {
                exact: false,
                metrics_path: Some(METRICS_PATH.to_owned()),
                reload: false,
                tensor_content: TensorContent::IfSent,
                kserve: server.kserve_v1.unwrap_or(false),
            },
            shared_memory: server.shared_memory.unwrap_or(false),
            replaces_simple: false,
            sagemaker: self.sagemaker(server, max_body),
            vertex: None,
            console: server.console.unwrap_or(true),
            metrics_aliases: self.metrics_aliases(server),
        }
    }

    fn metrics_aliases(&mut self, server: &ServerSettings) -> Vec<MetricsAlias> {
        let mut aliases = Vec::new();
        for name in server.metrics_aliases.iter().flat_map(|List(names)| names) {
            match MetricsAlias::named(name) {
                Some(alias) if aliases.contains(&alias) => {}
                Some(alias) => aliases.push(alias),
                None => self.wrong("metrics_aliases", format!("{name:?} is not triton or tfs")),
            }
        }
        aliases
    }

    fn sagemaker(&mut self, server: &ServerSettings, max_body: usize) -> SagemakerConfig {
        let compatibility = match server.sagemaker_compatibility.as_deref() {
            None | Some("2.19") => SagemakerCompatibility::Tf219,
            Some("2.20") => SagemakerCompatibility::Tf220,
            Some("extended") => SagemakerCompatibility::Extended,
            Some(other) => {
                let rule = "is not 2.19, 2.20 or extended";
                self.wrong("sagemaker_compatibility", format!("{other:?} {rule}"));
                SagemakerCompatibility::Tf219
            }
        };
        let default_model = server.sagemaker_default_model.clone();
        let async_input = server.sagemaker_async_input.clone().map_or(Vec::new(), |List(f)| f);
        let async_output = server.sagemaker_async_output.clone();
        if let Some(directory) = async_output.iter().find(|directory| !directory.is_absolute()) {
            let why = format!("{} is not an absolute path", directory.display());
            self.wrong("sagemaker_async_output", why);
        }
        SagemakerConfig {
            compatibility,
            default_model,
            is_container: false,
            multi_model: None,
            async_input,
            async_output,
            max_input_bytes: max_body,
        }
    }

    /// The name of the one model that the command line has.
    pub(super) fn model_name(&mut self, settings: &Settings) -> Option<String> {
        let name = settings.server.model_name.clone()?;
        if !is_model_name(&name) {
            self.wrong("model_name", "a model's name must not be empty or contain / or :");
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
