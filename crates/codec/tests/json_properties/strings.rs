//! Strings: escapes, surrogate pairs, invalid UTF-8.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use serde_json::Value;
use tensorserve_codec::json::scan::{Cursor, SyntaxError};
use tensorserve_codec::json::write::{self, Floats, Style, Texts};
use tensorserve_tensor::{DType, Shape, StringsBuilder, Tensor};

use crate::documents::same_verdict;
use crate::tensors::LAYOUTS;
use crate::{read_tensor, write_tensor};

/// A valid string literal with every kind of escape.
pub(crate) fn string_literal() -> impl Strategy<Value = String> {
    let parts = prop_oneof![
        4 => "[ -!#-\\[\\]-~]{0,12}",
        2 => any::<char>().prop_map(unescaped),
        3 => select(vec!["\\\"", "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t"])
            .prop_map(str::to_owned),
        3 => any::<char>().prop_flat_map(unicode_escape),
    ];
    vec(parts, 0..8).prop_map(|parts| format!("\"{}\"", parts.concat()))
}

/// A character that needs no escape: `character`, or another one in its place.
fn unescaped(character: char) -> String {
    let needs_escape = character < ' ' || "\"\\".contains(character);
    String::from(if needs_escape { '/' } else { character })
}

/// A character as one or two `\u` escapes, in upper or lower case.
fn unicode_escape(character: char) -> impl Strategy<Value = String> {
    let units: Vec<u16> = character.encode_utf16(&mut [0; 2]).to_vec();
    any::<bool>().prop_map(move |upper| {
        let escape = |unit: &u16| match upper {
            true => format!("\\u{unit:04X}"),
            false => format!("\\u{unit:04x}"),
        };
        units.iter().map(escape).collect()
    })
}

/// A string literal with halves of surrogate pairs, unknown and truncated escapes, control
/// characters and missing quotes among its parts.
pub(crate) fn malformed_string_literal() -> impl Strategy<Value = String> {
    let parts = prop_oneof![
        2 => string_literal().prop_map(|literal| literal[1..literal.len() - 1].to_owned()),
        1 => (0xd7f0..0xe010_u32).prop_map(|unit| format!("\\u{unit:04x}")),
        1 => "\\\\u[0-9a-gD]{0,4}",
        1 => "\\\\[ -~]",
        1 => "[\\x00-\\x1f\"\\\\]",
    ];
    (vec(parts, 0..5), any::<bool>()).prop_map(|(parts, closed)| {
        let end = if closed { "\"" } else { "" };
        format!("\"{}{end}", parts.concat())
    })
}

pub(crate) fn string_reads_as_serde(literal: String) -> TestCaseResult {
    let mut cursor = Cursor::new(literal.as_bytes());
    let read = cursor.string().map(|value| value.into_owned());
    let expected = serde_json::from_str::<String>(&literal);
    // The cursor stops after the literal, and serde_json reads on.
    if read.is_ok() && cursor.remaining() > 0 {
        return same_verdict(literal);
    }
    prop_assert_eq!(read.clone().ok(), expected.ok().map(String::into_bytes), "{}", literal);
    // The other ways to read a string agree, also on errors.
    let mut into = Cursor::new(literal.as_bytes());
    let mut bytes = b"kept".to_vec();
    let outcome = into.string_into(&mut bytes, |_, _| Ok::<(), SyntaxError>(()));
    prop_assert_eq!(outcome, read.clone().map(drop));
    prop_assert_eq!(into.offset(), cursor.offset());
    if let Ok(value) = &read {
        prop_assert_eq!(&bytes[4..], &value[..]);
    }
    let mut skipped = Cursor::new(literal.as_bytes());
    prop_assert_eq!(skipped.skip_value(), read.map(drop));
    prop_assert_eq!(skipped.offset(), cursor.offset());
    Ok(())
}

/// Bytes of any kind, invalid UTF-8 included, are written and read unchanged; valid UTF-8 is
/// written as serde_json reads it, and with [`Texts::Lossy`] so is everything else.
pub(crate) fn bytes_round_trip(bytes: Vec<u8>) -> TestCaseResult {
    let mut text = Vec::new();
    write::string(&bytes, &mut text);
    let mut cursor = Cursor::new(&text);
    let read = cursor.string().map(|value| value.into_owned());
    prop_assert_eq!(read.as_deref(), Ok(&bytes[..]));
    prop_assert_eq!(cursor.remaining(), 0);
    let other = serde_json::from_slice::<String>(&text).ok();
    prop_assert_eq!(other, String::from_utf8(bytes.clone()).ok());

    let mut strings = StringsBuilder::default();
    strings.push(&bytes);
    let tensor = Tensor::from_strings(Shape::vector(1), strings).unwrap();
    for layout in LAYOUTS {
        let style = |texts| Style { layout, floats: Floats::Python, texts };
        let lossy = write_tensor(&tensor, style(Texts::Lossy));
        let lossy: Vec<String> = serde_json::from_slice(&lossy)?;
        prop_assert_eq!(&lossy[0], &String::from_utf8_lossy(&bytes));
        let base64 = write_tensor(&tensor, style(Texts::Base64));
        prop_assert!(serde_json::from_slice::<Value>(&base64).is_ok());
        let back = read_tensor(DType::String, &base64).unwrap();
        prop_assert_eq!(back.strings().unwrap().iter().next(), Some(&bytes[..]));
    }
    Ok(())
}
