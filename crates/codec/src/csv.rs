//! Comma-separated values, as SageMaker's containers read them: the text is split at line breaks,
//! lines are trimmed, and blank lines are skipped. A quote anywhere starts or ends a quoted part, in
//! which commas are text and two quotes stand for one. A field cannot span lines, and no line is a
//! header.

use crate::json::number::Number;
use crate::json::scan::Cursor;
use crate::json::{Scalar, expected_numbers};
use tensorserve_tensor::budget::Meter;
use tensorserve_tensor::{AlignedVec, DType, Shape, Tensor, aligned_vec};

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'f> {
    /// A number in JSON's syntax, without surrounding white space. It may be quoted.
    Number(&'f [u8]),
    /// Anything else.
    Text,
}

/// The non-blank lines, trimmed, without a byte order mark.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty())
}

/// Reads the first field of `line` into `field`, and returns the text after its comma; `None` if it
/// is the last field.
pub fn field<'l>(line: &'l [u8], field: &mut Vec<u8>) -> Option<&'l [u8]> {
    field.clear();
    let mut rest = line;
    let mut is_quoted = false;
    loop {
        let stop =
            if is_quoted { memchr::memchr(b'"', rest) } else { memchr::memchr2(b'"', b',', rest) };
        let (text, after) = rest.split_at_checked(stop.unwrap_or(rest.len()))?;
        field.extend_from_slice(text);
        match (after, is_quoted) {
            ([b',', next @ ..], _) => return Some(next),
            ([b'"', b'"', next @ ..], true) => {
                field.push(b'"');
                rest = next;
            }
            ([_, next @ ..], _) => {
                is_quoted = !is_quoted;
                rest = next;
            }
            ([], _) => return None,
        }
    }
}

/// The type of `field`.
#[must_use]
pub fn kind(field: &[u8]) -> Field<'_> {
    let trimmed = field.trim_ascii();
    if is_number(trimmed) { Field::Number(trimmed) } else { Field::Text }
}

/// Whether `text` is `-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?`.
fn is_number(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let (whole, mut rest) = digits(text);
    if whole.is_empty() || (whole.len() > 1 && whole.first() == Some(&b'0')) {
        return false;
    }
    if let Some(after) = rest.strip_prefix(b".") {
        let (fraction, after) = digits(after);
        if fraction.is_empty() {
            return false;
        }
        rest = after;
    }
    if let [b'e' | b'E', after @ ..] = rest {
        let after = match after {
            [b'+' | b'-', after @ ..] => after,
            _ => after,
        };
        let (exponent, after) = digits(after);
        return !exponent.is_empty() && after.is_empty();
    }
    rest.is_empty()
}

/// Splits `text` after its leading decimal digits.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or_default()
}

/// Reads lines that hold only numbers into a tensor: a matrix with one row per line, or a vector if
/// every line has one number. `None` for text, quotes, lines of different lengths, numbers that
/// `dtype` cannot represent, and more than `max_bytes`; [`field`] and [`kind`] read these.
#[must_use]
pub fn numbers(text: &[u8], dtype: DType, max_bytes: usize) -> Option<Tensor> {
    match dtype {
        DType::Float => read_rows::<f32>(text, max_bytes),
        DType::Double => read_rows::<f64>(text, max_bytes),
        DType::Int8 => read_rows::<i8>(text, max_bytes),
        DType::Int16 => read_rows::<i16>(text, max_bytes),
        DType::Int32 => read_rows::<i32>(text, max_bytes),
        DType::Int64 => read_rows::<i64>(text, max_bytes),
        DType::UInt8 => read_rows::<u8>(text, max_bytes),
        DType::UInt32 => read_rows::<u32>(text, max_bytes),
        DType::UInt64 => read_rows::<u64>(text, max_bytes),
        DType::UInt16
        | DType::Half
        | DType::BFloat16
        | DType::Complex64
        | DType::Complex128
        | DType::Bool
        | DType::String => None,
    }
}

fn read_rows<T: Scalar>(text: &[u8], max_bytes: usize) -> Option<Tensor> {
    let mut values = aligned_vec::<T>(expected_numbers(text.len()));
    let mut cursor = Cursor::new(text);
    let (mut rows, mut columns) = (0, 0);
    let mut meter = Meter::default();
    while skip_blank_lines(&mut cursor) {
        let before = values.len();
        read_row(&mut cursor, &mut values)?;
        let found = values.len() - before;
        if rows > 0 && found != columns {
            return None;
        }
        columns = found;
        rows += 1;
        // A vector that grows has up to twice the capacity that it needs.
        meter.add(found * size_of::<T>() * 2).ok()?;
        if values.len() * size_of::<T>() > max_bytes {
            return None;
        }
    }
    let shape = match columns {
        0 => return None,
        1 => Shape::vector(rows),
        _ => Shape::new(&[i64::try_from(rows).ok()?, i64::try_from(columns).ok()?]).ok()?,
    };
    Tensor::from_vec(shape, values).ok()
}

/// Skips to the next non-blank line; false at the end of the text.
fn skip_blank_lines(cursor: &mut Cursor) -> bool {
    cursor.skip_space();
    cursor.remaining() > 0
}

/// Reads the numbers of a line, up to its end.
fn read_row<T: Scalar>(cursor: &mut Cursor, values: &mut AlignedVec<T>) -> Option<()> {
    loop {
        skip_spaces(cursor);
        // `NaN` and `Infinity` are numbers for the JSON reader, but text in CSV.
        if !matches!(cursor.peek(), b'-' | b'0'..=b'9') {
            return None;
        }
        let number = cursor.number().ok()?;
        if matches!(number, Number::Float(value) if !value.is_finite()) {
            return None;
        }
        values.push(T::from_number(number)?);
        skip_spaces(cursor);
        match cursor.peek() {
            b',' => cursor.advance(),
            b'\n' => return Some(()),
            // A carriage return counts only as part of a line break.
            b'\r' => {
                cursor.advance();
                return matches!(cursor.peek(), b'\n').then_some(());
            }
            _ => return (cursor.remaining() == 0).then_some(()),
        }
    }
}

fn skip_spaces(cursor: &mut Cursor) {
    while matches!(cursor.peek(), b' ' | b'\t') {
        cursor.advance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(line: &str) -> Vec<String> {
        let mut all = Vec::new();
        let mut rest = Some(line.as_bytes());
        let mut one = Vec::new();
        while let Some(text) = rest {
            rest = field(text, &mut one);
            all.push(String::from_utf8(one.clone()).expect("text"));
        }
        all
    }

    #[test]
    fn quotes_hold_commas_and_quotes() {
        assert_eq!(fields("a,b"), ["a", "b"]);
        assert_eq!(fields("1,,"), ["1", "", ""]);
        assert_eq!(fields(r#""a,b",c"#), ["a,b", "c"]);
        assert_eq!(fields(r#""a""b",c"#), ["a\"b", "c"]);
        assert_eq!(fields(r#"a"b,c"d"#), ["ab,cd"]);
        assert_eq!(fields(r#"",""#), [","]);
        assert_eq!(fields(r#""""",1"#), ["\"", "1"]);
        assert_eq!(fields(r#""",x"#), ["", "x"]);
        assert_eq!(fields(r#""open,1"#), ["open,1"]);
        assert_eq!(fields(""), [""]);
    }

    #[test]
    fn numbers_are_those_of_json() {
        for number in ["0", "-0", "10", "1.5", "-1.0e5", "1E-3", "1e+30", " 7\t"] {
            assert!(matches!(kind(number.as_bytes()), Field::Number(_)), "{number}");
        }
        for text in ["", "-", "+1", ".5", "1.", "007", "1e", "1e+", "nan", "NaN", "1;2", "0x1"] {
            assert_eq!(kind(text.as_bytes()), Field::Text, "{text}");
        }
    }

    fn floats(text: &str) -> Option<(Vec<i64>, Vec<f32>)> {
        let tensor = numbers(text.as_bytes(), DType::Float, 1 << 20)?;
        Some((tensor.shape().dims().to_vec(), tensor.values().expect("floats").to_vec()))
    }

    #[test]
    fn lines_of_numbers_are_a_tensor() {
        assert_eq!(floats("1,2\n3,4.5\n"), Some((vec![2, 2], vec![1.0, 2.0, 3.0, 4.5])));
        assert_eq!(floats("1\r\n\r\n 2 \r\n"), Some((vec![2], vec![1.0, 2.0])));
        assert_eq!(floats("\u{feff}1e1 ,\t-0.5"), Some((vec![1, 2], vec![10.0, -0.5])));
        for other in [
            "", " ", "1,2\n3", "1,", ",1", "1,\n2", "a", "1,NaN", "-Inf", "\"1\"", "007", "1.",
            "1\0", "1\r2", "1e999",
        ] {
            assert_eq!(floats(other), None, "{other:?}");
        }
        assert!(numbers(b"1.5", DType::Int32, 100).is_none());
        assert!(numbers(b"1,2,3", DType::Int64, 23).is_none());
        assert!(numbers(b"1,2,3", DType::Int64, 24).is_some());
    }

    #[test]
    fn blank_lines_are_no_rows() {
        let text = b"\xef\xbb\xbf1,2\r\n\r\n  3,4  \n\n";
        assert_eq!(lines(text).collect::<Vec<_>>(), [&b"1,2"[..], b"3,4"]);
    }
}
