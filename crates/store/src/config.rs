//! The configuration of the stores.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::location::StoreKind;
use crate::redirects::PROXIES;

/// The checked configuration of the stores.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// The directory for downloaded versions.
    pub cache: PathBuf,
    /// The most bytes that it may hold.
    pub cache_bytes: u64,
    /// The URL of an S3 server other than Amazon's, such as MinIO; `None` for the environment's.
    pub endpoint: Option<String>,
    /// The region of S3 buckets; `None` to find it out.
    pub region: Option<String>,
    /// Send no credentials: the buckets are public.
    pub anonymous: bool,
    /// Allow `http://` URLs of models on other machines.
    pub allow_http: bool,
    /// Variables of the environment by which the clouds' own tools are configured: those that
    /// [`is_variable`] accepts.
    pub environment: BTreeMap<String, String>,
}

/// Whether `name` is a variable that configures the access to a cloud, or names a proxy.
#[must_use]
pub fn is_variable(name: &str) -> bool {
    let configures = |kind: StoreKind| {
        let (prefixes, names) = kind.variables();
        names.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    PROXIES.contains(&name) || StoreKind::ALL.into_iter().any(configures)
}

impl StoreConfig {
    /// The value of a variable that is set and not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Without the values of variables, which can be secrets.
impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("cache", &self.cache)
            .field("cache_bytes", &self.cache_bytes)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("anonymous", &self.anonymous)
            .field("allow_http", &self.allow_http)
            .field("environment", &self.environment.keys())
            .finish()
    }
}
