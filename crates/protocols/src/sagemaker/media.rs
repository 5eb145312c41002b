//! Media types, and the formats of payloads and responses that they name.

use std::borrow::Cow;

use super::Compatibility;
use tensorserve_codec::formats::{CsvForm, PayloadFormat};
use tensorserve_codec::table::Header;
use tensorserve_protocol::{self as protocol, JSON, NPY, media_type};
use tensorserve_tensor::error::Result;

/// The type of a payload.
#[derive(Clone, Copy, Debug)]
pub enum PayloadType<'t> {
    /// That of a `Content-Type`. Handlers get it as it is.
    Named(&'t str),
    /// That of a payload which was made in this process.
    Known(PayloadFormat),
}

impl<'t> PayloadType<'t> {
    /// The format; `None` for an unknown media type. Parameters count only for CSV.
    ///
    /// # Errors
    /// For another `header` than RFC 4180's.
    pub(super) fn format(self) -> Result<Option<PayloadFormat>> {
        match self {
            PayloadType::Known(format) => Ok(Some(format)),
            PayloadType::Named(content_type) => Ok(match payload_format(content_type) {
                Some(PayloadFormat::Csv(form)) => {
                    let header = header_of(content_type)?;
                    Some(PayloadFormat::Csv(CsvForm { header, ..form }))
                }
                other => other,
            }),
        }
    }

    /// The `Content-Type`, for those who are told one.
    pub(super) fn content_type(self) -> &'t str {
        match self {
            PayloadType::Named(content_type) => content_type,
            PayloadType::Known(format) => match format {
                PayloadFormat::Json => JSON,
                PayloadFormat::JsonLines => "application/jsonlines",
                PayloadFormat::Csv(form) => match form.header {
                    Header::Auto => "text/csv",
                    Header::Present => "text/csv; header=present",
                    Header::Absent => "text/csv; header=absent",
                },
                PayloadFormat::Npy => NPY,
                PayloadFormat::Image => "application/x-image",
                PayloadFormat::Examples => "application/x-tfrecord",
            },
        }
    }
}

/// The format of payloads of a media type, in any case and whatever its parameters are; `None` for an unknown one.
#[must_use]
pub fn payload_format(content_type: &str) -> Option<PayloadFormat> {
    let name = media_type(content_type);
    match name.as_str() {
        "application/json" => Some(PayloadFormat::Json),
        "application/jsonlines" | "application/jsons" => Some(PayloadFormat::JsonLines),
        "text/csv" => Some(PayloadFormat::Csv(CsvForm::default())),
        NPY => Some(PayloadFormat::Npy),
        "application/x-image" => Some(PayloadFormat::Image),
        "application/x-tfrecord" | "application/x-tfexample" => Some(PayloadFormat::Examples),
        _ if name.starts_with("image/") => Some(PayloadFormat::Image),
        _ => None,
    }
}

/// What the parameter `header` of a `Content-Type` says.
fn header_of(content_type: &str) -> Result<Header> {
    for parameter in content_type.split(';').skip(1) {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        if name.trim().eq_ignore_ascii_case("header") {
            return Header::parse(value.trim().trim_matches('"'));
        }
    }
    Ok(Header::Auto)
}

/// The supported types, for errors.
pub(super) const ACCEPTED: &str = "application/json, application/jsonlines, application/jsons, \
                                   text/csv, application/x-npy, application/x-image, image/*, \
                                   application/x-tfrecord, application/x-tfexample";

/// The format of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ResponseFormat {
    /// TensorFlow Serving's JSON.
    Json,
    /// TensorFlow Serving's JSON without line breaks, with this content type.
    OneLine(Cow<'static, str>),
    /// One line of JSON per row.
    Lines,
    /// Comma-separated values.
    Csv,
    /// The array of the one output.
    Npy,
}

impl ResponseFormat {
    /// The format that `accept` selects.
    pub(super) fn of(accept: Option<&str>, compatibility: Compatibility) -> Self {
        let Some(accept) = accept else {
            return ResponseFormat::Json;
        };
        let output = match compatibility {
            Compatibility::Tf219 => ResponseFormat::of_tf219(accept),
            Compatibility::Tf220 => {
                let asked = accept.split(',').any(|name| is_json(name.trim()));
                if asked {
                    ResponseFormat::OneLine(Cow::Borrowed(JSON))
                } else {
                    ResponseFormat::Json
                }
            }
            Compatibility::Extended => return ResponseFormat::first_choice(accept),
        };
        // The container's response would not be an array.
        match (output, ResponseFormat::first_choice(accept)) {
            (ResponseFormat::Json, ResponseFormat::Npy) => ResponseFormat::Npy,
            (output, _) => output,
        }
    }

    /// The supported type with the highest weight; among equal weights, the first.
    fn first_choice(accept: &str) -> Self {
        protocol::first_choice(accept, Self::of_media_type).unwrap_or(ResponseFormat::Json)
    }

    fn of_media_type(name: &str) -> Option<Self> {
        match name {
            "application/json" => Some(ResponseFormat::OneLine(Cow::Borrowed(JSON))),
            "application/jsonlines" | "application/jsons" | "application/x-ndjson" => {
                Some(ResponseFormat::Lines)
            }
            "text/csv" => Some(ResponseFormat::Csv),
            NPY => Some(ResponseFormat::Npy),
            _ => None,
        }
    }

    /// The images up to 2.19 remove the first space and then split at commas: a later space hides the type
    /// that follows it. The content type of the response is the first type in any case.
    fn of_tf219(accept: &str) -> Self {
        let accept: Cow<str> = match accept.split_once(' ') {
            Some((head, tail)) => Cow::Owned(format!("{head}{tail}")),
            None => Cow::Borrowed(accept),
        };
        if !accept.split(',').any(is_json) {
            return ResponseFormat::Json;
        }
        let first = accept.split(',').next().unwrap_or_default();
        ResponseFormat::OneLine(match first {
            JSON => Cow::Borrowed(JSON),
            other => Cow::Owned(other.to_owned()),
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

    /// The content type and the body of the container's response for `accept`.
    fn answer(accept: Option<&str>, compatibility: Compatibility) -> (String, String) {
        match ResponseFormat::of(accept, compatibility) {
            ResponseFormat::Json => ("(default application/json)".into(), "unchanged".into()),
            ResponseFormat::OneLine(name) => {
                (name.into_owned(), String::from_utf8(on_one_line(PRETTY)).expect("text"))
            }
            other @ (ResponseFormat::Lines | ResponseFormat::Csv | ResponseFormat::Npy) => {
                panic!("{other:?}")
            }
        }
    }

    #[test]
    fn accept_is_read_like_the_container_does() {
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
    fn extended_follows_accept() {
        let of = |accept| ResponseFormat::of(Some(accept), Compatibility::Extended);
        let json = || ResponseFormat::OneLine(Cow::Borrowed(JSON));
        assert_eq!(of("text/csv, application/json"), ResponseFormat::Csv);
        assert_eq!(of("text/csv;q=0.5, Application/JSON"), json());
        assert_eq!(of("application/jsonlines"), ResponseFormat::Lines);
        assert_eq!(of("*/*"), ResponseFormat::Json);
        assert_eq!(of("text/html, application/x-npy;q=0.1"), ResponseFormat::Npy);
        assert_eq!(of("text/csv;q=0"), ResponseFormat::Json);
    }

    #[test]
    fn arrays_are_sent_to_clients_that_accept_only_arrays() {
        for compatibility in [Compatibility::Tf219, Compatibility::Tf220] {
            let of = |accept| ResponseFormat::of(Some(accept), compatibility);
            assert_eq!(of("application/x-npy"), ResponseFormat::Npy);
            assert_eq!(of("application/x-npy, */*"), ResponseFormat::Npy);
            assert_ne!(of("application/x-npy, application/json"), ResponseFormat::Npy);
        }
    }
}
