//! The paths of TensorFlow Serving's REST API.
//!
//! The reference matches two regular expressions, case-insensitively and as a whole:
//! `POST /v1/models/NAME[/versions/DIGITS|/labels/LABEL]:(classify|regress|predict)` and
//! `GET /v1/models[/NAME][/versions/DIGITS|/labels/LABEL][/metadata]`, where NAME and LABEL are
//! anything but `/` and `:`.

use tensorserve_core::engine::Choice;
use tensorserve_protocol::percent_decoded;

/// What is asked for.
#[derive(Debug, PartialEq)]
pub(super) enum Request {
    Status(Spec),
    Metadata(Spec),
    Post(Verb, Spec),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Predict,
    Classify,
    Regress,
}

/// The model that is meant; names are percent-decoded.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Spec {
    pub(super) name: Option<String>,
    version: Option<i64>,
    label: Option<String>,
}

impl Spec {
    pub(super) fn choice(&self) -> Choice<'_> {
        match (self.version, &self.label) {
            (Some(version), _) => Choice::Version(version),
            (None, Some(label)) => Choice::Label(label),
            (None, None) => Choice::Latest,
        }
    }

    /// Whether it names nothing.
    pub(super) fn is_for_all(&self) -> bool {
        *self == Spec::default()
    }

    pub(super) fn version(&self) -> Option<i64> {
        self.version
    }
}

/// Why a path is none of these.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    Request,
    /// The version does not fit an `i64`.
    Version,
}

pub(super) fn parse(method: &str, target: &str) -> Result<Request, Malformed> {
    let rest = strip_prefix(target, "/v1/models").ok_or(Malformed::Request)?;
    match method {
        "POST" => parse_post(rest),
        "GET" => parse_get(rest),
        _ => Err(Malformed::Request),
    }
}

fn parse_post(rest: &str) -> Result<Request, Malformed> {
    let (path, verb) = rest.rsplit_once(':').ok_or(Malformed::Request)?;
    let verb = match verb {
        "predict" => Verb::Predict,
        "classify" => Verb::Classify,
        "regress" => Verb::Regress,
        _ => return Err(Malformed::Request),
    };
    let segments = segments(path)?;
    let (name, choice) = segments.split_first().ok_or(Malformed::Request)?;
    Ok(Request::Post(verb, spec(Some(name), choice)?))
}

fn parse_get(rest: &str) -> Result<Request, Malformed> {
    let all = segments(rest)?;
    let without_metadata = match all.split_last() {
        // Matched in any case, but only lower case gets the metadata.
        Some((last, before)) if last.eq_ignore_ascii_case("metadata") => {
            Some((before, *last == "metadata"))
        }
        _ => None,
    };
    // As the expression backtracks: a name if there can be one, then a version or label.
    let named = |segments: &[&str]| match segments.split_first() {
        Some((name, choice)) => spec(Some(name), choice),
        None => spec(None, &[]),
    };
    let unnamed = |segments: &[&str]| spec(None, segments);
    let whole = named(&all).or_else(|e| keep_version_error(e, unnamed(&all)));
    match (whole, without_metadata) {
        (Ok(spec), _) => Ok(Request::Status(spec)),
        (Err(_), Some((before, metadata))) => {
            let spec = named(before).or_else(|e| keep_version_error(e, unnamed(before)))?;
            Ok(if metadata { Request::Metadata(spec) } else { Request::Status(spec) })
        }
        (Err(malformed), None) => Err(malformed),
    }
}

fn keep_version_error(
    first: Malformed,
    second: Result<Spec, Malformed>,
) -> Result<Spec, Malformed> {
    match first {
        Malformed::Version => Err(first),
        Malformed::Request => second,
    }
}

fn spec(name: Option<&str>, choice: &[&str]) -> Result<Spec, Malformed> {
    let mut spec = Spec { name: name.map(percent_decoded), ..Spec::default() };
    match choice {
        [] => {}
        [kind, digits] if kind.eq_ignore_ascii_case("versions") => {
            if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(Malformed::Request);
            }
            spec.version = Some(digits.parse().map_err(|_| Malformed::Version)?);
        }
        [kind, label] if kind.eq_ignore_ascii_case("labels") => {
            spec.label = Some(percent_decoded(label));
        }
        _ => return Err(Malformed::Request),
    }
    Ok(spec)
}

/// The parts between slashes, none empty and none with a colon. Few enough for any legal path.
fn segments(path: &str) -> Result<Vec<&str>, Malformed> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let path = path.strip_prefix('/').ok_or(Malformed::Request)?;
    let segments: Vec<&str> = path.split('/').take(5).collect();
    let legal = |segment: &&str| !segment.is_empty() && !segment.contains(':');
    if segments.len() > 4 || !segments.iter().all(legal) {
        return Err(Malformed::Request);
    }
    Ok(segments)
}

fn strip_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (head, tail) = text.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: Option<&str>, version: Option<i64>, label: Option<&str>) -> Request {
        Request::Status(Spec {
            name: name.map(str::to_owned),
            version,
            label: label.map(str::to_owned),
        })
    }

    fn plain(name: &str) -> Spec {
        let name = Some(name.to_owned());
        Spec { name, ..Spec::default() }
    }

    #[test]
    fn posts() {
        let post = |target| parse("POST", target);
        assert_eq!(post("/v1/models/m:predict"), Ok(Request::Post(Verb::Predict, plain("m"))));
        let versioned = Spec { version: Some(7), ..plain("m") };
        assert_eq!(
            post("/V1/Models/m/VERSIONS/7:regress"),
            Ok(Request::Post(Verb::Regress, versioned))
        );
        let labelled = Spec { label: Some("a b".into()), ..plain("m/n") };
        assert_eq!(
            post("/v1/models/m%2Fn/labels/a%20b:classify"),
            Ok(Request::Post(Verb::Classify, labelled))
        );
        for wrong in [
            "/v1/models/m",
            "/v1/models/m:Predict",
            "/v1/models/m:foo",
            "/v1/models/:predict",
            "/v1/models:predict",
            "/v1/models/m/versions/x:predict",
            "/v1/models/m/version/1:predict",
            "/v1/models/m/versions/1/labels/l:predict",
            "/v1/models/m/metadata",
            "/v1/models/m:predict?x=1",
            "/v1/models/m/:predict",
            "/v1/models/a:b:predict",
            "/v1/foo",
            "/v1/modelsm:predict",
        ] {
            assert_eq!(post(wrong), Err(Malformed::Request), "{wrong}");
        }
        let huge = "/v1/models/m/versions/18446744073709551615:predict";
        assert_eq!(post(huge), Err(Malformed::Version));
    }

    #[test]
    fn gets() {
        let get = |target| parse("GET", target);
        assert_eq!(get("/v1/models"), Ok(status(None, None, None)));
        assert_eq!(get("/v1/models/m"), Ok(status(Some("m"), None, None)));
        assert_eq!(get("/v1/models/m/versions/1"), Ok(status(Some("m"), Some(1), None)));
        assert_eq!(get("/v1/models/m/labels/l"), Ok(status(Some("m"), None, Some("l"))));
        assert_eq!(get("/v1/models/m/metadata"), Ok(Request::Metadata(plain("m"))));
        assert_eq!(get("/v1/models/m/Metadata"), Ok(status(Some("m"), None, None)));
        assert_eq!(get("/v1/models/metadata"), Ok(status(Some("metadata"), None, None)));
        assert_eq!(get("/v1/models/m?x=1"), Ok(status(Some("m?x=1"), None, None)));
        for wrong in [
            "/v1/models/",
            "/v1/models/m/",
            "/v1/models/m:predict",
            "/v1/models/debug/model_name",
            "/v1/models/m/versions/1/labels/l",
            "/v1/models/m/versions",
            "/v1/models/m/x/metadata",
        ] {
            assert_eq!(get(wrong), Err(Malformed::Request), "{wrong}");
        }
        assert_eq!(parse("PUT", "/v1/models/m"), Err(Malformed::Request));
    }
}
