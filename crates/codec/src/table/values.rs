//! The values of a column or of a matrix.

use crate::csv;
use tensorserve_tensor::error::{Error, Result};
use tensorserve_tensor::{
    AlignedVec, DType, Element, STRING_OVERHEAD, Shape, StringsBuilder, Tensor, aligned_vec,
};

/// Values of one type, row by row.
pub(super) enum Values {
    Float(AlignedVec<f32>),
    Double(AlignedVec<f64>),
    Text(StringsBuilder),
    /// Integers and truth values, of which none may be missing.
    Integers(DType, Vec<i64>),
}

impl Values {
    /// Whether fields can have values of this type.
    pub(super) fn can_be(dtype: DType) -> bool {
        match dtype {
            DType::Float
            | DType::Double
            | DType::String
            | DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64
            | DType::Bool => true,
            DType::Half | DType::BFloat16 | DType::Complex64 | DType::Complex128 => false,
        }
    }

    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::Float => Values::Float(aligned_vec(0)),
            DType::Double => Values::Double(aligned_vec(0)),
            DType::String => Values::Text(StringsBuilder::default()),
            DType::Int8
            | DType::Int16
            | DType::Int32
            | DType::Int64
            | DType::UInt8
            | DType::UInt16
            | DType::UInt32
            | DType::UInt64
            | DType::Bool
            | DType::Half
            | DType::BFloat16
            | DType::Complex64
            | DType::Complex128 => Values::Integers(dtype, Vec::new()),
        }
    }

    /// Appends a field; `None` if it is not of the type.
    pub(super) fn push(&mut self, field: &[u8]) -> Option<()> {
        match self {
            Values::Float(values) => values.push(narrowed(number(field)?)),
            Values::Double(values) => values.push(number(field)?),
            Values::Text(values) => values.push(field),
            Values::Integers(DType::Bool, values) => {
                values.push(integer(field).filter(|value| matches!(value, 0 | 1))?);
            }
            Values::Integers(_, values) => values.push(integer(field)?),
        }
        Some(())
    }

    /// What is not of the type, for an error.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Values::Float(_) | Values::Double(_) => "a number",
            Values::Text(_) => "text",
            Values::Integers(DType::Bool, _) => "true or false",
            Values::Integers(..) => "an integer",
        }
    }

    /// The bytes that a field takes.
    pub(super) fn size_of(&self, field: &[u8]) -> usize {
        match self {
            Values::Float(_) => size_of::<f32>(),
            Values::Double(_) => size_of::<f64>(),
            Values::Text(_) => field.len() + STRING_OVERHEAD,
            // And in the tensor.
            Values::Integers(..) => size_of::<i64>() * 2,
        }
    }

    /// Moves the last values, one for each of `places`, to these places among them.
    pub(super) fn reorder_last(&mut self, places: &[usize]) {
        match self {
            Values::Float(values) => reorder(values, places),
            Values::Double(values) => reorder(values, places),
            // A matrix has no others.
            Values::Text(_) | Values::Integers(..) => {}
        }
    }

    pub(super) fn into_tensor(self, shape: Shape) -> Result<Tensor> {
        match self {
            Values::Float(values) => Tensor::from_vec(shape, values),
            Values::Double(values) => Tensor::from_vec(shape, values),
            Values::Text(values) => Tensor::from_strings(shape, values),
            Values::Integers(dtype, values) => match dtype {
                DType::Bool => Tensor::from_bools(shape, converted(&values)?),
                DType::Int8 => Tensor::from_vec(shape, converted::<i8>(&values)?),
                DType::Int16 => Tensor::from_vec(shape, converted::<i16>(&values)?),
                DType::Int32 => Tensor::from_vec(shape, converted::<i32>(&values)?),
                DType::UInt8 => Tensor::from_vec(shape, converted::<u8>(&values)?),
                DType::UInt16 => Tensor::from_vec(shape, converted::<u16>(&values)?),
                DType::UInt32 => Tensor::from_vec(shape, converted::<u32>(&values)?),
                DType::UInt64 => Tensor::from_vec(shape, converted::<u64>(&values)?),
                DType::Int64
                | DType::Float
                | DType::Double
                | DType::String
                | DType::Half
                | DType::BFloat16
                | DType::Complex64
                | DType::Complex128 => Tensor::from_vec(shape, converted::<i64>(&values)?),
            },
        }
    }
}

fn reorder<T: Copy>(values: &mut AlignedVec<T>, places: &[usize]) {
    let start = values.len().saturating_sub(places.len());
    let fields = values.get(start..).unwrap_or_default().to_vec();
    for (value, place) in fields.into_iter().zip(places) {
        if let Some(slot) = values.get_mut(start + place) {
            *slot = value;
        }
    }
}

fn converted<T: Element + TryFrom<i64>>(values: &[i64]) -> Result<AlignedVec<T>> {
    let mut all = aligned_vec(values.len());
    for value in values {
        let fits = T::try_from(*value);
        all.push(
            fits.map_err(|_| Error::invalid(format!("{value} is out of the range of the type")))?,
        );
    }
    Ok(all)
}

#[allow(clippy::cast_possible_truncation)]
const fn narrowed(number: f64) -> f32 {
    number as f32
}

/// The number in a field, as pandas reads it: NaN for a missing one, 1 and 0 for truth values; `None` for other
/// text.
fn number(field: &[u8]) -> Option<f64> {
    let text = field.trim_ascii();
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed
        .or_else(|| csv::is_missing(text).then_some(f64::NAN))
        .or_else(|| truth(text).map(f64::from))
}

/// The integer in a field; 1 and 0 for truth values.
fn integer(field: &[u8]) -> Option<i64> {
    let text = field.trim_ascii();
    let parsed = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.or_else(|| truth(text).map(i64::from))
}

fn truth(text: &[u8]) -> Option<u8> {
    match text {
        _ if text.eq_ignore_ascii_case(b"true") => Some(1),
        _ if text.eq_ignore_ascii_case(b"false") => Some(0),
        _ => None,
    }
}

/// Whether a field is neither a number nor missing.
pub(super) fn is_text(field: &[u8]) -> bool {
    number(field).is_none()
}
