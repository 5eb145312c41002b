//! Nodes in their encoded form: those that take the place of reads of variables, and calls of other functions.

use std::collections::HashMap;

use prost::Message;

use super::wire::{Edit, WireFields, edited, push_bytes, push_integer, with_texts};
use tensorserve_proto::tensorflow::NodeDef;
use tensorserve_proto::{Form, tensor_to_proto};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, Tensor};

/// The numbers of fields of TensorFlow's `NodeDef`, `AttrValue`, `AttrValue.ListValue` and `NameAttrList`, and of the
/// entries of maps (node_def.proto, attr_value.proto).
mod field {
    pub(super) const NAME: u32 = 1;
    pub(super) const OP: u32 = 2;
    pub(super) const INPUT: u32 = 3;
    pub(super) const DEVICE: u32 = 4;
    pub(super) const ATTR: u32 = 5;
    pub(super) const ATTR_LIST: u32 = 1;
    pub(super) const ATTR_INTEGER: u32 = 3;
    pub(super) const ATTR_TYPE: u32 = 6;
    pub(super) const ATTR_TENSOR: u32 = 8;
    pub(super) const ATTR_FUNCTION: u32 = 10;
    pub(super) const LIST_FUNCTION: u32 = 9;
    pub(super) const FUNCTION_NAME: u32 = 1;
    pub(super) const KEY: u32 = 1;
    pub(super) const VALUE: u32 = 2;
}

/// A node that is written from nothing.
struct NewNode {
    encoded: Vec<u8>,
}

impl NewNode {
    /// A node on the device of the node that is encoded as `like`.
    fn new(name: &str, op: &str, inputs: &[String], like: &[u8]) -> Result<Self> {
        let mut encoded = Vec::new();
        push_bytes(&mut encoded, field::NAME, name.as_bytes());
        push_bytes(&mut encoded, field::OP, op.as_bytes());
        for input in inputs {
            push_bytes(&mut encoded, field::INPUT, input.as_bytes());
        }
        for field in WireFields::of(like) {
            let field = field?;
            if let (field::DEVICE, Some(device)) = (field.number, field.payload) {
                push_bytes(&mut encoded, field::DEVICE, device);
            }
        }
        Ok(NewNode { encoded })
    }

    fn with(mut self, name: &str, value: &[u8]) -> Self {
        let mut entry = Vec::new();
        push_bytes(&mut entry, field::KEY, name.as_bytes());
        push_bytes(&mut entry, field::VALUE, value);
        push_bytes(&mut self.encoded, field::ATTR, &entry);
        self
    }

    fn with_type(self, name: &str, number: i32) -> Self {
        let mut value = Vec::new();
        push_integer(&mut value, field::ATTR_TYPE, u64::try_from(number).unwrap_or(0));
        self.with(name, &value)
    }

    fn with_integer(self, name: &str, number: u64) -> Self {
        let mut value = Vec::new();
        push_integer(&mut value, field::ATTR_INTEGER, number);
        self.with(name, &value)
    }
}

/// A constant with this value. `inputs` may only be those that say what comes first.
pub(super) fn constant(
    name: &str,
    inputs: &[String],
    value: &Tensor,
    like: &[u8],
) -> Result<Vec<u8>> {
    let node = NewNode::new(name, "Const", inputs, like)?;
    let mut tensor = Vec::new();
    let proto = tensor_to_proto(value, Form::Content).encode_to_vec();
    push_bytes(&mut tensor, field::ATTR_TENSOR, &proto);
    Ok(node.with_type("dtype", value.dtype().number()).with("value", &tensor).encoded)
}

/// A lookup of rows of a tensor (`GatherV2`), whose inputs are that tensor, the numbers of rows and a zero.
pub(super) fn gather(
    name: &str,
    inputs: &[String],
    (values, indices): (i32, i32),
    like: &[u8],
) -> Result<Vec<u8>> {
    let node = NewNode::new(name, "GatherV2", inputs, like)?;
    let node = node.with_type("Tparams", values).with_type("Tindices", indices);
    Ok(node.with_type("Taxis", DType::Int32.number()).with_integer("batch_dims", 0).encoded)
}

/// The functions that take the place of those that a node calls, by the attribute and the place in its list.
pub(super) type NewCalls = HashMap<(String, usize), String>;

/// The node `encoded`, which calls other functions.
pub(super) fn calling(encoded: &[u8], calls: &NewCalls) -> Result<Vec<u8>> {
    edited(encoded, |number, entry| {
        if number != field::ATTR {
            return Ok(Edit::Keep);
        }
        let name = text(entry, field::KEY)?;
        edited(entry, |number, value| match number {
            field::VALUE => Ok(Edit::Replace(with_calls(value, &name, calls)?)),
            _ => Ok(Edit::Keep),
        })
        .map(Edit::Replace)
    })
}

/// The value of the attribute `name`, with other functions.
fn with_calls(value: &[u8], name: &str, calls: &NewCalls) -> Result<Vec<u8>> {
    let renamed = |function: &[u8], place: usize| -> Result<Edit> {
        let Some(new) = calls.get(&(name.to_owned(), place)) else {
            return Ok(Edit::Keep);
        };
        with_texts(function, field::FUNCTION_NAME, |_| Some(new.clone())).map(Edit::Replace)
    };
    edited(value, |number, payload| match number {
        field::ATTR_FUNCTION => renamed(payload, 0),
        field::ATTR_LIST => {
            let mut place = 0;
            let list = edited(payload, |number, function| {
                if number != field::LIST_FUNCTION {
                    return Ok(Edit::Keep);
                }
                place += 1;
                renamed(function, place - 1)
            });
            list.map(Edit::Replace)
        }
        _ => Ok(Edit::Keep),
    })
}

/// The node `encoded`, whose inputs have the new names that `rename` knows.
pub(super) fn with_inputs(
    encoded: &[u8],
    rename: impl Fn(&str) -> Option<String>,
) -> Result<Vec<u8>> {
    with_texts(encoded, field::INPUT, rename)
}

/// The entry of a map from text to text, whose value has the new name that `rename` knows.
pub(super) fn with_value(entry: &[u8], rename: impl Fn(&str) -> Option<String>) -> Result<Vec<u8>> {
    with_texts(entry, field::VALUE, rename)
}

/// The key of the entry of a map.
pub(super) fn key(entry: &[u8]) -> Result<String> {
    text(entry, field::KEY)
}

fn text(message: &[u8], number: u32) -> Result<String> {
    let mut found = String::new();
    for field in WireFields::of(message) {
        let field = field?;
        if let (true, Some(payload)) = (field.number == number, field.payload) {
            found = String::from_utf8_lossy(payload).into_owned();
        }
    }
    Ok(found)
}

/// The inputs of a node that only say what comes first.
pub(super) fn controls(node: &NodeDef) -> Vec<String> {
    node.input.iter().filter(|input| crate::scope::is_control(input)).cloned().collect()
}
