//! Runs a loaded model, and makes a copy of it that takes less time.

use std::sync::Arc;

use super::ffi::TensorFlowSession;
use super::freezing::SavedModelOrigin;
use super::loaded_graph::LoadedGraph;
use super::one_thread::OneThreadCopy;
use super::trace;
use tensorserve_platform::{Executable, Optimization, OptimizedModel, Profiled, RunOptions};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{Signature, Tensor};

/// A loaded SavedModel.
pub(super) struct SavedModelExecutable {
    loaded: Arc<LoadedGraph>,
    /// What copies are made of; `None` if there can be none.
    origin: Option<SavedModelOrigin>,
    /// The copy that runs beside others; `None` if there can be none.
    one_thread: Option<Arc<OneThreadCopy>>,
    on_gpu: bool,
}

impl SavedModelExecutable {
    /// `alike` has for each signature the number of one that computes the same.
    pub(super) fn new(
        (session, alike): (TensorFlowSession, Vec<usize>),
        signatures: &[Signature],
        on_gpu: bool,
    ) -> Self {
        let loaded = Arc::new(LoadedGraph::new((session, alike), signatures, None));
        SavedModelExecutable { loaded, origin: None, one_thread: None, on_gpu }
    }

    /// With what copies are made of.
    pub(super) fn with_copies(self, origin: SavedModelOrigin) -> Self {
        let one_thread = OneThreadCopy::of(&origin, None).map(Arc::new);
        SavedModelExecutable { origin: Some(origin), one_thread, ..self }
    }
}

impl Executable for SavedModelExecutable {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        match &self.one_thread {
            Some(copy) => copy.run(&self.loaded, signature, inputs, options),
            None => self.loaded.run(signature, inputs, options),
        }
    }

    fn runs_on_gpu(&self) -> bool {
        self.on_gpu
    }

    fn may_have_other_forms(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| origin.has_variables)
    }

    fn optimized(&self, number: usize) -> Result<Optimization> {
        let Some(origin) = &self.origin else {
            return Ok(Optimization::Unknown);
        };
        let frozen = match origin.freeze(&self.loaded.session, number)? {
            Ok(frozen) => frozen,
            Err(why) => return Ok(Optimization::None(why)),
        };
        let session = (frozen.session, origin.alike.clone());
        let loaded = LoadedGraph::new(session, &origin.signatures, frozen.assets);
        let executable = SavedModelExecutable {
            loaded: Arc::new(loaded),
            origin: None,
            one_thread: OneThreadCopy::of(origin, Some(number)).map(Arc::new),
            on_gpu: self.on_gpu,
        };
        Ok(Optimization::Made(OptimizedModel {
            executable: Arc::new(executable),
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
        let (outputs, metadata) = self.loaded.run_traced(signature, inputs, options)?;
        Ok((outputs, trace::read(&metadata)?))
    }
}
