//! Reads forms (`multipart/form-data`, RFC 7578).
//!
//! A form is read whole, and its parts are slices of it: a form of many small parts, headers or parameters takes
//! little more than its bytes.

use std::borrow::Cow;

use actix_web::dev::Payload;
use actix_web::http::header::{CONTENT_TYPE, HeaderMap};
use bytes::Bytes;
use memchr::memmem;

use super::body::{self, BodyError, BodyLimits, check_length, compression_of};
use tensorserve_protocol::MultipartForm;
use tensorserve_tensor::budget::RequestBudget;
use tensorserve_tensor::error::Code;

/// What a part takes besides its name: its place in a list that grows, and the allocations of both.
const PART_OVERHEAD: usize = 192;

/// The most parts of a form: more than any real form has.
const MOST_PARTS: usize = 1024;

/// The most headers of a part, and the most bytes of all of them and of what precedes the first part.
const MOST_HEADERS: usize = 32;
const MOST_HEADER_BYTES: usize = 64 << 10;

/// Reads a whole form. What it takes is reserved in `budget`.
///
/// # Errors
/// If it exceeds `limits`, is truncated or malformed, has too many parts, or is compressed; if there is
/// no memory for it.
pub async fn read(
    headers: &HeaderMap,
    mut payload: Payload,
    limits: BodyLimits<'_>,
    budget: &RequestBudget,
) -> Result<MultipartForm, BodyError> {
    check_length(headers, limits.bytes())?;
    if compression_of(headers)?.is_some() {
        let message = "a form must not be compressed: send it without Content-Encoding";
        return Err(BodyError::unsupported(message.to_owned()));
    }
    let body = body::read(headers, &mut payload, limits, budget, || 0).await?;
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
    let boundary = parameter(kind, b"boundary").filter(|boundary| !boundary.is_empty());
    let boundary = boundary.ok_or_else(|| bad("its Content-Type declares no boundary"))?;
    parse(&body, &boundary, budget)
}

/// Splits a form into its parts.
fn parse(
    body: &Bytes,
    boundary: &[u8],
    budget: &RequestBudget,
) -> Result<MultipartForm, BodyError> {
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    let mut form = MultipartForm::default();
    let mut at = first_part(body, &delimiter)?;
    loop {
        let number = form.parts.len() + 1;
        let Some(headers_start) = part_after(body, at) else {
            return if is_last(body, at) { Ok(form) } else { Err(unfinished(number)) };
        };
        if number > MOST_PARTS {
            return Err(bad(&format!("it has more than {MOST_PARTS} parts")));
        }
        let (name, start) = read_headers(body, headers_start, number)?;
        let end = delimiter_from(body, start, &finder).ok_or_else(|| unfinished(number))?;
        budget.reserve(name.len().saturating_add(PART_OVERHEAD))?;
        form.parts.push((name, body.slice(start..end)));
        at = end + delimiter.len();
    }
}

/// The place behind the first delimiter, which may be at the start or after lines that are no part.
fn first_part(body: &[u8], delimiter: &[u8]) -> Result<usize, BodyError> {
    let at_start = delimiter.get(2..).unwrap_or_default();
    if body.starts_with(at_start) && is_delimited(body, at_start.len()) {
        return Ok(at_start.len());
    }
    let start = body.get(..MOST_HEADER_BYTES).unwrap_or(body);
    match delimiter_from(start, 0, &memmem::Finder::new(delimiter)) {
        Some(at) => Ok(at + delimiter.len()),
        None if body.len() > start.len() => Err(too_long(1)),
        None => Err(unfinished(1)),
    }
}

/// The place of the first delimiter from `start` on. What only begins like one is content.
fn delimiter_from(body: &[u8], start: usize, finder: &memmem::Finder<'_>) -> Option<usize> {
    let mut found = finder.find_iter(body.get(start..)?).map(|at| start + at);
    found.find(|at| is_delimited(body, at + finder.needle().len()))
}

fn is_delimited(body: &[u8], at: usize) -> bool {
    part_after(body, at).is_some() || is_last(body, at)
}

/// The place behind the line of a delimiter that ends at `at`; `None` if no part follows it.
fn part_after(body: &[u8], at: usize) -> Option<usize> {
    let rest = body.get(at..)?;
    let spaces = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    rest.get(spaces..)?.starts_with(b"\r\n").then_some(at + spaces + 2)
}

/// Whether the delimiter that ends at `at` is the last one.
fn is_last(body: &[u8], at: usize) -> bool {
    let behind = body.get(at..).and_then(|rest| rest.strip_prefix(b"--"));
    behind.is_some_and(|rest| matches!(rest.first(), None | Some(b'\r' | b'\n' | b' ' | b'\t')))
}

/// The name of the part whose headers start at `start`, and where its content starts.
fn read_headers(body: &[u8], start: usize, number: usize) -> Result<(String, usize), BodyError> {
    let rest = body.get(start..).unwrap_or_default();
    let window = rest.get(..MOST_HEADER_BYTES).unwrap_or(rest);
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let parsed = httparse::parse_headers(window, &mut headers)
        .map_err(|cause| bad(&format!("the headers of part {number} cannot be read: {cause}")))?;
    let httparse::Status::Complete((length, headers)) = parsed else {
        let is_cut = window.len() < rest.len();
        return Err(if is_cut { too_long(number) } else { unfinished(number) });
    };
    let disposition =
        headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-disposition"));
    let name = disposition.and_then(|header| parameter(header.value, b"name"));
    let name = name
        .ok_or_else(|| bad(&format!("its part {number} has no Content-Disposition with a name")))?;
    Ok((String::from_utf8_lossy(&name).into_owned(), start + length))
}

/// The parameter `wanted` of a header's value, such as `form-data; name="a"`. Its name is in lower case.
fn parameter<'v>(value: &'v [u8], wanted: &[u8]) -> Option<Cow<'v, [u8]>> {
    let mut rest = after(value, b';')?;
    loop {
        let equals = memchr::memchr2(b'=', b';', rest)?;
        let (name, behind) = rest.split_at_checked(equals)?;
        if behind.starts_with(b";") {
            rest = behind.get(1..)?;
            continue;
        }
        let behind = behind.get(1..)?.trim_ascii_start();
        let (found, behind) = match behind.strip_prefix(b"\"") {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = memchr::memchr(b';', behind).unwrap_or(behind.len());
                let (token, behind) = behind.split_at_checked(end)?;
                (Cow::Borrowed(token.trim_ascii()), behind)
            }
        };
        if name.trim_ascii().eq_ignore_ascii_case(wanted) {
            return Some(found);
        }
        rest = after(behind, b';')?;
    }
}

/// What follows the first `separator`.
fn after(bytes: &[u8], separator: u8) -> Option<&[u8]> {
    bytes.get(memchr::memchr(separator, bytes)? + 1..)
}

/// The text up to the closing quote, and what follows it. A backslash stands before a quote and before another
/// one; before anything else it is a part of a path.
fn unquoted(quoted: &[u8]) -> Option<(Cow<'_, [u8]>, &[u8])> {
    let mut text = Cow::Borrowed(&b""[..]);
    let mut rest = quoted;
    loop {
        let at = memchr::memchr2(b'"', b'\\', rest)?;
        let (plain, behind) = rest.split_at_checked(at)?;
        if behind.starts_with(b"\"") {
            append(&mut text, plain);
            return Some((text, behind.get(1..)?));
        }
        let is_escape = matches!(behind.get(1), Some(b'"' | b'\\'));
        append(&mut text, plain);
        append(&mut text, behind.get(usize::from(is_escape)..usize::from(is_escape) + 1)?);
        rest = behind.get(1 + usize::from(is_escape)..)?;
    }
}

/// Appends `more`, without a copy if it is all.
fn append<'v>(text: &mut Cow<'v, [u8]>, more: &'v [u8]) {
    if text.is_empty() {
        *text = Cow::Borrowed(more);
    } else if !more.is_empty() {
        text.to_mut().extend_from_slice(more);
    }
}

fn unfinished(part: usize) -> BodyError {
    bad(&format!(
        "it ends in part {part}, before the closing boundary that its Content-Type declares"
    ))
}

fn too_long(part: usize) -> BodyError {
    bad(&format!(
        "the headers of part {part}, or a line before the first part, are longer than 64 KiB"
    ))
}

fn bad(why: &str) -> BodyError {
    let message = format!("Invalid form-data: {why}");
    BodyError::new(400, Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use tensorserve_tensor::budget::MemoryBudget;

    use super::*;

    fn parsed(body: &str) -> Result<Vec<(String, String)>, String> {
        let budget = MemoryBudget::default().request().unwrap();
        let form = parse(&Bytes::from(body.to_owned()), b"b", &budget);
        let form = form.map_err(|refused| refused.error.message().to_owned())?;
        let text = |content: Bytes| String::from_utf8(content.to_vec()).unwrap();
        Ok(form.parts.into_iter().map(|(name, content)| (name, text(content))).collect())
    }

    #[test]
    fn parts_are_between_delimiters() {
        let part = "Content-Disposition: form-data; name=\"a\"";
        let one = |name: &str, content: &str| Ok(vec![(name.to_owned(), content.to_owned())]);
        assert_eq!(parsed(&format!("--b\r\n{part}\r\n\r\nx\r\n--b--\r\n")), one("a", "x"));
        assert_eq!(parsed(&format!("--b  \r\n{part}\r\n\r\n\r\n--b--")), one("a", ""));
        let within =
            format!("before\r\n--b\r\nX: y\r\n{part}\r\n\r\nx\r\n--\r\n\r\n--b--\r\nafter");
        assert_eq!(parsed(&within), one("a", "x\r\n--\r\n"));
        assert_eq!(parsed("--b--\r\n"), Ok(Vec::new()));
        let two = format!("--b\r\n{part}\r\n\r\nx\r\n--b\r\n{part}\r\n\r\ny\r\n--b--\r\n");
        assert_eq!(parsed(&two).unwrap().len(), 2);
        let nameless = parsed("--b\r\nX: y\r\n\r\nx\r\n--b--\r\n").unwrap_err();
        assert!(nameless.contains("its part 1 has no Content-Disposition"), "{nameless}");
    }

    #[test]
    fn parameters_are_tokens_or_quoted() {
        let name = |value: &'static str| {
            parameter(value.as_bytes(), b"name")
                .map(|found| String::from_utf8_lossy(&found).into_owned())
        };
        for value in [
            "form-data; name=\"a\"",
            "form-data; name=a",
            "form-data;NAME = a ; x",
            "form-data; filename=\"b; name=c\"; name=\"a\"",
            "form-data; filename=b.png;name=\"a\"",
            "form-data; x; name=\"a\"",
        ] {
            assert_eq!(name(value).as_deref(), Some("a"), "{value}");
        }
        assert_eq!(name(r#"form-data; name="a\"b\\c\d""#).as_deref(), Some(r#"a"b\c\d"#));
        for value in ["form-data", "form-data; filename=\"name\"", "form-data; name=\"a", ""] {
            assert_eq!(name(value), None, "{value}");
        }
    }
}
