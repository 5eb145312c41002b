//! Runs whose outputs may come from the response cache.

use std::time::Instant;

use crate::batch::{BatchOutput, RunTiming};
use crate::repository::{CacheUse, ModelHandle};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::priority::Priority;

/// Runs signature number `signature` on `inputs`, unless the outputs of such a run are in the cache. Their
/// queue delay and run time are zero then.
pub(super) async fn infer(
    version: &ModelHandle,
    cache: CacheUse<'_>,
    signature: usize,
    inputs: Vec<Tensor>,
    deadline: Instant,
    priority: Priority,
) -> Result<BatchOutput> {
    let CacheUse { responses, counters } = cache;
    let Some(key) = responses.key(signature, &inputs) else {
        return version.infer(signature, inputs, Some(deadline), priority).await;
    };
    if let Some(outputs) = responses.get(key, &inputs) {
        counters.hits.inc();
        return Ok(BatchOutput { outputs, timing: RunTiming::default() });
    }
    counters.misses.inc();
    let kept = inputs.clone();
    let output = version.infer(signature, inputs, Some(deadline), priority).await?;
    responses.insert(key, &kept, &output.outputs);
    Ok(output)
}
