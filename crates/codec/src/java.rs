//! Numbers as Java writes them, for models of its libraries that compare texts.

use super::json::number::Number;
use tensorserve_tensor::{DType, NumberTexts, StringsBuilder, Tensor};

/// A number as Java writes a `double`: `2.0`, `1.0E10`, `Infinity`.
#[must_use]
pub fn double_text(value: f64) -> String {
    java_text(value, &format!("{value:e}"))
}

/// A number as Java writes a `float`.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // It is one.
pub fn single_text(value: f64) -> String {
    java_text(value, &format!("{:e}", value as f32))
}

/// `scientific` is the shortest text with an exponent.
fn java_text(value: f64, scientific: &str) -> String {
    /// From here on, and below [`SMALL`], Java writes an exponent.
    const LARGE: f64 = 1e7;
    const SMALL: f64 = 1e-3;
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific.to_owned();
    };
    let point = if digits.contains('.') { "" } else { ".0" };
    if value == 0.0 || (value.abs() >= SMALL && value.abs() < LARGE) {
        let plain: f64 = scientific.parse().unwrap_or(value);
        let text = plain.to_string();
        return if text.contains('.') { text } else { format!("{text}.0") };
    }
    format!("{digits}{point}E{exponent}")
}

/// The text of a number in a column whose numbers have these; `None` for a fraction among integers, and for
/// what is not a number.
#[must_use]
#[allow(clippy::cast_possible_truncation)] // It has no fraction, and is small.
pub fn number_text(number: Number, texts: NumberTexts) -> Option<String> {
    /// Up to here doubles hold all integers.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match (texts, number) {
        (NumberTexts::Integers, Number::Unsigned(number)) => Some(number.to_string()),
        (NumberTexts::Integers, Number::Negative(number)) => Some(number.to_string()),
        (NumberTexts::Integers, Number::Float(number)) => {
            let is_integer = number.fract() == 0.0 && number.abs() <= EXACT;
            is_integer.then(|| (number as i64).to_string())
        }
        (NumberTexts::Doubles, number) => {
            let number = number.as_f64();
            (!number.is_nan()).then(|| double_text(number))
        }
    }
}

/// The texts of a tensor of numbers, of which NaN is a missing value; `None` if one has none.
#[must_use]
pub fn tensor_texts(tensor: &Tensor, texts: NumberTexts) -> Option<Tensor> {
    let mut strings = StringsBuilder::default();
    let is_single = tensor.dtype() == DType::Float && texts == NumberTexts::Doubles;
    let is_float = matches!(tensor.dtype(), DType::Float | DType::Double);
    match is_float {
        true => {
            let doubles = super::cast::cast(tensor, DType::Double)?;
            for value in doubles.values::<f64>()? {
                match value {
                    value if value.is_nan() => strings.push(b""),
                    value if is_single => strings.push(single_text(*value).as_bytes()),
                    value => strings.push(number_text(Number::Float(*value), texts)?.as_bytes()),
                }
            }
        }
        false => {
            let integers = super::cast::cast(tensor, DType::Int64)?;
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

    #[test]
    fn numbers_have_the_text_of_java() {
        // From Double.toString.
        for (value, text) in [
            (2.0, "2.0"),
            (-0.5, "-0.5"),
            (1e7, "1.0E7"),
            (1234567.5, "1234567.5"),
            (1.25e-4, "1.25E-4"),
            (0.001, "0.001"),
            (0.0, "0.0"),
            (f64::INFINITY, "Infinity"),
        ] {
            assert_eq!(double_text(value), text);
        }
        assert_eq!(single_text(f64::from(0.1f32)), "0.1");
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
