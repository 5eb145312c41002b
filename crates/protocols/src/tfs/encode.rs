//! The JSON of results, byte for byte as TensorFlow Serving writes it: output tensors by rows as
//! `predictions` and by columns as `outputs`; classifications and regressions as `results`.

use super::classify::Class;
use super::fault::type_name;
use tensorserve_codec::json::float;
use tensorserve_codec::json::write::{self, Floats, JsonLayout, Style, Texts, new_line};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Tensor, TensorSpec};

/// Enough bytes for most responses.
const SMALL_RESPONSE: usize = 256;

/// Enough bytes for a number, or for what is between two values.
const FRAME: usize = 64;

/// The layout of inputs and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TfsFormat {
    /// `instances`: a list of rows.
    Row,
    /// `inputs`: one tensor for each name.
    Column,
}

/// The outputs of `:predict`; with `exact`, an error for types that the reference cannot write.
pub(super) fn outputs(
    format: TfsFormat,
    specs: &[TensorSpec],
    outputs: &[Tensor],
    exact: bool,
) -> Result<Vec<u8>> {
    let named: Vec<(&str, &Tensor)> =
        specs.iter().map(|spec| spec.alias.as_str()).zip(outputs).collect();
    if exact {
        named.iter().try_for_each(|(_, tensor)| check_type(tensor))?;
    }
    let mut out = Vec::with_capacity(SMALL_RESPONSE);
    match format {
        TfsFormat::Row => rows(&named, &mut out)?,
        TfsFormat::Column => columns(&named, &mut out)?,
    }
    Ok(out)
}

/// Refuses the types that the reference cannot write as JSON.
fn check_type(tensor: &Tensor) -> Result<()> {
    match tensor.dtype() {
        dtype @ (DType::Half
        | DType::BFloat16
        | DType::UInt16
        | DType::Complex64
        | DType::Complex128) => {
            let name = type_name(dtype.number());
            let message = format!("Failed to write JSON value for tensor type: {name}");
            Err(Error::invalid(message))
        }
        DType::Float
        | DType::Double
        | DType::Int8
        | DType::Int16
        | DType::Int32
        | DType::Int64
        | DType::UInt8
        | DType::UInt32
        | DType::UInt64
        | DType::Bool
        | DType::String => Ok(()),
    }
}

fn rows(named: &[(&str, &Tensor)], out: &mut Vec<u8>) -> Result<()> {
    let batch = batch_size(named)?;
    out.extend_from_slice(b"{\n    \"predictions\": ");
    if let [(name, tensor)] = named {
        // The rows of a single output are on one line; only the closing bracket has its own line.
        write_tensor(tensor, name, JsonLayout::Line, 1, out)?;
        out.pop();
    } else {
        out.push(b'[');
        for index in 0..batch {
            budget::grow(out, FRAME)?;
            if index > 0 {
                out.push(b',');
            }
            new_line(2, out);
            object(named, index, out)?;
        }
    }
    if batch > 0 {
        new_line(1, out);
    }
    out.extend_from_slice(b"]\n}");
    Ok(())
}

/// Row number `index` of several outputs.
fn object(named: &[(&str, &Tensor)], index: usize, out: &mut Vec<u8>) -> Result<()> {
    out.push(b'{');
    for (position, (name, tensor)) in named.iter().enumerate() {
        member(position, 3, name, out)?;
        write_tensor(&tensor.row(index), name, JsonLayout::Line, 3, out)?;
    }
    new_line(2, out);
    out.push(b'}');
    Ok(())
}

/// The 0-th dimension that all outputs share.
fn batch_size(named: &[(&str, &Tensor)]) -> Result<usize> {
    let mut expected = None;
    for (name, tensor) in named {
        let Some(rows) = tensor.rows() else {
            let message = format!("Tensor name: {name} has no shape information ");
            return Err(Error::invalid(message));
        };
        match expected {
            None => expected = Some(rows),
            Some(expected) if expected != rows => {
                return Err(Error::invalid(format!(
                    "Tensor name: {name} has inconsistent batch size: {rows} expecting: {expected}"
                )));
            }
            Some(_) => {}
        }
    }
    Ok(expected.unwrap_or(0))
}

fn columns(named: &[(&str, &Tensor)], out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(b"{\n    \"outputs\": ");
    if let [(name, tensor)] = named {
        write_tensor(tensor, name, JsonLayout::Pretty, 1, out)?;
    } else {
        out.push(b'{');
        for (position, (name, tensor)) in named.iter().enumerate() {
            member(position, 2, name, out)?;
            write_tensor(tensor, name, JsonLayout::Pretty, 2, out)?;
        }
        if !named.is_empty() {
            new_line(1, out);
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"\n}");
    Ok(())
}

/// The name of an object's member number `position`, up to its value.
fn member(position: usize, depth: usize, name: &str, out: &mut Vec<u8>) -> Result<()> {
    budget::grow(out, write::string_len(name.as_bytes()) + FRAME)?;
    if position > 0 {
        out.push(b',');
    }
    new_line(depth, out);
    write::string(name.as_bytes(), out);
    out.extend_from_slice(b": ");
    Ok(())
}

fn unwritable(dtype: DType) -> Error {
    Error::invalid(format!("Failed to write JSON value for tensor type: {dtype}"))
}

fn write_tensor(
    tensor: &Tensor,
    name: &str,
    layout: JsonLayout,
    depth: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let style = Style {
        layout,
        floats: Floats::TensorFlowServing,
        // By convention, outputs with this suffix hold bytes and not text.
        texts: if name.ends_with("_bytes") { Texts::Base64 } else { Texts::Raw },
    };
    write::tensor(tensor, style, depth, out).map_err(|error| error.into_error(unwritable))
}

/// The classes of each example. As with the rows of a single output, only the closing bracket has its
/// own line.
pub(super) fn classifications(results: &[Vec<Class>]) -> Result<Vec<u8>> {
    let mut out = b"{\n    \"results\": [".to_vec();
    for (index, classes) in results.iter().enumerate() {
        separate(index, &mut out);
        out.push(b'[');
        budget::grow(&mut out, FRAME)?;
        for (position, class) in classes.iter().enumerate() {
            budget::grow(&mut out, write::string_len(&class.label) + FRAME)?;
            separate(position, &mut out);
            out.push(b'[');
            write::string(&class.label, &mut out);
            out.extend_from_slice(b", ");
            float::float32(class.score, &mut out);
            out.push(b']');
        }
        out.push(b']');
    }
    new_line(1, &mut out);
    out.extend_from_slice(b"]\n}");
    Ok(out)
}

/// The regression value of each example, all on one line.
pub(super) fn regressions(results: &[f32]) -> Result<Vec<u8>> {
    let mut out = b"{\n    \"results\": [".to_vec();
    for (index, value) in results.iter().enumerate() {
        budget::grow(&mut out, FRAME)?;
        separate(index, &mut out);
        float::float32(*value, &mut out);
    }
    out.extend_from_slice(b"]\n}");
    Ok(out)
}

/// Writes the separator of elements on a line, except before the first.
fn separate(index: usize, out: &mut Vec<u8>) {
    if index > 0 {
        out.extend_from_slice(b", ");
    }
}
