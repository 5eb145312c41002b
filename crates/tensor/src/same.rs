//! Whether two lists of outputs are equal except for rounding.

use crate::{DType, Tensor};

/// How much outputs may differ and still be equal, as a fraction of the largest finite magnitude in
/// that output. Integers, booleans, complex numbers and strings must be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// Outputs of one request, alone and in a batch: kernels add up in another order for another
    /// number of rows. Some tens of units in the last place; for 2-byte floats, which are mostly
    /// computed as floats of 4 bytes and rounded at the end, five.
    Batches,
    /// The same on a GPU, whose matrix products round floats of 4 bytes to the 10 bits of TensorFloat-32 first, as many
    /// as a float of 2 bytes has.
    BatchesOnGpu,
    /// Outputs of two versions of a model.
    Versions,
    /// None: equal to the bit, but for a NaN, which may be any other NaN.
    None,
}

impl Tolerance {
    /// The fraction for tensors of this type.
    #[must_use]
    pub fn of(self, dtype: DType) -> f64 {
        let (batches, on_gpu, versions) = match dtype {
            DType::BFloat16 => (4e-2, 4e-2, 2e-2),
            DType::Half => (5e-3, 5e-3, 2e-2),
            // Many doubles are results of type float, cast at the end.
            DType::Float | DType::Double => (1e-5, 5e-3, 1e-3),
            // Compared to the bit.
            DType::Int8
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
            | DType::String => (0.0, 0.0, 0.0),
        };
        match self {
            Tolerance::Batches => batches,
            Tolerance::BatchesOnGpu => on_gpu,
            Tolerance::Versions => versions,
            Tolerance::None => 0.0,
        }
    }
}

/// Whether the outputs `b` are those of `a` except for rounding.
pub fn same_outputs(a: &[Tensor], b: &[Tensor], tolerance: Tolerance) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_tensor(a, b, tolerance))
}

fn same_tensor(a: &Tensor, b: &Tensor, tolerance: Tolerance) -> bool {
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return false;
    }
    if let (Some(a), Some(b)) = (a.strings(), b.strings()) {
        return a.iter().eq(b.iter());
    }
    if a.bytes() == b.bytes() {
        return true;
    }
    match (floats(a), floats(b)) {
        (Some(x), Some(y)) if tolerance == Tolerance::None => are_equal(&x, &y),
        (Some(x), Some(y)) => close(&x, &y, tolerance.of(a.dtype())),
        _ => false,
    }
}

/// What is different in `b` from `a` beyond the tolerance, in words; `None` if nothing is.
pub fn difference(a: &Tensor, b: &Tensor, tolerance: Tolerance) -> Option<String> {
    if same_tensor(a, b, tolerance) {
        return None;
    }
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return Some(format!("{b:?} instead of {a:?}"));
    }
    let (Some(x), Some(y)) = (floats(a), floats(b)) else {
        return Some("other values".to_owned());
    };
    let allowed = tolerance.of(a.dtype()) * magnitude(&x);
    let mut pairs = x.iter().zip(&y).filter(|(x, y)| !is_equal(**x, **y));
    let (x, y) = pairs.find(|(x, y)| allowed == 0.0 || distance(**x, **y) > allowed)?;
    Some(format!("{y:e} instead of {x:e}"))
}

/// Whether values are equal to the bit, or both no numbers.
fn is_equal(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn are_equal(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(*a, *b))
}

/// The elements of a real floating-point tensor.
pub fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    let mut all = Vec::with_capacity(tensor.shape().elements().ok()?);
    tensor.every_float(|value| {
        all.push(value);
        true
    })?;
    Some(all)
}

fn close(a: &[f64], b: &[f64], tolerance: f64) -> bool {
    let allowed = tolerance * magnitude(a);
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| distance(a, b) <= allowed)
}

/// The largest finite magnitude of values.
fn magnitude(values: &[f64]) -> f64 {
    values.iter().filter(|x| x.is_finite()).fold(0f64, |most, x| most.max(x.abs()))
}

/// How far two values are apart; NaN is NaN, and infinitely far from everything else.
fn distance(a: f64, b: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    let distance = (a - b).abs();
    if distance.is_nan() { f64::INFINITY } else { distance }
}

/// The largest distance between values of as many `b`, as a fraction of the largest finite magnitude in `a`.
pub fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    let largest = a.iter().zip(b).fold(0f64, |most, (&a, &b)| most.max(distance(a, b)));
    if largest == 0.0 { 0.0 } else { largest / magnitude(a) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Element, Shape, StringsBuilder, aligned_vec};

    fn pair<T: Element>(first: T, second: T) -> Vec<Tensor> {
        let mut values = aligned_vec(2);
        values.push(first);
        values.push(second);
        vec![Tensor::from_vec(Shape::vector(2), values).expect("tensor")]
    }

    fn text(text: &str) -> Vec<Tensor> {
        let mut builder = StringsBuilder::default();
        builder.push(text.as_bytes());
        vec![Tensor::from_strings(Shape::vector(1), builder).expect("tensor")]
    }

    #[test]
    fn batches_may_differ_by_rounding_only() {
        let same = |a: &[Tensor], b: &[Tensor]| same_outputs(a, b, Tolerance::Batches);
        let float = |x: f32| pair(100.0, x);
        assert!(same(&float(1.0), &float(1.000_9)));
        assert!(!same(&float(1.0), &float(1.001_1)));
        assert!(same(&pair(100.0, 1.0), &pair(100.0, 1.000_9)), "doubles");
        assert!(same(&float(f32::NAN), &float(f32::NAN)));
        assert!(!same(&float(1.0), &float(f32::NAN)));
        assert!(!same(&pair(1i32, 2), &pair(1i32, 3)));
        assert!(!same(&text("a"), &text("b")));
        assert!(same(&text("a"), &text("a")));
    }

    #[test]
    fn without_tolerance_all_bits_count_but_those_of_a_nan() {
        let negative_nan = f32::from_bits(f32::NAN.to_bits() | 1 << 31);
        let equal = [(1.0, 1.0), (f32::NAN, negative_nan), (f32::INFINITY, f32::INFINITY)];
        for (a, b) in equal {
            assert!(same_outputs(&pair(5.0, a), &pair(5.0, b), Tolerance::None), "{a} {b}");
            assert_eq!(difference(&pair(5.0, a)[0], &pair(5.0, b)[0], Tolerance::None), None);
        }
        for (a, b) in [(1.0, 1.000_000_1f32), (0.0, -0.0), (1.0, f32::NAN), (f32::NAN, 1.0)] {
            assert!(!same_outputs(&pair(5.0, a), &pair(5.0, b), Tolerance::None), "{a} {b}");
            let what = difference(&pair(5.0, a)[0], &pair(5.0, b)[0], Tolerance::None);
            assert!(what.is_some_and(|what| what.contains("instead of")), "{a} {b}");
        }
        assert!(!same_outputs(&pair(1i32, 2), &pair(1i32, 3), Tolerance::None));
        let what = difference(&pair(100f32, 1.0)[0], &pair(100f32, 1.5)[0], Tolerance::Versions);
        assert_eq!(what.as_deref(), Some("1.5e0 instead of 1e0"));
    }

    #[test]
    fn versions_may_differ_more() {
        let (a, b) = (pair(100f32, 1.0), pair(100f32, 1.09));
        assert!(same_outputs(&a, &b, Tolerance::Versions));
        assert!(!same_outputs(&a, &b, Tolerance::Batches));
    }

    #[test]
    fn floats_of_a_gpu_may_differ_as_those_of_ten_bits() {
        let (a, b, c) = (pair(100f32, 1.0), pair(100f32, 1.4), pair(100f32, 1.6));
        assert!(same_outputs(&a, &b, Tolerance::BatchesOnGpu));
        assert!(!same_outputs(&a, &c, Tolerance::BatchesOnGpu));
        assert!(!same_outputs(&a, &b, Tolerance::Batches));
    }
}
