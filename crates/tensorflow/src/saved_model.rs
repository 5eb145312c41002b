//! Reads a SavedModel's files without libtensorflow: its signatures, and whether all its files
//! exist. Malformed files are rejected here, with typed errors, before the runtime reads them.

use std::borrow::Cow;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;

use super::bundle;
use super::graph::{Graph, OpRegistry, are_bounded, are_repeatable, need_exact_shapes};
use super::rows::{self, GraphFindings};
use tensorserve_platform::{Completeness, LoadOptions, files, names_version};
use tensorserve_proto::tensor_from_proto;
use tensorserve_proto::tensorflow::tensor_info::Encoding;
use tensorserve_proto::tensorflow::{MetaGraphDef, SavedModel, SignatureDef, TensorInfo};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{
    CooSparse, DeclaredShape, ImageEncoding, RowDependence, Signature, TensorSpec,
};

const FILE: &str = "saved_model.pb";

/// The main file in protobuf's text format, which the runtime reads where there is no other.
const TEXT_FILE: &str = "saved_model.pbtxt";

/// The directory of a SavedModel in a version directory, in Triton's repositories.
const TRITON_FOLDER: &str = "model.savedmodel";
const INDEX: &str = "variables/variables.index";

/// The largest protobuf message in bytes.
pub(super) const MAX_FILE_SIZE: u64 = i32::MAX as u64;

/// Operations that decode image files.
const IMAGE_DECODERS: [&str; 7] = [
    "DecodeImage",
    "DecodeJpeg",
    "DecodePng",
    "DecodeGif",
    "DecodeBmp",
    "DecodeWebP",
    "DecodeAndCropJpeg",
];

/// The directory that contains the SavedModel of `folder`: `folder` itself or, if its name is a version number, its
/// subdirectory `model.savedmodel`, as in Triton's repositories. `None` if neither contains a saved_model.pb or
/// saved_model.pbtxt. Does not read the file.
pub(super) fn find(folder: &Path) -> Option<Cow<'_, Path>> {
    let exists = |folder: &Path| folder.join(FILE).is_file() || folder.join(TEXT_FILE).is_file();
    if exists(folder) {
        return Some(folder.into());
    }
    let is_version = folder.file_name()?.to_str().is_some_and(names_version);
    let inner = folder.join(TRITON_FOLDER);
    (is_version && exists(&inner)).then(|| inner.into())
}

/// The error that operations of a SavedModel whose main file is a text cannot be refused: the runtime reads
/// it, and runs its initialization, before they are known.
pub(super) fn unchecked(folder: &Path) -> Error {
    let path = folder.display();
    Error::new(
        Code::Unimplemented,
        format!(
            "{path}: operations are refused (deny_ops), which needs a {FILE}; make one of {TEXT_FILE} with \
             `python3 -c 'import sys; from google.protobuf import text_format; from \
             tensorflow.core.protobuf.saved_model_pb2 import SavedModel; name = sys.argv[1]; model = \
             text_format.Parse(open(name).read(), SavedModel()); open(name[:-3], \"wb\").write(model.SerializeToString())' \
             {path}/{TEXT_FILE}`"
        ),
    )
}

/// Whether the main file of the SavedModel in `folder` is a text.
pub(super) fn is_text(folder: &Path) -> bool {
    !folder.join(FILE).is_file()
}

/// The main file of the SavedModel in `folder`.
pub(super) fn main_file(folder: &Path) -> PathBuf {
    folder.join(FILE)
}

/// The content of the main file.
pub(super) fn read_main_file(folder: &Path) -> Result<Bytes> {
    let bytes = Bytes::from(read_file(&main_file(folder)).map_err(|e| read_error(FILE, &e))?);
    match bytes.is_empty() {
        true => Err(data_loss(format!("{FILE} is empty"))),
        false => Ok(bytes),
    }
}

/// Reads the graph that has exactly the tags `tags`.
pub(super) fn read(folder: &Path, tags: &[String]) -> Result<MetaGraphDef> {
    Ok(numbered_graph(read_main_file(folder)?, tags)?.1)
}

/// The graph that has exactly the tags `tags`, and its number, of a main file with this content.
pub(super) fn numbered_graph(bytes: Bytes, tags: &[String]) -> Result<(usize, MetaGraphDef)> {
    select_graph(decode(bytes)?, tags)
}

/// The content of a file, which has at most as many bytes as protobuf allows.
fn read_file(file: &Path) -> std::io::Result<Vec<u8>> {
    files::read_open(&files::open(file)?, MAX_FILE_SIZE)
}

/// Decodes the main file. The decoder refuses messages that are nested deeper than 100 levels.
fn decode(bytes: Bytes) -> Result<SavedModel> {
    SavedModel::decode(bytes)
        .map_err(|e| data_loss(format!("{FILE} is not a SavedModel ({e})")).with_source(e))
}

fn select_graph(model: SavedModel, tags: &[String]) -> Result<(usize, MetaGraphDef)> {
    if model.meta_graphs.is_empty() {
        return Err(data_loss(format!("{FILE} has no graph")));
    }
    let mut selected = tags.to_vec();
    // An option cannot give an empty list otherwise.
    selected.retain(|tag| !tag.is_empty());
    selected.sort();
    let available: Vec<Vec<String>> = model.meta_graphs.iter().map(sorted_tags).collect();
    let mut graphs = model.meta_graphs.into_iter().enumerate();
    graphs.find(|(_, graph)| sorted_tags(graph) == selected).ok_or_else(|| {
        let sets: Vec<String> = available.iter().map(|tags| tags.join(",")).collect();
        Error::not_found(format!(
            "no graph with the tags {:?}; {FILE} has {:?}: select one with tags (`tags = []` for a module \
             of TensorFlow Hub, which has none)",
            selected.join(","),
            sets.join("; ")
        ))
    })
}

fn sorted_tags(graph: &MetaGraphDef) -> Vec<String> {
    let info = graph.meta_info_def.as_ref();
    let mut tags = info.map_or(Vec::new(), |info| info.tags.clone());
    tags.sort();
    tags
}

/// Whether all files that the SavedModel names exist and are long enough.
pub(super) fn check(folder: &Path) -> Completeness {
    if is_text(folder) {
        // Only the runtime can read it. Models without variables have no such directory.
        return match folder.join("variables").is_dir() {
            true => check_variables(folder),
            false => Completeness::Complete,
        };
    }
    let bytes = match read_file(&folder.join(FILE)) {
        Ok(bytes) => Bytes::from(bytes),
        Err(e) => return Completeness::Broken(read_error(FILE, &e)),
    };
    // A file that is still being written looks like a damaged one. The caller distinguishes them by
    // whether the file still changes.
    let model = match decode(bytes) {
        Ok(model) if !model.meta_graphs.is_empty() => model,
        Ok(_) => return Completeness::Broken(data_loss(format!("{FILE} has no graph"))),
        Err(error) => return Completeness::Broken(error),
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
    let Ok(index) = read_file(&folder.join(INDEX)) else {
        return Completeness::Missing(INDEX.to_owned());
    };
    let Some(sizes) = bundle::shard_sizes(&index) else {
        let name = format!("{INDEX} (the existing file is truncated or damaged)");
        return Completeness::Missing(name);
    };
    let shards = sizes.len();
    for (shard, size) in sizes.into_iter().enumerate() {
        let name = format!("variables/variables.data-{shard:05}-of-{shards:05}");
        match fs::metadata(folder.join(&name)) {
            Ok(file) if file.len() >= size => {}
            Ok(file) => {
                let existing = file.len();
                let name = format!("{name} ({existing} of {size} bytes exist)");
                return Completeness::Missing(name);
            }
            Err(_) => return Completeness::Missing(name),
        }
    }
    Completeness::Complete
}

/// The signatures of a graph, sorted by name. Without `registry`, which comes from the library, none
/// is read-only.
pub(super) fn signatures(
    meta: &MetaGraphDef,
    options: &LoadOptions,
    registry: Option<&OpRegistry>,
) -> Vec<Signature> {
    let graph = meta.graph_def.as_ref().map(Graph::new);
    let mut signatures = Vec::with_capacity(meta.signature_def.len());
    for (name, definition) in &meta.signature_def {
        let mut signature = declared_signature(name, definition);
        let findings = match (&meta.graph_def, registry) {
            (Some(graph), Some(registry)) => rows::findings(&signature, graph, registry),
            _ => GraphFindings::only(RowDependence::NoGraph),
        };
        if let Some(graph) = &graph {
            analyze(&mut signature, graph, &findings, registry);
        }
        signature.rows = findings.rows;
        if let Some(images) = options.images {
            signature.images = images;
        }
        signatures.push(signature);
    }
    signatures
}

/// Sets what a signature's operations show.
fn analyze(
    signature: &mut Signature,
    graph: &Graph,
    findings: &GraphFindings,
    registry: Option<&OpRegistry>,
) {
    let outputs = || signature.outputs.iter().map(|spec| spec.tensor_name.as_str());
    let mut nodes = graph.nodes_of(outputs());
    let operations = graph.operations(nodes.iter().copied());
    nodes.retain(|placed| !findings.is_counted_loop(placed.node));
    let uncounted = graph.operations(nodes);
    let is_recursive = graph.is_recursive(outputs());
    signature.read_only = registry.is_some_and(|ops| ops.contains_only_stateless(&operations));
    signature.repeatable = signature.read_only && are_repeatable(&operations);
    signature.exact_shapes = need_exact_shapes(&operations);
    signature.is_bounded = !is_recursive && are_bounded(&uncounted);
    let decodes_images = operations.iter().any(|op| IMAGE_DECODERS.contains(op));
    signature.takes_images = signature.inputs.len() == 1 && decodes_images;
    if operations.contains("DecodeBase64") {
        signature.images = ImageEncoding::Base64Url;
    }
}

fn declared_signature(name: &str, definition: &SignatureDef) -> Signature {
    let mut defaults = Vec::new();
    for (alias, proto) in &definition.defaults {
        match tensor_from_proto(proto) {
            Ok(tensor) => defaults.push((alias.clone(), tensor)),
            Err(e) => log::warn!("signature {name}: ignoring the default of {alias}: {e}"),
        }
    }
    Signature {
        name: name.to_owned(),
        method_name: definition.method_name.clone(),
        inputs: definition.inputs.iter().map(|(alias, info)| spec(alias, info)).collect(),
        outputs: definition.outputs.iter().map(|(alias, info)| spec(alias, info)).collect(),
        defaults,
        images: ImageEncoding::Raw,
        takes_images: false,
        read_only: false,
        repeatable: false,
        exact_shapes: false,
        by_columns: None,
        unused_columns: Vec::new(),
        categories: Vec::new(),
        ignores_unknown: true,
        ran_with: Vec::new(),
        is_bounded: true,
        rows: RowDependence::NoGraph,
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
    TensorSpec {
        alias: alias.to_owned(),
        tensor_name,
        dtype_number: info.dtype,
        shape,
        sparse,
        takes_missing: false,
        number_texts: None,
        quantization: None,
        column_names: Vec::new(),
    }
}

/// The tensors of an input or output: three for a sparse one.
pub(super) fn tensor_names(info: &TensorInfo) -> Vec<&str> {
    match &info.encoding {
        Some(Encoding::Name(name)) => vec![name],
        Some(Encoding::CooSparse(coo)) => {
            vec![&coo.values_tensor_name, &coo.indices_tensor_name, &coo.dense_shape_tensor_name]
        }
        None => Vec::new(),
    }
}

/// Whether the graph has the marshalled Python functions that Simple TensorFlow Serving would call.
pub(super) fn has_marshalled_hooks(meta: &MetaGraphDef) -> bool {
    let hooks = ["preprocess_function", "postprocess_function"];
    hooks.iter().any(|name| meta.collection_def.contains_key(*name))
}

/// The size of all files below `folder`, in bytes.
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

fn data_loss(message: String) -> Error {
    Error::new(Code::DataLoss, message)
}

fn read_error(name: &str, error: &std::io::Error) -> Error {
    if error.kind() == ErrorKind::FileTooLarge {
        return data_loss(format!("{name} has more bytes than protobuf allows"));
    }
    Error::new(Code::of_io(error), format!("{name} cannot be read: {error}"))
}
