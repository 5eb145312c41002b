//! One operation of a graph, with what is known of its inputs.

use tensorserve_proto::tensorflow::attr_value::{ListValue, Value as Attribute};
use tensorserve_proto::tensorflow::{
    ConstantProto, FunctionDef, NameAttrList, NodeDef, TensorShapeProto,
};
use tensorserve_rows::{MAX_ELEMENTS, Size, Stop, Symbols, Value, unknown};
use tensorserve_savedmodel::integers;
use tensorserve_tensor::DType;

/// Whether a number of `DataType` is that of integers or booleans.
fn is_integer(number: i32) -> bool {
    DType::ALL.into_iter().any(|dtype| dtype.number() == number && dtype.is_integer_or_bool())
}

/// What runs the graph that the operation is in.
pub(super) trait GraphInterpreter {
    fn symbols(&self) -> &Symbols;

    /// The function of this name.
    fn function(&self, name: &str) -> Option<&FunctionDef>;

    /// The results of the function `name` for these arguments.
    fn call(&self, name: &str, arguments: &[Value]) -> Result<Vec<Value>, Stop>;

    /// Notes whether the sizes of the inputs bound how often the loop `node` runs, where it is found now.
    fn note_loop(&self, node: &NodeDef, is_counted: bool);

    /// Notes whether a loop over rows runs. Returns whether one did before.
    fn set_in_rows(&self, is_in_rows: bool) -> bool;
}

/// An operation that is looked at.
pub(super) struct TensorFlowCall<'c, 'a> {
    pub(super) node: &'a NodeDef,
    pub(super) inputs: Vec<Value>,
    pub(super) interpreter: &'c dyn GraphInterpreter,
}

impl<'a> TensorFlowCall<'_, 'a> {
    pub(super) fn symbols(&self) -> &Symbols {
        self.interpreter.symbols()
    }

    /// Input `index`.
    pub(super) fn input(&self, index: usize) -> Result<&Value, Stop> {
        self.inputs.get(index).map_or_else(|| unknown("has fewer inputs than expected"), Ok)
    }

    /// All inputs.
    pub(super) fn all(&self) -> Vec<&Value> {
        self.inputs.iter().collect()
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&'a Attribute> {
        self.node.attr.get(name)?.value.as_ref()
    }

    /// A boolean attribute, false if it is absent.
    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.attribute(name), Some(Attribute::B(true)))
    }

    /// An integer attribute.
    pub(super) fn int(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            Attribute::I(value) => Some(*value),
            _ => None,
        }
    }

    fn list(&self, name: &str) -> Option<&'a ListValue> {
        match self.attribute(name)? {
            Attribute::List(list) => Some(list),
            _ => None,
        }
    }

    /// The integers of an attribute.
    pub(super) fn ints(&self, name: &str) -> &'a [i64] {
        self.list(name).map_or(&[], |list| &list.i)
    }

    /// The texts of an attribute.
    pub(super) fn texts(&self, name: &str) -> Vec<&'a [u8]> {
        self.list(name).map_or(Vec::new(), |list| list.s.iter().map(AsRef::as_ref).collect())
    }

    /// The number of types or shapes of an attribute.
    pub(super) fn count(&self, name: &str) -> usize {
        self.list(name).map_or(0, |list| list.r#type.len().max(list.shape.len()))
    }

    /// The shapes of an attribute.
    pub(super) fn shapes(&self, name: &str) -> &'a [TensorShapeProto] {
        self.list(name).map_or(&[], |list| &list.shape)
    }

    /// A text attribute.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        match self.attribute(name)? {
            Attribute::S(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// The function of an attribute.
    pub(super) fn function(&self, name: &str) -> Result<&'a str, Stop> {
        match self.attribute(name) {
            Some(Attribute::Func(NameAttrList { name, .. })) => Ok(name),
            _ => unknown("names no function"),
        }
    }

    /// The functions of an attribute.
    pub(super) fn functions(&self, name: &str) -> Vec<&'a str> {
        let functions = self.list(name).map_or(&[][..], |list| &list.func);
        functions.iter().map(|function| function.name.as_str()).collect()
    }

    /// Whether an attribute is a type of integers.
    pub(super) fn is_integer(&self, name: &str) -> bool {
        matches!(self.attribute(name), Some(Attribute::Type(number)) if is_integer(*number))
    }

    /// A tensor of the shape in the attribute `name`, which is the same for every batch.
    pub(super) fn constant_of(&self, name: &str) -> Value {
        match self.attribute(name) {
            Some(Attribute::Shape(shape)) if !shape.unknown_rank => {
                Value::constant_of(&sizes(shape), self.symbols())
            }
            _ => Value::constant(),
        }
    }

    /// Whether the channels of images come before their places (`NCHW`).
    pub(super) fn channels_first(&self) -> bool {
        self.text("data_format").is_some_and(|format| format.starts_with("NC"))
    }
}

/// The sizes of a shape.
pub(super) fn sizes(shape: &TensorShapeProto) -> Vec<i64> {
    shape.dim.iter().map(|dim| dim.size).collect()
}

/// A constant of the graph, with its elements if they are few integers.
pub(super) fn constant(tensor: &ConstantProto, symbols: &Symbols) -> Value {
    let dims = tensor.tensor_shape.as_ref().map_or(Vec::new(), sizes);
    let value = Value::constant_of(&dims, symbols);
    match elements(tensor, &dims) {
        Some(elements) => {
            let elements = elements.into_iter().map(Size::number).collect();
            Value::of_elements(elements, value.dims.unwrap_or_default())
        }
        None => value,
    }
}

fn elements(tensor: &ConstantProto, dims: &[i64]) -> Option<Vec<i64>> {
    let count = dims.iter().try_fold(1i64, |count, size| count.checked_mul(*size))?;
    let count = usize::try_from(count).ok().filter(|count| *count <= MAX_ELEMENTS)?;
    let mut found = integers(tensor)?;
    // Missing values repeat the last one.
    let last = found.last().copied().unwrap_or(0);
    found.truncate(count);
    found.resize(count, last);
    Some(found)
}
