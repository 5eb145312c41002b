//! The inputs on which two forms of a model are compared.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::batch::joined;
use crate::repository::{ModelHandle, Servable, TrialRequest};
use tensorserve_platform::{
    Executable, RunOptions, irregular_inputs, large_inputs, sized_inputs, synthetic_inputs,
    synthetic_samples,
};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{DType, LARGEST_ORDINARY_FLOAT, Signature, Tensor};

/// Inputs of a signature, and what they are.
pub(super) struct ComparedInputs {
    pub(super) name: String,
    pub(super) inputs: Vec<Tensor>,
    /// Threads within an operation; 0 for those of the version.
    pub(super) threads: usize,
    /// Whether their values are of many kinds, so that another way to compute would show.
    pub(super) tells: bool,
}

/// Numbers of rows with irregular values, each compared as often as `IRREGULAR` says.
const ROWS: [usize; 5] = [1, 2, 3, 8, 32];
const IRREGULAR: usize = 4;

/// Magnitudes of floats up to which forms are compared, beyond those of irregular values: of logits, of colours, of 12 and 16 bits, of
/// identifiers and times, and of whatever is ordinary. The larger the numbers, the more of them cancel out, or decide between
/// alternatives, in what rounding has left of them.
pub(super) const MAGNITUDES: [f32; 7] =
    [16.0, 256.0, 4096.0, 65_536.0, 16_777_216.0, 4_294_967_296.0, LARGEST_ORDINARY_FLOAT];

/// Numbers of rows of these inputs.
const LARGE_ROWS: [usize; 2] = [2, 3];

/// The longest run of a recorded request.
const LONGEST_RECORDED: Duration = Duration::from_secs(60);

/// Inputs for `signature`: harmless, extreme and wrong values, each alone and all together, no rows, irregular values in
/// several numbers of rows, and recorded requests.
pub(super) fn compared_inputs<'r>(
    signature: &Signature,
    recorded: impl Iterator<Item = &'r Vec<Tensor>>,
) -> Vec<ComparedInputs> {
    let mut all = Vec::new();
    let mut add = |name, inputs, threads, tells| {
        all.push(ComparedInputs { name, inputs, threads, tells });
    };
    let samples = synthetic_samples(signature);
    if signature.is_batchable() {
        if let Some(inputs) = synthetic_inputs(signature, 0) {
            add("no rows".to_owned(), inputs, 1, false);
        }
        // Samples are one row each; those in one half have other dimensions than those in the other.
        let half = samples.len().div_ceil(2).max(1);
        for part in samples.chunks(half).chain([samples.as_slice()]) {
            let rows: Vec<&[Tensor]> = part.iter().map(|sample| sample.inputs.as_slice()).collect();
            if let Ok(inputs) = joined(&rows) {
                add(format!("{} samples together", rows.len()), inputs, 0, false);
            }
        }
    }
    for sample in samples {
        add(sample.name.to_owned(), sample.inputs, 1, false);
    }
    let rows = if signature.is_batchable() { &ROWS[..] } else { &[1] };
    for &rows in rows {
        for seed in 0..IRREGULAR {
            if let Some(inputs) = irregular_inputs(signature, rows, seed) {
                // Several threads may add up in another order.
                add(format!("irregular values in {rows} rows"), inputs, seed % 2, true);
            }
        }
    }
    for (number, inputs) in (1..).zip(recorded) {
        add(format!("recorded request {number}"), inputs.clone(), 0, true);
    }
    all
}

/// Inputs for `signature` with floats up to `largest`; none if it takes no floats.
pub(super) fn large(signature: &Signature, largest: f32) -> Vec<ComparedInputs> {
    if !signature.inputs.iter().any(|spec| spec.dtype() == Some(DType::Float)) {
        return Vec::new();
    }
    let rows = if signature.is_batchable() { LARGE_ROWS } else { [1; 2] };
    let inputs = |(seed, rows)| {
        let inputs = large_inputs(signature, rows, seed, largest)?;
        let name = format!("floats up to {largest} in {rows} rows");
        Some(ComparedInputs { name, inputs, threads: seed, tells: true })
    };
    rows.into_iter().enumerate().filter_map(inputs).collect()
}

/// The most recorded requests that are timed.
const MOST_TIMED: usize = 4;

/// Numbers of rows that are timed without recorded requests, and sizes of open dimensions, of which the first counts that
/// the model takes: a text has words, and an image pixels.
const TIMED_ROWS: [usize; 2] = [1, 8];
const TIMED_SIZES: [usize; 2] = [32, 1];

/// Inputs for `signature` that are timed, each with alternatives if the model refuses it: recorded requests, or irregular
/// values.
pub(super) fn timed_inputs<'r>(
    signature: &Signature,
    recorded: impl Iterator<Item = &'r Vec<Tensor>>,
) -> Vec<Vec<Vec<Tensor>>> {
    let recorded: Vec<_> = recorded.take(MOST_TIMED).map(|inputs| vec![inputs.clone()]).collect();
    if !recorded.is_empty() {
        return recorded;
    }
    let rows = if signature.is_batchable() { &TIMED_ROWS[..] } else { &[1] };
    let alternatives = |&rows: &usize| {
        let sizes = TIMED_SIZES.iter();
        sizes.filter_map(|&open| sized_inputs(signature, (rows, open), 0)).collect()
    };
    rows.iter().map(alternatives).collect()
}

/// Notes the inputs of runs.
struct InputRecorder {
    inner: Arc<dyn Executable>,
    seen: Mutex<Vec<(usize, Vec<Tensor>)>>,
}

impl Executable for InputRecorder {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((signature, inputs.to_vec()));
        drop(seen);
        self.inner.run(signature, inputs, options)
    }
}

/// The inputs that the model gets for a recorded request, after pre-processing, by the number of the signature. Runs the
/// request. Blocks.
pub(super) fn recorded_inputs(
    servable: &Servable,
    request: &dyn TrialRequest,
) -> Vec<(usize, Vec<Tensor>)> {
    let inner = servable.loaded.executable.current();
    let recorder = Arc::new(InputRecorder { inner, seen: Mutex::default() });
    let aside = servable.on(&(Arc::clone(&recorder) as Arc<dyn Executable>));
    let handle = ModelHandle { servable: Arc::new(aside), log: None, traffic: None };
    // An error is one of the request, which says nothing here.
    let _ = request.outputs(&handle, Instant::now() + LONGEST_RECORDED);
    let mut seen = recorder.seen.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *seen)
}
