//! Converts payloads of every format to the JSON that TensorFlow Serving accepts.
//!
//! The container does this with regular expressions and without a parser. The result is the same to the
//! byte; `tests/cases/sagemaker-conversion.json` has the container's results.

use bytes::Bytes;

use tensorserve_codec::base64::{self, Alphabet};
use tensorserve_codec::csv::{self, CsvReader, Dialect, Field};
use tensorserve_codec::json::scan::{Cursor, Syntax, SyntaxError};
use tensorserve_codec::json::write;
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Error, Result};

/// The members that identify a body in TensorFlow Serving's format.
const KEYS: [&[u8]; 3] = [b"\"instances\"", b"\"inputs\"", b"\"examples\""];

/// Refuses a blank body.
pub(super) fn check_not_blank(body: &[u8]) -> Result<()> {
    if body.trim_ascii().is_empty() {
        return Err(Error::invalid("The request has no body: The document is empty"));
    }
    Ok(())
}

/// Refuses several requests in TensorFlow Serving's format in one body: TensorFlow Serving would run the
/// first and ignore the others.
pub(super) fn check_is_one(body: &[u8]) -> Result<()> {
    if !is_tfs(body) || !another_starts(body) {
        return Ok(());
    }
    let mut cursor = Cursor::new(body);
    if cursor.open_document().and_then(|()| cursor.skip_value()).is_err() {
        // The decoder reports the error.
        return Ok(());
    }
    if !matches!(cursor.skip_space(), b'{' | b'[') {
        return Ok(());
    }
    let before = body.get(..cursor.offset()).unwrap_or_default();
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    Err(Error::invalid(format!(
        "A second request starts at line {line} of the body. Send each request in its own body, or \
         send rows: one JSON value per line, without \"instances\""
    )))
}

/// Whether another value may start after the end of a request, which is an object. This is fast for rows
/// of numbers, which have no braces.
fn another_starts(body: &[u8]) -> bool {
    memchr::memchr_iter(b'}', body).any(|at| {
        let behind = body.get(at + 1..).unwrap_or_default();
        matches!(behind.trim_ascii_start().first(), Some(b'[' | b'{'))
    })
}

/// Converts JSON in any format: TensorFlow Serving's, a sequence of values, or one value.
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

/// The repair of a sequence of values that [`several`] does not convert to valid JSON.
#[derive(Debug)]
pub(super) enum RepairedBody {
    /// No repair is needed.
    Sound,
    /// The values are valid JSON, but not one per line.
    Values(Bytes),
    /// One of them is not valid JSON.
    Bad(Error),
}

/// Repairs a sequence of values. With `of_any_kind` also numbers and strings per line, which the
/// container takes for one value.
pub(super) fn repair(body: &[u8], of_any_kind: bool) -> RepairedBody {
    let several = is_several(body);
    if is_tfs(body) || !(of_any_kind || several) {
        return RepairedBody::Sound;
    }
    let bad = first_bad_line(body);
    if bad.is_none() && several {
        return RepairedBody::Sound;
    }
    let mut out = b"{\"instances\":[".to_vec();
    let Err(whole) = each_value(body, |value| {
        out.extend_from_slice(value);
        out.push(b',');
    }) else {
        out.pop();
        out.extend_from_slice(b"]}");
        return RepairedBody::Values(out.into());
    };
    let (line, error) = match bad {
        // One value per line except this line; otherwise the position of the first syntax error.
        Some((line, is_all, error)) if line > 1 || is_all => (line, error),
        _ => place(body, whole),
    };
    let (text, offset) = (error.kind.text(), error.offset);
    let message = format!("JSON Parse error: {text} at offset: {offset} of line {line}");
    RepairedBody::Bad(Error::invalid(message))
}

/// The first line, counted from 1, that is not one JSON value; whether the body has no other text; and
/// the error.
fn first_bad_line(body: &[u8]) -> Option<(usize, bool, SyntaxError)> {
    let all = body.trim_ascii().len();
    for (index, line) in body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).enumerate() {
        let (mut count, mut first) = (0, 0);
        let read = each_value(line, |value| {
            first = if count == 0 { value.len() } else { first };
            count += 1;
        });
        let kind = Syntax::ArrayMissCommaOrSquareBracket;
        let error = match read {
            _ if line.is_empty() => continue,
            Ok(()) if count == 1 => continue,
            Ok(()) => SyntaxError { kind, offset: first },
            Err(error) => error,
        };
        return Some((index + 1, line.len() == all, error));
    }
    None
}

/// Calls `each` with each of the values that follow one another in `text`.
fn each_value(text: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), SyntaxError> {
    let mut cursor = Cursor::new(text);
    cursor.open_document()?;
    loop {
        let start = cursor.offset();
        cursor.skip_value()?;
        each(text.get(start..cursor.offset()).unwrap_or_default());
        cursor.skip_space();
        if cursor.remaining() == 0 {
            return Ok(());
        }
    }
}

/// The position of an error as a line and an offset within it.
fn place(body: &[u8], error: SyntaxError) -> (usize, SyntaxError) {
    let before = body.get(..error.offset).unwrap_or(body);
    let line = memchr::memchr_iter(b'\n', before).count() + 1;
    let start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
    (line, SyntaxError { offset: before.len() - start, ..error })
}

/// Whether `body` is base64 of JSON, which version 2 of the AWS CLI sends by default.
pub(super) fn is_base64_of_json(body: &[u8]) -> bool {
    let body = body.trim_ascii();
    let mut decoded = Vec::new();
    let is_base64 = body.len() >= 4
        && body.len().is_multiple_of(4)
        && base64::decode(body, Alphabet::Standard, &mut decoded).is_ok();
    let mut count = 0;
    is_base64 && each_value(&decoded, |_| count += 1).is_ok() && count == 1
}

/// Whether the body contains one of [`KEYS`] followed by a colon.
fn is_tfs(body: &[u8]) -> bool {
    KEYS.iter().any(|key| {
        memchr::memmem::find_iter(body, key).any(|at| {
            let behind = body.get(at + key.len()..).unwrap_or_default();
            behind.trim_ascii_start().first() == Some(&b':')
        })
    })
}

/// Whether a list or an object ends and, after optional white space, another one starts.
fn is_several(body: &[u8]) -> bool {
    memchr::memchr2_iter(b'}', b']', body).any(|at| {
        let behind = body.get(at + 1..).unwrap_or_default();
        matches!(behind.trim_ascii_start().first(), Some(b'[' | b'{'))
    })
}

/// Writes the non-blank lines, separated by commas; in a list if there are several.
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

/// The bytes around a field: brackets, commas, and the end of the document.
const SEPARATORS: usize = 8;

/// Converts comma-separated values: a record becomes a row, a record of one field that value.
///
/// # Errors
/// If the JSON exceeds the budget of the request: control characters take six times their size.
pub(super) fn csv(body: &[u8], dialect: Dialect) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(body.len() + body.len() / 4 + 20);
    out.extend_from_slice(b"{\"instances\":[");
    let mut reader = CsvReader::new(body, dialect);
    let mut rows = 0;
    while reader.next_record()? {
        if rows > 0 {
            out.push(b',');
        }
        rows += 1;
        let open = out.len();
        out.push(b'[');
        let mut fields = 0;
        while let Some(field) = reader.next_field()? {
            if fields > 0 {
                out.push(b',');
            }
            fields += 1;
            budget::grow(&mut out, write::string_len(field) + SEPARATORS)?;
            match csv::kind(field) {
                Field::Number(digits) => out.extend_from_slice(digits),
                Field::Text => write::string(field, &mut out),
            }
        }
        if fields == 1 {
            out.remove(open);
        } else {
            out.push(b']');
        }
    }
    out.extend_from_slice(b"]}");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::super::media::PayloadType;
    use super::*;
    use tensorserve_codec::formats::PayloadFormat;
    use tensorserve_codec::json::read::{ReadOptions, TensorReader};
    use tensorserve_tensor::budget::MemoryBudget;
    use tensorserve_tensor::{DType, Tensor};

    const VECTORS: &str = include_str!("../../../../tests/cases/sagemaker-conversion.json");
    const CASES: &str = include_str!("../../../../tests/cases/sagemaker-container.json");

    /// Conversions that differ from those of the 2.20 image.
    const OTHERWISE: [(&str, &str, &str); 1] = [
        // The image writes an unescaped tab, which is invalid JSON.
        ("csv tab", "a\tb,c", "{\"instances\":[[\"a\\tb\",\"c\"]]}"),
    ];

    #[test]
    fn control_characters_cannot_exceed_the_memory_of_the_request() {
        let request = MemoryBudget::new(4 << 20).request().expect("memory");
        let body = vec![0; 1 << 20];
        let error =
            request.enter(|| csv(&body, Dialect::Container)).expect_err("six times as large");
        assert_eq!(error.http_status(), 413, "{error}");
    }

    #[test]
    fn bodies_are_converted_like_the_container_does() {
        let vectors: Value = serde_json::from_str(VECTORS).expect("JSON");
        let mut passed = 0;
        for vector in vectors["conversion"].as_array().expect("a list") {
            let text = |key: &str| vector[key].as_str();
            let name = text("name").expect("a name");
            let body = match text("body").expect("a body") {
                // The container's proxy uses this value for a missing body.
                "<undefined>" => continue,
                body => Bytes::from(body.to_owned()),
            };
            let got = converted(text("content_type").unwrap_or("Unknown"), &body);
            let otherwise = OTHERWISE.iter().find(|(other, ..)| *other == name);
            let want = otherwise.map_or(vector["g3"]["tfs_body"].as_str(), |(.., want)| Some(want));
            assert_eq!(got.as_deref(), want, "{name}");
            passed += 1;
        }
        assert_eq!(passed, 85, "vectors are missing");
    }

    fn converted(content_type: &str, body: &Bytes) -> Option<String> {
        let body = match PayloadType::Named(content_type).format().expect("a type")? {
            PayloadFormat::Json | PayloadFormat::JsonLines => json(body).to_vec(),
            PayloadFormat::Csv(_) => csv(body, Dialect::Container).expect("no budget"),
            other @ (PayloadFormat::Npy | PayloadFormat::Image | PayloadFormat::Examples) => {
                panic!("{other:?}")
            }
        };
        Some(String::from_utf8(body).expect("text"))
    }

    #[test]
    fn every_case_of_conversion_passes() {
        // Older images garble some CSV; here it is converted as in the 2.20 image
        // (docs/sagemaker.md).
        const OTHERWISE: [&str; 3] =
            ["cv-csv-spaces-g1", "cv-csv-unquoted-3-g1", "cv-csv-quoted-num-g1"];
        let cases: Value = serde_json::from_str(CASES).expect("JSON");
        let mut count = 0;
        for case in cases["cases"].as_array().expect("a list") {
            // Cases with a status need a server.
            let Some(want) = case["expect_tfs_request_body"].as_str() else {
                continue;
            };
            if !case["expect_status"].is_null() {
                continue;
            }
            count += 1;
            let text = |value: &Value| value.as_str().expect("text").to_owned();
            let (id, body) = (text(&case["id"]), Bytes::from(text(&case["request_body"])));
            let got = converted(&text(&case["headers"]["Content-Type"]), &body);
            let is_otherwise = OTHERWISE.contains(&id.as_str());
            assert_eq!(got.as_deref() != Some(want), is_otherwise, "{id}: {got:?}, not {want:?}");
        }
        assert_eq!(count, 22, "cases are missing");
    }

    /// The tensor that the JSON made of `body` is read as.
    fn through_json(body: &[u8], dtype: DType) -> Option<Tensor> {
        let json = csv(body, Dialect::Container).expect("no budget");
        let alphabet = Alphabet::Standard;
        let options = ReadOptions {
            coerce: false,
            all_types: true,
            nulls: false,
            number_texts: None,
            alphabet,
            max_bytes: 1 << 20,
        };
        let mut reader = TensorReader::new(dtype, options, json.len());
        let mut cursor = Cursor::new(&json);
        cursor.seek(b"{\"instances\":".len());
        reader.read(&mut cursor).ok()?;
        reader.finish().ok()
    }

    proptest! {
        #[test]
        fn numbers_are_the_same_with_and_without_json(
            body in "([-0-9.eE+, \t\"]{0,12}(,|\n|\r\n|\r)){0,6}[0-9,]{0,3}",
            plain in "((-?[0-9]{1,9}(\\.[0-9]{1,20})?(e-?[0-9]{1,3})?, ?){0,3}-?[1-9][0-9]{0,19}\r?\n){1,5}",
        ) {
            for (body, dtype) in [&body, &plain].into_iter().flat_map(|body| {
                [DType::Float, DType::Double, DType::Int32, DType::UInt64].map(|dtype| (body, dtype))
            }) {
                let Some(direct) = csv::numbers(body.as_bytes(), dtype, 1 << 20) else {
                    continue;
                };
                let other = through_json(body.as_bytes(), dtype).expect("a tensor");
                prop_assert_eq!(direct.shape(), other.shape());
                prop_assert_eq!(direct.bytes(), other.bytes());
            }
        }

        #[test]
        fn rows_of_numbers_need_no_json(rows in 1..5usize, columns in 1..5usize, value: f32) {
            let line = vec![value.to_string(); columns].join(",");
            let body = vec![line; rows].join("\n");
            if value.is_finite() {
                prop_assert!(csv::numbers(body.as_bytes(), DType::Float, 1 << 20).is_some());
            }
        }
    }

    #[test]
    fn one_request_is_one() {
        let several = "{\"instances\": [1]}\n\n {\"instances\": [2]}";
        let error = check_is_one(several.as_bytes()).expect_err("two");
        assert!(error.message().contains("at line 3"), "{error}");
        for one in ["{\"instances\": [\"][\"]}\n", "[1][2]", "{\"instances\": [}{", "", "1"] {
            assert!(check_is_one(one.as_bytes()).is_ok(), "{one}");
        }
    }

    #[test]
    fn values_may_span_lines_or_share_one() {
        let repaired = |body: &str, any| match repair(body.as_bytes(), any) {
            RepairedBody::Sound => "sound".to_owned(),
            RepairedBody::Values(body) => String::from_utf8(body.to_vec()).expect("text"),
            RepairedBody::Bad(error) => error.message().to_owned(),
        };
        let two = "{\"instances\":[{\"x\":1},{\"x\":2}]}";
        assert_eq!(repaired("{\"x\":1}{\"x\":2}", false), two);
        assert_eq!(repaired("{\"x\":1} {\"x\":2}\n", false), two);
        let pretty = "{\"instances\":[{\n \"x\": 1\n},{\n \"x\": 2\n}]}";
        assert_eq!(repaired("{\n \"x\": 1\n}\n{\n \"x\": 2\n}", false), pretty);
        assert_eq!(repaired("[1]\n\n[2]\r\n", false), "sound");
        assert_eq!(repaired("1\n\"a\"\n", false), "sound");
        assert_eq!(repaired("1\n\"a\"\n", true), "{\"instances\":[1,\"a\"]}");
        assert_eq!(repaired("{\"instances\":1}{", true), "sound");
        let bad = repaired("[1]\n[2\n[3]", false);
        assert!(
            bad.starts_with("JSON Parse error: ") && bad.ends_with("offset: 2 of line 2"),
            "{bad}"
        );
        let bad = repaired("{\n \"x\": 1\n}\n{\n \"x\" 2\n}", false);
        assert!(bad.ends_with("offset: 5 of line 5"), "{bad}");
    }

    #[test]
    fn base64_of_json_is_recognized() {
        assert!(is_base64_of_json(b"eyJpbnN0YW5jZXMiOiBbMS4wXX0=\n"));
        for other in ["", "whatever", "abcd", "[1.0]", "eyJp", "MSwyLDM="] {
            assert!(!is_base64_of_json(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn blank_bodies_are_refused() {
        for blank in ["", " \n ", "\r\n"] {
            assert!(check_not_blank(blank.as_bytes()).is_err());
        }
        assert!(check_not_blank(b"0").is_ok());
    }
}
