//! The JSON body of `POST /`.
//!
//! Values can be read only when the model is known, and members come in any order. One pass
//! reads a body whose `data` comes behind what it depends on ([`fast`]); any other, and every
//! body with a mistake, is looked over first ([`careful`]).

use std::borrow::Cow;

use super::{find, run_failed};
use crate::codec::base64::{self, Alphabet};
use crate::codec::json::dump::dump;
use crate::codec::json::number::Number;
use crate::codec::json::read::{Fault, ReadOptions, TensorReader};
use crate::codec::json::scan::{Cursor, SyntaxError};
use crate::engine::{Engine, ModelHandle};
use crate::error::{Code, Error, Result};
use crate::tensor::{Shape, Signature, StringsBuilder, Tensor, TensorSpec};

/// A request, ready to run.
pub(super) struct Call {
    pub(super) handle: ModelHandle,
    pub(super) signature: usize,
    pub(super) inputs: Vec<Tensor>,
    /// Tell which operations take how long.
    pub(super) profile: bool,
}

pub(super) fn decode(engine: &Engine, body: &[u8]) -> Result<Call> {
    match fast(engine, body) {
        Some(call) => Ok(call),
        None => careful(engine, body),
    }
}

/// The members that say what to do with `data`.
#[derive(Default)]
struct Fields {
    model_name: Option<String>,
    model_version: Option<i64>,
    signature_name: Option<String>,
    base64_decode: bool,
    profile: bool,
    /// The functions around the model are asked for.
    hooks: bool,
}

const FIELDS: [&[u8]; 7] = [
    b"model_name",
    b"model_version",
    b"signature_name",
    b"base64_decode",
    b"run_profile",
    b"preprocess",
    b"postprocess",
];

impl Fields {
    /// Reads the member `name`, whose value is at `cursor`; a wrong one is told of in words.
    fn read(&mut self, name: &[u8], cursor: &mut Cursor, body: &[u8]) -> Result<()> {
        let at = cursor.offset();
        let wrong = |what: &str| {
            let (name, value) = (String::from_utf8_lossy(name), dump(body, at));
            Error::invalid(format!("{name} must be {what}, not {}", python(&value)))
        };
        let text = |cursor: &mut Cursor| {
            let text = cursor.string().map_err(|_| wrong("a string"))?;
            String::from_utf8(text.into_owned()).map_err(|_| wrong("text"))
        };
        match name {
            b"model_name" => self.model_name = Some(text(cursor)?),
            b"signature_name" => self.signature_name = Some(text(cursor)?),
            b"model_version" => {
                let version = version(cursor);
                self.model_version = Some(version.ok_or_else(|| wrong("a whole number"))?);
            }
            // Anything but this text asks for nothing.
            b"run_profile" => self.profile = raw(cursor, body)? == b"\"true\"",
            b"preprocess" | b"postprocess" => {
                let value = raw(cursor, body)?;
                self.hooks |= !matches!(value, b"false" | b"\"false\"" | b"null");
            }
            _ => {
                self.base64_decode = cursor.peek() == b't';
                cursor.skip_value().map_err(|e| not_json(body, e))?;
            }
        }
        Ok(())
    }

    fn find(&self, engine: &Engine) -> Result<(ModelHandle, usize)> {
        let (model, signature) = (self.model_name.as_deref(), self.signature_name.as_deref());
        let found = find(engine, model, self.model_version, signature)?;
        if self.hooks {
            check_hooks(&found.0)?;
        }
        Ok(found)
    }
}

/// Refuses a request that asks for functions which are there and are never run. Where there are
/// none, to ask for them changes nothing.
fn check_hooks(handle: &ModelHandle) -> Result<()> {
    let model = handle.model();
    if handle.has_marshalled_hooks() {
        return Err(Error::invalid(format!(
            "model {model} brings its preprocess or postprocess function in Python's marshal \
             format, which is code for one version of Python and is never run here; send data \
             that is ready for the model, without preprocess and postprocess"
        )));
    }
    log::debug!("model {model} has no function to preprocess or postprocess with");
    Ok(())
}

/// The value at `cursor` as it is written.
fn raw<'a>(cursor: &mut Cursor, body: &'a [u8]) -> Result<&'a [u8]> {
    let start = cursor.offset();
    cursor.skip_value().map_err(|e| not_json(body, e))?;
    Ok(body.get(start..cursor.offset()).unwrap_or_default().trim_ascii())
}

/// A version as a number or as a string of digits.
fn version(cursor: &mut Cursor) -> Option<i64> {
    if cursor.peek() == b'"' {
        let text = cursor.string().ok()?;
        return std::str::from_utf8(&text).ok()?.trim().parse().ok();
    }
    match cursor.number().ok()? {
        Number::Unsigned(number) => i64::try_from(number).ok(),
        Number::Negative(number) => Some(number),
        Number::Float(_) => None,
    }
}

/// Python's words for the constants of JSON, which users of the original know from its errors.
fn python(value: &str) -> Cow<'_, str> {
    match value {
        "null" => Cow::Borrowed("None"),
        "true" => Cow::Borrowed("True"),
        "false" => Cow::Borrowed("False"),
        other => Cow::Borrowed(other),
    }
}

fn fast(engine: &Engine, body: &[u8]) -> Option<Call> {
    let mut cursor = Cursor::new(body);
    if cursor.skip_space() != b'{' || !cursor.open_object().ok()? {
        return None;
    }
    let mut fields = Fields::default();
    let mut call: Option<Call> = None;
    loop {
        let name = cursor.name().ok()?;
        if FIELDS.contains(&&*name) {
            // Behind the data it is too late to be told what it was for.
            if call.is_some() {
                return None;
            }
            fields.read(&name, &mut cursor, body).ok()?;
        } else if &*name == b"data" && call.is_none() {
            let (handle, signature) = fields.find(engine).ok()?;
            let declared = handle.signatures().get(signature)?;
            let options = options(engine);
            let inputs = read_data(&mut cursor, declared, options, fields.base64_decode).ok()?;
            call = Some(Call { handle, signature, inputs, profile: fields.profile });
        } else {
            cursor.skip_value().ok()?;
        }
        if !cursor.next_member().ok()? {
            return call;
        }
    }
}

fn options(engine: &Engine) -> ReadOptions {
    let max_bytes = engine.max_tensor_bytes();
    ReadOptions { coerce: true, all_types: true, alphabet: Alphabet::Any, max_bytes }
}

fn careful(engine: &Engine, body: &[u8]) -> Result<Call> {
    let data_at = find_data(body)?;
    let mut fields = Fields::default();
    let mut cursor = Cursor::new(body);
    cursor.skip_space();
    let mut more = cursor.open_object().map_err(|e| not_json(body, e))?;
    while more {
        let name = cursor.name().map_err(|e| not_json(body, e))?;
        if FIELDS.contains(&&*name) {
            fields.read(&name, &mut cursor, body)?;
        } else {
            cursor.skip_value().map_err(|e| not_json(body, e))?;
        }
        more = cursor.next_member().map_err(|e| not_json(body, e))?;
    }
    let (handle, signature) = fields.find(engine)?;
    let Some(data_at) = data_at else {
        return Err(Error::invalid("Inference with empty data, please check the request JSON"));
    };
    let Some(declared) = handle.signatures().get(signature) else {
        return Err(Error::internal("no such signature"));
    };
    cursor.seek(data_at);
    let inputs = read_data(&mut cursor, declared, options(engine), fields.base64_decode);
    let inputs = inputs.map_err(|fault| data_error(&fault, declared, body, data_at))?;
    Ok(Call { handle, signature, inputs, profile: fields.profile })
}

/// Checks the syntax of all of `body`; where the value of `data` is.
fn find_data(body: &[u8]) -> Result<Option<usize>> {
    let scan = || -> std::result::Result<Option<Option<usize>>, SyntaxError> {
        let mut cursor = Cursor::new(body);
        cursor.open_document()?;
        if cursor.peek() != b'{' {
            cursor.skip_value()?;
            return Ok(None);
        }
        let mut data = None;
        let mut more = cursor.open_object()?;
        while more {
            let name = cursor.name()?;
            if &*name == b"data" && data.is_none() {
                data = Some(cursor.offset());
            }
            cursor.skip_value()?;
            more = cursor.next_member()?;
        }
        Ok(Some(data))
    };
    match scan() {
        Ok(Some(data)) => Ok(data),
        Ok(None) => Err(Error::invalid(format!(
            "Invalid json data: {}: it must be an object",
            excerpt(body)
        ))),
        Err(error) => Err(not_json(body, error)),
    }
}

fn not_json(body: &[u8], error: SyntaxError) -> Error {
    let (start, reason, offset) = (excerpt(body), error.kind.text(), error.offset);
    Error::invalid(format!("Invalid json data: {start}: {reason} at offset {offset}"))
}

/// The start of a body, for an error.
fn excerpt(body: &[u8]) -> String {
    const MOST: usize = 100;
    let start = body.get(..MOST).unwrap_or(body);
    let more = if body.len() > MOST { "…" } else { "" };
    format!("{}{more}", String::from_utf8_lossy(start))
}

/// Why `data` can not be read.
enum DataFault {
    Syntax(SyntaxError),
    NotObject,
    Missing(usize),
    Value(usize, Box<Fault>),
    /// Wrong in a way the runtime would have found.
    Run(String),
    Unsendable(usize),
}

impl From<SyntaxError> for DataFault {
    fn from(error: SyntaxError) -> Self {
        DataFault::Syntax(error)
    }
}

/// Reads an object with a value for each input. Names that are none of ours are ignored.
fn read_data(
    cursor: &mut Cursor,
    signature: &Signature,
    options: ReadOptions,
    base64_decode: bool,
) -> Result<Vec<Tensor>, DataFault> {
    if cursor.peek() != b'{' {
        return Err(DataFault::NotObject);
    }
    let specs = &signature.inputs;
    let mut inputs: Vec<Option<Tensor>> = specs.iter().map(|_| None).collect();
    let mut more = cursor.open_object()?;
    while more {
        let name = cursor.name()?;
        let index = specs.iter().position(|spec| spec.alias.as_bytes() == &*name);
        let slot = index.and_then(|i| Some((i, specs.get(i)?, inputs.get_mut(i)?)));
        match slot {
            Some((index, spec, slot @ None)) => {
                let tensor = read_value(cursor, index, spec, options)?;
                *slot = Some(if base64_decode && is_example_tensor(spec) {
                    decode_strings(&tensor)?
                } else {
                    tensor
                });
            }
            _ => cursor.skip_value()?,
        }
        more = cursor.next_member()?;
    }
    let given = |(index, input): (usize, Option<Tensor>)| input.ok_or(DataFault::Missing(index));
    inputs.into_iter().enumerate().map(given).collect()
}

fn read_value(
    cursor: &mut Cursor,
    index: usize,
    spec: &TensorSpec,
    options: ReadOptions,
) -> Result<Tensor, DataFault> {
    let dtype = spec.dtype().ok_or(DataFault::Unsendable(index))?;
    let mut reader = TensorReader::new(dtype, options, cursor.remaining());
    let read = reader.read(cursor);
    read.map_err(|fault| DataFault::Value(index, fault))?;
    let tensor = reader.finish().map_err(|e| DataFault::Run(e.to_string()))?;
    check_shape(&tensor, spec)?;
    Ok(tensor)
}

/// Checks a shape against the declared one, as TensorFlow's Python session does before it runs.
fn check_shape(tensor: &Tensor, spec: &TensorSpec) -> Result<(), DataFault> {
    let Some(declared) = spec.shape.sizes() else {
        return Ok(());
    };
    let dims = tensor.shape().dims();
    let fits = |(dim, size): (&i64, &i64)| *size < 0 || dim == size;
    if dims.len() == declared.len() && dims.iter().zip(&declared).all(fits) {
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
    let size = |&dim: &i64| if dim < 0 { "None".into() } else { dim.to_string() };
    match dims {
        [one] => format!("({},)", size(one)),
        _ => format!("({})", dims.iter().map(size).collect::<Vec<_>>().join(", ")),
    }
}

/// The one tensor that `base64_decode` is about.
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
        let bad = |_| DataFault::Run("a string is not base64".to_owned());
        decoded.push_with(decode).map_err(bad)?;
    }
    let shape = Shape::clone(tensor.shape());
    Tensor::from_strings(shape, decoded).map_err(|e| DataFault::Run(e.to_string()))
}

fn data_error(fault: &DataFault, signature: &Signature, body: &[u8], data_at: usize) -> Error {
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
        DataFault::Value(index, fault) => {
            let alias = spec(*index).map_or("", |spec| &spec.alias);
            run_failed(&value_error(fault, alias, spec(*index), body))
        }
        DataFault::Run(why) => run_failed(why),
        DataFault::Unsendable(index) => {
            let name = spec(*index).map_or("", |spec| &spec.alias);
            let message = format!("input {name:?} is of a type no client can send");
            return Error::new(Code::Unimplemented, message);
        }
    };
    Error::invalid(message)
}

fn value_error(fault: &Fault, alias: &str, spec: Option<&TensorSpec>, body: &[u8]) -> String {
    let kind = spec.and_then(TensorSpec::dtype).map_or("a number", |dtype| dtype.name());
    match fault {
        Fault::Syntax(error) => error.kind.text().to_owned(),
        Fault::Type { at } if body.get(*at) == Some(&b'"') => {
            let value = dump(body, *at).replace('"', "'");
            format!("could not convert string to {}: {value} (input {alias:?})", python_type(kind))
        }
        Fault::Type { at } | Fault::Unsupported { at } => {
            let value = dump(body, *at);
            format!("{} in input {alias:?} is no {kind}", python(&value))
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

/// NumPy's complaints name Python's types.
fn python_type(kind: &str) -> &str {
    if kind.contains("int") { "int" } else { "float" }
}
