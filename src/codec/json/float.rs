//! Prints floating-point numbers.
//!
//! TensorFlow Serving's rule (`util/json_tensor.cc`): six significant digits as C's `%g` prints
//! them if they read back as the same number, else nine (seventeen for a double); then `.0` if
//! that shows neither a point nor an exponent. NaN and infinities are bare words.
//!
//! Instead of printing and reading back, the digits are computed: a float32 scaled by a power of
//! ten up to 1e22 is off by at most one rounding of a double, which leaves the digits in no doubt
//! except next to a tie; those few, and very large and small numbers, take the exact way.

use half::{bf16, f16};

/// Powers of ten that a double holds exactly.
const EXACT: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// Appends `x` as TensorFlow Serving prints a float.
#[inline]
pub fn float32(x: f32, out: &mut Vec<u8>) {
    if let Some(word) = special(f64::from(x)) {
        out.extend_from_slice(word);
        return;
    }
    if x.is_sign_negative() {
        out.push(b'-');
    }
    let magnitude = f64::from(x.abs());
    let Some(exponent) = decimal_exponent(magnitude) else {
        return exact_float32(x.abs(), out);
    };
    // Six digits, if they are all it takes.
    let (six, six_exponent) = scaled(magnitude, exponent, 6);
    let six = six.round_ties_even();
    let back = unscaled(six, six_exponent, 6);
    #[allow(clippy::cast_possible_truncation)]
    let narrowed = back as f32;
    if is_midpoint(back) {
        return exact_float32(x.abs(), out);
    }
    if narrowed == x.abs() {
        return general(six, six_exponent, 6, out);
    }
    let (nine, nine_exponent) = scaled(magnitude, exponent, 9);
    // One rounding of a number below 2^30 is an error below 2^-23.
    if (nine.fract() - 0.5).abs() < 1e-6 {
        return exact_float32(x.abs(), out);
    }
    general(nine.round_ties_even(), nine_exponent, 9, out);
}

/// Appends `x` as TensorFlow Serving prints a double.
pub fn float64(x: f64, out: &mut Vec<u8>) {
    if let Some(word) = special(x) {
        out.extend_from_slice(word);
        return;
    }
    if x.is_sign_negative() {
        out.push(b'-');
    }
    let magnitude = x.abs();
    if let Some(exponent) = decimal_exponent(magnitude) {
        let (six, six_exponent) = scaled(magnitude, exponent, 6);
        let six = six.round_ties_even();
        if unscaled(six, six_exponent, 6) == magnitude {
            return general(six, six_exponent, 6, out);
        }
    }
    let six = format!("{magnitude:.5e}");
    if six.parse() == Ok(magnitude) {
        return scientific(&six, 6, out);
    }
    scientific(&format!("{magnitude:.16e}"), 17, out);
}

/// Appends a half-precision number, by the rule for a float.
pub fn half(x: f16, out: &mut Vec<u8>) {
    float32(x.to_f32(), out);
}

/// Appends a bfloat16 number, by the rule for a float.
pub fn brain(x: bf16, out: &mut Vec<u8>) {
    float32(x.to_f32(), out);
}

/// Appends `x` as Python's `repr` prints it: the shortest digits that read back; an exponent
/// below 1e-4 and from 1e16 on.
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
    // Digits before the point, digits after it, exponent.
    let (number, exponent) = shortest.split_once(['e', 'E']).unwrap_or((shortest, "0"));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let joined = [whole, fraction].concat();
    let digits = joined.trim_start_matches('0');
    let leading = joined.len() - digits.len();
    let place = |n: usize| i32::try_from(n).unwrap_or(0);
    let exponent = exponent.parse::<i32>().unwrap_or(0) + place(whole.len()) - 1 - place(leading);
    layout(digits.trim_end_matches('0').as_bytes(), exponent, 16, out);
}

/// The text of zeros and of what is no finite number.
#[inline]
fn special(x: f64) -> Option<&'static [u8]> {
    if x == 0.0 {
        return Some(if x.is_sign_negative() { b"-0.0" } else { b"0.0" });
    }
    if x.is_finite() {
        return None;
    }
    Some(match x {
        x if x.is_nan() => b"NaN",
        x if x > 0.0 => b"Infinity",
        _ => b"-Infinity",
    })
}

/// The exponent of the first significant digit of `x`, if scaling by it stays within [`EXACT`].
#[inline]
fn decimal_exponent(x: f64) -> Option<i32> {
    // Narrow enough that nine digits on either side stay within 22 powers of ten.
    if !(1e-13..1e22).contains(&x) {
        return None;
    }
    // log10(2) as a fraction; at most one too low, for lack of the mantissa.
    let binary = i32::try_from(x.to_bits() >> 52).unwrap_or(0) - 1023;
    let guess = (binary * 78_913) >> 18;
    let next = guess + 1;
    let reached = match usize::try_from(next.unsigned_abs()) {
        Ok(index) if next >= 0 => x >= EXACT.get(index).copied().unwrap_or(f64::INFINITY),
        Ok(index) => x * EXACT.get(index).copied().unwrap_or(0.0) >= 1.0,
        Err(_) => false,
    };
    Some(if reached { next } else { guess })
}

/// `x` scaled to have `digits` digits before the point, and its decimal exponent, which rounding
/// up may raise by one.
#[inline]
fn scaled(x: f64, exponent: i32, digits: i32) -> (f64, i32) {
    let shift = digits - 1 - exponent;
    let scaled = shift_by(x, shift);
    let limit = EXACT.get(usize::try_from(digits).unwrap_or(0)).copied();
    let limit = limit.unwrap_or(f64::INFINITY);
    if scaled.round_ties_even() >= limit {
        return (limit / 10.0, exponent + 1);
    }
    (scaled, exponent)
}

#[inline]
fn unscaled(scaled: f64, exponent: i32, digits: i32) -> f64 {
    shift_by(scaled, exponent - (digits - 1))
}

/// `x * 10^shift` in one correctly rounded operation; NaN past the exact powers.
#[inline]
fn shift_by(x: f64, shift: i32) -> f64 {
    let index = usize::try_from(shift.unsigned_abs()).unwrap_or(usize::MAX);
    let power = EXACT.get(index).copied().unwrap_or(f64::NAN);
    if shift < 0 { x / power } else { x * power }
}

/// Whether a double lies half-way between two floats, where narrowing it may have rounded twice.
#[inline]
fn is_midpoint(x: f64) -> bool {
    x.to_bits() & 0x1fff_ffff == 0x1000_0000
}

/// Prints `scaled`, an integer of `precision` digits, as `%g` would.
#[inline]
fn general(scaled: f64, exponent: i32, precision: i32, out: &mut Vec<u8>) {
    let mut buffer = itoa::Buffer::new();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let digits = buffer.format(scaled as u32).as_bytes();
    let zeros = digits.iter().rev().take_while(|&&digit| digit == b'0').count();
    let digits = digits.get(..digits.len() - zeros).unwrap_or(digits);
    layout(digits, exponent, precision, out);
}

/// The exact way: Rust prints as many correctly rounded digits as it is asked for.
#[cold]
fn exact_float32(x: f32, out: &mut Vec<u8>) {
    let six = format!("{x:.5e}");
    if six.parse() == Ok(x) {
        return scientific(&six, 6, out);
    }
    scientific(&format!("{x:.8e}"), 9, out);
}

/// Prints `d.ddde-7` as `%g` would.
fn scientific(text: &str, precision: i32, out: &mut Vec<u8>) {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let digits = mantissa.replace('.', "");
    let exponent = exponent.parse().unwrap_or(0);
    layout(digits.trim_end_matches('0').as_bytes(), exponent, precision, out);
}

/// Significant digits and the exponent of the first, as a decimal with a point, or with an
/// exponent below 1e-4 and from `10^precision` on.
#[inline]
fn layout(digits: &[u8], exponent: i32, precision: i32, out: &mut Vec<u8>) {
    let digits = if digits.is_empty() { b"0" } else { digits };
    if exponent < -4 || exponent >= precision {
        return with_exponent(digits, exponent, out);
    }
    let Ok(whole) = usize::try_from(exponent + 1) else {
        out.extend_from_slice(b"0.");
        let zeros = usize::try_from(-exponent - 1).unwrap_or(0);
        out.extend_from_slice(b"0000".get(..zeros).unwrap_or_default());
        out.extend_from_slice(digits);
        return;
    };
    if whole == 0 {
        out.extend_from_slice(b"0.");
        out.extend_from_slice(digits);
        return;
    }
    match digits.split_at_checked(whole) {
        Some((whole, fraction)) if !fraction.is_empty() => {
            out.extend_from_slice(whole);
            out.push(b'.');
            out.extend_from_slice(fraction);
        }
        _ => {
            out.extend_from_slice(digits);
            out.resize(out.len() + whole - digits.len(), b'0');
            out.extend_from_slice(b".0");
        }
    }
}

fn with_exponent(digits: &[u8], exponent: i32, out: &mut Vec<u8>) {
    let (first, rest) = digits.split_at(1);
    out.extend_from_slice(first);
    if !rest.is_empty() {
        out.push(b'.');
        out.extend_from_slice(rest);
    }
    out.extend_from_slice(if exponent < 0 { b"e-" } else { b"e+" });
    let magnitude = exponent.unsigned_abs();
    if magnitude < 10 {
        out.push(b'0');
    }
    out.extend_from_slice(itoa::Buffer::new().format(magnitude).as_bytes());
}

#[cfg(test)]
mod tests {
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
            (0.1, "0.1"), (1.0 / 3.0, "0.333333343"), (1435774380.0, "1.43577434e+09"),
            (100000.0, "100000.0"), (1e6, "1e+06"), (-0.0, "-0.0"), (0.0, "0.0"),
            (16777216.0, "16777216.0"), (9e6, "9e+06"), (999999.0, "999999.0"), (0.0003, "0.0003"),
            (0.00003, "3e-05"), (555557.5, "555557.5"), (1e-7, "1e-07"), (123456.7, "123456.703"),
            (1234567.8, "1234567.75"), (3.4028234e38, "3.40282347e+38"), (1e-45, "1.4013e-45"),
            (33.333332, "33.3333321"), (2.5, "2.5"), (-3.0, "-3.0"), (1e22, "1e+22"),
            (f32::NAN, "NaN"), (f32::INFINITY, "Infinity"), (f32::NEG_INFINITY, "-Infinity"),
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

    /// `%.6g`, or `%.9g` if that does not read back, by exact arithmetic.
    fn reference(x: f32) -> String {
        let mut out = if x.is_sign_negative() { b"-".to_vec() } else { Vec::new() };
        exact_float32(x.abs(), &mut out);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn the_quick_way_agrees_with_the_exact_one() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..60_000 {
            let random = next();
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
                let x = mantissa as f32 * 2f32.powi(exponent.max(-126)) * 2f32.powi((exponent + 126).min(0));
                if x.is_finite() && x != 0.0 {
                    assert_eq!(text32(x), reference(x), "{x:?}");
                }
            }
        }
    }

    #[test]
    fn doubles() {
        let cases = [
            (0.1 + 0.2, "0.30000000000000004"), (0.5, "0.5"), (1e22, "1e+22"), (5e-324, "4.94066e-324"),
            (1.0 / 3.0, "0.33333333333333331"), (123456789.0, "123456789.0"), (0.662, "0.662"),
            (1e16 + 2.0, "10000000000000002.0"), (1e17 + 16.0, "1.0000000000000002e+17"),
        ];
        for (x, want) in cases {
            assert_eq!(text64(x), want);
            assert_eq!(want.parse::<f64>(), Ok(x));
        }
    }

    #[test]
    fn python_repr() {
        let cases = [
            (f64::from(0.61554497f32), "0.6155449748039246"), (1.0, "1.0"), (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"), (0.0001, "0.0001"), (0.00001, "1e-05"),
            (1e15, "1000000000000000.0"), (-2.5, "-2.5"), (1.5e300, "1.5e+300"), (100.0, "100.0"),
            (5e-324, "5e-324"), (0.1, "0.1"), (1234.5678, "1234.5678"), (12043603897094727e-15, "12.043603897094727"),
        ];
        for (x, want) in cases {
            assert_eq!(repr(x), want);
        }
    }
}
