//! Floats and integers of every width.

use std::fmt::Debug;

use half::{bf16, f16};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use proptest::test_runner::TestCaseResult;
use serde_json::Value;
use tensorserve_codec::json::float;
use tensorserve_codec::json::number::Number;
use tensorserve_codec::json::scan::{Cursor, Syntax, SyntaxError};
use tensorserve_codec::json::write::{Floats, JsonLayout, Style, Texts};
use tensorserve_tensor::{AlignedVec, DType, Element, Shape, Tensor};

use crate::{SERDE_JSON_ULPS, read_tensor, ulps_apart, write_tensor, written};

/// A valid number token: integers up to far beyond 64 bits, long fractions, and exponents far
/// beyond those of a double.
pub(crate) fn number_token() -> impl Strategy<Value = String> {
    Union::new_weighted(vec![
        (4, "-?(0|[1-9][0-9]{0,24})".boxed()),
        (4, "-?(0|[1-9][0-9]{0,9})\\.[0-9]{1,26}".boxed()),
        (2, "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,30})?[eE][-+]?[0-9]{1,3}".boxed()),
        (1, "-?0\\.0{0,40}[0-9]{1,20}([eE][-+]?[0-9]{1,20})?".boxed()),
        (1, "-?[1-9][0-9]{0,400}(\\.[0-9]{0,400}[1-9])?".boxed()),
        (2, edge_integer().prop_map(|n| n.to_string()).boxed()),
        (2, midpoint_of_doubles().boxed()),
    ])
}

/// The exact decimal of a number halfway between two doubles, or next to it: the hardest to round.
fn midpoint_of_doubles() -> impl Strategy<Value = String> {
    // Integers from 2^54 on are 4 or more apart, so their midpoints are integers, too.
    ((1_u64 << 53..1 << 54), 2..60_u32, -1..=1_i128).prop_map(|(mantissa, shift, offset)| {
        let double = i128::from(mantissa) << shift;
        let half_gap = 1_i128 << (shift - 1);
        format!("{}.0", double + half_gap + offset)
    })
}

pub(crate) fn number_reads_as_std(token: String) -> TestCaseResult {
    let expected = expected_number(&token);
    // The bytes after a number, and how many there are, select the path that reads it.
    for suffix in ["", ",", "]", " ", ", 1]", &"]".repeat(50)] {
        let text = format!("{token}{suffix}");
        let mut cursor = Cursor::new(text.as_bytes());
        let read = cursor.number();
        match (read, expected) {
            (Ok(Number::Float(read)), Ok(Number::Float(expected))) => {
                prop_assert_eq!(read.to_bits(), expected.to_bits(), "{}", text);
            }
            _ => prop_assert_eq!(read, expected, "{}", text),
        }
        if read.is_ok() {
            prop_assert_eq!(cursor.offset(), token.len(), "{}", text);
        }
    }
    if let Ok(number) = expected {
        narrow_floats_read_as_std(&token, number.as_f64())?;
    }
    Ok(())
}

/// What the documentation of [`Number`] promises for a token, by the parsers of std.
fn expected_number(token: &str) -> Result<Number, SyntaxError> {
    if !token.contains(['.', 'e', 'E']) {
        if let Ok(value) = token.parse::<u64>() {
            return Ok(Number::Unsigned(value));
        }
        match token.parse::<i64>() {
            Ok(0) => return Ok(Number::Unsigned(0)),
            Ok(value) => return Ok(Number::Negative(value)),
            Err(_) => {}
        }
    }
    let value: f64 = token.parse().expect("a number");
    if value.is_infinite() {
        return Err(SyntaxError { kind: Syntax::NumberTooBig, offset: 0 });
    }
    Ok(Number::Float(value))
}

/// Narrower floats are rounded from the double, as TensorFlow Serving does.
fn narrow_floats_read_as_std(token: &str, double: f64) -> TestCaseResult {
    let bits = |dtype| read_tensor(dtype, token).map(|tensor| tensor.bytes().to_vec());
    prop_assert_eq!(bits(DType::Double), Ok(double.to_ne_bytes().to_vec()));
    prop_assert_eq!(bits(DType::Float), Ok((double as f32).to_ne_bytes().to_vec()));
    prop_assert_eq!(bits(DType::Half), Ok(f16::from_f64(double).to_ne_bytes().to_vec()));
    prop_assert_eq!(bits(DType::BFloat16), Ok(bf16::from_f64(double).to_ne_bytes().to_vec()));
    Ok(())
}

/// Doubles of every class: any bits, and extreme exponents and mantissas, subnormals, zeros,
/// infinities and NaN among them.
pub(crate) fn double() -> impl Strategy<Value = f64> {
    let exponents = select(vec![0, 1, 2, 1022, 1023, 1024, 2045, 2046, 2047_u64]);
    let mantissas = prop_oneof![
        select(vec![0, 1, 2, (1 << 51) - 1, 1 << 51, (1 << 52) - 2, (1 << 52) - 1]),
        0..1_u64 << 52,
    ];
    let class = (any::<bool>(), exponents, mantissas);
    prop_oneof![
        any::<u64>().prop_map(f64::from_bits),
        class.prop_map(|(sign, exponent, mantissa)| {
            f64::from_bits(u64::from(sign) << 63 | exponent << 52 | mantissa)
        }),
        // Short decimals, which most numbers in requests and responses are.
        (-10_000_000..10_000_000_i64, 0..12).prop_map(|(n, places)| n as f64 / 10_f64.powi(places)),
        any::<f32>().prop_map(f64::from),
    ]
}

/// Floats of 32 bits of every class, and short decimals.
pub(crate) fn float32() -> impl Strategy<Value = f32> {
    let exponents = select(vec![0, 1, 2, 126, 127, 128, 253, 254, 255_u32]);
    let mantissas = prop_oneof![
        select(vec![0, 1, 2, (1 << 22) - 1, 1 << 22, (1 << 23) - 2, (1 << 23) - 1]),
        0..1_u32 << 23,
    ];
    let class = (any::<bool>(), exponents, mantissas);
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        class.prop_map(|(sign, exponent, mantissa)| {
            f32::from_bits(u32::from(sign) << 31 | exponent << 23 | mantissa)
        }),
        double().prop_map(|x| x as f32),
    ]
}

pub(crate) fn printed_double_reads_back(x: f64) -> TestCaseResult {
    if !x.is_finite() {
        return Ok(());
    }
    let texts = [
        format!("{x:?}"),
        format!("{x:e}"),
        format!("{x:.17e}"),
        format!("{x:.800e}"),
        format!("{x:.1}"),
        serde_json::to_string(&x).expect("finite"),
    ];
    for text in texts {
        let read = Cursor::new(text.as_bytes()).number().map(|number| number.as_f64());
        let expected = text.parse::<f64>().expect("a float");
        prop_assert_eq!(read.map(f64::to_bits), Ok(expected.to_bits()), "{}", text);
    }
    Ok(())
}

pub(crate) fn float32_round_trips(x: f32) -> TestCaseResult {
    let text = written(|out| float::float32(x, out));
    if !x.is_finite() {
        return check_word(&text, f64::from(x));
    }
    prop_assert_eq!(text.parse::<f32>().map(f32::to_bits), Ok(x.to_bits()), "{}", text);
    // Readers that parse a double and narrow it get the same float.
    prop_assert_eq!((text.parse::<f64>().unwrap() as f32).to_bits(), x.to_bits(), "{}", text);
    check_percent_g(&text, f64::from(x), 9, |short| short.parse() == Ok(x))
}

pub(crate) fn double_round_trips(x: f64) -> TestCaseResult {
    let text = written(|out| float::float64(x, out));
    if !x.is_finite() {
        return check_word(&text, x);
    }
    prop_assert_eq!(text.parse::<f64>().map(f64::to_bits), Ok(x.to_bits()), "{}", text);
    check_percent_g(&text, x, 17, |short| short.parse() == Ok(x))
}

/// `text` has six significant digits if these round-trip, otherwise at most `digits`; and the
/// other readers accept it.
fn check_percent_g(
    text: &str,
    x: f64,
    digits: usize,
    round_trips: impl Fn(&str) -> bool,
) -> TestCaseResult {
    let six = format!("{x:.5e}");
    let precision = if round_trips(&six) { 6 } else { digits };
    let exact = format!("{x:.*e}", precision - 1);
    prop_assert_eq!(significant_digits(text), significant_digits(&exact), "{}", text);
    check_other_readers(text, x)
}

/// The digits of a number without its sign, point, exponent, and leading and trailing zeros.
fn significant_digits(text: &str) -> String {
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').to_owned()
}

/// Our reader and serde_json read `text`, which is `x` in some digits. Without its feature
/// `float_roundtrip`, serde_json may miss the nearest double.
fn check_other_readers(text: &str, x: f64) -> TestCaseResult {
    let nearest: f64 = text.parse().expect("a float");
    let own = Cursor::new(text.as_bytes()).number().map(|number| number.as_f64().to_bits());
    prop_assert_eq!(own, Ok(nearest.to_bits()), "{}", text);
    let other: f64 = serde_json::from_str(text).expect(text);
    prop_assert!(ulps_apart(other, nearest) <= SERDE_JSON_ULPS, "{} of {}", text, x);
    Ok(())
}

/// NaN and infinities are bare words, which our reader reads.
fn check_word(text: &str, x: f64) -> TestCaseResult {
    let expected = match x {
        _ if x.is_nan() => "NaN",
        _ if x > 0.0 => "Infinity",
        _ => "-Infinity",
    };
    prop_assert_eq!(text, expected);
    let Ok(Number::Float(read)) = Cursor::new(text.as_bytes()).number() else {
        return Err(TestCaseError::fail(format!("{text} is not read as a float")));
    };
    prop_assert!(read == x || (read.is_nan() && x.is_nan()));
    prop_assert!(serde_json::from_str::<Value>(text).is_err());
    Ok(())
}

pub(crate) fn python_repr_is_shortest(x: f64) -> TestCaseResult {
    let text = written(|out| float::python(x, out));
    if !x.is_finite() {
        return check_word(&text, x);
    }
    let scientific = shortest_digits(x);
    let (mantissa, exponent) = scientific.split_once('e').expect("an exponent");
    let exponent: i32 = exponent.parse().expect("an integer");
    let sign = if x.is_sign_negative() { "-" } else { "" };
    let digits = mantissa.trim_start_matches('-').replace('.', "");
    let expected = match usize::try_from(exponent) {
        _ if !(-4..16).contains(&exponent) => format!("{mantissa}e{exponent:+03}"),
        Ok(exponent) => {
            let padded = format!("{digits:0<width$}", width = exponent + 2);
            let (whole, fraction) = padded.split_at(exponent + 1);
            format!("{sign}{whole}.{fraction}")
        }
        Err(_) => {
            let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
            format!("{sign}0.{zeros}{digits}")
        }
    };
    prop_assert_eq!(&text, &expected);
    check_other_readers(&text, x)
}

/// The shortest digits that round-trip, as `d.ddde-7`; of several the closest, and of two that are
/// equally close the even one. The standard library chooses otherwise in the last case.
fn shortest_digits(x: f64) -> String {
    let shortest = format!("{x:e}");
    let digits = shortest.split('e').next().unwrap_or_default();
    let places = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let closest = format!("{x:.places$e}");
    if closest.parse() == Ok(x) { closest } else { shortest }
}

#[test]
fn every_16_bit_float_round_trips() {
    for bits in 0..=u16::MAX {
        let half = f16::from_bits(bits);
        check_16_bit(half.to_f64(), bits, DType::Half, |out| float::float16(half, out));
        let brain = bf16::from_bits(bits);
        check_16_bit(brain.to_f64(), bits, DType::BFloat16, |out| float::bfloat16(brain, out));
    }
}

/// Both formats of a 16-bit float, read as its dtype, have its bits.
fn check_16_bit(x: f64, bits: u16, dtype: DType, write: impl Fn(&mut Vec<u8>)) {
    for text in [written(&write), written(|out| float::python(x, out))] {
        let tensor = read_tensor(dtype, &text).expect(&text);
        let read = u16::from_ne_bytes(tensor.bytes().try_into().expect("two bytes"));
        let read_double = match dtype {
            DType::Half => f16::from_bits(read).to_f64(),
            _ => bf16::from_bits(read).to_f64(),
        };
        let same = if x.is_nan() { read_double.is_nan() } else { read == bits };
        assert!(same, "{dtype} {bits:#x} is written as {text} and read as {read:#x}");
        if x.is_finite() {
            let other: f64 = serde_json::from_str(&text).expect(&text);
            let other = match dtype {
                DType::Half => f16::from_f64(other).to_bits(),
                _ => bf16::from_f64(other).to_bits(),
            };
            assert_eq!(other, bits, "{text}");
        }
    }
}

/// Integers at the edges of every width, powers of two and ten, and their neighbours.
fn edge_integer() -> impl Strategy<Value = i128> {
    let powers = prop_oneof![
        (0..=66_u32).prop_map(|n| 1_i128 << n),
        (0..=20_u32).prop_map(|n| 10_i128.pow(n)),
    ];
    (powers, -2..=2_i128, any::<bool>()).prop_map(|(power, offset, negative)| {
        let n = power + offset;
        if negative { -n } else { n }
    })
}

pub(crate) fn integer() -> impl Strategy<Value = i128> {
    prop_oneof![
        edge_integer(),
        any::<i64>().prop_map(i128::from),
        any::<u64>().prop_map(i128::from),
        any::<i16>().prop_map(i128::from),
    ]
}

pub(crate) fn integer_round_trips(n: i128) -> TestCaseResult {
    check_integer::<i64>(n)?;
    check_integer::<u64>(n)?;
    check_integer::<i32>(n)?;
    check_integer::<u32>(n)?;
    check_integer::<u16>(n)?;
    // TensorFlow Serving checks the range of an int32 for the narrower types, and wraps.
    let int32 = i32::try_from(n).ok();
    prop_assert_eq!(read_scalar::<i16>(n), int32.map(|n| n as i16));
    prop_assert_eq!(read_scalar::<i8>(n), int32.map(|n| n as i8));
    prop_assert_eq!(read_scalar::<u8>(n), int32.map(|n| n as u8));
    check_written_integer::<i16>(n)?;
    check_written_integer::<i8>(n)?;
    check_written_integer::<u8>(n)
}

trait Integer: Element + TryFrom<i128> + Into<i128> + Debug + PartialEq {}

impl<T: Element + TryFrom<i128> + Into<i128> + Debug + PartialEq> Integer for T {}

/// An integer is read as a type exactly if it fits, and then written in the same digits.
fn check_integer<T: Integer>(n: i128) -> TestCaseResult {
    prop_assert_eq!(read_scalar::<T>(n), T::try_from(n).ok(), "{} as {}", n, T::DTYPE);
    check_written_integer::<T>(n)
}

fn check_written_integer<T: Integer>(n: i128) -> TestCaseResult {
    let Ok(value) = T::try_from(n) else {
        return Ok(());
    };
    let tensor = Tensor::from_vec(Shape::scalar(), AlignedVec::from_slice(0, &[value]));
    let text = write_tensor(&tensor.unwrap(), compact(Floats::Python));
    prop_assert_eq!(std::str::from_utf8(&text)?, n.to_string());
    prop_assert_eq!(serde_json::from_slice::<i128>(&text).ok(), Some(n));
    Ok(())
}

fn read_scalar<T: Integer>(n: i128) -> Option<T> {
    let tensor = read_tensor(T::DTYPE, n.to_string()).ok()?;
    tensor.values::<T>()?.first().copied()
}

fn compact(floats: Floats) -> Style {
    Style { layout: JsonLayout::Compact, floats, texts: Texts::Raw }
}
