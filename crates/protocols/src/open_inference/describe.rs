//! Metadata of the server and its models, and their readiness.

use serde_json::{Value, json};

use super::datatype;
use super::request::{NamedModel, signature_of};
use tensorserve_core::engine::{Engine, ModelHandle, ModelSpec, VersionSelector, VersionState};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DeclaredShape, TensorSpec};

/// The name of the server in its metadata.
pub(super) const NAME: &str = "tensorserve";

/// Its version.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The extensions that it has.
pub(super) const EXTENSIONS: [&str; 7] = [
    "binary_tensor_data",
    "model_repository",
    "model_configuration",
    "statistics",
    "system_shared_memory",
    "trace",
    "logging",
];

/// What the metadata of a model says.
pub(super) struct ModelMetadata {
    pub(super) name: String,
    pub(super) versions: Vec<String>,
    pub(super) platform: String,
    pub(super) inputs: Vec<TensorMetadata>,
    pub(super) outputs: Vec<TensorMetadata>,
}

/// What it says of an input or an output.
pub(super) struct TensorMetadata {
    pub(super) name: String,
    pub(super) datatype: &'static str,
    /// -1 for a dimension of unknown size; empty also if the rank is unknown.
    pub(super) shape: Vec<i64>,
}

impl TensorMetadata {
    fn of(spec: &TensorSpec) -> Self {
        let shape = match &spec.shape {
            DeclaredShape::Dims(_) => spec.shape.sizes().unwrap_or_default(),
            DeclaredShape::UnknownRank | DeclaredShape::Missing => Vec::new(),
        };
        let datatype = spec.dtype().map_or("INVALID", datatype::name_of);
        TensorMetadata { name: spec.alias.clone(), datatype, shape }
    }

    fn json(&self) -> Value {
        json!({ "name": self.name, "datatype": self.datatype, "shape": self.shape })
    }
}

impl ModelMetadata {
    /// The metadata of a model, or of one version of it.
    ///
    /// # Errors
    /// If it is not ready.
    pub(super) fn of(engine: &Engine, named: &NamedModel) -> Result<Self> {
        let handle = ready_version(engine, named)?;
        let (_, signature) = signature_of(&handle, None)?;
        let versions = match named.version.is_empty() {
            true => ready_versions(engine, &named.name),
            false => vec![handle.version().to_string()],
        };
        Ok(ModelMetadata {
            name: named.name.clone(),
            versions,
            platform: platform_of(&handle),
            inputs: signature.inputs.iter().map(TensorMetadata::of).collect(),
            outputs: signature.outputs.iter().map(TensorMetadata::of).collect(),
        })
    }

    pub(super) fn json(&self) -> Value {
        let all = |tensors: &[TensorMetadata]| -> Vec<Value> {
            tensors.iter().map(TensorMetadata::json).collect()
        };
        json!({
            "name": self.name,
            "versions": self.versions,
            "platform": self.platform,
            "inputs": all(&self.inputs),
            "outputs": all(&self.outputs),
        })
    }
}

/// The version that a request names, if it is ready.
///
/// # Errors
/// [`Code::NotFound`](tensorserve_tensor::error::Code::NotFound) for an unknown model or version,
/// [`Code::Unavailable`](tensorserve_tensor::error::Code::Unavailable) for one that is not ready.
pub(super) fn ready_version(engine: &Engine, named: &NamedModel) -> Result<ModelHandle> {
    let spec: ModelSpec<'_> = named.spec();
    let unresolved = match engine.repository().resolve(&spec) {
        Ok(handle) => return Ok(handle),
        Err(unresolved) => unresolved,
    };
    let is_meant = |version: i64| match spec.choice {
        VersionSelector::Version(number) => number == version,
        VersionSelector::Latest => true,
        VersionSelector::Label(_) => false,
    };
    let is_coming = |state: &VersionState| !matches!(state, VersionState::Unloaded);
    let versions = engine.repository().status(&named.name);
    let found = versions.iter().find(|status| is_meant(status.version) && is_coming(&status.state));
    match found {
        Some(status) => Err(Error::unavailable(format!(
            "model '{}' version {} is not ready: {}",
            named.name,
            status.version,
            status.state.on_one_line()
        ))),
        None => Err(named.not_served(unresolved)),
    }
}

/// Whether the server has, or has had, a model of this name.
pub(super) fn is_known(engine: &Engine, name: &str) -> bool {
    !engine.repository().status(name).is_empty()
}

fn ready_versions(engine: &Engine, name: &str) -> Vec<String> {
    let mut versions: Vec<i64> = engine
        .repository()
        .status(name)
        .into_iter()
        .filter(|status| matches!(status.state, VersionState::Ready))
        .map(|status| status.version)
        .collect();
    versions.sort_unstable();
    versions.iter().map(ToString::to_string).collect()
}

/// The protocol's name of a platform, where it has one.
pub(super) fn platform_of(handle: &ModelHandle) -> String {
    match handle.platform().name {
        "tensorflow" => "tensorflow_savedmodel",
        "onnx" => "onnx_onnxv1",
        other => other,
    }
    .to_owned()
}
