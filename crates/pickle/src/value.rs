//! Access to the values of a pickle.

use super::{NumpyArray, Pickle, PickleId, PickleNode, PickleObject};

/// How many entries of a dictionary are searched for a key. No class has as many attributes, and a
/// damaged file must not make the search slow.
const MAX_SEARCHED_ENTRIES: usize = 4096;

/// One value of a pickle.
#[derive(Clone, Copy)]
pub struct PickleValue<'a> {
    pickle: &'a Pickle,
    id: PickleId,
}

impl PickleNode {
    /// Its type, for error messages.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            PickleNode::None => "None",
            PickleNode::Bool(_) => "a bool",
            PickleNode::Int(_) | PickleNode::BigInt => "an integer",
            PickleNode::Float(_) => "a float",
            PickleNode::Bytes(_) => "bytes",
            PickleNode::Text(_) => "a string",
            PickleNode::List(_) => "a list",
            PickleNode::Tuple(_) => "a tuple",
            PickleNode::Set(_) => "a set",
            PickleNode::Dict(_) => "a dictionary",
            PickleNode::Global(_) => "a class or function",
            PickleNode::Object(_) => "an object",
            PickleNode::Array(_) => "a NumPy array",
            PickleNode::Dtype(_) => "a NumPy dtype",
        }
    }
}

impl<'a> PickleValue<'a> {
    pub(super) fn new(pickle: &'a Pickle, id: PickleId) -> Self {
        PickleValue { pickle, id }
    }

    /// Its node.
    #[must_use]
    pub fn node(self) -> &'a PickleNode {
        let index = usize::try_from(self.id.0).unwrap_or(usize::MAX);
        self.pickle.nodes.get(index).unwrap_or(&PickleNode::None)
    }

    /// Its identity within the pickle: a value that is shared has one.
    #[must_use]
    pub fn id(self) -> PickleId {
        self.id
    }

    /// The value `id` of the same pickle.
    #[must_use]
    pub fn other(self, id: PickleId) -> PickleValue<'a> {
        PickleValue { pickle: self.pickle, id }
    }

    fn others(self, ids: &[PickleId]) -> Vec<PickleValue<'a>> {
        ids.iter().map(|id| self.other(*id)).collect()
    }

    /// Its type, for error messages.
    #[must_use]
    pub fn type_name(self) -> &'static str {
        self.node().type_name()
    }

    /// Whether it is `None`.
    #[must_use]
    pub fn is_none(self) -> bool {
        matches!(self.node(), PickleNode::None)
    }

    /// As a bool: a bool, or the integer 0 or 1.
    #[must_use]
    pub fn bool(self) -> Option<bool> {
        match self.node() {
            PickleNode::Bool(value) => Some(*value),
            PickleNode::Int(0) => Some(false),
            PickleNode::Int(1) => Some(true),
            _ => None,
        }
    }

    /// As an integer: an integer, a bool, or an array of one of them.
    #[must_use]
    pub fn int(self) -> Option<i64> {
        match self.node() {
            PickleNode::Bool(value) => Some((*value).into()),
            PickleNode::Int(value) => Some(*value),
            PickleNode::Array(array) if array.len() == 1 => array.i64s()?.first().copied(),
            _ => None,
        }
    }

    /// As a float: a number, a bool, or an array of one of them.
    #[must_use]
    pub fn float(self) -> Option<f64> {
        match self.node() {
            PickleNode::Bool(value) => Some(f64::from(u8::from(*value))),
            PickleNode::Int(value) => Some(*value as f64),
            PickleNode::Float(value) => Some(*value),
            PickleNode::Array(array) if array.len() == 1 => array.f64s()?.first().copied(),
            _ => None,
        }
    }

    /// As text: a string, or the bytes of a Python 2 string that are valid UTF-8.
    #[must_use]
    pub fn text(self) -> Option<&'a str> {
        match self.node() {
            PickleNode::Text(text) => Some(text),
            PickleNode::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// As bytes: bytes, or those of a string.
    #[must_use]
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self.node() {
            PickleNode::Text(text) => Some(text.as_bytes()),
            PickleNode::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// As an array.
    #[must_use]
    pub fn array(self) -> Option<&'a NumpyArray> {
        match self.node() {
            PickleNode::Array(array) => Some(array),
            _ => None,
        }
    }

    /// As an object.
    #[must_use]
    pub fn object(self) -> Option<&'a PickleObject> {
        match self.node() {
            PickleNode::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The name `module.name` of the class of an object, or of a class or function itself.
    #[must_use]
    pub fn class(self) -> Option<&'a str> {
        match self.node() {
            PickleNode::Object(object) => Some(&object.class),
            PickleNode::Global(name) => Some(name),
            _ => None,
        }
    }

    /// What it is, for error messages: the name of its class, or its type.
    #[must_use]
    pub fn description(self) -> &'a str {
        match self.class() {
            Some("") => "an unnamed object",
            Some(class) => class,
            None => self.type_name(),
        }
    }

    /// The last part of [`PickleValue::class`].
    #[must_use]
    pub fn class_name(self) -> Option<&'a str> {
        let class = self.class()?;
        Some(class.rsplit_once('.').map_or(class, |(_, name)| name))
    }

    /// The values of a list, a tuple, a set, or an array of objects (in row-major order), or those
    /// that were appended to an object; `None` for any other value.
    #[must_use]
    pub fn items(self) -> Option<Vec<PickleValue<'a>>> {
        match self.node() {
            PickleNode::List(items) | PickleNode::Tuple(items) | PickleNode::Set(items) => {
                Some(self.others(items))
            }
            PickleNode::Object(object) => Some(self.others(&object.items)),
            PickleNode::Array(array) => {
                let list = self.other(array.objects()?);
                let PickleNode::List(items) = list.node() else { return None };
                array.places().map(|place| items.get(place).map(|id| self.other(*id))).collect()
            }
            _ => None,
        }
    }

    /// The arguments of the call that made an object.
    #[must_use]
    pub fn arguments(self) -> Vec<PickleValue<'a>> {
        let arguments = self.object().and_then(|object| object.arguments);
        arguments.and_then(|id| self.other(id).items()).unwrap_or_default()
    }

    /// The entries of a dictionary, or those that were set in an object.
    pub fn entries(self) -> impl Iterator<Item = (PickleValue<'a>, PickleValue<'a>)> {
        let entries = match self.node() {
            PickleNode::Dict(entries) => entries.as_slice(),
            PickleNode::Object(object) => &object.entries,
            _ => &[],
        };
        entries.iter().map(move |(key, value)| (self.other(*key), self.other(*value)))
    }

    /// The value of the entry `key`; of the last such entry, if there are several.
    #[must_use]
    pub fn get(self, key: &str) -> Option<PickleValue<'a>> {
        let mut found = None;
        for (name, value) in self.entries().take(MAX_SEARCHED_ENTRIES) {
            if name.bytes() == Some(key.as_bytes()) {
                found = Some(value);
            }
        }
        found
    }

    /// The attribute `name` of an object, from its state.
    #[must_use]
    pub fn attribute(self, name: &str) -> Option<PickleValue<'a>> {
        let state = self.other(self.object()?.state?);
        match state.node() {
            // A dictionary of attributes, and one of slots.
            PickleNode::Tuple(parts) => parts.iter().find_map(|part| self.other(*part).get(name)),
            _ => state.get(name),
        }
    }
}
