//! A session, and the signatures that it runs.

use std::time::Instant;

use tempfile::TempDir;

use super::ffi::{GraphEndpoint, RunTensors, TensorFlowSession};
use super::unset;
use tensorserve_platform::RunOptions;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Signature, Tensor, TensorSpec};

/// A session, and what it runs.
pub(super) struct LoadedGraph {
    /// The endpoints of each signature, or why it cannot be run.
    endpoints: Vec<Result<SignatureEndpoints>>,
    /// For each signature the number of one that computes the same and runs for it: the runtime plans each on its own.
    alike: Vec<usize>,
    pub(super) session: TensorFlowSession,
    /// The folder whose assets its operations may read, if it is a copy.
    _assets: Option<TempDir>,
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

impl LoadedGraph {
    pub(super) fn new(
        (session, alike): (TensorFlowSession, Vec<usize>),
        signatures: &[Signature],
        assets: Option<TempDir>,
    ) -> Self {
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
        LoadedGraph { endpoints, alike, session, _assets: assets }
    }

    fn endpoints(&self, signature: usize) -> Result<&SignatureEndpoints> {
        match self.endpoints.get(signature) {
            Some(Ok(endpoints)) => Ok(endpoints),
            Some(Err(error)) => Err(error.duplicate()),
            None => Err(Error::internal("the signature's index is out of range")),
        }
    }

    /// The number of the signature that runs for this one.
    pub(super) fn runs_as(&self, signature: usize) -> usize {
        self.alike.get(signature).copied().unwrap_or(signature)
    }

    pub(super) fn run(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<Vec<Tensor>> {
        let began = Instant::now();
        let first = self.runs_as(signature);
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

    /// Also returns what [`TensorFlowSession::run_traced`] does.
    pub(super) fn run_traced(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<(Vec<Tensor>, Vec<u8>)> {
        self.session.run_traced(self.endpoints(signature)?.with(inputs), options)
    }
}
