//! Every route and gRPC method that runs models: its requests are logged, counted by protocol and
//! method, refused when the batch queue is full, and ended at their deadline. The list comes from
//! the server's own tables, so a new entry point without a request below fails these tests.

use std::thread;
use std::time::{Duration, Instant};

use prost::Message;
use serde_json::json;
use tensorserve::config::{ModelSettings, MultiModelConfig, VertexConfig};
use tensorserve_auth::Permission;
use tensorserve_proto::inference::infer_parameter::ParameterChoice;
use tensorserve_proto::inference::model_infer_request::InferInputTensor;
use tensorserve_proto::inference::{
    InferTensorContents, ModelInferRequest, ModelStreamInferResponse,
};
use tensorserve_proto::serving::input::Kind;
use tensorserve_proto::serving::{
    ClassificationRequest, ExampleList, InferenceTask, Input, ModelSpec, MultiInferenceRequest,
    PredictRequest, RegressionRequest,
};
use tensorserve_proto::{Example, Form, tensor_to_proto};

use crate::receipts::RECEIPT;
use crate::support::client::{post_form, request};
use crate::support::fake::Model;
use crate::support::grpc::Caller;
use crate::support::place::{Place, matrix, values};

/// The content of a request.
enum Sent {
    /// A content type and a payload.
    Payload(&'static str, String),
    /// A form with an image.
    Form,
    /// A gRPC message.
    Message(Vec<u8>),
}

/// A request and the labels of its metrics.
struct EntryRequest {
    sent: Sent,
    protocol: &'static str,
    method: &'static str,
    signature: &'static str,
}

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

fn predict(protocol: &'static str, content_type: &'static str, payload: String) -> EntryRequest {
    let sent = Sent::Payload(content_type, payload);
    EntryRequest { sent, protocol, method: "predict", signature: "serving_default" }
}

/// A request for a route that needs the permission *infer*; `None` if the route runs no model.
fn route_request(path: &str) -> Option<EntryRequest> {
    let examples = |method: &'static str| {
        let payload = json!({"signature_name": method, "examples": [{"x": 1.0}]}).to_string();
        let sent = Sent::Payload(JSON, payload);
        EntryRequest { sent, protocol: "tfs_rest", method, signature: method }
    };
    let rows = || json!({"instances": [[1.0]]}).to_string();
    let simple = || json!({"model_name": "m", "data": {"x": [[1.0]]}}).to_string();
    Some(match path {
        "/" => predict("simple", JSON, simple()),
        "/run_json_inference" => {
            predict("simple", FORM, "model_name=m&json_data=%7B%22x%22:[[1.0]]%7D".to_owned())
        }
        "/run_image_inference" => EntryRequest {
            sent: Sent::Form,
            protocol: "simple",
            method: "predict",
            signature: "classify",
        },
        "/json_inference" | "/image_inference" | "/generate_clients" | "/run_generate_clients" => {
            return None;
        }
        "/invocations" | "/invocations/x" => predict("sagemaker", JSON, rows()),
        _ if path.starts_with("/v2/models/") => {
            let input = json!({"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]});
            predict("open_inference_rest", JSON, json!({"inputs": [input]}).to_string())
        }
        "/vertex/predict" => predict("vertex", JSON, rows()),
        _ if path.starts_with("/models/") || path.starts_with("/endpoints/") => {
            predict("sagemaker", JSON, rows())
        }
        _ if path.ends_with(":classify") => examples("classify"),
        _ if path.ends_with(":regress") => examples("regress"),
        _ if path.ends_with(":predict") => predict("tfs_rest", JSON, rows()),
        _ => panic!("{path} is a new entry point: add a request for it here"),
    })
}

/// A message for a gRPC method that runs models.
fn message(path: &str) -> EntryRequest {
    let spec = |signature: &str| {
        let (name, signature_name) = ("m".to_owned(), signature.to_owned());
        Some(ModelSpec { name, signature_name, version_choice: None })
    };
    let examples = vec![Example::default()];
    let input = Some(Input { kind: Some(Kind::ExampleList(ExampleList { examples })) });
    let (message, method, signature) = match path.rsplit('/').next().unwrap_or_default() {
        "Predict" => {
            let x = tensor_to_proto(&matrix(&[&[1.0]]), Form::Values);
            let inputs = [("x".to_owned(), x)].into();
            let request = PredictRequest { model_spec: spec(""), inputs, output_filter: vec![] };
            (request.encode_to_vec(), "predict", "serving_default")
        }
        "Classify" => {
            let request = ClassificationRequest { model_spec: spec("classify"), input };
            (request.encode_to_vec(), "classify", "classify")
        }
        "Regress" => {
            let request = RegressionRequest { model_spec: spec("regress"), input };
            (request.encode_to_vec(), "regress", "regress")
        }
        "MultiInference" => {
            let method_name = "tensorflow/serving/regress".to_owned();
            let tasks = vec![InferenceTask { model_spec: spec("regress"), method_name }];
            let request = MultiInferenceRequest { tasks, input };
            (request.encode_to_vec(), "multi_inference", "regress")
        }
        "ModelInfer" | "ModelStreamInfer" => {
            let contents = InferTensorContents { fp32_contents: vec![1.0], ..Default::default() };
            let input = InferInputTensor {
                name: "x".to_owned(),
                datatype: "FP32".to_owned(),
                shape: vec![1, 1],
                contents: Some(contents),
                ..InferInputTensor::default()
            };
            let request = ModelInferRequest {
                model_name: "m".to_owned(),
                inputs: vec![input],
                ..ModelInferRequest::default()
            };
            let message = Sent::Message(request.encode_to_vec());
            return EntryRequest {
                sent: message,
                protocol: "open_inference_grpc",
                method: "predict",
                signature: "serving_default",
            };
        }
        _ => panic!("{path} is a new entry point: add a message for it here"),
    };
    EntryRequest { sent: Sent::Message(message), protocol: "tfs_grpc", method, signature }
}

/// The path of every entry point of the model `m`, with a request for it.
fn entry_points(place: &Place) -> Vec<(String, EntryRequest)> {
    let api = place.server.api();
    let mut all = Vec::new();
    for (methods, path, permission) in api.routes() {
        if permission != Permission::Infer {
            continue;
        }
        let path = path.replace("{model}", "m").replace("{endpoint}", "m");
        let path = path.replace("{version}", "1").replace("{label}", "stable");
        let path = path.replace("{*rest}", "/x");
        let request = route_request(&path);
        assert!(request.is_none() || methods.contains(&"POST"), "{path} does not accept POST");
        all.extend(request.map(|request| (path, request)));
    }
    for (path, _) in api.grpc_methods().filter(|(_, needs)| *needs == Permission::Infer) {
        all.push((path.to_owned(), message(path)));
    }
    assert!(all.len() > 25, "only {} entry points", all.len());
    all
}

/// A server with all protocols and a request log. Its model `m` takes tensors and examples.
fn serve(model: &Model, timeout: &str) -> Place {
    serve_with(&[("models/m/1", model)], timeout, |_| ())
}

/// A server with all protocols and a request log, with several versions, and more settings of the
/// model.
fn serve_with(
    versions: &[(&str, &Model)],
    timeout: &str,
    change: impl FnOnce(&mut ModelSettings),
) -> Place {
    let versions: Vec<(&str, Model)> = versions
        .iter()
        .map(|&(path, model)| (path, Model { takes_examples: true, ..model.clone() }))
        .collect();
    let place = Place::configured(
        &versions,
        |settings, root| {
            settings.each.request_log = Some(root.join("logs/"));
            let mut model = ModelSettings {
                name: Some("m".to_owned()),
                path: Some(root.join("models/m")),
                labels: [("stable".to_owned(), 1)].into(),
                ..ModelSettings::default()
            };
            change(&mut model);
            settings.models.push(model);
            settings.server.sagemaker_async_output = Some(root.to_owned());
            settings.server.request_timeout = Some(timeout.parse().expect("a duration"));
            settings.server.num_batch_threads = Some(1);
            settings.server.inline_budget_micros = Some(0);
            settings.batching.batching = Some("on".to_owned());
            settings.batching.max_batch_size = Some(1);
            settings.batching.max_enqueued_batches = Some(1);
        },
        |config| {
            config.protocols.sagemaker.multi_model = Some(MultiModelConfig {
                root: config.repository.sources[0].path.clone(),
                common: config.repository.common.clone(),
                load_timeout: Duration::from_secs(60),
                ports: (8501, 9000),
                memory_limit: None,
                evict: false,
                load_on_use: false,
            });
            config.protocols.vertex = Some(VertexConfig {
                predict_route: "/vertex/predict".to_owned(),
                health_route: "/vertex/health".to_owned(),
            });
        },
    );
    place.server.wait_until_started();
    place
}

/// Sends a request. Returns the receipt of its answer, if there is one.
fn send(place: &Place, path: &str, sent: &Sent) -> Option<String> {
    let address = place.server.address;
    match sent {
        Sent::Payload(content_type, payload) => {
            let headers = [
                ("Content-Type", *content_type),
                ("X-Amzn-SageMaker-Custom-Attributes", "tfs-model-name=m"),
            ];
            request(address, "POST", path, &headers, payload).headers.remove(RECEIPT)
        }
        Sent::Form => {
            let fields = [
                ("model_name", None, &b"m"[..]),
                ("signature_name", None, b"classify"),
                ("image", Some("a.png"), b"bytes"),
            ];
            post_form(address, path, &fields).headers.remove(RECEIPT)
        }
        Sent::Message(message) => {
            let caller = Caller::connect(place.server.grpc_address()).expect("connects");
            // `Caller` needs a static path; the test may leak it.
            let path: &'static str = Box::leak(path.to_owned().into_boxed_str());
            let (response, metadata) = caller.call_for_metadata(path, message.clone()).ok()?;
            if path.ends_with("ModelStreamInfer") {
                let response = ModelStreamInferResponse::decode(&response[..]).expect("a response");
                let parameters = response.infer_response.expect("a response").parameters;
                let receipt = parameters.get("tensorserve_receipt")?.parameter_choice.clone()?;
                let ParameterChoice::StringParam(receipt) = receipt else { panic!("{receipt:?}") };
                return Some(receipt);
            }
            Some(metadata.get(RECEIPT)?.to_str().expect("text").to_owned())
        }
    }
}

/// The number of requests to this entry point that ended with `code`.
fn count(place: &Place, entry: &EntryRequest, code: &str) -> u64 {
    let EntryRequest { protocol, method, signature, .. } = entry;
    let series = format!(
        "tensorserve_requests_total{{model=\"m\",version=\"1\",signature=\"{signature}\",\
         protocol=\"{protocol}\",method=\"{method}\",code=\"{code}\"}}"
    );
    whole(place.metric(&series))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // The value of a counter.
fn whole(value: Option<f64>) -> u64 {
    value.unwrap_or(0.0) as u64
}

/// The number of logged requests.
fn logged(place: &Place) -> u64 {
    place.server.engine.flush_logs(Duration::from_secs(300));
    whole(place.metric("tensorserve_logged_requests_total{model=\"m\",result=\"written\"}"))
}

fn wait_for(what: &str, path: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(300), "{path}: not reached: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_entry_point_is_logged_and_counted_under_its_own_name() {
    let place = serve(&Model::default(), "30s");
    for (path, entry) in entry_points(&place) {
        let (counted, written) = (count(&place, &entry, "OK"), logged(&place));
        send(&place, &path, &entry.sent);
        wait_for("counted once", &path, || count(&place, &entry, "OK") == counted + 1);
        wait_for("logged once", &path, || logged(&place) == written + 1);
    }
}

#[test]
fn every_entry_point_gives_a_receipt() {
    let model = Model::default();
    let place = serve_with(&[("models/m/1", &model)], "30s", |model| {
        model.each.receipts = Some(true);
    });
    for (path, entry) in entry_points(&place) {
        let before = count(&place, &entry, "OK");
        let receipt = send(&place, &path, &entry.sent);
        // What an asynchronous invocation runs later would be in the way of the next request.
        wait_for("answered", &path, || count(&place, &entry, "OK") == before + 1);
        // Its outcome is in a file.
        if path.ends_with("/async-invocations") {
            assert_eq!(receipt, None, "{path}");
            continue;
        }
        let receipt = receipt.unwrap_or_else(|| panic!("{path}: no receipt"));
        let start = format!(
            "model=\"m\", version=\"1\", signature=\"{}\", digest=sha256:",
            entry.signature
        );
        assert!(receipt.starts_with(&start), "{path}: {receipt}");
        assert_eq!(receipt.matches("=sha256:").count(), 3, "{path}: {receipt}");
    }
}

#[test]
fn every_entry_point_gets_the_version_that_the_split_says() {
    let model = Model::default();
    let versions = [("models/m/1", &model), ("models/m/2", &model)];
    let place = serve_with(&versions, "30s", |model| {
        model.each.version_policy = Some("all".to_owned());
        model.split = [("stable".to_owned(), 1)].into();
    });
    for (path, entry) in entry_points(&place) {
        let before = count(&place, &entry, "OK");
        send(&place, &path, &entry.sent);
        wait_for("answered by version 1", &path, || count(&place, &entry, "OK") == before + 1);
    }
}

#[tokio::test]
async fn every_entry_point_sheds_load_and_keeps_deadlines() {
    let place = serve(&Model::gated(), "500ms");
    for (path, entry) in entry_points(&place) {
        let counts =
            || ["UNAVAILABLE", "DEADLINE_EXCEEDED"].map(|code| count(&place, &entry, code));
        let before = counts();
        // A run blocks the only batch thread, and the queue has room for one of three requests.
        let gate = place.fake.runs_gate();
        let running = place.enqueue(&[&[1.0]]);
        place.wait_for_runs_at_gate(1);
        // On a busy machine each of the three may come when the one before has left the queue.
        wait_for("one is shed and one is late", &path, || {
            let sent = counts().iter().sum::<u64>() + 3;
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| send(&place, &path, &entry.sent));
                }
            });
            // Those that are answered before they run would else run once the gate is open.
            wait_for("three ends", &path, || counts().iter().sum::<u64>() == sent);
            counts().iter().zip(before).all(|(now, before)| *now > before)
        });
        gate.open();
        assert_eq!(values(running.await), [1.0], "{path}: the current run is affected");
        gate.close();
    }
    // For each entry point, only the blocking run succeeded.
    assert_eq!(logged(&place), entry_points(&place).len() as u64);
}
