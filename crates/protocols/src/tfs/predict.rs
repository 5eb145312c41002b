//! The body of `:predict`: `{"signature_name": …, "instances": […]}` or `{…, "inputs": …}`.
//!
//! [`decode_well_formed`] reads a usual body into tensors in one pass and gives up at anything unusual.
//! [`decode_checked`] then makes the checks in the reference's order, for the same result or error.

use std::borrow::Cow;

use super::encode::TfsFormat;
use super::fault;
use super::outline::Outline;
use tensorserve_codec::base64::Alphabet;
use tensorserve_codec::json::dump::dump;
use tensorserve_codec::json::members::MemberNames;
use tensorserve_codec::json::read::{
    ReadOptions, TensorReadError as Fault, TensorReader, is_base64_object,
};
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_core::engine::ModelHandle;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::names::{InputName, quoted, shown};
use tensorserve_tensor::{DType, Signature, Tensor, TensorSpec};

/// The members of a body that are read.
const MEMBERS: [&str; 3] = ["signature_name", "instances", "inputs"];

/// A decoded body.
pub(crate) struct DecodedTensors {
    /// The index of the signature.
    pub(crate) signature: usize,
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) format: TfsFormat,
}

/// Decodes a body, for the signature `default` if it names none; with `exact`, only values of the types
/// that the reference reads from JSON.
pub(super) fn decode(
    body: &[u8],
    handle: &ModelHandle,
    default: &str,
    max_bytes: usize,
    exact: bool,
) -> Result<DecodedTensors> {
    let alphabet = Alphabet::Standard;
    let options = ReadOptions {
        coerce: false,
        all_types: !exact,
        nulls: false,
        number_texts: None,
        alphabet,
        max_bytes,
    };
    match decode_well_formed(body, handle, default, options) {
        Some(decoded) => Ok(decoded),
        None => decode_checked(body, handle, default, options),
    }
}

/// Makes the checks of a body that precede the resolution of its model.
pub(super) fn check_form(body: &[u8]) -> Result<()> {
    let outline = Outline::of(body, MEMBERS)?;
    let [name, ..] = outline.members;
    outline.signature_name(name).map(drop)
}

/// Decodes a body without mistakes whose signature name precedes its values; `None` for any other.
fn decode_well_formed(
    body: &[u8],
    handle: &ModelHandle,
    default: &str,
    options: ReadOptions,
) -> Option<DecodedTensors> {
    let mut cursor = Cursor::new(body);
    if cursor.skip_space() != b'{' || !cursor.open_object().ok()? {
        return None;
    }
    let mut name: Option<Cow<[u8]>> = None;
    let mut decoded = None;
    loop {
        match &*cursor.name().ok()? {
            b"signature_name" if name.is_none() && decoded.is_none() => {
                name = Some(cursor.string().ok()?);
            }
            key @ (b"instances" | b"inputs") if decoded.is_none() => {
                let found = handle.signature(signature_name(name.as_deref(), default)?)?;
                let (signature, declared) = by_names(handle, found, &cursor, 1);
                if declared.inputs.is_empty() {
                    return None;
                }
                let row = key == b"instances";
                let (format, inputs) = if row {
                    (TfsFormat::Row, read_rows(&mut cursor, declared, options).ok()?)
                } else {
                    (TfsFormat::Column, read_columns(&mut cursor, declared, options).ok()?)
                };
                decoded = Some(DecodedTensors { signature, inputs, format });
            }
            b"signature_name" | b"instances" | b"inputs" => return None,
            _ => cursor.skip_value().ok()?,
        }
        if !cursor.next_member().ok()? {
            return decoded;
        }
    }
}

fn signature_name<'n>(given: Option<&'n [u8]>, default: &'n str) -> Option<&'n str> {
    match given {
        None | Some(b"") => Some(default),
        Some(name) => std::str::from_utf8(name).ok(),
    }
}

fn decode_checked(
    body: &[u8],
    handle: &ModelHandle,
    default: &str,
    options: ReadOptions,
) -> Result<DecodedTensors> {
    let outline = Outline::of(body, MEMBERS)?;
    let [name, instances, inputs] = outline.members;
    let name = outline.signature_name(name)?;
    let found = find_signature(handle, &name, default)?;
    let (format, offset) = match (instances, inputs) {
        (Some(_), Some(_)) => {
            return Err(outline.error(
                "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to \
                 exist ",
            ));
        }
        (None, None) => return Err(Error::invalid("Missing 'inputs' or 'instances' key")),
        (Some(offset), None) => (TfsFormat::Row, offset),
        (None, Some(offset)) => (TfsFormat::Column, offset),
    };
    let mut cursor = outline.at(offset);
    let (signature, declared) = by_names(handle, found, &cursor, usize::MAX);
    let inputs = match format {
        TfsFormat::Row => read_rows(&mut cursor, declared, options)
            .map_err(|fault| rows_error(fault, declared, body, &|| outline.document())),
        TfsFormat::Column => read_columns(&mut cursor, declared, options)
            .map_err(|fault| columns_error(&fault, declared, body)),
    };
    Ok(DecodedTensors { signature, inputs: inputs?, format })
}

fn find_signature<'h>(
    handle: &'h ModelHandle,
    name: &[u8],
    default: &str,
) -> Result<(usize, &'h Signature)> {
    let given = String::from_utf8_lossy(name);
    let wanted = if given.is_empty() { default } else { &given };
    let (signature, declared) = handle.signature(wanted).ok_or_else(|| {
        Error::invalid(format!("Serving signature name: \"{wanted}\" not found in signature def"))
    })?;
    if declared.inputs.is_empty() {
        let name = if given.is_empty() { "DEFAULT" } else { &given };
        return Err(Error::invalid(format!("Failed to get input map for signature: {name}")));
    }
    Ok((signature, declared))
}

/// The signature for the values at `cursor`: `found`, or the one that takes the columns that they name. At most `most`
/// of the names are looked at.
fn by_names<'h>(
    handle: &'h ModelHandle,
    found: (usize, &'h Signature),
    cursor: &Cursor,
    most: usize,
) -> (usize, &'h Signature) {
    let mut cursor = cursor.clone();
    let is_list = cursor.peek() == b'[';
    if found.1.by_columns.is_none() || (is_list && !cursor.open_array()) {
        return found;
    }
    match is_named(&cursor) {
        Ok(true) => handle.signature_by_inputs(found, MemberNames::of(cursor).take(most)),
        Ok(false) | Err(_) => found,
    }
}

/// Why `instances` cannot be read.
enum RowsFault {
    Syntax(SyntaxError),
    NotList,
    Empty,
    /// A plain list for a signature of several inputs.
    Plain,
    NotObject {
        row: usize,
    },
    IsObject {
        row: usize,
    },
    UnknownInput {
        row: usize,
        key: String,
    },
    /// An input that a row has twice.
    Twice {
        row: usize,
        index: usize,
    },
    Keys {
        row: usize,
        at: usize,
    },
    Value {
        row: usize,
        key: Option<usize>,
        fault: Box<Fault>,
    },
    Shape(Error),
}

impl From<SyntaxError> for RowsFault {
    fn from(error: SyntaxError) -> Self {
        RowsFault::Syntax(error)
    }
}

fn reader(spec: &TensorSpec, options: ReadOptions, cursor: &Cursor) -> TensorReader {
    // An unsupported type is refused at its first element, as complex numbers are.
    let dtype = spec.dtype().unwrap_or(DType::Complex64);
    let (nulls, number_texts) = (spec.takes_missing, spec.number_texts);
    let options = ReadOptions { nulls, number_texts, ..options };
    TensorReader::new(dtype, options, cursor.remaining())
}

/// Reads `instances`: rows that are values of the one input, or objects of named values.
fn read_rows(
    cursor: &mut Cursor,
    signature: &Signature,
    options: ReadOptions,
) -> Result<Vec<Tensor>, RowsFault> {
    let specs = &signature.inputs;
    if cursor.peek() != b'[' {
        return Err(RowsFault::NotList);
    }
    if !cursor.open_array() {
        return Err(RowsFault::Empty);
    }
    let named = is_named(cursor)?;
    if !named && specs.len() > 1 {
        return Err(RowsFault::Plain);
    }
    let mut readers: Vec<_> = specs.iter().map(|s| reader(s, options, cursor)).collect();
    if named {
        return NamedRows::new(signature, readers).read(cursor);
    }
    let mut rows = 0;
    loop {
        if cursor.peek() == b'{' && is_named(cursor)? {
            return Err(RowsFault::IsObject { row: rows });
        }
        for reader in &mut readers {
            let read = reader.read(cursor);
            read.map_err(|fault| RowsFault::Value { row: rows, key: None, fault })?;
        }
        rows += 1;
        if !cursor.next_element()? {
            break;
        }
    }
    finished(readers, rows)
}

fn finished(readers: Vec<TensorReader>, rows: usize) -> Result<Vec<Tensor>, RowsFault> {
    let tensors = readers.into_iter().map(|reader| reader.finish_rows(rows));
    tensors.collect::<Result<_>>().map_err(RowsFault::Shape)
}

/// Whether the value at `cursor` is an object of named values.
fn is_named(cursor: &Cursor) -> Result<bool, SyntaxError> {
    Ok(cursor.peek() == b'{' && !is_base64_object(cursor)?)
}

/// Reads rows that are objects of named values.
struct NamedRows<'s> {
    signature: &'s Signature,
    readers: Vec<TensorReader>,
    /// For each input, the number of rows whose values its reader has. Missing values are added when one that
    /// is not missing follows, all at once: few bytes of text may lack many columns.
    filled: Vec<usize>,
    /// The inputs that every row must have.
    is_required: Vec<bool>,
    /// Their number.
    required: usize,
    /// The number of the row that is read.
    row: usize,
}

impl<'s> NamedRows<'s> {
    fn new(signature: &'s Signature, readers: Vec<TensorReader>) -> Self {
        let inputs = signature.inputs.iter().zip(&readers);
        let is_required: Vec<bool> = inputs
            .map(|(spec, reader)| {
                !(spec.takes_missing && spec.is_column() && reader.takes_missing())
            })
            .collect();
        let required = is_required.iter().filter(|required| **required).count();
        let filled = vec![0; readers.len()];
        NamedRows { signature, readers, filled, is_required, required, row: 0 }
    }

    /// Reads the rows from the one at `cursor` on.
    fn read(mut self, cursor: &mut Cursor) -> Result<Vec<Tensor>, RowsFault> {
        loop {
            self.read_row(cursor)?;
            self.row += 1;
            if !cursor.next_element()? {
                break;
            }
        }
        for index in 0..self.readers.len() {
            self.add_missing(index)?;
        }
        finished(self.readers, self.row)
    }

    fn read_row(&mut self, cursor: &mut Cursor) -> Result<(), RowsFault> {
        let row = self.row;
        if !is_named(cursor)? {
            return Err(RowsFault::NotObject { row });
        }
        let at = cursor.offset();
        let (mut found, mut required) = (0, 0);
        let mut more = cursor.open_object()?;
        while more {
            let name = cursor.name()?;
            match self.signature.named(&name) {
                InputName::Declared(index) => {
                    found += 1;
                    required += usize::from(self.read_value(cursor, index)?);
                }
                InputName::Unused => cursor.skip_value()?,
                InputName::Ignored | InputName::Unknown => {
                    let key = quoted(&name);
                    return Err(RowsFault::UnknownInput { row, key });
                }
            }
            more = cursor.next_member()?;
        }
        if found != self.readers.len() && required != self.required {
            return Err(RowsFault::Keys { row, at });
        }
        Ok(())
    }

    /// Reads the row's value of an input. Returns whether it is the first one of an input that is required.
    fn read_value(&mut self, cursor: &mut Cursor, index: usize) -> Result<bool, RowsFault> {
        let row = self.row;
        let filled = self.filled.get(index).copied().unwrap_or(0);
        if filled > row && !self.signature.ignores_unknown {
            return Err(RowsFault::Twice { row, index });
        }
        if filled < row {
            self.add_missing(index)?;
        }
        let states = self.readers.get_mut(index).zip(self.is_required.get_mut(index));
        let Some((reader, is_required)) = states else { return Ok(false) };
        let read = reader.read(cursor);
        read.map_err(|fault| RowsFault::Value { row, key: Some(index), fault })?;
        // Beside values that are lists, none can be missing.
        if !*is_required && !reader.takes_missing() {
            *is_required = true;
            self.required += 1;
        }
        if let Some(filled) = self.filled.get_mut(index) {
            *filled = row + 1;
        }
        Ok(filled <= row && *is_required)
    }

    /// Adds the missing values of an input in the rows before this one.
    #[cold]
    fn add_missing(&mut self, index: usize) -> Result<(), RowsFault> {
        let row = self.row;
        let Some((reader, filled)) = self.readers.get_mut(index).zip(self.filled.get_mut(index))
        else {
            return Ok(());
        };
        let key = Some(index);
        let added = reader.add_missing(row.saturating_sub(*filled));
        added.map_err(|fault| RowsFault::Value { row, key, fault })?;
        *filled = row;
        Ok(())
    }
}

fn element_error(row: usize, key: &str, error: &Error) -> Error {
    let (code, message) = (error.code().name(), error.message());
    Error::invalid(format!(
        "Failed to process element: {row}{key} of 'instances' list. Error: {code}: {message}"
    ))
}

fn rows_error(
    fault: RowsFault,
    signature: &Signature,
    body: &[u8],
    document: &dyn Fn() -> String,
) -> Error {
    let specs = &signature.inputs;
    let message = match fault {
        RowsFault::Syntax(error) => return fault::syntax(error),
        RowsFault::Shape(error) => return error,
        RowsFault::NotList => {
            format!("JSON Value: {} Expecting 'instances' to be an list/array", document())
        }
        RowsFault::Empty => {
            format!("JSON Value: {} No values in 'instances' array", document())
        }
        RowsFault::Plain => "instances is a plain list, but expecting list of objects as multiple \
                             input tensors required as per tensorinfo_map"
            .to_owned(),
        RowsFault::NotObject { row } => {
            format!("Expecting object but got list at item {row} of input list")
        }
        RowsFault::IsObject { row } => {
            format!("Expecting value/list but got object at item {row} of input list")
        }
        RowsFault::UnknownInput { row, key } => {
            let mut message = format!("JSON object: does not have named input: {key}");
            if !signature.ignores_unknown {
                let instead = signature.instead_of(key.as_bytes());
                message.push_str(&format!("; {instead}"));
            }
            return element_error(row, &format!(" key: {key}"), &Error::invalid(message));
        }
        RowsFault::Twice { row, index } => {
            let alias = specs.get(index).map_or("", |spec| &spec.alias);
            format!("Item {row} of 'instances' list has the named input: {alias} twice")
        }
        RowsFault::Keys { row, at } => {
            let names: Vec<&str> = specs.iter().map(|spec| spec.alias.as_str()).collect();
            format!(
                "Failed to process element: {row} of 'instances' list. JSON object: {} keys must \
                 be equal to: {}",
                dump(body, at),
                names.join(",")
            )
        }
        RowsFault::Value { row, key, fault } => {
            if let Fault::Refused(refusal) = &*fault {
                return refusal.error();
            }
            let Some(spec) = specs.get(key.unwrap_or(0)) else {
                return Error::internal("no such input");
            };
            let error = fault::value(&fault, spec, body);
            let key = key.map_or(String::new(), |_| format!(" key: {}", spec.alias));
            return element_error(row, &key, &error);
        }
    };
    Error::invalid(message)
}

/// Why `inputs` cannot be read.
enum ColumnsFault {
    Syntax(SyntaxError),
    /// A plain value for a signature of several inputs.
    Plain,
    Missing {
        index: usize,
    },
    Unknown {
        key: String,
    },
    Twice {
        index: usize,
    },
    Value {
        index: usize,
        fault: Box<Fault>,
    },
    Shape(Error),
}

impl From<SyntaxError> for ColumnsFault {
    fn from(error: SyntaxError) -> Self {
        ColumnsFault::Syntax(error)
    }
}

/// Reads `inputs`: the value of the one input, or an object with a value for each.
fn read_columns(
    cursor: &mut Cursor,
    signature: &Signature,
    options: ReadOptions,
) -> Result<Vec<Tensor>, ColumnsFault> {
    let specs = &signature.inputs;
    if !is_named(cursor)? {
        let [spec] = specs.as_slice() else {
            return Err(ColumnsFault::Plain);
        };
        return Ok(vec![read_column(cursor, 0, spec, options)?]);
    }
    let mut tensors: Vec<Option<Tensor>> = specs.iter().map(|_| None).collect();
    let mut more = cursor.open_object()?;
    while more {
        let name = cursor.name()?;
        match signature.named(&name) {
            InputName::Declared(index) => match (specs.get(index), tensors.get_mut(index)) {
                (Some(spec), Some(slot @ None)) => {
                    *slot = Some(read_column(cursor, index, spec, options)?);
                }
                // Of duplicate names, the first wins in the reference.
                _ if signature.ignores_unknown => cursor.skip_value()?,
                _ => return Err(ColumnsFault::Twice { index }),
            },
            InputName::Unused | InputName::Ignored => cursor.skip_value()?,
            InputName::Unknown => {
                let key = quoted(&name);
                return Err(ColumnsFault::Unknown { key });
            }
        }
        more = cursor.next_member()?;
    }
    let rows = tensors.iter().flatten().find_map(Tensor::rows);
    let given = tensors.into_iter().zip(specs).enumerate().map(|(index, (tensor, spec))| {
        match (tensor, rows) {
            (Some(tensor), _) => Ok(tensor),
            (None, Some(rows)) if spec.takes_missing => {
                let absent = signature.absent_input(spec, rows).map_err(ColumnsFault::Shape)?;
                absent.ok_or(ColumnsFault::Missing { index })
            }
            (None, _) => Err(ColumnsFault::Missing { index }),
        }
    });
    given.collect()
}

fn read_column(
    cursor: &mut Cursor,
    index: usize,
    spec: &TensorSpec,
    options: ReadOptions,
) -> Result<Tensor, ColumnsFault> {
    let mut reader = reader(spec, options, cursor);
    let read = reader.read(cursor);
    read.map_err(|fault| ColumnsFault::Value { index, fault })?;
    reader.finish().map_err(ColumnsFault::Shape)
}

fn columns_error(fault: &ColumnsFault, signature: &Signature, body: &[u8]) -> Error {
    let specs = &signature.inputs;
    match fault {
        ColumnsFault::Syntax(error) => fault::syntax(*error),
        ColumnsFault::Shape(error) => error.duplicate(),
        ColumnsFault::Plain => Error::invalid(
            "inputs is a plain value/list, but expecting an object as multiple input tensors \
             required as per tensorinfo_map",
        ),
        ColumnsFault::Missing { index } => {
            let name = specs.get(*index).map_or("", |spec| &spec.alias);
            Error::invalid(format!("Missing named input: {name} in 'inputs' object."))
        }
        ColumnsFault::Unknown { key } => {
            let (name, instead) = (shown(key.as_bytes()), signature.instead_of(key.as_bytes()));
            Error::invalid(format!("Unknown named input: {name} in 'inputs' object; {instead}"))
        }
        ColumnsFault::Twice { index } => {
            let name = specs.get(*index).map_or("", |spec| &spec.alias);
            Error::invalid(format!("Named input: {name} is twice in 'inputs' object."))
        }
        ColumnsFault::Value { index, fault } => match specs.get(*index) {
            Some(spec) => fault::value(fault, spec, body),
            None => Error::internal("no such input"),
        },
    }
}
