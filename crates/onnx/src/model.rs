//! Reads a model's file without ONNX Runtime: its signature, and whether all files that it refers
//! to exist. Malformed files are refused here with typed errors, before the runtime reads them.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use prost::Message;

use super::types;
use crate::proto::tensor_shape_proto::Dimension;
use crate::proto::tensor_shape_proto::dimension::Value as Size;
use crate::proto::type_proto::Value as Type;
use crate::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto,
    ValueInfoProto,
};
use tensorserve_platform::files;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DeclaredShape, Signature, TensorSpec};

/// Extensions of a model's file.
pub(super) const EXTENSIONS: [&str; 1] = [".onnx"];

/// The largest model file in bytes, which is Protobuf's limit on a message. Larger models keep
/// their weights in files of their own.
const MAX_FILE_SIZE: u64 = i32::MAX as u64;

/// `TensorProto.DataLocation.EXTERNAL`: the tensor's values are in a file.
const DATA_LOCATION_EXTERNAL: i32 = 1;

/// The key of the external data entry that names the file.
const EXTERNAL_LOCATION: &str = "location";

/// A decoded model file.
pub(super) struct OnnxModel {
    pub(super) file: PathBuf,
    pub(super) proto: ModelProto,
    /// The size of all its files together.
    pub(super) bytes: u64,
}

impl OnnxModel {
    /// Reads the model at `path`, which is a file or a directory with one such file.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if the file is not a valid model; [`Code::NotFound`] if the file, or one
    /// that it refers to, does not exist; [`Code::PermissionDenied`] if it refers to a file outside
    /// its directory.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let file = files::find(path, &EXTENSIONS)?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = Bytes::from(files::read(&file, MAX_FILE_SIZE)?);
        if bytes.is_empty() {
            return Err(invalid_model(format!("{name} is empty")));
        }
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        // The decoder refuses messages that are nested more than 100 levels deep.
        let proto = ModelProto::decode(bytes).map_err(|error| {
            let message = format!("{name} is not a valid ONNX model ({error})");
            invalid_model(message).with_source(error)
        })?;
        if proto.graph.is_none() {
            let message = format!("{name} is not a valid ONNX model (it has no graph)");
            return Err(invalid_model(message));
        }
        let mut model = OnnxModel { file, proto, bytes: size };
        model.bytes = size.saturating_add(model.size_of_weights()?);
        Ok(model)
    }

    /// The directory of the file. All files that the model refers to must be in it.
    pub(super) fn folder(&self) -> &Path {
        match self.file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    /// The program that wrote the model, and the operator set.
    pub(super) fn written_by(&self) -> String {
        let ModelProto { producer_name, producer_version, .. } = &self.proto;
        let mut words: Vec<String> = [producer_name, producer_version]
            .into_iter()
            .filter(|word| !word.is_empty())
            .cloned()
            .collect();
        if words.is_empty() {
            words.push("an unknown producer".to_owned());
        }
        let opset = opset(&self.proto);
        words.extend(opset.map(|version| format!("(opset {version})")));
        words.join(" ")
    }

    /// The size of the weight files together, all of which must exist in the model's directory.
    fn size_of_weights(&self) -> Result<u64> {
        let mut names: Vec<&str> = Vec::new();
        if let Some(graph) = &self.proto.graph {
            visit_tensors(graph, &mut |tensor| {
                if tensor.data_location == DATA_LOCATION_EXTERNAL {
                    let mut entries = tensor.external_data.iter();
                    let location = entries.find(|entry| entry.key == EXTERNAL_LOCATION);
                    names.push(location.map_or("", |entry| &entry.value));
                }
            });
        }
        names.sort_unstable();
        names.dedup();
        let sizes = names.iter().map(|name| self.size_of_weight_file(name));
        sizes.sum()
    }

    fn size_of_weight_file(&self, name: &str) -> Result<u64> {
        if name.is_empty() || !Path::new(name).components().all(is_below) {
            return Err(outside_of_directory(name));
        }
        let unreadable = |error: io::Error| {
            let message = format!("the model's weight file {name} cannot be read: {error}");
            Error::new(Code::of_io(&error), message).with_source(error)
        };
        // A symbolic link may also lead out of the directory.
        let file = self.folder().join(name).canonicalize().map_err(unreadable)?;
        let folder = self.folder().canonicalize().map_err(unreadable)?;
        let model_file = self.file.canonicalize().map_err(unreadable)?;
        let allowed = [Some(folder.as_path()), model_file.parent()];
        if !allowed.into_iter().flatten().any(|directory| file.starts_with(directory)) {
            return Err(outside_of_directory(name));
        }
        Ok(fs::metadata(&file).map_err(unreadable)?.len())
    }
}

/// Whether a component of a path leads neither upwards nor to the root.
fn is_below(component: Component) -> bool {
    matches!(component, Component::Normal(_) | Component::CurDir)
}

fn outside_of_directory(name: &str) -> Error {
    let message = format!("the model's weight file {name:?} is not in the model's directory");
    Error::new(Code::PermissionDenied, message)
}

/// The version of the standard ONNX operators that a model uses.
pub(super) fn opset(model: &ModelProto) -> Option<i64> {
    let import = model.opset_import.iter().find(|import| is_standard_domain(&import.domain));
    import.map(|import| import.version)
}

/// Whether a domain is that of the standard ONNX operators.
pub(super) fn is_standard_domain(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

/// Calls `visitor` with every constant of a graph and of its subgraphs.
fn visit_tensors<'a>(graph: &'a GraphProto, visitor: &mut dyn FnMut(&'a TensorProto)) {
    graph.initializer.iter().for_each(&mut *visitor);
    graph.sparse_initializer.iter().for_each(|tensor| visit_sparse(tensor, visitor));
    for attribute in graph.node.iter().flat_map(|node: &NodeProto| &node.attribute) {
        let AttributeProto { t, tensors, g, graphs, sparse_tensor, sparse_tensors, .. } = attribute;
        t.iter().chain(tensors).for_each(&mut *visitor);
        sparse_tensor.iter().chain(sparse_tensors).for_each(|tensor| visit_sparse(tensor, visitor));
        for subgraph in g.iter().chain(graphs) {
            visit_tensors(subgraph, visitor);
        }
    }
}

fn visit_sparse<'a>(tensor: &'a SparseTensorProto, visitor: &mut dyn FnMut(&'a TensorProto)) {
    tensor.values.iter().chain(&tensor.indices).for_each(visitor);
}

/// Operators that draw random numbers.
const RANDOM_OPS: [&str; 7] = [
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Sampling",
];

/// The inputs of `Dropout` with which it may drop out values: the last one says whether the model is
/// being trained.
const TRAINING_INPUTS: usize = 3;

/// Whether a graph, or one of its subgraphs, may draw random numbers.
fn is_random(graph: &GraphProto) -> bool {
    graph.node.iter().any(|node| {
        let op = node.op_type.as_str();
        let may_drop_out = op == "Dropout" && node.input.len() >= TRAINING_INPUTS;
        let mut subgraphs = node.attribute.iter().flat_map(|it| it.g.iter().chain(&it.graphs));
        RANDOM_OPS.contains(&op) || may_drop_out || subgraphs.any(is_random)
    })
}

/// Operators that run a graph within them, and are known to end: once, or for each part of a tensor. Others
/// that have one run it until a condition holds, or as often as an input says.
const BOUNDED_CONTROL: [&str; 3] = ["If", "Scan", "SequenceMap"];

/// Whether the sizes of the inputs bound the time of a run of `nodes`.
pub(super) fn are_bounded(nodes: &[NodeProto]) -> bool {
    nodes.iter().all(|node| {
        let mut subgraphs = node.attribute.iter().flat_map(|it| it.g.iter().chain(&it.graphs));
        match BOUNDED_CONTROL.contains(&node.op_type.as_str()) {
            true => subgraphs.all(|graph| are_bounded(&graph.node)),
            false => subgraphs.next().is_none(),
        }
    })
}

/// The signature of a model: its inputs except those that have an initializer, and its outputs.
///
/// # Errors
/// [`Code::Unimplemented`] if an input or output is not a tensor, or has an element type that is
/// not supported.
pub(super) fn signature(graph: &GraphProto) -> Result<Signature> {
    let inputs = graph.input.iter().filter(|input| !has_initializer(graph, &input.name));
    let mut signature = Signature::only(
        inputs.map(|input| tensor_spec("input", input)).collect::<Result<_>>()?,
        graph.output.iter().map(|output| tensor_spec("output", output)).collect::<Result<_>>()?,
    );
    signature.repeatable = !is_random(graph);
    signature.is_bounded = are_bounded(&graph.node);
    Ok(signature)
}

fn has_initializer(graph: &GraphProto, input: &str) -> bool {
    let is_sparse = |tensor: &SparseTensorProto| {
        tensor.values.as_ref().is_some_and(|values| values.name == input)
    };
    graph.initializer.iter().any(|tensor| tensor.name == input)
        || graph.sparse_initializer.iter().any(is_sparse)
}

/// The spec of an input or output, which `role` says.
fn tensor_spec(role: &str, info: &ValueInfoProto) -> Result<TensorSpec> {
    let unsupported = |description: &str| {
        let message = format!("{role} {:?} {description}, which is not supported", info.name);
        Error::new(Code::Unimplemented, message)
    };
    let tensor = match info.r#type.as_ref().and_then(|its| its.value.as_ref()) {
        Some(Type::TensorType(tensor)) => tensor,
        Some(Type::SequenceType(_)) => return Err(unsupported("is a sequence")),
        Some(Type::MapType(_)) => return Err(unsupported("is a map")),
        Some(Type::SparseTensorType(_)) => return Err(unsupported("is a sparse tensor")),
        Some(Type::OptionalType(_)) => return Err(unsupported("is an optional value")),
        None => return Err(unsupported("has no type")),
    };
    let dtype = types::dtype(tensor.elem_type).ok_or_else(|| {
        unsupported(&format!("is a tensor of type {}", types::name(tensor.elem_type)))
    })?;
    let mut spec = TensorSpec::new(info.name.clone(), dtype, &[]);
    spec.shape = match &tensor.shape {
        None => DeclaredShape::UnknownRank,
        Some(shape) => DeclaredShape::Dims(shape.dim.iter().map(declared_dimension).collect()),
    };
    Ok(spec)
}

/// The size of a dimension, or -1 if it varies, and the name of one that varies.
fn declared_dimension(dimension: &Dimension) -> (i64, String) {
    match &dimension.value {
        Some(Size::DimValue(size)) if *size >= 0 => (*size, String::new()),
        Some(Size::DimParam(name)) => (-1, name.clone()),
        Some(Size::DimValue(_)) | None => (-1, String::new()),
    }
}

/// The error for a file that is not a valid model.
pub(super) fn invalid_model(message: String) -> Error {
    Error::new(Code::DataLoss, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::proto::attribute_proto::AttributeType;

    /// An operator that runs `nodes`.
    fn running(op: &str, nodes: Vec<NodeProto>) -> NodeProto {
        let body = AttributeProto {
            name: "body".to_owned(),
            g: Some(GraphProto { node: nodes, ..GraphProto::default() }),
            r#type: AttributeType::Graph.into(),
            ..AttributeProto::default()
        };
        NodeProto { attribute: vec![body], ..node(op, &[], &[]) }
    }

    #[test]
    fn loops_are_not_bounded_wherever_they_are() {
        let add = || vec![node("Add", &["x", "x"], &["y"])];
        for op in ["If", "Scan", "SequenceMap"] {
            assert!(are_bounded(&[running(op, add())]), "{op}");
            assert!(!are_bounded(&[running(op, vec![running("Loop", add())])]), "{op}");
        }
        assert!(are_bounded(&add()));
        assert!(!are_bounded(&[running("Loop", add())]));
        assert!(!are_bounded(&[running("BeamSearch", add())]));
    }
}
