//! Receipts: what an answer says of the version that made it, of its inputs and of its outputs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use prost::Message;
use ring::digest::{SHA256, digest};
use serde_json::json;
use tensorserve::config::Settings;
use tensorserve_codec::npy;
use tensorserve_proto::inference::ModelInferRequest;
use tensorserve_proto::inference::model_infer_request::InferInputTensor;
use tensorserve_proto::serving::input::Kind;
use tensorserve_proto::serving::{
    ExampleList, InferenceTask, Input, ModelSpec, MultiInferenceRequest,
};
use tensorserve_proto::{Example, Form, tensor_to_proto};
use tensorserve_tensor::{Shape, Tensor, aligned_vec};

use crate::support::client::{Answer, request};
use crate::support::fake::{Answer as FakeAnswer, Model};
use crate::support::grpc::{Caller, PREDICT, half_plus_two};
use crate::support::place::Place;
use crate::support::project;
use crate::support::server::TestServer;

pub const RECEIPT: &str = "x-tensorserve-receipt";

fn with_receipts(settings: &mut Settings) {
    settings.each.receipts = Some(true);
}

/// The members of a receipt.
fn members(receipt: &str) -> BTreeMap<String, String> {
    let member = |member: &str| {
        let (key, value) = member.split_once('=').expect(receipt);
        (key.to_owned(), value.trim_matches('"').to_owned())
    };
    receipt.split(", ").map(member).collect()
}

/// The members of the receipt of a successful answer.
fn receipt(answer: &Answer) -> BTreeMap<String, String> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    members(answer.headers.get(RECEIPT).unwrap_or_else(|| panic!("no receipt: {answer:?}")))
}

fn hash(parts: &[&[u8]]) -> String {
    let hash = digest(&SHA256, &parts.concat());
    let digits: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// The hash of a vector of floats of this name, as the documentation has it.
fn hash_of_floats(name: &str, values: &[f32]) -> String {
    let number = |number: usize| (number as u64).to_le_bytes();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    hash(&[
        &number(name.len()),
        name.as_bytes(),
        &number("float32".len()),
        b"float32",
        &number(1),
        &number(values.len()),
        &bytes,
    ])
}

fn post(server: &TestServer, path: &str, kind: &str, body: impl AsRef<[u8]>) -> Answer {
    request(server.address, "POST", path, &[("Content-Type", kind)], body)
}

#[test]
fn the_same_tensors_have_the_same_receipt_over_every_protocol() {
    let folder = project("models/half_plus_two");
    let server = TestServer::with(&folder, with_receipts);
    let json = "application/json";
    let predict = "/v1/models/half_plus_two:predict";
    let first = receipt(&post(&server, predict, json, r#"{"instances": [1, 2.0, 5]}"#));
    let expected: BTreeMap<String, String> = [
        ("model", "half_plus_two".to_owned()),
        ("version", "1".to_owned()),
        ("signature", "serving_default".to_owned()),
        ("digest", sha256sum(&folder.join("1"))),
        ("input", hash_of_floats("x", &[1.0, 2.0, 5.0])),
        ("output", hash_of_floats("y", &[2.5, 3.0, 4.5])),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    assert_eq!(first, expected);

    let x = floats(&[1.0, 2.0, 5.0]);
    let input = json!({"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 5]});
    let raw = json!({"name": "x", "shape": [3], "datatype": "FP32",
                     "parameters": {"binary_data_size": 12}});
    let head = json!({"inputs": [raw], "parameters": {"binary_data_output": true}}).to_string();
    let length = head.len().to_string();
    let raw_headers = [
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", length.as_str()),
    ];
    let raw = [head.as_bytes(), x.bytes()].concat();
    let infer = "/v2/models/half_plus_two/infer";
    let protobuf = half_plus_two().encode_to_vec();
    let array = npy::write(&x, 1 << 20).expect("an array");
    let simple = r#"{"model_name": "half_plus_two", "data": {"x": [1, 2, 5]}}"#;
    for (what, answer) in [
        ("columns", post(&server, predict, json, r#"{"inputs": {"x": [1, 2, 5]}}"#)),
        ("npy", post(&server, predict, "application/x-npy", array)),
        ("protobuf", post(&server, predict, "application/x-protobuf", &protobuf)),
        ("v2", post(&server, infer, json, json!({ "inputs": [input] }).to_string())),
        ("v2 raw", request(server.address, "POST", infer, &raw_headers, raw)),
        ("invocations", post(&server, "/invocations", json, r#"{"instances": [1, 2, 5]}"#)),
        ("simple", post(&server, "/", json, simple)),
    ] {
        assert_eq!(receipt(&answer), first, "{what}");
    }
    let caller = Caller::connect(server.grpc_address()).expect("connects");
    let over_grpc = |path, message| {
        let (_, metadata) = caller.call_for_metadata(path, message).expect("an answer");
        members(metadata.get(RECEIPT).expect("a receipt").to_str().expect("text"))
    };
    assert_eq!(over_grpc(PREDICT, protobuf), first);
    let request = ModelInferRequest {
        model_name: "half_plus_two".to_owned(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![3],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![x.bytes().to_vec().into()],
        ..ModelInferRequest::default()
    };
    let path = "/inference.GRPCInferenceService/ModelInfer";
    assert_eq!(over_grpc(path, request.encode_to_vec()), first);

    // The next number above 5.
    let body = r#"{"instances": [1, 2, 5.0000005]}"#;
    let other = receipt(&post(&server, predict, json, body));
    assert_eq!(other["digest"], first["digest"]);
    assert_ne!((&other["input"], &other["output"]), (&first["input"], &first["output"]));
    // The same numbers as a column have another shape.
    let body = r#"{"instances": [[1], [2], [5]]}"#;
    let column = receipt(&post(&server, predict, json, body));
    assert_ne!(column["input"], first["input"]);
}

fn floats(values: &[f32]) -> Tensor {
    let mut all = aligned_vec(values.len());
    all.extend_from_slice(values);
    Tensor::from_vec(Shape::vector(values.len()), all).expect("a tensor")
}

/// The digest of a version as a shell computes it.
fn sha256sum(folder: &Path) -> String {
    let list = "find -L . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum";
    let shell =
        Command::new("sh").current_dir(folder).args(["-c", list]).output().expect("a shell");
    assert!(shell.status.success() && !shell.stdout.is_empty(), "{shell:?}");
    hash(&[&shell.stdout])
}

#[test]
fn only_answers_of_models_that_want_it_have_one() {
    let predict = |place: &Place, body: &str| {
        let answer = place.predict("m", body);
        (answer.status, answer.headers.contains_key(RECEIPT))
    };
    let off = Place::of(&Model::default(), |_| ());
    assert_eq!(predict(&off, "[[1, 2]]"), (200, false));
    let model = Model { fails_on: Some(7.0), ..Model::default() };
    let on = Place::of(&model, with_receipts);
    assert_eq!(predict(&on, "[[1, 2]]"), (200, true));
    // Nothing ran, or the run failed.
    assert_eq!(predict(&on, "\"x\""), (400, false));
    let (status, has_receipt) = predict(&on, "[[7, 2]]");
    assert!(status >= 400 && !has_receipt, "{status}");
    for path in ["/v1/models/m", "/readyz", "/metrics", "/v1/models/m/metadata"] {
        assert!(!on.server.get(path).headers.contains_key(RECEIPT), "{path}");
    }
    // A number on which the run fails.
    let mut request = half_plus_two();
    request.inputs.insert("x".to_owned(), tensor_to_proto(&floats(&[7.0]), Form::Content));
    request.model_spec = Some(ModelSpec { name: "m".to_owned(), ..ModelSpec::default() });
    let caller = Caller::connect(on.server.grpc_address()).expect("connects");
    let status = caller.call(PREDICT, request.encode_to_vec()).expect_err("no answer");
    assert!(status.metadata().get(RECEIPT).is_none(), "{status:?}");
}

#[test]
fn the_digest_is_of_what_the_files_contain() {
    let root = tempfile::tempdir().expect("a directory");
    let copy = |name: &str| {
        let folder = root.path().join(name);
        let model = project("models/half_plus_two");
        let copied = Command::new("cp").arg("-r").args([&model, &folder]).status().expect("cp");
        assert!(copied.success());
        folder
    };
    let digest = |folder: &Path| {
        let server = TestServer::with(folder, with_receipts);
        let name = folder.file_name().expect("a name").to_str().expect("text").to_owned();
        let body = r#"{"instances": [1]}"#;
        let path = format!("/v1/models/{name}:predict");
        receipt(&post(&server, &path, "application/json", body))["digest"].clone()
    };
    let (first, second) = (copy("first"), copy("second"));
    let of_first = digest(&first);
    let graph = fs::File::options().append(true).open(second.join("1/saved_model.pb"));
    let earlier = SystemTime::now() - Duration::from_secs(7200);
    graph.expect("a graph").set_modified(earlier).expect("set");
    assert_eq!(digest(&second), of_first);
    // An asset that the model does not even read.
    fs::create_dir_all(second.join("1/assets")).expect("a directory");
    fs::write(second.join("1/assets/words.txt"), "a\n").expect("written");
    let with_asset = digest(&second);
    assert_ne!(with_asset, of_first);
    assert_eq!(with_asset, sha256sum(&second.join("1")));
    fs::write(second.join("1/assets/words.txt"), "b\n").expect("written");
    assert_ne!(digest(&second), with_asset);
}

#[test]
fn requests_of_one_batch_have_hashes_of_their_own() {
    let model = Model { answer: FakeAnswer::Echo, ..Model::gated() };
    let place = Place::of(&model, |settings| {
        with_receipts(settings);
        settings.server.num_batch_threads = Some(1);
        settings.server.inline_budget_micros = Some(0);
        settings.each.warm_up = Some(false);
        settings.batching.batching = Some("on".to_owned());
    });
    let alone = |number: i32| {
        let answer = place.predict("m", &format!("[[{number}, 0.5]]"));
        (number, receipt(&answer))
    };
    let together: Vec<_> = thread::scope(|scope| {
        let alone = &alone;
        let mut asking = vec![scope.spawn(move || alone(0))];
        place.wait_for_runs_at_gate(1);
        asking.extend((1..=4).map(|number| scope.spawn(move || alone(number))));
        place
            .server
            .wait_until("all are queued", |server| server.engine.metrics().in_flight_count() == 5);
        // A request counts as in flight a moment before it is queued.
        thread::sleep(Duration::from_millis(50));
        place.fake.runs_gate().open();
        asking.into_iter().map(|asked| asked.join().expect("an answer")).collect()
    });
    assert!(place.fake.rows().iter().any(|rows| *rows > 1), "{:?}", place.fake.rows());
    for (number, receipt) in together {
        assert_eq!(receipt, alone(number).1, "{number}");
        let others = (0..=4).filter(|other| *other != number);
        others.for_each(|other| assert_ne!(receipt["input"], alone(other).1["input"]));
    }
}

#[test]
fn several_signatures_have_one_receipt() {
    let model = Model { takes_examples: true, ..Model::default() };
    let place = Place::of(&model, with_receipts);
    let caller = Caller::connect(place.server.grpc_address()).expect("connects");
    let task = |method: &str| InferenceTask {
        model_spec: Some(ModelSpec {
            name: "m".to_owned(),
            signature_name: method.to_owned(),
            version_choice: None,
        }),
        method_name: format!("tensorflow/serving/{method}"),
    };
    let ask = |methods: &[&str]| {
        let examples = vec![Example::default()];
        let input = Some(Input { kind: Some(Kind::ExampleList(ExampleList { examples })) });
        let tasks = methods.iter().map(|method| task(method)).collect();
        let message = MultiInferenceRequest { tasks, input }.encode_to_vec();
        let path = "/tensorflow.serving.PredictionService/MultiInference";
        let (_, metadata) = caller.call_for_metadata(path, message).expect("an answer");
        members(metadata.get(RECEIPT).expect("a receipt").to_str().expect("text"))
    };
    let (one, both) = (ask(&["regress"]), ask(&["regress", "classify"]));
    assert_eq!(one["signature"], "regress");
    assert!(!both.contains_key("signature"), "{both:?}");
    assert_ne!(one["input"], both["input"]);
    // The order of the tasks does not matter.
    assert_eq!(ask(&["classify", "regress"]), both);
}

#[test]
fn outputs_that_were_not_asked_for_do_not_count() {
    let server = TestServer::with(&project("models/text_normalizer"), with_receipts);
    let ask = |outputs: &[&str]| {
        let text = json!({"name": "text", "shape": [2], "datatype": "BYTES", "data": ["A b", ""]});
        let mut body = json!({ "inputs": [text] });
        if !outputs.is_empty() {
            body["outputs"] = outputs.iter().map(|name| json!({ "name": name })).collect();
        }
        let path = "/v2/models/text_normalizer/infer";
        receipt(&post(&server, path, "application/json", body.to_string()))
    };
    let (all, one) = (ask(&[]), ask(&["hash"]));
    assert_eq!(all["input"], one["input"]);
    assert_ne!(all["output"], one["output"]);
    // Neither does the order.
    assert_eq!(ask(&["token_count", "normalized", "hash"]), all);
    let number = |number: u64| number.to_le_bytes();
    let texts = [&number(4)[..], b"text", &number(6), b"string", &number(1), &number(2)].concat();
    let texts = [&texts[..], &number(3), b"A b", &number(0)];
    assert_eq!(all["input"], hash(&texts));
}
