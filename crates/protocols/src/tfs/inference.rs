//! TensorFlow Serving's gRPC calls that take examples: Classify, Regress and MultiInference.
//!
//! Sources: `servables/tensorflow/{classification_service,regression_service,multi_inference}.cc`
//! of github.com/tensorflow/serving.

use prost::Message;

use super::answer::{AnswerForm, TfsAnswer};
use super::classify::{self, Classifications};
use super::grpc::{effective_spec, find, signature_name};
use tensorserve_core::engine::{
    Engine, InferRequest, InferResponse, InferenceCall, Method, ModelHandle, Resolver,
};
use tensorserve_proto::serving::inference_result::Result as Outcome;
use tensorserve_proto::serving::input::Kind;
use tensorserve_proto::serving::{
    Class, ClassificationRequest, ClassificationResponse, ClassificationResult,
    Classifications as ClassificationsProto, InferenceResult, InferenceTask, Input,
    ModelSpec as ModelSpecProto, MultiInferenceRequest, MultiInferenceResponse, Regression,
    RegressionRequest, RegressionResponse, RegressionResult,
};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::{Signature, Tensor};

/// `PredictionService.Classify`.
///
/// # Errors
/// The errors of the reference, and those of the model.
pub async fn classify(
    engine: &Engine,
    request: ClassificationRequest,
    call: InferenceCall,
) -> Result<ClassificationResponse> {
    let ClassificationRequest { model_spec, input } = request;
    let (method, max_bytes) = (Method::Classify, engine.max_tensor_bytes());
    let decode = move |resolver: &mut Resolver<'_>| {
        let spec = model_spec.as_ref();
        let version = find(resolver, spec)?;
        let (request, form) =
            decode_examples(resolver, version, spec, input.as_ref(), method, max_bytes)?;
        Ok((request, (form, model_spec)))
    };
    let inferred = engine.infer(call, decode, |(form, spec), response| {
        let model_spec = Some(effective_spec(&response.version, signature_name(spec.as_ref())));
        let TfsAnswer::Classes(classes) = TfsAnswer::read(form, response)? else {
            return Err(Error::internal("a classification has no classes"));
        };
        Ok(ClassificationResponse { model_spec, result: Some(classification_result(&classes)) })
    });
    inferred.await.answer
}

/// `PredictionService.Regress`.
///
/// # Errors
/// The errors of the reference, and those of the model.
pub async fn regress(
    engine: &Engine,
    request: RegressionRequest,
    call: InferenceCall,
) -> Result<RegressionResponse> {
    let RegressionRequest { model_spec, input } = request;
    let (method, max_bytes) = (Method::Regress, engine.max_tensor_bytes());
    let decode = move |resolver: &mut Resolver<'_>| {
        let spec = model_spec.as_ref();
        let version = find(resolver, spec)?;
        let (request, form) =
            decode_examples(resolver, version, spec, input.as_ref(), method, max_bytes)?;
        Ok((request, (form, model_spec)))
    };
    let inferred = engine.infer(call, decode, |(form, spec), response| {
        let model_spec = Some(effective_spec(&response.version, signature_name(spec.as_ref())));
        let TfsAnswer::Numbers(numbers) = TfsAnswer::read(form, response)? else {
            return Err(Error::internal("a regression has no numbers"));
        };
        Ok(RegressionResponse { model_spec, result: Some(regression_result(&numbers)) })
    });
    inferred.await.answer
}

/// `PredictionService.MultiInference`: several signatures of one version on the same examples.
///
/// # Errors
/// The errors of the reference, and those of the model.
pub async fn multi_inference(
    engine: &Engine,
    request: MultiInferenceRequest,
    call: InferenceCall,
) -> Result<MultiInferenceResponse> {
    let MultiInferenceRequest { tasks, input } = request;
    let max_bytes = engine.max_tensor_bytes();
    let decode = move |resolver: &mut Resolver<'_>| {
        let first = tasks.first().and_then(|task| task.model_spec.as_ref());
        // One version for all tasks, resolved once.
        let version = find(resolver, first)?;
        decode_tasks(resolver, version, &tasks, input.as_ref(), max_bytes)
    };
    engine.infer(call, decode, encode_tasks).await.answer
}

/// Decodes a call of one signature on examples.
pub(super) fn decode_examples(
    resolver: &mut Resolver<'_>,
    version: ModelHandle,
    spec: Option<&ModelSpecProto>,
    input: Option<&Input>,
    method: Method,
    max_bytes: usize,
) -> Result<(InferRequest, AnswerForm)> {
    let signature = classify::find(&version, signature_name(spec), method)?;
    resolver.found_signature(signature);
    let examples = tensor_of(input, max_bytes)?;
    let form = AnswerForm::examples(method, &examples);
    Ok((InferRequest::new(version, classify::run(signature, method, examples)), form))
}

/// The properties of a call of several signatures that the response depends on.
pub(super) struct TasksForm {
    /// The method of each task, and the name of its signature.
    tasks: Vec<(Method, String)>,
    examples: usize,
}

/// Decodes a call of several signatures on examples.
pub(super) fn decode_tasks(
    resolver: &mut Resolver<'_>,
    version: ModelHandle,
    tasks: &[InferenceTask],
    input: Option<&Input>,
    max_bytes: usize,
) -> Result<(InferRequest, TasksForm)> {
    let tasks = check_tasks(&version, tasks)?;
    if let Some(first) = tasks.first() {
        resolver.found_signature(first.signature);
    }
    let examples = tensor_of(input, max_bytes)?;
    let run = |task: &CheckedTask<'_>| classify::run(task.signature, task.method, examples.clone());
    let runs = tasks.iter().map(run).collect();
    let named = tasks.iter().map(|task| (task.method, task.name.to_owned())).collect();
    let form = TasksForm { tasks: named, examples: examples.rows().unwrap_or(0) };
    Ok((InferRequest { version, runs, profile: false, timeout: None, priority: None }, form))
}

pub(super) fn encode_tasks(
    form: TasksForm,
    response: InferResponse,
) -> Result<MultiInferenceResponse> {
    let InferResponse { version, runs, .. } = response;
    let mut results = Vec::with_capacity(runs.len());
    for ((method, name), run) in form.tasks.iter().zip(&runs) {
        let Some(signature) = version.signatures().get(run.signature) else {
            return Err(Error::internal("the signature does not exist"));
        };
        let outcome = task_result(*method, signature, form.examples, &run.outputs)?;
        let model_spec = Some(effective_spec(&version, name));
        results.push(InferenceResult { model_spec, result: Some(outcome) });
    }
    Ok(MultiInferenceResponse { results })
}

/// The result of one task as a message.
pub(super) fn task_result(
    method: Method,
    signature: &Signature,
    examples: usize,
    outputs: &[Tensor],
) -> Result<Outcome> {
    Ok(match method {
        Method::Regress => {
            let numbers = classify::regressions(signature, examples, outputs)?;
            Outcome::RegressionResult(regression_result(&numbers))
        }
        Method::Classify | Method::Predict | Method::MultiInference => {
            let classes = classify::classifications(signature, examples, outputs)?;
            Outcome::ClassificationResult(classification_result(&classes))
        }
    })
}

/// A requested signature, checked.
struct CheckedTask<'t> {
    signature: usize,
    method: Method,
    /// The name of the signature.
    name: &'t str,
}

/// Checks the tasks of a call: different signatures of one model.
fn check_tasks<'t>(
    handle: &ModelHandle,
    given: &'t [InferenceTask],
) -> Result<Vec<CheckedTask<'t>>> {
    let model = given.first().map_or("", model_name);
    let mut tasks: Vec<CheckedTask> = Vec::with_capacity(given.len());
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

fn check_task<'t>(
    handle: &ModelHandle,
    model: &str,
    task: &'t InferenceTask,
) -> Result<CheckedTask<'t>> {
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
    Ok(CheckedTask { signature: number, method, name })
}

/// Classes as a message.
pub(super) fn classification_result(all: &Classifications) -> ClassificationResult {
    let classifications = all
        .iter()
        .map(|classes| ClassificationsProto { classes: classes.iter().map(class).collect() });
    ClassificationResult { classifications: classifications.collect() }
}

fn class(class: &classify::Class) -> Class {
    let label = String::from_utf8_lossy(&class.label).into_owned();
    Class { label, score: class.score }
}

/// Regression values as a message.
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
    let mut all = classify::ExamplesBuilder::new(&context, max_bytes);
    for example in examples {
        all.push(&example.encode_to_vec())?;
    }
    all.into_tensor()
}
