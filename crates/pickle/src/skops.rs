//! Files of skops: a zip archive with `schema.json`, which describes the values, and arrays in NumPy's
//! format. They are read as the nodes that a pickle of the same values has.
//!
//! Source: `skops/io` 0.16, protocols 0 to 2.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::array::{NumpyArray, NumpyDtype, dtype_kind};
use super::{Pickle, PickleId, PickleNode, PickleObject};
use tensorserve_codec::zip::ZipArchive;
use tensorserve_tensor::error::{Error, Result};

/// The file that describes the values.
const SCHEMA: &str = "schema.json";

/// The deepest nesting of values. serde_json limits that of the text.
const DEEPEST: usize = 64;

struct SkopsReader {
    archive: ZipArchive<Bytes>,
    nodes: Vec<PickleNode>,
    /// How many bytes the arrays may still take.
    left: usize,
}

/// Reads a file of at most `max_bytes` uncompressed.
///
/// # Errors
/// As those of [`super::read`].
pub(super) fn read(bytes: Vec<u8>, max_bytes: usize) -> Result<Pickle> {
    let length = bytes.len();
    let archive = ZipArchive::open(Bytes::from(bytes))?;
    let schema = archive.read(SCHEMA, max_bytes)?;
    let value: Value = serde_json::from_slice(&schema)
        .map_err(|error| damaged(&format!("{SCHEMA} is not JSON: {error}")).with_source(error))?;
    let left = max_bytes.saturating_sub(schema.len());
    let mut reader = SkopsReader { archive, nodes: Vec::new(), left };
    let root = reader.value(&value, 0)?;
    let bytes = length.max(schema.len());
    Ok(Pickle { nodes: reader.nodes, root, bytes })
}

fn damaged(what: &str) -> Error {
    Error::damaged(format!("the file of skops is damaged: {what}"))
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The members of the content of a value.
fn members(value: &Value) -> Result<&Map<String, Value>> {
    let content = value.get("content").and_then(Value::as_object);
    content.ok_or_else(|| damaged("a value has no content"))
}

impl SkopsReader {
    fn push(&mut self, node: PickleNode) -> Result<PickleId> {
        let id = u32::try_from(self.nodes.len()).map_err(|_| damaged("it has too many values"))?;
        self.nodes.push(node);
        Ok(PickleId(id))
    }

    /// Reads one value.
    fn value(&mut self, value: &Value, depth: usize) -> Result<PickleId> {
        if depth > DEEPEST {
            return Err(damaged("its values are nested too deep"));
        }
        let class: Arc<str> =
            format!("{}.{}", text(value, "__module__"), text(value, "__class__")).into();
        let content = || value.get("content").unwrap_or(&Value::Null);
        let node = match text(value, "__loader__") {
            "JsonNode" => plain(text(value, "content")),
            "ListNode" => PickleNode::List(self.list(content(), depth)?),
            "TupleNode" => PickleNode::Tuple(self.list(content(), depth)?),
            "SetNode" => PickleNode::Set(self.list(content(), depth)?),
            "DictNode" => PickleNode::Dict(self.dictionary(value, depth)?),
            "DefaultDictNode" | "_DictWithDeprecatedKeysNode" => {
                let main = content().get("main").unwrap_or(&Value::Null);
                return self.value(main, depth + 1);
            }
            "NdArrayNode" => PickleNode::Array(Box::new(self.array(value, depth)?)),
            "DTypeNode" => {
                let of_type = self.array(content(), depth)?;
                PickleNode::Dtype(Arc::new(of_type.dtype().clone()))
            }
            "TypeNode" | "FunctionNode" | "OperatorFuncNode" => PickleNode::Global(class),
            "ObjectNode" | "TreeNode" | "LossNode" => {
                let arguments = value.get("__reduce__").and_then(|reduce| reduce.get("args"));
                let arguments = arguments.map(|args| self.value(args, depth + 1)).transpose()?;
                let state = value.get("content").map(|state| self.value(state, depth + 1));
                object(class, arguments, state.transpose()?)
            }
            "" => return Err(damaged("a value has no loader")),
            // Not needed for predictions: random generators, methods, masked arrays, slices.
            _ => object(class, None, None),
        };
        self.push(node)
    }

    fn list(&mut self, content: &Value, depth: usize) -> Result<Vec<PickleId>> {
        let list = content.as_array().ok_or_else(|| damaged("a list has no content"))?;
        list.iter().map(|value| self.value(value, depth + 1)).collect()
    }

    /// The entries of a dictionary. JSON has the keys as text, and `key_types` their types.
    fn dictionary(&mut self, value: &Value, depth: usize) -> Result<Vec<(PickleId, PickleId)>> {
        let types = value.get("key_types").and_then(|types| types.get("content"));
        let types = types.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let is_text = |kind: &Value| matches!(text(kind, "__class__"), "str" | "str_");
        let has_text_keys = types.is_empty() || types.iter().any(is_text);
        let mut entries = Vec::new();
        for (key, inner) in members(value)? {
            let node = if has_text_keys { PickleNode::Text(key.clone()) } else { plain(key) };
            let key = self.push(node)?;
            entries.push((key, self.value(inner, depth + 1)?));
        }
        Ok(entries)
    }

    fn array(&mut self, value: &Value, depth: usize) -> Result<NumpyArray> {
        if text(value, "type") == "json" {
            return self.object_array(value, depth);
        }
        let name = text(value, "file");
        let file = self.archive.read(name, self.left)?;
        self.left = self.left.saturating_sub(file.len());
        let read =
            NpyFile::read(&file).and_then(|NpyFile { dtype, shape, fortran_order, data }| {
                NumpyArray::from_bytes(Arc::new(dtype), shape, fortran_order, file.slice(data..))
            });
        read.ok_or_else(|| damaged(&format!("{name} is not an array in NumPy's format")))
    }

    fn object_array(&mut self, value: &Value, depth: usize) -> Result<NumpyArray> {
        let not_valid = || damaged("an array of objects has no valid shape");
        let dims = value.get("shape").and_then(|shape| shape.get("content"));
        let dims = dims.and_then(Value::as_array).ok_or_else(not_valid)?;
        let size = |dim: &Value| text(dim, "content").parse::<usize>().ok();
        let shape: Option<Vec<usize>> = dims.iter().map(size).collect();
        let shape = shape.ok_or_else(not_valid)?;
        let mut items = Vec::new();
        let content = value.get("content").unwrap_or(&Value::Null);
        self.nested_items(content, shape.len(), depth, &mut items)?;
        let length = items.len();
        let list = self.push(PickleNode::List(items))?;
        let dtype = NumpyDtype::named("O").map(Arc::new).ok_or_else(not_valid)?;
        NumpyArray::from_objects(dtype, shape, false, list, length).ok_or_else(not_valid)
    }

    /// The items of nested lists of `levels` levels.
    fn nested_items(
        &mut self,
        content: &Value,
        levels: usize,
        depth: usize,
        items: &mut Vec<PickleId>,
    ) -> Result<()> {
        let list = content.as_array().ok_or_else(|| damaged("an array has no items"))?;
        for item in list {
            match item.get("content") {
                Some(inner) if levels > 1 && text(item, "__loader__") == "ListNode" => {
                    self.nested_items(inner, levels - 1, depth + 1, items)?;
                }
                _ => items.push(self.value(item, depth + 1)?),
            }
        }
        Ok(())
    }
}

fn object(class: Arc<str>, arguments: Option<PickleId>, state: Option<PickleId>) -> PickleNode {
    let (items, entries) = (Vec::new(), Vec::new());
    PickleNode::Object(Box::new(PickleObject { class, arguments, state, items, entries }))
}

/// The value of a JSON text, with Python's words for numbers that are not finite.
fn plain(text: &str) -> PickleNode {
    match text {
        "NaN" => return PickleNode::Float(f64::NAN),
        "Infinity" => return PickleNode::Float(f64::INFINITY),
        "-Infinity" => return PickleNode::Float(f64::NEG_INFINITY),
        "True" => return PickleNode::Bool(true),
        "False" => return PickleNode::Bool(false),
        _ => {}
    }
    match serde_json::from_str(text) {
        Ok(Value::Bool(bool)) => PickleNode::Bool(bool),
        Ok(Value::String(text)) => PickleNode::Text(text),
        Ok(Value::Number(number)) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => PickleNode::Int(integer),
            (None, Some(float)) if number.is_f64() => PickleNode::Float(float),
            _ => PickleNode::BigInt,
        },
        Ok(Value::Null | Value::Array(_) | Value::Object(_)) | Err(_) => PickleNode::None,
    }
}

/// The header of a file in NumPy's format.
struct NpyFile {
    dtype: NumpyDtype,
    shape: Vec<usize>,
    fortran_order: bool,
    /// Where the data begins.
    data: usize,
}

impl NpyFile {
    fn read(file: &[u8]) -> Option<Self> {
        let rest = file.strip_prefix(b"\x93NUMPY")?;
        let (start, length) = match rest {
            [1, _, low, high, ..] => (10usize, usize::from(u16::from_le_bytes([*low, *high]))),
            [2 | 3, _, a, b, c, d, ..] => {
                (12, usize::try_from(u32::from_le_bytes([*a, *b, *c, *d])).ok()?)
            }
            _ => return None,
        };
        let data = start.checked_add(length)?;
        let header = std::str::from_utf8(file.get(start..data)?).ok()?;
        let after = |name: &str| Some(header.split_once(name)?.1.trim_start());
        let shape = after("'shape':")?.strip_prefix('(')?.split_once(')')?.0;
        let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
        let shape: Option<Vec<usize>> = sizes.map(|size| size.parse().ok()).collect();
        let dtype = read_dtype(after("'descr':")?)?;
        let is_plain = dtype.kind() != dtype_kind::OBJECT;
        let fortran_order = after("'fortran_order':")?.starts_with("True");
        is_plain.then_some(NpyFile { dtype, shape: shape?, fortran_order, data })
    }
}

/// The dtype at the start of `text`: a name in quotes, or a list of fields.
fn read_dtype(text: &str) -> Option<NumpyDtype> {
    if let Some(rest) = text.strip_prefix('\'') {
        return NumpyDtype::named(rest.split_once('\'')?.0);
    }
    let fields = text.strip_prefix('[')?.split_once(']')?.0;
    let mut all = Vec::new();
    for field in fields.split('(').skip(1) {
        let mut quoted = field.split('\'').skip(1).step_by(2);
        let (name, kind) = (quoted.next()?, quoted.next()?);
        all.push((name, NumpyDtype::named(kind)?));
    }
    let size = all.iter().map(|(_, dtype)| dtype.byte_len(&[1])).sum::<Option<usize>>()?;
    let mut dtype = NumpyDtype::named(&format!("V{size}"))?;
    let mut offset = 0;
    for (name, field) in all {
        dtype.add_field(name.to_owned(), &field, offset);
        offset += field.byte_len(&[1])?;
    }
    Some(dtype)
}
