//! Media types: what a body is, and what `Accept` makes of an answer.

use std::borrow::Cow;

use super::Compatibility;
use tensorserve_protocol::{self as protocol, JSON, NPY, media_type};

/// What a request's body holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// JSON of some form, also JSON lines: the container goes by the text and not by the type.
    Json,
    /// Comma-separated values.
    Csv,
    /// An array as `numpy.save` writes it.
    Npy,
    /// An image file, for the model to decode.
    Image,
    /// Records of `tf.Example`, or one.
    Examples,
}

impl Input {
    /// By the `Content-Type`: its type in any case, without parameters.
    pub(super) fn of(content_type: &str) -> Option<Self> {
        let name = media_type(content_type);
        match name.as_str() {
            "application/json" | "application/jsonlines" | "application/jsons" => Some(Input::Json),
            "text/csv" => Some(Input::Csv),
            NPY => Some(Input::Npy),
            "application/x-image" => Some(Input::Image),
            "application/x-tfrecord" | "application/x-tfexample" => Some(Input::Examples),
            _ if name.starts_with("image/") => Some(Input::Image),
            _ => None,
        }
    }
}

/// What can be sent, for who sent something else.
pub(super) const ACCEPTED: &str = "application/json, application/jsonlines, application/jsons, \
                                   text/csv, application/x-npy, application/x-image, image/*, \
                                   application/x-tfrecord, application/x-tfexample";

/// How an answer is to be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Output<'h> {
    /// As TensorFlow Serving does.
    Json,
    /// The same without its line breaks, under this name.
    OneLine(Cow<'h, str>),
    /// A line of JSON for each row.
    Lines,
    /// Comma-separated values.
    Csv,
    /// The array of the one output.
    Npy,
}

impl<'h> Output<'h> {
    /// What `accept` asks for.
    pub(super) fn of(accept: Option<&'h str>, compatibility: Compatibility) -> Self {
        let Some(accept) = accept else {
            return Output::Json;
        };
        let output = match compatibility {
            Compatibility::Tf219 => Output::of_tf219(accept),
            Compatibility::Tf220 => {
                let asked = accept.split(',').any(|name| is_json(name.trim()));
                if asked { Output::OneLine(Cow::Borrowed(JSON)) } else { Output::Json }
            }
            Compatibility::Extended => return Output::first_choice(accept),
        };
        // Nobody could read the container's answer as an array.
        match (output, Output::first_choice(accept)) {
            (Output::Json, Output::Npy) => Output::Npy,
            (output, _) => output,
        }
    }

    /// Of the types that can be given the one with the highest weight; of several the first.
    fn first_choice(accept: &str) -> Self {
        let known = |name: &str| match name {
            "application/json" => Some(Output::OneLine(Cow::Borrowed(JSON))),
            "application/jsonlines" | "application/jsons" | "application/x-ndjson" => {
                Some(Output::Lines)
            }
            "text/csv" => Some(Output::Csv),
            NPY => Some(Output::Npy),
            _ => None,
        };
        protocol::first_choice(accept, known).unwrap_or(Output::Json)
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

/// The two types that the container looks for.
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const VECTORS: &str = include_str!("../../../../tests/cases/sagemaker-conversion.json");
    const PRETTY: &[u8] = b"{\n    \"predictions\": [3.5, 4.0, 5.5\n    ]\n}";

    /// Content type and body that the container has for `accept`.
    fn answer(accept: Option<&str>, compatibility: Compatibility) -> (String, String) {
        match Output::of(accept, compatibility) {
            Output::Json => ("(default application/json)".into(), "unchanged".into()),
            Output::OneLine(name) => {
                (name.into_owned(), String::from_utf8(on_one_line(PRETTY)).expect("text"))
            }
            other @ (Output::Lines | Output::Csv | Output::Npy) => panic!("{other:?}"),
        }
    }

    #[test]
    fn accept_does_what_it_does_there() {
        let vectors: Value = serde_json::from_str(VECTORS).expect("JSON");
        let vectors = vectors["accept"].as_array().expect("a list");
        assert_eq!(vectors.len(), 12);
        for vector in vectors {
            let accept = vector["accept"].as_str();
            let old = answer(accept, Compatibility::Tf219);
            assert_eq!(
                (&vector["g1"][1], &vector["g1"][2]),
                (&old.0.into(), &old.1.into()),
                "{accept:?}"
            );
            let new = answer(accept, Compatibility::Tf220);
            assert_eq!(
                (&vector["g3"][1], &vector["g3"][2]),
                (&new.0.into(), &new.1.into()),
                "{accept:?}"
            );
        }
    }

    #[test]
    fn extended_gives_what_is_asked_for() {
        let of = |accept| Output::of(Some(accept), Compatibility::Extended);
        let json = || Output::OneLine(Cow::Borrowed(JSON));
        assert_eq!(of("text/csv, application/json"), Output::Csv);
        assert_eq!(of("text/csv;q=0.5, Application/JSON"), json());
        assert_eq!(of("application/jsonlines"), Output::Lines);
        assert_eq!(of("*/*"), Output::Json);
        assert_eq!(of("text/html, application/x-npy;q=0.1"), Output::Npy);
        assert_eq!(of("text/csv;q=0"), Output::Json);
    }

    #[test]
    fn arrays_are_given_to_who_wants_nothing_else() {
        for compatibility in [Compatibility::Tf219, Compatibility::Tf220] {
            let of = |accept| Output::of(Some(accept), compatibility);
            assert_eq!(of("application/x-npy"), Output::Npy);
            assert_eq!(of("application/x-npy, */*"), Output::Npy);
            assert_ne!(of("application/x-npy, application/json"), Output::Npy);
        }
    }
}
