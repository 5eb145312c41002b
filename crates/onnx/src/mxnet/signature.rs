//! The declared inputs and outputs of a checkpoint: `P-signature.json`, in the format of Simple
//! TensorFlow Serving and MXNet's model server.

use serde::Deserialize;

use tensorserve_tensor::error::{Code, Error, Result};

/// The inputs and outputs of a checkpoint.
#[derive(Deserialize)]
pub(super) struct CheckpointSignature {
    pub(super) inputs: Vec<DeclaredTensor>,
    #[serde(default)]
    pub(super) outputs: Vec<DeclaredTensor>,
}

/// An input or output.
#[derive(Deserialize)]
pub(super) struct DeclaredTensor {
    #[serde(rename = "data_name")]
    pub(super) name: String,
    #[serde(rename = "data_shape", default)]
    shape: Vec<i64>,
}

impl DeclaredTensor {
    /// Its shape, in which the first dimension, the batch size, is -1.
    pub(super) fn dims(&self) -> Vec<i64> {
        let mut dims = self.shape.clone();
        if let Some(first) = dims.first_mut() {
            *first = -1;
        }
        dims
    }
}

/// Parses the text of a signature file.
///
/// # Errors
/// [`Code::DataLoss`] if the text is not a valid signature.
pub(super) fn read(text: &[u8]) -> Result<CheckpointSignature> {
    serde_json::from_slice(text).map_err(|error| {
        let message = format!("the signature file is invalid: {error}");
        Error::new(Code::DataLoss, message).with_source(error)
    })
}
