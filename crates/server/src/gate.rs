//! Decides who is admitted, for [`admission`](super::admission).
//!
//! Routes and gRPC methods require a [`Permission`]; the [`Authenticator`] decides whether a client
//! has it.

use std::net::IpAddr;
use std::sync::Arc;

use actix_web::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use bytes::Bytes;
use futures_util::StreamExt;

use crate::config::AdminAccess;
use crate::timed_body::Revocation;
use tensorserve_auth::{AuthError, AuthOutcome, Authenticator, Identity, Permission};
use tensorserve_core::metrics::Metrics;
use tensorserve_protocol::{Chunks, Failure, JSON, Reply};
use tensorserve_tensor::error::{Code, Error, Result};

/// The authentication schemes, for the `WWW-Authenticate` header.
const CHALLENGE: &str = "Basic realm=\"tensorserve\", charset=\"UTF-8\", Bearer";

/// Knows who is admitted. Cheap to clone.
#[derive(Clone)]
pub(super) struct Gate {
    authenticator: Option<Authenticator>,
    admin: Arc<AdminAccess>,
    metrics: Metrics,
}

impl Gate {
    pub(super) fn new(
        authenticator: Option<&Authenticator>,
        admin: &AdminAccess,
        metrics: &Metrics,
    ) -> Self {
        if authenticator.is_some() {
            // Counters that exist from the start can be watched for their first increase.
            for refusal in AuthError::ALL {
                let _ = metrics.refusals(refusal.reason());
            }
        }
        Gate {
            authenticator: authenticator.cloned(),
            admin: Arc::new(admin.clone()),
            metrics: metrics.clone(),
        }
    }

    /// Whether clients must authenticate.
    pub(super) fn is_shut(&self) -> bool {
        self.authenticator.is_some()
    }

    /// Whether the client at `address` with this `Authorization` header has `permission`, as far as
    /// it is known without waiting.
    pub(super) fn ask(
        &self,
        permission: Permission,
        authorization: Option<&[u8]>,
        address: Option<IpAddr>,
    ) -> AuthOutcome {
        match &self.authenticator {
            Some(authenticator) => authenticator.authorize(permission, authorization, address),
            None => AuthOutcome::Decided(Ok(Identity::unrestricted())),
        }
    }

    /// Counts a refusal.
    pub(super) fn count(&self, refusal: AuthError) {
        self.metrics.refusals(refusal.reason()).inc();
    }

    /// `chunks`, until the credentials of a request with these headers are revoked.
    pub(super) fn until_revoked(&self, headers: &HeaderMap, chunks: Chunks) -> Chunks {
        match (&self.authenticator, headers.get(AUTHORIZATION)) {
            (Some(authenticator), Some(authorization)) => {
                let revoked = authenticator.until_revoked(authorization.as_bytes());
                Box::pin(chunks.take_until(revoked))
            }
            _ => chunks,
        }
    }

    /// Watches the credentials of a gRPC call; `None` without authentication.
    pub(super) fn revocation(&self, authorization: &[u8]) -> Option<Revocation> {
        let authenticator = self.authenticator.clone()?;
        Some(Revocation::Watch(authenticator, Bytes::copy_from_slice(authorization)))
    }

    /// Checks an HTTP request that requires `permission`, whoever sent it. `is_own`: without authentication, only
    /// requests to a name of this server are answered. Nor may pages of other servers then change what is served.
    ///
    /// # Errors
    /// If it may have come from a page of another server, or if the console must not make changes.
    pub(super) fn check(
        &self,
        permission: Permission,
        is_own: bool,
        headers: &HeaderMap,
    ) -> Result<()> {
        if permission == Permission::ConsoleAdmin {
            self.check_change(headers)
        } else if !self.is_shut() && (is_own || changes_from_a_page(permission, headers)) {
            self.check_page(headers)
        } else {
            Ok(())
        }
    }

    /// Checks that the console may make changes, and that the request comes from one of its pages.
    fn check_change(&self, headers: &HeaderMap) -> Result<()> {
        if !self.admin.allowed {
            return refused(
                "the console is read-only: other machines can reach this server, and clients do \
                 not authenticate; set auth_file to allow changes",
            );
        }
        self.check_page(headers)?;
        // A form of another page can send other types without a preflight request.
        match text(headers, CONTENT_TYPE) {
            Some(kind) if is_preflighted(kind) => Ok(()),
            // Clients of the Open Inference Protocol name no type. A browser names its page in `Origin`,
            // which was compared.
            None if !headers.contains_key(CONTENT_TYPE) && !headers.contains_key(ORIGIN) => Ok(()),
            None if !headers.contains_key(CONTENT_TYPE) && has_no_body(headers) => Ok(()),
            _ => Err(Error::invalid("the Content-Type must be application/json")),
        }
    }

    /// Checks that a request comes from a page of this server, or from a program. Pages of other
    /// servers can make a browser send requests to this one, under any host name that resolves to
    /// it. `Origin` and `Host` reveal that, and pages cannot change them.
    fn check_page(&self, headers: &HeaderMap) -> Result<()> {
        let Some(host) = text(headers, HOST).filter(|host| self.is_ours(host)) else {
            return refused(
                "the Host header is not a name of this server; add it to console_hosts",
            );
        };
        if headers.contains_key(ORIGIN) {
            let origin = text(headers, ORIGIN).and_then(|origin| origin.split_once("://"));
            let is_same = origin.is_some_and(|(scheme, authority)| {
                matches!(scheme, "http" | "https") && authority.eq_ignore_ascii_case(host)
            });
            if !is_same {
                return refused(
                    "only pages of this server may send this request: Origin differs from Host",
                );
            }
        }
        Ok(())
    }

    /// Whether a `Host` header names this server: an IP address, `localhost`, or a configured name.
    /// Other names could be names of another page's server that resolve to this one.
    fn is_ours(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or(host, |(name, _)| name),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let listed = || self.admin.hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok() || listed()
    }
}

/// Whether a page asks to change what is served: programs send no `Origin`.
fn changes_from_a_page(permission: Permission, headers: &HeaderMap) -> bool {
    permission == Permission::Admin && headers.contains_key(ORIGIN)
}

/// Whether a browser asks before it sends this type to another origin. Some clients of the Open Inference
/// Protocol name the second one for JSON, too.
fn is_preflighted(kind: &str) -> bool {
    let kind = kind.trim_start().to_ascii_lowercase();
    kind.starts_with(JSON) || kind.starts_with("application/octet-stream")
}

/// The value of a header, if it is text.
fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn refused(text: &'static str) -> Result<()> {
    Err(Error::new(Code::PermissionDenied, text))
}

fn has_no_body(headers: &HeaderMap) -> bool {
    let length = headers.get("content-length").and_then(|value| value.to_str().ok());
    !headers.contains_key("transfer-encoding") && matches!(length, None | Some("0"))
}

/// The refusal of a request with these headers, over HTTP.
pub(super) fn turn_away(refusal: AuthError, headers: &HeaderMap) -> Failure {
    let failure = Failure::from(refusal.error());
    match refusal {
        AuthError::Busy => failure.with_header("retry-after", "1"),
        AuthError::Forbidden(_) => failure,
        AuthError::Missing | AuthError::Malformed | AuthError::Wrong => {
            // The dashboard has its own login form; a challenge would open the browser's one, too.
            let asker = headers.get("x-requested-with").map(|value| value.as_bytes());
            if asker == Some(b"tensorserve") {
                return failure;
            }
            failure.with_header("www-authenticate", CHALLENGE)
        }
    }
}

/// A response to a probe without credentials, without the details of an error.
pub(super) fn hushed(reply: Reply) -> Reply {
    if reply.error.is_none() {
        return reply;
    }
    let mut short = Reply::error(Error::unavailable("not ready"), reply.status);
    // For the log, which has the details.
    short.error = reply.error;
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::http::header::HeaderValue;

    fn gate(admin: bool) -> Gate {
        let hosts = vec!["models.example".to_owned()];
        Gate::new(None, &AdminAccess { allowed: admin, hosts }, &Metrics::default())
    }

    fn check(gate: &Gate, headers: &[(&str, &str)]) -> Result<()> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            map.insert(name, HeaderValue::from_str(value).unwrap());
        }
        gate.check_change(&map)
    }

    #[test]
    fn the_console_is_asked_from_its_own_pages_only() {
        let gate = gate(true);
        let json = ("content-type", "application/json");
        for host in
            ["127.0.0.1:8500", "localhost:8500", "[::1]:8500", "models.example", "LOCALHOST"]
        {
            let (http, https) = (format!("http://{host}"), format!("https://{host}"));
            for origin in [http.as_str(), &https] {
                let headers = [("host", host), ("origin", origin), json];
                assert!(check(&gate, &headers).is_ok(), "{headers:?}");
            }
            assert!(check(&gate, &[("host", host), json]).is_ok(), "{host}");
            for origin in [
                "http://evil.example",
                "null",
                "",
                "file://",
                "http://127.0.0.1:9",
                "http://x\u{7f}",
            ] {
                let Ok(value) = HeaderValue::from_str(origin) else { continue };
                let origin = value.to_str().unwrap_or_default();
                assert!(check(&gate, &[("host", host), ("origin", origin), json]).is_err());
            }
        }
        for host in ["evil.example:8500", "evil.example", "", "localhost.evil.example", "[::1"] {
            let error = check(&gate, &[("host", host), json]).expect_err(host);
            assert!(error.message().contains("console_hosts"), "{host}: {error}");
        }
        assert!(check(&gate, &[json]).is_err(), "no host");
    }

    #[test]
    fn pages_can_send_only_what_a_browser_asks_for_first() {
        let gate = gate(true);
        let host = ("host", "localhost");
        assert!(check(&gate, &[host, ("content-type", "application/json; charset=utf-8")]).is_ok());
        assert!(check(&gate, &[host, ("content-type", "application/octet-stream")]).is_ok());
        assert!(check(&gate, &[host, ("content-length", "0")]).is_ok());
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
            assert!(check(&gate, &[host, ("content-type", kind)]).is_err(), "{kind}");
        }
        // Browsers name the page that sends a body; programs do not.
        let page = ("origin", "http://localhost");
        assert!(check(&gate, &[host, page, ("content-length", "0")]).is_ok());
        for body in [("content-length", "2"), ("transfer-encoding", "chunked")] {
            assert!(check(&gate, &[host, page, body]).is_err());
            assert!(check(&gate, &[host, body]).is_ok());
        }
    }

    #[test]
    fn a_console_without_admins_says_why() {
        let headers = [("host", "localhost"), ("content-type", "application/json")];
        let error = check(&gate(false), &headers).expect_err("off");
        assert!(error.message().contains("auth_file"), "{error}");
    }

    #[test]
    fn an_open_gate_lets_everybody_in() {
        let gate = gate(true);
        for permission in
            [Permission::Read, Permission::Infer, Permission::Metrics, Permission::Admin]
        {
            let asked = gate.ask(permission, None, None);
            assert!(
                matches!(asked, AuthOutcome::Decided(Ok(who)) if who == Identity::unrestricted())
            );
        }
    }
}
