//! The manifest of `S3DataType: ManifestFile`: a list of objects under one prefix.

use tensorserve_codec::json::scan::Cursor;
use tensorserve_tensor::error::{Error, Result};

use crate::text;

/// The longest prefix, and the longest name after it, in bytes: the limits of S3.
const MAX_PART: usize = 1024;

/// The most text of all URIs together, in bytes.
const MAX_TOTAL: usize = 256 << 20;

fn refused(reason: &str) -> Error {
    Error::invalid(format!(
        "the manifest {reason}; it must be a JSON array of one object with a prefix and of names, as \
         in [{{\"prefix\": \"s3://bucket/folder/\"}}, \"a.csv\", \"b.csv\"]"
    ))
}

/// Reads the manifest `[{"prefix": "s3://b/p/"}, "rel/a", "rel/b"]`, and returns the URI of each
/// object. As in SageMaker this is the prefix and the name without anything between them, so the
/// prefix mostly ends with a slash.
///
/// # Errors
/// [`Error::invalid`] with the entry, counted from 1 with the prefix, that is invalid; if no object
/// is listed; and if the URIs have more than 256 MiB.
pub fn parse(json: &[u8]) -> Result<Vec<String>> {
    let list = text::document(json).map_err(|error| error.context("the manifest"))?;
    if list.first() != Some(&b'[') {
        return Err(refused(&format!("is {}, not an array", text::kind(list))));
    }
    let (mut prefix, mut uris, mut total) = (None, Vec::new(), 0);
    let mut number = 0;
    text::try_elements(list, |entry| {
        number += 1;
        let in_entry = |reason: String| refused(&format!("is invalid at entry {number}: {reason}"));
        let Some(prefix) = &prefix else {
            prefix = Some(read_prefix(entry).map_err(in_entry)?);
            return Ok(());
        };
        let name = string(entry, "name").map_err(in_entry)?;
        let uri = format!("{prefix}{name}");
        total += uri.len();
        if total > MAX_TOTAL {
            return Err(Error::invalid(format!(
                "the URIs of the manifest have more than {MAX_TOTAL} bytes: split the manifest"
            )));
        }
        uris.push(uri);
        Ok(())
    })?;
    if prefix.is_none() {
        return Err(refused("is empty"));
    }
    if uris.is_empty() {
        return Err(refused("has no names after its prefix"));
    }
    Ok(uris)
}

/// The prefix of the object `entry`.
fn read_prefix(entry: &[u8]) -> Result<String, String> {
    if entry.first() != Some(&b'{') {
        return Err(format!("it is {}, not an object with the prefix", text::kind(entry)));
    }
    let mut prefix = None;
    let read = text::members(entry, |member| {
        if *member.name == *b"prefix" {
            prefix = Some(member.value);
        }
        Ok(())
    });
    read.map_err(|error| error.message().to_owned())?;
    string(prefix.ok_or("it has no prefix")?, "prefix")
}

/// The string `value`, which is a `what`.
fn string(value: &[u8], what: &str) -> Result<String, String> {
    let Ok(text) = Cursor::new(value).string() else {
        return Err(format!("the {what} is {}, not a string", text::kind(value)));
    };
    if text.is_empty() {
        return Err(format!("the {what} is empty"));
    }
    if text.len() > MAX_PART {
        let length = text.len();
        return Err(format!("the {what} has {length} bytes, and {MAX_PART} are allowed"));
    }
    String::from_utf8(text.into_owned()).map_err(|_| format!("the {what} is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(json: &str, why: &str) {
        let error = parse(json.as_bytes()).expect_err(json);
        assert!(error.message().contains(why), "{why:?} is not in {:?}", error.message());
    }

    #[test]
    fn names_follow_the_prefix() {
        let json = br#"[ {"prefix": "s3://b/p/"}, "rel/a", "rel/b \u00e9" ]"#;
        assert_eq!(parse(json).expect("valid"), ["s3://b/p/rel/a", "s3://b/p/rel/b \u{e9}"]);
        // Nothing is put between them.
        let json = br#"[{"prefix":"s3://b/p-","note":1},"a"]"#;
        assert_eq!(parse(json).expect("valid"), ["s3://b/p-a"]);
    }

    #[test]
    fn other_documents_are_refused_with_the_entry() {
        refused("", "the manifest: is not JSON");
        refused("{\"prefix\":\"s3://b/\"}", "is an object, not an array");
        refused("[]", "is empty");
        refused("[{\"prefix\":\"s3://b/\"}]", "has no names");
        refused("[\"a\"]", "entry 1: it is a string, not an object");
        refused("[{\"Prefix\":\"s3://b/\"},\"a\"]", "entry 1: it has no prefix");
        refused("[{\"prefix\":1},\"a\"]", "entry 1: the prefix is a number");
        refused("[{\"prefix\":\"s3://b/\"},\"a\",{}]", "entry 3: the name is an object");
        refused("[{\"prefix\":\"s3://b/\"},\"\"]", "entry 2: the name is empty");
        refused("[{\"prefix\":\"s3://b/\"},\"a\"", "is not JSON");
        let long = "a".repeat(1025);
        refused(&format!("[{{\"prefix\":\"{long}\"}},\"a\"]"), "1025 bytes, and 1024 are allowed");
    }

    #[test]
    fn memory_is_bounded() {
        let prefix = "a".repeat(1024);
        let names = ",\"b\"".repeat(300_000);
        refused(&format!("[{{\"prefix\":\"{prefix}\"}}{names}]"), "split the manifest");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, text in "[\\[{}\\]\"prefix:, a]{0,24}") {
            let _ = parse(&bytes);
            let _ = parse(text.as_bytes());
        }
    }
}
