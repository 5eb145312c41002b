//! The form of a version: its executable, which another one of the same model may replace while requests run, and what is
//! known of that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::config::{EngineChoice, OptimizeMode};
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

    fn other_cpu_time(&self) -> Option<Duration> {
        self.0.load().other_cpu_time()
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
    /// The largest magnitude of floats for which it runs, where it computes something else for larger ones.
    pub largest: Option<f32>,
}

impl OptimizedForm {
    /// What is different, and for which requests, in words.
    #[must_use]
    pub fn text(&self) -> String {
        match self.largest {
            None => self.what.clone(),
            Some(largest) => format!(
                "{}; requests with floats beyond {largest} run without it, because it rounds otherwise there",
                self.what
            ),
        }
    }
}

/// The other forms that a version may have, in the order in which they are made: each is compared with the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FormKind {
    /// With less work in its own engine.
    Optimized,
    /// In another engine.
    OtherEngine,
}

impl FormKind {
    pub(super) const ALL: [FormKind; 2] = [FormKind::Optimized, FormKind::OtherEngine];

    /// Why a model has no form of this kind, if its platform knows of none.
    pub(super) fn none(self) -> &'static str {
        match self {
            FormKind::Optimized => "it has no variables that could be constants",
            FormKind::OtherEngine => "its platform has no other engine",
        }
    }

    /// As a label of metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            FormKind::Optimized => "optimized",
            FormKind::OtherEngine => "other_engine",
        }
    }
}

/// The other forms of a version: which are wanted, and what is known of each.
pub(super) struct VersionForms {
    mode: OptimizeMode,
    engine: EngineChoice,
    states: Mutex<[OptimizationState; FormKind::ALL.len()]>,
}

impl VersionForms {
    pub(super) fn new(mode: OptimizeMode, engine: EngineChoice) -> Self {
        let state = |is_wanted: bool, setting: &str| match is_wanted {
            true => OptimizationState::Waiting,
            false => OptimizationState::Unchanged(setting.to_owned()),
        };
        let states = [
            state(mode != OptimizeMode::Off, "optimize is off"),
            state(engine != EngineChoice::TensorFlow, "engine is tensorflow"),
        ];
        VersionForms { mode, engine, states: Mutex::new(states) }
    }

    /// What was found.
    pub(super) fn state(&self, kind: FormKind) -> OptimizationState {
        let [optimized, other_engine] = &*self.lock();
        match kind {
            FormKind::Optimized => optimized.clone(),
            FormKind::OtherEngine => other_engine.clone(),
        }
    }

    pub(super) fn mode(&self) -> OptimizeMode {
        self.mode
    }

    pub(super) fn engine(&self) -> EngineChoice {
        self.engine
    }

    pub(super) fn set(&self, kind: FormKind, state: OptimizationState) {
        let [optimized, other_engine] = &mut *self.lock();
        match kind {
            FormKind::Optimized => *optimized = state,
            FormKind::OtherEngine => *other_engine = state,
        }
    }

    /// Whether somebody has to look for forms. Nobody else will be told so.
    pub(super) fn begin(&self) -> bool {
        let mut begins = false;
        for state in &mut *self.lock() {
            if *state == OptimizationState::Waiting {
                *state = OptimizationState::Running;
                begins = true;
            }
        }
        begins
    }

    fn lock(&self) -> MutexGuard<'_, [OptimizationState; FormKind::ALL.len()]> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
