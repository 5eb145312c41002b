//! Calls that only make data: what they would have made.

use std::sync::Arc;

use bytes::Bytes;

use super::array::{Array, ElementType, MOST_DIMENSIONS};
use super::input::{Step, damaged, unsupported};
use super::machine::Machine;
use super::{Id, Node};

impl Machine {
    /// What the function `name` makes of `arguments`, if it is one that is known.
    pub(super) fn reduced(&mut self, name: &str, arguments: Id) -> Step<Option<Id>> {
        let (module, function) = name.rsplit_once('.').unwrap_or_default();
        match (module, function) {
            ("numpy", "dtype") => self.element_type(arguments),
            ("copy_reg" | "copyreg", "_reconstructor") => self.reconstructed(arguments),
            ("copy_reg" | "copyreg", "__newobj__") => self.new_object(arguments),
            ("collections", "OrderedDict") => self.ordered(arguments),
            ("collections", "defaultdict") => self.add(Node::Dict(Vec::new())).map(Some),
            ("_codecs", "encode") => self.encoded(arguments),
            ("builtins" | "__builtin__", "bytearray" | "bytes") => self.encoded(arguments),
            ("builtins" | "__builtin__", "set" | "frozenset") => self.set(arguments),
            _ if is_numpy(module, "multiarray") && function == "_reconstruct" => {
                self.add(Node::Array(Box::default())).map(Some)
            }
            _ if is_numpy(module, "multiarray") && function == "scalar" => self.scalar(arguments),
            _ if is_numpy(module, "numeric") && function == "_frombuffer" => {
                self.buffered(arguments)
            }
            _ => Ok(None),
        }
    }

    fn arguments(&self, id: Id) -> Step<&[Id]> {
        match self.node(id)? {
            Node::Tuple(items) => Ok(items),
            other => damaged(format!("the arguments of a call are {}, no tuple", other.kind())),
        }
    }

    /// `dtype('f8', False, True)`, whose order of bytes its state tells.
    fn element_type(&mut self, arguments: Id) -> Step<Option<Id>> {
        let Some(first) = self.arguments(arguments)?.first() else { return Ok(None) };
        let name = match self.node(*first)? {
            Node::Text(text) => text.as_str(),
            Node::Bytes(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            _ => return Ok(None),
        };
        let Some(element) = ElementType::named(name) else { return Ok(None) };
        self.add(Node::ElementType(Arc::new(element))).map(Some)
    }

    /// `(version, order, subarray, names, fields, size, alignment, flags)`.
    pub(super) fn build_element_type(&mut self, target: Id, state: Id) -> Step<()> {
        let [_, order, subarray, names, fields, size, ..] = *self.arguments(state)? else {
            return damaged("the state of a dtype is too short");
        };
        let Node::ElementType(element) = self.node(target)? else { return Ok(()) };
        let mut element = ElementType::clone(element);
        let is_big = match self.node(order)? {
            Node::Text(order) => order == ">",
            Node::Bytes(order) => order == ">",
            _ => false,
        };
        element.set_order(is_big);
        if let Node::Int(size) = self.node(size)?
            && let Ok(size) = usize::try_from(*size)
        {
            element.set_size(size);
        }
        if let Node::Tuple(names) = self.node(names)?
            && matches!(self.node(subarray)?, Node::None)
        {
            let count = names.len();
            let Node::Dict(entries) = self.node(fields)? else {
                return damaged("a dtype with names, and no fields");
            };
            for (key, field) in entries {
                let (Some(name), Node::Tuple(field)) = (self.any_text(*key)?, self.node(*field)?)
                else {
                    return damaged("a field of a dtype without its name or its dtype");
                };
                let [dtype, offset, ..] = **field else {
                    return damaged("a field of a dtype without its offset");
                };
                // Of a field that has fields itself, no value is ever asked.
                let (Node::ElementType(dtype), Node::Int(offset)) =
                    (self.node(dtype)?, self.node(offset)?)
                else {
                    continue;
                };
                let offset = usize::try_from(*offset).unwrap_or(usize::MAX);
                element.add_field(name, dtype, offset);
            }
            self.charge(count)?;
        }
        *self.node_mut(target)? = Node::ElementType(Arc::new(element));
        Ok(())
    }

    fn any_text(&self, id: Id) -> Step<Option<String>> {
        Ok(match self.node(id)? {
            Node::Text(text) => Some(text.clone()),
            Node::Bytes(bytes) => std::str::from_utf8(bytes).ok().map(str::to_owned),
            _ => None,
        })
    }

    /// `(version, shape, dtype, by columns, data)`, or without the version.
    pub(super) fn build_array(&mut self, target: Id, state: Id) -> Step<()> {
        let (shape, dtype, by_columns, data) = match *self.arguments(state)? {
            [_, shape, dtype, by_columns, data] | [shape, dtype, by_columns, data] => {
                (shape, dtype, by_columns, data)
            }
            _ => return damaged("the state of an array is not as NumPy writes it"),
        };
        let (Node::Tuple(dims), Node::ElementType(element)) =
            (self.node(shape)?, self.node(dtype)?)
        else {
            // Of a dtype that is not known: only what was there can be told.
            let id = self.object("numpy.ndarray".into(), None)?;
            let moved = std::mem::replace(self.node_mut(id)?, Node::None);
            *self.node_mut(target)? = moved;
            if let Node::Object(object) = self.node_mut(target)? {
                object.state = Some(state);
            }
            return Ok(());
        };
        let shape = self.shape(dims)?;
        let by_columns = matches!(self.node(by_columns)?, Node::Bool(true) | Node::Int(1..));
        let element = Arc::clone(element);
        let array = match self.node(data)? {
            Node::Bytes(bytes) => Array::of_bytes(element, shape, by_columns, bytes.clone()),
            Node::List(items) => Array::of_objects(element, shape, by_columns, data, items.len()),
            other => return damaged(format!("the data of an array is {}", other.kind())),
        };
        let Some(array) = array else {
            return damaged("the data of an array does not have the size of its shape");
        };
        *self.node_mut(target)? = Node::Array(Box::new(array));
        Ok(())
    }

    pub(super) fn shape(&self, dims: &[Id]) -> Step<Vec<usize>> {
        if dims.len() > MOST_DIMENSIONS {
            return damaged(format!("an array has more than {MOST_DIMENSIONS} dimensions"));
        }
        let size = |id: &Id| match self.node(*id)? {
            Node::Int(size) if *size >= 0 => Ok(usize::try_from(*size).unwrap_or(usize::MAX)),
            _ => damaged("a size in the shape of an array is no whole number"),
        };
        dims.iter().map(size).collect()
    }

    /// `scalar(dtype, bytes)`: one element.
    fn scalar(&mut self, arguments: Id) -> Step<Option<Id>> {
        let [dtype, value, ..] = *self.arguments(arguments)? else { return Ok(None) };
        let Node::ElementType(element) = self.node(dtype)? else { return Ok(None) };
        let Node::Bytes(bytes) = self.node(value)? else {
            // Of an object, the object itself.
            return Ok((element.letter() == 'O').then_some(value));
        };
        let (element, bytes) = (Arc::clone(element), bytes.clone());
        let array = Array::of_bytes(element, Vec::new(), false, bytes);
        match array.and_then(|array| array.only()) {
            Some(node) => self.add(node).map(Some),
            None => Ok(None),
        }
    }

    /// `_frombuffer(bytes, dtype, shape, order)`.
    fn buffered(&mut self, arguments: Id) -> Step<Option<Id>> {
        let [data, dtype, shape, order] = *self.arguments(arguments)? else {
            return unsupported("an array made of a buffer in a way that is not known");
        };
        let (Node::Bytes(data), Node::ElementType(element), Node::Tuple(dims)) =
            (self.node(data)?, self.node(dtype)?, self.node(shape)?)
        else {
            return Ok(None);
        };
        let by_columns = self.any_text(order)?.is_some_and(|order| order == "F");
        let element = Arc::clone(element);
        let array = Array::of_bytes(element, self.shape(dims)?, by_columns, data.clone());
        match array {
            Some(array) => self.add(Node::Array(Box::new(array))).map(Some),
            None => damaged("the data of an array does not have the size of its shape"),
        }
    }

    /// `_reconstructor(class, base, state)`: an object of protocol 0 or 1.
    fn reconstructed(&mut self, arguments: Id) -> Step<Option<Id>> {
        let Some(class) = self.arguments(arguments)?.first().copied() else { return Ok(None) };
        let class = self.name_of(class)?;
        self.object(class, None).map(Some)
    }

    /// `__newobj__(class, *arguments)`.
    fn new_object(&mut self, arguments: Id) -> Step<Option<Id>> {
        let [class, ref rest @ ..] = *self.arguments(arguments)? else { return Ok(None) };
        let rest = rest.to_vec();
        self.charge(rest.len())?;
        let class = self.name_of(class)?;
        let arguments = self.add(Node::Tuple(rest))?;
        self.object(class, Some(arguments)).map(Some)
    }

    /// `OrderedDict()` or, of Python 2, `OrderedDict([[key, value], …])`.
    fn ordered(&mut self, arguments: Id) -> Step<Option<Id>> {
        let mut entries = Vec::new();
        if let Some(list) = self.arguments(arguments)?.first()
            && let Node::List(items) = self.node(*list)?
        {
            for item in items {
                let (Node::List(pair) | Node::Tuple(pair)) = self.node(*item)? else {
                    return damaged("an entry of a dictionary is no pair");
                };
                let [key, value] = **pair else {
                    return damaged("an entry of a dictionary is no pair");
                };
                entries.push((key, value));
            }
        }
        self.charge(entries.len())?;
        self.add(Node::Dict(entries)).map(Some)
    }

    fn set(&mut self, arguments: Id) -> Step<Option<Id>> {
        let items = match self.arguments(arguments)?.first() {
            None => Vec::new(),
            Some(items) => match self.node(*items)? {
                Node::List(items) | Node::Tuple(items) | Node::Set(items) => items.clone(),
                _ => return Ok(None),
            },
        };
        self.charge(items.len())?;
        self.add(Node::Set(items)).map(Some)
    }

    /// `encode(text, 'latin1')`, `bytearray(bytes)`, `bytes()`: how protocols before 3 write bytes.
    fn encoded(&mut self, arguments: Id) -> Step<Option<Id>> {
        let Some(first) = self.arguments(arguments)?.first() else {
            return self.add(Node::Bytes(Bytes::new())).map(Some);
        };
        let bytes = match self.node(*first)? {
            Node::Bytes(bytes) => bytes.clone(),
            Node::Text(text) => {
                let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
                let Some(latin) = latin else { return Ok(None) };
                self.charge(latin.len())?;
                Bytes::from(latin)
            }
            _ => return Ok(None),
        };
        self.add(Node::Bytes(bytes)).map(Some)
    }
}

/// Whether `module` is NumPy's core module `name`, which moved with NumPy 2.
fn is_numpy(module: &str, name: &str) -> bool {
    let rest = module.strip_prefix("numpy.core.").or(module.strip_prefix("numpy._core."));
    rest == Some(name)
}
