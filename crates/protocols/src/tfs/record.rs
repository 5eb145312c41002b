//! What a sampled request becomes in its model's log: a `PredictionLog`, whatever wire it came
//! over, so that the log can warm up the next version ([`super::warm_up`]).
//!
//! Nothing here runs for a request that is not sampled. For one that is, tensors are kept, not
//! copied; the message is made on the thread that writes it.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;

use super::classify::{self, Classifications, Method};
use super::grpc::effective_spec;
use super::inference::{classification_result, regression_result};
use super::{examples, predict};
use tensorserve_core::engine::{ModelHandle, RequestLog};
use tensorserve_proto::serving::input::Kind;
use tensorserve_proto::serving::model_spec::VersionChoice;
use tensorserve_proto::serving::prediction_log::LogType;
use tensorserve_proto::serving::{
    ClassificationRequest, ClassificationResponse, ClassifyLog, ExampleList, Input, LogMetadata,
    ModelSpec, MultiInferenceLog, MultiInferenceRequest, MultiInferenceResponse, PredictLog,
    PredictRequest, PredictResponse, PredictionLog, RegressLog, RegressionRequest,
    RegressionResponse, SamplingConfig,
};
use tensorserve_proto::{Example, Form, tensor_to_proto};
use tensorserve_tensor::error::Result;
use tensorserve_tensor::{Signature, Tensor};

/// The record of a REST request's body, checked as such a request is, that warms up any version of
/// the model. With a `method` it is one on examples.
///
/// # Errors
/// What the request itself would be told; nothing is run.
pub fn of_body(
    handle: &ModelHandle,
    method: Option<Method>,
    body: &[u8],
    max_bytes: usize,
) -> Result<PredictionLog> {
    let spec = |signature: usize| {
        let name = handle.signatures().get(signature).map_or("", |s| s.name.as_str());
        Some(asked(&effective_spec(handle, name)))
    };
    let Some(method) = method else {
        let decoded = predict::decode(body, handle, max_bytes, false)?;
        let declared = handle.signatures().get(decoded.signature);
        let aliases = declared.into_iter().flat_map(|s| &s.inputs).map(|s| s.alias.clone());
        let inputs: Vec<(String, Tensor)> = aliases.zip(decoded.inputs).collect();
        let (model_spec, inputs) = (spec(decoded.signature), tensors(&inputs));
        let request = PredictRequest { model_spec, inputs, output_filter: Vec::new() };
        return Ok(bare(LogType::PredictLog(PredictLog {
            request: Some(request),
            response: None,
        })));
    };
    let decoded = examples::decode(body, max_bytes)?;
    let signature = classify::find(handle, &decoded.signature_name, method)?;
    let (model_spec, input) = (spec(signature), Some(input(&[decoded.examples])));
    Ok(bare(match method {
        Method::Classify => {
            let request = Some(ClassificationRequest { model_spec, input });
            LogType::ClassifyLog(ClassifyLog { request, response: None })
        }
        Method::Regress => {
            let request = Some(RegressionRequest { model_spec, input });
            LogType::RegressLog(RegressLog { request, response: None })
        }
    }))
}

/// What of a logged request warms a version up: the request alone; `None` if it can not be run.
#[must_use]
pub fn request_of(log: PredictionLog) -> Option<PredictionLog> {
    Some(bare(match log.log_type? {
        LogType::PredictLog(log) => LogType::PredictLog(PredictLog { response: None, ..log }),
        LogType::ClassifyLog(log) => LogType::ClassifyLog(ClassifyLog { response: None, ..log }),
        LogType::RegressLog(log) => LogType::RegressLog(RegressLog { response: None, ..log }),
        LogType::MultiInferenceLog(log) => {
            LogType::MultiInferenceLog(MultiInferenceLog { response: None, ..log })
        }
        LogType::SessionRunLog(_) | LogType::PredictStreamedLog(_) => return None,
    }))
}

fn bare(log_type: LogType) -> PredictionLog {
    PredictionLog { log_metadata: None, log_type: Some(log_type) }
}

/// A request that is sampled, on its way to its answer.
pub(super) struct Sampled<'h> {
    log: &'h RequestLog,
    handle: &'h ModelHandle,
    signature: &'h Signature,
    inputs: Vec<Tensor>,
}

/// Keeps a request if it is sampled.
pub(super) fn sample<'h>(
    handle: &'h ModelHandle,
    signature: usize,
    inputs: &[Tensor],
) -> Option<Sampled<'h>> {
    let log = handle.request_log().filter(|log| log.samples())?;
    let signature = handle.signatures().get(signature)?;
    Some(Sampled { log, handle, signature, inputs: inputs.to_vec() })
}

impl Sampled<'_> {
    /// Logs a Predict call with the outputs that were asked for.
    pub(super) fn predicted(self, outputs: Vec<(String, Tensor)>, filter: Vec<String>) {
        let aliases = self.signature.inputs.iter().map(|spec| spec.alias.clone());
        let inputs: Vec<(String, Tensor)> = aliases.zip(self.inputs).collect();
        let all = || inputs.iter().chain(&outputs);
        let bytes = all().map(|(_, tensor)| tensor.kept_len()).sum();
        let (metadata, spec) = head(self.log, self.handle, &self.signature.name);
        self.log.write(bytes, move || {
            let request = PredictRequest {
                model_spec: Some(asked(&spec)),
                inputs: tensors(&inputs),
                output_filter: filter,
            };
            let response = PredictResponse { model_spec: Some(spec), outputs: tensors(&outputs) };
            let (request, response) = (Some(request), Some(response));
            record(metadata, LogType::PredictLog(PredictLog { request, response }))
        });
    }

    /// Logs a call for the classes of examples.
    pub(super) fn classified(self, classes: &Classifications) {
        let result = Some(classification_result(classes));
        self.on_examples(move |request, spec| {
            let request = ClassificationRequest { model_spec: Some(request.0), input: request.1 };
            let response = ClassificationResponse { model_spec: Some(spec), result };
            let (request, response) = (Some(request), Some(response));
            LogType::ClassifyLog(ClassifyLog { request, response })
        });
    }

    /// Logs a call for the numbers of examples.
    pub(super) fn regressed(self, values: &[f32]) {
        let result = Some(regression_result(values));
        self.on_examples(move |request, spec| {
            let request = RegressionRequest { model_spec: Some(request.0), input: request.1 };
            let response = RegressionResponse { model_spec: Some(spec), result };
            let (request, response) = (Some(request), Some(response));
            LogType::RegressLog(RegressLog { request, response })
        });
    }

    /// Logs a call on examples, of the kind that `make` makes of the request's model and input,
    /// and the answer's model.
    fn on_examples(
        self,
        make: impl FnOnce((ModelSpec, Option<Input>), ModelSpec) -> LogType + Send + 'static,
    ) {
        let (metadata, spec) = head(self.log, self.handle, &self.signature.name);
        let examples = self.inputs;
        let bytes = examples.iter().map(Tensor::kept_len).sum();
        self.log.write(bytes, move || {
            let request = (asked(&spec), Some(input(&examples)));
            record(metadata, make(request, spec))
        });
    }
}

/// Logs a MultiInference call if it is sampled. Its messages are there already.
pub(super) fn multi_inference(
    handle: &ModelHandle,
    request: &MultiInferenceRequest,
    response: &MultiInferenceResponse,
) {
    let Some(log) = handle.request_log().filter(|log| log.samples()) else {
        return;
    };
    let (metadata, _) = head(log, handle, "");
    let log_type = LogType::MultiInferenceLog(MultiInferenceLog {
        request: Some(request.clone()),
        response: Some(response.clone()),
    });
    let bytes = request.encoded_len() + response.encoded_len();
    log.write(bytes, move || record(metadata, log_type));
}

/// What a record says of itself, and which model has answered.
fn head(log: &RequestLog, handle: &ModelHandle, signature: &str) -> (LogMetadata, ModelSpec) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let spec = effective_spec(handle, signature);
    let sampling_rate = log.sampling_rate();
    let metadata = LogMetadata {
        model_spec: Some(spec.clone()),
        sampling_config: Some(SamplingConfig { sampling_rate, ..SamplingConfig::default() }),
        saved_model_tags: Vec::new(),
        timestamp_secs: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
    };
    (metadata, spec)
}

/// The model of a request: any version, so that the next one can be warmed up with it.
fn asked(answered: &ModelSpec) -> ModelSpec {
    ModelSpec { version_choice: None::<VersionChoice>, ..answered.clone() }
}

fn tensors(
    named: &[(String, Tensor)],
) -> BTreeMap<String, tensorserve_proto::tensorflow::TensorProto> {
    let proto = |(alias, tensor): &(String, Tensor)| {
        (alias.clone(), tensor_to_proto(tensor, Form::Content))
    };
    named.iter().map(proto).collect()
}

/// Serialized examples as a message again. Each has its context in it already.
fn input(examples: &[Tensor]) -> Input {
    let strings = examples.iter().filter_map(Tensor::strings).flat_map(|strings| strings.iter());
    let examples = strings.filter_map(|bytes| Example::decode(bytes).ok()).collect();
    Input { kind: Some(Kind::ExampleList(ExampleList { examples })) }
}

fn record(metadata: LogMetadata, log_type: LogType) -> Vec<u8> {
    let log = PredictionLog { log_metadata: Some(metadata), log_type: Some(log_type) };
    log.encode_to_vec()
}
