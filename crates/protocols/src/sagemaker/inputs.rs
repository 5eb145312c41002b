//! Payloads that are decoded without conversion to JSON: numbers in CSV, NumPy arrays, images, and
//! records of `tf.Example`. They cannot name a signature, so the default one is used.

use bytes::Bytes;

use crate::images;
use crate::tfs::TfsFormat;
use crate::tfs::classify::ExamplesBuilder;
use crate::tfs::rest::{RestCall, TfsDecoded, run_of};
use tensorserve_codec::csv::{self, CsvReader, Dialect};
use tensorserve_codec::formats::PayloadFormat;
use tensorserve_codec::table::{self, Header};
use tensorserve_codec::{cast, npy, tfrecord};
use tensorserve_core::engine::{Method, ModelHandle, Resolver};
use tensorserve_proto::bounded;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{DType, Signature, Tensor, TensorSpec};

/// Decodes CSV that has only numbers, for a model with numeric input, and tables for models of tables and, with
/// a header, for models of columns; `None` for any other, which is converted to JSON, also for its error
/// messages.
pub(super) fn csv(
    call: &RestCall,
    resolver: &mut Resolver<'_>,
    body: &[u8],
    header: Header,
) -> Option<Result<TfsDecoded>> {
    if call.method != Method::Predict {
        return None;
    }
    let version = call.spec.resolve(resolver).ok()?;
    let found = version.signature(&call.signature)?;
    let (read, signature) = match table_of(&version, found, body, header) {
        Ok(Some((signature, header))) => {
            let declared = version.signatures().get(signature)?;
            (table::read(body, declared, header, call.max_bytes), signature)
        }
        Ok(None) => {
            let [input] = found.1.inputs.as_slice() else {
                return None;
            };
            let rows = rows(body, header).ok()?;
            let numbers = csv::numbers(rows, input.dtype()?, call.max_bytes)?;
            (Ok(vec![numbers]), found.0)
        }
        Err(error) => (Err(error), found.0),
    };
    resolver.found_signature(signature);
    Some(read.map(|inputs| run_of(version, signature, inputs, TfsFormat::Row)))
}

/// The signature that takes a body as a table, and whether its first record has names; `None` if `found` takes no
/// tables.
///
/// # Errors
/// If the first record has an open quote.
pub(super) fn table_of(
    version: &ModelHandle,
    found: (usize, &Signature),
    body: &[u8],
    header: Header,
) -> Result<Option<(usize, Header)>> {
    let (signature, declared) = found;
    let is_named = header == Header::Present && table::has_columns(&declared.inputs);
    if is_named || declared.inputs.len() > 1 && table::can_read(&declared.inputs) {
        return Ok(Some((signature, header)));
    }
    if !table::can_read(&declared.inputs) {
        return Ok(None);
    }
    let has_names = table::has_header(body, declared, header)?;
    let header = if has_names { Header::Present } else { Header::Absent };
    let columns = declared.by_columns.as_deref().filter(|_| has_names);
    let columns = columns.and_then(|name| version.signature(name));
    Ok(Some((columns.map_or(signature, |(signature, _)| signature), header)))
}

/// The rows of a body: all of it, or what follows its header.
///
/// # Errors
/// If the header has an open quote.
pub(super) fn rows(body: &[u8], header: Header) -> Result<&[u8]> {
    if header != Header::Present {
        return Ok(body);
    }
    let mut reader = CsvReader::new(body, Dialect::Rfc4180);
    reader.next_record()?;
    reader.after_record()
}

/// Decodes a binary payload.
pub(super) fn binary(
    call: &RestCall,
    resolver: &mut Resolver<'_>,
    input: PayloadFormat,
    body: &Bytes,
) -> Result<TfsDecoded> {
    if call.method != Method::Predict {
        let examples = match input {
            PayloadFormat::Examples => examples(body, call.max_bytes)?,
            PayloadFormat::Json
            | PayloadFormat::JsonLines
            | PayloadFormat::Csv(_)
            | PayloadFormat::Npy
            | PayloadFormat::Image => {
                let message = "classify and regress accept JSON with examples, or records of \
                               tf.Example as application/x-tfrecord";
                return Err(Error::invalid(message));
            }
        };
        return call.on_examples(resolver, &call.signature, examples);
    }
    let version = call.spec.resolve(resolver)?;
    let (signature, declared) = default_signature(call, &version)?;
    resolver.found_signature(signature);
    let tensor = match input {
        PayloadFormat::Npy => array(body, declared, call.max_bytes)?,
        PayloadFormat::Image => images::tensor(declared, std::slice::from_ref(body))?,
        PayloadFormat::Examples
        | PayloadFormat::Json
        | PayloadFormat::JsonLines
        | PayloadFormat::Csv(_) => records(body, declared, call.max_bytes)?,
    };
    Ok(run_of(version, signature, vec![tensor], TfsFormat::Row))
}

/// Decodes image files, one for each row.
pub(super) fn images(
    call: &RestCall,
    resolver: &mut Resolver<'_>,
    files: &[Bytes],
) -> Result<TfsDecoded> {
    let version = call.spec.resolve(resolver)?;
    let (signature, declared) = default_signature(call, &version)?;
    resolver.found_signature(signature);
    let tensor = images::tensor(declared, files)?;
    Ok(run_of(version, signature, vec![tensor], TfsFormat::Row))
}

fn default_signature<'h>(
    call: &RestCall,
    handle: &'h ModelHandle,
) -> Result<(usize, &'h Signature)> {
    let name = &call.signature;
    handle.signature(name).ok_or_else(|| {
        Error::invalid(format!(
            "the model has no signature {name:?}: send JSON with a signature_name"
        ))
    })
}

fn only_input<'s>(signature: &'s Signature, what: &str) -> Result<&'s TensorSpec> {
    match signature.inputs.as_slice() {
        [input] => Ok(input),
        inputs => Err(Error::invalid(format!(
            "signature {:?} has {} inputs, but {what} is only one: send JSON",
            signature.name,
            inputs.len()
        ))),
    }
}

/// Decodes an array and converts its numbers to the type of the input: clients send doubles by default.
fn array(body: &[u8], signature: &Signature, max_bytes: usize) -> Result<Tensor> {
    let input = only_input(signature, "an npy array")?;
    let array = npy::read(body, max_bytes)?;
    let (Some(wanted), given) = (input.dtype(), array.dtype()) else {
        return Ok(array);
    };
    if wanted == given {
        return Ok(array);
    }
    let elements = array.shape().elements()?;
    if elements.saturating_mul(wanted.size().unwrap_or(0)) > max_bytes {
        return Err(Error::invalid(
            "the npy array takes too much memory after conversion to the type of the input",
        ));
    }
    budget::reserve(elements.saturating_mul(wanted.size().unwrap_or(0)))?;
    cast::cast(&array, wanted).ok_or_else(|| {
        let alias = &input.alias;
        Error::invalid(format!("the npy array has type {given}, which cannot be converted to type {wanted} of input {alias:?}"))
    })
}

/// Decodes examples for a signature that parses them itself.
fn records(body: &Bytes, signature: &Signature, max_bytes: usize) -> Result<Tensor> {
    let input = only_input(signature, "a list of records")?;
    if input.dtype() != Some(DType::String) {
        let kind = input.dtype().map_or("another type", DType::name);
        return Err(Error::invalid(format!(
            "signature {:?} does not accept tf.Example: its input is {kind}, not string; send JSON",
            signature.name
        )));
    }
    examples(body, max_bytes)
}

/// Decodes the records of a TFRecord file, or a single example without a record header.
fn examples(body: &Bytes, max_bytes: usize) -> Result<Tensor> {
    let mut all = ExamplesBuilder::new(&[], max_bytes);
    let mut records = tfrecord::TfRecordReader::new(body.as_ref(), body.len());
    let mut record = Vec::new();
    let mut count = 0;
    loop {
        match records.next(&mut record) {
            Ok(true) => all.push(&record)?,
            Ok(false) => return all.into_tensor(),
            Err(_) if count == 0 && bounded::is_example(body) => {
                all.push(body)?;
                return all.into_tensor();
            }
            Err(error) => return Err(Error::invalid(error.message().to_owned())),
        }
        count += 1;
    }
}
