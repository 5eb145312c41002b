//! One operator of a graph, with what is known of its inputs.

use tensorserve_rows::{Outcome, Size, Stop, Symbols, Value, mixed, unknown};

use crate::graph;
use crate::proto::{AttributeProto, GraphProto, TensorProto};
use crate::types;
use tensorserve_tensor::DType;

/// What the rules of control flow need of the interpreter.
pub(super) trait SubgraphRunner {
    /// The outputs of a subgraph for these inputs.
    fn run(&self, graph: &GraphProto, inputs: Vec<Value>) -> Vec<Value>;

    /// Notes whether a loop over rows runs. Returns whether one did before.
    fn set_in_rows(&self, is_in_rows: bool) -> bool;
}

/// An operator that is looked at.
pub(super) struct OnnxCall<'c> {
    /// The version of its operator set.
    pub(super) version: i64,
    pub(super) attributes: Vec<&'c AttributeProto>,
    /// `None` for an optional input that is left out.
    pub(super) inputs: Vec<Option<Value>>,
    /// The inputs that are constants of the graph.
    pub(super) tensors: Vec<Option<&'c TensorProto>>,
    /// The number of outputs.
    pub(super) outputs: usize,
    pub(super) symbols: &'c Symbols,
    pub(super) subgraphs: &'c dyn SubgraphRunner,
}

impl<'c> OnnxCall<'c> {
    /// Input `index`.
    pub(super) fn input(&self, index: usize) -> Result<&Value, Stop> {
        self.optional(index).map_or_else(|| unknown("has fewer inputs than expected"), Ok)
    }

    /// Input `index`, if it is there.
    pub(super) fn optional(&self, index: usize) -> Option<&Value> {
        self.inputs.get(index)?.as_ref()
    }

    /// The inputs that are there from `index` on.
    pub(super) fn from(&self, index: usize) -> Vec<&Value> {
        self.inputs.iter().skip(index).flatten().collect()
    }

    /// Checks that the inputs from `index` on are the same for every batch.
    pub(super) fn constants_from(&self, index: usize) -> Result<(), Stop> {
        match self.from(index).iter().all(|value| value.is_constant()) {
            true => Ok(()),
            false => mixed("takes parameters that depend on the batch"),
        }
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&'c AttributeProto> {
        self.attributes.iter().find(|attribute| attribute.name == name).copied()
    }

    /// An integer attribute.
    pub(super) fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |attribute| attribute.i.unwrap_or(0))
    }

    /// Whether an integer attribute is not 0.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.int(name, 0) != 0
    }

    /// The integers of an attribute.
    pub(super) fn ints(&self, name: &str) -> Option<&'c [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    /// A text attribute.
    pub(super) fn text(&self, name: &str) -> Option<&'c str> {
        std::str::from_utf8(self.attribute(name)?.s.as_ref()?).ok()
    }

    /// The subgraph of an attribute.
    pub(super) fn graph(&self, name: &str) -> Result<&'c GraphProto, Stop> {
        let graph = self.attribute(name).and_then(|attribute| attribute.g.as_ref());
        graph.map_or_else(|| unknown("has no subgraph"), Ok)
    }

    /// Small integers that are an attribute in older versions, and input `index` in newer ones; `None` if
    /// neither is there.
    pub(super) fn numbers(&self, name: &str, index: usize) -> Result<Option<Vec<i64>>, Stop> {
        if let Some(value) = self.optional(index) {
            return value.numbers("parameters").map(Some);
        }
        Ok(self.ints(name).map(<[i64]>::to_vec))
    }
}

/// The results of an operator with one output.
pub(super) fn one(value: Outcome) -> Result<Vec<Value>, Stop> {
    value.map(|value| vec![value])
}

/// A constant of the graph, with its elements if they are few integers.
pub(super) fn constant(tensor: &TensorProto, symbols: &Symbols) -> Value {
    let value = Value::constant_of(&tensor.dims, symbols);
    let Some(elements) = elements(tensor) else {
        return value;
    };
    let elements: Vec<Size> = elements.into_iter().map(Size::number).collect();
    Value { elements: Some(elements), ..value }
}

/// The elements of a scalar or vector of few integers.
fn elements(tensor: &TensorProto) -> Option<Vec<i64>> {
    let count = match tensor.dims.as_slice() {
        [] => 1,
        [count] => *count,
        _ => return None,
    };
    let found = match types::dtype(tensor.data_type)? {
        DType::Int32 | DType::Int64 if count == 0 => Vec::new(),
        DType::Int32 | DType::Int64 => graph::integers(tensor)?,
        DType::Bool if tensor.raw_data.len() <= 64 && tensor.int32_data.len() <= 64 => {
            let raw = tensor.raw_data.iter().map(|&byte| i64::from(byte != 0));
            raw.chain(tensor.int32_data.iter().map(|&value| i64::from(value != 0))).collect()
        }
        DType::Bool
        | DType::Float
        | DType::Double
        | DType::Half
        | DType::BFloat16
        | DType::Int8
        | DType::Int16
        | DType::UInt8
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64
        | DType::Complex64
        | DType::Complex128
        | DType::String => return None,
    };
    (i64::try_from(found.len()) == Ok(count)).then_some(found)
}
