//! The types of elements: their names in files, and their numbers in the C API.

use tensorserve_tensor::DType;

/// A type that tensors of requests have.
struct ElementType {
    dtype: DType,
    /// Its name as the type of elements of a layer, and its older name as the precision of a port.
    names: [&'static str; 2],
    /// Its `ov_element_type_e` since OpenVINO 2026.0, which renumbered them.
    number: u32,
}

const fn element(dtype: DType, names: [&'static str; 2], number: u32) -> ElementType {
    ElementType { dtype, names, number }
}

/// All that clients can send. Others (4 bits, texts) are refused.
const TYPES: [ElementType; 13] = [
    element(DType::Bool, ["boolean", "BOOL"], 1),
    element(DType::BFloat16, ["bf16", "BF16"], 2),
    element(DType::Half, ["f16", "FP16"], 3),
    element(DType::Float, ["f32", "FP32"], 4),
    element(DType::Double, ["f64", "FP64"], 5),
    element(DType::Int8, ["i8", "I8"], 7),
    element(DType::Int16, ["i16", "I16"], 8),
    element(DType::Int32, ["i32", "I32"], 9),
    element(DType::Int64, ["i64", "I64"], 10),
    element(DType::UInt8, ["u8", "U8"], 16),
    element(DType::UInt16, ["u16", "U16"], 17),
    element(DType::UInt32, ["u32", "U32"], 18),
    element(DType::UInt64, ["u64", "U64"], 19),
];

/// The type that a file calls `name`.
pub(super) fn of_name(name: &str) -> Option<DType> {
    TYPES.iter().find(|one| one.names.contains(&name)).map(|one| one.dtype)
}

/// The number of a type in the C API.
pub(super) fn number(dtype: DType) -> Option<u32> {
    TYPES.iter().find(|one| one.dtype == dtype).map(|one| one.number)
}

/// All types with their numbers.
pub(super) fn numbers() -> impl Iterator<Item = (DType, u32)> {
    TYPES.iter().map(|one| (one.dtype, one.number))
}
