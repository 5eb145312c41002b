//! Numbers as Java has them.

/// `x` as an `int` of Java: without its fraction, within the range; 0 for NaN.
#[allow(clippy::cast_possible_truncation)] // That is what it does.
pub(super) fn java_int(x: f64) -> i32 {
    x as i32
}

/// `Math.min`: NaN if one is NaN.
pub(super) fn java_min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

/// `Math.max`: NaN if one is NaN.
pub(super) fn java_max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

/// A size as a number.
#[allow(clippy::cast_precision_loss)] // Sizes are below 2^53.
pub(super) fn float(size: usize) -> f64 {
    size as f64
}

/// The multiplier, the increment and the modulus of `java.util.Random`.
const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const INCREMENT: u64 = 0xB;
const MASK: u64 = (1 << 48) - 1;

/// The first `nextDouble` of `java.util.Random` with this seed.
pub(super) fn java_random(seed: u64) -> f64 {
    let mut state = (seed ^ MULTIPLIER) & MASK;
    let mut next = |bits: u32| {
        state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & MASK;
        state >> (48 - bits)
    };
    let high = next(26) << 27;
    let bits = high + next(27);
    #[allow(clippy::cast_precision_loss)] // 53 bits.
    let bits = bits as f64;
    bits / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values: `new java.util.Random(seed).nextDouble()` of Java 17.
    #[test]
    fn random_numbers_are_those_of_java() {
        for (seed, expected) in [(0_i64, 0.730_967_787_376_657), (42, 0.727_563_680_032_868_1)] {
            assert!((java_random(seed.cast_unsigned()) - expected).abs() < 1e-15, "{seed}");
        }
        let negative = java_random((-9_876_543_210_i64).cast_unsigned());
        assert!((0.0..1.0).contains(&negative));
    }

    #[test]
    fn conversions_are_those_of_java() {
        for (x, int) in [(f64::NAN, 0), (1e300, i32::MAX), (-1e300, i32::MIN), (-1.9, -1)] {
            assert_eq!(java_int(x), int);
        }
        assert!(java_min(f64::NAN, 1.0).is_nan() && java_max(1.0, f64::NAN).is_nan());
    }
}
