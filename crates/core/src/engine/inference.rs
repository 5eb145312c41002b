//! The inference pipeline of all protocols: resolve, admit, decode, sample, run, encode, record.
//!
//! A protocol provides two functions: from bytes to an [`InferRequest`], and from an
//! [`InferResponse`] to bytes. [`Engine::infer`] does everything between and around them.
//! [`ModelHandle::infer_for_warm_up`] does the same for the warm-up of a version: on the thread that loads
//! it, without metrics and request log. [`ModelHandle::infer_aside`] does so for its trial.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use smallvec::SmallVec;

use super::receipts::{ReceiptDraft, ReceiptTensors};
use super::shadow::{ShadowRequest, ShadowRun};
use super::steps::{StepTimer, note_inference};
use super::{Engine, cached, large};
use crate::batch::{BatchOutput, RunTiming};
use crate::entry::{EntryPoint, Method};
use crate::repository::{ModelHandle, ModelSpec, OpRun, Repository, Unresolved, VersionSelector};
use crate::request_log::{LoggedInference, LoggedRun};
use tensorserve_tensor::budget;
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::priority::Priority;
use tensorserve_tensor::{STRING_OVERHEAD, Strings, Tensor};
use tensorserve_trace as trace;

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
    /// How long after its arrival the client has no use for a response, if it says so.
    pub timeout: Option<Duration>,
    /// The priority that its body asks for. It takes the place of that of its headers, and is
    /// bounded in the same way ([`budget::priority`]).
    pub priority: Option<Priority>,
}

impl InferRequest {
    /// A request for one run.
    #[must_use]
    pub fn new(version: ModelHandle, run: SignatureRun) -> Self {
        let runs = SmallVec::from_buf([run]);
        InferRequest { version, runs, profile: false, timeout: None, priority: None }
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
    /// The version and the output of a request for one run.
    #[must_use]
    pub fn into_single(self) -> (ModelHandle, RunOutput) {
        let none = RunOutput { signature: 0, outputs: Vec::new() };
        (self.version, self.runs.into_iter().next().unwrap_or(none))
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

impl InferenceCall {
    /// This call with an earlier deadline, if `timeout` after its start is earlier.
    #[must_use]
    pub fn within(self, timeout: Option<Duration>) -> Self {
        let end = timeout.and_then(|timeout| self.start.checked_add(timeout));
        let deadline = end.map_or(self.deadline, |end| end.min(self.deadline));
        InferenceCall { deadline, ..self }
    }
}

/// The outcome of an inference.
pub struct InferenceOutcome<T> {
    /// The encoded response, or the error.
    pub answer: Result<T>,
    /// Whether the request was decoded. An error of one that was not is about its payload, or about the
    /// model that it names.
    pub is_decoded: bool,
    /// The timing of its runs, if it ran.
    pub timing: Option<RunTiming>,
}

/// Resolves the version that a request names. The first one found is kept for the whole request,
/// and in memory, however often a decoder resolves it.
pub struct Resolver<'e> {
    source: ResolverSource<'e>,
    named: Named,
}

/// What a request names, as far as its decoder has come.
#[derive(Default)]
struct Named {
    version: Option<ModelHandle>,
    /// The number of the signature that was found in it.
    signature: Option<usize>,
    /// The model name that was requested last, and not found.
    model: Option<String>,
}

enum ResolverSource<'e> {
    /// The versions that are served.
    Repository(&'e Repository),
    /// A version that is being warmed up, for every request.
    Version(&'e ModelHandle),
}

impl<'e> Resolver<'e> {
    fn new(source: ResolverSource<'e>) -> Self {
        Resolver { source, named: Named::default() }
    }

    /// Records the model and version that a request names, for the metrics of a request that fails
    /// before they are resolved.
    pub fn names_model(&mut self, spec: &ModelSpec<'_>) {
        let ResolverSource::Repository(repository) = self.source else {
            return;
        };
        match repository.resolve(spec) {
            Ok(found) => self.named.version = Some(found),
            Err(_) => self.named.model = Some(spec.name.to_owned()),
        }
    }

    /// Records the signature of a request, for the metrics of a request that fails before it runs.
    pub fn found_signature(&mut self, index: usize) {
        self.named.signature = Some(index);
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
        if let Some(found) = self.named.version.as_ref().filter(|found| is_meant(found, spec)) {
            return Ok(found.clone());
        }
        match repository.resolve_for_inference(spec) {
            Ok(found) => {
                self.named.version = Some(found.clone());
                Ok(found)
            }
            Err(unresolved) => {
                self.named.model = Some(spec.name.to_owned());
                Err(unresolved)
            }
        }
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
    named: Named,
    is_decoded: bool,
    /// The priority that its body asks for.
    asked: Option<Priority>,
    timing: Option<RunTiming>,
}

impl InferenceProgress {
    fn took(&mut self, more: RunTiming) {
        let RunTiming { queue_delay, run } = self.timing.unwrap_or_default();
        let (queue_delay, run) = (queue_delay + more.queue_delay, run + more.run);
        self.timing = Some(RunTiming { queue_delay, run });
    }
}

impl Engine {
    /// Performs an inference. `decode` turns the payload into a request and a context; `encode`
    /// turns the context and the response into the protocol's response. Both own what they need: those
    /// of large requests and responses run on other threads than this one.
    ///
    /// # Errors
    /// In [`InferenceOutcome::answer`]: those of `decode` and `encode`, what the model reports,
    /// [`Code::DeadlineExceeded`] at the deadline, [`Code::Unavailable`] when the queue is full.
    pub async fn infer<C, T>(
        &self,
        call: InferenceCall,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)> + Send + 'static,
        encode: impl FnOnce(C, InferResponse) -> Result<T> + Send + 'static,
    ) -> InferenceOutcome<T>
    where
        C: Send + 'static,
        T: Send + 'static,
    {
        let mut progress = InferenceProgress::default();
        let decode = move |resolver: &mut Resolver<'_>| {
            let (request, context) = decode(resolver)?;
            let receipt = request.version.digest().map(|_| drafted(&request)).transpose()?;
            Ok((request, (context, receipt)))
        };
        let encode = move |(context, draft): (C, Option<Box<ReceiptDraft>>), response| {
            let Some(draft) = draft else { return encode(context, response) };
            let receipt = receipt_of(&draft, &response)?;
            let answer = encode(context, response)?;
            budget::set_receipt(receipt);
            Ok(answer)
        };
        let passing = self.pass(call, &mut progress, decode, encode);
        let answer = AssertUnwindSafe(passing).catch_unwind().await.unwrap_or_else(|_| {
            self.metrics().panicked();
            Err(Error::internal("internal error; see the server log"))
        });
        let error = answer.as_ref().err();
        if let Some(error) = error {
            self.metrics().count_shed_inference(error, budget::priority().priority(progress.asked));
        }
        let time = call.start.elapsed();
        match (progress.named.version.is_some(), error) {
            (false, Some(error)) => self.count_unresolved(call.entry, &mut progress, error, time),
            (_, error) => self.count(call.entry, &progress, error, time),
        }
        let InferenceProgress { is_decoded, timing, named, .. } = progress;
        if let Some(trace) = trace::current() {
            note_inference(&trace, named.version.as_ref(), named.signature, timing);
        }
        InferenceOutcome { answer, is_decoded, timing }
    }

    /// Counts a request that failed before a version was resolved: under the model that it names, if there is such
    /// a model. Its trace says the latest version, if there is one.
    fn count_unresolved(
        &self,
        entry: EntryPoint,
        progress: &mut InferenceProgress,
        error: &Error,
        time: Duration,
    ) {
        let name = progress.named.model.as_deref();
        let model = name.and_then(|name| self.repository().name_of(name));
        if let Some(model) = &model {
            self.metrics().note_error(model, error);
        }
        let spec = name.map(|name| ModelSpec { name, choice: VersionSelector::Latest });
        let served = spec.and_then(|spec| self.repository().resolve(&spec).ok());
        let metrics = served.as_ref().map(|served| served.version_metrics());
        self.metrics().unresolved(entry, model.as_ref(), metrics, error.code(), time);
        progress.named.version = served;
    }

    fn count(
        &self,
        entry: EntryPoint,
        progress: &InferenceProgress,
        error: Option<&Error>,
        time: Duration,
    ) {
        let InferenceProgress { named, timing, .. } = progress;
        let Some(version) = &named.version else {
            return;
        };
        if let Some(error) = error {
            self.metrics().note_error(version.name(), error);
        }
        let version = version.version_metrics();
        let signature = named.signature.and_then(|index| version.signature(index));
        match (signature, error.map(Error::code)) {
            (Some(signature), None) => {
                let runtime = timing.map(|timing| timing.queue_delay + timing.run);
                signature.succeeded(entry, time, runtime);
            }
            (Some(signature), Some(code)) => signature.failed(entry, code, time),
            (None, code) => version.failed(entry, code.unwrap_or(Code::Unknown), time),
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
        self.infer_here(decode, |version, run| version.run_now(run.signature, &run.inputs), encode)
    }

    /// Performs an inference that no client waits for: on this thread, outside the batch queues, until `deadline` at
    /// most, and without request log. Its run is counted. Blocks.
    ///
    /// # Errors
    /// Those of `decode` and `encode`, and what the model reports.
    pub fn infer_aside<C, T>(
        &self,
        deadline: Instant,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)>,
        encode: impl FnOnce(C, InferResponse) -> Result<T>,
    ) -> Result<T> {
        let run_aside = |version: &ModelHandle, run: &SignatureRun| {
            version.run_aside(run.signature, &run.inputs, deadline)
        };
        self.infer_here(decode, run_aside, encode)
    }

    fn infer_here<C, T>(
        &self,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)>,
        run_one: impl Fn(&ModelHandle, &SignatureRun) -> Result<Vec<Tensor>>,
        encode: impl FnOnce(C, InferResponse) -> Result<T>,
    ) -> Result<T> {
        let (_, decoded) = decoded(ResolverSource::Version(self), decode);
        let (InferRequest { version, runs, .. }, context) = decoded?;
        let mut response = InferResponse { version, runs: SmallVec::new(), profile: None };
        for run in runs {
            let outputs = select(run_one(&response.version, &run)?, &run.output_filter)?;
            response.runs.push(RunOutput { signature: run.signature, outputs });
        }
        encode(context, response)
    }
}

/// What `decode` makes of a request, and what it has found by then.
fn decoded<C>(
    source: ResolverSource<'_>,
    decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)>,
) -> (Named, Result<(InferRequest, C)>) {
    let mut resolver = Resolver::new(source);
    let decoded = decode(&mut resolver).and_then(|(request, context)| {
        for run in &request.runs {
            // A batch is a copy of the inputs of its requests. Reserved here and not before the run, so
            // that this thread frees the inputs if there is no memory for the copy.
            budget::reserve(bytes_of(&run.inputs))?;
        }
        Ok((request, context))
    });
    (resolver.named, decoded)
}

/// The steps of an inference, in order.
impl Engine {
    async fn pass<C, T>(
        &self,
        call: InferenceCall,
        progress: &mut InferenceProgress,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)> + Send + 'static,
        encode: impl FnOnce(C, InferResponse) -> Result<T> + Send + 'static,
    ) -> Result<T>
    where
        C: Send + 'static,
        T: Send + 'static,
    {
        // Work of this request's budget ends at the deadline.
        budget::set_deadline(call.deadline);
        let step = StepTimer::begin();
        let (named, decoded) = match large::is_large_request() {
            // Boxed: it is rare, and would make the future of every request larger.
            true => Box::pin(self.decode_elsewhere(decode)).await?,
            false => decoded(ResolverSource::Repository(self.repository()), decode),
        };
        progress.named = named;
        step.end("decode", decoded.as_ref().err());
        let (request, context) = decoded?;
        (progress.is_decoded, progress.asked) = (true, request.priority);
        let call = call.within(request.timeout);
        let sampled = SampledRequest::of(&request, call);
        let shadow = shadow_of(&request);
        let response = self.run(call, request, progress).await?;
        let logged = sampled.map(|sampled| sampled.with(&response));
        let shadow = shadow.map(|shadow| {
            let outputs = response.runs.iter().map(|run| run.outputs.clone());
            shadow.with(&response.version, outputs.collect())
        });
        let step = StepTimer::begin();
        let answer =
            match large::is_large_response(response.runs.iter().flat_map(|run| &run.outputs)) {
                true => Box::pin(large::run(move || encode(context, response))).await?,
                false => encode(context, response),
            };
        step.end("encode", answer.as_ref().err());
        let answer = answer?;
        if let Some(logged) = logged {
            logged.write();
        }
        if let Some(shadow) = shadow {
            self.0.mirror.send(shadow);
        }
        Ok(answer)
    }

    async fn decode_elsewhere<C: Send + 'static>(
        &self,
        decode: impl FnOnce(&mut Resolver<'_>) -> Result<(InferRequest, C)> + Send + 'static,
    ) -> Result<(Named, Result<(InferRequest, C)>)> {
        let engine = self.clone();
        let decode = move || decoded(ResolverSource::Repository(engine.repository()), decode);
        large::run(decode).await
    }

    async fn run(
        &self,
        call: InferenceCall,
        request: InferRequest,
        progress: &mut InferenceProgress,
    ) -> Result<InferResponse> {
        let InferRequest { version, runs, profile, .. } = request;
        let priority = budget::priority().priority(progress.asked);
        let mut response = InferResponse { version, runs: SmallVec::new(), profile: None };
        if call.entry.method == Method::MultiInference
            && let Some(first) = runs.first()
            && let Some(metrics) = response.version.version_metrics().signature(first.signature)
        {
            metrics.examples(first.inputs.iter().find_map(Tensor::rows).unwrap_or(0));
        }
        for run in runs {
            let SignatureRun { signature, inputs, output_filter, .. } = run;
            progress.named.signature = Some(signature);
            let version = &response.version;
            let BatchOutput { outputs, timing } = if profile {
                // Boxed: it is rare, and would make the future of every request larger.
                let profiling = self.profile(version, signature, inputs, call.deadline);
                let step = StepTimer::begin();
                let profiled = Box::pin(profiling).await;
                step.end("run", profiled.as_ref().err());
                let (output, operations) = profiled?;
                response.profile.get_or_insert_default().extend(operations);
                output
            } else if let Some(cache) = version.response_cache() {
                // Boxed for the same reason.
                let deadline = call.deadline;
                Box::pin(cached::infer(version, cache, signature, inputs, deadline, priority))
                    .await?
            } else {
                version.infer(signature, inputs, Some(call.deadline), priority).await?
            };
            progress.took(timing);
            budget::reserve(bytes_of(&outputs))?;
            let outputs = select(outputs, &output_filter)?;
            response.runs.push(RunOutput { signature, outputs });
        }
        Ok(response)
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

/// A copy of the request for the shadow version of its model, if there is one.
fn shadow_of(request: &InferRequest) -> Option<ShadowRequest> {
    let shadow = request.version.shadow().filter(|_| !request.profile)?;
    let run = |run: &SignatureRun| ShadowRun {
        signature: run.signature,
        inputs: run.inputs.clone(),
        output_filter: run.output_filter.clone(),
    };
    Some(ShadowRequest::new(shadow, request.runs.iter().map(run).collect()))
}

/// What is known for the receipt of a request.
fn drafted(request: &InferRequest) -> Result<Box<ReceiptDraft>> {
    let runs = request.runs.iter();
    let inputs: SmallVec<[_; 1]> =
        runs.map(|run| ReceiptTensors { signature: run.signature, tensors: &run.inputs }).collect();
    let filters = request.runs.iter().map(|run| run.output_filter.clone()).collect();
    ReceiptDraft::of(&request.version, &inputs, filters).map(Box::new)
}

fn receipt_of(draft: &ReceiptDraft, response: &InferResponse) -> Result<String> {
    let runs = response.runs.iter();
    let outputs: SmallVec<[_; 1]> = runs
        .map(|run| ReceiptTensors { signature: run.signature, tensors: &run.outputs })
        .collect();
    draft.receipt(&response.version, &outputs)
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
    /// A copy of the request, if it is sampled for the request log.
    fn of(request: &InferRequest, call: InferenceCall) -> Option<Self> {
        let log = request.version.request_log().filter(|log| log.samples())?;
        let (method, sampling_rate) = (call.entry.method, log.sampling_rate());
        Some(SampledRequest { request: request.clone(), method, sampling_rate })
    }

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
