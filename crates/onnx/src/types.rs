//! ONNX's element types (`TensorProto.DataType`). `ONNXTensorElementDataType` of ONNX Runtime has
//! the same numbers.

use tensorserve_tensor::DType;

/// The supported element types, with their numbers.
const SUPPORTED: [(DType, i32); 14] = [
    (DType::Float, 1),
    (DType::UInt8, 2),
    (DType::Int8, 3),
    (DType::UInt16, 4),
    (DType::Int16, 5),
    (DType::Int32, 6),
    (DType::Int64, 7),
    (DType::String, 8),
    (DType::Bool, 9),
    (DType::Half, 10),
    (DType::Double, 11),
    (DType::UInt32, 12),
    (DType::UInt64, 13),
    (DType::BFloat16, 16),
];

/// Element types that are not supported, by number, for error messages.
const UNSUPPORTED: [(i32, &str); 9] = [
    (14, "complex64"),
    (15, "complex128"),
    (17, "float8e4m3fn"),
    (18, "float8e4m3fnuz"),
    (19, "float8e5m2"),
    (20, "float8e5m2fnuz"),
    (21, "uint4"),
    (22, "int4"),
    (23, "float4e2m1"),
];

/// `TensorProto.DataType.UNDEFINED`.
const UNDEFINED: i32 = 0;

/// The dtype for ONNX's number of an element type, if it is supported.
pub(super) fn dtype(element_type: i32) -> Option<DType> {
    SUPPORTED.iter().find(|(_, number)| *number == element_type).map(|(dtype, _)| *dtype)
}

/// ONNX's number of an element type; [`UNDEFINED`] for a dtype that is not supported.
pub(crate) fn element_type(dtype: DType) -> i32 {
    SUPPORTED.iter().find(|(its, _)| *its == dtype).map_or(UNDEFINED, |(_, number)| *number)
}

/// The usual name of an element type, for error messages.
pub(super) fn name(element_type: i32) -> String {
    if let Some(dtype) = dtype(element_type) {
        return dtype.python_name().to_owned();
    }
    let unsupported = UNSUPPORTED.iter().find(|(number, _)| *number == element_type);
    unsupported.map_or_else(|| format!("number {element_type}"), |(_, name)| (*name).to_owned())
}
