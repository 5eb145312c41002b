//! The one way of an inference, whatever asks for it: resolve, admit, decode, sample, run, encode,
//! record.
//!
//! A protocol brings two functions: from bytes to an [`InferRequest`], and from an
//! [`InferResponse`] to bytes. [`Engine::infer`] does everything between and around
//! them, and [`ModelHandle::rehearse`] the same for a version that is being warmed up, which is not
//! counted, not logged and run on the thread that loads it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use smallvec::SmallVec;

use super::Engine;
use crate::batch::{BatchOutput, RunTiming};
use crate::entry::{EntryPoint, Method};
use crate::repository::{Choice, ModelHandle, ModelSpec, OpRun, Repository, Unresolved};
use crate::request_log::{LoggedInference, LoggedRun};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Code, Error, Result};

/// One run of a signature, as a request asks for it.
#[derive(Clone, Debug)]
pub struct SignatureRun {
    /// The signature's number in its model version.
    pub signature: usize,
    /// What it is run for.
    pub method: Method,
    /// One tensor for each of its inputs, in order.
    pub inputs: Vec<Tensor>,
    /// The outputs that are asked for, by number, in this order; empty for all.
    pub output_filter: Vec<usize>,
}

impl SignatureRun {
    /// A run for all outputs of a signature.
    #[must_use]
    pub fn predict(signature: usize, inputs: Vec<Tensor>) -> Self {
        SignatureRun { signature, method: Method::Predict, inputs, output_filter: Vec::new() }
    }
}

/// A request of any protocol, decoded: which version, and what to run of it.
#[derive(Clone)]
pub struct InferRequest {
    /// The version that it runs on.
    pub version: ModelHandle,
    /// What is run, one after the other; nearly always one run.
    pub runs: SmallVec<[SignatureRun; 1]>,
    /// Report what every operation did. Runs outside the batch queue, one such request at a time.
    pub profile: bool,
}

impl InferRequest {
    /// A request for one run.
    #[must_use]
    pub fn new(version: ModelHandle, run: SignatureRun) -> Self {
        InferRequest { version, runs: SmallVec::from_buf([run]), profile: false }
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct RunOutput {
    /// The signature's number in its model version.
    pub signature: usize,
    /// One tensor for each output that was asked for, in order.
    pub outputs: Vec<Tensor>,
}

/// What an [`InferRequest`] came to.
pub struct InferResponse {
    /// The version that it ran on.
    pub version: ModelHandle,
    /// One for each run, in order; at least one.
    pub runs: SmallVec<[RunOutput; 1]>,
    /// What every operation did, if that was asked for.
    pub profile: Option<Vec<OpRun>>,
}

impl InferResponse {
    /// The response to a request for one run.
    #[must_use]
    pub fn into_single(self) -> RunOutput {
        let none = RunOutput { signature: 0, outputs: Vec::new() };
        self.runs.into_iter().next().unwrap_or(none)
    }
}

/// How an inference was asked for, and by when it must be answered.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What it is counted under.
    pub entry: EntryPoint,
    /// When its head had arrived.
    pub start: Instant,
    /// When it must be answered.
    pub deadline: Instant,
}

/// The outcome of an inference.
pub struct Inferred<T> {
    /// What the protocol made of the response.
    pub answer: Result<T>,
    /// Where the time of its runs went, if it ran.
    pub timing: Option<RunTiming>,
}

/// Finds the version that a request means. The first one that is found is the request's: it stays
/// the same, and in memory, however often a decoder asks for it.
pub struct Resolver<'e> {
    source: Source<'e>,
    found: Option<ModelHandle>,
    /// The number of the signature that was found in it.
    signature: Option<usize>,
    /// The name that was asked for last.
    asked: Option<String>,
}

enum Source<'e> {
    /// What is served.
    Repository(&'e Repository),
    /// A version that is being warmed up: whatever is asked for.
    Version(&'e ModelHandle),
}

impl<'e> Resolver<'e> {
    fn new(source: Source<'e>) -> Self {
        Resolver { source, found: None, signature: None, asked: None }
    }

    /// Notes which model a request names, for the metrics of one that fails before it resolves
    /// anything.
    pub fn names_model(&mut self, name: &str) {
        self.asked = Some(name.to_owned());
    }

    /// Notes which signature a request means, for the metrics of one that fails before it runs.
    pub fn found_signature(&mut self, index: usize) {
        self.signature = Some(index);
    }

    /// The ready version that `spec` means.
    ///
    /// # Errors
    /// [`Unresolved`], which protocols put into their own words.
    pub fn resolve(&mut self, spec: &ModelSpec<'_>) -> Result<ModelHandle, Unresolved> {
        let repository = match self.source {
            Source::Version(version) => return Ok(version.clone()),
            Source::Repository(repository) => repository,
        };
        if let Some(found) = self.found.as_ref().filter(|found| is_meant(found, spec)) {
            return Ok(found.clone());
        }
        match repository.resolve(spec) {
            Ok(found) => {
                self.found = Some(found.clone());
                Ok(found)
            }
            Err(unresolved) => {
                self.asked = Some(spec.name.to_owned());
                Err(unresolved)
            }
        }
    }

    /// The version that a failure counts for: the one that was found, or else the latest of the
    /// model that was asked for.
    fn counted(&mut self) -> Option<ModelHandle> {
        if let Some(found) = self.found.take() {
            return Some(found);
        }
        let (Source::Repository(repository), Some(name)) = (&self.source, &self.asked) else {
            return None;
        };
        repository.resolve(&ModelSpec { name, choice: Choice::Latest }).ok()
    }
}

/// Whether `spec` can mean `found`. What a label meant is looked up again.
fn is_meant(found: &ModelHandle, spec: &ModelSpec<'_>) -> bool {
    let is_version = match spec.choice {
        Choice::Latest => true,
        Choice::Version(version) => found.version() == version,
        Choice::Label(_) => false,
    };
    is_version && found.model() == spec.name
}

/// How far an inference has come, for the metrics.
#[derive(Default)]
struct Progress {
    version: Option<ModelHandle>,
    signature: Option<usize>,
    timing: Option<RunTiming>,
}

impl Progress {
    fn took(&mut self, more: RunTiming) {
        let RunTiming { queue_delay, run } = self.timing.unwrap_or_default();
        let (queue_delay, run) = (queue_delay + more.queue_delay, run + more.run);
        self.timing = Some(RunTiming { queue_delay, run });
    }
}

/// What runs signatures.
enum Runner<'e> {
    /// The version's batch queues, until the call's deadline.
    Queue(&'e Engine, Call),
    /// This thread, at once.
    InPlace,
}

impl Engine {
    /// Carries out an inference: `decode` turns the payload into a request, and brings along what
    /// `encode` needs to turn its response into an answer.
    ///
    /// # Errors
    /// In [`Inferred::answer`]: those of `decode` and `encode`, what the model reports,
    /// [`Code::DeadlineExceeded`] at the deadline, [`Code::Unavailable`] when the queue is full.
    pub async fn infer<C, T>(
        &self,
        call: Call,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)>,
        encode: impl FnOnce(C, InferResponse) -> Result<T>,
    ) -> Inferred<T> {
        let mut resolver = Resolver::new(Source::Repository(self.repository()));
        let mut progress = Progress::default();
        let runner = Runner::Queue(self, call);
        let passing = pass(&runner, &mut resolver, &mut progress, decode, encode);
        let answer = AssertUnwindSafe(passing).catch_unwind().await.unwrap_or_else(|_| {
            self.metrics().panicked();
            Err(Error::internal("internal server error; the log has the details"))
        });
        let code = answer.as_ref().err().map(Error::code);
        if code.is_some() && progress.version.is_none() {
            progress.version = resolver.counted();
        }
        self.count(call.entry, &progress, code, call.start.elapsed());
        Inferred { answer, timing: progress.timing }
    }

    fn count(&self, entry: EntryPoint, progress: &Progress, code: Option<Code>, time: Duration) {
        let version = progress.version.as_ref().map(|version| version.version_metrics());
        let signature = version.zip(progress.signature);
        let signature = signature.and_then(|(version, index)| version.signature(index));
        let Some(signature) = signature else {
            let code = code.unwrap_or(Code::Unknown);
            return self.metrics().unresolved(entry, version, code, time);
        };
        match code {
            None => {
                let runtime = progress.timing.map(|timing| timing.queue_delay + timing.run);
                signature.succeeded(entry, time, runtime);
            }
            Some(code) => signature.failed(entry, code, time),
        }
    }
}

impl ModelHandle {
    /// Carries out an inference on this version, which is being warmed up: on this thread, outside
    /// its batch queues, neither counted nor logged. Blocks.
    ///
    /// # Errors
    /// Those of `decode` and `encode`, and what the model reports.
    pub fn rehearse<C, T>(
        &self,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)>,
        encode: impl FnOnce(C, InferResponse) -> Result<T>,
    ) -> Result<T> {
        let mut resolver = Resolver::new(Source::Version(self));
        let mut progress = Progress::default();
        let passing = pass(&Runner::InPlace, &mut resolver, &mut progress, decode, encode);
        // Nothing in it waits.
        passing.now_or_never().unwrap_or_else(|| Err(Error::internal("a rehearsal had to wait")))
    }
}

/// The hops of an inference, in order.
async fn pass<C, T>(
    runner: &Runner<'_>,
    resolver: &mut Resolver<'_>,
    progress: &mut Progress,
    decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)>,
    encode: impl FnOnce(C, InferResponse) -> Result<T>,
) -> Result<T> {
    let decoded = decode(resolver);
    (progress.version, progress.signature) = (resolver.found.clone(), resolver.signature);
    let (request, context) = decoded?;
    let sampled = runner.sample(&request);
    let response = runner.run(request, progress).await?;
    let logged = sampled.map(|sampled| sampled.with(&response));
    let answer = encode(context, response)?;
    if let Some(logged) = logged {
        logged.write();
    }
    Ok(answer)
}

impl Runner<'_> {
    async fn run(&self, request: InferRequest, progress: &mut Progress) -> Result<InferResponse> {
        let InferRequest { version, runs, profile } = request;
        let mut response = InferResponse { version, runs: SmallVec::new(), profile: None };
        if let (Runner::Queue(_, call), Some(first)) = (self, runs.first())
            && call.entry.method == Method::MultiInference
            && let Some(metrics) = response.version.version_metrics().signature(first.signature)
        {
            metrics.examples(first.inputs.iter().find_map(Tensor::rows).unwrap_or(0));
        }
        for run in runs {
            let SignatureRun { signature, inputs, output_filter, .. } = run;
            progress.signature = Some(signature);
            let version = &response.version;
            let BatchOutput { outputs, timing } = match self {
                // In a box: it is rare, and would make the future of every request larger.
                Runner::Queue(engine, call) if profile => {
                    let profiling = engine.profile(version, signature, inputs, call.deadline);
                    let (output, operations) = Box::pin(profiling).await?;
                    response.profile.get_or_insert_default().extend(operations);
                    output
                }
                Runner::Queue(_, call) => {
                    version.infer(signature, inputs, Some(call.deadline)).await?
                }
                Runner::InPlace => {
                    let outputs = version.run_now(signature, &inputs)?;
                    BatchOutput { outputs, timing: RunTiming::default() }
                }
            };
            progress.took(timing);
            let outputs = select(outputs, &output_filter)?;
            response.runs.push(RunOutput { signature, outputs });
        }
        Ok(response)
    }

    /// Keeps what is asked for, if it is to be logged.
    fn sample(&self, request: &InferRequest) -> Option<Sampled> {
        let Runner::Queue(_, call) = self else {
            return None;
        };
        let log = request.version.request_log().filter(|log| log.samples())?;
        let sampling_rate = log.sampling_rate();
        Some(Sampled { request: request.clone(), method: call.entry.method, sampling_rate })
    }
}

/// The outputs that were asked for.
fn select(outputs: Vec<Tensor>, filter: &[usize]) -> Result<Vec<Tensor>> {
    if filter.is_empty() {
        return Ok(outputs);
    }
    let missing = || Error::internal("the model returned fewer outputs than its signature has");
    filter.iter().map(|&at| outputs.get(at).cloned().ok_or_else(missing)).collect()
}

/// A request that is to be logged, on its way to its response.
struct Sampled {
    request: InferRequest,
    method: Method,
    sampling_rate: f64,
}

/// A logged inference, and the version whose log it goes to.
struct Logged {
    version: ModelHandle,
    inference: LoggedInference,
}

impl Sampled {
    fn with(self, response: &InferResponse) -> Logged {
        let Sampled { request: InferRequest { version, runs, .. }, method, sampling_rate } = self;
        let logged = |(run, output): (SignatureRun, &RunOutput)| LoggedRun {
            signature: run.signature,
            method: run.method,
            inputs: run.inputs,
            output_filter: run.output_filter,
            outputs: output.outputs.clone(),
        };
        let inference = LoggedInference {
            model: Arc::clone(version.name()),
            version: version.version(),
            signatures: version.shared_signatures(),
            method,
            runs: runs.into_iter().zip(&response.runs).map(logged).collect(),
            at: SystemTime::now(),
            sampling_rate,
        };
        Logged { version, inference }
    }
}

impl Logged {
    fn write(self) {
        if let Some(log) = self.version.request_log() {
            log.write(self.inference);
        }
    }
}
