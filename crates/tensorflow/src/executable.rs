//! Runs the signatures of a loaded model, and makes a copy of it that takes less time.

use std::sync::Arc;
use std::time::Instant;

use tempfile::TempDir;

use super::ffi::{GraphEndpoint, RunTensors, TensorFlowSession};
use super::freezing::SavedModelOrigin;
use super::{trace, unset};
use tensorserve_platform::{Executable, Optimization, OptimizedModel, Profiled, RunOptions};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{LARGEST_ORDINARY_FLOAT, Signature, Tensor, TensorSpec};

/// A loaded SavedModel.
pub(super) struct SavedModelExecutable {
    loaded: Arc<LoadedGraph>,
    /// What runs where `loaded` may compute something else, if it is such a copy.
    original: Option<Arc<LoadedGraph>>,
    /// What a copy is made of; `None` if there can be none.
    origin: Option<SavedModelOrigin>,
    /// The folder whose assets its operations may read, if it is a copy.
    _assets: Option<TempDir>,
    on_gpu: bool,
}

/// A session, and what it runs.
struct LoadedGraph {
    /// The endpoints of each signature, or why it cannot be run.
    endpoints: Vec<Result<SignatureEndpoints>>,
    /// For each signature the number of one that computes the same and runs for it: the runtime plans each on its own.
    alike: Vec<usize>,
    session: TensorFlowSession,
}

/// The feeds and fetches of a signature, in the order of its inputs and outputs.
struct SignatureEndpoints {
    feeds: Vec<GraphEndpoint>,
    fetches: Vec<GraphEndpoint>,
}

impl SignatureEndpoints {
    fn resolve(session: &TensorFlowSession, signature: &Signature) -> Result<Self> {
        if let Some(why) = signature.unsupported() {
            let message = format!(
                "signature {:?} cannot be called: its {why}; export a signature with dense tensors \
                 instead",
                signature.name
            );
            return Err(Error::new(Code::Unimplemented, message));
        }
        let resolve = |spec: &TensorSpec| session.endpoint(&spec.tensor_name);
        Ok(SignatureEndpoints {
            feeds: signature.inputs.iter().map(resolve).collect::<Result<_>>()?,
            fetches: signature.outputs.iter().map(resolve).collect::<Result<_>>()?,
        })
    }

    fn with<'a>(&'a self, inputs: &'a [Tensor]) -> RunTensors<'a> {
        RunTensors { feeds: &self.feeds, inputs, fetches: &self.fetches }
    }
}

impl SavedModelExecutable {
    /// `alike` has for each signature the number of one that computes the same.
    pub(super) fn new(
        (session, alike): (TensorFlowSession, Vec<usize>),
        signatures: &[Signature],
        origin: Option<SavedModelOrigin>,
        on_gpu: bool,
    ) -> Self {
        let loaded = Arc::new(LoadedGraph::new((session, alike), signatures));
        SavedModelExecutable { loaded, original: None, origin, on_gpu, _assets: None }
    }
}

impl LoadedGraph {
    fn new((session, alike): (TensorFlowSession, Vec<usize>), signatures: &[Signature]) -> Self {
        let resolve = |signature| SignatureEndpoints::resolve(&session, signature);
        let endpoints = signatures.iter().map(resolve).collect();
        for (&first, signature) in alike.iter().zip(signatures) {
            if let Some(first) = signatures.get(first).filter(|it| it.name != signature.name) {
                log::debug!(
                    "signature {:?} runs as {:?}: both are alike",
                    signature.name,
                    first.name
                );
            }
        }
        LoadedGraph { endpoints, alike, session }
    }

    fn endpoints(&self, signature: usize) -> Result<&SignatureEndpoints> {
        match self.endpoints.get(signature) {
            Some(Ok(endpoints)) => Ok(endpoints),
            Some(Err(error)) => Err(error.duplicate()),
            None => Err(Error::internal("the signature's index is out of range")),
        }
    }

    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let began = Instant::now();
        let first = self.alike.get(signature).copied().unwrap_or(signature);
        let run = |signature, options| {
            let outputs = self.session.run(self.endpoints(signature)?.with(inputs), options);
            outputs.map_err(unset::with_cause)
        };
        match run(first, options) {
            // Its own message names its own nodes.
            Err(error) if first != signature && error.code() != Code::DeadlineExceeded => {
                run(signature, options.left_since(began))
            }
            found => found,
        }
    }
}

/// Whether sums of products of these inputs are far from infinity, in any order.
fn are_ordinary(inputs: &[Tensor]) -> bool {
    inputs.iter().all(|it| is_within(it, LARGEST_ORDINARY_FLOAT))
}

/// Whether no output is NaN or infinite, as far as that can be told.
fn are_finite(outputs: &[Tensor]) -> bool {
    outputs.iter().all(|it| is_within(it, f32::MAX))
}

fn is_within(tensor: &Tensor, largest: f32) -> bool {
    tensor.dtype().is_integer_or_bool() || tensor.has_floats_within(largest)
}

impl Executable for SavedModelExecutable {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        let Some(original) = &self.original else {
            return self.loaded.run(signature, inputs, options);
        };
        let began = Instant::now();
        if are_ordinary(inputs)
            && let Ok(outputs) = self.loaded.run(signature, inputs, options)
            && are_finite(&outputs)
        {
            return Ok(outputs);
        }
        original.run(signature, inputs, options.left_since(began))
    }

    fn runs_on_gpu(&self) -> bool {
        self.on_gpu
    }

    fn may_have_other_forms(&self) -> bool {
        self.origin.is_some()
    }

    fn optimized(&self, number: usize) -> Result<Optimization> {
        let Some(origin) = &self.origin else {
            return Ok(Optimization::Unknown);
        };
        let frozen = match origin.freeze(&self.loaded.session, number)? {
            Ok(frozen) => frozen,
            Err(why) => return Ok(Optimization::None(why)),
        };
        let copy = SavedModelExecutable::new(
            (frozen.session, self.loaded.alike.clone()),
            &origin.signatures,
            None,
            self.on_gpu,
        );
        let original = frozen.plan.needs_original().then(|| Arc::clone(&self.loaded));
        let _assets = frozen.assets;
        let executable = Arc::new(SavedModelExecutable { original, _assets, ..copy });
        Ok(Optimization::Made(OptimizedModel {
            executable,
            what: frozen.what,
            only: None,
            ends_group: frozen.plan.ends_group,
            is_last: frozen.is_last,
        }))
    }

    fn profile(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<Profiled> {
        let LoadedGraph { session, .. } = &*self.loaded;
        let tensors = self.loaded.endpoints(signature)?.with(inputs);
        let (outputs, metadata) = session.run_traced(tensors, options)?;
        Ok((outputs, trace::read(&metadata)?))
    }
}
