//! Reads JSON into [`Value`]s.

use std::borrow::Cow;

use super::broken;
use super::document::{Count, Value};
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_tensor::error::{Error, Result};

/// Reads the one value of `text`.
pub(super) fn read(text: &[u8]) -> Result<Value> {
    let mut cursor = Cursor::new(text);
    cursor.open_document().map_err(fault)?;
    value(&mut cursor, &mut Count::default(), 0)
}

fn fault(error: SyntaxError) -> Error {
    broken(format!("{} (at byte {})", error.kind.text(), error.offset))
}

fn value(cursor: &mut Cursor, count: &mut Count, depth: usize) -> Result<Value> {
    count.one_more(depth)?;
    match cursor.peek() {
        b'{' => object(cursor, count, depth),
        b'[' => array(cursor, count, depth),
        b'"' => Ok(Value::Text(owned(cursor.string().map_err(fault)?))),
        b'n' => cursor.literal(b"null").map(|()| Value::Nothing).map_err(fault),
        _ => number(cursor).map(Value::Number),
    }
}

fn object(cursor: &mut Cursor, count: &mut Count, depth: usize) -> Result<Value> {
    let mut members = Vec::new();
    let mut more = cursor.open_object().map_err(fault)?;
    while more {
        let name = owned(cursor.name().map_err(fault)?);
        if Value::keeps(&name) {
            let value = value(cursor, count, depth + 1)?;
            members.push((name, value));
        } else {
            cursor.skip_value().map_err(fault)?;
        }
        more = cursor.next_member().map_err(fault)?;
    }
    Ok(Value::Object(members))
}

fn array(cursor: &mut Cursor, count: &mut Count, depth: usize) -> Result<Value> {
    if !cursor.open_array() {
        return Ok(Value::List(Vec::new()));
    }
    if matches!(cursor.peek(), b'{' | b'[' | b'"' | b'n') {
        let mut list = vec![value(cursor, count, depth + 1)?];
        while cursor.next_element().map_err(fault)? {
            list.push(value(cursor, count, depth + 1)?);
        }
        return Ok(Value::List(list));
    }
    let mut numbers = vec![number(cursor)?];
    while cursor.next_element().map_err(fault)? {
        numbers.push(number(cursor)?);
    }
    Ok(Value::Numbers(numbers))
}

/// A number, or a truth value as one.
fn number(cursor: &mut Cursor) -> Result<f64> {
    match cursor.peek() {
        b't' => cursor.literal(b"true").map(|()| 1.0).map_err(fault),
        b'f' => cursor.literal(b"false").map(|()| 0.0).map_err(fault),
        _ => cursor.number().map(|number| number.as_f64()).map_err(fault),
    }
}

fn owned(text: Cow<[u8]>) -> String {
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_kinds() {
        let read = |text: &str| read(text.as_bytes()).expect("JSON");
        assert_eq!(read(" null"), Value::Nothing);
        assert_eq!(read("true"), Value::Number(1.0));
        assert_eq!(read("[]"), Value::List(Vec::new()));
        assert_eq!(read("[true, false,-1.5E-1]"), Value::Numbers(vec![1.0, 0.0, -0.15]));
        assert_eq!(read("[-Infinity]"), Value::Numbers(vec![f64::NEG_INFINITY]));
        let Value::Numbers(nan) = read("[NaN]") else { panic!("a list of numbers") };
        assert!(nan.iter().all(|x| x.is_nan()));
        let text = Value::Text("ä".to_owned());
        let inner = Value::Object(vec![("a".to_owned(), text)]);
        assert_eq!(read(r#"[{"a": "\u00e4"}]"#), Value::List(vec![inner]));
    }

    #[test]
    fn what_is_no_json_is_told_with_its_place() {
        for (text, at) in [("", 0), ("{", 1), ("[1,", 3), ("[1,\"a\"]", 3), ("{\"a\":tru}", 8)] {
            let error = read(text.as_bytes()).expect_err(text);
            let place = format!("(at byte {at})");
            assert!(error.message().ends_with(&place), "{text}: {error}");
        }
        let deep = "[".repeat(1000);
        assert!(read(deep.as_bytes()).expect_err("deep").message().contains("nested"));
    }
}
