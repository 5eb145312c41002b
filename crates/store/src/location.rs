//! Locations of models in stores: `s3://bucket/models`, `https://host/model.tar.gz`.

use std::fmt;

use reqwest::Url;
use tensorserve_tensor::error::{Error, Result};

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StoreKind {
    /// Amazon S3, and what speaks its protocol.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// One file of a web server.
    Web,
}

impl StoreKind {
    /// Every kind of store.
    pub const ALL: [StoreKind; 4] =
        [StoreKind::S3, StoreKind::Gcs, StoreKind::Azure, StoreKind::Web];

    /// What its locations begin with. The first one is that of a location that is shown.
    #[must_use]
    pub fn schemes(self) -> &'static [&'static str] {
        match self {
            StoreKind::S3 => &["s3://", "s3a://"],
            StoreKind::Gcs => &["gs://", "gcs://"],
            StoreKind::Azure => &["az://", "azure://"],
            StoreKind::Web => &["https://", "http://"],
        }
    }

    /// What it is called in the documentation.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            StoreKind::S3 => "Amazon S3",
            StoreKind::Gcs => "Google Cloud Storage",
            StoreKind::Azure => "Azure Blob Storage",
            StoreKind::Web => "one file",
        }
    }

    /// Whether it has a list of objects, and takes new ones.
    #[must_use]
    pub fn has_objects(self) -> bool {
        match self {
            StoreKind::S3 | StoreKind::Gcs | StoreKind::Azure => true,
            StoreKind::Web => false,
        }
    }

    /// The variables of the environment that configure the access: how their names begin, and whole names.
    pub(crate) fn variables(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            StoreKind::S3 => (&["AWS_"], &["HOME"]),
            StoreKind::Gcs => (&["GOOGLE_"], &["HOME", "STORAGE_EMULATOR_HOST", "CLOUDSDK_CONFIG"]),
            StoreKind::Azure => (&["AZURE_", "AZURITE_", "IDENTITY_", "MSI_"], &[]),
            StoreKind::Web => (&[], &[]),
        }
    }

    /// The kind of the store that a location is in, and the scheme that it begins with.
    fn of(location: &str) -> Option<(Self, &'static str)> {
        StoreKind::ALL.into_iter().find_map(|kind| {
            let schemes = kind.schemes().iter();
            schemes
                .copied()
                .find(|scheme| location.starts_with(scheme))
                .map(|scheme| (kind, scheme))
        })
    }

    /// The scheme of a location that is shown.
    pub(crate) fn scheme(self) -> &'static str {
        self.schemes().first().copied().unwrap_or_default()
    }
}

/// The longest location, in bytes.
const MAX_LOCATION_BYTES: usize = 2048;

/// A prefix of a bucket, an object, or a file of a web server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    kind: StoreKind,
    /// The bucket or container; for web servers, host and port.
    bucket: String,
    /// The key prefix or the path of the URL, without `/` at either end; empty for a whole bucket.
    key: String,
    /// The URL of a file, with its query, which can hold a signature.
    url: Option<String>,
}

/// Whether `text` begins with the scheme of a store.
#[must_use]
pub fn is_location(text: &str) -> bool {
    StoreKind::of(text).is_some()
}

impl Location {
    /// Reads a location.
    ///
    /// # Errors
    /// If it has another scheme, no bucket, or a key that cannot be a path.
    pub fn parse(text: &str) -> Result<Self> {
        let Some((kind, scheme)) = StoreKind::of(text) else {
            return Err(Error::invalid(format!("{text:?} is not the URL of a store")));
        };
        if text.len() > MAX_LOCATION_BYTES || text.chars().any(char::is_control) {
            return Err(Error::invalid(
                "the URL of a store is too long or contains control characters",
            ));
        }
        if !kind.has_objects() {
            return Location::of_file(text);
        }
        let rest = text.get(scheme.len()..).unwrap_or_default();
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if bucket.is_empty() || !bucket.chars().all(is_plain) {
            return Err(Error::invalid(format!(
                "{text}: {bucket:?} is not the name of a bucket; write {scheme}BUCKET/PATH"
            )));
        }
        let key = key.trim_end_matches('/');
        if !key.is_empty() && key.split('/').any(|part| matches!(part, "" | "." | "..")) {
            let why = "its path contains an empty part, `.` or `..`";
            return Err(Error::invalid(format!("{text}: {why}")));
        }
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        Ok(Location { kind, bucket, key, url: None })
    }

    fn of_file(text: &str) -> Result<Self> {
        let url = Url::parse(text);
        let url = url.map_err(|e| Error::invalid(format!("this URL is not valid: {e}")))?;
        let Some(host) = url.host_str() else {
            return Err(Error::invalid("the URL of a model has no host"));
        };
        let bucket = url.port().map_or(host.to_owned(), |port| format!("{host}:{port}"));
        let key = url.path().trim_matches('/').to_owned();
        if key.is_empty() {
            return Err(Error::invalid(format!(
                "{}://{bucket}: name one file or archive, such as https://{bucket}/model.tar.gz",
                url.scheme()
            )));
        }
        Ok(Location { kind: StoreKind::Web, bucket, key, url: Some(url.into()) })
    }

    /// The kind of its store.
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// The bucket or container; for web servers, host and port.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// The key prefix, or the path of the URL, without `/` at either end.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The URL of a file, with its query.
    pub(crate) fn url(&self) -> Option<&str> {
        self.url.as_deref()
    }

    /// Whether it is the same as `root`, or below it.
    #[must_use]
    pub fn is_within(&self, root: &Self) -> bool {
        let rest = self.key.strip_prefix(&root.key);
        let is_below = rest
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || root.key.is_empty());
        self.kind == root.kind && self.bucket == root.bucket && is_below
    }

    /// The last part of its path; the bucket if it has none.
    #[must_use]
    pub fn name(&self) -> &str {
        match self.key.rsplit('/').next() {
            None | Some("") => &self.bucket,
            Some(name) => name,
        }
    }

    /// What identifies it, also to another process.
    pub(crate) fn identity(&self) -> String {
        self.url.clone().unwrap_or_else(|| self.to_string())
    }
}

/// Without the query of a URL and the user in it, which can be secrets.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // That of a URL is kept: it tells whether the file is fetched with TLS.
        let of_url = self.url.as_deref().and_then(StoreKind::of);
        let scheme = of_url.map_or(self.kind.scheme(), |(_, scheme)| scheme);
        write!(f, "{scheme}{}", self.bucket)?;
        if !self.key.is_empty() {
            write!(f, "/{}", self.key)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_has_every_scheme() {
        let page = include_str!("../../../docs/storage.md");
        let (_, table) = page.split_once("| URL | store |\n| --- | --- |\n").expect("the table");
        let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), StoreKind::ALL.len());
        for (row, kind) in rows.iter().zip(StoreKind::ALL) {
            let found: Vec<&str> = row.split('`').filter(|part| part.contains("://")).collect();
            assert_eq!(found.len(), kind.schemes().len(), "{row}");
            for scheme in kind.schemes() {
                assert!(found.iter().any(|part| part.starts_with(scheme)), "{scheme}: {row}");
            }
            assert!(row.contains(&format!("| {}", kind.title())), "{}: {row}", kind.title());
        }
    }

    #[test]
    fn locations_are_read_and_shown_without_secrets() {
        let shown =
            |text: &str| Location::parse(text).map(|it| (it.to_string(), it.name().to_owned()));
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        for (text, want) in [
            ("s3://models", pair("s3://models", "models")),
            ("s3a://b/m/half_plus_two/", pair("s3://b/m/half_plus_two", "half_plus_two")),
            ("gs://b/a b/ü", pair("gs://b/a b/ü", "ü")),
            ("az://container/x", pair("az://container/x", "x")),
            (
                "https://user:word@host:8443/a/m.tar.gz?X-Amz-Signature=abc#f",
                pair("https://host:8443/a/m.tar.gz", "m.tar.gz"),
            ),
            ("http://127.0.0.1:80/m.onnx", pair("http://127.0.0.1/m.onnx", "m.onnx")),
        ] {
            assert_eq!(shown(text).expect(text), want);
        }
        let wrong = [
            "s3://",
            "s3:///m",
            "s3://b/../c",
            "s3://b/a//b",
            "s3://b/./c",
            "s3://a b/c",
            "https://host",
            "https://",
            "ftp://host/x",
            "/models",
            "s3://b/a\0b",
            "s3://b\n/c",
        ];
        for text in wrong {
            assert!(Location::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_lies_within_a_location() {
        let within = |inner: &str, outer: &str| {
            let parse = |text| Location::parse(text).expect("a location");
            parse(inner).is_within(&parse(outer))
        };
        assert!(within("s3://b/models/m", "s3://b/models") && within("s3://b/x", "s3://b"));
        assert!(within("s3://b/models", "s3://b/models/"));
        assert!(!within("s3://b/models-2/m", "s3://b/models"));
        assert!(!within("s3://c/models/m", "s3://b/models"));
        assert!(!within("gs://b/models/m", "s3://b/models"));
    }
}
