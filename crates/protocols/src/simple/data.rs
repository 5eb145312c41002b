//! The value of `data` in the body of `POST /`: an object with a value for each input.
//!
//! As in the original, models of other platforms also accept the bare value of their one input, single
//! values for one row, and a row in libsvm's sparse format.

use super::fault::{not_json, python};
use super::run_failed;
use tensorserve_codec::base64::{self, Alphabet};
use tensorserve_codec::json::dump::dump;
use tensorserve_codec::json::read::{ReadOptions, TensorReadError as Fault, TensorReader};
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_core::engine::InputStyle;
use tensorserve_tensor::error::{Code, Error};
use tensorserve_tensor::names::{InputName, quoted, shown};
use tensorserve_tensor::{
    DType, Shape, Signature, StringsBuilder, Tensor, TensorSpec, aligned_vec,
};

/// The decoded `data`.
pub(super) struct SimpleData {
    /// A tensor for each input.
    pub(super) inputs: Vec<Tensor>,
    /// The inputs were sent as one row without the batch dimension.
    pub(super) one_row: bool,
}

/// Options for decoding `data`.
#[derive(Clone, Copy)]
pub(super) struct DataOptions {
    /// How to read JSON values.
    pub(super) read: ReadOptions,
    /// Strings of serialized examples are base64.
    pub(super) base64_decode: bool,
    /// The format in which clients send the inputs of the model.
    pub(super) input_style: InputStyle,
}

/// Why `data` cannot be read.
pub(super) enum DataFault {
    Syntax(SyntaxError),
    NotObject,
    Missing(usize),
    Unknown(String),
    Twice(usize),
    Value(usize, Box<Fault>),
    /// An error that the original reports when it runs the model.
    Run(String),
    Unsendable(usize),
}

impl From<SyntaxError> for DataFault {
    fn from(error: SyntaxError) -> Self {
        DataFault::Syntax(error)
    }
}

/// Decodes `data` at `cursor`.
pub(super) fn read(
    cursor: &mut Cursor,
    signature: &Signature,
    options: DataOptions,
) -> Result<SimpleData, DataFault> {
    let specs = &signature.inputs;
    if cursor.peek() != b'{' {
        let ([spec], false) = (specs.as_slice(), options.input_style == InputStyle::Tensors) else {
            return Err(DataFault::NotObject);
        };
        let input = read_value(cursor, 0, spec, options)?;
        check_shape(&input, spec)?;
        return Ok(SimpleData { inputs: vec![input], one_row: false });
    }
    let mut inputs: Vec<Option<Tensor>> = specs.iter().map(|_| None).collect();
    let mut others = OtherMembers::default();
    let mut more = cursor.open_object()?;
    while more {
        let name = cursor.name()?;
        match signature.named(&name) {
            InputName::Declared(index) => match (specs.get(index), inputs.get_mut(index)) {
                (Some(spec), Some(slot @ None)) => {
                    *slot = Some(read_value(cursor, index, spec, options)?);
                }
                _ if signature.ignores_unknown => cursor.skip_value()?,
                _ => return Err(DataFault::Twice(index)),
            },
            InputName::Unused => cursor.skip_value()?,
            InputName::Ignored | InputName::Unknown => {
                others.note(&name, cursor.offset());
                cursor.skip_value()?;
            }
        }
        more = cursor.next_member()?;
    }
    if options.input_style != InputStyle::Tensors {
        return complete(cursor, signature, inputs, others, options);
    }
    check_known(signature, others.first)?;
    let inputs = inputs.into_iter().enumerate();
    let inputs = inputs.map(|(index, input)| input.ok_or(DataFault::Missing(index)));
    Ok(SimpleData { inputs: inputs.collect::<Result<_, _>>()?, one_row: false })
}

/// Members that are not named like an input.
#[derive(Default)]
struct OtherMembers {
    /// The offsets of those that may contain an input.
    data: Option<usize>,
    ids: Option<usize>,
    values: Option<usize>,
    max_ids: Option<usize>,
    /// The name of the first one.
    first: Option<String>,
    /// That of the first one that is in no place of an input.
    unknown: Option<String>,
}

impl OtherMembers {
    fn note(&mut self, name: &[u8], at: usize) {
        let text = || quoted(name);
        self.first.get_or_insert_with(text);
        match name {
            b"data" => self.data = Some(at),
            b"ids" => self.ids = Some(at),
            b"values" => self.values = Some(at),
            b"max_ids" => self.max_ids = Some(at),
            // It says that the row is in the format that `ids` and `values` have.
            b"format" => {}
            _ => {
                self.unknown.get_or_insert_with(text);
            }
        }
    }
}

/// Fills in inputs that were not sent under their own name, for a model that is not a graph. Leaves the
/// cursor where it was: after the object.
fn complete(
    cursor: &mut Cursor,
    signature: &Signature,
    mut inputs: Vec<Option<Tensor>>,
    others: OtherMembers,
    options: DataOptions,
) -> Result<SimpleData, DataFault> {
    let specs = &signature.inputs;
    let end = cursor.offset();
    let mut one_row = false;
    let mut unknown = others.first;
    if let ([slot @ None], [spec]) = (inputs.as_mut_slice(), specs.as_slice()) {
        if let (Some(ids), Some(values)) = (others.ids, others.values) {
            *slot = Some(read_sparse(cursor, spec, (ids, values, others.max_ids), options)?);
            one_row = true;
            unknown = others.unknown.or_else(|| others.data.map(|_| "data".to_owned()));
        } else if let Some(at) = others.data {
            cursor.seek(at);
            *slot = Some(read_value(cursor, 0, spec, options)?);
            unknown = others.unknown;
        }
        cursor.seek(end);
    }
    check_known(signature, unknown)?;
    for (input, spec) in inputs.iter_mut().zip(specs) {
        let declares_rows = spec.shape.sizes().is_some_and(|sizes| sizes.len() == 1);
        if let Some(tensor) = input
            && declares_rows
            && tensor.shape().rank() == 0
        {
            *tensor = tensor.as_row();
            one_row = true;
        }
        if let Some(tensor) = input {
            check_shape(tensor, spec)?;
        }
    }
    let rows = inputs.iter().flatten().find_map(Tensor::rows).unwrap_or(1);
    let all = inputs.into_iter().zip(specs).enumerate().map(|(index, (input, spec))| match input {
        Some(input) => Ok(input),
        None => {
            let absent = signature.absent_input(spec, rows);
            let absent = absent.map_err(|e| DataFault::Run(e.to_string()))?;
            absent.ok_or(DataFault::Missing(index))
        }
    });
    Ok(SimpleData { inputs: all.collect::<Result<_, _>>()?, one_row })
}

/// Refuses members that are no inputs, unless they are ignored as in the original.
fn check_known(signature: &Signature, unknown: Option<String>) -> Result<(), DataFault> {
    match unknown.filter(|_| !signature.ignores_unknown) {
        Some(name) => Err(DataFault::Unknown(name)),
        None => Ok(()),
    }
}

/// Decodes one row in libsvm's sparse format: `ids`, the features that are not zero, their `values`,
/// and `max_ids`, the number of features.
fn read_sparse(
    cursor: &mut Cursor,
    spec: &TensorSpec,
    (ids, values, max_ids): (usize, usize, Option<usize>),
    options: DataOptions,
) -> Result<Tensor, DataFault> {
    let sizes = spec.shape.sizes();
    let (Some(&[_, width]), Some(DType::Double)) = (sizes.as_deref(), spec.dtype()) else {
        return Err(DataFault::Missing(0));
    };
    let mut list = |at: usize, dtype| {
        cursor.seek(at);
        let mut reader = TensorReader::new(dtype, options.read, 0);
        reader.read(cursor).map_err(|fault| DataFault::Value(0, fault))?;
        reader.finish().map_err(|e| DataFault::Run(e.to_string()))
    };
    if let Some(at) = max_ids {
        let told = list(at, DType::Int64)?;
        if told.values() != Some(&[width]) {
            return Err(DataFault::Run(format!(
                "max_ids must be {width}, the number of features of the model"
            )));
        }
    }
    let (ids, values) = (list(ids, DType::Int64)?, list(values, DType::Double)?);
    let ids = ids.values::<i64>().unwrap_or(&[]);
    let values = values.values::<f64>().unwrap_or(&[]);
    if ids.len() != values.len() {
        let (ids, values) = (ids.len(), values.len());
        return Err(DataFault::Run(format!("there are {ids} ids and {values} values")));
    }
    let width = usize::try_from(width).map_err(|_| DataFault::Missing(0))?;
    let mut row = aligned_vec::<f64>(width);
    row.resize(width, 0.0);
    for (&id, &value) in ids.iter().zip(values) {
        let slot = usize::try_from(id).ok().and_then(|id| row.get_mut(id));
        let missing =
            || DataFault::Run(format!("id {id} is out of range: the model has {width} features"));
        *slot.ok_or_else(missing)? = value;
    }
    let row = Tensor::from_vec(Shape::vector(width), row);
    Ok(row.map_err(|e| DataFault::Run(e.to_string()))?.as_row())
}

fn read_value(
    cursor: &mut Cursor,
    index: usize,
    spec: &TensorSpec,
    options: DataOptions,
) -> Result<Tensor, DataFault> {
    let dtype = spec.dtype().ok_or(DataFault::Unsendable(index))?;
    let (nulls, number_texts) = (spec.takes_missing, spec.number_texts);
    let options_of_input = ReadOptions { nulls, number_texts, ..options.read };
    let mut reader = TensorReader::new(dtype, options_of_input, cursor.remaining());
    let read = reader.read(cursor);
    read.map_err(|fault| DataFault::Value(index, fault))?;
    let tensor = reader.finish().map_err(|e| DataFault::Run(e.to_string()))?;
    if options.input_style != InputStyle::Tensors {
        return Ok(tensor); // The batch dimension may be added later.
    }
    check_shape(&tensor, spec)?;
    if options.base64_decode && is_example_tensor(spec) {
        return decode_strings(&tensor);
    }
    Ok(tensor)
}

/// Checks a shape against the declared one, as TensorFlow's Python session does before a run.
fn check_shape(tensor: &Tensor, spec: &TensorSpec) -> Result<(), DataFault> {
    let Some(declared) = spec.shape.sizes() else {
        return Ok(());
    };
    let dims = tensor.shape().dims();
    let mut sizes = dims.iter().zip(&declared);
    if dims.len() == declared.len() && sizes.all(|(dim, size)| *size < 0 || dim == size) {
        return Ok(());
    }
    Err(DataFault::Run(format!(
        "Cannot feed value of shape {} for Tensor {}, which has shape {}",
        tuple(dims),
        spec.tensor_name,
        tuple(&declared)
    )))
}

/// A shape as Python prints it.
fn tuple(dims: &[i64]) -> String {
    match dims {
        [one] => format!("({},)", dimension(one)),
        _ => format!("({})", dims.iter().map(dimension).collect::<Vec<_>>().join(", ")),
    }
}

fn dimension(size: &i64) -> String {
    if *size < 0 { "None".to_owned() } else { size.to_string() }
}

/// Whether `base64_decode` applies to a tensor.
fn is_example_tensor(spec: &TensorSpec) -> bool {
    spec.tensor_name == "input_example_tensor:0"
}

fn decode_strings(tensor: &Tensor) -> Result<Tensor, DataFault> {
    let Some(strings) = tensor.strings() else {
        return Ok(tensor.clone());
    };
    let mut decoded = StringsBuilder::with_capacity(strings.len(), strings.byte_len());
    for text in strings.iter() {
        let decode = |out: &mut Vec<u8>| base64::decode(text, Alphabet::Any, out);
        let pushed = decoded.push_with(decode);
        pushed.map_err(|_| DataFault::Run("a string is not base64".to_owned()))?;
    }
    let shape = Shape::clone(tensor.shape());
    Tensor::from_strings(shape, decoded).map_err(|e| DataFault::Run(e.to_string()))
}

/// The error for a request whose `data`, at `data_at` in `body`, cannot be decoded.
pub(super) fn error(
    fault: &DataFault,
    signature: &Signature,
    body: &[u8],
    data_at: usize,
) -> Error {
    let spec = |index: usize| signature.inputs.get(index);
    let message = match fault {
        DataFault::Syntax(error) => return not_json(body, *error),
        DataFault::NotObject => {
            let names: Vec<&str> = signature.inputs.iter().map(|s| s.alias.as_str()).collect();
            format!("data must be an object with a value for each of {names:?}")
        }
        DataFault::Missing(index) => {
            let (name, data) = (spec(*index).map_or("", |s| &s.alias), dump(body, data_at));
            format!(
                "Input op name '{name}' does not exist in input data: {data}, please check the \
                 request JSON"
            )
        }
        DataFault::Unknown(name) => {
            let (shown, instead) = (shown(name.as_bytes()), signature.instead_of(name.as_bytes()));
            format!("the model has no input {shown}, which is in data; {instead}")
        }
        DataFault::Twice(index) => {
            let name = spec(*index).map_or("", |s| &s.alias);
            format!("input {name:?} is in data twice")
        }
        DataFault::Value(index, fault) => {
            let alias = spec(*index).map_or("", |spec| &spec.alias);
            if let Fault::Refused(refusal) = &**fault {
                return refusal.error();
            }
            run_failed(&value_error(fault, alias, spec(*index), body))
        }
        DataFault::Run(why) => run_failed(why),
        DataFault::Unsendable(index) => {
            let name = spec(*index).map_or("", |spec| &spec.alias);
            let message = format!("input {name:?} is of a type that clients cannot send");
            return Error::new(Code::Unimplemented, message);
        }
    };
    Error::invalid(message)
}

fn value_error(fault: &Fault, alias: &str, spec: Option<&TensorSpec>, body: &[u8]) -> String {
    let dtype = spec.and_then(TensorSpec::dtype);
    let kind = dtype.map_or("a number", |dtype| dtype.name());
    match fault {
        Fault::Syntax(error) => error.kind.text().to_owned(),
        Fault::Refused(refusal) => refusal.error().message().to_owned(),
        Fault::Type { at } if body.get(*at) == Some(&b'"') => {
            let value = dump(body, *at).replace('"', "'");
            let kind = python_type(dtype);
            format!("could not convert string to {kind}: {value} (input {alias:?})")
        }
        Fault::Type { at } | Fault::Unsupported { at } => {
            let value = dump(body, *at);
            format!("{} in input {alias:?} is not a value of type {kind}", python(&value))
        }
        Fault::NotBase64Object { at } => {
            format!("{} in input {alias:?} is neither a string nor {{\"b64\": …}}", dump(body, *at))
        }
        Fault::NotBase64 => format!("a b64 value in input {alias:?} is not base64"),
        Fault::ListTooDeep { .. }
        | Fault::ValueAtWrongLevel { .. }
        | Fault::ListSize { .. }
        | Fault::RowSize { .. }
        | Fault::RowShape { .. } => format!(
            "setting an array element with a sequence: the lists of input {alias:?} are ragged"
        ),
        Fault::TooManyDimensions => format!("input {alias:?} has more than 254 dimensions"),
        Fault::TooLarge => format!("input {alias:?} takes too much memory"),
    }
}

/// The Python type that NumPy names in its errors.
fn python_type(dtype: Option<DType>) -> &'static str {
    match dtype {
        Some(
            DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64,
        ) => "int",
        Some(
            DType::Float
            | DType::Double
            | DType::Half
            | DType::BFloat16
            | DType::Bool
            | DType::Complex64
            | DType::Complex128
            | DType::String,
        )
        | None => "float",
    }
}
