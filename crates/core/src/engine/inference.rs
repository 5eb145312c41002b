//! The inference pipeline of all protocols: resolve, admit, decode, sample, run, encode, record.
//!
//! A protocol provides two functions: from bytes to an [`InferRequest`], and from an
//! [`InferResponse`] to bytes. [`Engine::infer`] does everything between and around them.
//! [`ModelHandle::infer_for_warm_up`] does the same for the warm-up of a version: on the thread that loads
//! it, without metrics and request log.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use smallvec::SmallVec;

use super::Engine;
use crate::batch::{BatchOutput, RunTiming};
use crate::entry::{EntryPoint, Method};
use crate::repository::{ModelHandle, ModelSpec, OpRun, Repository, Unresolved, VersionSelector};
use crate::request_log::{LoggedInference, LoggedRun};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{STRING_OVERHEAD, Strings, Tensor};

/// One run of a signature that a request requires.
#[derive(Clone, Debug)]
pub struct SignatureRun {
    /// The signature's number in its model version.
    pub signature: usize,
    /// The method that the run serves.
    pub method: Method,
    /// One tensor for each of its inputs, in order.
    pub inputs: Vec<Tensor>,
    /// The requested outputs, by number, in this order; empty for all.
    pub output_filter: Vec<usize>,
}

impl SignatureRun {
    /// A run for all outputs of a signature.
    #[must_use]
    pub fn predict(signature: usize, inputs: Vec<Tensor>) -> Self {
        SignatureRun { signature, method: Method::Predict, inputs, output_filter: Vec::new() }
    }
}

/// A decoded request of any protocol: a version and its runs.
#[derive(Clone)]
pub struct InferRequest {
    /// The version that it runs on.
    pub version: ModelHandle,
    /// The runs, one after the other; nearly always one.
    pub runs: SmallVec<[SignatureRun; 1]>,
    /// Profile every operation. Such requests run outside the batch queue, one at a time.
    pub profile: bool,
}

impl InferRequest {
    /// A request for one run.
    #[must_use]
    pub fn new(version: ModelHandle, run: SignatureRun) -> Self {
        InferRequest { version, runs: SmallVec::from_buf([run]), profile: false }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunOutput {
    /// The signature's number in its model version.
    pub signature: usize,
    /// One tensor for each requested output, in order.
    pub outputs: Vec<Tensor>,
}

/// The response to an [`InferRequest`].
pub struct InferResponse {
    /// The version that it ran on.
    pub version: ModelHandle,
    /// One for each run, in order; at least one.
    pub runs: SmallVec<[RunOutput; 1]>,
    /// The profile of every operation, if it was requested.
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

/// The entry point and the deadline of an inference.
#[derive(Clone, Copy, Debug)]
pub struct InferenceCall {
    /// The entry point that it is counted under.
    pub entry: EntryPoint,
    /// When the request's head arrived.
    pub start: Instant,
    /// The deadline for the response.
    pub deadline: Instant,
}

/// The outcome of an inference.
pub struct InferenceOutcome<T> {
    /// The encoded response, or the error.
    pub answer: Result<T>,
    /// The timing of its runs, if it ran.
    pub timing: Option<RunTiming>,
}

/// Resolves the version that a request names. The first one found is kept for the whole request,
/// and in memory, however often a decoder resolves it.
pub struct Resolver<'e> {
    source: ResolverSource<'e>,
    found: Option<ModelHandle>,
    /// The number of the signature that was found in it.
    signature: Option<usize>,
    /// The model name that was requested last.
    asked: Option<String>,
}

enum ResolverSource<'e> {
    /// The versions that are served.
    Repository(&'e Repository),
    /// A version that is being warmed up, for every request.
    Version(&'e ModelHandle),
}

impl<'e> Resolver<'e> {
    fn new(source: ResolverSource<'e>) -> Self {
        Resolver { source, found: None, signature: None, asked: None }
    }

    /// Records the model that a request names, for the metrics of a request that fails before a
    /// version is resolved.
    pub fn names_model(&mut self, name: &str) {
        self.asked = Some(name.to_owned());
    }

    /// Records the signature of a request, for the metrics of a request that fails before it runs.
    pub fn found_signature(&mut self, index: usize) {
        self.signature = Some(index);
    }

    /// The ready version that `spec` names.
    ///
    /// # Errors
    /// [`Unresolved`], for which each protocol has its own texts.
    pub fn resolve(&mut self, spec: &ModelSpec<'_>) -> Result<ModelHandle, Unresolved> {
        let repository = match self.source {
            ResolverSource::Version(version) => return Ok(version.clone()),
            ResolverSource::Repository(repository) => repository,
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

    /// The version under which a failure is counted: the resolved one, or else the latest version
    /// of the requested model.
    fn counted(&mut self) -> Option<ModelHandle> {
        if let Some(found) = self.found.take() {
            return Some(found);
        }
        let (ResolverSource::Repository(repository), Some(name)) = (&self.source, &self.asked)
        else {
            return None;
        };
        repository.resolve(&ModelSpec { name, choice: VersionSelector::Latest }).ok()
    }
}

/// Whether `spec` names `found`. Labels are always resolved again.
fn is_meant(found: &ModelHandle, spec: &ModelSpec<'_>) -> bool {
    let is_version = match spec.choice {
        VersionSelector::Latest => true,
        VersionSelector::Version(version) => found.version() == version,
        VersionSelector::Label(_) => false,
    };
    is_version && found.model() == spec.name
}

/// The progress of an inference, for the metrics.
#[derive(Default)]
struct InferenceProgress {
    version: Option<ModelHandle>,
    signature: Option<usize>,
    timing: Option<RunTiming>,
}

impl InferenceProgress {
    fn took(&mut self, more: RunTiming) {
        let RunTiming { queue_delay, run } = self.timing.unwrap_or_default();
        let (queue_delay, run) = (queue_delay + more.queue_delay, run + more.run);
        self.timing = Some(RunTiming { queue_delay, run });
    }
}

/// Where signatures run.
enum Runner<'e> {
    /// The version's batch queues, until the call's deadline.
    Queue(&'e Engine, InferenceCall),
    /// This thread, without a queue.
    InPlace,
}

impl Engine {
    /// Performs an inference. `decode` turns the payload into a request and a context; `encode`
    /// turns the context and the response into the protocol's response.
    ///
    /// # Errors
    /// In [`InferenceOutcome::answer`]: those of `decode` and `encode`, what the model reports,
    /// [`Code::DeadlineExceeded`] at the deadline, [`Code::Unavailable`] when the queue is full.
    pub async fn infer<C, T>(
        &self,
        call: InferenceCall,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)>,
        encode: impl FnOnce(C, InferResponse) -> Result<T>,
    ) -> InferenceOutcome<T> {
        let mut resolver = Resolver::new(ResolverSource::Repository(self.repository()));
        let mut progress = InferenceProgress::default();
        let runner = Runner::Queue(self, call);
        let passing = pass(&runner, &mut resolver, &mut progress, decode, encode);
        let answer = AssertUnwindSafe(passing).catch_unwind().await.unwrap_or_else(|_| {
            self.metrics().panicked();
            Err(Error::internal("internal error; see the server log"))
        });
        let code = answer.as_ref().err().map(Error::code);
        if code.is_some() && progress.version.is_none() {
            progress.version = resolver.counted();
        }
        self.count(call.entry, &progress, code, call.start.elapsed());
        InferenceOutcome { answer, timing: progress.timing }
    }

    fn count(
        &self,
        entry: EntryPoint,
        progress: &InferenceProgress,
        code: Option<Code>,
        time: Duration,
    ) {
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
    /// Performs an inference for the warm-up of this version: on this thread, outside its batch
    /// queues, without metrics and request log. Blocks.
    ///
    /// # Errors
    /// Those of `decode` and `encode`, and what the model reports.
    pub fn infer_for_warm_up<C, T>(
        &self,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)>,
        encode: impl FnOnce(C, InferResponse) -> Result<T>,
    ) -> Result<T> {
        let mut resolver = Resolver::new(ResolverSource::Version(self));
        let mut progress = InferenceProgress::default();
        let passing = pass(&Runner::InPlace, &mut resolver, &mut progress, decode, encode);
        // No step of it awaits anything.
        passing.now_or_never().unwrap_or_else(|| Err(Error::internal("a warm-up run had to wait")))
    }
}

/// The steps of an inference, in order.
async fn pass<C, T>(
    runner: &Runner<'_>,
    resolver: &mut Resolver<'_>,
    progress: &mut InferenceProgress,
    decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)>,
    encode: impl FnOnce(C, InferResponse) -> Result<T>,
) -> Result<T> {
    runner.set_deadline();
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
    async fn run(
        &self,
        request: InferRequest,
        progress: &mut InferenceProgress,
    ) -> Result<InferResponse> {
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
                // Boxed: it is rare, and would make the future of every request larger.
                Runner::Queue(engine, call) if profile => {
                    let profiling = engine.profile(version, signature, inputs, call.deadline);
                    let (output, operations) = Box::pin(profiling).await?;
                    response.profile.get_or_insert_default().extend(operations);
                    output
                }
                Runner::Queue(_, call) => {
                    // A batch is a copy of the inputs of its requests.
                    budget::reserve(bytes_of(&inputs))?;
                    version.infer(signature, inputs, Some(call.deadline)).await?
                }
                Runner::InPlace => {
                    let outputs = version.run_now(signature, &inputs)?;
                    BatchOutput { outputs, timing: RunTiming::default() }
                }
            };
            progress.took(timing);
            budget::reserve(bytes_of(&outputs))?;
            let outputs = select(outputs, &output_filter)?;
            response.runs.push(RunOutput { signature, outputs });
        }
        Ok(response)
    }

    /// Work of this request's budget ends at the deadline of its call.
    fn set_deadline(&self) {
        if let Runner::Queue(_, call) = self {
            budget::set_deadline(call.deadline);
        }
    }

    /// A copy of the request, if it is sampled for the request log.
    fn sample(&self, request: &InferRequest) -> Option<SampledRequest> {
        let Runner::Queue(_, call) = self else {
            return None;
        };
        let log = request.version.request_log().filter(|log| log.samples())?;
        let sampling_rate = log.sampling_rate();
        Some(SampledRequest { request: request.clone(), method: call.entry.method, sampling_rate })
    }
}

/// The memory of a copy of these tensors, in bytes.
fn bytes_of(tensors: &[Tensor]) -> usize {
    let strings = tensors.iter().filter_map(Tensor::strings).map(Strings::len).sum::<usize>();
    let bytes = tensors.iter().map(Tensor::byte_len).sum::<usize>();
    bytes.saturating_add(strings.saturating_mul(STRING_OVERHEAD))
}

/// The requested outputs.
fn select(outputs: Vec<Tensor>, filter: &[usize]) -> Result<Vec<Tensor>> {
    if filter.is_empty() {
        return Ok(outputs);
    }
    let missing = || Error::internal("the model returned fewer outputs than its signature has");
    filter.iter().map(|&at| outputs.get(at).cloned().ok_or_else(missing)).collect()
}

/// A sampled request that has no response yet.
struct SampledRequest {
    request: InferRequest,
    method: Method,
    sampling_rate: f64,
}

/// A sampled inference, and the version to whose log it is written.
struct SampledInference {
    version: ModelHandle,
    inference: LoggedInference,
}

impl SampledRequest {
    fn with(self, response: &InferResponse) -> SampledInference {
        let SampledRequest { request: InferRequest { version, runs, .. }, method, sampling_rate } =
            self;
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
        SampledInference { version, inference }
    }
}

impl SampledInference {
    fn write(self) {
        if let Some(log) = self.version.request_log() {
            log.write(self.inference);
        }
    }
}
