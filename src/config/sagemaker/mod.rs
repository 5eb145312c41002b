//! SageMaker's container contract: what its environment variables and its folders say.
//!
//! [`read`] turns the variables into settings of ours and checks them. Which protocol answers, and
//! how, is not known here.

use std::path::Path;

mod variables;

pub use tensorserve_protocols::sagemaker::multi_model::{MODELS_DIR, code_folder};

pub use self::variables::{Variables, read};

use super::environment::Environment;

/// Where SageMaker puts the one `model.tar.gz` of an endpoint, unpacked.
pub const MODEL_DIR: &str = "/opt/ml/model";

/// Where code for all models of a multi-model endpoint is, first place first.
pub const UNIVERSAL_CODE: [&str; 2] = ["/opt/ml/code", "/opt/ml/models/code"];

/// Whether a call without any models seems to be SageMaker's.
#[must_use]
pub fn is_called_for(environment: &Environment) -> bool {
    let folders = [MODEL_DIR, MODELS_DIR].map(Path::new);
    variables::are_set(environment) || folders.iter().any(|folder| folder.is_dir())
}
