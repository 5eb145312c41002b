//! What a checkpoint says of its inputs and outputs: `P-signature.json`, as Simple TensorFlow
//! Serving and MXNet's model server read it.

use serde::Deserialize;

use tensorserve_tensor::error::{Code, Error, Result};

/// The inputs and outputs of a model.
#[derive(Deserialize)]
pub(super) struct Declared {
    pub(super) inputs: Vec<Tensor>,
    #[serde(default)]
    pub(super) outputs: Vec<Tensor>,
}

/// One of them.
#[derive(Deserialize)]
pub(super) struct Tensor {
    #[serde(rename = "data_name")]
    pub(super) name: String,
    #[serde(rename = "data_shape", default)]
    shape: Vec<i64>,
}

impl Tensor {
    /// Its shape; the first dimension, which is the batch, is open.
    pub(super) fn dims(&self) -> Vec<i64> {
        let mut dims = self.shape.clone();
        if let Some(first) = dims.first_mut() {
            *first = -1;
        }
        dims
    }
}

/// The signature in the text of a file.
///
/// # Errors
/// [`Code::DataLoss`] if it is none.
pub(super) fn read(text: &[u8]) -> Result<Declared> {
    serde_json::from_slice(text).map_err(|e| {
        let message = format!("the signature is damaged: {e}");
        Error::new(Code::DataLoss, message).with_source(e)
    })
}
