//! Prints a part of a document for an error message, as RapidJSON's pretty printer does with
//! four spaces of indentation and arrays on one line, truncated at 256 bytes.

use std::fmt::Write;

use super::number::Number;
use super::scan::Cursor;

/// The length at which printing stops, in bytes. A token that has begun is completed.
const LIMIT: usize = 256;

/// The most bytes of a string that are printed: responses leave out the middle of errors that are half as long.
const LONGEST_STRING: usize = 8 << 10;

/// The largest position of the decimal point at which RapidJSON prints a double without exponent.
const MAX_POINT: i32 = 21;

/// The smallest such position: five zeros after the point.
const MIN_POINT: i32 = -5;

/// Prints the value at byte `at` of `text`. Printing stops where the text is malformed.
#[must_use]
pub fn dump(text: &[u8], at: usize) -> String {
    let mut cursor = Cursor::new(text);
    cursor.seek(at);
    cursor.skip_space();
    let mut out = Vec::new();
    // The output is bounded and every level of nesting adds to it, so the recursion is bounded, too.
    let _ = value(&mut cursor, &mut out, 0);
    String::from_utf8_lossy(&out).into_owned()
}

/// Prints one value; `None` once the limit is reached or the text is malformed.
fn value(cursor: &mut Cursor, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    (out.len() < LIMIT).then_some(())?;
    match cursor.peek() {
        b'{' => object(cursor, out, depth),
        b'[' => array(cursor, out, depth),
        b'"' => string(cursor, out),
        b't' => literal(cursor, out, b"true"),
        b'f' => literal(cursor, out, b"false"),
        b'n' => literal(cursor, out, b"null"),
        _ => number(cursor, out),
    }
}

fn object(cursor: &mut Cursor, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    out.push(b'{');
    let mut more = cursor.open_object().ok()?;
    let empty = !more;
    while more {
        new_line(out, depth + 1)?;
        string(cursor, out)?;
        out.extend_from_slice(b": ");
        cursor.skip_space();
        cursor.advance();
        cursor.skip_space();
        value(cursor, out, depth + 1)?;
        more = cursor.next_member().ok()?;
        if more {
            out.push(b',');
        }
    }
    if !empty {
        new_line(out, depth)?;
    }
    out.push(b'}');
    Some(())
}

fn array(cursor: &mut Cursor, out: &mut Vec<u8>, depth: usize) -> Option<()> {
    out.push(b'[');
    let mut more = cursor.open_array();
    while more {
        value(cursor, out, depth + 1)?;
        more = cursor.next_element().ok()?;
        if more {
            out.extend_from_slice(b", ");
        }
    }
    out.push(b']');
    Some(())
}

fn new_line(out: &mut Vec<u8>, depth: usize) -> Option<()> {
    (out.len() < LIMIT).then_some(())?;
    out.push(b'\n');
    out.resize(out.len() + 4 * depth, b' ');
    Some(())
}

fn string(cursor: &mut Cursor, out: &mut Vec<u8>) -> Option<()> {
    (out.len() < LIMIT).then_some(())?;
    let text = cursor.string().ok()?;
    super::write::string(text.get(..LONGEST_STRING).unwrap_or(&text), out);
    Some(())
}

fn literal(cursor: &mut Cursor, out: &mut Vec<u8>, word: &[u8]) -> Option<()> {
    cursor.literal(word).ok()?;
    out.extend_from_slice(word);
    Some(())
}

fn number(cursor: &mut Cursor, out: &mut Vec<u8>) -> Option<()> {
    let text = match cursor.number().ok()? {
        Number::Unsigned(n) => n.to_string(),
        Number::Negative(n) => n.to_string(),
        Number::Float(x) => double(x),
    };
    out.extend_from_slice(text.as_bytes());
    Some(())
}

/// A double as RapidJSON prints it: the shortest digits that round-trip, without an exponent from
/// 1e-6 to below 1e21.
fn double(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    let sign = if x.is_sign_negative() { "-" } else { "" };
    if x.is_infinite() {
        return format!("{sign}Infinity");
    }
    // The shortest digits in the form `d.ddde-7`.
    let scientific = format!("{:e}", x.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits = mantissa.replace('.', "");
    let point = exponent.parse::<i32>().unwrap_or(0) + 1;
    let length = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let mut text = sign.to_owned();
    let written = if (length..=MAX_POINT).contains(&point) {
        let zeros = usize::try_from(point - length).unwrap_or(0);
        write!(text, "{digits}{}.0", "0".repeat(zeros))
    } else if (1..=MAX_POINT).contains(&point) {
        let (whole, fraction) = digits.split_at(usize::try_from(point).unwrap_or(0));
        write!(text, "{whole}.{fraction}")
    } else if (MIN_POINT..=0).contains(&point) {
        let zeros = usize::try_from(-point).unwrap_or(0);
        write!(text, "0.{}{digits}", "0".repeat(zeros))
    } else {
        write!(text, "{mantissa}e{exponent}")
    };
    written.map_or(String::new(), |()| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_indented_and_arrays_stay_on_one_line() {
        let text = br#"{"signature_name":["hello"],"examples":[{"names":["foo","bar"]}],"e":{}}"#;
        let want = "{\n    \"signature_name\": [\"hello\"],\n    \"examples\": [{\n            \
                    \"names\": [\"foo\", \"bar\"]\n        }],\n    \"e\": {}\n}";
        assert_eq!(dump(text, 0), want);
    }

    #[test]
    fn numbers_are_printed_anew() {
        let numbers =
            "[1.0, 1e5, 1e20, 1e21, 1e22, 0.00001, 1.5e-7, 123.25, -0, -0.0, NaN, -Infinity]";
        let want = "[1.0, 100000.0, 100000000000000000000.0, 1e21, 1e22, 0.00001, 1.5e-7, 123.25, 0, -0.0, NaN, -Infinity]";
        assert_eq!(dump(numbers.as_bytes(), 0), want);
    }

    #[test]
    fn long_values_are_cut_and_deep_ones_do_not_crash() {
        let long = format!("[{}1]", "1234567, ".repeat(1000));
        let cut = dump(long.as_bytes(), 0);
        assert!((LIMIT..LIMIT + 20).contains(&cut.len()), "{}", cut.len());
        let deep = "[".repeat(1_000_000);
        assert_eq!(dump(deep.as_bytes(), 0).len(), LIMIT);
        let one = format!("\"{}\"", "a".repeat(1000));
        assert_eq!(dump(one.as_bytes(), 0).len(), 1002);
    }
}
