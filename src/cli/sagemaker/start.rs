//! From SageMaker's variables and directories to the [`Config`] that the server runs on.
//!
//! Options and variables of tensorserve override SageMaker's variables, and these override the
//! defaults of the container.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use crate::cli::inspect::models_at;
use crate::config::environment::Environment;
use crate::config::sagemaker::{
    MODEL_DIR, MODELS_DIR, SAFE_PORTS, SagemakerVariables, UNIVERSAL_CODE, code_folder,
};
use crate::config::units::ByteSize;
use crate::config::{Config, MultiModelConfig, ServerSettings, Settings};
use crate::{platforms, stores};
use tensorserve_archive as archive;
use tensorserve_core::config::{SourceConfig, is_store_url, model_path};
use tensorserve_protocols::sagemaker::layout::{self, SavedModelBundle};
use tensorserve_protocols::tfs::config::TensorContent;
use tensorserve_tensor::error::{Error, Result};

/// What to serve, and how.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) config: Config,
    /// Warnings for the log.
    pub(super) notes: Vec<String>,
    /// What SageMaker's container prints about its configuration, for scripts that search for it.
    pub(super) report: String,
}

/// Checks the variables against the directories, and fills in defaults.
///
/// # Errors
/// Wrong settings; no models in the directory.
pub(super) fn start(
    settings: Settings,
    variables: SagemakerVariables,
    model_dir: Option<PathBuf>,
    environment: &Environment,
) -> Result<Start> {
    let pinned = settings.each.version_policy.is_none();
    let has_grpc_port = settings.server.grpc_port.is_some();
    let has_http_port = settings.server.http_port.is_some();
    let server = settings.clone().or_file().server;
    let config = Config::new(settings.or(&variables.settings), environment)?;
    let report = String::new();
    let mut start = Start { config, notes: variables.notes.clone(), report };
    start.config.protocols.sagemaker.is_container = true;
    // As the container's tensorflow_model_server: handlers read lists of values.
    start.config.protocols.tfs.tensor_content = TensorContent::Never;
    start.config.protocols.console = server.console.unwrap_or(false);
    if !has_http_port {
        start.config.http.port_setting = "SAGEMAKER_BIND_TO_PORT";
    }
    start.ports(&variables, has_grpc_port);
    let given = model_dir.or_else(|| environment.get("SAGEMAKER_MODEL_DIR").map(PathBuf::from));
    if variables.multi_model {
        start.multi_model(&server, &variables, given, environment)?;
    } else {
        let root = model_path(given.unwrap_or_else(|| MODEL_DIR.into()));
        let root = start.fetched(root)?;
        start.models(&root, pinned)?;
    }
    if let Some(batching) = &variables.batching {
        let _ = writeln!(start.report, "batching config:\n\n{batching}\n");
    }
    Ok(start)
}

impl Start {
    /// The ports of TensorFlow Serving, which handlers call. In a container they are free; on other
    /// machines several servers may run.
    fn ports(&mut self, variables: &SagemakerVariables, has_grpc_port: bool) {
        let Config { http, grpc, .. } = &mut self.config;
        if http.port != Some(variables.rest_port) {
            http.more_ports.push((variables.rest_port, SAFE_PORTS));
        }
        let port = variables.grpc_port;
        if has_grpc_port {
            return;
        }
        let is_free = can_listen(grpc.host, port);
        grpc.port = Some(if is_free { port } else { 0 });
        if !is_free {
            self.notes.push(format!("port {port} is in use: gRPC uses another port"));
        }
    }

    /// The local directory of `root`, which may be in a store.
    #[cfg(feature = "stores")]
    fn fetched(&self, root: PathBuf) -> Result<PathBuf> {
        match is_store_url(&root) {
            true => stores::download(&self.config, &root),
            false => Ok(root),
        }
    }

    #[cfg(not(feature = "stores"))]
    fn fetched(&self, root: PathBuf) -> Result<PathBuf> {
        match is_store_url(&root) {
            true => stores::check(&root).map(|()| root),
            false => Ok(root),
        }
    }

    /// The models of one `model.tar.gz`.
    fn models(&mut self, root: &Path, pinned: bool) -> Result<()> {
        let unpacked = archive::is_archive(root)
            .then(|| archive::unpacked(root, &archive::ExtractionLimits::default()))
            .transpose()?;
        let root = unpacked.as_deref().unwrap_or(root);
        let layout = match layout::find(root) {
            Err(_) if self.is_other_model(root) => return self.other_model(root),
            layout => layout?,
        };
        self.notes.extend(layout.notes);
        let names: Vec<&str> = layout.bundles.iter().map(|b| b.name.as_str()).collect();
        let default = match &self.config.protocols.sagemaker.default_model {
            Some(name) if !names.contains(&name.as_str()) => {
                let (root, names) = (root.display(), names.join(", "));
                return Err(Error::invalid(format!(
                    "SAGEMAKER_TFS_DEFAULT_MODEL_NAME: there is no model {name:?} in {root}; the \
                     models are {names}"
                )));
            }
            Some(name) => name.clone(),
            None => names.first().copied().unwrap_or_default().to_owned(),
        };
        let repository = &mut self.config.repository;
        if let Some(code) = code_folder(root) {
            repository.common.code = Some(code);
        }
        for bundle in &layout.bundles {
            repository.sources.push(bundle.source(&bundle.name, &repository.common, pinned));
        }
        let _ = writeln!(self.report, "using default model name: {default}");
        let _ = writeln!(
            self.report,
            "tensorflow serving model config:\n\n{}\n",
            listed(&layout.bundles)
        );
        self.config.protocols.sagemaker.default_model = Some(default);
        Ok(())
    }

    /// Whether a directory without a SavedModel is, or has, a model of another platform.
    fn is_other_model(&self, root: &Path) -> bool {
        let platforms = platforms::built_in(&self.config);
        models_at(root, &platforms, self.config.repository.common.platform)
            .is_ok_and(|models| models.len() == 1)
    }

    /// A model of another platform. SageMaker's containers for these have no name for it.
    fn other_model(&mut self, root: &Path) -> Result<()> {
        let repository = &mut self.config.repository;
        repository.common.code = repository.common.code.take().or_else(|| code_folder(root));
        let (path, name) = (root.to_owned(), "model".to_owned());
        let model = repository.common.clone();
        repository.sources.push(SourceConfig { path, name: Some(name.clone()), model });
        let _ = writeln!(self.report, "using default model name: {name}");
        self.config.protocols.sagemaker.default_model = Some(name);
        Ok(())
    }

    /// A multi-model endpoint, whose models are loaded by request.
    fn multi_model(
        &mut self,
        server: &ServerSettings,
        variables: &SagemakerVariables,
        given: Option<PathBuf>,
        environment: &Environment,
    ) -> Result<()> {
        let root = model_path(given.unwrap_or_else(|| MODELS_DIR.into()));
        if !is_store_url(&root) && !root.is_dir() {
            let root = root.display();
            self.notes.push(format!("{root} does not exist yet; models are loaded from it"));
        }
        let own = root.join("code");
        let universal = UNIVERSAL_CODE.iter().map(PathBuf::from).chain([own]);
        let code = universal.into_iter().find(|code| code.join("inference.py").is_file());
        let common = &mut self.config.repository.common;
        common.code = common.code.take().or(code);
        let bucket = environment.get("SAGEMAKER_MULTI_MODEL_UNIVERSAL_BUCKET").unwrap_or_default();
        if common.code.is_none() && !bucket.is_empty() {
            return Err(Error::invalid(format!(
                "SAGEMAKER_MULTI_MODEL_UNIVERSAL_BUCKET: code is not downloaded from {bucket:?}; \
                 copy it to /opt/ml/code"
            )));
        }
        let ports = (variables.rest_port, variables.grpc_port);
        self.config.protocols.sagemaker.multi_model = Some(MultiModelConfig {
            root,
            common: common.clone(),
            load_timeout: variables.load_timeout,
            ports,
            memory_limit: server.multi_model_memory_limit.map(|ByteSize(limit)| limit as u64),
            evict: server.multi_model_evict(),
            load_on_use: server.multi_model_load_on_use(),
        });
        Ok(())
    }
}

fn can_listen(host: IpAddr, port: u16) -> bool {
    TcpListener::bind(SocketAddr::new(host, port)).is_ok()
}

/// The list of models as the container prints it.
fn listed(bundles: &[SavedModelBundle]) -> String {
    let mut text = String::from("model_config_list: {\n");
    for SavedModelBundle { name, base, versions } in bundles {
        let base = base.display();
        let _ = write!(
            text,
            "  config: {{\n    name: '{name}'\n    base_path: '{base}'\n    model_platform: \
             'tensorflow'\n    model_version_policy: {{\n      specific: {{\n"
        );
        for version in versions {
            let _ = writeln!(text, "        versions: {version}");
        }
        text.push_str("      }\n    }\n  }\n");
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Command;

    use super::*;
    use crate::config::sagemaker;

    #[test]
    fn settings_of_multi_model_endpoints_come_from_options_variables_and_the_file() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let multi_model = |settings: Settings, environment: Environment| {
            let environment = environment.with("SAGEMAKER_MULTI_MODEL", "true");
            let variables = sagemaker::read(&environment);
            let root = Some(folder.path().to_owned());
            let start = start(settings.or_environment(&environment), variables, root, &environment);
            let sagemaker = start.expect("valid settings").config.protocols.sagemaker;
            sagemaker.multi_model.expect("a multi-model endpoint")
        };
        let without = multi_model(Settings::default(), Environment::default());
        let arguments = Settings::arguments();
        let arguments =
            arguments.iter().filter(|it| it.get_id().as_str().starts_with("multi_model_"));
        for argument in arguments {
            let name = argument.get_id().as_str();
            let value = if argument.get_possible_values().is_empty() { "64MiB" } else { "true" };

            let command = Command::new("serve").args(Settings::arguments());
            let option = format!("--{}={value}", name.replace('_', "-"));
            let matches = command.try_get_matches_from(["serve", &option]).expect("an option");
            let of_option = multi_model(Settings::of_options(&matches), Environment::default());
            assert!(of_option != without, "{name} is declared, and changes nothing");

            let variable = format!("TENSORSERVE_{}", name.to_ascii_uppercase());
            let environment = Environment::default().with(&variable, value);
            assert_eq!(multi_model(Settings::default(), environment), of_option, "{name}");

            let path = folder.path().join("tensorserve.toml");
            fs::write(&path, format!("{name} = '{value}'\n")).expect("written");
            let settings = Settings { config: Some(path), ..Settings::default() };
            assert_eq!(multi_model(settings, Environment::default()), of_option, "{name}");
        }
    }
}
