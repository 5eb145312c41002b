//! Casts between numeric dtypes.

use half::{bf16, f16};

use super::json::java::{number_text, single_text};
use super::json::number::Number;
use super::json::{Bf16, Half, Scalar};
use tensorserve_tensor::{DType, NumberTexts, StringsBuilder, Tensor, aligned_vec};

/// Casts a tensor to `dtype` by the rules for JSON numbers: integers become floats and floats are
/// rounded, but a float never becomes an integer. Booleans become 0 and 1. `None` if a value does not fit, or one of the
/// dtypes is not numeric.
#[must_use]
pub fn cast(tensor: &Tensor, dtype: DType) -> Option<Tensor> {
    match dtype {
        DType::Float => cast_to::<f32>(tensor),
        DType::Double => cast_to::<f64>(tensor),
        DType::Half => cast_to::<Half>(tensor),
        DType::BFloat16 => cast_to::<Bf16>(tensor),
        DType::Int8 => cast_to::<i8>(tensor),
        DType::Int16 => cast_to::<i16>(tensor),
        DType::Int32 => cast_to::<i32>(tensor),
        DType::Int64 => cast_to::<i64>(tensor),
        DType::UInt8 => cast_to::<u8>(tensor),
        DType::UInt16 => cast_to::<u16>(tensor),
        DType::UInt32 => cast_to::<u32>(tensor),
        DType::UInt64 => cast_to::<u64>(tensor),
        DType::Bool | DType::Complex64 | DType::Complex128 | DType::String => None,
    }
}

fn cast_to<T: Scalar>(tensor: &Tensor) -> Option<Tensor> {
    let float = Number::Float;
    let unsigned = Number::Unsigned;
    match tensor.dtype() {
        DType::Float => cast_each::<T, 4>(tensor, |b| float(f64::from(f32::from_ne_bytes(b)))),
        DType::Double => cast_each::<T, 8>(tensor, |b| float(f64::from_ne_bytes(b))),
        DType::Half => cast_each::<T, 2>(tensor, |b| float(f16::from_ne_bytes(b).to_f64())),
        DType::BFloat16 => cast_each::<T, 2>(tensor, |b| float(bf16::from_ne_bytes(b).to_f64())),
        DType::Int8 => cast_each::<T, 1>(tensor, |b| signed(i64::from(i8::from_ne_bytes(b)))),
        DType::Int16 => cast_each::<T, 2>(tensor, |b| signed(i64::from(i16::from_ne_bytes(b)))),
        DType::Int32 => cast_each::<T, 4>(tensor, |b| signed(i64::from(i32::from_ne_bytes(b)))),
        DType::Int64 => cast_each::<T, 8>(tensor, |b| signed(i64::from_ne_bytes(b))),
        DType::UInt8 => cast_each::<T, 1>(tensor, |[b]| unsigned(u64::from(b))),
        DType::UInt16 => cast_each::<T, 2>(tensor, |b| unsigned(u64::from(u16::from_ne_bytes(b)))),
        DType::UInt32 => cast_each::<T, 4>(tensor, |b| unsigned(u64::from(u32::from_ne_bytes(b)))),
        DType::UInt64 => cast_each::<T, 8>(tensor, |b| unsigned(u64::from_ne_bytes(b))),
        DType::Bool => cast_each::<T, 1>(tensor, |[b]| unsigned(u64::from(b != 0))),
        DType::Complex64 | DType::Complex128 | DType::String => None,
    }
}

fn signed(value: i64) -> Number {
    u64::try_from(value).map_or(Number::Negative(value), Number::Unsigned)
}

/// Casts every element, whose bytes `number` reads.
fn cast_each<T: Scalar, const SIZE: usize>(
    tensor: &Tensor,
    number: impl Fn([u8; SIZE]) -> Number,
) -> Option<Tensor> {
    let elements = tensor.bytes().as_chunks::<SIZE>().0;
    let mut values = aligned_vec::<T>(elements.len());
    for element in elements {
        values.push(T::from_number(number(*element))?);
    }
    Tensor::from_vec(tensor.shape().clone(), values).ok()
}

/// The texts of a tensor of numbers, of which NaN is a missing value; `None` if one has none.
#[must_use]
pub fn tensor_texts(tensor: &Tensor, texts: NumberTexts) -> Option<Tensor> {
    let mut strings = StringsBuilder::default();
    let is_single = tensor.dtype() == DType::Float && texts == NumberTexts::Doubles;
    match tensor.dtype() {
        DType::Float | DType::Double => {
            let doubles = cast(tensor, DType::Double)?;
            for value in doubles.values::<f64>()? {
                match value {
                    value if value.is_nan() => strings.push(b""),
                    value if is_single => strings.push(single_text(*value).as_bytes()),
                    value => strings.push(number_text(Number::Float(*value), texts)?.as_bytes()),
                }
            }
        }
        // Complex numbers and strings cannot be cast, and have no texts.
        DType::Half
        | DType::BFloat16
        | DType::Int8
        | DType::Int16
        | DType::Int32
        | DType::Int64
        | DType::UInt8
        | DType::UInt16
        | DType::UInt32
        | DType::UInt64
        | DType::Bool
        | DType::Complex64
        | DType::Complex128
        | DType::String => {
            let integers = cast(tensor, DType::Int64)?;
            for value in integers.values::<i64>()? {
                strings.push(number_text(Number::Negative(*value), texts)?.as_bytes());
            }
        }
    }
    Tensor::from_strings(tensor.shape().clone(), strings).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_tensor::{AlignedVec, Element, Shape};

    fn tensor<T: Element>(values: &[T]) -> Tensor {
        let values = AlignedVec::from_slice(0, values);
        Tensor::from_vec(Shape::vector(values.len()), values).expect("a vector")
    }

    #[test]
    fn numbers_keep_their_values() {
        let floats = cast(&tensor(&[0.5f64, 1e300, -3.0]), DType::Float).expect("floats");
        assert_eq!(floats.values::<f32>(), Some(&[0.5, f32::INFINITY, -3.0][..]));
        assert_eq!(floats.shape().dims(), [3]);
        let floats = cast(&tensor(&[-1i64, 2]), DType::Float).expect("floats");
        assert_eq!(floats.values::<f32>(), Some(&[-1.0, 2.0][..]));
        let whole = cast(&tensor(&[-1i64, 2]), DType::Int32).expect("integers");
        assert_eq!(whole.values::<i32>(), Some(&[-1, 2][..]));
        let large = cast(&tensor(&[u64::MAX]), DType::UInt64).expect("integers");
        assert_eq!(large.values::<u64>(), Some(&[u64::MAX][..]));
    }

    #[test]
    fn what_does_not_fit_is_none() {
        assert!(cast(&tensor(&[1.0f32]), DType::Int64).is_none());
        assert!(cast(&tensor(&[1i64 << 40]), DType::Int32).is_none());
        assert!(cast(&tensor(&[-1i32]), DType::UInt64).is_none());
        assert!(cast(&tensor(&[1i32]), DType::Bool).is_none());
    }

    fn texts<T: Element>(values: &[T], style: NumberTexts) -> Option<Vec<String>> {
        let values = AlignedVec::from_slice(0, values);
        let tensor = Tensor::from_vec(Shape::vector(values.len()), values).expect("a vector");
        let made = tensor_texts(&tensor, style)?;
        let text = |text: &[u8]| String::from_utf8(text.to_vec()).expect("UTF-8");
        Some(made.strings().expect("strings").iter().map(text).collect())
    }

    #[test]
    fn numbers_become_the_texts_of_their_column() {
        let (integers, doubles) = (NumberTexts::Integers, NumberTexts::Doubles);
        let of = |all: &[&str]| Some(all.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
        assert_eq!(texts(&[1i64, -10_115], integers), of(&["1", "-10115"]));
        assert_eq!(texts(&[1i32], doubles), of(&["1.0"]));
        assert_eq!(texts(&[1.0f64, f64::NAN], integers), of(&["1", ""]));
        assert_eq!(texts(&[0.1f64, 2.0, 1e7], doubles), of(&["0.1", "2.0", "1.0E7"]));
        assert_eq!(texts(&[0.1f32], doubles), of(&["0.1"]));
        assert_eq!(texts(&[0.5f64], integers), None);
        assert_eq!(texts(&[f64::INFINITY], integers), None);
        assert_eq!(number_text(Number::Unsigned(u64::MAX), integers), Some(u64::MAX.to_string()));
    }
}
