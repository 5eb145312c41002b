//! The files of a model, and what they declare.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::registry::OpRegistry;
use super::{external_ops, frozen, signatures};
use tensorserve_platform::{ExternalOp, LoadOptions};
use tensorserve_proto::tensorflow::MetaGraphDef;
use tensorserve_savedmodel::{self as saved_model, Graph};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::Result;

/// The files of a model.
pub(super) enum GraphFiles<'a> {
    /// The folder of a SavedModel.
    SavedModel(Cow<'a, Path>),
    /// The folder of a SavedModel whose main file is a text.
    Text(Cow<'a, Path>),
    /// The file of a frozen graph.
    Frozen(PathBuf),
}

impl<'a> GraphFiles<'a> {
    pub(super) fn find(folder: &'a Path) -> Result<Self> {
        match saved_model::find(folder) {
            Some(folder) if saved_model::is_text(&folder) => Ok(GraphFiles::Text(folder)),
            Some(folder) => Ok(GraphFiles::SavedModel(folder)),
            None => frozen::find(folder).map(GraphFiles::Frozen),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            GraphFiles::SavedModel(folder) | GraphFiles::Text(folder) => {
                saved_model::size_of_files(folder)
            }
            GraphFiles::Frozen(file) => file.metadata().map_or(0, |meta| meta.len()),
        }
    }
}

/// What the files of a model declare.
pub(super) struct ModelParts {
    pub(super) written_by: String,
    pub(super) signatures: Vec<Signature>,
    /// For each signature the number of one that computes the same.
    pub(super) alike: Vec<usize>,
    pub(super) marshalled_hooks: bool,
    pub(super) external_ops: Vec<ExternalOp>,
    pub(super) has_variables: bool,
}

impl ModelParts {
    /// Without `registry`, which comes from the library, no signature is read-only.
    ///
    /// # Errors
    /// If it has operations that the user refuses.
    pub(super) fn of(
        meta: &MetaGraphDef,
        options: &LoadOptions,
        registry: Option<&OpRegistry>,
    ) -> Result<Self> {
        let info = meta.meta_info_def.as_ref();
        let signatures = signatures::of_graph(meta, options, registry);
        let graph = meta.graph_def.as_ref();
        Ok(ModelParts {
            alike: graph.map_or_else(Vec::new, |graph| saved_model::alike(graph, &signatures)),
            external_ops: external_ops::check(meta, &options.ops)?,
            has_variables: meta.graph_def.as_ref().is_some_and(|it| Graph::new(it).has_variables()),
            written_by: info.map_or(String::new(), |info| info.tensorflow_version.clone()),
            signatures,
            marshalled_hooks: saved_model::has_marshalled_hooks(meta),
        })
    }
}
