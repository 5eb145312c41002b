//! Frozen graphs of TensorFlow 1: a `GraphDef` in one file, whose variables are constants. Such a file does
//! not declare inputs and outputs: without a `tensorserve.toml`, inputs are its placeholders, and outputs what
//! no other node takes.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;

use super::ffi::TensorFlowSession;
use tensorserve_platform::{Completeness, ModelPath, files};
use tensorserve_preprocessing::{
    DeclaredOutput, DeclaredSignature, declared_signature, wrong_declaration,
};
use tensorserve_proto::tensorflow::attr_value::Value;
use tensorserve_proto::tensorflow::tensor_info::Encoding;
use tensorserve_proto::tensorflow::tensor_shape_proto::Dim;
use tensorserve_proto::tensorflow::{
    GraphDef, MetaGraphDef, NodeDef, SignatureDef, TensorInfo, TensorShapeProto,
};
use tensorserve_savedmodel::MAX_FILE_SIZE;
use tensorserve_tensor::DType;
use tensorserve_tensor::error::{Code, Error, Result};

const ENDINGS: [&str; 2] = [".pb", ".graphdef"];

/// The first bytes of a file that show whether it is a graph.
const HEAD: usize = 512;

/// Operations whose results are no outputs, although no node takes them.
const NO_OUTPUTS: [&str; 6] =
    ["Const", "Placeholder", "NoOp", "Assert", "Print", "PlaceholderWithDefault"];

/// Whether `place` is or contains a frozen graph.
pub(super) fn exists(place: &ModelPath) -> bool {
    place.files(&ENDINGS).any(|file| is_graph(file))
}

/// The frozen graph that `path` is, or the only one in it.
///
/// # Errors
/// If there is none, or there are several.
pub(super) fn find(path: &Path) -> Result<PathBuf> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    files::find(path, &ENDINGS)
}

pub(super) fn check(path: &Path) -> Completeness {
    match find(path).and_then(|file| read(&file)) {
        Ok(_) => Completeness::Complete,
        Err(error) => Completeness::Broken(error),
    }
}

/// Whether a file begins like a `GraphDef`: with a node that has a name and an operation.
fn is_graph(file: &Path) -> bool {
    let Ok(head) = files::head(file, HEAD) else {
        return false;
    };
    let text = |bytes: &[u8], tag: u8| -> Option<(Vec<u8>, usize)> {
        let (&first, rest) = bytes.split_first()?;
        let (&length, rest) = rest.split_first()?;
        let length = usize::from(length);
        let is_text = first == tag && length < 0x80;
        is_text.then(|| rest.get(..length)).flatten().map(|text| (text.to_vec(), length + 2))
    };
    let node = || -> Option<bool> {
        let (&tag, rest) = head.split_first()?;
        let digits = rest.iter().position(|byte| *byte < 0x80)?;
        let node = rest.get(digits + 1..)?;
        let (name, length) = text(node, 0x0a)?;
        let (op, _) = text(node.get(length..)?, 0x12)?;
        let is_name = |name: &[u8]| name.iter().all(u8::is_ascii_graphic);
        let is_op = op.first().is_some_and(|first| first.is_ascii_uppercase() || *first == b'_');
        Some(tag == 0x0a && is_name(&name) && is_op && is_name(&op))
    };
    node().unwrap_or(false)
}

/// Reads the graph as one of a SavedModel without signatures, and its bytes.
///
/// # Errors
/// If it is damaged, or has variables.
pub(super) fn read(file: &Path) -> Result<(MetaGraphDef, Bytes)> {
    let bytes = Bytes::from(files::read(file, MAX_FILE_SIZE)?);
    let damaged = |what: String| Error::new(Code::DataLoss, format!("{}: {what}", file.display()));
    let graph = GraphDef::decode(bytes.clone())
        .map_err(|e| damaged(format!("it is not a graph of TensorFlow ({e})")))?;
    if graph.node.is_empty() {
        return Err(damaged("the graph has no nodes".to_owned()));
    }
    let is_variable = |op: &str| matches!(op, "Variable" | "VariableV2" | "VarHandleOp");
    if let Some(variable) = graph.node.iter().find(|node| is_variable(&node.op)) {
        return Err(damaged(format!(
            "the graph has the variable {:?}, whose value is in a checkpoint: export a SavedModel, or \
             freeze the graph with its checkpoint",
            variable.name
        )));
    }
    Ok((MetaGraphDef { graph_def: Some(graph), ..MetaGraphDef::default() }, bytes))
}

/// Declares the signature of the graph of the version at `path`, which is loaded in `session`: what its
/// `tensorserve.toml` declares, and what it does not is taken from the graph.
///
/// # Errors
/// If the file declares tensors that the graph does not have.
pub(super) fn declare(
    meta: &mut MetaGraphDef,
    session: &TensorFlowSession,
    path: &Path,
) -> Result<()> {
    let Some(graph) = &meta.graph_def else {
        return Ok(());
    };
    let DeclaredSignature { inputs, outputs } = declared_signature(path)?.unwrap_or_default();
    let placeholders = graph.node.iter().filter(|node| node.op == "Placeholder");
    let named_inputs = inputs.iter().map(|spec| {
        let sizes = spec.shape.sizes();
        Ok((spec.alias.clone(), tensor(session, &spec.alias, spec.dtype(), sizes)?))
    });
    let named_outputs = outputs.into_iter().map(|DeclaredOutput { name, dtype, shape }| {
        let info = tensor(session, &name, dtype, shape)?;
        Ok((name, info))
    });
    let inputs: Result<BTreeMap<String, TensorInfo>> = match inputs.is_empty() {
        true => Ok(placeholders.map(|node| (node.name.clone(), placeholder(node))).collect()),
        false => named_inputs.collect(),
    };
    let named_outputs = named_outputs.collect::<Result<BTreeMap<String, TensorInfo>>>()?;
    let signature = SignatureDef {
        inputs: inputs?,
        outputs: match named_outputs.is_empty() {
            true => results(graph, session),
            false => named_outputs,
        },
        method_name: "tensorflow/serving/predict".to_owned(),
        ..SignatureDef::default()
    };
    meta.signature_def.insert("serving_default".to_owned(), signature);
    Ok(())
}

/// The tensor `name` of the graph, with the type and the shape that are declared, if they are.
fn tensor(
    session: &TensorFlowSession,
    name: &str,
    dtype: Option<DType>,
    sizes: Option<Vec<i64>>,
) -> Result<TensorInfo> {
    let endpoint = session.endpoint(name).map_err(|error| wrong_declaration(error.message()))?;
    let (number, known_sizes) = session.declared(endpoint);
    if let Some(dtype) = dtype.filter(|dtype| dtype.number() != number) {
        let found = DType::from_number(number);
        let found = found.map_or(format!("type {number}"), |dtype| dtype.python_name().to_owned());
        return Err(wrong_declaration(format_args!(
            "{name:?} is declared as {}, and is {found} in the graph",
            dtype.python_name()
        )));
    }
    let tensor_shape = Some(shape(sizes.or(known_sizes)));
    Ok(TensorInfo { dtype: number, tensor_shape, encoding: Some(Encoding::Name(name.to_owned())) })
}

fn placeholder(node: &NodeDef) -> TensorInfo {
    let value = |name: &str| node.attr.get(name).and_then(|attr| attr.value.clone());
    let dtype = match value("dtype") {
        Some(Value::Type(dtype)) => dtype,
        _ => 0,
    };
    let tensor_shape = match value("shape") {
        Some(Value::Shape(shape)) => Some(shape),
        _ => None,
    };
    let encoding = Some(Encoding::Name(format!("{}:0", node.name)));
    TensorInfo { dtype, tensor_shape, encoding }
}

/// The results of nodes that no other node takes.
fn results(graph: &GraphDef, session: &TensorFlowSession) -> BTreeMap<String, TensorInfo> {
    let inputs = graph.node.iter().flat_map(|node| &node.input);
    let taken: HashSet<&str> = inputs.map(|input| input.split(':').next().unwrap_or("")).collect();
    let mut outputs = BTreeMap::new();
    for node in &graph.node {
        if NO_OUTPUTS.contains(&&*node.op) || taken.contains(&*node.name) {
            continue;
        }
        for index in 0..session.outputs_of(&node.name) {
            let name = format!("{}:{index}", node.name);
            let Ok(endpoint) = session.endpoint(&name) else {
                continue;
            };
            let (dtype, sizes) = session.declared(endpoint);
            let alias = if index == 0 { node.name.clone() } else { name.clone() };
            let encoding = Some(Encoding::Name(name));
            let tensor_shape = Some(shape(sizes));
            outputs.insert(alias, TensorInfo { dtype, tensor_shape, encoding });
        }
    }
    outputs
}

fn shape(sizes: Option<Vec<i64>>) -> TensorShapeProto {
    let unknown_rank = sizes.is_none();
    let dims = sizes.into_iter().flatten().map(|size| Dim { size, name: String::new() });
    TensorShapeProto { dim: dims.collect(), unknown_rank }
}
