//! The wires clients speak. Each protocol turns bytes into an
//! [`InferRequest`](tensorserve_core::engine::InferRequest) and an answer into bytes, owns its JSON and its
//! error texts, and knows models only through the [`Engine`](tensorserve_core::engine::Engine).
//!
//! No protocol knows sockets or the HTTP library: a request comes in as method, path and body,
//! and goes out as a [`Reply`].
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;

use tensorserve_core::engine::Served;
use tensorserve_tensor::error::Error;

pub mod form;

/// What a request says before its body.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// Path and query, as they were sent.
    pub target: &'a str,
    /// The headers.
    pub headers: &'a dyn Headers,
    /// Answer exactly as the server we replace does, without our additions.
    pub exact: bool,
}

/// The headers of a request. A protocol asks for those it knows.
pub trait Headers {
    /// The first value of header `name` (in lower case), if it is text.
    fn get(&self, name: &str) -> Option<&str>;
}

impl Headers for HashMap<&'static str, String> {
    fn get(&self, name: &str) -> Option<&str> {
        HashMap::get(self, name).map(String::as_str)
    }
}

impl<'a> Head<'a> {
    /// The path, without the query.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.target.split_once('?').map_or(self.target, |(path, _)| path)
    }

    /// Names and values in the query, decoded.
    pub fn parameters(&self) -> impl Iterator<Item = (String, String)> {
        form::fields(self.target.split_once('?').map_or("", |(_, query)| query))
    }

    /// The first value of `name` in the query.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<String> {
        self.parameters().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The first value of header `name` (in lower case), if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.headers.get(name)
    }
}

/// An HTTP answer.
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Value of the `Content-Type` header.
    pub content_type: Cow<'static, str>,
    /// Further headers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Bytes,
    /// What follows of the body later, piece by piece; without it, nothing does.
    pub more: Option<Chunks>,
    /// The inference it answers, if it was one.
    pub served: Option<Served>,
    /// The failure it tells of, for the log.
    pub error: Option<Error>,
}

/// A body that comes piece by piece.
pub type Chunks = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// The content type of most answers.
pub const JSON: &str = "application/json";

/// The content type of one NumPy array.
pub const NPY: &str = "application/x-npy";

/// The type that a `Content-Type` names, in lower case and without parameters.
pub fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The first choice among the types of an `Accept` header that `of` knows: of what it makes of
/// them, that with the highest weight, and of several the first.
pub fn first_choice<T>(accept: &str, of: impl Fn(&str) -> Option<T>) -> Option<T> {
    let (mut best, mut choice) = (0.0, None);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        let weight = weight.unwrap_or(1.0);
        if weight > best
            && let Some(known) = of(&name)
        {
            (best, choice) = (weight, Some(known));
        }
    }
    choice
}

/// The header of an answer to a method that a path does not take: those that it takes.
pub const ALLOW: &str = "allow";

impl Reply {
    /// An answer with this body and status 200.
    pub fn ok(content_type: impl Into<Cow<'static, str>>, body: impl Into<Bytes>) -> Self {
        let content_type = content_type.into();
        let (headers, body) = (Vec::new(), body.into());
        Reply { status: 200, content_type, headers, body, more: None, served: None, error: None }
    }

    /// The same answer with one more header, `name` in lower case.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The same answer with another status.
    #[must_use]
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// The same answer, counted as an inference.
    #[must_use]
    pub fn with_served(mut self, served: Served) -> Self {
        self.served = Some(served);
        self
    }
}

/// The text with `%41` as `A`; what is no such escape stays, what is no UTF-8 is replaced.
pub fn percent_decoded(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let digit = |byte: &u8| char::from(*byte).to_digit(16);
        if let (b'%', [high, low, after @ ..]) = (byte, tail)
            && let (Some(high), Some(low)) = (digit(high), digit(low))
        {
            bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
            rest = after;
            continue;
        }
        bytes.push(byte);
        rest = tail;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The text as it may stand in a path or a query: `%41` for every byte that is no letter, digit,
/// `-`, `.` or `_`.
pub fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The most bytes of an error's text that go to a client.
pub const LONGEST_ERROR: usize = 4096;

/// An error's text as it goes to a client. Errors quote what was sent, and that can be a name or a
/// string of any size; of a text that is too long the middle is left out, since its start says
/// what is wrong and its end what to do.
pub fn bounded(message: &str) -> Cow<'_, str> {
    if message.len() <= LONGEST_ERROR {
        return Cow::Borrowed(message);
    }
    let is_boundary = |at: &usize| message.is_char_boundary(*at);
    let start = (0..=LONGEST_ERROR / 2).rev().find(is_boundary).unwrap_or(0);
    let end = message.len() - LONGEST_ERROR / 2;
    let end = (end..message.len()).find(is_boundary).unwrap_or(message.len());
    let (head, tail) = (message.get(..start), message.get(end..));
    let left_out = end - start;
    let (head, tail) = (head.unwrap_or_default(), tail.unwrap_or_default());
    Cow::Owned(format!("{head}… ({left_out} bytes left out) …{tail}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_encoded_stands_in_a_path_and_can_be_decoded(text in any::<String>()) {
            let encoded = percent_encoded(&text);
            prop_assert!(encoded.bytes().all(|b| b.is_ascii_graphic() && b != b'/'));
            prop_assert_eq!(percent_decoded(&encoded), text);
        }
    }

    #[test]
    fn long_errors_lose_their_middle() {
        assert_eq!(bounded("short"), "short");
        let exact = "a".repeat(LONGEST_ERROR);
        assert_eq!(bounded(&exact), exact);
        // Characters of three bytes, so that neither cut falls between two of them.
        let long = format!("start {}end", "€".repeat(100_000));
        let cut = bounded(&long);
        assert!(cut.len() < LONGEST_ERROR + 100, "{}", cut.len());
        assert!(cut.starts_with("start €") && cut.ends_with("€end"), "{cut}");
        assert!(cut.contains("bytes left out"), "{cut}");
    }
}
