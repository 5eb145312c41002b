//! Metrics of the stores that models come from.

use std::time::{SystemTime, UNIX_EPOCH};

use super::families::LocationLabels;
use super::{Metrics, clamped};

/// The state of a location, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReport {
    /// The location, without secrets.
    pub location: String,
    /// When it was last listed.
    pub listed_at: Option<SystemTime>,
    /// Why it cannot be listed.
    pub error: Option<String>,
    /// What is served was fetched by an earlier process; the store has not responded yet.
    pub is_offline: bool,
    /// Its objects.
    pub objects: usize,
    /// Downloads under way.
    pub downloads: usize,
    /// Their bytes so far.
    pub downloaded_bytes: u64,
    /// Their bytes in all.
    pub download_bytes: u64,
}

impl Metrics {
    /// Sets the metrics of the stores that models come from, and of their cache: its size and limit.
    /// Locations come from the configuration and from operators.
    pub(crate) fn set_stores(&self, reports: &[StoreReport], cache: Option<(u64, u64)>) {
        let families = &self.0.families;
        for report in reports {
            let labels = LocationLabels { location: report.location.clone() };
            let listed = report.listed_at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            let listed = listed.map_or(0, |since| since.as_secs());
            for (family, value) in [
                (&families.store_up, u64::from(report.error.is_none())),
                (&families.store_listed_timestamp_seconds, listed),
                (&families.store_objects, report.objects as u64),
                (&families.store_downloads, report.downloads as u64),
                (&families.store_downloaded_bytes, report.downloaded_bytes),
                (&families.store_download_bytes, report.download_bytes),
            ] {
                family.get_or_create(&labels).set(clamped(value));
            }
        }
        if let Some((bytes, limit)) = cache {
            families.model_cache_bytes.set(clamped(bytes));
            families.model_cache_limit_bytes.set(clamped(limit));
        }
    }
}
