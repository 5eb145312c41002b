//! TensorFlow Serving's gRPC calls that take examples: Classify, Regress and MultiInference.
//!
//! Sources: `servables/tensorflow/{classification_service,regression_service,multi_inference}.cc`
//! of github.com/tensorflow/serving.

use std::time::Instant;

use prost::Message;

use super::classify::{self, Classifications, Method};
use super::grpc::{Answer, answered, effective_spec, find, signature_name};
use super::record;
use tensorserve_core::engine::{Api, Engine, ModelHandle, Served};
use tensorserve_proto::serving::inference_result::Result as Outcome;
use tensorserve_proto::serving::input::Kind;
use tensorserve_proto::serving::{
    Class, ClassificationRequest, ClassificationResponse, ClassificationResult,
    Classifications as ClassificationsProto, InferenceResult, InferenceTask, Input,
    ModelSpec as ModelSpecProto, MultiInferenceRequest, MultiInferenceResponse, Regression,
    RegressionRequest, RegressionResponse, RegressionResult,
};
use tensorserve_tensor::Tensor;
use tensorserve_tensor::error::{Code, Error, Result};

/// `PredictionService.Classify`.
pub async fn classify(
    engine: &Engine,
    request: ClassificationRequest,
    deadline: Instant,
) -> Answer<ClassificationResponse> {
    let mut served = Served::new(Api::GrpcClassify);
    let answer = run_classify(engine, request, deadline, &mut served).await;
    answered(answer, served)
}

async fn run_classify(
    engine: &Engine,
    request: ClassificationRequest,
    deadline: Instant,
    served: &mut Served,
) -> Result<ClassificationResponse> {
    let ClassificationRequest { model_spec, input } = request;
    let spec = model_spec.as_ref();
    let (run, examples) = prepare(engine, spec, input, Method::Classify, served)?;
    let result = run.classify(examples, deadline, served).await?;
    let spec = effective_spec(&run.handle, signature_name(spec));
    Ok(ClassificationResponse { model_spec: Some(spec), result: Some(result) })
}

/// `PredictionService.Regress`.
pub async fn regress(
    engine: &Engine,
    request: RegressionRequest,
    deadline: Instant,
) -> Answer<RegressionResponse> {
    let mut served = Served::new(Api::GrpcRegress);
    let answer = run_regress(engine, request, deadline, &mut served).await;
    answered(answer, served)
}

async fn run_regress(
    engine: &Engine,
    request: RegressionRequest,
    deadline: Instant,
    served: &mut Served,
) -> Result<RegressionResponse> {
    let RegressionRequest { model_spec, input } = request;
    let spec = model_spec.as_ref();
    let (run, examples) = prepare(engine, spec, input, Method::Regress, served)?;
    let result = run.regress(examples, deadline, served).await?;
    let spec = effective_spec(&run.handle, signature_name(spec));
    Ok(RegressionResponse { model_spec: Some(spec), result: Some(result) })
}

/// `PredictionService.MultiInference`: several signatures of one version on the same examples.
pub async fn multi_inference(
    engine: &Engine,
    request: MultiInferenceRequest,
    deadline: Instant,
) -> Answer<MultiInferenceResponse> {
    let mut served = Served::new(Api::GrpcMultiInference);
    let answer = run_tasks(engine, &request, deadline, &mut served).await;
    answered(answer, served)
}

async fn run_tasks(
    engine: &Engine,
    request: &MultiInferenceRequest,
    deadline: Instant,
    served: &mut Served,
) -> Result<MultiInferenceResponse> {
    let first = request.tasks.first().and_then(|task| task.model_spec.as_ref());
    // One version for all, pinned once.
    let handle = find(engine, first)?;
    served.version = Some(handle.clone());
    let tasks = check_tasks(&handle, &request.tasks)?;
    let examples = tensor_of(request.input.as_ref(), engine.max_tensor_bytes())?;
    if let Some(metrics) = tasks.first().and_then(|first| handle.metrics(first.signature)) {
        metrics.examples(examples.rows().unwrap_or(0));
    }
    let mut results = Vec::with_capacity(tasks.len());
    for Task { signature, method, name } in tasks {
        served.signature = Some(signature);
        let (on, examples) = (&handle, examples.clone());
        let outcome = match method {
            Method::Classify => {
                let read = classify::classifications;
                let run = classify::run(engine, on, signature, examples, deadline, served, read);
                Outcome::ClassificationResult(classification_result(&run.await?))
            }
            Method::Regress => {
                let read = classify::regressions;
                let run = classify::run(engine, on, signature, examples, deadline, served, read);
                Outcome::RegressionResult(regression_result(&run.await?))
            }
        };
        let model_spec = Some(effective_spec(&handle, name));
        results.push(InferenceResult { model_spec, result: Some(outcome) });
    }
    let response = MultiInferenceResponse { results };
    record::multi_inference(&handle, request, &response);
    Ok(response)
}

/// One signature that is asked for, checked.
pub(super) struct Task<'t> {
    pub(super) signature: usize,
    pub(super) method: Method,
    /// Of the signature.
    name: &'t str,
}

/// What the tasks of a call ask for: different signatures of one model.
pub(super) fn check_tasks<'t>(
    handle: &ModelHandle,
    given: &'t [InferenceTask],
) -> Result<Vec<Task<'t>>> {
    let model = given.first().map_or("", model_name);
    let mut tasks: Vec<Task> = Vec::with_capacity(given.len());
    for task in given {
        let task = check_task(handle, model, task)?;
        if tasks.iter().any(|other| other.name == task.name) {
            let message = format!("Duplicate evaluation of signature: {}", task.name);
            return Err(Error::invalid(message));
        }
        tasks.push(task);
    }
    Ok(tasks)
}

fn model_name(task: &InferenceTask) -> &str {
    task.model_spec.as_ref().map_or("", |spec| spec.name.as_str())
}

fn check_task<'t>(handle: &ModelHandle, model: &str, task: &'t InferenceTask) -> Result<Task<'t>> {
    let spec = task.model_spec.as_ref();
    if model_name(task).is_empty() {
        return Err(Error::invalid("Found ModelSpec with an empty model name."));
    }
    if model_name(task) != model {
        return Err(Error::invalid(
            "All ModelSpecs in a MultiInferenceRequest must access the same model name.",
        ));
    }
    let name = signature_name(spec);
    let method = match task.method_name.as_str() {
        "tensorflow/serving/classify" => Method::Classify,
        "tensorflow/serving/regress" => Method::Regress,
        other => {
            let message = format!("Unsupported signature method_name: {other}");
            return Err(Error::new(Code::Unimplemented, message));
        }
    };
    let Some((number, signature)) = handle.signature(name) else {
        let message = format!("Requested signature not found in model graph: {name}");
        return Err(Error::invalid(message));
    };
    classify::check(signature, method)?;
    Ok(Task { signature: number, method, name })
}

/// What a call that names one signature asks for: which to run, and on what.
fn prepare<'e>(
    engine: &'e Engine,
    spec: Option<&ModelSpecProto>,
    input: Option<Input>,
    method: Method,
    served: &mut Served,
) -> Result<(Run<'e>, Tensor)> {
    let handle = find(engine, spec)?;
    served.version = Some(handle.clone());
    let signature = classify::find(&handle, signature_name(spec), method)?;
    served.signature = Some(signature);
    let examples = tensor_of(input.as_ref(), engine.max_tensor_bytes())?;
    Ok((Run { engine, handle, signature }, examples))
}

/// A signature that was found and checked.
struct Run<'e> {
    engine: &'e Engine,
    handle: ModelHandle,
    signature: usize,
}

impl Run<'_> {
    async fn classify(
        &self,
        examples: Tensor,
        deadline: Instant,
        served: &mut Served,
    ) -> Result<ClassificationResult> {
        let Run { engine, handle, signature } = self;
        let run = classify::classify(engine, handle, *signature, examples, deadline, served);
        Ok(classification_result(&run.await?))
    }

    async fn regress(
        &self,
        examples: Tensor,
        deadline: Instant,
        served: &mut Served,
    ) -> Result<RegressionResult> {
        let Run { engine, handle, signature } = self;
        let run = classify::regress(engine, handle, *signature, examples, deadline, served);
        Ok(regression_result(&run.await?))
    }
}

/// Classes as a message.
pub(super) fn classification_result(all: &Classifications) -> ClassificationResult {
    let class = |class: &classify::Class| {
        let label = String::from_utf8_lossy(&class.label).into_owned();
        Class { label, score: class.score }
    };
    let classes = |classes: &Vec<classify::Class>| ClassificationsProto {
        classes: classes.iter().map(class).collect(),
    };
    ClassificationResult { classifications: all.iter().map(classes).collect() }
}

/// Numbers as a message.
pub(super) fn regression_result(values: &[f32]) -> RegressionResult {
    let regressions = values.iter().map(|&value| Regression { value });
    RegressionResult { regressions: regressions.collect() }
}

/// The examples of a request as a tensor of serialized ones.
pub(super) fn tensor_of(input: Option<&Input>, max_bytes: usize) -> Result<Tensor> {
    let kind = input.and_then(|input| input.kind.as_ref());
    let (examples, context) = match kind {
        None => (&[][..], Vec::new()),
        Some(Kind::ExampleList(list)) => (&list.examples[..], Vec::new()),
        Some(Kind::ExampleListWithContext(list)) => {
            let context = list.context.as_ref().map(Message::encode_to_vec);
            (&list.examples[..], context.unwrap_or_default())
        }
    };
    let mut all = classify::Examples::new(&context, max_bytes);
    for example in examples {
        all.push(&example.encode_to_vec())?;
    }
    all.into_tensor()
}
