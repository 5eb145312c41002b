//! What a child does: loads a version, runs each signature on synthetic inputs, and then on inputs
//! around the declared shapes, for which some operations end the process.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorserve_platform::{
    Executable, Loaded, Optimization, Platform, RunOptions, synthetic_dims, synthetic_input,
    synthetic_inputs, unset,
};
use tensorserve_tensor::error::{Code, Error};
use tensorserve_tensor::{Signature, TensorSpec};

use crate::messages::{ProbeProgress, ProbeRequest};

/// Trials may take half as long as the load and the runs did, within these limits.
const SHORTEST_TRIALS: Duration = Duration::from_millis(100);
const LONGEST_TRIALS: Duration = Duration::from_secs(5);
/// The highest declared rank around which other shapes are tried.
const HIGHEST_RANK: usize = 8;

/// Loads and runs a version, and writes how far it has come to `progress`.
pub(crate) fn load_and_run(platform: &Platform, request: &ProbeRequest, progress: &mut impl Write) {
    let started = Instant::now();
    tell(progress, &ProbeProgress::Loading);
    let loaded = match platform.loader.load(&request.folder, &request.options()) {
        Ok(loaded) => loaded,
        Err(error) => return tell(progress, &stage_of(&error).unwrap_or(ProbeProgress::Refused)),
    };
    let Some(executable) = form_of(&loaded, request.form) else {
        return tell(progress, &ProbeProgress::Refused);
    };
    for (index, signature) in loaded.signatures.iter().enumerate() {
        if !signature.read_only {
            continue; // A run may have effects outside the process.
        }
        tell(progress, &ProbeProgress::Running(signature.name.clone()));
        let Err(error) = run_declared(&*executable, index, signature) else {
            continue;
        };
        let refusal = unset::refusal(&error, signature, &loaded.signatures);
        let unset = refusal.map(|refusal| ProbeProgress::Unset(refusal.message().to_owned()));
        if let Some(stage) = unset.or_else(|| stage_of(&error)) {
            return tell(progress, &stage);
        }
    }
    tell(progress, &ProbeProgress::Ran);
    let time = (started.elapsed() / 2).clamp(SHORTEST_TRIALS, LONGEST_TRIALS);
    let deadline = Instant::now() + time;
    for trial in trials(&loaded.signatures) {
        if Instant::now() >= deadline {
            break;
        }
        trial.run(&*executable, progress);
    }
    tell(progress, &ProbeProgress::Tried);
}

/// The version as it was loaded, or its other form with this number; `None` if there is none.
fn form_of(loaded: &Loaded, number: Option<usize>) -> Option<Arc<dyn Executable>> {
    let Some(number) = number else {
        return Some(Arc::clone(&loaded.executable));
    };
    match loaded.executable.optimized(number) {
        Ok(Optimization::Made(form)) => Some(form.executable),
        Ok(Optimization::None(_) | Optimization::Unknown) | Err(_) => None,
    }
}

fn tell(progress: &mut impl Write, stage: &ProbeProgress) {
    if let Ok(mut line) = serde_json::to_vec(stage) {
        line.push(b'\n');
        let _ = progress.write_all(&line);
    }
}

/// The stage to report for an error. Other errors than exhausted memory and unset variables do not fail the version:
/// a model may reject synthetic inputs.
fn stage_of(error: &Error) -> Option<ProbeProgress> {
    let is_memory = error.code() == Code::ResourceExhausted;
    is_memory.then(|| ProbeProgress::OutOfMemory(error.message().to_owned()))
}

/// Runs a signature on one row, and on two if it takes batches.
pub(crate) fn run_declared(
    executable: &dyn Executable,
    index: usize,
    signature: &Signature,
) -> Result<(), Error> {
    let sizes = if signature.is_batchable() { 1..=2 } else { 1..=1 };
    for rows in sizes {
        if let Some(inputs) = synthetic_inputs(signature, rows) {
            executable.run(index, &inputs, RunOptions::default())?;
        }
    }
    Ok(())
}

/// A run of a signature whose input number `position` has another shape than declared.
struct ShapeTrial<'s> {
    index: usize,
    signature: &'s Signature,
    position: usize,
    spec: &'s TensorSpec,
    dims: Vec<i64>,
}

/// The trials of all signatures that may run on other shapes than the declared ones.
fn trials(signatures: &[Signature]) -> Vec<ShapeTrial<'_>> {
    let mut trials = Vec::new();
    for (index, signature) in signatures.iter().enumerate() {
        // Other shapes never reach the runtime where a signature insists on the declared ones.
        if !signature.read_only || signature.exact_shapes {
            continue;
        }
        for (position, spec) in signature.inputs.iter().enumerate() {
            let sizes = spec.shape.sizes().filter(|sizes| sizes.len() <= HIGHEST_RANK);
            let Some((sizes, dims)) = sizes.zip(synthetic_dims(spec, 1, 1)) else {
                continue;
            };
            let shapes = other_shapes(&dims, &sizes).into_iter();
            trials.extend(shapes.map(|dims| ShapeTrial { index, signature, position, spec, dims }));
        }
    }
    trials
}

impl ShapeTrial<'_> {
    /// Runs it. What the run returns does not matter.
    fn run(&self, executable: &dyn Executable, progress: &mut impl Write) {
        let ShapeTrial { signature, spec, dims, .. } = self;
        let other = synthetic_input(spec, signature, dims);
        let Some((mut inputs, other)) = synthetic_inputs(signature, 1).zip(other) else {
            return; // They would be large.
        };
        if let Some(input) = inputs.get_mut(self.position) {
            *input = other;
        }
        let (alias, name) = (&spec.alias, &signature.name);
        let which = format!("input {alias:?} of signature {name:?} with the shape {dims:?}");
        tell(progress, &ProbeProgress::Trying(which));
        let _ = executable.run(self.index, &inputs, RunOptions::default());
    }
}

/// Shapes around `dims`, which a synthetic input of the declared `sizes` has: all lower ranks, no rows,
/// one more dimension, another size of each fixed dimension, and none of each variable one.
fn other_shapes(dims: &[i64], sizes: &[i64]) -> Vec<Vec<i64>> {
    let mut shapes: Vec<Vec<i64>> =
        (0..dims.len()).rev().filter_map(|rank| Some(dims.get(..rank)?.to_vec())).collect();
    if !dims.is_empty() {
        shapes.push(vec![0]);
        shapes.push(with_dim(dims, 0, 0));
    }
    shapes.push([dims, &[1]].concat());
    for (at, &size) in sizes.iter().enumerate() {
        let other = if size >= 0 { size + 1 } else { 0 };
        shapes.push(with_dim(dims, at, other));
    }
    let mut tried: Vec<Vec<i64>> = vec![dims.to_vec()];
    shapes.retain(|shape| {
        let is_new = !tried.contains(shape);
        tried.push(shape.clone());
        is_new
    });
    shapes
}

fn with_dim(dims: &[i64], at: usize, size: i64) -> Vec<i64> {
    let mut dims = dims.to_vec();
    if let Some(dim) = dims.get_mut(at) {
        *dim = size;
    }
    dims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_around_the_declared_one_are_tried() {
        let expected: [&[i64]; 7] =
            [&[1, 64], &[1], &[], &[0], &[0, 64, 1], &[1, 64, 1, 1], &[1, 65, 1]];
        let mut shapes = other_shapes(&[1, 64, 1], &[-1, 64, -1]);
        assert_eq!(shapes.pop().as_deref(), Some(&[1, 64, 0][..]));
        assert_eq!(shapes, expected);
        assert_eq!(other_shapes(&[], &[]), [[1]]);
    }
}
