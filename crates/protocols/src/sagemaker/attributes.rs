//! `X-Amzn-SageMaker-Custom-Attributes`: the model, version and method of a request.
//!
//! The container finds `tfs-KEY=VALUE` anywhere in the header, so the header can have other content,
//! too. Only the values of known keys are checked.

use std::fmt;

use super::Compatibility;
use tensorserve_core::engine::Method;
use tensorserve_tensor::error::{Error, Result};

/// The header, in lower case.
pub(super) const HEADER: &str = "x-amzn-sagemaker-custom-attributes";

/// The attributes in the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attributes<'h> {
    /// `tfs-model-name`.
    pub(super) model: Option<&'h str>,
    /// `tfs-model-version`.
    pub(super) version: Option<i64>,
    /// `tfs-method`; the default is `predict`.
    pub(super) method: Method,
}

impl<'h> Attributes<'h> {
    /// Parses the value of the header. Of several values for one key, the last wins.
    ///
    /// # Errors
    /// If a value is not a valid name, version or method.
    pub(super) fn parse(text: &'h str, compatibility: Compatibility) -> Result<Self> {
        let mut attributes = Attributes { model: None, version: None, method: Method::Predict };
        for (key, value) in AttributePairs(text) {
            let value = value.trim();
            match key {
                "tfs-model-name" if is_name(value, compatibility) => attributes.model = Some(value),
                "tfs-model-name" => {
                    return Err(invalid(
                        key,
                        "must be a model's name, without / and : and control characters",
                    ));
                }
                "tfs-model-version" => attributes.version = Some(version(value)?),
                "tfs-method" => attributes.method = method(value)?,
                _ => {}
            }
        }
        Ok(attributes)
    }
}

/// The container's message, followed by the rule.
fn invalid(key: &str, rule: impl fmt::Display) -> Error {
    Error::invalid(format!("invalid {key}: {rule}"))
}

/// Whether a model name is valid. The 2.20 image accepts fewer names than older images and TensorFlow
/// Serving.
fn is_name(name: &str, compatibility: Compatibility) -> bool {
    match compatibility {
        Compatibility::Tf220 => is_plain(name),
        Compatibility::Tf219 | Compatibility::Extended => {
            (1..=LONGEST_NAME).contains(&name.len()) && !name.bytes().any(is_forbidden)
        }
    }
}

fn is_forbidden(byte: u8) -> bool {
    byte < b' ' || b"/:\x7f".contains(&byte)
}

/// Whether a model name is also valid in a URL path and in a file path.
pub(super) fn is_plain(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && name.len() <= LONGEST_NAME
}

/// The most bytes of a model's name.
const LONGEST_NAME: usize = 255;

fn version(digits: &str) -> Result<i64> {
    let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok());
    number.flatten().ok_or_else(|| invalid("tfs-model-version", "must be a positive integer"))
}

fn method(word: &str) -> Result<Method> {
    match word {
        "predict" => Ok(Method::Predict),
        "classify" => Ok(Method::Classify),
        "regress" => Ok(Method::Regress),
        _ => Err(invalid("tfs-method", "must be one of predict|classify|regress")),
    }
}

/// The last value of `key` as it was sent, or `None`, without defaults.
pub(super) fn last<'h>(text: &'h str, key: &str) -> Option<&'h str> {
    AttributePairs(text).filter(|(name, _)| *name == key).last().map(|(_, value)| value)
}

/// All matches of the container's `tfs-[a-z\-]+=[^,]+`, as key and value. As in the container, values
/// that contain `=` are skipped.
struct AttributePairs<'h>(&'h str);

impl<'h> Iterator for AttributePairs<'h> {
    type Item = (&'h str, &'h str);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.0.get(self.0.find("tfs-")?..)?;
            let key = rest.find(|c: char| !c.is_ascii_lowercase() && c != '-');
            let key = key.unwrap_or(rest.len());
            let (key, tail) = rest.split_at_checked(key)?;
            let value = tail.strip_prefix('=').and_then(|value| value.split(',').next());
            let (Some(value @ [_, ..]), true) = (value.map(str::as_bytes), key.len() > 4) else {
                // A match that starts within the key would end in the same way.
                self.0 = tail;
                continue;
            };
            let end = key.len() + 1 + value.len();
            let value = rest.get(key.len() + 1..end)?;
            self.0 = rest.get(end..)?;
            if !value.contains('=') {
                return Some((key, value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> std::result::Result<Attributes<'_>, String> {
        Attributes::parse(text, Compatibility::Tf219).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn other_content_is_ignored() {
        let plain = Attributes { model: None, version: None, method: Method::Predict };
        for text in [
            "",
            "c000b4f9-df62-4c85-a0bf-7c525f9104a4",
            "tfs-model-name=",
            "tfs-model-name",
            "TFS-MODEL-NAME=m",
            "tfs-=m",
            "tfs-model-name=a=b",
            "tfs-tfs-model-name=m",
            "tfs-foo=1",
            "é=tfs-",
        ] {
            assert_eq!(parse(text), Ok(plain.clone()), "{text}");
        }
    }

    #[test]
    fn headers_are_read_like_the_container_does() {
        // Both images are wrong here: white space is not part of a name.
        const OTHERWISE: &str = "tfs-model-name=m , tfs-method=predict";
        let vectors = include_str!("../../../../tests/cases/sagemaker-conversion.json");
        let vectors: serde_json::Value = serde_json::from_str(vectors).expect("JSON");
        let vectors = vectors["custom_attributes"].as_array().expect("a list");
        assert_eq!(vectors.len(), 17);
        for vector in vectors {
            let text = |key: &str| vector[key].as_str().expect("text");
            let header = text("header");
            // Images up to 2.19 pass invalid values on, and TensorFlow Serving refuses them.
            let refused = ["version=abc", "method=metadata", "name=../"];
            let old = if refused.iter().any(|part| header.contains(part)) { "g3" } else { "g1" };
            for (compatibility, key) in [(Compatibility::Tf219, old), (Compatibility::Tf220, "g3")]
            {
                let got = uri(header, compatibility);
                match (text(key).strip_prefix("400 {\"error\":\""), header) {
                    (_, OTHERWISE) => assert_eq!(got, "/tfs uri: /tfs/v1/models/m:predict"),
                    (Some(error), _) => assert!(got.starts_with(error.trim_end_matches("\"}"))),
                    (None, _) => assert_eq!(got, text(key), "{header}"),
                }
            }
        }
    }

    fn uri(header: &str, compatibility: Compatibility) -> String {
        let attributes = match Attributes::parse(header, compatibility) {
            Ok(attributes) => attributes,
            Err(error) => return error.message().to_owned(),
        };
        let model = attributes.model.unwrap_or("DEF");
        let version = attributes.version.map_or(String::new(), |v| format!("/versions/{v}"));
        let verb = attributes.method.name();
        format!("/tfs uri: /tfs/v1/models/{model}{version}:{verb}")
    }

    #[test]
    fn values_are_found_anywhere() {
        let all = parse("a=b, tfs-model-name=my model ,xtfs-model-version=007,tfs-method=regress");
        let want =
            Attributes { model: Some("my model"), version: Some(7), method: Method::Regress };
        assert_eq!(all, Ok(want));
        let last = parse("tfs-model-name=x,tfs-model-name=y").map(|a| a.model);
        assert_eq!(last, Ok(Some("y")));
    }

    #[test]
    fn invalid_values_are_refused() {
        for (text, key) in [
            ("tfs-model-version=abc", "tfs-model-version"),
            ("tfs-model-version=-1", "tfs-model-version"),
            ("tfs-model-version=99999999999999999999", "tfs-model-version"),
            ("tfs-method=metadata", "tfs-method"),
            ("tfs-model-name=../../x", "tfs-model-name"),
            ("tfs-model-name= ", "tfs-model-name"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(&format!("invalid {key}: must be")), "{error}");
        }
        let strict = |text| Attributes::parse(text, Compatibility::Tf220).is_ok();
        assert!(strict("tfs-model-name=a.b-c_d"));
        assert!(!strict("tfs-model-name=_m") && !strict("tfs-model-name=my model"));
        let long = format!("tfs-model-name={}", "m".repeat(256));
        assert!(parse(&long).is_err() && parse(&long[..long.len() - 1]).is_ok());
    }
}
