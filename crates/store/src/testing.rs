//! What several tests need.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::StoreConfig;

/// A configuration with its cache in `folder`.
pub(crate) fn config(folder: &Path, environment: BTreeMap<String, String>) -> StoreConfig {
    StoreConfig {
        cache: folder.join("cache"),
        cache_bytes: 1 << 30,
        endpoint: None,
        region: None,
        anonymous: false,
        allow_http: false,
        environment,
    }
}
