//! Reads JSON.

use std::borrow::Cow;

use super::document::{DocumentLimits, DocumentValue};
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_tensor::error::{Error, Result};

/// Reads the one value of `text`.
pub(super) fn read(text: &[u8]) -> Result<DocumentValue> {
    read_document(text).map_err(|e| e.context("invalid JSON"))
}

fn read_document(text: &[u8]) -> Result<DocumentValue> {
    let mut cursor = Cursor::new(text);
    cursor.open_document().map_err(syntax_error)?;
    read_value(&mut cursor, &mut DocumentLimits::default(), 0)
}

fn syntax_error(error: SyntaxError) -> Error {
    Error::damaged(format!("{} (at byte {})", error.kind.text(), error.offset))
}

fn read_value(
    cursor: &mut Cursor,
    limits: &mut DocumentLimits,
    depth: usize,
) -> Result<DocumentValue> {
    limits.count_value(depth)?;
    match cursor.peek() {
        b'{' => read_object(cursor, limits, depth),
        b'[' => read_array(cursor, limits, depth),
        b'"' => Ok(DocumentValue::Text(owned(cursor.string().map_err(syntax_error)?))),
        b'n' => cursor.literal(b"null").map(|()| DocumentValue::Null).map_err(syntax_error),
        _ => read_number(cursor).map(DocumentValue::Number),
    }
}

fn read_object(
    cursor: &mut Cursor,
    limits: &mut DocumentLimits,
    depth: usize,
) -> Result<DocumentValue> {
    let mut members = Vec::new();
    let mut more = cursor.open_object().map_err(syntax_error)?;
    while more {
        let name = owned(cursor.name().map_err(syntax_error)?);
        if DocumentValue::is_used(&name) {
            let value = read_value(cursor, limits, depth + 1)?;
            members.push((name, value));
        } else {
            cursor.skip_value().map_err(syntax_error)?;
        }
        more = cursor.next_member().map_err(syntax_error)?;
    }
    Ok(DocumentValue::Object(members))
}

fn read_array(
    cursor: &mut Cursor,
    limits: &mut DocumentLimits,
    depth: usize,
) -> Result<DocumentValue> {
    if !cursor.open_array() {
        return Ok(DocumentValue::List(Vec::new()));
    }
    if matches!(cursor.peek(), b'{' | b'[' | b'"' | b'n') {
        let mut list = vec![read_value(cursor, limits, depth + 1)?];
        while cursor.next_element().map_err(syntax_error)? {
            list.push(read_value(cursor, limits, depth + 1)?);
        }
        return Ok(DocumentValue::List(list));
    }
    let mut numbers = vec![read_number(cursor)?];
    while cursor.next_element().map_err(syntax_error)? {
        numbers.push(read_number(cursor)?);
    }
    Ok(DocumentValue::Numbers(numbers))
}

/// Reads a number; `true` is 1 and `false` is 0.
fn read_number(cursor: &mut Cursor) -> Result<f64> {
    match cursor.peek() {
        b't' => cursor.literal(b"true").map(|()| 1.0).map_err(syntax_error),
        b'f' => cursor.literal(b"false").map(|()| 0.0).map_err(syntax_error),
        _ => cursor.number().map(|number| number.as_f64()).map_err(syntax_error),
    }
}

fn owned(text: Cow<[u8]>) -> String {
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> DocumentValue {
        read(text.as_bytes()).expect("JSON")
    }

    #[test]
    fn values_of_all_kinds() {
        assert_eq!(parse(" null"), DocumentValue::Null);
        assert_eq!(parse("true"), DocumentValue::Number(1.0));
        assert_eq!(parse("[]"), DocumentValue::List(Vec::new()));
        assert_eq!(parse("[true, false,-1.5E-1]"), DocumentValue::Numbers(vec![1.0, 0.0, -0.15]));
        assert_eq!(parse("[-Infinity]"), DocumentValue::Numbers(vec![f64::NEG_INFINITY]));
        let DocumentValue::Numbers(nan) = parse("[NaN]") else { panic!("a list of numbers") };
        assert!(nan.iter().all(|x| x.is_nan()));
        let text = DocumentValue::Text("ä".to_owned());
        let inner = DocumentValue::Object(vec![("a".to_owned(), text)]);
        assert_eq!(parse(r#"[{"a": "\u00e4"}]"#), DocumentValue::List(vec![inner]));
    }

    #[test]
    fn syntax_errors_name_the_byte() {
        for (text, at) in [("", 0), ("{", 1), ("[1,", 3), ("[1,\"a\"]", 3), ("{\"a\":tru}", 8)] {
            let error = read(text.as_bytes()).expect_err(text);
            let place = format!("(at byte {at})");
            assert!(error.message().ends_with(&place), "{text}: {error}");
        }
        let deep = "[".repeat(1000);
        assert!(read(deep.as_bytes()).expect_err("deep").message().contains("nested"));
    }
}
