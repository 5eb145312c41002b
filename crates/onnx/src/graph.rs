//! Parts of ONNX graphs: functions that build them, and accessors.

#[cfg(any(test, feature = "mxnet"))]
use bytes::Bytes;

use super::types;
use crate::proto::attribute_proto::AttributeType;
use crate::proto::tensor_shape_proto::Dimension;
use crate::proto::tensor_shape_proto::dimension::Value as Size;
use crate::proto::type_proto::{self, Value as Type};
use crate::proto::{
    AttributeProto, NodeProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
};
use tensorserve_tensor::DType;

/// A node with a standard ONNX operator.
pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: op.to_owned(),
        input: to_owned_names(inputs),
        output: to_owned_names(outputs),
        ..NodeProto::default()
    }
}

fn to_owned_names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

impl NodeProto {
    /// Adds an attribute.
    #[must_use]
    pub(crate) fn with(mut self, attribute: AttributeProto) -> Self {
        self.attribute.push(attribute);
        self
    }

    /// The attribute `name`.
    pub(super) fn get(&self, name: &str) -> Option<&AttributeProto> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// The integer attribute `name`.
    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.get(name)?.i
    }

    /// The integers of the attribute `name`; empty if the node has no such attribute.
    pub(super) fn ints(&self, name: &str) -> &[i64] {
        self.get(name).map_or(&[], |attribute| &attribute.ints)
    }

    /// Removes the attribute `name`, and returns it.
    pub(super) fn take(&mut self, name: &str) -> Option<AttributeProto> {
        let index = self.attribute.iter().position(|attribute| attribute.name == name)?;
        Some(self.attribute.remove(index))
    }
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: name.to_owned(), r#type: kind.into(), ..AttributeProto::default() }
}

/// An integer attribute.
pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

/// A float attribute.
#[cfg(any(test, feature = "mxnet"))]
pub(crate) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, AttributeType::Float) }
}

/// A string attribute.
#[cfg(any(test, feature = "mxnet"))]
pub(crate) fn string(name: &str, value: &str) -> AttributeProto {
    let value = Bytes::copy_from_slice(value.as_bytes());
    AttributeProto { s: Some(value), ..attribute(name, AttributeType::String) }
}

/// An attribute of integers.
pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

/// An attribute of floats.
pub(super) fn floats(name: &str, values: &[f32]) -> AttributeProto {
    AttributeProto { floats: values.to_vec(), ..attribute(name, AttributeType::Floats) }
}

/// The initializer `name`: a vector of int64.
pub(crate) fn int64_vector(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: vec![i64::try_from(values.len()).unwrap_or(i64::MAX)],
        data_type: types::element_type(DType::Int64),
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// An operator that returns a constant tensor of floats.
pub(super) fn constant(output: &str, dims: &[i64], values: &[f32]) -> NodeProto {
    let tensor = TensorProto {
        dims: dims.to_vec(),
        data_type: types::element_type(DType::Float),
        float_data: values.to_vec(),
        ..TensorProto::default()
    };
    let value = AttributeProto { t: Some(tensor), ..attribute("value", AttributeType::Tensor) };
    node("Constant", &[], &[output]).with(value)
}

/// The most elements of a constant whose values are read.
const MAX_READ: usize = 64;

/// The values of a small constant, if they are whole numbers of type float, int32 or int64.
pub(super) fn integers(tensor: &TensorProto) -> Option<Vec<i64>> {
    let dtype = types::dtype(tensor.data_type)?;
    let raw = &tensor.raw_data;
    if raw.len() > MAX_READ * size_of::<i64>() {
        return None;
    }
    let whole = |value: f32| {
        #[expect(clippy::cast_possible_truncation, reason = "whole and small")]
        let integer = value as i64;
        (value.fract() == 0.0 && value.abs() < 1e9).then_some(integer)
    };
    let values: Vec<i64> = match dtype {
        DType::Int64 => {
            let packed = raw.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
            packed.chain(tensor.int64_data.iter().copied()).collect()
        }
        DType::Int32 => {
            let packed = raw.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes));
            packed.chain(tensor.int32_data.iter().copied()).map(i64::from).collect()
        }
        DType::Float => {
            let packed = raw.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            packed.chain(tensor.float_data.iter().copied()).map(whole).collect::<Option<_>>()?
        }
        DType::Double
        | DType::Half
        | DType::BFloat16
        | DType::Int8
        | DType::Int16
        | DType::UInt8
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64
        | DType::Bool
        | DType::Complex64
        | DType::Complex128
        | DType::String => return None,
    };
    (!values.is_empty() && values.len() <= MAX_READ).then_some(values)
}

/// An input or output: a tensor, of which a dimension of size -1 varies.
pub(crate) fn tensor_info(name: &str, dtype: DType, dims: &[i64]) -> ValueInfoProto {
    let dim = dims.iter().map(|&size| Dimension {
        value: (size >= 0).then_some(Size::DimValue(size)),
        ..Dimension::default()
    });
    let tensor = type_proto::Tensor {
        elem_type: types::element_type(dtype),
        shape: Some(TensorShapeProto { dim: dim.collect() }),
    };
    value_of(name, tensor)
}

/// An input or output: a tensor of this type.
pub(super) fn value_of(name: &str, tensor: type_proto::Tensor) -> ValueInfoProto {
    let value = Some(Type::TensorType(tensor));
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { value, ..TypeProto::default() }),
    }
}
