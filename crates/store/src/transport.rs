//! HTTP for all stores: TLS with ring, time limits, and what responses say beside their content.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService,
};
use reqwest::Method;
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use rustls::RootCertStore;

use crate::redirects::RedirectRules;
use tensorserve_tensor::error::{Error, Result};

/// Time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a store may send nothing in the middle of a response.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a store may take for the response to a request that writes. The time to send the content
/// counts, and a store that joins the parts of a large object takes minutes.
const WRITE_TIMEOUT: Duration = Duration::from_secs(300);

tokio::task_local! {
    /// What the responses to the requests of this task have said.
    pub(crate) static REMARKS: Arc<Mutex<Remarks>>;
}

/// What a store says beside the content of an object, and what was asked of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remarks {
    /// The requests that were sent: the library repeats some that fail.
    pub(crate) requests: u32,
    /// The status of the last response.
    pub(crate) status: Option<u16>,
    /// The region of the bucket.
    pub(crate) region: Option<String>,
    /// The MD5 of the whole object.
    pub(crate) md5: Option<Vec<u8>>,
}

/// Runs a request, and returns what the responses have said beside its result.
pub(crate) async fn with_remarks<F: Future>(request: F) -> (F::Output, Remarks) {
    let remarks = Arc::<Mutex<Remarks>>::default();
    let output = REMARKS.scope(Arc::clone(&remarks), request).await;
    let remarks = remarks.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (output, remarks)
}

/// The remarks so far, inside [`with_remarks`].
pub(crate) fn remarks_so_far() -> Remarks {
    let copy = |remarks: &Arc<Mutex<Remarks>>| {
        remarks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    };
    REMARKS.try_with(copy).unwrap_or_default()
}

fn remark(status: u16, headers: &HeaderMap) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let region = text("x-amz-bucket-region").map(str::to_owned);
    let md5 = md5_of(text);
    let _ = REMARKS.try_with(|remarks| {
        let mut remarks = remarks.lock().unwrap_or_else(PoisonError::into_inner);
        remarks.status = Some(status);
        remarks.region = region.or(remarks.region.take());
        remarks.md5 = md5.or(remarks.md5.take());
    });
}

/// The MD5 of an object as Google (`x-goog-hash`), Azure (`x-ms-blob-content-md5`) and S3 (the ETag
/// of an object in one part that is not encrypted with a key of the customer) give it.
fn md5_of<'h>(text: impl Fn(&str) -> Option<&'h str>) -> Option<Vec<u8>> {
    use base64::Engine;
    let decode = |text: &str| base64::engine::general_purpose::STANDARD.decode(text).ok();
    let google = text("x-goog-hash")
        .and_then(|hashes| hashes.split(',').find_map(|hash| hash.trim().strip_prefix("md5=")));
    if let Some(encoded) = google.or_else(|| text("x-ms-blob-content-md5")) {
        return decode(encoded).filter(|md5| md5.len() == 16);
    }
    let is_s3 = text("x-amz-request-id").is_some();
    let is_plain = text("x-amz-server-side-encryption").is_none_or(|kind| kind == "AES256")
        && text("x-amz-server-side-encryption-customer-algorithm").is_none();
    let etag = text("etag").map(|etag| etag.trim_matches('"'))?;
    if !is_s3 || !is_plain || etag.len() != 32 {
        return None;
    }
    let pairs = etag.as_bytes().chunks(2).map(std::str::from_utf8);
    pairs.map(|pair| u8::from_str_radix(pair.ok()?, 16).ok()).collect()
}

/// An HTTP client for the files of a web server, which follows redirects by these rules.
pub(crate) fn web_client(rules: &RedirectRules) -> Result<reqwest::Client> {
    let builder = builder(rules.policy(), STALL_TIMEOUT)?;
    builder.dns_resolver(Arc::new(rules.clone())).build().map_err(failed)
}

fn failed(error: reqwest::Error) -> Error {
    Error::internal("the HTTP client of the stores could not be created").with_source(error)
}

fn build(policy: Policy, stall_timeout: Duration) -> Result<reqwest::Client> {
    builder(policy, stall_timeout)?.build().map_err(failed)
}

fn builder(policy: Policy, stall_timeout: Duration) -> Result<reqwest::ClientBuilder> {
    Ok(reqwest::Client::builder()
        .tls_backend_preconfigured(tls()?)
        .redirect(policy)
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(stall_timeout)
        .user_agent(concat!("tensorserve/", env!("CARGO_PKG_VERSION"))))
}

/// TLS with ring and the system's certificates, or those that `SSL_CERT_FILE` names.
fn tls() -> Result<rustls::ClientConfig> {
    let failed = |e: rustls::Error| Error::internal("TLS cannot be set up").with_source(e);
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().map_err(failed)?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Whether there are certificates to check servers with.
pub(crate) fn has_certificates() -> bool {
    !rustls_native_certs::load_native_certs().certs.is_empty()
}

/// Gives object stores their HTTP clients.
#[derive(Clone, Debug)]
pub(crate) struct Transport {
    reads: reqwest::Client,
    /// For requests with content; most stores are only read.
    writes: OnceLock<reqwest::Client>,
}

impl Transport {
    pub(crate) fn new() -> Result<Self> {
        Ok(Transport { reads: build(Policy::none(), STALL_TIMEOUT)?, writes: OnceLock::new() })
    }

    fn client_of(&self, method: &Method) -> &reqwest::Client {
        if *method != Method::PUT && *method != Method::POST {
            return &self.reads;
        }
        // It cannot fail where the first one could be created.
        let create = || build(Policy::none(), WRITE_TIMEOUT).unwrap_or_else(|_| self.reads.clone());
        self.writes.get_or_init(create)
    }
}

impl HttpConnector for Transport {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let _ = REMARKS.try_with(|remarks| {
            let mut remarks = remarks.lock().unwrap_or_else(PoisonError::into_inner);
            remarks.requests = remarks.requests.saturating_add(1);
        });
        let response = self.client_of(request.method()).call(request).await?;
        remark(response.status().as_u16(), response.headers());
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::{HeaderName, HeaderValue};

    fn md5(headers: &[(&'static str, &'static str)]) -> Option<Vec<u8>> {
        let text = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        md5_of(text)
    }

    #[test]
    fn stores_give_the_md5_of_an_object_in_three_ways() {
        let zero = Some(vec![0; 16]);
        let encoded = "AAAAAAAAAAAAAAAAAAAAAA==";
        assert_eq!(md5(&[("x-ms-blob-content-md5", encoded)]), zero);
        assert_eq!(md5(&[("x-goog-hash", "crc32c=AAAAAA==, md5=AAAAAAAAAAAAAAAAAAAAAA==")]), zero);
        let etag = ("etag", "\"00000000000000000000000000000000\"");
        assert_eq!(md5(&[etag, ("x-amz-request-id", "1")]), zero);
        // Not those of other servers, of several parts, or of objects encrypted with a key.
        assert_eq!(md5(&[etag]), None);
        let parts = ("etag", "\"00000000000000000000000000000000-2\"");
        assert_eq!(md5(&[parts, ("x-amz-request-id", "1")]), None);
        let kms = ("x-amz-server-side-encryption", "aws:kms");
        assert_eq!(md5(&[etag, ("x-amz-request-id", "1"), kms]), None);
        assert_eq!(md5(&[("x-ms-blob-content-md5", "no base64")]), None);
    }

    #[tokio::test]
    async fn remarks_belong_to_the_request_that_caused_them() {
        let mut headers = HeaderMap::new();
        let region = HeaderName::from_static("x-amz-bucket-region");
        headers.insert(region, HeaderValue::from_static("eu-west-1"));
        remark(301, &headers);
        let ((), remarks) = with_remarks(async { remark(301, &headers) }).await;
        assert_eq!((remarks.status, remarks.region.as_deref()), (Some(301), Some("eu-west-1")));
        assert_eq!(with_remarks(async {}).await.1.status, None);
    }
}
