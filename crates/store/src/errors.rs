//! Errors of stores in words: which location, what the store said, and what to do about it.

use crate::location::{Location, StoreKind};
use crate::transport::Remarks;
use tensorserve_tensor::error::{Code, Error};

/// The most characters of a store's own text in an error.
const MAX_REASON_CHARS: usize = 160;

/// What is said of a store that refuses access, and the part of it that is about reading.
const REFUSED: &str = "the store refuses access; check that the credentials may list and read it";
const MAY_READ: &str = "may list and read it";

/// Why a store did not do what was asked.
#[derive(Debug)]
pub(crate) struct StoreFailure {
    pub(crate) error: Error,
    /// The region to ask instead.
    pub(crate) region: Option<String>,
}

impl From<Error> for StoreFailure {
    fn from(error: Error) -> Self {
        StoreFailure { error, region: None }
    }
}

/// The error of a store's library. Its own text is not passed on: it can hold signed URLs.
pub(crate) fn describe(
    location: &Location,
    error: object_store::Error,
    remarks: &Remarks,
    has_credentials: bool,
) -> Error {
    let text = error.to_string();
    if let object_store::Error::InvalidPath { .. } = error {
        return Error::invalid(format!(
            "{location}: an object below it has a name that cannot be a path (an empty part, `.` or \
             `..`); rename or remove it"
        ));
    }
    if let object_store::Error::Precondition { path, .. } = &error {
        return Error::new(
            Code::Aborted,
            format!("{location}: {path} was changed while it was read"),
        );
    }
    let reason = element(&text, "Code").map(|code| match element(&text, "Message") {
        Some(message) => format!("{code}: {message}"),
        None => code.to_owned(),
    });
    if let Some(status) = remarks.status.filter(|status| *status >= 300) {
        return refusal(location, status, reason.as_deref());
    }
    if let object_store::Error::NotFound { .. } = error {
        return Error::not_found(format!("{location}: there is no such object or bucket"));
    }
    if !has_credentials {
        return no_credentials(location);
    }
    let lower = text.to_ascii_lowercase();
    let why = if lower.contains("timed out") || lower.contains("timeout") {
        "the store does not respond in time"
    } else if lower.contains("certificate") {
        "the certificate of the store is not valid"
    } else if lower.contains("dns") || lower.contains("resolve") {
        "the name of the store's host cannot be resolved"
    } else if lower.contains("connect") {
        "the store cannot be reached"
    } else if lower.contains("xml") || lower.contains("deserializ") {
        "the response of the store cannot be read"
    } else {
        "the request to the store failed"
    };
    Error::unavailable(format!("{location}: {why}"))
}

/// The error that nothing tells who asks.
pub(crate) fn no_credentials(location: &Location) -> Error {
    let message = format!(
        "{location}: no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a \
         profile or a role, or store_anonymous for a public bucket"
    );
    Error::new(Code::Unauthenticated, message)
}

/// The error of a response with the status `status`, and what the store gave as the reason.
pub(crate) fn refusal(location: &Location, status: u16, reason: Option<&str>) -> Error {
    let said: String = reason.unwrap_or_default().chars().take(MAX_REASON_CHARS).collect();
    let said = if said.is_empty() { status.to_string() } else { format!("{status}, {said}") };
    let has_expired = said.contains("Expired");
    let (code, what) = match status {
        _ if has_expired => {
            (Code::Unauthenticated, "the credentials have expired; provide new ones")
        }
        401 | 403 if location.kind() == StoreKind::Web => {
            (Code::PermissionDenied, "the server refuses access; a signed URL may have expired")
        }
        401 | 403 => (Code::PermissionDenied, REFUSED),
        404 | 410 if location.kind() == StoreKind::Web => (Code::NotFound, "there is no such file"),
        404 | 410 => (Code::NotFound, "there is no such object or bucket"),
        412 => (Code::Aborted, "an object was changed while it was read"),
        429 => (Code::Unavailable, "the store allows no more requests for now"),
        301 | 302 | 307 | 308 => (
            Code::InvalidArgument,
            "the bucket is in another region, or at another endpoint; set store_region or store_endpoint",
        ),
        500.. => (Code::Unavailable, "the store is not available"),
        _ => (Code::FailedPrecondition, "the store refuses the request"),
    };
    Error::new(code, format!("{location}: {what} ({said})"))
}

/// The error of a request that writes.
pub(crate) fn of_writing(error: Error) -> Error {
    if error.code() != Code::PermissionDenied {
        return error;
    }
    let message = error.message().replace(MAY_READ, "may write, and delete, objects there");
    Error::new(error.code(), message)
}

/// The text of the first element `name` of an XML document.
fn element<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once("</")?;
    let inner = inner.trim();
    (!inner.is_empty() && !inner.contains(['<', '\n'])).then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> object_store::Error {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn errors_say_what_the_store_said() {
        let location = Location::parse("s3://b/m").expect("a location");
        let said = |status: Option<u16>, text: &str| {
            let remarks = Remarks { status, ..Remarks::default() };
            describe(&location, generic(text), &remarks, true)
        };
        let denied = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
        let error = said(Some(403), denied);
        assert_eq!(error.code(), Code::PermissionDenied);
        let want = "s3://b/m: the store refuses access; check that the credentials may list and \
                    read it (403, AccessDenied: Access Denied)";
        assert_eq!(error.message(), want);
        let expired = "<Error><Code>ExpiredToken</Code></Error>";
        assert_eq!(said(Some(400), expired).code(), Code::Unauthenticated);
        assert_eq!(said(Some(404), "").code(), Code::NotFound);
        assert_eq!(said(Some(503), "").code(), Code::Unavailable);
        assert_eq!(said(Some(429), "").code(), Code::Unavailable);
        assert_eq!(
            said(None, "error sending request: operation timed out").code(),
            Code::Unavailable
        );
        let error = said(None, "https://h/x?X-Amz-Signature=secret");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
        let none = describe(&location, generic(""), &Remarks::default(), false);
        assert!(none.message().contains("no credentials were found"), "{none}");
    }
}
