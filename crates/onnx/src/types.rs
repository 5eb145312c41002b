//! ONNX's element types (`TensorProto.DataType`), which ONNX Runtime numbers in the same way.

use tensorserve_tensor::DType;

/// Every type that a tensor of ours can have, with its number.
const TYPES: [(DType, i32); 14] = [
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

/// Types that can not be served, by number.
const OTHERS: [(i32, &str); 9] = [
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

/// The type with ONNX's number.
pub(super) fn dtype(number: i32) -> Option<DType> {
    TYPES.iter().find(|(_, its)| *its == number).map(|(dtype, _)| *dtype)
}

/// ONNX's number of a type; 0, which is none, for complex numbers.
pub(crate) fn number(dtype: DType) -> i32 {
    TYPES.iter().find(|(its, _)| *its == dtype).map_or(0, |(_, number)| *number)
}

/// What users call the type with ONNX's number.
pub(super) fn name(number: i32) -> String {
    if let Some(dtype) = dtype(number) {
        return dtype.python_name().to_owned();
    }
    let other = OTHERS.iter().find(|(its, _)| *its == number);
    other.map_or_else(|| format!("number {number}"), |(_, name)| (*name).to_owned())
}
