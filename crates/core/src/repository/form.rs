//! The form of a version: its executable, which another one of the same model may replace while requests run, and what is
//! known of that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use crate::config::OptimizeMode;
use tensorserve_platform::{Executable, Profiled, RunOptions};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Error, Result};

/// The present form of a model. A run keeps the form that it began with; one that is replaced leaves memory once its
/// last run has ended.
pub(super) struct SwitchedExecutable(ArcSwap<Arc<dyn Executable>>);

impl SwitchedExecutable {
    pub(super) fn new(executable: Arc<dyn Executable>) -> Self {
        SwitchedExecutable(ArcSwap::from_pointee(executable))
    }

    /// The form that runs now.
    pub(super) fn current(&self) -> Arc<dyn Executable> {
        Arc::clone(&self.0.load())
    }

    /// Lets runs that begin from now on take another form.
    pub(super) fn switch(&self, to: Arc<dyn Executable>) {
        self.0.store(Arc::new(to));
    }
}

impl Executable for SwitchedExecutable {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        self.0.load().run(signature, inputs, options)
    }

    fn waits(&self) -> bool {
        self.0.load().waits()
    }

    fn runs_on_gpu(&self) -> bool {
        self.0.load().runs_on_gpu()
    }

    fn obstacle(&self) -> Option<Error> {
        self.0.load().obstacle()
    }

    fn profile(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<Profiled> {
        self.0.load().profile(signature, inputs, options)
    }
}

/// What is known of another form of a version.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum OptimizationState {
    /// It has not been looked for.
    #[default]
    Waiting,
    /// It is being made, compared or timed.
    Running,
    /// The version runs as it was loaded, for this reason.
    Unchanged(String),
    /// The version runs in another form.
    Optimized(OptimizedForm),
}

/// A form of a version that took over.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizedForm {
    /// What is different, in words.
    pub what: String,
    /// Inputs for which it computed the same.
    pub compared: usize,
    /// Its CPU time as a share of that of the version as it was loaded.
    pub cpu: f64,
}

/// The other form of a version: whether one is wanted, and what is known of it.
pub(super) struct VersionOptimization {
    mode: OptimizeMode,
    state: Mutex<OptimizationState>,
}

impl VersionOptimization {
    pub(super) fn new(mode: OptimizeMode) -> Self {
        let state = match mode {
            OptimizeMode::Off => OptimizationState::Unchanged("optimize is off".to_owned()),
            OptimizeMode::Exact | OptimizeMode::Fast => OptimizationState::Waiting,
        };
        VersionOptimization { mode, state: Mutex::new(state) }
    }

    /// What was found.
    pub(super) fn state(&self) -> OptimizationState {
        self.lock().clone()
    }

    /// Whether and how another form is wanted.
    pub(super) fn mode(&self) -> OptimizeMode {
        self.mode
    }

    pub(super) fn set(&self, state: OptimizationState) {
        *self.lock() = state;
    }

    /// Whether somebody has to look for it. Nobody else will be told so.
    pub(super) fn begin(&self) -> bool {
        let mut state = self.lock();
        let begins = *state == OptimizationState::Waiting;
        if begins {
            *state = OptimizationState::Running;
        }
        begins
    }

    fn lock(&self) -> MutexGuard<'_, OptimizationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
