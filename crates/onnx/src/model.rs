//! Reads a model's file without ONNX Runtime: what it declares, and whether all files that it
//! names are there. Hostile bytes end here, as typed errors, before the runtime sees them.

use std::fs;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use prost::Message;

use super::types;
use crate::proto::tensor_shape_proto::dimension::Value as Size;
use crate::proto::type_proto::Value as Type;
use crate::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto,
    ValueInfoProto,
};
use tensorserve_platform::files;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DeclaredShape, Signature, TensorSpec};

/// How the name of a model's file ends.
pub(super) const ENDINGS: [&str; 1] = [".onnx"];

/// Protobuf's own limit on a message. Larger weights are in files of their own.
const LARGEST_FILE: u64 = i32::MAX as u64;

/// The kind of `data_location` of a tensor whose values are in a file.
const EXTERNAL: i32 = 1;

/// A model as its file has it.
pub(super) struct Model {
    pub(super) file: PathBuf,
    pub(super) proto: ModelProto,
    /// What its files have in all.
    pub(super) bytes: u64,
}

impl Model {
    /// The model at `path`.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if it is none; [`Code::NotFound`] if a file of it is not there.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let file = files::find(path, &ENDINGS)?;
        let shown = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = Bytes::from(files::read(&file, LARGEST_FILE)?);
        if bytes.is_empty() {
            return Err(broken(format!("{shown} is empty")));
        }
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        // The decoder stops at a nesting depth of 100.
        let proto = ModelProto::decode(bytes)
            .map_err(|e| broken(format!("{shown} is not an ONNX model ({e})")).with_source(e))?;
        if proto.graph.is_none() {
            return Err(broken(format!("{shown} is not an ONNX model (it holds no graph)")));
        }
        let mut model = Model { file, proto, bytes: size };
        model.bytes = size.saturating_add(model.size_of_weights()?);
        Ok(model)
    }

    /// The folder of the file, in which everything that it names must be.
    pub(super) fn folder(&self) -> &Path {
        match self.file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        }
    }

    /// What wrote it, and for which operators.
    pub(super) fn written_by(&self) -> String {
        let ModelProto { producer_name, producer_version, .. } = &self.proto;
        let mut words: Vec<String> = [producer_name, producer_version]
            .into_iter()
            .filter(|word| !word.is_empty())
            .cloned()
            .collect();
        if words.is_empty() {
            words.push("an unnamed program".to_owned());
        }
        let opset = opset(&self.proto);
        words.extend(opset.map(|version| format!("(opset {version})")));
        words.join(" ")
    }

    /// The bytes of the files that hold weights, all of which are there, in the model's folder.
    fn size_of_weights(&self) -> Result<u64> {
        let mut named: Vec<&str> = Vec::new();
        if let Some(graph) = &self.proto.graph {
            visit(graph, &mut |tensor| {
                let location = tensor.external_data.iter().find(|entry| entry.key == "location");
                if tensor.data_location == EXTERNAL {
                    named.push(location.map_or("", |entry| &entry.value));
                }
            });
        }
        named.sort_unstable();
        named.dedup();
        let sizes = named.iter().map(|name| self.size_of(name));
        sizes.sum()
    }

    fn size_of(&self, name: &str) -> Result<u64> {
        let plain = |part: Component| matches!(part, Component::Normal(_) | Component::CurDir);
        let outside = || {
            let message = format!("its weights are in {name:?}, which is not in its own folder");
            Error::new(Code::PermissionDenied, message)
        };
        if name.is_empty() || !Path::new(name).components().all(plain) {
            return Err(outside());
        }
        let missing = |e: std::io::Error| {
            let message = format!("its weights can not be read: {name}: {e}");
            Error::new(Code::of_io(&e), message).with_source(e)
        };
        // A link may lead out, too.
        let file = self.folder().join(name).canonicalize().map_err(missing)?;
        let folder = self.folder().canonicalize().map_err(missing)?;
        let real = self.file.canonicalize().map_err(missing)?;
        let homes = [Some(folder.as_path()), real.parent()];
        if !homes.into_iter().flatten().any(|home| file.starts_with(home)) {
            return Err(outside());
        }
        Ok(fs::metadata(&file).map_err(missing)?.len())
    }
}

/// The version of ONNX's own operators that a model is for.
pub(super) fn opset(model: &ModelProto) -> Option<i64> {
    let own = model.opset_import.iter().find(|import| is_own(&import.domain));
    own.map(|import| import.version)
}

/// Whether a domain is that of ONNX's own operators.
pub(super) fn is_own(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

/// Calls `see` with every constant of a graph and of those in it.
fn visit<'a>(graph: &'a GraphProto, see: &mut impl FnMut(&'a TensorProto)) {
    fn sparse<'a>(tensor: &'a SparseTensorProto, see: &mut impl FnMut(&'a TensorProto)) {
        tensor.values.iter().chain(&tensor.indices).for_each(see);
    }
    graph.initializer.iter().for_each(&mut *see);
    graph.sparse_initializer.iter().for_each(|tensor| sparse(tensor, see));
    for attribute in graph.node.iter().flat_map(|node: &NodeProto| &node.attribute) {
        let AttributeProto { t, tensors, g, graphs, sparse_tensor, sparse_tensors, .. } = attribute;
        t.iter().chain(tensors).for_each(&mut *see);
        sparse_tensor.iter().chain(sparse_tensors).for_each(|tensor| sparse(tensor, see));
        for graph in g.iter().chain(graphs) {
            visit_boxed(graph, see);
        }
    }
}

/// [`visit`] of a graph in a graph: of a type that does not grow with the depth.
fn visit_boxed<'a>(graph: &'a GraphProto, see: &mut dyn FnMut(&'a TensorProto)) {
    visit(graph, &mut |tensor| see(tensor));
}

/// The one function of a model: its inputs but those that are constants, to its outputs.
///
/// # Errors
/// [`Code::Unimplemented`] if one of them is no tensor, or of a type that has no value outside
/// the runtime.
pub(super) fn signature(graph: &GraphProto) -> Result<Signature> {
    let is_constant = |input: &&ValueInfoProto| {
        graph.initializer.iter().any(|tensor| tensor.name == input.name)
            || graph.sparse_initializer.iter().any(|tensor| {
                tensor.values.as_ref().is_some_and(|values| values.name == input.name)
            })
    };
    let inputs = graph.input.iter().filter(|input| !is_constant(input));
    Ok(Signature::only(
        inputs.map(|input| spec("input", input)).collect::<Result<_>>()?,
        graph.output.iter().map(|output| spec("output", output)).collect::<Result<_>>()?,
    ))
}

fn spec(what: &str, info: &ValueInfoProto) -> Result<TensorSpec> {
    let unsupported = |kind: &str| {
        let message = format!("{what} {:?} is {kind}, which can not be served", info.name);
        Error::new(Code::Unimplemented, message)
    };
    let tensor = match info.r#type.as_ref().and_then(|its| its.value.as_ref()) {
        Some(Type::TensorType(tensor)) => tensor,
        Some(Type::SequenceType(_)) => return Err(unsupported("a sequence")),
        Some(Type::MapType(_)) => return Err(unsupported("a map")),
        Some(Type::SparseTensorType(_)) => return Err(unsupported("a sparse tensor")),
        Some(Type::OptionalType(_)) => return Err(unsupported("an optional value")),
        None => return Err(unsupported("of no type")),
    };
    let dtype = types::dtype(tensor.elem_type).ok_or_else(|| {
        unsupported(&format!("a tensor of type {}", types::name(tensor.elem_type)))
    })?;
    let mut spec = TensorSpec::new(info.name.clone(), dtype, &[]);
    spec.shape = match &tensor.shape {
        None => DeclaredShape::UnknownRank,
        Some(shape) => {
            let dims = shape.dim.iter().map(|dimension| match &dimension.value {
                Some(Size::DimValue(size)) if *size >= 0 => (*size, String::new()),
                Some(Size::DimParam(name)) => (-1, name.clone()),
                Some(Size::DimValue(_)) | None => (-1, String::new()),
            });
            DeclaredShape::Dims(dims.collect())
        }
    };
    Ok(spec)
}

pub(super) fn broken(message: String) -> Error {
    Error::new(Code::DataLoss, message)
}
