//! Writes floating-point numbers.
//!
//! TensorFlow Serving's rule (`util/json_tensor.cc`): six significant digits in the format of C's
//! `%g` if they round-trip, otherwise nine (seventeen for a double); then `.0` if there is neither a
//! point nor an exponent. NaN and infinities are bare words.
//!
//! The digits are computed rather than printed and read back. Scaling a float32 by a power of ten up
//! to 1e22 adds at most one rounding of a double, which determines the digits unless they are next
//! to a tie. Those few, and very large and small numbers, take the exact path.

use half::{bf16, f16};

use super::decimal;
use super::float_text::{
    FLOAT32_DIGITS, FLOAT64_DIGITS, FloatDigits, SHORT_DIGITS, layout, scientific,
};
use super::integer;
use super::number::POWERS;

/// The decimal exponent from which Python writes one.
const PYTHON_PRECISION: i32 = 16;

/// The doubles that Python writes without an exponent.
const PYTHON_PLAIN: std::ops::Range<f64> = 1e-4..1e16;

/// Appends a float32 in TensorFlow Serving's format.
#[inline]
pub fn float32(x: f32, out: &mut Vec<u8>) {
    // The bits of all finite floats above zero, in one comparison.
    const FINITE: std::ops::Range<u32> = 1..f32::INFINITY.to_bits();
    if integer::whole_float(x.into(), out) {
        return;
    }
    let magnitude = x.abs();
    if FINITE.contains(&magnitude.to_bits())
        && let Some(digits) = float32_digits(magnitude)
    {
        return digits.print::<16>(x.is_sign_negative(), out);
    }
    if let Some(word) = special(f64::from(x)) {
        return out.extend_from_slice(word);
    }
    exact_float32(x, out);
}

/// The digits of `x`, which is above zero; `None` if the computation cannot determine them.
#[inline(always)]
fn float32_digits(x: f32) -> Option<FloatDigits<9>> {
    let magnitude = f64::from(x);
    let exponent = decimal_exponent(magnitude)?;
    let scaled = shift_by(magnitude, 8 - exponent);
    let nine = rounded(scaled);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let digits = nine as u32;
    let last_three = digits % 1000;
    // Half the distance between two floats is at most 2^-24 of their value, or 60 in the ninth
    // digit. Only floats that close to a number of six digits can round-trip through it.
    if !(61..940).contains(&last_three) {
        let six = rounded(shift_by(magnitude, 5 - exponent));
        let back = shift_by(six, exponent - 5);
        if is_midpoint(back) {
            return None;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        if back as f32 == x {
            return Some(FloatDigits::nine(six as u32 * 1000, exponent, SHORT_DIGITS));
        }
    }
    // Rounding a number below 2^30 to a double is off by less than 2^-23: only next to a tie can
    // that change the ninth digit.
    if (scaled - nine).abs() > 0.5 - 1e-6 {
        return None;
    }
    Some(FloatDigits::nine(digits, exponent, FLOAT32_DIGITS))
}

/// Appends a double in TensorFlow Serving's format.
#[inline]
pub fn float64(x: f64, out: &mut Vec<u8>) {
    if integer::whole_float(x, out) {
        return;
    }
    let magnitude = x.abs();
    match decimal::seventeen_digits(magnitude) {
        Some((digits, exponent)) => finite64(x, digits, exponent, out),
        None => exact_float64(x, out),
    }
}

/// Appends a double whose magnitude has these 17 digits.
#[inline(always)]
fn finite64(x: f64, digits: u64, exponent: i32, out: &mut Vec<u8>) {
    // Half the distance between two doubles is at most 2^-53 of their value, or 12 in the last digit. Only doubles that
    // close to a number of six digits can round-trip through it.
    const NEAR_SIX: u64 = 12;
    const BELOW_SIX: u64 = 100_000_000_000;
    let rest = digits % BELOW_SIX;
    if rest <= NEAR_SIX || rest >= BELOW_SIX - NEAR_SIX {
        let six = (digits + BELOW_SIX / 2) / BELOW_SIX;
        let Some(back) = decimal::to_double(six, exponent - (SHORT_DIGITS - 1)) else {
            return exact_float64(x, out);
        };
        #[allow(clippy::cast_possible_truncation)] // At most a million.
        if back == x.abs() {
            let nine = six as u32 * 1000;
            return FloatDigits::nine(nine, exponent, SHORT_DIGITS).print::<16>(x < 0.0, out);
        }
    }
    FloatDigits::seventeen(digits, exponent).print::<24>(x < 0.0, out);
}

/// By the exact printing of the standard library: doubles that are very large or small, zero, or no number.
#[cold]
fn exact_float64(x: f64, out: &mut Vec<u8>) {
    if let Some(word) = special(x) {
        out.extend_from_slice(word);
        return;
    }
    if x.is_sign_negative() {
        out.push(b'-');
    }
    let magnitude = x.abs();
    let six = format!("{magnitude:.5e}");
    if six.parse() == Ok(magnitude) {
        return scientific(&six, SHORT_DIGITS, out);
    }
    scientific(&format!("{magnitude:.16e}"), FLOAT64_DIGITS, out);
}

/// Appends a half-precision float in the format of a float32.
pub fn float16(x: f16, out: &mut Vec<u8>) {
    float32(x.to_f32(), out);
}

/// Appends a bfloat16 float in the format of a float32.
pub fn bfloat16(x: bf16, out: &mut Vec<u8>) {
    float32(x.to_f32(), out);
}

/// Appends a double in the format of Python's `repr`: the shortest digits that round-trip, with an
/// exponent below 1e-4 and from 1e16 on. NaN and infinities are bare words, as in Python's `json`.
pub fn python(x: f64, out: &mut Vec<u8>) {
    if let Some(word) = special(x) {
        out.extend_from_slice(word);
        return;
    }
    if x.is_sign_negative() {
        out.push(b'-');
    }
    let mut buffer = zmij::Buffer::new();
    let shortest = buffer.format_finite(x.abs());
    if PYTHON_PLAIN.contains(&x.abs()) && !shortest.contains('e') {
        return out.extend_from_slice(shortest.as_bytes());
    }
    let (number, exponent) = shortest.split_once(['e', 'E']).unwrap_or((shortest, "0"));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let joined = [whole, fraction].concat();
    let digits = joined.trim_start_matches('0');
    let leading_zeros = joined.len() - digits.len();
    // The digits between the first significant one and the point.
    let shift = i32::try_from(whole.len()).unwrap_or(0) - 1;
    let shift = shift - i32::try_from(leading_zeros).unwrap_or(0);
    let exponent = exponent.parse::<i32>().unwrap_or(0) + shift;
    layout(digits.trim_end_matches('0').as_bytes(), exponent, PYTHON_PRECISION, out);
}

/// The text of zeros, infinities and NaN.
#[inline]
fn special(x: f64) -> Option<&'static [u8]> {
    if x != 0.0 && x.is_finite() {
        return None;
    }
    Some(match x {
        x if x.is_nan() => b"NaN",
        x if x == 0.0 && x.is_sign_negative() => b"-0.0",
        0.0 => b"0.0",
        x if x > 0.0 => b"Infinity",
        _ => b"-Infinity",
    })
}

/// The decimal exponent of the first significant digit of `x`, if scaling by it stays within
/// [`POWERS`].
#[inline]
fn decimal_exponent(x: f64) -> Option<i32> {
    // Narrow enough that nine digits on either side stay within 22 powers of ten.
    if !(1e-13..1e22).contains(&x) {
        return None;
    }
    #[allow(clippy::cast_possible_truncation)]
    let binary = (x.to_bits() >> 52) as i32 - 1023;
    // The binary exponent times log10(2), as a fraction: at most one too low, as the mantissa does
    // not count.
    let next = ((binary * 78_913) >> 18) + 1;
    let reached = if next >= 0 { x >= shift_by(1.0, next) } else { shift_by(x, -next) >= 1.0 };
    Some(if reached { next } else { next - 1 })
}

/// `x * 10^shift` in one correctly rounded operation; NaN past the exact powers.
#[inline]
fn shift_by(x: f64, shift: i32) -> f64 {
    let power = POWERS.get(shift.unsigned_abs() as usize).copied().unwrap_or(f64::NAN);
    if shift < 0 { x / power } else { x * power }
}

/// `x`, from 0 to 2^51, rounded to an integer, ties to even: after the addition no bits are left
/// for a fraction. (Not every x86-64 processor has an instruction for this, and a call of the
/// library function costs more than all the rest.)
#[inline]
fn rounded(x: f64) -> f64 {
    const NO_FRACTION: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    (x + NO_FRACTION) - NO_FRACTION
}

/// Whether a double is halfway between two float32s, where narrowing it may round twice.
#[inline]
fn is_midpoint(x: f64) -> bool {
    x.to_bits() & 0x1fff_ffff == 0x1000_0000
}

/// The exact path: Rust prints any number of correctly rounded digits.
#[cold]
fn exact_float32(x: f32, out: &mut Vec<u8>) {
    if x.is_sign_negative() {
        out.push(b'-');
    }
    let magnitude = x.abs();
    let six = format!("{magnitude:.5e}");
    if six.parse() == Ok(magnitude) {
        return scientific(&six, SHORT_DIGITS, out);
    }
    scientific(&format!("{magnitude:.8e}"), FLOAT32_DIGITS, out);
}

#[cfg(test)]
mod tests {
    use super::decimal::tests::random;
    use super::*;

    fn text32(x: f32) -> String {
        let mut out = Vec::new();
        float32(x, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    fn text64(x: f64) -> String {
        let mut out = Vec::new();
        float64(x, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    fn repr(x: f64) -> String {
        let mut out = Vec::new();
        python(x, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn floats_as_tensorflow_serving_prints_them() {
        let cases = [
            (0.1, "0.1"),
            (1.0 / 3.0, "0.333333343"),
            (1435774380.0, "1.43577434e+09"),
            (100000.0, "100000.0"),
            (1e6, "1e+06"),
            (-0.0, "-0.0"),
            (0.0, "0.0"),
            (16777216.0, "16777216.0"),
            (9e6, "9e+06"),
            (999999.0, "999999.0"),
            (0.0003, "0.0003"),
            (0.00003, "3e-05"),
            (555557.5, "555557.5"),
            (1e-7, "1e-07"),
            (123456.7, "123456.703"),
            (1234567.8, "1234567.75"),
            (3.4028234e38, "3.40282347e+38"),
            (1e-45, "1.4013e-45"),
            (33.333332, "33.3333321"),
            (2.5, "2.5"),
            (-3.0, "-3.0"),
            (1e22, "1e+22"),
            (f32::NAN, "NaN"),
            (f32::INFINITY, "Infinity"),
            (f32::NEG_INFINITY, "-Infinity"),
        ];
        for (x, want) in cases {
            assert_eq!(text32(x), want);
        }
    }

    #[test]
    fn ties_at_the_ninth_digit_go_to_the_even_one() {
        // 2^-13 is 1.220703125e-4 exactly: ten digits that end in 5.
        assert_eq!(text32(2f32.powi(-13)), "0.000122070312");
        assert_eq!(text32(3.0 * 2f32.powi(-13)), "0.000366210938");
        assert_eq!(text32(1073741824.0), "1.07374182e+09");
    }

    /// `%.6g`, or `%.9g` if that does not round-trip, by exact arithmetic.
    fn reference(x: f32) -> String {
        let mut out = Vec::new();
        exact_float32(x, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn the_quick_way_agrees_with_the_exact_one() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..60_000 {
            let random = random(&mut state);
            let any = f32::from_bits(random as u32);
            let unit = (random >> 40) as f32 / (1u32 << 24) as f32;
            let short = (random % 2_000_000) as f32 / 1000.0;
            for x in [any, unit, short, unit * 1e6, unit * 1e-6] {
                if x.is_finite() && x != 0.0 {
                    assert_eq!(text32(x), reference(x), "{x:?}");
                    assert_eq!(text32(x).parse::<f32>(), Ok(x));
                }
            }
        }
        for exponent in -149..=127 {
            for mantissa in [1u32, 3, 5, 7, 9, 11, 13, 4_194_305, 8_388_607, 16_777_215] {
                let x = mantissa as f32
                    * 2f32.powi(exponent.max(-126))
                    * 2f32.powi((exponent + 126).min(0));
                if x.is_finite() && x != 0.0 {
                    assert_eq!(text32(x), reference(x), "{x:?}");
                }
            }
        }
    }

    /// `%.6g`, or `%.17g` if that does not round-trip, by exact arithmetic.
    fn reference64(x: f64) -> String {
        let mut out = Vec::new();
        exact_float64(x, &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn the_quick_way_of_doubles_agrees_with_the_exact_one() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..60_000 {
            let random = random(&mut state);
            let any = f64::from_bits(random);
            let unit = (random >> 11) as f64 / (1u64 << 53) as f64;
            let six = ((random % 2_000_000) as f64 - 1e6) / 1000.0;
            let power = 10f64.powi((random >> 58) as i32 - 32);
            let (scaled, wide) = (six * power, unit * power);
            for x in [any, unit, six, scaled, wide, scaled.next_up(), scaled.next_down(), -unit] {
                if x.is_finite() && x != 0.0 {
                    assert_eq!(text64(x), reference64(x), "{x:?}");
                    assert_eq!(text64(x).parse::<f64>(), Ok(x));
                }
            }
        }
        for exponent in -300..=300 {
            for mantissa in [1, 999_999, 1_000_000, 123_456, 1_234_565, 99_999_999, 999_999_500] {
                let x: f64 = format!("{mantissa}e{exponent}").parse().expect("a number");
                for x in [x, -x, x.next_up(), x.next_down()] {
                    assert_eq!(text64(x), reference64(x), "{x:?}");
                }
            }
        }
    }

    #[test]
    fn doubles() {
        let cases = [
            (0.1 + 0.2, "0.30000000000000004"),
            (0.5, "0.5"),
            (1e22, "1e+22"),
            (5e-324, "4.94066e-324"),
            (1.0 / 3.0, "0.33333333333333331"),
            (123456789.0, "123456789.0"),
            (0.662, "0.662"),
            (1e16 + 2.0, "10000000000000002.0"),
            (1e17 + 16.0, "1.0000000000000002e+17"),
        ];
        for (x, want) in cases {
            assert_eq!(text64(x), want);
            assert_eq!(want.parse::<f64>(), Ok(x));
        }
    }

    #[test]
    fn python_repr() {
        let cases = [
            (f64::from(f32::from_bits(0x3f1d_945b)), "0.6155449748039246"),
            (1.0, "1.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1e15, "1000000000000000.0"),
            (-2.5, "-2.5"),
            (1.5e300, "1.5e+300"),
            (100.0, "100.0"),
            (5e-324, "5e-324"),
            (0.1, "0.1"),
            (1234.5678, "1234.5678"),
            (12043603897094727e-15, "12.043603897094727"),
        ];
        for (x, want) in cases {
            assert_eq!(repr(x), want);
        }
        // Digits behind a point that is moved, for all exponents.
        for exponent in -300..=290 {
            for mantissa in ["1", "123456789", "12345678901234567"] {
                let x: f64 = format!("{mantissa}e{exponent}").parse().expect("a number");
                for x in [x, -x, x.next_up()] {
                    assert_eq!(repr(x).parse(), Ok(x));
                    let plain = PYTHON_PLAIN.contains(&x.abs());
                    assert_eq!(repr(x).contains('e'), !plain, "{x:?}");
                    assert!(!plain || repr(x).contains('.'), "{x:?}");
                }
            }
        }
    }
}
