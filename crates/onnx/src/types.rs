//! ONNX's element types (`TensorProto.DataType`). `ONNXTensorElementDataType` of ONNX Runtime has
//! the same numbers.

use tensorserve_tensor::DType;

/// ONNX's number of an element type; `None` for a dtype that is not supported.
fn number(dtype: DType) -> Option<i32> {
    match dtype {
        DType::Float => Some(1),
        DType::UInt8 => Some(2),
        DType::Int8 => Some(3),
        DType::UInt16 => Some(4),
        DType::Int16 => Some(5),
        DType::Int32 => Some(6),
        DType::Int64 => Some(7),
        DType::String => Some(8),
        DType::Bool => Some(9),
        DType::Half => Some(10),
        DType::Double => Some(11),
        DType::UInt32 => Some(12),
        DType::UInt64 => Some(13),
        DType::BFloat16 => Some(16),
        // Their numbers are in `UNSUPPORTED`.
        DType::Complex64 | DType::Complex128 => None,
    }
}

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
    DType::ALL.into_iter().find(|dtype| number(*dtype) == Some(element_type))
}

/// ONNX's number of an element type; [`UNDEFINED`] for a dtype that is not supported.
pub(crate) fn element_type(dtype: DType) -> i32 {
    number(dtype).unwrap_or(UNDEFINED)
}

/// The usual name of an element type, for error messages.
pub(super) fn name(element_type: i32) -> String {
    if let Some(dtype) = dtype(element_type) {
        return dtype.python_name().to_owned();
    }
    let unsupported = UNSUPPORTED.iter().find(|(number, _)| *number == element_type);
    unsupported.map_or_else(|| format!("number {element_type}"), |(_, name)| (*name).to_owned())
}
