//! Runs of more rows than a model was compiled for, in several parts.

use super::inputs::InputPlan;
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{Signature, Tensor, concat};

/// The most rows of a run of a model whose rows are independent, if there is a bound for them.
pub(crate) fn most_rows(signature: &Signature, inputs: &[InputPlan]) -> Option<usize> {
    let bounds = inputs.iter().filter_map(|plan| plan.check.as_ref()?.dims.first()?.most());
    let least = bounds.min().and_then(|rows| usize::try_from(rows).ok());
    least.filter(|rows| *rows > 0 && signature.is_batchable())
}

/// Calls `run` with all rows of the inputs; with `most` at a time if there are more.
pub(crate) fn run(
    inputs: &[Tensor],
    most: Option<usize>,
    mut run: impl FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let rows = inputs.first().and_then(Tensor::rows).unwrap_or(0);
    let is_divisible = inputs.iter().all(|input| input.rows() == Some(rows));
    let Some(most) = most.filter(|most| rows > *most && is_divisible) else {
        return run(inputs);
    };
    let mut parts = Vec::new();
    for start in (0..rows).step_by(most) {
        let end = (start + most).min(rows);
        let inputs: Vec<Tensor> = inputs.iter().map(|it| it.slice_rows(start..end)).collect();
        parts.push(run(&inputs)?);
    }
    let count = parts.first().map_or(0, Vec::len);
    let output = |index: usize| {
        let parts: Vec<&Tensor> = parts.iter().filter_map(|part| part.get(index)).collect();
        concat(&parts, 0)
    };
    (0..count).map(output).collect()
}
