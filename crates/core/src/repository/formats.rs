//! What a protocol knows of the files of versions and of the request log.

use std::path::Path;

use super::{ModelHandle, TrialRequests, TrialSources};
use crate::config::BatchConfig;
use crate::request_log::{LoggedInference, RequestLogFormat};
use tensorserve_tensor::error::Result;

/// Files in a version's directory that do not belong to the model; a protocol defines their format.
pub trait VersionFiles: Send + Sync {
    /// Runs the recorded requests of a version which was just loaded from `folder`, each `times`
    /// times, before it is ready. Blocks.
    ///
    /// # Errors
    /// If the file cannot be read, or a request fails. The load fails then.
    fn warm_up(&self, handle: &ModelHandle, folder: &Path, times: usize) -> Result<()>;

    /// The batching parameters of the version in `folder`.
    ///
    /// # Errors
    /// If the file is missing or invalid.
    fn batching(&self, folder: &Path) -> Result<BatchConfig>;

    /// Recorded requests for the trial of a new version. Blocks.
    ///
    /// # Errors
    /// If a file beside a version cannot be read.
    fn recorded(&self, sources: &TrialSources<'_>) -> Result<TrialRequests>;
}

/// Without any protocol: versions have no recorded requests, and nothing is logged.
pub struct NoFormats;

impl VersionFiles for NoFormats {
    fn warm_up(&self, _version: &ModelHandle, _folder: &Path, _times: usize) -> Result<()> {
        Ok(())
    }

    fn batching(&self, _folder: &Path) -> Result<BatchConfig> {
        Ok(BatchConfig::default())
    }

    fn recorded(&self, _sources: &TrialSources<'_>) -> Result<TrialRequests> {
        Ok(TrialRequests::default())
    }
}

impl RequestLogFormat for NoFormats {
    fn record(&self, _inference: &LoggedInference) -> Option<Vec<u8>> {
        None
    }
}
