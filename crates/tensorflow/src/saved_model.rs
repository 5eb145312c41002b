//! Reads a SavedModel's files without libtensorflow: what it declares, and whether all its files
//! are there. Hostile bytes end here, as typed errors, before the runtime sees them.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use prost::Message;

use super::bundle;
use super::graph::{Graph, StateChanging};
use tensorserve_platform::{Completeness, LoadOptions};
use tensorserve_proto::tensor_from_proto;
use tensorserve_proto::tensorflow::tensor_info::Encoding;
use tensorserve_proto::tensorflow::{MetaGraphDef, SavedModel, SignatureDef, TensorInfo};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{CooSparse, DeclaredShape, ImageEncoding, Signature, TensorSpec};

const FILE: &str = "saved_model.pb";
const INDEX: &str = "variables/variables.index";
/// Protobuf's own limit on a message.
const LARGEST_FILE: u64 = i32::MAX as u64;

/// Operations that turn a file into pixels.
const IMAGE_DECODERS: [&str; 7] = [
    "DecodeImage",
    "DecodeJpeg",
    "DecodePng",
    "DecodeGif",
    "DecodeBmp",
    "DecodeWebP",
    "DecodeAndCropJpeg",
];

/// Whether `folder` holds a SavedModel of any quality.
pub(super) fn is_one(folder: &Path) -> bool {
    folder.join(FILE).is_file()
}

/// Reads the graph with exactly the tags `tags`.
pub(super) fn read(folder: &Path, tags: &[String]) -> Result<MetaGraphDef> {
    let file = folder.join(FILE);
    let size = fs::metadata(&file).map_err(|e| unreadable(FILE, &e))?.len();
    if size > LARGEST_FILE {
        return Err(broken(format!("{FILE} has {size} bytes, more than protobuf allows")));
    }
    let bytes = Bytes::from(fs::read(&file).map_err(|e| unreadable(FILE, &e))?);
    if bytes.is_empty() {
        return Err(broken(format!("{FILE} is empty")));
    }
    // The decoder stops at a nesting depth of 100.
    let model = SavedModel::decode(bytes)
        .map_err(|e| broken(format!("{FILE} is not a SavedModel ({e})")).with_source(e))?;
    select(model, tags)
}

fn select(model: SavedModel, tags: &[String]) -> Result<MetaGraphDef> {
    let tags_of = |graph: &MetaGraphDef| {
        let info = graph.meta_info_def.as_ref();
        let mut tags = info.map_or(Vec::new(), |info| info.tags.clone());
        tags.sort();
        tags
    };
    let mut wanted = tags.to_vec();
    wanted.sort();
    let found: Vec<Vec<String>> = model.meta_graphs.iter().map(tags_of).collect();
    if found.is_empty() {
        return Err(broken(format!("{FILE} holds no graph")));
    }
    let mut graphs = model.meta_graphs.into_iter();
    graphs.find(|graph| tags_of(graph) == wanted).ok_or_else(|| {
        let sets: Vec<String> = found.iter().map(|tags| tags.join(",")).collect();
        Error::not_found(format!(
            "no graph with the tags {:?}; {FILE} has {:?}",
            wanted.join(","),
            sets.join("; ")
        ))
    })
}

/// Whether every file that the SavedModel names is there and long enough.
pub(super) fn check(folder: &Path) -> Completeness {
    let bytes = match fs::read(folder.join(FILE)) {
        Ok(bytes) => Bytes::from(bytes),
        Err(e) => return Completeness::Broken(unreadable(FILE, &e)),
    };
    let model = match SavedModel::decode(bytes) {
        Ok(model) if !model.meta_graphs.is_empty() => model,
        // A file that is still being written looks the same as a damaged one; the caller tells
        // them apart by whether it still changes.
        Ok(_) => return Completeness::Broken(broken(format!("{FILE} holds no graph"))),
        Err(e) => {
            let error = broken(format!("{FILE} is not a SavedModel ({e})"));
            return Completeness::Broken(error.with_source(e));
        }
    };
    for graph in &model.meta_graphs {
        for asset in &graph.asset_file_def {
            let name = format!("assets/{}", asset.filename);
            if !folder.join(&name).is_file() {
                return Completeness::Missing(name);
            }
        }
    }
    if model.meta_graphs.iter().any(restores_variables) {
        return check_variables(folder);
    }
    Completeness::Complete
}

fn restores_variables(graph: &MetaGraphDef) -> bool {
    let restores = graph.saver_def.as_ref().is_some_and(|saver| !saver.restore_op_name.is_empty());
    let definition = graph.graph_def.as_ref();
    restores && definition.is_some_and(|g| Graph::new(g).has_variables())
}

fn check_variables(folder: &Path) -> Completeness {
    // TensorFlow before 0.12 wrote one file without an index.
    if folder.join("variables/variables").is_file() {
        return Completeness::Complete;
    }
    let Ok(index) = fs::read(folder.join(INDEX)) else {
        return Completeness::Missing(INDEX.to_owned());
    };
    let Some(sizes) = bundle::shard_sizes(&index) else {
        return Completeness::Missing(format!("{INDEX} (what is there is cut short or damaged)"));
    };
    let shards = sizes.len();
    for (shard, size) in sizes.into_iter().enumerate() {
        let name = format!("variables/variables.data-{shard:05}-of-{shards:05}");
        match fs::metadata(folder.join(&name)) {
            Ok(file) if file.len() >= size => {}
            Ok(file) => {
                let have = file.len();
                return Completeness::Missing(format!("{name} ({have} of {size} bytes are there)"));
            }
            Err(_) => return Completeness::Missing(name),
        }
    }
    Completeness::Complete
}

/// The signatures a graph declares, sorted by name. Without `state` (no library at hand) none
/// counts as read-only.
pub(super) fn signatures(
    meta: &MetaGraphDef,
    options: &LoadOptions,
    state: Option<&StateChanging>,
) -> Vec<Signature> {
    let graph = meta.graph_def.as_ref().map(Graph::new);
    let of = |(name, definition): (&String, &SignatureDef)| {
        let mut signature = declared(name, definition);
        if let Some(graph) = &graph {
            let outputs = signature.outputs.iter().map(|o| o.tensor_name.as_str());
            let operations = graph.operations_behind(outputs);
            signature.read_only = state.is_some_and(|state| state.none_in(&operations));
            let decodes = |op: &&str| IMAGE_DECODERS.contains(op);
            signature.takes_images = signature.inputs.len() == 1 && operations.iter().any(decodes);
            if operations.contains("DecodeBase64") {
                signature.images = ImageEncoding::Base64Url;
            }
        }
        if let Some(images) = options.images {
            signature.images = images;
        }
        signature
    };
    meta.signature_def.iter().map(of).collect()
}

fn declared(name: &str, definition: &SignatureDef) -> Signature {
    let specs = |(alias, info): (&String, &TensorInfo)| spec(alias, info);
    let defaults = definition.defaults.iter().filter_map(|(alias, proto)| {
        tensor_from_proto(proto)
            .inspect_err(|e| log::warn!("signature {name}: default of {alias} left out: {e}"))
            .ok()
            .map(|tensor| (alias.clone(), tensor))
    });
    Signature {
        name: name.to_owned(),
        method_name: definition.method_name.clone(),
        inputs: definition.inputs.iter().map(specs).collect(),
        outputs: definition.outputs.iter().map(specs).collect(),
        defaults: defaults.collect(),
        images: ImageEncoding::Raw,
        takes_images: false,
        read_only: false,
    }
}

fn spec(alias: &str, info: &TensorInfo) -> TensorSpec {
    let shape = match &info.tensor_shape {
        None => DeclaredShape::Missing,
        Some(shape) if shape.unknown_rank => DeclaredShape::UnknownRank,
        Some(shape) => {
            let dims = shape.dim.iter().map(|dim| (dim.size, dim.name.clone()));
            DeclaredShape::Dims(dims.collect())
        }
    };
    let (tensor_name, sparse) = match &info.encoding {
        Some(Encoding::Name(name)) => (name.clone(), None),
        Some(Encoding::CooSparse(coo)) => {
            let sparse = CooSparse {
                values: coo.values_tensor_name.clone(),
                indices: coo.indices_tensor_name.clone(),
                dense_shape: coo.dense_shape_tensor_name.clone(),
            };
            (String::new(), Some(sparse))
        }
        None => (String::new(), None),
    };
    TensorSpec { alias: alias.to_owned(), tensor_name, dtype_number: info.dtype, shape, sparse }
}

/// Whether the graph holds the functions that Simple TensorFlow Serving would call around it.
pub(super) fn has_marshalled_hooks(meta: &MetaGraphDef) -> bool {
    let is_there = |name: &str| meta.collection_def.contains_key(name);
    is_there("preprocess_function") || is_there("postprocess_function")
}

/// The bytes of all files below `folder`.
pub(super) fn size_of_files(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => size_of_files(&entry.path()),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

fn broken(message: String) -> Error {
    Error::new(Code::DataLoss, message)
}

fn unreadable(name: &str, error: &std::io::Error) -> Error {
    Error::new(Code::of_io(error), format!("{name} can not be read: {error}"))
}
