//! Element types of PyTorch, by their numbers (`c10::ScalarType`) and names (`at::kFloat`).

use tensorserve_tensor::DType;

/// The number and the name of a type in PyTorch; `None` if PyTorch does not have it.
fn scalar_type(dtype: DType) -> Option<(i32, &'static str)> {
    match dtype {
        DType::UInt8 => Some((0, "kByte")),
        DType::Int8 => Some((1, "kChar")),
        DType::Int16 => Some((2, "kShort")),
        DType::Int32 => Some((3, "kInt")),
        DType::Int64 => Some((4, "kLong")),
        DType::Half => Some((5, "kHalf")),
        DType::Float => Some((6, "kFloat")),
        DType::Double => Some((7, "kDouble")),
        DType::Complex64 => Some((9, "kComplexFloat")),
        DType::Complex128 => Some((10, "kComplexDouble")),
        DType::Bool => Some((11, "kBool")),
        DType::BFloat16 => Some((15, "kBFloat16")),
        DType::UInt16 => Some((27, "kUInt16")),
        DType::UInt32 => Some((28, "kUInt32")),
        DType::UInt64 => Some((29, "kUInt64")),
        DType::String => None,
    }
}

fn find(is_meant: impl Fn(i32, &str) -> bool) -> Option<DType> {
    let is_it = |dtype: &DType| scalar_type(*dtype).is_some_and(|(no, name)| is_meant(no, name));
    DType::ALL.into_iter().find(is_it)
}

/// The number of a type; `None` if PyTorch does not have it.
pub(crate) fn number(dtype: DType) -> Option<i32> {
    scalar_type(dtype).map(|(number, _)| number)
}

/// The type of this number, if tensorserve has it.
pub(crate) fn of_number(number: i32) -> Option<DType> {
    find(|known, _| known == number)
}

/// The type of this name, without its namespace.
pub(crate) fn of_name(name: &str) -> Option<DType> {
    find(|_, known| known == name)
}
