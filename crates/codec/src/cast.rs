//! Numbers of one type as those of another.

use half::{bf16, f16};

use super::json::number::Number;
use super::json::{Brain, Half, Scalar};
use tensorserve_tensor::{DType, Tensor, aligned_vec};

/// The numbers of `tensor` as `dtype`, just as if each had come as JSON: integers become floats,
/// floats are rounded, but a float is never an integer. `None` if a number does not fit, or one of
/// the types is no number.
#[must_use]
pub fn cast(tensor: &Tensor, dtype: DType) -> Option<Tensor> {
    match dtype {
        DType::Float => to::<f32>(tensor),
        DType::Double => to::<f64>(tensor),
        DType::Half => to::<Half>(tensor),
        DType::BFloat16 => to::<Brain>(tensor),
        DType::Int8 => to::<i8>(tensor),
        DType::Int16 => to::<i16>(tensor),
        DType::Int32 => to::<i32>(tensor),
        DType::Int64 => to::<i64>(tensor),
        DType::UInt8 => to::<u8>(tensor),
        DType::UInt16 => to::<u16>(tensor),
        DType::UInt32 => to::<u32>(tensor),
        DType::UInt64 => to::<u64>(tensor),
        DType::Bool | DType::Complex64 | DType::Complex128 | DType::String => None,
    }
}

fn to<T: Scalar>(tensor: &Tensor) -> Option<Tensor> {
    let float = Number::Float;
    match tensor.dtype() {
        DType::Float => each::<T, 4>(tensor, |b| float(f64::from(f32::from_ne_bytes(b)))),
        DType::Double => each::<T, 8>(tensor, |b| float(f64::from_ne_bytes(b))),
        DType::Half => each::<T, 2>(tensor, |b| float(f16::from_ne_bytes(b).to_f64())),
        DType::BFloat16 => each::<T, 2>(tensor, |b| float(bf16::from_ne_bytes(b).to_f64())),
        DType::Int8 => each::<T, 1>(tensor, |b| signed(i64::from(i8::from_ne_bytes(b)))),
        DType::Int16 => each::<T, 2>(tensor, |b| signed(i64::from(i16::from_ne_bytes(b)))),
        DType::Int32 => each::<T, 4>(tensor, |b| signed(i64::from(i32::from_ne_bytes(b)))),
        DType::Int64 => each::<T, 8>(tensor, |b| signed(i64::from_ne_bytes(b))),
        DType::UInt8 => each::<T, 1>(tensor, |[b]| Number::Unsigned(u64::from(b))),
        DType::UInt16 => {
            each::<T, 2>(tensor, |b| Number::Unsigned(u64::from(u16::from_ne_bytes(b))))
        }
        DType::UInt32 => {
            each::<T, 4>(tensor, |b| Number::Unsigned(u64::from(u32::from_ne_bytes(b))))
        }
        DType::UInt64 => each::<T, 8>(tensor, |b| Number::Unsigned(u64::from_ne_bytes(b))),
        DType::Bool | DType::Complex64 | DType::Complex128 | DType::String => None,
    }
}

fn signed(value: i64) -> Number {
    u64::try_from(value).map_or(Number::Negative(value), Number::Unsigned)
}

fn each<T: Scalar, const SIZE: usize>(
    tensor: &Tensor,
    number: impl Fn([u8; SIZE]) -> Number,
) -> Option<Tensor> {
    let elements = tensor.bytes().as_chunks::<SIZE>().0;
    let mut values = aligned_vec::<T>(elements.len());
    for element in elements {
        values.push(T::exactly(number(*element))?);
    }
    Tensor::from_vec(tensor.shape().clone(), values).ok()
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
}
