//! Lists and reads the objects of one location, whatever its store.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStoreExt};
use reqwest::StatusCode;
use reqwest::header::{
    CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, IF_MATCH, LAST_MODIFIED, RANGE,
};

use crate::config::StoreConfig;
use crate::connect::{Backend, connect};
use crate::errors::{StoreFailure, describe};
use crate::location::{Location, StoreKind};
use crate::redirects::RedirectRules;
use crate::transport::{self, with_remarks};
use tensorserve_tensor::error::{Code, Error, Result};

/// The most objects of a location.
const MOST_OBJECTS: usize = 100_000;

/// Time limit for a whole listing, with all its pages and repetitions.
const LIST_TIMEOUT: Duration = Duration::from_secs(120);

/// An object as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteObject {
    /// Its whole key in the bucket.
    pub(crate) key: String,
    pub(crate) bytes: u64,
    pub(crate) etag: Option<String>,
    pub(crate) modified: SystemTime,
}

impl From<ObjectMeta> for RemoteObject {
    fn from(meta: ObjectMeta) -> Self {
        RemoteObject {
            key: meta.location.into(),
            bytes: meta.size,
            etag: meta.e_tag,
            modified: meta.last_modified.into(),
        }
    }
}

/// A part of an object.
pub(crate) struct ObjectPart {
    pub(crate) bytes: BoxStream<'static, Result<Bytes>>,
    /// The MD5 of the whole object, if the store gives it.
    pub(crate) md5: Option<Vec<u8>>,
}

/// Access to one location.
pub(crate) struct StoreClient {
    pub(crate) location: Location,
    access: Access,
    has_credentials: bool,
    /// The region that the user has set.
    region: Option<String>,
}

enum Access {
    Store(Arc<dyn Backend>),
    /// A file of a web server.
    Web(reqwest::Client, String),
}

impl StoreClient {
    /// Connects to a location. In the region that its bucket is in, if the store has named it.
    pub(crate) fn new(
        location: &Location,
        config: &StoreConfig,
        region: Option<&str>,
    ) -> Result<Self> {
        let location = location.clone();
        let Some(url) = location.url().map(str::to_owned) else {
            let found = connect(&location, config, region)?;
            let (access, region) = (Access::Store(found.store), found.region);
            return Ok(StoreClient {
                location,
                access,
                has_credentials: found.has_credentials,
                region,
            });
        };
        let is_plain = url.starts_with("http://");
        let rules = RedirectRules::of(&url, config.allow_http);
        let rules = rules.with_proxies(|name| config.variable(name));
        if is_plain && !config.allow_http && !rules.is_this_machine() {
            return Err(Error::invalid(format!(
                "{location}: a model must come over https:// from other machines; set \
                 store_allow_http to trust the network"
            )));
        }
        if !is_plain && !transport::has_certificates() {
            return Err(Error::precondition(format!(
                "{location}: this machine has no certificates of authorities to check the server \
                 with; install ca-certificates, or set SSL_CERT_FILE"
            )));
        }
        let web = transport::web_client(&rules)?;
        Ok(StoreClient {
            location,
            access: Access::Web(web, url),
            has_credentials: true,
            region: None,
        })
    }

    /// The object store; `None` for a web server.
    pub(crate) fn store(&self) -> Option<&Arc<dyn Backend>> {
        match &self.access {
            Access::Store(store) => Some(store),
            Access::Web(..) => None,
        }
    }

    /// The objects below the location, sorted by key, and the region of the bucket if it is another
    /// one than was assumed.
    pub(crate) async fn list(&self) -> Result<Vec<RemoteObject>, StoreFailure> {
        let store = match &self.access {
            Access::Store(store) => store,
            Access::Web(..) => return Ok(self.head().await?.into_iter().collect()),
        };
        let prefix = match self.location.key() {
            "" => None,
            key => Some(Path::parse(key).map_err(|_| self.unusable_key(key))?),
        };
        let listing = store.list(prefix.as_ref()).take(MOST_OBJECTS + 1).try_collect();
        let listing = tokio::time::timeout(LIST_TIMEOUT, listing);
        let (outcome, remarks) = with_remarks(listing).await;
        let late = |_| {
            Error::new(
                Code::DeadlineExceeded,
                format!("{}: the list of objects did not arrive in time", self.location),
            )
        };
        let listed: Vec<ObjectMeta> =
            outcome.map_err(late)?.map_err(|e| self.failure(e, remarks))?;
        if listed.len() > MOST_OBJECTS {
            return Err(Error::invalid(format!(
                "{}: more than {MOST_OBJECTS} objects; name a longer prefix",
                self.location
            ))
            .into());
        }
        if listed.is_empty() && prefix.is_some() {
            return Ok(self.head().await?.into_iter().collect());
        }
        let mut objects: Vec<RemoteObject> = listed.into_iter().map(RemoteObject::from).collect();
        objects.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(objects)
    }

    fn unusable_key(&self, key: &str) -> Error {
        Error::invalid(format!("{}: {key:?} cannot be the key of an object here", self.location))
    }

    /// The object at the location itself, if there is one.
    async fn head(&self) -> Result<Option<RemoteObject>, StoreFailure> {
        let key = self.location.key();
        let store = match &self.access {
            Access::Store(store) => store,
            Access::Web(client, url) => return Ok(Some(self.web_head(client, url).await?)),
        };
        let path = Path::parse(key).map_err(|_| self.unusable_key(key))?;
        let (outcome, remarks) = with_remarks(store.head(&path)).await;
        match outcome {
            Ok(meta) => Ok(Some(meta.into())),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failure(error, remarks)),
        }
    }

    /// Size and ETag of a file, by a request for its first byte: a signed URL allows nothing but GET.
    async fn web_head(&self, client: &reqwest::Client, url: &str) -> Result<RemoteObject> {
        let response = client.get(url).header(RANGE, "bytes=0-0").send().await;
        let response = response.map_err(|e| self.web_failure(&e))?;
        let status = response.status();
        // The range of an empty file cannot be satisfied.
        if !status.is_success() && status != StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(self.web_refusal(status));
        }
        let headers = response.headers();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let whole = text(CONTENT_RANGE).and_then(|range| range.rsplit('/').next());
        let length = text(CONTENT_LENGTH).filter(|_| status == StatusCode::OK);
        let bytes = whole.or(length).and_then(|bytes| bytes.parse().ok());
        let Some(bytes) = bytes else {
            return Err(Error::precondition(format!(
                "{}: the server does not state the size of the file (Content-Length)",
                self.location
            )));
        };
        let modified = text(LAST_MODIFIED).and_then(|date| httpdate::parse_http_date(date).ok());
        Ok(RemoteObject {
            key: self.location.key().to_owned(),
            bytes,
            etag: validator(headers),
            modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
        })
    }

    /// Reads a part of an object, which must not have changed since it was listed.
    pub(crate) async fn read(
        &self,
        object: &RemoteObject,
        range: Range<u64>,
    ) -> Result<ObjectPart, StoreFailure> {
        let store = match &self.access {
            Access::Store(store) => store,
            Access::Web(client, url) => {
                return Ok(self.web_read(client, url, object, range).await?);
            }
        };
        let path = Path::parse(&object.key).map_err(|_| self.unusable_key(&object.key))?;
        let options = GetOptions {
            if_match: object.etag.clone(),
            range: (range != (0..object.bytes)).then(|| GetRange::Bounded(range.clone())),
            ..GetOptions::default()
        };
        let (outcome, remarks) = with_remarks(store.get_opts(&path, options)).await;
        let got = match outcome {
            Ok(got) => got,
            Err(error) => return Err(self.failure(error, remarks)),
        };
        if got.meta.size != object.bytes {
            return Err(self.changed(&object.key).into());
        }
        let location = self.location.clone();
        let interrupted =
            move |e: object_store::Error| describe(&location, e, &Default::default(), true);
        Ok(ObjectPart { bytes: got.into_stream().map_err(interrupted).boxed(), md5: remarks.md5 })
    }

    async fn web_read(
        &self,
        client: &reqwest::Client,
        url: &str,
        object: &RemoteObject,
        range: Range<u64>,
    ) -> Result<ObjectPart> {
        let is_whole = range == (0..object.bytes);
        let mut request = client.get(url);
        if !is_whole {
            request = request
                .header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        }
        let strong = object.etag.as_deref().filter(|etag| etag.starts_with('"'));
        if let Some(etag) = strong {
            request = request.header(IF_MATCH, etag);
        }
        let response = request.send().await.map_err(|e| self.web_failure(&e))?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if !is_whole => {}
            StatusCode::OK if is_whole || range.start == 0 => {}
            StatusCode::OK => {
                return Err(Error::precondition(format!(
                    "{}: the server ignores ranges",
                    self.location
                )));
            }
            StatusCode::PRECONDITION_FAILED => return Err(self.changed(&object.key)),
            status => return Err(self.web_refusal(status)),
        }
        if validator(response.headers()) != object.etag {
            return Err(self.changed(&object.key));
        }
        let location = self.location.clone();
        let interrupted = move |_: reqwest::Error| {
            Error::unavailable(format!("{location}: the transfer was interrupted"))
        };
        Ok(ObjectPart { bytes: response.bytes_stream().map_err(interrupted).boxed(), md5: None })
    }

    /// Whether parts of an object can be read in parallel: not those of a file whose server may
    /// ignore ranges.
    pub(crate) fn reads_ranges(&self) -> bool {
        self.location.kind() != StoreKind::Web
    }

    fn changed(&self, key: &str) -> Error {
        Error::new(Code::Aborted, format!("{}: {key} was changed while it was read", self.location))
    }

    pub(crate) fn failure(
        &self,
        error: object_store::Error,
        remarks: transport::Remarks,
    ) -> StoreFailure {
        let region = remarks.region.clone().filter(|_| remarks.status.is_none_or(|s| s >= 300));
        let Some(found) = region.filter(|found| self.region.as_ref() != Some(found)) else {
            return describe(&self.location, error, &remarks, self.has_credentials).into();
        };
        let Some(set) = &self.region else {
            let other = describe(&self.location, error, &remarks, self.has_credentials);
            return StoreFailure { error: other, region: Some(found) };
        };
        Error::invalid(format!(
            "{}: the bucket is in the region {found}, and {set} is configured; set store_region or \
             AWS_REGION to {found}",
            self.location
        ))
        .into()
    }

    fn web_failure(&self, error: &reqwest::Error) -> Error {
        let causes = std::iter::successors(std::error::Error::source(error), |e| e.source());
        let is_untrusted = causes.into_iter().any(|e| e.to_string().contains("certificate"));
        let why = if is_untrusted {
            "has a certificate that is not valid here; SSL_CERT_FILE names further authorities"
        } else if error.is_timeout() {
            "does not respond in time"
        } else if error.is_connect() {
            "cannot be reached"
        } else if error.is_redirect() {
            "redirects to a URL that is not followed: too many redirects, one without TLS, or one \
             to a link-local address or to this machine"
        } else {
            "does not respond with valid HTTP"
        };
        // The library's text holds the URL, and with it perhaps a signature.
        Error::unavailable(format!("{}: the server {why}", self.location))
    }

    fn web_refusal(&self, status: StatusCode) -> Error {
        crate::errors::refusal(&self.location, status.as_u16(), None)
    }
}

/// What identifies the content of a file: its ETag, or else the time of its last change.
fn validator(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(ETAG).or_else(|| headers.get(LAST_MODIFIED))?;
    value.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    /// A web server that answers every request with a redirect to `target`.
    fn redirecting(target: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let lines = BufReader::new(stream.try_clone().expect("a copy")).lines();
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
                let head = format!(
                    "HTTP/1.1 302 Found\r\nLocation: {target}\r\nConnection: close\r\n\r\n"
                );
                let _ = stream.write_all(head.as_bytes());
            }
        });
        format!("http://{address}/model.tar.gz")
    }

    #[tokio::test]
    async fn a_store_of_this_machine_redirects_neither_to_link_local_addresses_nor_without_tls() {
        let folder = tempfile::tempdir().expect("a directory");
        let config = crate::testing::config(folder.path(), BTreeMap::new());
        for target in [
            "http://169.254.169.254/latest/meta-data/",
            "http://mirror.example/m",
            "https://[fe80::1]/",
        ] {
            let location = Location::parse(&redirecting(target)).expect("a location");
            let client = StoreClient::new(&location, &config, None).expect("a client");
            let start = Instant::now();
            let Err(StoreFailure { error, .. }) = client.list().await else {
                panic!("{target} was followed")
            };
            assert!(
                error.message().contains("redirects to a URL that is not followed"),
                "{target}: {error}"
            );
            // Nothing was connected to.
            assert!(start.elapsed() < Duration::from_secs(4), "{target}: {:?}", start.elapsed());
        }
    }
}
