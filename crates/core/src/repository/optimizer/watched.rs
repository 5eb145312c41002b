//! A form of a version that some of its requests compare with the one before, as long as it serves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::comparison::{Tolerance, difference};
use crate::metrics::Metrics;
use crate::repository::form::{FormKind, OptimizationState};
use crate::repository::servable::LoadedVersion;
use tensorserve_platform::{Executable, Profiled, RunOptions};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Error, Result};

/// One run in so many takes place in both forms, beginning with the first.
const COMPARED: u64 = 1000;

/// A version in another engine. At the first difference it runs in its own again, for good.
pub(super) struct WatchedExecutable {
    version: Weak<LoadedVersion>,
    own: Arc<dyn Executable>,
    other: Arc<dyn Executable>,
    runs: AtomicU64,
    has_differed: AtomicBool,
    metrics: Metrics,
}

impl WatchedExecutable {
    pub(super) fn new(
        version: Weak<LoadedVersion>,
        own: Arc<dyn Executable>,
        other: Arc<dyn Executable>,
        metrics: Metrics,
    ) -> Self {
        let (runs, has_differed) = (AtomicU64::new(0), AtomicBool::new(false));
        WatchedExecutable { version, own, other, runs, has_differed, metrics }
    }

    /// What is not the same in the results of the other engine, in words.
    fn found(own: &Result<Vec<Tensor>>, other: &Result<Vec<Tensor>>) -> Option<String> {
        match (own, other) {
            (Ok(own), Ok(other)) if own.len() == other.len() => {
                let mut pairs = own.iter().zip(other);
                pairs.find_map(|(own, other)| difference(own, other, Tolerance::Versions))
            }
            (Ok(_), Ok(_)) => Some("another number of outputs".to_owned()),
            (Err(error), Ok(_)) => Some(format!("outputs in place of an error: {error}")),
            // What fails in the other engine runs in its own.
            (_, Err(_)) => None,
        }
    }

    fn give_up(&self, what: &str) {
        if self.has_differed.swap(true, Relaxed) {
            return;
        }
        let Some(version) = self.version.upgrade() else { return };
        let (model, number) = (version.model(), version.number());
        log::error!(
            "{model} version {number}: its other engine has computed something else for a request ({what}); it runs in \
             its own from now on"
        );
        self.metrics.form_found(model, FormKind::OtherEngine.label(), "differed");
        let why = format!("the other engine has computed something else for a request: {what}");
        version.forms.set(FormKind::OtherEngine, OptimizationState::Unchanged(why));
        version.executable.switch(Arc::clone(&self.own));
    }
}

impl Executable for WatchedExecutable {
    fn run(&self, signature: usize, inputs: &[Tensor], options: RunOptions) -> Result<Vec<Tensor>> {
        if self.has_differed.load(Relaxed) {
            return self.own.run(signature, inputs, options);
        }
        let other = self.other.run(signature, inputs, options);
        if !self.runs.fetch_add(1, Relaxed).is_multiple_of(COMPARED) {
            return other;
        }
        let own = self.own.run(signature, inputs, options);
        match Self::found(&own, &other) {
            None => other,
            Some(what) => {
                self.give_up(&what);
                own
            }
        }
    }

    fn waits(&self) -> bool {
        self.own.waits()
    }

    fn runs_on_gpu(&self) -> bool {
        self.own.runs_on_gpu()
    }

    fn obstacle(&self) -> Option<Error> {
        self.own.obstacle()
    }

    fn other_cpu_time(&self) -> Option<Duration> {
        self.other.other_cpu_time()
    }

    fn profile(
        &self,
        signature: usize,
        inputs: &[Tensor],
        options: RunOptions,
    ) -> Result<Profiled> {
        self.own.profile(signature, inputs, options)
    }
}
