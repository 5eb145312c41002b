//! Numbers as Java writes them, for models of its libraries that compare texts.

use super::number::Number;
use tensorserve_tensor::NumberTexts;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
