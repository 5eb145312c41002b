//! The configuration of SageMaker's API.

use std::path::PathBuf;

use super::multi_model::MultiModelConfig;

/// The configuration of SageMaker's container and of the service in front of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SagemakerConfig {
    /// The image to be compatible with.
    pub compatibility: Compatibility,
    /// The model of requests that do not name one; by default the only one.
    pub default_model: Option<String>,
    /// The server replaces the container: unknown paths get its 404.
    pub is_container: bool,
    /// The directories from which asynchronous invocations may read their input.
    pub async_input: Vec<PathBuf>,
    /// The output directory of asynchronous invocations; without it they are refused.
    pub async_output: Option<PathBuf>,
    /// The most bytes of the input of an asynchronous invocation.
    pub max_input_bytes: usize,
    /// Present for a multi-model endpoint, whose models are loaded and unloaded by request.
    pub multi_model: Option<MultiModelConfig>,
}

/// The image of SageMaker's container to be compatible with, where the images differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compatibility {
    /// The images up to TensorFlow Serving 2.19.
    #[default]
    Tf219,
    /// The image with TensorFlow Serving 2.20.
    Tf220,
    /// None: `Accept` is followed in full.
    Extended,
}
