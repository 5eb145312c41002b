//! Protocol buffers: the requests of the gRPC services, tensors, and the text format.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use prost::Message;
use tensorserve_codec::tfrecord;
use tensorserve_core::config::ModelConfig;
use tensorserve_core::engine::{EntryPoint, Method};
use tensorserve_proto::bounded::{self, BoundedRequest};
use tensorserve_proto::inference::ModelInferRequest;
use tensorserve_proto::serving::{
    BatchingParameters, ClassificationRequest, GetModelMetadataRequest, GetModelStatusRequest,
    ModelServerConfig, MonitoringConfig, MultiInferenceRequest, PlatformConfigMap, PredictRequest,
    RegressionRequest, ReloadConfigRequest, SslConfig,
};
use tensorserve_proto::tensorflow::TensorProto;
use tensorserve_proto::{Form, tensor_from_proto, tensor_to_proto};
use tensorserve_protocols::open_inference::{self, shared_memory::Regions};
use tensorserve_protocols::tfs::config::{batching, models, text};
use tensorserve_protocols::tfs::{grpc, inference, warm_up as warm_up_file};
use tensorserve_tensor::error::Code;
use tensorserve_tensor::{DType, Tensor};

use super::codec::strings;
use super::memory::unwatched;
use super::server::{received_message, server, wait};
use super::target::{selected, with_file};

/// The most memory of the examples of a request.
const MAX_TENSOR_BYTES: usize = 1 << 20;

/// A request of a gRPC method, and its answer. The first byte selects the method.
pub fn request_messages(input: &[u8]) {
    let Some((first, message)) = selected(input) else { return };
    let engine = &server(0).engine;
    let method = match first % 7 {
        2 => Method::Classify,
        3 => Method::Regress,
        4 => Method::MultiInference,
        _ => Method::Predict,
    };
    let call = engine.call(EntryPoint { protocol: "grpc", method }, Instant::now());
    match first % 7 {
        0 | 1 => {
            let Some(request) = decoded::<PredictRequest>(message) else { return };
            let form = if first % 7 == 0 { Form::Values } else { Form::Content };
            let _ = wait(grpc::predict(engine, request, form, call));
        }
        2 => {
            let Some(request) = decoded::<ClassificationRequest>(message) else { return };
            let _ = wait(inference::classify(engine, request, call));
        }
        3 => {
            let Some(request) = decoded::<RegressionRequest>(message) else { return };
            let _ = wait(inference::regress(engine, request, call));
        }
        4 => {
            let Some(request) = decoded::<MultiInferenceRequest>(message) else { return };
            let _ = wait(inference::multi_inference(engine, request, call));
        }
        5 => {
            if let Some(request) = decoded::<GetModelMetadataRequest>(message) {
                let _ = grpc::metadata(engine, &request);
            }
            if let Some(request) = decoded::<GetModelStatusRequest>(message) {
                let _ = grpc::status(engine, &request);
            }
        }
        _ => {
            // Its answer changes the server.
            let Some(request) = decoded::<ReloadConfigRequest>(message) else { return };
            let config = request.config.unwrap_or_default();
            let _ = models::list(&config, &ModelConfig::default());
        }
    }
}

/// A request of the Open Inference Protocol, and its answer.
pub fn infer_messages(message: &[u8]) {
    let engine = &server(0).engine;
    let call =
        engine.call(EntryPoint { protocol: "grpc", method: Method::Predict }, Instant::now());
    let Some(request) = decoded::<ModelInferRequest>(message) else { return };
    let (id, regions) = unwatched(|| (request.id.clone(), Arc::new(Regions::new(false))));
    match wait(open_inference::grpc::infer(engine, &regions, request, call)) {
        Ok(response) => assert!(id.is_empty() || response.id == id),
        Err(error) => assert!(error.code() != Code::Internal, "{error}"),
    }
}

/// A message that is read as the server reads it. Encoding and decoding keep it.
fn decoded<T: BoundedRequest + PartialEq>(message: &[u8]) -> Option<T> {
    let request: T = bounded::decode(received_message(message)).ok()?;
    unwatched(|| {
        let encoded = request.encode_to_vec();
        let again = T::decode(encoded.as_slice()).expect("what was encoded");
        assert_eq!(encoded, again.encode_to_vec());
    });
    Some(request)
}

/// A tensor survives being written and read, in both forms.
pub fn tensor_proto(message: &[u8]) {
    // A message is decoded within bounds of its own: see `request_messages`.
    let proto = unwatched(|| TensorProto::decode(Bytes::copy_from_slice(message)));
    let Ok(proto) = proto else { return };
    let Ok(tensor) = tensor_from_proto(&proto) else { return };
    for form in [Form::Values, Form::Content] {
        let written = tensor_to_proto(&tensor, form);
        unwatched(|| check_written(&tensor, &written));
    }
}

/// A tensor is what was written of it.
fn check_written(tensor: &Tensor, written: &TensorProto) {
    let again = match tensor_from_proto(written) {
        // One tensor fits the memory of a request, and three do not.
        Err(error) if error.code() == Code::ResourceExhausted => return,
        again => again.expect("what was written"),
    };
    assert_eq!((again.dtype(), again.shape()), (tensor.dtype(), tensor.shape()));
    assert_eq!(strings(&again), strings(tensor));
    // A NaN may lose its payload bits as a number.
    if tensor.dtype() != DType::Bool {
        assert_eq!(again.bytes(), tensor.bytes());
    }
}

/// TensorFlow Serving's configuration files. The first byte selects the message.
pub fn text_proto(input: &[u8]) {
    let Some((first, text)) = selected(input) else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    match first % 5 {
        0 => {
            let Some(config) = parsed::<ModelServerConfig>(text, "ModelServerConfig") else {
                return;
            };
            let _ = models::list(&config, &ModelConfig::default());
        }
        1 => {
            let Some(parameters) = parsed::<BatchingParameters>(text, "BatchingParameters") else {
                return;
            };
            let _ = batching::settings(&parameters);
        }
        2 => drop(parsed::<MonitoringConfig>(text, "MonitoringConfig")),
        3 => drop(parsed::<SslConfig>(text, "SSLConfig")),
        _ => drop(parsed::<PlatformConfigMap>(text, "PlatformConfigMap")),
    }
}

fn parsed<T: Message + Default>(text: &str, name: &str) -> Option<T> {
    text::parse(text, &format!("tensorflow.serving.{name}")).ok()
}

/// A warm-up file, whose records are run. The input is one record, or a whole file if the first byte
/// is odd.
pub fn warm_up(input: &[u8]) {
    let Some((first, bytes)) = selected(input) else { return };
    let mut file = Vec::new();
    match first % 2 {
        0 => tfrecord::append(bytes, &mut file),
        _ => file.extend_from_slice(bytes),
    }
    let engine = &server(0).engine;
    let names = ["float", "string", "int64", "examples"];
    let name = names[first / 2 % names.len()];
    let choice = tensorserve_core::engine::VersionSelector::Latest;
    let spec = tensorserve_core::engine::ModelSpec { name, choice };
    let Ok(handle) = engine.repository().resolve(&spec) else { panic!("no model {name}") };
    with_file("warm_up", &file, |path| {
        let Ok(Some(mut records)) = warm_up_file::WarmUpRecords::open(path) else { return };
        while let Ok(Some(record)) = records.next() {
            let _ = warm_up_file::run(&handle, &record, MAX_TENSOR_BYTES);
        }
    });
}
