//! Runs the signatures of a loaded model, and makes a copy of it that takes less time.

use std::sync::Arc;
use std::time::Instant;

use tempfile::TempDir;

use super::ffi::{GraphEndpoint, RunTensors, TensorFlowSession};
use super::freezing::SavedModelOrigin;
use super::{trace, unset};
use tensorserve_platform::{Executable, Optimization, OptimizedModel, Profiled, RunOptions};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Signature, Tensor, TensorSpec};

/// A loaded SavedModel.
pub(super) struct SavedModelExecutable {
    loaded: LoadedGraph,
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
        let loaded = LoadedGraph::new((session, alike), signatures);
        SavedModelExecutable { loaded, origin, on_gpu, _assets: None }
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

impl Executable for SavedModelExecutable {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        self.loaded.run(signature, inputs, options)
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
        let _assets = frozen.assets;
        Ok(Optimization::Made(OptimizedModel {
            executable: Arc::new(SavedModelExecutable { _assets, ..copy }),
            needs_original: frozen.plan.needs_original(),
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
        let LoadedGraph { session, .. } = &self.loaded;
        let tensors = self.loaded.endpoints(signature)?.with(inputs);
        let (outputs, metadata) = session.run_traced(tensors, options)?;
        Ok((outputs, trace::read(&metadata)?))
    }
}
