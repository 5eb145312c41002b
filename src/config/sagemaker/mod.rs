//! SageMaker's container contract: its environment variables and its directories.
//!
//! [`read`] checks the variables and turns them into settings.

use std::path::Path;

mod variables;

pub use tensorserve_protocols::sagemaker::multi_model::{MODELS_DIR, code_folder};

pub use self::variables::{SAFE_PORTS, SagemakerVariables, read};

use super::environment::Environment;

/// The directory in which SageMaker unpacks the `model.tar.gz` of an endpoint.
pub const MODEL_DIR: &str = "/opt/ml/model";

/// The directories of code for all models of a multi-model endpoint, in order of precedence.
pub const UNIVERSAL_CODE: [&str; 2] = ["/opt/ml/code", "/opt/ml/models/code"];

/// Whether a call without any models seems to be SageMaker's.
#[must_use]
pub fn is_called_for(environment: &Environment) -> bool {
    let folders = [MODEL_DIR, MODELS_DIR].map(Path::new);
    variables::are_set(environment) || folders.iter().any(|folder| folder.is_dir())
}
