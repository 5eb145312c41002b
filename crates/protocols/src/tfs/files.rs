//! Files in a version's directory that TensorFlow Serving defines.

use std::path::Path;

use super::config::batching;
use super::{recorded, warm_up};
use tensorserve_core::config::BatchConfig;
use tensorserve_core::engine::{ModelHandle, TrialRequests, TrialSources};
use tensorserve_core::repository::VersionFiles;
use tensorserve_tensor::error::Result;

/// Recorded requests (`assets.extra/tf_serving_warmup_requests`) and batching parameters
/// (`batching_params.pbtxt`).
pub(super) struct TfsFiles {
    /// The most memory that one input may take, in bytes.
    pub(super) max_tensor_bytes: usize,
}

impl VersionFiles for TfsFiles {
    fn warm_up(&self, version: &ModelHandle, folder: &Path, times: usize) -> Result<()> {
        warm_up::run_file(version, folder, times, self.max_tensor_bytes)
    }

    fn batching(&self, folder: &Path) -> Result<BatchConfig> {
        batching::of_version(folder)
    }

    fn recorded(&self, sources: &TrialSources<'_>) -> Result<TrialRequests> {
        recorded::requests(sources, self.max_tensor_bytes)
    }
}
