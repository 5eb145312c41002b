//! Runs of a version on synthetic inputs before it is ready: they build the runtime's plans, and show how long runs take.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::ModelHandle;
use super::remembered::RememberedVersion;
use super::servable::{Servable, VersionLoad, load_options};
use crate::batch::{BatchQueue, WORTH_SPLITTING};
use tensorserve_platform::{LoadOptions, synthetic_inputs, unset};
use tensorserve_tensor::Signature;
use tensorserve_tensor::error::{Error, Result};

/// How often the warm-up runs a signature at each batch size, and the time after which it does not run it again.
const WARM_RUNS: usize = 4;
const LONG_MEASUREMENT: Duration = Duration::from_millis(100);

/// After a run that takes so long, no larger batches are measured before the version is ready, …
const LONG_RUN: Duration = Duration::from_millis(20);
/// … nor, if it has so many rows, …
const SEVERAL_ROWS: usize = 4;
/// … after one that takes so long. All sizes of shorter ones are known from the first request on: whether these are joined
/// without a thread of the pool depends on their times, and what was not tried would have to be guessed.
const LONG_RUN_OF_SEVERAL: Duration = Duration::from_millis(2);

/// A run of so many times [`WORTH_SPLITTING`] is long beyond doubt.
const CLEARLY_LONG: u32 = 8;

/// Threads that wait for each other within an operation take CPU time meanwhile, up to that of all cores. They have to make
/// a row so many times as quick as one thread.
const WORTHWHILE_GAIN: f64 = 1.5;

/// Runs that are measured again if there is doubt, pauses between them included about 100 ms.
const RUNS_IN_DOUBT: u32 = 16;
const PAUSE_IN_DOUBT: Duration = Duration::from_millis(4);

/// The warm-up of a signature ends after this time.
const WARM_LIMIT: Duration = Duration::from_secs(10);

impl VersionLoad<'_> {
    /// The version with one thread within an operation, if it gains nothing from more.
    pub(super) fn with_fewer_threads(&self, several: Arc<Servable>) -> Result<Arc<Servable>> {
        let several = match several.is_worth_splitting() {
            Some(true) => return Ok(several),
            Some(false) => None,
            None => Some(several),
        };
        let single = self.load(1)?;
        self.warm(&single)?;
        Ok(several.filter(|several| several.gains_over(&single)).unwrap_or(single))
    }

    /// Warms up on synthetic inputs first: they cannot fail the load, and run every signature.
    pub(super) fn warm(&self, servable: &Arc<Servable>) -> Result<()> {
        servable.warm()?;
        let handle = ModelHandle { servable: Arc::clone(servable), log: None, traffic: None };
        self.files.warm_up(&handle, self.folder, self.config.warm_up_iterations)
    }

    /// The number of threads within an operation that suited the version when it was loaded before, on this machine.
    pub(super) fn remembered_threads(&self) -> Option<usize> {
        let options = load_options(self.config, 0);
        self.platform.info.takes_threads.then(|| self.memory(&options).threads()).flatten()
    }

    pub(super) fn remember_threads(&self, threads: usize) {
        self.memory(&load_options(self.config, 0)).remember_threads(threads);
    }

    fn memory<'o>(&'o self, options: &'o LoadOptions) -> RememberedVersion<'o> {
        RememberedVersion { loader: &*self.platform.loader, folder: self.folder, options }
    }
}

impl Servable {
    /// Whether some signature takes long enough to gain from several threads; `None` if only a comparison can tell. One that
    /// seems to take little more is measured again: the few runs of the warm-up may have met other load on the machine,
    /// and threads that gain nothing cost CPU time for as long as the version serves.
    pub(super) fn is_worth_splitting(&self) -> Option<bool> {
        let mut found = Some(false);
        for (signature, queue) in self.model_queues() {
            let seen = queue.expected(1).unwrap_or_default();
            if seen >= WORTH_SPLITTING * CLEARLY_LONG {
                return Some(true);
            }
            let is_in_doubt = seen >= WORTH_SPLITTING;
            let again = if is_in_doubt { least_time(signature, queue) } else { None };
            if again.unwrap_or(seen) >= WORTH_SPLITTING {
                found = None;
            }
        }
        found
    }

    /// Whether the rows of some signature take so much longer in `single`, the same with one thread, that several threads are
    /// worth the CPU time that they take beside it.
    pub(super) fn gains_over(&self, single: &Servable) -> bool {
        self.model_queues().zip(single.model_queues()).any(
            |((signature, queue), (_, of_single))| {
                let least = |queue| least_time(signature, queue);
                let both = least(queue).zip(least(of_single));
                both.is_some_and(|(several, single)| single > several.mul_f64(WORTHWHILE_GAIN))
            },
        )
    }

    /// Runs read-only signatures on synthetic inputs, so that the runtime's plan is built before
    /// the first request, and the batcher knows the run time.
    ///
    /// # Errors
    /// If the version cannot serve, because its files lack values.
    pub(super) fn warm(&self) -> Result<()> {
        let all: Vec<Signature> = self.model_queues().map(|(it, _)| it.clone()).collect();
        for (signature, queue) in self.model_queues() {
            if !signature.read_only || signature.inputs.is_empty() {
                continue;
            }
            if let Err(error) = warm_sizes(signature, queue) {
                if let Some(refusal) = unset::refusal(&error, signature, &all) {
                    return Err(refusal);
                }
                // The model may reject synthetic inputs; the runtime's plan is built
                // nevertheless.
                let (model, version, name) = (self.model(), self.version(), &signature.name);
                log::debug!(
                    "{model} version {version}, {name}: no warm-up on synthetic inputs: {error}"
                );
            }
        }
        Ok(())
    }
}

/// Runs a signature once, for the runtime's plan, and then measures the sizes of its batches.
fn warm_sizes(signature: &Signature, queue: &BatchQueue) -> Result<()> {
    let started = Instant::now();
    warm_size((signature, queue), 1, 1)?;
    for rows in queue.warm_rows() {
        let run = warm_size((signature, queue), rows, WARM_RUNS)?;
        // The batcher learns of larger batches from requests, but a GPU's runs of a new size take very long.
        let long = if rows < SEVERAL_ROWS { LONG_RUN } else { LONG_RUN_OF_SEVERAL };
        let is_long = run > long && !queue.needs_all_sizes_warm();
        if is_long || started.elapsed() > WARM_LIMIT {
            break;
        }
    }
    Ok(())
}

/// The shortest of several runs of one row, or the first below [`WORTH_SPLITTING`]; `None` if it does not run on synthetic inputs, or must not.
fn least_time(signature: &Signature, queue: &BatchQueue) -> Option<Duration> {
    let inputs = synthetic_inputs(signature, 1).filter(|_| signature.read_only)?;
    let mut least = Duration::MAX;
    for _ in 0..RUNS_IN_DOUBT {
        let began = Instant::now();
        queue.warm(&inputs, Some(WARM_LIMIT)).ok()?;
        least = least.min(began.elapsed());
        if least < WORTH_SPLITTING {
            break;
        }
        thread::sleep(PAUSE_IN_DOUBT);
    }
    Some(least)
}

/// Runs a signature so often on `rows` rows of synthetic inputs; fewer times if runs are slow. Returns how long the last took.
fn warm_size(
    (signature, queue): (&Signature, &BatchQueue),
    rows: usize,
    runs: usize,
) -> Result<Duration> {
    let Some(inputs) = synthetic_inputs(signature, rows) else {
        return Err(Error::invalid("its inputs are too large for synthetic inputs"));
    };
    let started = Instant::now();
    let mut last = Duration::ZERO;
    for _ in 0..runs {
        let began = Instant::now();
        queue.warm(&inputs, Some(WARM_LIMIT))?;
        last = began.elapsed();
        if started.elapsed() > LONG_MEASUREMENT {
            break;
        }
    }
    Ok(last)
}
