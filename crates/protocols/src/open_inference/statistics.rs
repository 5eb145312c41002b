//! The statistics extension: the totals of each version since it was loaded.
//!
//! Decoding and encoding are not measured apart from the rest of a request; their totals are 0. Sizes of
//! batches are in the server's own metrics.
//!
//! Source: Triton's `extension_statistics.md`.

use serde_json::{Value, json};

use super::describe::ready_version;
use super::request::NamedModel;
use tensorserve_core::engine::{Engine, ModelHandle, Statistics, Total};
use tensorserve_tensor::error::Result;

/// The totals of a version.
pub(super) struct ModelStatistics {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) totals: Statistics,
}

impl ModelStatistics {
    fn of(handle: &ModelHandle) -> Self {
        let metrics = handle.version_metrics();
        let signatures = (0..handle.signatures().len()).filter_map(|at| metrics.signature(at));
        let totals = signatures.map(|signature| signature.statistics());
        ModelStatistics {
            name: handle.model().to_owned(),
            version: handle.version().to_string(),
            totals: totals.fold(Statistics::default(), Statistics::plus),
        }
    }

    /// Rows that were run. Requests that could not be batched have one each.
    pub(super) fn inference_count(&self) -> u64 {
        self.totals.rows.max(self.totals.succeeded.count)
    }

    pub(super) fn json(&self) -> Value {
        let total = |total: Total| json!({ "count": total.count, "ns": total.nanoseconds });
        let Statistics { succeeded, failed, queued, runs, last_success, .. } = self.totals;
        json!({
            "name": self.name,
            "version": self.version,
            "last_inference": last_success,
            "inference_count": self.inference_count(),
            "execution_count": runs.count,
            "inference_stats": {
                "success": total(succeeded),
                "fail": total(failed),
                "queue": total(queued),
                "compute_input": total(Total::default()),
                "compute_infer": total(runs),
                "compute_output": total(Total::default()),
                "cache_hit": total(Total::default()),
                "cache_miss": total(Total::default()),
            },
            "batch_stats": [],
            "response_stats": {},
            "memory_usage": [],
        })
    }
}

/// The totals of all ready versions that a request names; of all models for an empty name.
///
/// # Errors
/// If the model or the version is not ready.
pub(super) fn of(engine: &Engine, named: &NamedModel) -> Result<Vec<ModelStatistics>> {
    if !named.name.is_empty() && !named.version.is_empty() {
        return Ok(vec![ModelStatistics::of(&ready_version(engine, named)?)]);
    }
    let models = match named.name.is_empty() {
        true => engine.repository().models(),
        false => {
            ready_version(engine, named)?;
            engine.repository().model(&named.name).into_iter().collect()
        }
    };
    let versions = models.iter().flat_map(|model| model.versions.iter().rev());
    let handles = versions.filter_map(|(_, handle)| handle.as_ref());
    Ok(handles.map(ModelStatistics::of).collect())
}
