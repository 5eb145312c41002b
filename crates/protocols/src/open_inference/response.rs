//! The response to a request over REST: a JSON document, and behind it the raw bytes of the outputs that
//! were requested so.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::datatype;
use super::raw;
use super::request::{AnswerForm, OutputForm};
use bytes::Bytes;

use tensorserve_codec::json::write::{self, Floats, JsonLayout, Style, Texts};
use tensorserve_core::engine::InferResponse;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{Shape, Tensor};

/// Room for the head of a document, and for that of each output.
const HEAD: usize = 256;

const STYLE: Style =
    Style { layout: JsonLayout::Compact, floats: Floats::TensorFlowServing, texts: Texts::Raw };

/// A response.
pub(super) struct Encoded {
    pub(super) body: Vec<u8>,
    /// Raw bytes that follow, each as it is in the memory of its tensor.
    pub(super) parts: Vec<Bytes>,
    /// The bytes of the document, if raw bytes follow.
    pub(super) document: Option<usize>,
}

/// Writes a response.
///
/// # Errors
/// For outputs that have no form in JSON.
pub(super) fn encode(form: AnswerForm, response: InferResponse) -> Result<Encoded> {
    let (version, run) = response.into_single();
    let specs = version.signatures().get(run.signature).map_or(&[][..], |s| &s.outputs);
    let mut out = Vec::with_capacity(2 * HEAD);
    out.extend_from_slice(b"{\"model_name\":");
    write::string(version.model().as_bytes(), &mut out);
    out.extend_from_slice(b",\"model_version\":\"");
    number(version.version(), &mut out);
    out.extend_from_slice(b"\",\"id\":");
    match form.id.is_empty() {
        true => {
            out.push(b'"');
            append_new_id(&mut out);
            out.push(b'"');
        }
        false => write::string(form.id.as_bytes(), &mut out),
    }
    out.extend_from_slice(b",\"outputs\":[");
    for (position, ((at, form), tensor)) in form.outputs.iter().zip(&run.outputs).enumerate() {
        let name = specs.get(*at).map_or("", |spec| spec.alias.as_str());
        budget::grow(&mut out, write::string_len(name.as_bytes()) + HEAD)?;
        if position > 0 {
            out.push(b',');
        }
        output(name, tensor, form, &mut out)?;
    }
    out.extend_from_slice(b"]}");
    let document = out.len();
    let outputs = form.outputs.iter().zip(&run.outputs);
    let raws = || outputs.clone().filter(|((_, form), _)| matches!(form, OutputForm::Raw));
    if raws().next().is_none() {
        return Ok(Encoded { body: out, parts: Vec::new(), document: None });
    }
    let mut parts = Vec::new();
    for (_, tensor) in raws() {
        if raw::is_shareable(tensor) {
            parts.push(raw::bytes(tensor)?);
            continue;
        }
        // What follows a part is one, too.
        let mut copied = Vec::new();
        let to = if parts.is_empty() { &mut out } else { &mut copied };
        budget::grow(to, raw::len(tensor))?;
        raw::append(tensor, to)?;
        if !copied.is_empty() {
            parts.push(copied.into());
        }
    }
    Ok(Encoded { body: out, parts, document: Some(document) })
}

/// One output.
fn output(name: &str, tensor: &Tensor, form: &OutputForm, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(b"{\"name\":");
    write::string(name.as_bytes(), out);
    out.extend_from_slice(b",\"datatype\":\"");
    out.extend_from_slice(datatype::name_of(tensor.dtype()).as_bytes());
    out.extend_from_slice(b"\",\"shape\":[");
    for (position, dim) in tensor.shape().dims().iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        number(*dim, out);
    }
    match form {
        OutputForm::Raw => {
            let size = raw::len(tensor);
            let size = format!("],\"parameters\":{{\"binary_data_size\":{size}}}}}");
            out.extend_from_slice(size.as_bytes());
            return Ok(());
        }
        OutputForm::Shared(shared) => {
            let size = shared.write(name, tensor)?;
            out.extend_from_slice(b"],\"parameters\":{\"shared_memory_region\":");
            write::string(shared.range.region.as_bytes(), out);
            let offset = shared.range.offset;
            let place = format!(
                ",\"shared_memory_offset\":{offset},\"shared_memory_byte_size\":{size}}}}}"
            );
            out.extend_from_slice(place.as_bytes());
            return Ok(());
        }
        OutputForm::Values => {}
    }
    out.extend_from_slice(b"],\"data\":");
    check_json(name, tensor)?;
    let written = match tensor.shape().rank() {
        1 => write::tensor(tensor, STYLE, 0, out),
        _ => {
            let flat = tensor.reshaped(Shape::vector(tensor.shape().elements()?))?;
            write::tensor(&flat, STYLE, 0, out)
        }
    };
    written.map_err(|error| error.into_error(|_| no_json(name, tensor)))?;
    out.push(b'}');
    Ok(())
}

/// Refuses what a client could not read from JSON.
fn check_json(name: &str, tensor: &Tensor) -> Result<()> {
    if datatype::is_raw_only(tensor.dtype()) {
        return Err(no_json(name, tensor));
    }
    let Some(strings) = tensor.strings() else {
        return Ok(());
    };
    if strings.iter().all(|string| std::str::from_utf8(string).is_ok()) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "output {name:?} has bytes that are not UTF-8, which JSON cannot hold; request it with the \
         parameter \"binary_data\": true"
    )))
}

fn no_json(name: &str, tensor: &Tensor) -> Error {
    let dtype = datatype::name_of(tensor.dtype());
    Error::invalid(format!(
        "output {name:?} is {dtype}, which JSON cannot hold; request it with the parameter \
         \"binary_data\": true"
    ))
}

/// An identifier for a request that has none: KServe's clients require one in the response.
pub(super) fn new_id() -> String {
    let mut id = Vec::new();
    append_new_id(&mut id);
    // It has digits and a hyphen.
    String::from_utf8(id).unwrap_or_default()
}

/// Appends such an identifier.
fn append_new_id(out: &mut Vec<u8>) {
    static START: LazyLock<String> =
        LazyLock::new(|| format!("{:016x}-", tensorserve_trace::random()));
    static NEXT: AtomicU64 = AtomicU64::new(0);
    out.extend_from_slice(START.as_bytes());
    out.extend_from_slice(itoa::Buffer::new().format(NEXT.fetch_add(1, Relaxed)).as_bytes());
}

fn number(number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
