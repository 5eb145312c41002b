//! Metrics of the stores that models come from.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LocationLabels {
    location: String,
}

/// Metrics of the stores' reports, which are read when the metrics are. Locations come from the
/// configuration and from operators.
#[derive(Default)]
pub(super) struct StoreMetrics {
    up: Family<LocationLabels, Gauge>,
    listed: Family<LocationLabels, Gauge>,
    objects: Family<LocationLabels, Gauge>,
    downloads: Family<LocationLabels, Gauge>,
    downloaded: Family<LocationLabels, Gauge>,
    to_download: Family<LocationLabels, Gauge>,
    cache: Gauge,
    cache_limit: Gauge,
}

impl StoreMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = StoreMetrics::default();
        let help = "1 if the store of this location responded when it was last listed, else 0";
        registry.register("store_up", help, metrics.up.clone());
        let help = "When this location was last listed, in seconds since 1970";
        registry.register("store_listed_timestamp_seconds", help, metrics.listed.clone());
        let help = "Objects at this location";
        registry.register("store_objects", help, metrics.objects.clone());
        let help = "Downloads under way from this location";
        registry.register("store_downloads", help, metrics.downloads.clone());
        let help = "Bytes of these downloads so far";
        registry.register("store_downloaded_bytes", help, metrics.downloaded.clone());
        let help = "Bytes of these downloads in all";
        registry.register("store_download_bytes", help, metrics.to_download.clone());
        let help = "Size of the models from stores on the disk";
        registry.register("model_cache_bytes", help, metrics.cache.clone());
        let help = "The limit of it, model_cache_bytes";
        registry.register("model_cache_limit_bytes", help, metrics.cache_limit.clone());
        metrics
    }

    pub(super) fn set(&self, reports: &[StoreReport], cache: Option<(u64, u64)>) {
        for report in reports {
            let labels = LocationLabels { location: report.location.clone() };
            let listed = report.listed_at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
            let listed = listed.map_or(0, |since| since.as_secs());
            for (family, value) in [
                (&self.up, u64::from(report.error.is_none())),
                (&self.listed, listed),
                (&self.objects, report.objects as u64),
                (&self.downloads, report.downloads as u64),
                (&self.downloaded, report.downloaded_bytes),
                (&self.to_download, report.download_bytes),
            ] {
                family.get_or_create(&labels).set(i64::try_from(value).unwrap_or(i64::MAX));
            }
        }
        if let Some((bytes, limit)) = cache {
            self.cache.set(i64::try_from(bytes).unwrap_or(i64::MAX));
            self.cache_limit.set(i64::try_from(limit).unwrap_or(i64::MAX));
        }
    }
}
