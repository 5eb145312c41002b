//! The records of the request log: a `PredictionLog` for each sampled request of any protocol, so that
//! the log can warm up the next version ([`super::warm_up`]).
//!
//! Runs on the thread that writes the log.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use prost::Message;

use super::classify;
use super::inference::{classification_result, regression_result, task_result};
use tensorserve_core::engine::{LoggedInference, LoggedRun, Method, RequestLogFormat};
use tensorserve_proto::serving::input::Kind;
use tensorserve_proto::serving::model_spec::VersionChoice;
use tensorserve_proto::serving::prediction_log::LogType;
use tensorserve_proto::serving::{
    ClassificationRequest, ClassificationResponse, ClassifyLog, ExampleList, InferenceResult,
    InferenceTask, Input, LogMetadata, ModelSpec, MultiInferenceLog, MultiInferenceRequest,
    MultiInferenceResponse, PredictLog, PredictRequest, PredictResponse, PredictionLog, RegressLog,
    RegressionRequest, RegressionResponse, SamplingConfig,
};
use tensorserve_proto::tensorflow::TensorProto;
use tensorserve_proto::{Example, Form, tensor_to_proto};
use tensorserve_tensor::{Signature, Tensor};

/// Writes `tensorflow.serving.PredictionLog` messages.
pub(super) struct PredictionLogs;

impl RequestLogFormat for PredictionLogs {
    fn record(&self, inference: &LoggedInference) -> Option<Vec<u8>> {
        let first = inference.runs.first()?;
        let signature = inference.signatures.get(first.signature)?;
        let name = if inference.method == Method::MultiInference { "" } else { &signature.name };
        let metadata = LogMetadata {
            model_spec: Some(answered(inference, name)),
            sampling_config: Some(SamplingConfig {
                sampling_rate: inference.sampling_rate,
                ..SamplingConfig::default()
            }),
            saved_model_tags: Vec::new(),
            timestamp_secs: seconds(inference),
        };
        let log_type = match inference.method {
            Method::Predict => predicted(inference, first, signature),
            Method::Classify => classified(inference, first, signature)?,
            Method::Regress => regressed(inference, first, signature)?,
            Method::MultiInference => multi_inference(inference)?,
        };
        let log = PredictionLog { log_metadata: Some(metadata), log_type: Some(log_type) };
        Some(log.encode_to_vec())
    }
}

fn seconds(inference: &LoggedInference) -> i64 {
    let since = inference.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn predicted(inference: &LoggedInference, run: &LoggedRun, signature: &Signature) -> LogType {
    let spec = answered(inference, &signature.name);
    let inputs = signature.inputs.iter().map(|spec| spec.alias.clone());
    let output = |at: &usize| signature.outputs.get(*at).map(|spec| spec.alias.clone());
    let filter: Vec<String> = run.output_filter.iter().filter_map(output).collect();
    let all = || signature.outputs.iter().map(|spec| spec.alias.clone()).collect();
    let outputs = if filter.is_empty() { all() } else { filter.clone() };
    let request = PredictRequest {
        model_spec: Some(asked(&spec)),
        inputs: tensors(inputs, &run.inputs),
        output_filter: filter,
    };
    let outputs = tensors(outputs.into_iter(), &run.outputs);
    let response = PredictResponse { model_spec: Some(spec), outputs };
    LogType::PredictLog(PredictLog { request: Some(request), response: Some(response) })
}

fn classified(
    inference: &LoggedInference,
    run: &LoggedRun,
    signature: &Signature,
) -> Option<LogType> {
    let spec = answered(inference, &signature.name);
    let classes = classify::classifications(signature, examples_of(run), &run.outputs).ok()?;
    let input = Some(examples_input(&run.inputs));
    let request = ClassificationRequest { model_spec: Some(asked(&spec)), input };
    let result = Some(classification_result(&classes));
    let response = ClassificationResponse { model_spec: Some(spec), result };
    Some(LogType::ClassifyLog(ClassifyLog { request: Some(request), response: Some(response) }))
}

fn regressed(
    inference: &LoggedInference,
    run: &LoggedRun,
    signature: &Signature,
) -> Option<LogType> {
    let spec = answered(inference, &signature.name);
    let numbers = classify::regressions(signature, examples_of(run), &run.outputs).ok()?;
    let input = Some(examples_input(&run.inputs));
    let request = RegressionRequest { model_spec: Some(asked(&spec)), input };
    let result = Some(regression_result(&numbers));
    let response = RegressionResponse { model_spec: Some(spec), result };
    Some(LogType::RegressLog(RegressLog { request: Some(request), response: Some(response) }))
}

fn multi_inference(inference: &LoggedInference) -> Option<LogType> {
    let (mut tasks, mut results) = (Vec::new(), Vec::new());
    for run in &inference.runs {
        let signature = inference.signatures.get(run.signature)?;
        let spec = answered(inference, &signature.name);
        tasks.push(InferenceTask {
            model_spec: Some(asked(&spec)),
            method_name: format!("tensorflow/serving/{}", run.method.name()),
        });
        let result = task_result(run.method, signature, examples_of(run), &run.outputs).ok()?;
        results.push(InferenceResult { model_spec: Some(spec), result: Some(result) });
    }
    let input = inference.runs.first().map(|run| examples_input(&run.inputs));
    let request = Some(MultiInferenceRequest { tasks, input });
    let response = Some(MultiInferenceResponse { results });
    Some(LogType::MultiInferenceLog(MultiInferenceLog { request, response }))
}

/// The number of examples of a run.
fn examples_of(run: &LoggedRun) -> usize {
    run.inputs.first().and_then(Tensor::rows).unwrap_or(0)
}

/// The model spec of a response.
fn answered(inference: &LoggedInference, signature: &str) -> ModelSpec {
    ModelSpec {
        name: inference.model.to_string(),
        version_choice: Some(VersionChoice::Version(inference.version)),
        signature_name: signature.to_owned(),
    }
}

/// The model spec of a request: without a version, so that it can warm up the next one.
pub(super) fn asked(answered: &ModelSpec) -> ModelSpec {
    ModelSpec { version_choice: None, ..answered.clone() }
}

pub(super) fn tensors(
    names: impl Iterator<Item = String>,
    tensors: &[Tensor],
) -> BTreeMap<String, TensorProto> {
    let pairs = names.zip(tensors);
    pairs.map(|(name, tensor)| (name, tensor_to_proto(tensor, Form::Content))).collect()
}

/// Serialized examples, which contain their context, as a message.
pub(super) fn examples_input(examples: &[Tensor]) -> Input {
    let strings = examples.iter().filter_map(Tensor::strings).flat_map(|strings| strings.iter());
    let examples = strings.filter_map(|bytes| Example::decode(bytes).ok()).collect();
    Input { kind: Some(Kind::ExampleList(ExampleList { examples })) }
}
