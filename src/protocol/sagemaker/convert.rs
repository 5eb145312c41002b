//! Bodies of every form as the one that TensorFlow Serving takes.
//!
//! The container does this to the text, with regular expressions and no parser. What it makes of
//! a body is kept to the byte; `tests/cases/sagemaker-conversion.json` has what that is.

use bytes::Bytes;

use crate::codec::csv::{self, Field};
use crate::codec::json::scan::Cursor;
use crate::codec::json::write;
use crate::error::{Error, Result};

/// The members by which a body is known to be one of TensorFlow Serving's.
const KEYS: [&[u8]; 3] = [b"\"instances\"", b"\"inputs\"", b"\"examples\""];

/// Refuses a body that has nothing in it.
pub(super) fn check_not_blank(body: &[u8]) -> Result<()> {
    if body.trim_ascii().is_empty() {
        return Err(Error::invalid("The request has no body: The document is empty"));
    }
    Ok(())
}

/// Refuses several requests of TensorFlow Serving's in one body, of which it would answer the
/// first and forget the others.
pub(super) fn check_is_one(body: &[u8]) -> Result<()> {
    if !is_several(body) || !is_tfs(body) {
        return Ok(());
    }
    let mut cursor = Cursor::new(body);
    if cursor.open_document().and_then(|()| cursor.skip_value()).is_err() {
        // What is wrong is found again where it is put into words.
        return Ok(());
    }
    if !matches!(cursor.skip_space(), b'{' | b'[') {
        return Ok(());
    }
    let before = body.get(..cursor.offset()).unwrap_or_default();
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    Err(Error::invalid(format!(
        "A second request starts in line {line} of the body. Send each in a body of its own, or \
         send rows: one JSON value a line, without \"instances\""
    )))
}

/// JSON of any form: TensorFlow Serving's, values one after the other, or one value.
pub(super) fn json(body: &Bytes) -> Bytes {
    if is_tfs(body) {
        return body.clone();
    }
    let mut out = Vec::with_capacity(body.len() + 20);
    out.extend_from_slice(b"{\"instances\":");
    if is_several(body) {
        several(body, &mut out);
    } else if is_nested_list(body) {
        out.extend_from_slice(body);
    } else {
        out.push(b'[');
        out.extend_from_slice(body);
        out.push(b']');
    }
    out.push(b'}');
    out.into()
}

/// Whether one of [`KEYS`] and a colon stand anywhere.
fn is_tfs(body: &[u8]) -> bool {
    KEYS.iter().any(|key| {
        memchr::memmem::find_iter(body, key).any(|at| {
            let behind = body.get(at + key.len()..).unwrap_or_default();
            behind.trim_ascii_start().first() == Some(&b':')
        })
    })
}

/// Whether anywhere a list or an object ends and, past white space at most, another one starts.
fn is_several(body: &[u8]) -> bool {
    memchr::memchr2_iter(b'}', b']', body).any(|at| {
        let behind = body.get(at + 1..).unwrap_or_default();
        matches!(behind.trim_ascii_start().first(), Some(b'[' | b'{'))
    })
}

/// Lines that are not blank, with commas between them; in a list if there are several.
fn several(body: &[u8], out: &mut Vec<u8>) {
    let open = out.len();
    out.push(b'[');
    let mut count = 0;
    for line in body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
        if line.is_empty() {
            continue;
        }
        if count > 0 {
            out.push(b',');
        }
        out.extend_from_slice(line);
        count += 1;
    }
    if count == 1 {
        out.remove(open);
    } else {
        out.push(b']');
    }
}

fn is_nested_list(body: &[u8]) -> bool {
    let inner = body.trim_ascii_start().strip_prefix(b"[");
    inner.is_some_and(|inner| inner.trim_ascii_start().first() == Some(&b'['))
}

/// Comma-separated values: a line is a row, and a row of one field that field.
pub(super) fn csv(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() + body.len() / 4 + 20);
    out.extend_from_slice(b"{\"instances\":[");
    let mut field = Vec::new();
    for (row, line) in csv::lines(body).enumerate() {
        if row > 0 {
            out.push(b',');
        }
        let open = out.len();
        out.push(b'[');
        let mut fields = 0;
        let mut rest = Some(line);
        while let Some(text) = rest {
            if fields > 0 {
                out.push(b',');
            }
            fields += 1;
            rest = csv::field(text, &mut field);
            match csv::kind(&field) {
                Field::Number(digits) => out.extend_from_slice(digits),
                Field::Text => write::string(&field, &mut out),
            }
        }
        if fields == 1 {
            out.remove(open);
        } else {
            out.push(b']');
        }
    }
    out.extend_from_slice(b"]}");
    out
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::media::Input;
    use super::*;

    const VECTORS: &str = include_str!("../../../tests/cases/sagemaker-conversion.json");

    /// What is made otherwise than by the 2.20 image, and why.
    const OTHERWISE: [(&str, &str, &str); 1] = [
        // It writes a tab into JSON as it is, which is none.
        ("csv tab", "a\tb,c", "{\"instances\":[[\"a\\tb\",\"c\"]]}"),
    ];

    #[test]
    fn bodies_become_what_the_container_makes_of_them() {
        let vectors: Value = serde_json::from_str(VECTORS).expect("JSON");
        let mut passed = 0;
        for vector in vectors["conversion"].as_array().expect("a list") {
            let text = |key: &str| vector[key].as_str();
            let name = text("name").expect("a name");
            let body = match text("body").expect("a body") {
                // What its proxy's language has for no body.
                "<undefined>" => continue,
                body => Bytes::from(body.to_owned()),
            };
            let got =
                Input::of(text("content_type").unwrap_or("Unknown")).map(|input| match input {
                    Input::Json => json(&body).to_vec(),
                    Input::Csv => csv(&body),
                });
            let otherwise = OTHERWISE.iter().find(|(other, ..)| *other == name);
            let want = otherwise.map_or(vector["g3"]["tfs_body"].as_str(), |(.., want)| Some(want));
            let got = got.map(|got| String::from_utf8(got).expect("text"));
            assert_eq!(got.as_deref(), want, "{name}");
            passed += 1;
        }
        assert_eq!(passed, 85, "vectors went missing");
    }

    #[test]
    fn one_request_is_one() {
        let several = "{\"instances\": [1]}\n\n {\"instances\": [2]}";
        let error = check_is_one(several.as_bytes()).expect_err("two");
        assert!(error.message().contains("in line 3"), "{error}");
        for one in ["{\"instances\": [\"][\"]}\n", "[1][2]", "{\"instances\": [}{", "", "1"] {
            assert!(check_is_one(one.as_bytes()).is_ok(), "{one}");
        }
    }

    #[test]
    fn nothing_is_told_as_such() {
        for blank in ["", " \n ", "\r\n"] {
            assert!(check_not_blank(blank.as_bytes()).is_err());
        }
        assert!(check_not_blank(b"0").is_ok());
    }
}
