//! Media types: what a body is, and what `Accept` makes of an answer.

use std::borrow::Cow;

use super::Compatibility;
use crate::protocol::JSON;

/// What a request's body holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// JSON of some form, also JSON lines: the container goes by the text and not by the type.
    Json,
    /// Comma-separated values.
    Csv,
}

impl Input {
    /// By the `Content-Type`: its type in any case, without parameters.
    pub(super) fn of(content_type: &str) -> Option<Self> {
        let name = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match name.as_str() {
            "application/json" | "application/jsonlines" | "application/jsons" => Some(Input::Json),
            "text/csv" => Some(Input::Csv),
            _ => None,
        }
    }
}

/// What can be sent, for who sent something else.
pub(super) const ACCEPTED: &str =
    "application/json, application/jsonlines, application/jsons, text/csv";

/// How an answer is to be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Output<'h> {
    /// As TensorFlow Serving does.
    Json,
    /// The same without its line breaks, under this name.
    OneLine(Cow<'h, str>),
}

impl<'h> Output<'h> {
    /// What `accept` asks for.
    pub(super) fn of(accept: Option<&'h str>, compatibility: Compatibility) -> Self {
        let Some(accept) = accept else {
            return Output::Json;
        };
        match compatibility {
            Compatibility::Tf219 => Output::of_tf219(accept),
            Compatibility::Tf220 | Compatibility::Extended => {
                let asked = accept.split(',').any(|name| is_json(name.trim()));
                if asked { Output::OneLine(Cow::Borrowed(JSON)) } else { Output::Json }
            }
        }
    }

    /// The images up to 2.19 take the first space out, and then go by commas: a later space
    /// hides the type behind it. The answer gets the first type's name, whichever that is.
    fn of_tf219(accept: &'h str) -> Self {
        let accept: Cow<str> = match accept.split_once(' ') {
            Some((head, tail)) => Cow::Owned(format!("{head}{tail}")),
            None => Cow::Borrowed(accept),
        };
        if !accept.split(',').any(is_json) {
            return Output::Json;
        }
        let first = accept.find(',').unwrap_or(accept.len());
        Output::OneLine(match accept {
            Cow::Borrowed(text) => Cow::Borrowed(text.get(..first).unwrap_or_default()),
            Cow::Owned(mut text) => {
                text.truncate(first);
                Cow::Owned(text)
            }
        })
    }
}

fn is_json(name: &str) -> bool {
    name == "application/json" || name == "application/jsonlines"
}

/// `text` without its line breaks.
pub(super) fn on_one_line(text: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\n', rest) {
        let (before, after) = rest.split_at_checked(at).unwrap_or_default();
        line.extend_from_slice(before);
        rest = after.get(1..).unwrap_or_default();
    }
    line.extend_from_slice(rest);
    line
}
