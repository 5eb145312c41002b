//! Parts of ONNX graphs: made, and read.

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

/// A node of ONNX's own operators.
pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto {
        op_type: op.to_owned(),
        input: owned(inputs),
        output: owned(outputs),
        ..NodeProto::default()
    }
}

impl NodeProto {
    /// The same with an attribute.
    #[must_use]
    pub(crate) fn with(mut self, attribute: AttributeProto) -> Self {
        self.attribute.push(attribute);
        self
    }

    /// The attribute `name`.
    pub(super) fn get(&self, name: &str) -> Option<&AttributeProto> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// The integer `name`.
    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.get(name)?.i
    }

    /// The integers `name`; none if there is no such attribute.
    pub(super) fn ints(&self, name: &str) -> &[i64] {
        self.get(name).map_or(&[], |attribute| &attribute.ints)
    }

    /// Takes the attribute `name` out.
    pub(super) fn take(&mut self, name: &str) -> Option<AttributeProto> {
        let index = self.attribute.iter().position(|attribute| attribute.name == name)?;
        Some(self.attribute.remove(index))
    }
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: name.to_owned(), r#type: kind.into(), ..AttributeProto::default() }
}

pub(crate) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

pub(crate) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, AttributeType::Float) }
}

pub(crate) fn string(name: &str, value: &str) -> AttributeProto {
    let value = Bytes::copy_from_slice(value.as_bytes());
    AttributeProto { s: Some(value), ..attribute(name, AttributeType::String) }
}

pub(crate) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

pub(super) fn floats(name: &str, values: &[f32]) -> AttributeProto {
    AttributeProto { floats: values.to_vec(), ..attribute(name, AttributeType::Floats) }
}

/// The constant `name`: a vector of integers.
pub(crate) fn integers(name: &str, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: vec![i64::try_from(values.len()).unwrap_or(i64::MAX)],
        data_type: types::number(DType::Int64),
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

/// An input or output: a tensor whose open dimensions are -1.
pub(crate) fn value(name: &str, dtype: DType, dims: &[i64]) -> ValueInfoProto {
    let dimension = |&size: &i64| Dimension {
        value: (size >= 0).then_some(Size::DimValue(size)),
        ..Dimension::default()
    };
    let tensor = type_proto::Tensor {
        elem_type: types::number(dtype),
        shape: Some(TensorShapeProto { dim: dims.iter().map(dimension).collect() }),
    };
    let value = Some(Type::TensorType(tensor));
    ValueInfoProto {
        name: name.to_owned(),
        r#type: Some(TypeProto { value, ..TypeProto::default() }),
    }
}
