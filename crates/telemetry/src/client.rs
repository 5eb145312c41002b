//! The HTTP client for the collector. It blocks, on the thread that sends spans.

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use rustls::crypto::ring;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

/// The longest response that is read: it may have a message about refused spans.
const LONGEST_RESPONSE: u64 = 64 << 10;

pub(super) struct BlockingClient(Agent);

impl BlockingClient {
    /// A client that verifies servers against these certificates, and that gives a request `timeout`.
    pub(super) fn new(roots: &[Certificate<'static>], timeout: Duration) -> Self {
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .root_certs(RootCerts::new_with_certs(roots))
            .build();
        let config = Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(tls);
        BlockingClient(config.build().into())
    }
}

impl Debug for BlockingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingClient").finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for BlockingClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = request.map(|body| body.to_vec());
        let response = self.0.run(request)?;
        let (head, mut body) = response.into_parts();
        let body = body.with_config().limit(LONGEST_RESPONSE).read_to_vec()?;
        Ok(Response::from_parts(head, Bytes::from(body)))
    }
}
