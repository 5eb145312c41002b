//! Checks of steps against the tensor specs of a signature.

use super::file::FileLine;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, TensorSpec};

/// The index of the tensor that a step names, or of the only one if it names none.
pub(super) fn position(
    name: Option<String>,
    specs: &[TensorSpec],
    location: &FileLine,
) -> Result<usize> {
    let Some(name) = name else {
        if specs.len() == 1 {
            return Ok(0);
        }
        let names = aliases(specs);
        return Err(location.error(format_args!("select one of {names} by its name")));
    };
    let found = specs.iter().position(|spec| spec.alias == name);
    found.ok_or_else(|| {
        location.error(format_args!("{name:?} not found; available: {}", aliases(specs)))
    })
}

fn aliases(specs: &[TensorSpec]) -> String {
    specs.iter().map(|spec| spec.alias.as_str()).collect::<Vec<_>>().join(", ")
}

/// Refuses empty and duplicate names.
pub(super) fn check_names(specs: &[TensorSpec], location: &FileLine) -> Result<()> {
    let mut names: Vec<&str> = specs.iter().map(|spec| spec.alias.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair.first() == pair.last()) {
        Some([name, _]) => {
            Err(location.error(format_args!("two tensors would have the name {name:?}")))
        }
        _ if names.contains(&"") => Err(location.error("a name is empty")),
        _ => Ok(()),
    }
}

/// Refuses a tensor without a real number type; `requirement` is what needs one.
pub(super) fn check_real(spec: &TensorSpec, location: &FileLine, requirement: &str) -> Result<()> {
    if spec.dtype().is_some_and(is_real) {
        return Ok(());
    }
    let (alias, dtype) = (&spec.alias, dtype_name(spec));
    Err(location.error(format_args!("{alias:?} is of type {dtype}, but {requirement}")))
}

/// Whether this is a dtype of real numbers.
fn is_real(dtype: DType) -> bool {
    match dtype {
        DType::Float | DType::Double | DType::Half | DType::BFloat16 => true,
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => true,
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => true,
        DType::String | DType::Bool | DType::Complex64 | DType::Complex128 => false,
    }
}

/// The name of a spec's dtype, for messages.
pub(super) fn dtype_name(spec: &TensorSpec) -> &'static str {
    spec.dtype().map_or("unknown", DType::name)
}
