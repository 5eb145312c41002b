//! The HTTP client for the collector. It blocks, on the thread that sends spans.

use std::fmt::{self, Debug};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use rustls::crypto::ring;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider, parse_pem};

use tensorserve_tensor::error::{Code, Error, Result};

/// The time for one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The longest response that is read: it may have a message about refused spans.
const LONGEST_RESPONSE: u64 = 64 << 10;

pub(super) struct BlockingClient(Agent);

impl BlockingClient {
    /// A client that verifies servers against the certificates in the file `ca`, or against those of
    /// the system.
    pub(super) fn new(ca: Option<&Path>) -> Result<Self> {
        let roots = match ca {
            Some(path) => from_file(path)?,
            None => of_system(),
        };
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .root_certs(RootCerts::new_with_certs(&roots))
            .build();
        let config = Agent::config_builder()
            .timeout_global(Some(TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(tls);
        Ok(BlockingClient(config.build().into()))
    }
}

fn from_file(path: &Path) -> Result<Vec<Certificate<'static>>> {
    let wrong = |why: String| Error::invalid(format!("{}: {why}", path.display()));
    let pem = fs::read(path).map_err(|e| Error::new(Code::of_io(&e), e.to_string()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| wrong(e.to_string()))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(wrong("the file contains no PEM certificate".to_owned()));
    }
    Ok(certificates)
}

fn of_system() -> Vec<Certificate<'static>> {
    let found = rustls_native_certs::load_native_certs();
    found.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect()
}

impl Debug for BlockingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingClient").finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for BlockingClient {
    async fn send_bytes(
        &self,
        request: Request<Bytes>,
    ) -> std::result::Result<Response<Bytes>, HttpError> {
        let request = request.map(|body| body.to_vec());
        let response = self.0.run(request)?;
        let (head, mut body) = response.into_parts();
        let body = body.with_config().limit(LONGEST_RESPONSE).read_to_vec()?;
        Ok(Response::from_parts(head, Bytes::from(body)))
    }
}
