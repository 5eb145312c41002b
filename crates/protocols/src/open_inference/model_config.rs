//! The model configuration extension: what Triton's tools want to know of a model.
//!
//! Source: Triton's `extension_model_configuration.md` and `model_config.proto`.

use serde_json::{Value, json};

use super::datatype;
use super::describe::{platform_of, ready_version};
use super::request::{NamedModel, signature_of};
use tensorserve_core::config::BatchMode;
use tensorserve_core::engine::Engine;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, TensorSpec};

/// An input or an output.
pub(super) struct TensorConfig {
    pub(super) name: String,
    /// None for a type that clients cannot send.
    pub(super) dtype: Option<DType>,
    /// Without the batch dimension if the model has a largest batch.
    pub(super) dims: Vec<i64>,
}

/// The configuration of a version.
pub(super) struct TritonModelConfig {
    pub(super) name: String,
    pub(super) platform: String,
    /// 0 if requests are not batched.
    pub(super) max_batch_size: usize,
    pub(super) inputs: Vec<TensorConfig>,
    pub(super) outputs: Vec<TensorConfig>,
}

impl TritonModelConfig {
    /// # Errors
    /// If the model or the version is not ready.
    pub(super) fn of(engine: &Engine, named: &NamedModel) -> Result<Self> {
        let handle = ready_version(engine, named)?;
        let (_, signature) = signature_of(&handle, None)?;
        let batching = handle.batching();
        let is_batched = batching.mode != BatchMode::Off && signature.is_batchable();
        let skipped = usize::from(is_batched);
        let tensors = |specs: &[TensorSpec]| -> Vec<TensorConfig> {
            let config = |spec: &TensorSpec| TensorConfig {
                name: spec.alias.clone(),
                dtype: spec.dtype(),
                dims: spec.shape.sizes().unwrap_or_default().into_iter().skip(skipped).collect(),
            };
            specs.iter().map(config).collect()
        };
        Ok(TritonModelConfig {
            name: named.name.clone(),
            platform: platform_of(&handle),
            max_batch_size: if is_batched { batching.max_batch_size } else { 0 },
            inputs: tensors(&signature.inputs),
            outputs: tensors(&signature.outputs),
        })
    }

    pub(super) fn json(&self) -> Value {
        let tensors = |all: &[TensorConfig]| -> Vec<Value> {
            let one = |tensor: &TensorConfig| json!({ "name": tensor.name, "data_type": tensor.type_name(), "dims": tensor.dims });
            all.iter().map(one).collect()
        };
        json!({
            "name": self.name,
            "platform": self.platform,
            "backend": self.backend(),
            "max_batch_size": self.max_batch_size,
            "input": tensors(&self.inputs),
            "output": tensors(&self.outputs),
        })
    }

    /// The part of the platform's name before its format.
    pub(super) fn backend(&self) -> &str {
        self.platform.split('_').next().unwrap_or_default()
    }
}

impl TensorConfig {
    /// The name of the type in `model_config.proto`.
    pub(super) fn type_name(&self) -> String {
        match self.dtype {
            None | Some(DType::Complex64 | DType::Complex128) => "TYPE_INVALID".to_owned(),
            Some(DType::String) => "TYPE_STRING".to_owned(),
            Some(
                dtype @ (DType::Float
                | DType::Double
                | DType::Half
                | DType::BFloat16
                | DType::Int8
                | DType::Int16
                | DType::Int32
                | DType::Int64
                | DType::UInt8
                | DType::UInt16
                | DType::UInt32
                | DType::UInt64
                | DType::Bool),
            ) => format!("TYPE_{}", datatype::name_of(dtype)),
        }
    }
}
