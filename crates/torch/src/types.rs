//! Element types of PyTorch, by their numbers (`c10::ScalarType`) and names (`at::kFloat`).

use tensorserve_tensor::DType;

/// Each type that tensorserve has, with its number and name in PyTorch.
const TYPES: [(DType, i32, &str); 15] = [
    (DType::UInt8, 0, "kByte"),
    (DType::Int8, 1, "kChar"),
    (DType::Int16, 2, "kShort"),
    (DType::Int32, 3, "kInt"),
    (DType::Int64, 4, "kLong"),
    (DType::Half, 5, "kHalf"),
    (DType::Float, 6, "kFloat"),
    (DType::Double, 7, "kDouble"),
    (DType::Complex64, 9, "kComplexFloat"),
    (DType::Complex128, 10, "kComplexDouble"),
    (DType::Bool, 11, "kBool"),
    (DType::BFloat16, 15, "kBFloat16"),
    (DType::UInt16, 27, "kUInt16"),
    (DType::UInt32, 28, "kUInt32"),
    (DType::UInt64, 29, "kUInt64"),
];

/// The number of a type; `None` if PyTorch does not have it.
pub(crate) fn number(dtype: DType) -> Option<i32> {
    TYPES.iter().find(|(known, ..)| *known == dtype).map(|(_, number, _)| *number)
}

/// The type of this number, if tensorserve has it.
pub(crate) fn of_number(number: i32) -> Option<DType> {
    TYPES.iter().find(|(_, known, _)| *known == number).map(|(dtype, ..)| *dtype)
}

/// The type of this name, without its namespace.
pub(crate) fn of_name(name: &str) -> Option<DType> {
    TYPES.iter().find(|(.., known)| *known == name).map(|(dtype, ..)| *dtype)
}
