//! What was found of a model that a request loads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::repository::files::Fingerprint;
use crate::repository::source::DiscoveredModel;

/// A model that a request loads, with versions that are ready to be loaded.
pub(super) struct RequestedModel {
    pub(super) discovered: DiscoveredModel,
    pub(super) versions: BTreeMap<i64, CheckedVersion>,
}

/// Where the files of a version are, and what they look like: all are there.
pub(super) struct CheckedVersion {
    pub(super) folder: PathBuf,
    pub(super) seen: Fingerprint,
}
