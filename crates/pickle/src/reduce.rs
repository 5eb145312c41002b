//! Calls that only make data, and their results.

use std::sync::Arc;

use bytes::Bytes;

use super::array::{MAX_DIMENSIONS, NumpyArray, NumpyDtype, dtype_kind};
use super::reader::{OpcodeResult, damaged, unsupported};
use super::unpickler::Unpickler;
use super::{PickleId, PickleNode};

/// The order of bytes of a big-endian dtype.
const BIG_ENDIAN: &str = ">";

/// The order of elements where the first dimension varies fastest.
const FORTRAN_ORDER: &str = "F";

/// The reason for an array whose data and shape differ.
const WRONG_DATA_SIZE: &str = "the data of an array does not match its shape";

/// The reason for an item of a dictionary that is not a pair.
const NOT_A_PAIR: &str = "an entry of a dictionary is not a pair";

impl Unpickler {
    /// The result of the function `name` on `arguments`, if it is one that is understood.
    pub(super) fn reduce(
        &mut self,
        name: &str,
        arguments: PickleId,
    ) -> OpcodeResult<Option<PickleId>> {
        let (module, function) = name.rsplit_once('.').unwrap_or_default();
        match (module, function) {
            ("numpy", "dtype") => self.dtype(arguments),
            ("copy_reg" | "copyreg", "_reconstructor") => self.reconstructor(arguments),
            ("copy_reg" | "copyreg", "__newobj__") => self.newobj(arguments),
            ("collections", "OrderedDict") => self.ordered_dict(arguments),
            ("collections", "defaultdict") => self.add(PickleNode::Dict(Vec::new())).map(Some),
            ("_codecs", "encode") => self.encode(arguments),
            ("builtins" | "__builtin__", "bytearray" | "bytes") => self.encode(arguments),
            ("builtins" | "__builtin__", "set" | "frozenset") => self.set(arguments),
            _ if is_numpy(module, "multiarray") && function == "_reconstruct" => {
                self.add(PickleNode::Array(Box::default())).map(Some)
            }
            _ if is_numpy(module, "multiarray") && function == "scalar" => self.scalar(arguments),
            _ if is_numpy(module, "numeric") && function == "_frombuffer" => {
                self.frombuffer(arguments)
            }
            ("numpy.core" | "numpy._core", "_ufunc_reconstruct") => self.ufunc(arguments),
            _ => Ok(None),
        }
    }

    fn arguments(&self, id: PickleId) -> OpcodeResult<&[PickleId]> {
        match self.node(id)? {
            PickleNode::Tuple(items) => Ok(items),
            other => {
                damaged(format!("the arguments of a call are {}, not a tuple", other.type_name()))
            }
        }
    }

    /// `numpy.dtype('f8', False, True)`. The state that follows has the byte order.
    fn dtype(&mut self, arguments: PickleId) -> OpcodeResult<Option<PickleId>> {
        let Some(first) = self.arguments(arguments)?.first() else { return Ok(None) };
        let name = match self.node(*first)? {
            PickleNode::Text(text) => text.as_str(),
            PickleNode::Bytes(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            _ => return Ok(None),
        };
        let Some(dtype) = NumpyDtype::named(name) else { return Ok(None) };
        self.add(PickleNode::Dtype(Arc::new(dtype))).map(Some)
    }

    /// Sets the state of a dtype: `(version, byte order, subarray, names, fields, size, alignment,
    /// flags)`.
    pub(super) fn build_dtype(&mut self, target: PickleId, state: PickleId) -> OpcodeResult<()> {
        let [_, order, subarray, names, fields, size, ..] = *self.arguments(state)? else {
            return damaged("the state of a dtype is too short");
        };
        let PickleNode::Dtype(dtype) = self.node(target)? else { return Ok(()) };
        let mut dtype = NumpyDtype::clone(dtype);
        dtype.set_byte_order(self.text_is(order, BIG_ENDIAN)?);
        if let PickleNode::Int(size) = self.node(size)?
            && let Ok(size) = usize::try_from(*size)
        {
            dtype.set_size(size);
        }
        if let PickleNode::Tuple(names) = self.node(names)?
            && matches!(self.node(subarray)?, PickleNode::None)
        {
            let count = names.len();
            self.add_fields(&mut dtype, fields)?;
            self.charge(count)?;
        }
        *self.node_mut(target)? = PickleNode::Dtype(Arc::new(dtype));
        Ok(())
    }

    /// Adds the fields in the dictionary `fields`: `{name: (dtype, offset), …}`.
    fn add_fields(&self, dtype: &mut NumpyDtype, fields: PickleId) -> OpcodeResult<()> {
        let PickleNode::Dict(entries) = self.node(fields)? else {
            return damaged("a dtype has names without fields");
        };
        for (key, field) in entries {
            let (Some(name), PickleNode::Tuple(field)) = (self.text_of(*key)?, self.node(*field)?)
            else {
                return damaged("a field of a dtype has no name or no dtype");
            };
            let [inner, offset, ..] = **field else {
                return damaged("a field of a dtype has no offset");
            };
            // Fields of fields are not supported, and not needed.
            let (PickleNode::Dtype(inner), PickleNode::Int(offset)) =
                (self.node(inner)?, self.node(offset)?)
            else {
                continue;
            };
            let offset = usize::try_from(*offset).unwrap_or(usize::MAX);
            dtype.add_field(name, inner, offset);
        }
        Ok(())
    }

    /// Whether a value is the text `expected`, or these bytes.
    fn text_is(&self, id: PickleId, expected: &str) -> OpcodeResult<bool> {
        Ok(match self.node(id)? {
            PickleNode::Text(text) => text == expected,
            PickleNode::Bytes(bytes) => bytes == expected,
            _ => false,
        })
    }

    /// Text, or the bytes of a Python 2 string.
    fn text_of(&self, id: PickleId) -> OpcodeResult<Option<String>> {
        Ok(match self.node(id)? {
            PickleNode::Text(text) => Some(text.clone()),
            PickleNode::Bytes(bytes) => std::str::from_utf8(bytes).ok().map(str::to_owned),
            _ => None,
        })
    }

    /// Sets the state of an array: `(version, shape, dtype, is in Fortran order, data)`, or the same
    /// without the version.
    pub(super) fn build_array(&mut self, target: PickleId, state: PickleId) -> OpcodeResult<()> {
        let (shape, dtype, fortran_order, data) = match *self.arguments(state)? {
            [_, shape, dtype, fortran_order, data] | [shape, dtype, fortran_order, data] => {
                (shape, dtype, fortran_order, data)
            }
            _ => return damaged("the state of an array is not valid"),
        };
        let (PickleNode::Tuple(dims), PickleNode::Dtype(dtype)) =
            (self.node(shape)?, self.node(dtype)?)
        else {
            // The dtype is not supported: keep the state, for error messages.
            let id = self.add_object("numpy.ndarray".into(), None)?;
            let moved = std::mem::replace(self.node_mut(id)?, PickleNode::None);
            *self.node_mut(target)? = moved;
            if let PickleNode::Object(object) = self.node_mut(target)? {
                object.state = Some(state);
            }
            return Ok(());
        };
        let shape = self.shape(dims)?;
        let fortran_order =
            matches!(self.node(fortran_order)?, PickleNode::Bool(true) | PickleNode::Int(1..));
        let dtype = Arc::clone(dtype);
        let array = match self.node(data)? {
            PickleNode::Bytes(bytes) => {
                NumpyArray::from_bytes(dtype, shape, fortran_order, bytes.clone())
            }
            PickleNode::List(items) => {
                NumpyArray::from_objects(dtype, shape, fortran_order, data, items.len())
            }
            other => {
                return damaged(format!("the data of an array is {}", other.type_name()));
            }
        };
        let Some(array) = array else {
            return damaged(WRONG_DATA_SIZE);
        };
        *self.node_mut(target)? = PickleNode::Array(Box::new(array));
        Ok(())
    }

    /// The shape in a tuple.
    pub(super) fn shape(&self, dims: &[PickleId]) -> OpcodeResult<Vec<usize>> {
        if dims.len() > MAX_DIMENSIONS {
            return damaged(format!("an array has more than {MAX_DIMENSIONS} dimensions"));
        }
        let mut shape = Vec::with_capacity(dims.len());
        for dim in dims {
            match self.node(*dim)? {
                PickleNode::Int(size) if *size >= 0 => {
                    shape.push(usize::try_from(*size).unwrap_or(usize::MAX));
                }
                _ => return damaged("a dimension of an array is not a valid size"),
            }
        }
        Ok(shape)
    }

    /// `scalar(dtype, bytes)`.
    fn scalar(&mut self, arguments: PickleId) -> OpcodeResult<Option<PickleId>> {
        let [dtype, value, ..] = *self.arguments(arguments)? else { return Ok(None) };
        let PickleNode::Dtype(dtype) = self.node(dtype)? else { return Ok(None) };
        let PickleNode::Bytes(bytes) = self.node(value)? else {
            // A scalar of dtype object is the object.
            return Ok((dtype.kind() == dtype_kind::OBJECT).then_some(value));
        };
        let (dtype, bytes) = (Arc::clone(dtype), bytes.clone());
        let array = NumpyArray::from_bytes(dtype, Vec::new(), false, bytes);
        match array.and_then(|array| array.scalar()) {
            Some(node) => self.add(node).map(Some),
            None => Ok(None),
        }
    }

    /// `_frombuffer(bytes, dtype, shape, order)`.
    fn frombuffer(&mut self, arguments: PickleId) -> OpcodeResult<Option<PickleId>> {
        let [data, dtype, shape, order] = *self.arguments(arguments)? else {
            return unsupported("these arguments of _frombuffer are not supported");
        };
        let (PickleNode::Bytes(data), PickleNode::Dtype(dtype), PickleNode::Tuple(dims)) =
            (self.node(data)?, self.node(dtype)?, self.node(shape)?)
        else {
            return Ok(None);
        };
        let fortran_order = self.text_is(order, FORTRAN_ORDER)?;
        let dtype = Arc::clone(dtype);
        let array = NumpyArray::from_bytes(dtype, self.shape(dims)?, fortran_order, data.clone());
        match array {
            Some(array) => self.add(PickleNode::Array(Box::new(array))).map(Some),
            None => damaged(WRONG_DATA_SIZE),
        }
    }

    /// `_ufunc_reconstruct(module, name)`: how NumPy up to 1.19 writes its functions.
    fn ufunc(&mut self, arguments: PickleId) -> OpcodeResult<Option<PickleId>> {
        let [module, name] = *self.arguments(arguments)? else { return Ok(None) };
        let (Some(module), Some(name)) = (self.text_of(module)?, self.text_of(name)?) else {
            return Ok(None);
        };
        let name = self.intern(&module, &name)?;
        self.add(PickleNode::Global(name)).map(Some)
    }

    /// `_reconstructor(class, base, state)`: an object of protocol 0 or 1.
    fn reconstructor(&mut self, arguments: PickleId) -> OpcodeResult<Option<PickleId>> {
        let Some(class) = self.arguments(arguments)?.first().copied() else { return Ok(None) };
        let class = self.name_of(class)?;
        self.add_object(class, None).map(Some)
    }

    /// `__newobj__(class, *arguments)`.
    fn newobj(&mut self, arguments: PickleId) -> OpcodeResult<Option<PickleId>> {
        let [class, ref rest @ ..] = *self.arguments(arguments)? else { return Ok(None) };
        let rest = rest.to_vec();
        self.charge(rest.len())?;
        let class = self.name_of(class)?;
        let arguments = self.add(PickleNode::Tuple(rest))?;
        self.add_object(class, Some(arguments)).map(Some)
    }

    /// `OrderedDict()`, or of Python 2 `OrderedDict([[key, value], …])`.
    fn ordered_dict(&mut self, arguments: PickleId) -> OpcodeResult<Option<PickleId>> {
        let mut entries = Vec::new();
        if let Some(list) = self.arguments(arguments)?.first()
            && let PickleNode::List(items) = self.node(*list)?
        {
            for item in items {
                let (PickleNode::List(pair) | PickleNode::Tuple(pair)) = self.node(*item)? else {
                    return damaged(NOT_A_PAIR);
                };
                let [key, value] = **pair else {
                    return damaged(NOT_A_PAIR);
                };
                entries.push((key, value));
            }
        }
        self.charge(entries.len())?;
        self.add(PickleNode::Dict(entries)).map(Some)
    }

    /// `set(items)`, `frozenset(items)`.
    fn set(&mut self, arguments: PickleId) -> OpcodeResult<Option<PickleId>> {
        let items = match self.arguments(arguments)?.first() {
            None => Vec::new(),
            Some(items) => match self.node(*items)? {
                PickleNode::List(items) | PickleNode::Tuple(items) | PickleNode::Set(items) => {
                    items.clone()
                }
                _ => return Ok(None),
            },
        };
        self.charge(items.len())?;
        self.add(PickleNode::Set(items)).map(Some)
    }

    /// `encode(text, 'latin1')`, `bytearray(bytes)`, `bytes()`: how protocols before 3 write bytes.
    fn encode(&mut self, arguments: PickleId) -> OpcodeResult<Option<PickleId>> {
        let Some(first) = self.arguments(arguments)?.first() else {
            return self.add(PickleNode::Bytes(Bytes::new())).map(Some);
        };
        let bytes = match self.node(*first)? {
            PickleNode::Bytes(bytes) => bytes.clone(),
            PickleNode::Text(text) => {
                let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
                let Some(latin) = latin else { return Ok(None) };
                self.charge(latin.len())?;
                Bytes::from(latin)
            }
            _ => return Ok(None),
        };
        self.add(PickleNode::Bytes(bytes)).map(Some)
    }
}

/// Whether `module` is the module `name` of NumPy's core, which moved in NumPy 2.
fn is_numpy(module: &str, name: &str) -> bool {
    let rest = module.strip_prefix("numpy.core.").or(module.strip_prefix("numpy._core."));
    rest == Some(name)
}
