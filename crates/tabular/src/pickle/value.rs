//! Looking into what a pickle holds.

use super::{Array, Id, Node, Object, Pickle};

/// Entries of a dictionary that are looked at for a key: no class has so many attributes, and a
/// damaged file must not make looking them up long.
const MOST_ATTRIBUTES: usize = 4096;

/// One value of a pickle.
#[derive(Clone, Copy)]
pub struct Value<'a> {
    pickle: &'a Pickle,
    id: Id,
}

impl Node {
    /// What it is, in words for an error.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Node::None => "None",
            Node::Bool(_) => "a bool",
            Node::Int(_) | Node::Huge => "a whole number",
            Node::Float(_) => "a number",
            Node::Bytes(_) => "bytes",
            Node::Text(_) => "text",
            Node::List(_) => "a list",
            Node::Tuple(_) => "a tuple",
            Node::Set(_) => "a set",
            Node::Dict(_) => "a dictionary",
            Node::Global(_) => "a class or function",
            Node::Object(_) => "an object",
            Node::Array(_) => "an array",
            Node::ElementType(_) => "a dtype",
        }
    }
}

impl<'a> Value<'a> {
    pub(super) fn new(pickle: &'a Pickle, id: Id) -> Self {
        Value { pickle, id }
    }

    /// The value itself.
    #[must_use]
    pub fn node(self) -> &'a Node {
        let index = usize::try_from(self.id.0).unwrap_or(usize::MAX);
        self.pickle.nodes.get(index).unwrap_or(&Node::None)
    }

    /// Which value of the pickle it is: shared values have one number.
    #[must_use]
    pub fn id(self) -> Id {
        self.id
    }

    /// Another value of the same pickle.
    #[must_use]
    pub fn other(self, id: Id) -> Value<'a> {
        Value { pickle: self.pickle, id }
    }

    /// What it is, in words for an error.
    #[must_use]
    pub fn kind(self) -> &'static str {
        self.node().kind()
    }

    /// Whether it is `None`.
    #[must_use]
    pub fn is_none(self) -> bool {
        matches!(self.node(), Node::None)
    }

    /// As a bool: one, or 0 or 1.
    #[must_use]
    pub fn bool(self) -> Option<bool> {
        match self.node() {
            Node::Bool(value) => Some(*value),
            Node::Int(0) => Some(false),
            Node::Int(1) => Some(true),
            _ => None,
        }
    }

    /// As a whole number: one, a bool, or an array of one.
    #[must_use]
    pub fn int(self) -> Option<i64> {
        match self.node() {
            Node::Bool(value) => Some((*value).into()),
            Node::Int(value) => Some(*value),
            Node::Array(array) if array.len() == 1 => array.i64s()?.first().copied(),
            _ => None,
        }
    }

    /// As a number: one, a bool, or an array of one.
    #[must_use]
    pub fn float(self) -> Option<f64> {
        match self.node() {
            Node::Bool(value) => Some(f64::from(u8::from(*value))),
            Node::Int(value) => Some(*value as f64),
            Node::Float(value) => Some(*value),
            Node::Array(array) if array.len() == 1 => array.f64s()?.first().copied(),
            _ => None,
        }
    }

    /// As text: text, or bytes of Python 2 that are text.
    #[must_use]
    pub fn text(self) -> Option<&'a str> {
        match self.node() {
            Node::Text(text) => Some(text),
            Node::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// As bytes, or the bytes of text.
    #[must_use]
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self.node() {
            Node::Text(text) => Some(text.as_bytes()),
            Node::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// As an array.
    #[must_use]
    pub fn array(self) -> Option<&'a Array> {
        match self.node() {
            Node::Array(array) => Some(array),
            _ => None,
        }
    }

    /// As an object.
    #[must_use]
    pub fn object(self) -> Option<&'a Object> {
        match self.node() {
            Node::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The name `module.name` of the class of an object, or of a class or function itself.
    #[must_use]
    pub fn class(self) -> Option<&'a str> {
        match self.node() {
            Node::Object(object) => Some(&object.class),
            Node::Global(name) => Some(name),
            _ => None,
        }
    }

    /// The last part of [`Value::class`].
    #[must_use]
    pub fn class_name(self) -> Option<&'a str> {
        let class = self.class()?;
        Some(class.rsplit_once('.').map_or(class, |(_, name)| name))
    }

    /// The values of a list, a tuple, a set, an array of objects (by rows), or what was appended
    /// to an object; `None` for anything else.
    #[must_use]
    pub fn items(self) -> Option<Vec<Value<'a>>> {
        let value = |id: &Id| self.other(*id);
        match self.node() {
            Node::List(items) | Node::Tuple(items) | Node::Set(items) => {
                Some(items.iter().map(value).collect())
            }
            Node::Object(object) => Some(object.items.iter().map(value).collect()),
            Node::Array(array) => {
                let list = self.other(array.objects()?);
                let Node::List(items) = list.node() else { return None };
                array.places().map(|place| items.get(place).map(value)).collect()
            }
            _ => None,
        }
    }

    /// The arguments that an object was made with.
    #[must_use]
    pub fn arguments(self) -> Vec<Value<'a>> {
        let arguments = self.object().and_then(|object| object.arguments);
        arguments.and_then(|id| self.other(id).items()).unwrap_or_default()
    }

    /// The entries of a dictionary, or those set in an object.
    pub fn entries(self) -> impl Iterator<Item = (Value<'a>, Value<'a>)> {
        let entries = match self.node() {
            Node::Dict(entries) => entries.as_slice(),
            Node::Object(object) => &object.entries,
            _ => &[],
        };
        entries.iter().map(move |(key, value)| (self.other(*key), self.other(*value)))
    }

    /// The value of a text key; of the last, if there are several.
    #[must_use]
    pub fn get(self, key: &str) -> Option<Value<'a>> {
        let mut found = None;
        for (name, value) in self.entries().take(MOST_ATTRIBUTES) {
            if name.bytes() == Some(key.as_bytes()) {
                found = Some(value);
            }
        }
        found
    }

    /// The attribute `name` of an object, as its state has it.
    #[must_use]
    pub fn attribute(self, name: &str) -> Option<Value<'a>> {
        let state = self.other(self.object()?.state?);
        match state.node() {
            // A dictionary, and one of slots.
            Node::Tuple(parts) => parts.iter().find_map(|part| self.other(*part).get(name)),
            _ => state.get(name),
        }
    }
}
