//! Requests to a package index, with the proxies, certificates and credentials of pip's settings.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rustls::crypto::ring;
use ureq::http;
use ureq::tls::{Certificate, ClientCert, RootCerts, TlsConfig, TlsProvider};
use url::Url;

use crate::pip::PipSettings;
use tensorserve_codec::base64;
use tensorserve_tensor::error::Error;

/// The most redirects of one request.
const MAX_REDIRECTS: usize = 10;
/// The largest page of an index.
const MAX_PAGE: u64 = 64 << 20;

/// Whom the indexes are, and who asks them: the certificates of the connections.
pub struct Trust {
    /// Those that servers are verified against.
    pub roots: Vec<Certificate<'static>>,
    /// The client's own, for servers that require one.
    pub client: Option<ClientCert>,
}

/// A request that failed.
#[derive(Debug)]
pub(crate) struct FailedRequest {
    /// What happened, without credentials.
    pub(crate) message: String,
    /// The status of the response, if there was one.
    pub(crate) status: Option<u16>,
    /// Whether a retry may succeed.
    pub(crate) is_temporary: bool,
    /// The wait that the server asks for.
    pub(crate) wait: Option<Duration>,
}

impl FailedRequest {
    /// A failure that stays the same if the request is sent again.
    pub(crate) fn permanent(message: impl Into<String>) -> Self {
        FailedRequest { message: message.into(), status: None, is_temporary: false, wait: None }
    }

    /// A failure that may not happen again.
    pub(crate) fn temporary(message: impl Into<String>) -> Self {
        FailedRequest { is_temporary: true, ..FailedRequest::permanent(message) }
    }
}

impl From<FailedRequest> for Error {
    fn from(failed: FailedRequest) -> Self {
        Error::unavailable(failed.message)
    }
}

/// Sends requests.
pub(crate) struct IndexClient {
    pip: PipSettings,
    roots: RootCerts,
    certificate: Option<ClientCert>,
    /// The `Authorization` headers for the indexes that have credentials.
    credentials: Vec<(Url, String)>,
}

/// A response with a status of success.
pub(crate) struct SuccessResponse {
    pub(crate) response: http::Response<ureq::Body>,
    /// Where redirects have led.
    pub(crate) url: Url,
}

impl SuccessResponse {
    /// The text of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// Whether the media type contains `part`.
    pub(crate) fn has_type(&self, part: &str) -> bool {
        self.header("content-type").is_some_and(|media| media.to_ascii_lowercase().contains(part))
    }

    /// The body, which is a page of an index.
    ///
    /// # Errors
    /// If the connection breaks, or the page is too large.
    pub(crate) fn text(mut self) -> Result<String, FailedRequest> {
        let reader = self.response.body_mut().as_reader();
        let mut bytes = Vec::new();
        let read = reader.take(MAX_PAGE + 1).read_to_end(&mut bytes);
        read.map_err(|e| FailedRequest::temporary(format!("{}: {e}", shown(&self.url))))?;
        if bytes.len() as u64 > MAX_PAGE {
            return Err(FailedRequest::permanent(format!(
                "{}: the page is too large",
                shown(&self.url)
            )));
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl IndexClient {
    /// A client for the indexes `indexes`.
    pub(crate) fn new(pip: PipSettings, trust: Trust, indexes: &[Url]) -> Self {
        let Trust { roots, client: certificate } = trust;
        let credentials = indexes.iter().filter_map(|url| Some((url.clone(), basic(url)?)));
        let credentials = credentials.collect();
        IndexClient { pip, roots: RootCerts::new_with_certs(&roots), certificate, credentials }
    }

    /// The settings of the client.
    pub(crate) fn pip(&self) -> &PipSettings {
        &self.pip
    }

    /// Requests `url`, and follows redirects. Each host gets only its own credentials.
    ///
    /// # Errors
    /// If there is no response, or one whose status is not of success.
    pub(crate) fn get(
        &self,
        url: &Url,
        headers: &[(&str, &str)],
    ) -> Result<SuccessResponse, FailedRequest> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let response = self.get_once(&url, headers)?;
            let status = response.status();
            if status.is_success() {
                return Ok(SuccessResponse { response, url });
            }
            let location = response.headers().get("location").and_then(|value| value.to_str().ok());
            match location.map(|location| url.join(location)) {
                Some(Ok(next)) if status.is_redirection() => url = next,
                _ => return Err(refused(&url, &response)),
            }
        }
        Err(FailedRequest::permanent(format!(
            "{}: more than {MAX_REDIRECTS} redirects",
            shown(&url)
        )))
    }

    fn get_once(
        &self,
        url: &Url,
        headers: &[(&str, &str)],
    ) -> Result<http::Response<ureq::Body>, FailedRequest> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(FailedRequest::permanent(format!("{}: not an HTTP URL", shown(url))));
        }
        let agent = self.agent(url)?;
        let mut request = agent.get(without_credentials(url).as_str());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(authorization) = basic(url).or_else(|| self.credentials_for(url)) {
            request = request.header("Authorization", authorization);
        }
        request.call().map_err(|e| self.failed(url, &e))
    }

    /// The credentials of an index on the same host.
    fn credentials_for(&self, url: &Url) -> Option<String> {
        let mut known = self.credentials.iter();
        known.find(|(index, _)| index.origin() == url.origin()).map(|(_, header)| header.clone())
    }

    fn agent(&self, url: &Url) -> Result<ureq::Agent, FailedRequest> {
        let host = url.host_str().unwrap_or_default();
        let proxy = self.pip.proxy(url.scheme(), host).map(ureq::Proxy::new).transpose();
        let proxy = proxy.map_err(|_| {
            FailedRequest::permanent(
                "the URL of the proxy is invalid; write http://HOST:PORT, in HTTPS_PROXY or in pip's \
                 settings",
            )
        })?;
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .root_certs(self.roots.clone())
            .client_cert(self.certificate.clone())
            .disable_verification(self.trusts(url));
        let timeout = Some(self.pip.timeout);
        let config = ureq::Agent::config_builder()
            .user_agent(concat!("tensorserve/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(proxy)
            .tls_config(tls.build())
            .timeout_connect(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout);
        Ok(config.build().into())
    }

    /// Whether the host is one of pip's trusted hosts.
    fn trusts(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        let with_port = format!("{host}:{port}");
        self.pip.trusted_hosts.iter().any(|trusted| *trusted == host || *trusted == with_port)
    }

    fn failed(&self, url: &Url, error: &ureq::Error) -> FailedRequest {
        let text = error.to_string();
        let mut message = format!("{}: {text}", shown(url));
        let host = url.host_str().unwrap_or_default();
        if let Some(proxy) = self.pip.proxy(url.scheme(), host).and_then(|p| Url::parse(p).ok()) {
            message.push_str(&format!(" (through the proxy {})", shown(&proxy)));
        }
        let is_of_tls = matches!(error, ureq::Error::Tls(_) | ureq::Error::Rustls(_))
            || text.contains("certificate");
        if is_of_tls {
            let hint = "; for a CA of your own set PIP_CERT=FILE; without CA certificates of the \
                        system, install the package ca-certificates";
            message.push_str(hint);
            return FailedRequest::permanent(message);
        }
        FailedRequest::temporary(message)
    }
}

/// The failure that a response of another status than success is.
fn refused(url: &Url, response: &http::Response<ureq::Body>) -> FailedRequest {
    let status = response.status();
    let hint = match status.as_u16() {
        401 | 407 => {
            "; credentials go into the URL of the index or proxy, as https://USER:PASSWORD@HOST/…"
        }
        403 => "; the index refuses this client or these credentials",
        404 => "; check the URL of the index",
        _ => "",
    };
    let wait = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
    FailedRequest {
        message: format!("{}: {status}{hint}", shown(url)),
        status: Some(status.as_u16()),
        is_temporary: status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429),
        wait: wait.and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs),
    }
}

/// The `Authorization` header for the credentials in a URL.
fn basic(url: &Url) -> Option<String> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let user = percent_decode_str(url.username());
    let password = percent_decode_str(url.password().unwrap_or_default());
    let pair = [user.collect(), b":".to_vec(), password.collect::<Vec<u8>>()].concat();
    let mut header = b"Basic ".to_vec();
    base64::encode(&pair, &mut header);
    String::from_utf8(header).ok()
}

fn without_credentials(url: &Url) -> Url {
    let mut url = url.clone();
    // Both fail only for URLs without a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    url
}

/// `url` for messages: without credentials, also those that stores put into the query.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = without_credentials(url);
    url.set_query(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_sent_and_never_shown() {
        let url = Url::parse("https://ana:p%40ss@host:8443/simple/?X-Signature=1#sha256=ab");
        let url = url.expect("a URL");
        assert_eq!(shown(&url), "https://host:8443/simple/");
        assert_eq!(without_credentials(&url).as_str(), "https://host:8443/simple/?X-Signature=1");
        assert_eq!(basic(&url).as_deref(), Some("Basic YW5hOnBAc3M="));
        assert_eq!(basic(&without_credentials(&url)), None);
    }
}
