//! `PredictionLog` records for warm-up ([`super::warm_up`]): from a payload, or from a record of the
//! request log.

use super::grpc::effective_spec;
use super::prediction_log::{asked, examples_input, tensors};
use super::{DEFAULT_SIGNATURE, classify, examples, predict};
use tensorserve_core::engine::{Method, ModelHandle};
use tensorserve_proto::serving::prediction_log::LogType;
use tensorserve_proto::serving::{
    ClassificationRequest, ClassifyLog, MultiInferenceLog, PredictLog, PredictRequest,
    PredictionLog, RegressLog, RegressionRequest,
};
use tensorserve_tensor::error::Result;

/// The warm-up record of a REST payload, for any version of the model. The payload is checked like a
/// request.
///
/// # Errors
/// The errors of decoding the request; nothing is run.
pub fn of_body(
    handle: &ModelHandle,
    method: Method,
    body: &[u8],
    max_bytes: usize,
) -> Result<PredictionLog> {
    let spec = |signature: usize| {
        let name = handle.signatures().get(signature).map_or("", |s| s.name.as_str());
        Some(asked(&effective_spec(handle, name)))
    };
    if matches!(method, Method::Predict | Method::MultiInference) {
        let decoded = predict::decode(body, handle, DEFAULT_SIGNATURE, max_bytes, false)?;
        let declared = handle.signatures().get(decoded.signature);
        let aliases = declared.into_iter().flat_map(|s| &s.inputs).map(|s| s.alias.clone());
        let (model_spec, inputs) = (spec(decoded.signature), tensors(aliases, &decoded.inputs));
        let request = PredictRequest { model_spec, inputs, output_filter: Vec::new() };
        let log = PredictLog { request: Some(request), response: None };
        return Ok(bare(LogType::PredictLog(log)));
    }
    let decoded = examples::decode(body, max_bytes)?;
    let signature = classify::find(handle, &decoded.signature_name, method)?;
    let (model_spec, input) = (spec(signature), Some(examples_input(&[decoded.examples])));
    Ok(bare(if method == Method::Regress {
        let request = Some(RegressionRequest { model_spec, input });
        LogType::RegressLog(RegressLog { request, response: None })
    } else {
        let request = Some(ClassificationRequest { model_spec, input });
        LogType::ClassifyLog(ClassifyLog { request, response: None })
    }))
}

/// The warm-up record of a logged request, without the response; `None` if it cannot be run.
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
