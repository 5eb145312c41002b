//! The protocols that are built in, and the engine that serves them.

use std::sync::Arc;

use crate::config::Config;
use tensorserve_core::engine::{Engine, RecordFormat};
use tensorserve_core::metrics::Metrics;
use tensorserve_core::repository::{NoFormats, Repository, VersionFiles};
use tensorserve_platform::Platforms;
use tensorserve_protocol::Protocol;
use tensorserve_protocols::console::{Console, ConsoleConfig};
use tensorserve_protocols::sagemaker::Sagemaker;
use tensorserve_protocols::simple::{SimpleConfig, SimpleTensorFlowServing};
use tensorserve_protocols::tfs::TensorFlowServing;
use tensorserve_tensor::error::Result;

/// The protocols of `config`. Where two have the same route, the first one is used.
#[must_use]
pub fn built_in(config: &Config) -> Vec<Arc<dyn Protocol>> {
    let protocols = &config.protocols;
    let replaces_original = protocols.replaces_simple;
    let simple = SimpleConfig { replaces_original, exact_tfs: protocols.tfs.exact };
    let mut all: Vec<Arc<dyn Protocol>> = vec![
        Arc::new(SimpleTensorFlowServing::new(simple)),
        Arc::new(TensorFlowServing::new(protocols.tfs.clone(), config.max_tensor_bytes())),
        Arc::new(Sagemaker::new(protocols.sagemaker.clone())),
    ];
    if protocols.console {
        let admin = config.http.admin.allowed;
        all.push(Arc::new(Console::new(ConsoleConfig { admin, is_root: replaces_original })));
    }
    all
}

/// The engine for `config`, with the metrics and the file formats of `protocols`. Models are loaded
/// in the background.
///
/// # Errors
/// If a thread cannot be started.
pub fn engine(
    config: &Config,
    platforms: Platforms,
    protocols: &[Arc<dyn Protocol>],
) -> Result<Engine> {
    let exporters = protocols.iter().filter_map(|protocol| protocol.exporter()).collect();
    let files = protocols.iter().find_map(|protocol| protocol.version_files());
    let files = files.unwrap_or_else(|| Arc::new(NoFormats) as Arc<dyn VersionFiles>);
    let records = protocols.iter().find_map(|protocol| protocol.record_format());
    let records = records.unwrap_or_else(|| Arc::new(NoFormats) as Arc<dyn RecordFormat>);
    let (core, metrics) = (config.engine(), Metrics::new(exporters));
    let repository = Repository::start(&core, platforms, metrics.clone(), files, records)?;
    Ok(Engine::new(&core, repository, metrics))
}
