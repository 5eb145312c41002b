//! Shadow requests: copies of requests that also run on another version of their model, and whose
//! outputs are compared with the responses.
//!
//! Clients do not wait for them: a request is copied when its response is ready, if there is room, and
//! runs on threads of its own, of low priority. Its memory is limited, beside that of requests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Sender, unbounded};
use smallvec::SmallVec;

use crate::comparison::{NamedOutputs, Tolerance, same_outputs};
use crate::config::EngineConfig;
use crate::metrics::{Metrics, ShadowResult};
use crate::repository::{Servable, ShadowHandle};
use tensorserve_os as os;
use tensorserve_tensor::budget::{MemoryBudget, RequestBudget};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{STRING_OVERHEAD, Signature, Tensor, TensorSpec};

/// Shadow requests may take this part of the memory that requests may take, in addition to it.
const MEMORY_PART: usize = 8;

/// A run of a signature, as the request for it has it.
pub(super) struct ShadowRun {
    /// The signature's number in the version that answers.
    pub(super) signature: usize,
    /// One tensor for each of its inputs, in order.
    pub(super) inputs: Vec<Tensor>,
    /// The requested outputs, by number; empty for all.
    pub(super) output_filter: Vec<usize>,
}

/// A request that a shadow version gets, too, and that has no response yet.
pub(super) struct ShadowRequest {
    shadow: ShadowHandle,
    runs: SmallVec<[ShadowRun; 1]>,
}

impl ShadowRequest {
    /// A request for these runs.
    pub(super) fn new(shadow: ShadowHandle, runs: SmallVec<[ShadowRun; 1]>) -> Self {
        ShadowRequest { shadow, runs }
    }

    /// This request with the outputs that `version` has given for each run.
    pub(super) fn with(
        self,
        version: &Servable,
        answers: SmallVec<[Vec<Tensor>; 1]>,
    ) -> AnsweredRequest {
        let ShadowRequest { shadow, runs } = self;
        AnsweredRequest { shadow, runs, signatures: version.shared_signatures(), answers }
    }
}

/// A request with its response, to be compared with that of the shadow version.
pub(super) struct AnsweredRequest {
    shadow: ShadowHandle,
    runs: SmallVec<[ShadowRun; 1]>,
    /// The signatures of the version that has answered.
    signatures: Arc<[Signature]>,
    answers: SmallVec<[Vec<Tensor>; 1]>,
}

/// A copy that waits for a thread.
struct ShadowJob {
    request: AnsweredRequest,
    deadline: Instant,
    budget: RequestBudget,
    _place: ShadowSlot,
}

/// One of the places for shadow requests, until dropped.
struct ShadowSlot(Arc<AtomicUsize>);

impl Drop for ShadowSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Runs shadow requests, up to a number at a time.
pub(super) struct Mirror {
    places: usize,
    taken: Arc<AtomicUsize>,
    memory: MemoryBudget,
    timeout: Duration,
    metrics: Metrics,
    /// To the threads, which start with the first shadow request.
    jobs: OnceLock<Sender<ShadowJob>>,
}

impl Mirror {
    /// A mirror without threads yet.
    pub(super) fn new(config: &EngineConfig, metrics: &Metrics) -> Self {
        Mirror {
            places: config.max_shadow_requests,
            taken: Arc::default(),
            memory: MemoryBudget::new(config.max_request_memory / MEMORY_PART),
            timeout: config.request_timeout,
            metrics: metrics.clone(),
            jobs: OnceLock::new(),
        }
    }

    /// Queues a request for its shadow version, or drops it if there is no room.
    pub(super) fn send(&self, request: AnsweredRequest) {
        let place = self.place().zip(self.room(&request).ok());
        let Some((place, budget)) = place else {
            return request.count(ShadowResult::Dropped);
        };
        let deadline = Instant::now() + self.timeout;
        budget.set_deadline(deadline);
        let jobs = self.jobs.get_or_init(|| start(self.places, &self.metrics));
        let job = ShadowJob { request, deadline, budget, _place: place };
        if let Err(refused) = jobs.send(job) {
            refused.0.request.count(ShadowResult::Dropped);
        }
    }

    /// A place, if one is free.
    fn place(&self) -> Option<ShadowSlot> {
        let more = |taken| (taken < self.places).then_some(taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(ShadowSlot(Arc::clone(&self.taken)))
    }

    /// Memory for a request, and for the outputs of its shadow version, which are probably as large as
    /// those of the response.
    fn room(&self, request: &AnsweredRequest) -> Result<RequestBudget> {
        let inputs = request.runs.iter().map(|run| memory_of(&run.inputs));
        let outputs = request.answers.iter().map(|outputs| memory_of(outputs).saturating_mul(2));
        let budget = self.memory.request()?;
        budget.reserve(inputs.chain(outputs).fold(0, usize::saturating_add))?;
        Ok(budget)
    }
}

/// The memory that these tensors keep, in bytes: that of the body or the batch that they are a part of.
fn memory_of(tensors: &[Tensor]) -> usize {
    let strings = |tensor: &Tensor| tensor.strings().map_or(0, |it| it.len() * STRING_OVERHEAD);
    let kept = tensors.iter().map(|it| it.kept_len().saturating_add(strings(it)));
    kept.fold(0, usize::saturating_add)
}

/// Starts the threads, at most as many as there are cores.
fn start(places: usize, metrics: &Metrics) -> Sender<ShadowJob> {
    let (sender, jobs) = unbounded::<ShadowJob>();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    for _ in 0..cores.min(places) {
        let (jobs, metrics) = (jobs.clone(), metrics.clone());
        let thread = thread::Builder::new().name("shadow".to_owned());
        let started = thread.spawn(move || {
            os::lower_priority();
            jobs.iter().for_each(|job| perform(job, &metrics));
        });
        if let Err(error) = started {
            log::error!("a thread for shadow requests could not be started: {error}");
        }
    }
    sender
}

/// Runs a request on its shadow version, and counts the result.
fn perform(job: ShadowJob, metrics: &Metrics) {
    let ShadowJob { request, deadline, budget, _place } = job;
    if deadline <= Instant::now() {
        return request.count(ShadowResult::Dropped);
    }
    let compare = || budget.enter(|| request.is_answered_alike(deadline));
    let outcome = catch_unwind(AssertUnwindSafe(compare)).unwrap_or_else(|_| {
        metrics.panicked();
        Err(Error::internal("internal error; see above"))
    });
    let result = match outcome {
        Ok(true) => ShadowResult::Same,
        Ok(false) => ShadowResult::Different,
        Err(error) => {
            request.log(&error);
            ShadowResult::Failed
        }
    };
    request.count(result);
}

impl AnsweredRequest {
    fn count(&self, result: ShadowResult) {
        if let Some(counters) = self.shadow.counters() {
            counters.count(result);
        }
    }

    fn log(&self, error: &Error) {
        if let Some(version) = self.shadow.version() {
            let (model, number) = (version.model(), version.version());
            log::debug!("{model} version {number}: a shadow request failed: {error}");
        }
    }

    /// Whether the shadow version gives the same outputs, except for rounding. Blocks.
    fn is_answered_alike(&self, deadline: Instant) -> Result<bool> {
        let Some(version) = self.shadow.version() else {
            return Err(Error::internal("there is no shadow version"));
        };
        for (run, answer) in self.runs.iter().zip(&self.answers) {
            let signature = self.signatures.get(run.signature);
            let signature = signature.ok_or_else(|| Error::internal("no such signature number"))?;
            let outputs = shadow_outputs(version, signature, run, deadline)?;
            let is_alike = match self.shadow.live() {
                None => same_outputs(answer, &outputs, Tolerance::Versions),
                Some(live) => {
                    let named = |tensors: &[Tensor]| named(signature, run, tensors);
                    live.add(&named(&outputs), &named(answer))
                }
            };
            if !is_alike {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Outputs that a run wants from `signature`, with their names.
fn named(signature: &Signature, run: &ShadowRun, outputs: &[Tensor]) -> NamedOutputs {
    let wanted = |at: usize| {
        if run.output_filter.is_empty() { Some(at) } else { run.output_filter.get(at).copied() }
    };
    let name = |at: usize| Some(signature.outputs.get(wanted(at)?)?.alias.clone());
    outputs.iter().enumerate().filter_map(|(at, it)| Some((name(at)?, it.clone()))).collect()
}

/// The outputs of the version for a run, in the order of those that the run wants from `signature`.
fn shadow_outputs(
    version: &Servable,
    signature: &Signature,
    run: &ShadowRun,
    deadline: Instant,
) -> Result<Vec<Tensor>> {
    let name = &signature.name;
    let (index, shadow) = version
        .signature(name)
        .ok_or_else(|| Error::not_found(format!("it has no signature {name:?}")))?;
    let inputs = shadow_inputs(shadow, signature, &run.inputs)?;
    let outputs = version.run_aside(index, &inputs, deadline)?;
    let all: Vec<usize> = (0..signature.outputs.len()).collect();
    let wanted = if run.output_filter.is_empty() { &all } else { &run.output_filter };
    let output = |at: &usize| {
        let alias = &signature.outputs.get(*at)?.alias;
        outputs.get(place_of(alias, &shadow.outputs)?).cloned()
    };
    let lacking = |at: &usize| {
        let alias = signature.outputs.get(*at).map(|spec| &spec.alias);
        Error::new(Code::FailedPrecondition, format!("it has no output {alias:?}"))
    };
    wanted.iter().map(|at| output(at).ok_or_else(|| lacking(at))).collect()
}

/// The inputs of a request to `signature`, in the order of the signature `shadow`.
fn shadow_inputs(
    shadow: &Signature,
    signature: &Signature,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>> {
    let input = |alias: &str| {
        let given = place_of(alias, &signature.inputs).and_then(|at| inputs.get(at));
        let default = || shadow.defaults.iter().find(|(name, _)| name == alias).map(|(_, it)| it);
        given.or_else(default).cloned()
    };
    let missing = |alias: &str| {
        Error::new(Code::FailedPrecondition, format!("the request has no input {alias:?}"))
    };
    let specs = shadow.inputs.iter().map(|spec| spec.alias.as_str());
    specs.map(|alias| input(alias).ok_or_else(|| missing(alias))).collect()
}

fn place_of(alias: &str, specs: &[TensorSpec]) -> Option<usize> {
    specs.iter().position(|spec| spec.alias == alias)
}
