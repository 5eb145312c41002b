//! Whole documents: values, syntax errors, nesting, duplicate members.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use serde_json::{Map, Value};
use tensorserve_codec::json::dump::dump;
use tensorserve_codec::json::number::Number;
use tensorserve_codec::json::read::{TensorReadError, TensorReader};
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_tensor::{DType, MAX_RANK};

use crate::{OPTIONS, read_tensor, same_value};

fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1000..1000_i64).prop_map(|n| Value::from(n as f64 / 8.0)),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 40, 6, |inner| {
        let members = vec(("[a-c\"\\\\é]{0,2}", inner.clone()), 0..6);
        prop_oneof![
            vec(inner, 0..6).prop_map(Value::from),
            members.prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// A document's text with random white space between its tokens.
pub(crate) fn document_text() -> impl Strategy<Value = String> {
    let spaces = vec(select(vec!["", "", "", " ", "\n", "\t", "\r\n", "  \t\n "]), 1..20);
    (document(), spaces).prop_map(|(value, spaces)| {
        let mut text = String::new();
        let mut spaces = spaces.into_iter().cycle();
        write_spaced(&value, &mut spaces, &mut text);
        text
    })
}

fn write_spaced(value: &Value, spaces: &mut impl Iterator<Item = &'static str>, out: &mut String) {
    let mut space = |out: &mut String| out.push_str(spaces.next().unwrap_or_default());
    space(out);
    match value {
        Value::Array(elements) => {
            out.push('[');
            space(out);
            for (index, element) in elements.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write_spaced(element, spaces, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            space(out);
            for (index, (name, member)) in members.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write_spaced(&Value::from(name.as_str()), spaces, out);
                out.push(':');
                write_spaced(member, spaces, out);
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    out.push_str(spaces.next().unwrap_or_default());
}

pub(crate) fn document_reads_as_serde(text: String) -> TestCaseResult {
    let expected: Value = serde_json::from_str(&text)?;
    prop_assert!(same_value(&read_document(&text).unwrap(), &expected), "{}", text);
    // A dump is the same document, if it is short enough.
    let dumped = dump(text.as_bytes(), 0);
    if dumped.len() < 256 {
        let dumped: Value = serde_json::from_str(&dumped)?;
        prop_assert!(same_value(&dumped, &expected), "{} is dumped as {}", text, dumped);
    }
    Ok(())
}

/// Valid documents into which a few bytes are inserted, or from which some are removed.
pub(crate) fn mutated_document() -> impl Strategy<Value = String> {
    let mutation = (
        any::<proptest::sample::Index>(),
        0..3_usize,
        "[\\[\\]{},:\" \\\\tfn0-9.eE+\\-\\x00\\x0b]{0,2}",
    );
    (document_text(), vec(mutation, 1..4)).prop_map(|(text, mutations)| {
        let mut characters: Vec<char> = text.chars().collect();
        for (at, removed, inserted) in mutations {
            let start = at.index(characters.len() + 1);
            let end = (start + removed).min(characters.len());
            characters.splice(start..end, inserted.chars());
        }
        characters.into_iter().collect()
    })
}

/// Random sequences of tokens and of characters that nearly are tokens.
pub(crate) fn token_soup() -> impl Strategy<Value = String> {
    let tokens = [
        "[", "]", "{", "}", ",", ":", "\"a\"", "\"", "1", "-", "0", ".5", "1.5", "e1", "true",
        "false", "null", "tru", "nulll", " ", "\n", "\u{a0}", "\0", "'a'", "/**/", "{\"a\":", "[1",
    ];
    vec(select(tokens.to_vec()), 0..10).prop_map(|tokens| tokens.concat())
}

/// Our reader refuses a text exactly where serde_json does, and all its ways to read one agree.
pub(crate) fn same_verdict(text: String) -> TestCaseResult {
    // One of the intended differences.
    if text.starts_with('\u{feff}') {
        return Ok(());
    }
    let expected = serde_json::from_str::<Value>(&text);
    let mut cursor = Cursor::new(text.as_bytes());
    let skipped = cursor.open_document().and_then(|()| cursor.skip_value());
    let end = cursor.offset();
    cursor.skip_space();
    let is_complete = skipped.is_ok() && cursor.remaining() == 0;
    prop_assert_eq!(is_complete, expected.is_ok(), "{:?}: {:?}, {:?}", text, skipped, expected);
    if let Ok(expected) = expected {
        prop_assert!(same_value(&read_document(&text).unwrap(), &expected), "{}", text);
    }
    // As a tensor, a value has a syntax error exactly if it is malformed, and the same one.
    for dtype in [DType::Float, DType::Int32, DType::Bool, DType::String, DType::Complex64] {
        let mut reader = TensorReader::new(dtype, OPTIONS, text.len());
        let mut cursor = Cursor::new(text.as_bytes());
        if cursor.open_document().is_err() {
            break;
        }
        match (reader.read(&mut cursor).map_err(|error| *error), skipped) {
            (Err(TensorReadError::Syntax(error)), Err(expected)) => {
                prop_assert_eq!(error, expected, "{} as {}", text, dtype);
            }
            (read, Err(_)) => prop_assert!(false, "{text:?} as {dtype}: {read:?}"),
            (Err(TensorReadError::Syntax(error)), Ok(())) => {
                prop_assert!(false, "{text:?} as {dtype}: {error:?}");
            }
            (_, Ok(())) => prop_assert_eq!(cursor.offset(), end, "{} as {}", text, dtype),
        }
    }
    Ok(())
}

#[test]
fn duplicate_members_are_all_read_in_order() {
    let text = br#"{"a": 1, "b": 2, "a": [3], "\u0061": 4}"#;
    let mut cursor = Cursor::new(text);
    let mut members = Vec::new();
    let mut more = cursor.open_object().unwrap();
    while more {
        let name = String::from_utf8(cursor.name().unwrap().into_owned()).unwrap();
        let start = cursor.offset();
        cursor.skip_value().unwrap();
        members.push((name, std::str::from_utf8(&text[start..cursor.offset()]).unwrap()));
        more = cursor.next_member().unwrap();
    }
    let expected = [("a", "1"), ("b", "2"), ("a", "[3]"), ("a", "4")];
    assert_eq!(members, expected.map(|(name, value)| (name.to_owned(), value)));
}

/// The differences from serde_json that the decision lists.
#[test]
fn intended_differences_from_serde_json() {
    for (word, value) in [
        ("NaN", f64::NAN),
        ("-NaN", f64::NAN),
        ("Inf", f64::INFINITY),
        ("-Inf", f64::NEG_INFINITY),
        ("Infinity", f64::INFINITY),
        ("-Infinity", f64::NEG_INFINITY),
    ] {
        let mut cursor = Cursor::new(word.as_bytes());
        let read = cursor.number().expect(word).as_f64();
        assert!(read == value || (read.is_nan() && value.is_nan()), "{word}");
        assert_eq!(cursor.remaining(), 0, "{word}");
        assert!(serde_json::from_str::<Value>(word).is_err(), "{word}");
    }
    for word in ["nan", "NAN", "inf", "infinity", "+Inf", "+1", "INF"] {
        assert!(Cursor::new(word.as_bytes()).number().is_err(), "{word}");
    }
    let accepted = |text: &[u8]| {
        let mut cursor = Cursor::new(text);
        cursor.open_document().and_then(|()| cursor.skip_value()).map(|()| cursor.remaining())
    };
    // Text after the first value, a byte order mark, invalid UTF-8 in a string, and deep nesting.
    let deep = "[".repeat(200) + &"]".repeat(200);
    for (text, remaining) in
        [(&b"[1] x"[..], 2), (b"\xef\xbb\xbf1", 0), (b"\"\xff\"", 0), (deep.as_bytes(), 0)]
    {
        assert_eq!(accepted(text), Ok(remaining), "{text:?}");
        assert!(serde_json::from_slice::<Value>(text).is_err(), "{text:?}");
    }
    // An integer token has no negative zero.
    assert_eq!(Cursor::new(b"-0").number(), Ok(Number::Unsigned(0)));
    let other: f64 = serde_json::from_str("-0").unwrap();
    assert!(other == 0.0 && other.is_sign_negative());
}

/// The kind of each level of nesting: an array or an object.
pub(crate) fn nesting() -> impl Strategy<Value = Vec<bool>> {
    vec(any::<bool>(), 1..20)
}

pub(crate) fn nesting_is_skipped((kinds, depth): (Vec<bool>, usize)) -> TestCaseResult {
    let levels: Vec<bool> = kinds.iter().copied().cycle().take(depth).collect();
    let opened: String = levels.iter().map(|array| if *array { "[" } else { "{\"a\":" }).collect();
    let closed: String = levels.iter().rev().map(|array| if *array { "]" } else { "}" }).collect();
    let whole = format!("{opened}1{closed}");
    let mut cursor = Cursor::new(whole.as_bytes());
    prop_assert_eq!(cursor.skip_value(), Ok(()));
    prop_assert_eq!(cursor.remaining(), 0);
    // serde_json refuses more than 127 levels.
    prop_assert_eq!(serde_json::from_str::<Value>(&whole).is_ok(), depth <= 127);
    let unclosed = format!("{opened}1");
    prop_assert_eq!(Cursor::new(unclosed.as_bytes()).skip_value().is_err(), depth > 0);
    Ok(())
}

#[test]
fn tensors_have_at_most_max_rank_dimensions() {
    let nested = |depth: usize| "[".repeat(depth) + "1" + &"]".repeat(depth);
    let tensor = read_tensor(DType::Int32, nested(MAX_RANK)).expect("the limit");
    assert_eq!(tensor.shape().dims(), [1; MAX_RANK]);
    let error = read_tensor(DType::Int32, nested(MAX_RANK + 1)).expect_err("above the limit");
    assert_eq!(error, TensorReadError::TooManyDimensions);
}

/// A document read with the cursor; the last of duplicate members counts, as in serde_json.
fn read_document(text: &str) -> Result<Value, SyntaxError> {
    let mut cursor = Cursor::new(text.as_bytes());
    cursor.open_document()?;
    read_value(&mut cursor)
}

fn read_value(cursor: &mut Cursor) -> Result<Value, SyntaxError> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    Ok(match cursor.peek() {
        b'{' => {
            let mut members = Map::new();
            let mut more = cursor.open_object()?;
            while more {
                let name = text(&cursor.name()?);
                members.insert(name, read_value(cursor)?);
                more = cursor.next_member()?;
            }
            Value::Object(members)
        }
        b'[' => {
            let mut elements = Vec::new();
            let mut more = cursor.open_array();
            while more {
                elements.push(read_value(cursor)?);
                more = cursor.next_element()?;
            }
            Value::Array(elements)
        }
        b'"' => Value::from(text(&cursor.string()?)),
        b't' => cursor.literal(b"true").map(|()| Value::from(true))?,
        b'f' => cursor.literal(b"false").map(|()| Value::from(false))?,
        b'n' => cursor.literal(b"null").map(|()| Value::Null)?,
        _ => match cursor.number()? {
            Number::Unsigned(n) => Value::from(n),
            Number::Negative(n) => Value::from(n),
            Number::Float(x) => Value::from(x),
        },
    })
}
