//! How SageMaker's API is set up.

use std::path::PathBuf;

use super::multi_model::MultiModelConfig;

/// SageMaker's TensorFlow Serving container, and the service in front of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SagemakerConfig {
    /// Which image to answer as.
    pub compatibility: Compatibility,
    /// The model that is meant when none is named; the only one without it.
    pub default_model: Option<String>,
    /// This is the container: paths that nobody knows get its 404.
    pub is_container: bool,
    /// Folders from which asynchronous invocations may read their input.
    pub async_input: Vec<PathBuf>,
    /// Folder of the output of asynchronous invocations; there are none without it.
    pub async_output: Option<PathBuf>,
    /// The most bytes that the input of an asynchronous invocation may have.
    pub max_input_bytes: usize,
    /// Models come and go by request.
    pub multi_model: Option<MultiModelConfig>,
}

/// Which image of SageMaker's container to answer as, where they differ and none fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compatibility {
    /// Those up to TensorFlow Serving 2.19.
    #[default]
    Tf219,
    /// The one with TensorFlow Serving 2.20.
    Tf220,
    /// None: what `Accept` asks for is given.
    Extended,
}
