//! SageMaker's container contract: what its environment variables and its folders say.
//!
//! [`read`] turns the variables into settings of ours and checks them; [`layout`] finds the models
//! in an unpacked `model.tar.gz`. Which protocol answers, and how, is not known here.

use std::path::{Path, PathBuf};
use std::time::Duration;

pub mod layout;
mod variables;

pub use self::variables::{Variables, read};

use super::environment::Environment;

/// Where SageMaker puts the one `model.tar.gz` of an endpoint, unpacked.
pub const MODEL_DIR: &str = "/opt/ml/model";

/// Where SageMaker puts the models of a multi-model endpoint.
pub const MODELS_DIR: &str = "/opt/ml/models";

/// Where code for all models of a multi-model endpoint is, first place first.
pub const UNIVERSAL_CODE: [&str; 2] = ["/opt/ml/code", "/opt/ml/models/code"];

/// A multi-model endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiModelConfig {
    /// Folders that models may be loaded from. The first stands for [`MODELS_DIR`].
    pub roots: Vec<PathBuf>,
    /// A model must be ready after so long.
    pub load_timeout: Duration,
    /// The port that answers say a model listens on, for REST and for gRPC.
    pub ports: (u16, u16),
}

/// Whether a call without any models seems to be SageMaker's.
#[must_use]
pub fn is_called_for(environment: &Environment) -> bool {
    let folders = [MODEL_DIR, MODELS_DIR].map(Path::new);
    variables::are_set(environment) || folders.iter().any(|folder| folder.is_dir())
}

/// The folder with a model's own code, if it has any that is run.
#[must_use]
pub fn code_folder(folder: &Path) -> Option<PathBuf> {
    let code = folder.join("code");
    code.join("inference.py").is_file().then_some(code)
}
