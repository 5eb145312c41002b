//! Reads a model's file without LiteRT: its signatures, and whether LiteRT can run it. Indices that point
//! nowhere, and what LiteRT would not check, are refused here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::schema::{
    self, buffer, metadata, model, operator, operator_code, quantization, signature, subgraph,
    tensor, tensor_map,
};
use tensorserve_codec::flatbuffer::{FlatFile, Table};
use tensorserve_platform::{ForeignFormats, files};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{DType, Quantization};

/// Extensions of a model's file.
pub(super) const EXTENSIONS: [&str; 1] = [".tflite"];

/// The largest file in bytes: FlatBuffers' limit.
const MAX_FILE_SIZE: u64 = i32::MAX as u64;

/// The version of the schema.
const SCHEMA_VERSION: u32 = 3;

/// The name of a model's only function, if the file does not name it.
const DEFAULT_NAME: &str = "serving_default";

/// The highest rank of a tensor in LiteRT's C API.
pub(super) const MAX_RANK: usize = 8;

/// The most inputs or outputs of a function.
const MAX_PORTS: usize = 1024;

/// The most functions of a model.
const MAX_FUNCTIONS: usize = 1024;

/// Custom operators that LiteRT has.
const KNOWN_CUSTOM: [&str; 8] = [
    "AudioSpectrogram",
    "Convolution2DTransposeBias",
    "MaxPoolingWithArgmax2D",
    "MaxUnpooling2D",
    "Mfcc",
    "NumericVerify",
    "TFLite_Detection_PostProcess",
    "aeq.hadamard_rotation",
];

/// The beginning of the names of TensorFlow's own operators (Select TF).
const FLEX: &str = "Flex";

/// A model's file.
pub(super) struct TfliteFile {
    pub(super) path: PathBuf,
    pub(super) bytes: Vec<u8>,
}

/// What a file declares.
#[derive(Debug)]
pub(super) struct TfliteModel {
    /// Its functions, in the order of the file's signatures.
    pub(super) functions: Vec<ModelFunction>,
    /// The subgraphs of the functions that others may run, too.
    pub(super) shared: BTreeSet<usize>,
    /// The program that wrote the file.
    pub(super) written_by: String,
    /// Whether a function changes variables of the model.
    pub(super) has_state: bool,
    /// Whether the model draws random numbers.
    pub(super) is_random: bool,
    /// Whether the model has a loop that ends when a condition holds.
    pub(super) has_loops: bool,
}

/// A function of a model: a signature of its file, or the first subgraph of a file without signatures.
#[derive(Debug)]
pub(super) struct ModelFunction {
    pub(super) name: String,
    pub(super) subgraph: usize,
    /// The number of tensors of the subgraph.
    pub(super) tensors: usize,
    /// In the order of the subgraph.
    pub(super) inputs: Vec<FunctionPort>,
    pub(super) outputs: Vec<FunctionPort>,
}

/// An input or output.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FunctionPort {
    /// The name that clients use.
    pub(super) alias: String,
    /// The name of the tensor.
    pub(super) tensor_name: String,
    /// The tensor's index in its subgraph.
    pub(super) tensor: usize,
    pub(super) dtype: DType,
    /// The size of each dimension, -1 if it varies.
    pub(super) sizes: Vec<i64>,
    /// Scale and zero point, if the whole tensor has one of each.
    pub(super) quantization: Option<Quantization>,
}

impl TfliteFile {
    /// Reads the file at `path`, which is a file or a directory with one such file.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if it is not a TensorFlow Lite model.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let path = files::find(path, &EXTENSIONS)?;
        let bytes = files::read(&path, MAX_FILE_SIZE)?;
        if bytes.get(4..8) == Some(schema::IDENTIFIER) {
            return Ok(TfliteFile { path, bytes });
        }
        let why = ForeignFormats::explain(&path)
            .unwrap_or_else(|| "it does not begin as one (TFL3)".to_owned());
        let name = path.display();
        Err(damaged(format!("{name} is not a TensorFlow Lite model: {why}")))
    }

    /// What the file declares.
    ///
    /// # Errors
    /// [`Code::DataLoss`] if it is damaged, [`Code::Unimplemented`] if LiteRT cannot run it; the message
    /// names the file.
    pub(super) fn model(&self) -> Result<TfliteModel> {
        read_model(&self.bytes).map_err(|error| {
            let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let what = if error.code() == Code::DataLoss { " is damaged" } else { "" };
            Error::new(error.code(), format!("{name}{what}: {}", error.message()))
        })
    }
}

/// The error for a damaged file.
pub(super) fn damaged(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Code::DataLoss, message)
}

fn unsupported(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(Code::Unimplemented, message)
}

/// Reads a file.
pub(super) fn read_model(bytes: &[u8]) -> Result<TfliteModel> {
    let file = FlatFile::new(bytes);
    let root = Table::root(&file)?;
    let version = root.uint(model::VERSION)?;
    if version != SCHEMA_VERSION {
        return Err(unsupported(format!("it has version {version} of the format, not 3")));
    }
    let buffers = count_buffers(&root)?;
    check_metadata(&root, buffers)?;
    let operators = read_operators(&root)?;
    let mut subgraphs = Vec::new();
    for table in root.vector(model::SUBGRAPHS)?.tables()? {
        subgraphs.push(Subgraph::read(&table, operators.len(), buffers)?);
    }
    let functions = read_functions(&root, &subgraphs)?;
    let uses = |codes: &[i32]| {
        let mut used = subgraphs.iter().flat_map(|subgraph| &subgraph.operators);
        used.any(|index| operators.get(*index).is_some_and(|code| codes.contains(code)))
    };
    let runs_others = operators.iter().any(|code| {
        [schema::CALL, schema::IF, schema::WHILE].contains(code) || *code >= schema::FIRST_STABLEHLO
    });
    // The first one is the main function: others do not run it.
    let indices = functions.iter().map(|function| function.subgraph);
    let shared = indices.filter(|index| runs_others && *index != 0).collect();
    let is_assigned = |function: &ModelFunction| {
        let codes = subgraphs.get(function.subgraph).into_iter().flat_map(|it| &it.operators);
        codes.filter_map(|index| operators.get(*index)).any(|&code| code == schema::ASSIGN_VARIABLE)
    };
    Ok(TfliteModel {
        has_state: functions.iter().any(is_assigned),
        is_random: uses(&[
            schema::RANDOM_STANDARD_NORMAL,
            schema::RANDOM_UNIFORM,
            schema::MULTINOMIAL,
        ]),
        has_loops: operators
            .iter()
            .any(|code| *code == schema::WHILE || *code >= schema::FIRST_STABLEHLO),
        written_by: root.text(model::DESCRIPTION)?,
        functions,
        shared,
    })
}

/// The number of buffers. The first one must be empty: tensors without data refer to it.
fn count_buffers(root: &Table) -> Result<usize> {
    let buffers = root.vector(model::BUFFERS)?.tables()?;
    for (index, table) in buffers.iter().enumerate() {
        let data = table.vector(buffer::DATA)?;
        data.check(1)?;
        if index == 0 && !data.is_empty() {
            return Err(damaged("its first buffer is not empty"));
        }
        if table.ulong(buffer::OFFSET)? > 1 || table.ulong(buffer::SIZE)? > 1 {
            return Err(unsupported(
                "its weights are behind the model in the file (use_buffer_offset), which is not \
                 supported: convert it without _experimental_use_buffer_offset",
            ));
        }
    }
    match buffers.len() {
        0 => Err(damaged("it has no buffers")),
        count => Ok(count),
    }
}

fn check_metadata(root: &Table, buffers: usize) -> Result<()> {
    for entry in root.vector(model::METADATA)?.tables()? {
        let buffer = entry.uint(metadata::BUFFER)? as usize;
        if !entry.has(metadata::NAME) || buffer >= buffers {
            return Err(damaged("its metadata has no name, or no content"));
        }
        entry.text(metadata::NAME)?;
    }
    Ok(())
}

/// The operators that the model uses, by their numbers.
pub(super) fn read_operators(root: &Table) -> Result<Vec<i32>> {
    let mut codes = Vec::new();
    let mut unknown = BTreeSet::new();
    for table in root.vector(model::OPERATOR_CODES)?.tables()? {
        let old = i32::from(table.byte(operator_code::OLD_BUILTIN, 0)?.cast_signed());
        let code = old.max(table.int(operator_code::BUILTIN, 0)?);
        codes.push(code);
        if code == schema::STABLEHLO_CUSTOM_CALL {
            unknown.insert("STABLEHLO_CUSTOM_CALL".to_owned());
        }
        if code != schema::CUSTOM {
            continue;
        }
        let name = table.text(operator_code::CUSTOM)?;
        if !KNOWN_CUSTOM.contains(&name.as_str()) {
            unknown.insert(name);
        }
    }
    if unknown.is_empty() {
        return Ok(codes);
    }
    let is_flex = |name: &String| name.starts_with(FLEX) && name.len() > FLEX.len();
    let names: Vec<&str> = unknown.iter().map(String::as_str).collect();
    let names = names.join(", ");
    if unknown.iter().any(is_flex) {
        return Err(unsupported(format!(
            "it has operators of TensorFlow (Select TF: {names}), which LiteRT lacks: serve the SavedModel \
             that it was converted from, or convert that without tf.lite.OpsSet.SELECT_TF_OPS"
        )));
    }
    Err(unsupported(format!(
        "it has custom operators, which LiteRT lacks: {names}. Convert the original model without \
         allow_custom_ops, or serve the SavedModel that it was converted from"
    )))
}

/// What is used of a subgraph.
struct Subgraph {
    tensors: Vec<TensorInfo>,
    inputs: Vec<usize>,
    outputs: Vec<usize>,
    /// The operator code of each operator.
    operators: Vec<usize>,
}

#[derive(Clone)]
struct TensorInfo {
    name: String,
    element: u8,
    sizes: Vec<i64>,
    quantization: Option<Quantization>,
}

impl Subgraph {
    fn read(table: &Table, codes: usize, buffers: usize) -> Result<Self> {
        let mut tensors = Vec::new();
        for tensor in table.vector(subgraph::TENSORS)?.tables()? {
            tensors.push(TensorInfo::read(&tensor, buffers)?);
        }
        let count = tensors.len();
        let indices = |field: usize| -> Result<Vec<usize>> {
            let indices = table.ints(field)?;
            indices.into_iter().map(|index| tensor_index(index, count)).collect()
        };
        let mut operators = Vec::new();
        for operator in table.vector(subgraph::OPERATORS)?.tables()? {
            operators.push(read_operator(&operator, codes, count)?);
        }
        Ok(Subgraph {
            inputs: indices(subgraph::INPUTS)?,
            outputs: indices(subgraph::OUTPUTS)?,
            tensors,
            operators,
        })
    }
}

fn tensor_index(index: i32, count: usize) -> Result<usize> {
    let found = usize::try_from(index).ok().filter(|index| *index < count);
    found.ok_or_else(|| damaged(format!("it refers to tensor {index} of {count}")))
}

/// The operator code of an operator.
fn read_operator(table: &Table, codes: usize, tensors: usize) -> Result<usize> {
    let code = table.uint(operator::CODE)? as usize;
    if code >= codes {
        return Err(damaged(format!("it refers to operator {code} of {codes}")));
    }
    // -1 is an input that is left out.
    for index in table.ints(operator::INPUTS)? {
        if index != -1 {
            tensor_index(index, tensors)?;
        }
    }
    for index in table.ints(operator::OUTPUTS)? {
        tensor_index(index, tensors)?;
    }
    if !table.vector(operator::INTERMEDIATES)?.is_empty() {
        return Err(unsupported(
            "it has a quantised LSTM with intermediate tensors, which LiteRT's C library does not load: \
             serve the SavedModel that it was converted from",
        ));
    }
    if table.ulong(operator::LARGE_OPTIONS)? > 1 {
        return Err(unsupported("it has options behind the model in the file"));
    }
    Ok(code)
}

impl TensorInfo {
    fn read(table: &Table, buffers: usize) -> Result<Self> {
        let name = table.text(tensor::NAME)?;
        let buffer = table.uint(tensor::BUFFER)? as usize;
        if buffer >= buffers {
            return Err(damaged(format!("tensor {name:?} has buffer {buffer} of {buffers}")));
        }
        if table.byte(tensor::IS_VARIABLE, 0)? != 0 {
            return Err(unsupported(format!(
                "tensor {name:?} is a variable, which LiteRT's C library does not load: it is the state of a \
                 recurrent layer. Serve the SavedModel that the model was converted from, or convert it \
                 with the layer unrolled (unroll=True)"
            )));
        }
        if table.uint(tensor::EXTERNAL_BUFFER)? != 0 {
            return Err(unsupported(format!(
                "tensor {name:?} has its values in another file, which is not supported"
            )));
        }
        let shape = table.ints(tensor::SHAPE)?;
        let declared = table.ints(tensor::SHAPE_SIGNATURE)?;
        if shape.iter().any(|size| *size < 0) {
            return Err(damaged(format!("tensor {name:?} has a negative size")));
        }
        let sizes = if declared.len() == shape.len() { declared } else { shape };
        Ok(TensorInfo {
            element: table.byte(tensor::TYPE, 0)?,
            sizes: sizes.into_iter().map(|size| i64::from(size.max(-1))).collect(),
            quantization: read_quantization(table)?,
            name,
        })
    }

    /// The input or output `alias`, which `role` says.
    fn port(&self, role: &str, alias: String, tensor: usize) -> Result<FunctionPort> {
        let dtype = schema::dtype(self.element).ok_or_else(|| {
            let name = schema::name(self.element);
            unsupported(format!(
                "{role} {alias:?} is a tensor of type {name}, which is not supported"
            ))
        })?;
        if self.sizes.len() > MAX_RANK {
            let rank = self.sizes.len();
            return Err(unsupported(format!(
                "{role} {alias:?} has {rank} dimensions; LiteRT has at most {MAX_RANK}"
            )));
        }
        Ok(FunctionPort {
            tensor_name: if self.name.is_empty() { alias.clone() } else { self.name.clone() },
            alias,
            tensor,
            dtype,
            sizes: self.sizes.clone(),
            quantization: self.quantization,
        })
    }
}

/// Scale and zero point of a tensor, if it has one of each.
fn read_quantization(table: &Table) -> Result<Option<Quantization>> {
    let Some(table) = table.table(tensor::QUANTIZATION)? else { return Ok(None) };
    let (scales, zeros) =
        (table.floats(quantization::SCALE)?, table.longs(quantization::ZERO_POINT)?);
    match (&scales[..], &zeros[..]) {
        ([scale], [zero]) => Ok(Some(Quantization { scale: *scale, zero_point: *zero })),
        _ => Ok(None),
    }
}

/// The functions: the signatures, or else the first subgraph.
fn read_functions(root: &Table, subgraphs: &[Subgraph]) -> Result<Vec<ModelFunction>> {
    let mut functions: Vec<ModelFunction> = Vec::new();
    let signatures = root.vector(model::SIGNATURES)?;
    if signatures.len() > MAX_FUNCTIONS {
        return Err(unsupported(format!("it has more than {MAX_FUNCTIONS} signatures")));
    }
    for table in signatures.tables()? {
        let name = table.text(signature::KEY)?;
        if functions.iter().any(|function| function.name == name) {
            return Err(damaged(format!("it has two signatures {name:?}")));
        }
        let index = table.uint(signature::SUBGRAPH)? as usize;
        let subgraph = subgraphs.get(index).ok_or_else(|| {
            damaged(format!("signature {name:?} has subgraph {index} of {}", subgraphs.len()))
        })?;
        let inputs = names(&table, signature::INPUTS)?;
        let outputs = names(&table, signature::OUTPUTS)?;
        functions.push(ModelFunction {
            inputs: ports("input", subgraph, &subgraph.inputs, &inputs)?,
            outputs: ports("output", subgraph, &subgraph.outputs, &outputs)?,
            subgraph: index,
            tensors: subgraph.tensors.len(),
            name,
        });
    }
    if !functions.is_empty() {
        return Ok(functions);
    }
    let main = subgraphs.first().ok_or_else(|| damaged("it has no subgraph"))?;
    Ok(vec![ModelFunction {
        name: DEFAULT_NAME.to_owned(),
        subgraph: 0,
        tensors: main.tensors.len(),
        inputs: ports("input", main, &main.inputs, &[])?,
        outputs: ports("output", main, &main.outputs, &[])?,
    }])
}

/// The names of tensors in a signature.
fn names(table: &Table, field: usize) -> Result<Vec<(String, usize)>> {
    let maps = table.vector(field)?.tables()?;
    let names = maps
        .iter()
        .map(|map| Ok((map.text(tensor_map::NAME)?, map.uint(tensor_map::TENSOR)? as usize)));
    names.collect()
}

/// The inputs or outputs of a subgraph under the names of a signature, those of tensors, or their place.
fn ports(
    role: &str,
    subgraph: &Subgraph,
    tensors: &[usize],
    names: &[(String, usize)],
) -> Result<Vec<FunctionPort>> {
    if tensors.is_empty() {
        return Err(unsupported(format!("it has a function without an {role}")));
    }
    if tensors.len().max(names.len()) > MAX_PORTS {
        return Err(unsupported(format!("it has a function with more than {MAX_PORTS} {role}s")));
    }
    let mut ports: Vec<FunctionPort> = Vec::new();
    // Two names of one output are two outputs.
    let mut left: Vec<&(String, usize)> = names.iter().collect();
    for (place, &tensor) in tensors.iter().enumerate() {
        let info = subgraph.tensors.get(tensor).ok_or_else(|| damaged("it refers to no tensor"))?;
        let named = left.iter().position(|(_, its)| *its == tensor).map(|at| left.remove(at));
        let alias = match named {
            Some((alias, _)) if !alias.is_empty() => alias.clone(),
            _ if !info.name.is_empty() => info.name.clone(),
            _ => format!("{role}_{place}"),
        };
        if ports.iter().any(|port| port.alias == alias) {
            return Err(damaged(format!("it has two {role}s {alias:?}")));
        }
        if role == "input" && ports.iter().any(|port| port.tensor == tensor) {
            return Err(damaged(format!("input {alias:?} is there twice")));
        }
        ports.push(info.port(role, alias, tensor)?);
    }
    Ok(ports)
}
