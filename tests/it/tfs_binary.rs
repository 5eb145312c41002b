//! Additions to TensorFlow Serving's `:predict`: NumPy arrays, protobuf messages, and JSON for half
//! precision. A server that replaces TensorFlow Serving has none of them.

use prost::Message;
use serde_json::json;
use tensorserve_codec::npy;
use tensorserve_proto::serving::model_spec::VersionChoice;
use tensorserve_proto::serving::{ModelSpec, PredictRequest, PredictResponse};
use tensorserve_proto::{Form, tensor_from_proto, tensor_to_proto};
use tensorserve_tensor::{Element, Shape, StringsBuilder, Tensor, aligned_vec};

use crate::support::client::{Answer, request};
use crate::support::server::{TestServer, config, settings};
use crate::support::{data, project};

const NPY: (&str, &str) = ("Content-Type", "application/x-npy");
const WANT_NPY: (&str, &str) = ("Accept", "application/x-npy");

fn serve(exact: bool) -> TestServer {
    let mut settings = settings();
    for name in ["half_plus_two", "recommender", "text_normalizer"] {
        settings.paths.push(project("models").join(name));
    }
    for name in ["echo_float16", "echo_bfloat16", "echo_string"] {
        settings.paths.push(data("tensorflow-serving/generated").join(name));
    }
    let mut config = config(settings);
    if exact {
        config.answer_as_tfs();
    }
    let server = TestServer::start_configured(&config);
    server.wait_until_started();
    server
}

fn vector<T: Element>(values: &[T]) -> Tensor {
    let mut all = aligned_vec(values.len());
    all.extend_from_slice(values);
    Tensor::from_vec(Shape::vector(values.len()), all).expect("a matching shape")
}

fn npy_of(tensor: &Tensor) -> Vec<u8> {
    npy::write(tensor, 1 << 20).expect("a dtype of npy")
}

fn predict(server: &TestServer, model: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let path = format!("/v1/models/{model}:predict");
    request(server.address, "POST", &path, headers, body)
}

fn assert_npy(answer: &Answer) -> Tensor {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.headers["content-type"], "application/x-npy");
    npy::read(&answer.body, 1 << 20).expect("an array")
}

#[test]
fn arrays_go_in_and_out() {
    let server = serve(false);
    let body = npy_of(&vector(&[1.0_f32, 2.0, 5.0]));
    let answer = predict(&server, "half_plus_two", &[NPY], &body);
    assert_eq!(answer.json(), json!({"outputs": [2.5, 3.0, 4.5]}));
    let answer = predict(&server, "half_plus_two/versions/1", &[NPY, WANT_NPY], &body);
    assert_eq!(assert_npy(&answer).values::<f32>(), Some(&[2.5, 3.0, 4.5][..]));
    let text = br#"{"instances": [1.0, 2.0]}"#;
    let answer = predict(&server, "half_plus_two", &[WANT_NPY], text);
    assert_eq!(assert_npy(&answer).values::<f32>(), Some(&[2.5, 3.0][..]));

    let mut words = StringsBuilder::default();
    [&b"a"[..], b"", b"\xff\x00b"].iter().for_each(|word| words.push(word));
    let words = Tensor::from_strings(Shape::vector(3), words).expect("three");
    let answer = predict(&server, "echo_string", &[NPY, WANT_NPY], &npy_of(&words));
    let back = assert_npy(&answer);
    assert!(back.strings().expect("strings").iter().eq(words.strings().expect("strings").iter()));
}

#[test]
fn arrays_that_do_not_fit_are_refused() {
    let server = serve(false);
    let floats = npy_of(&vector(&[1.0_f32]));
    let refused = |model: &str, headers: &[(&str, &str)], body: &[u8], status, why: &str| {
        predict(&server, model, headers, body).assert_refused(why, status, why);
    };
    refused("half_plus_two", &[NPY], &npy_of(&vector(&[1.0_f64])), 400, "double");
    refused("half_plus_two", &[NPY], b"{\"instances\": [1.0]}", 400, "is not an npy array");
    refused("half_plus_two", &[NPY], &floats[..floats.len() - 1], 400, "3 bytes of data");
    refused("recommender", &[NPY], &floats, 400, "has 3 inputs");
    let text = br#"{"instances": ["a"]}"#;
    refused("text_normalizer", &[WANT_NPY], text, 400, "3 outputs");
    refused("nothing", &[NPY], &floats, 404, "Servable not found");
    // TensorFlow Serving ignores these headers.
    let exact = serve(true);
    let answer = predict(&exact, "half_plus_two", &[NPY], &floats);
    answer.assert_refused("as TensorFlow Serving", 400, "JSON Parse error");
    let answer = predict(&exact, "half_plus_two", &[WANT_NPY], br#"{"instances": [1.0]}"#);
    assert_eq!(answer.json(), json!({"predictions": [2.5]}));
}

fn message(name: &str, version: Option<i64>, form: Form) -> PredictRequest {
    let spec = ModelSpec {
        name: name.to_owned(),
        version_choice: version.map(VersionChoice::Version),
        signature_name: String::new(),
    };
    let input = tensor_to_proto(&vector(&[1.0_f32, 2.0]), form);
    PredictRequest {
        model_spec: Some(spec),
        inputs: [("x".to_owned(), input)].into(),
        output_filter: Vec::new(),
    }
}

#[test]
fn messages_are_answered_with_messages() {
    let server = serve(false);
    let two_kinds = ["application/x-protobuf", "application/protobuf"];
    for (kind, form) in two_kinds.into_iter().zip([Form::Values, Form::Content]) {
        for name in ["half_plus_two", ""] {
            let body = message(name, None, form).encode_to_vec();
            let answer = predict(&server, "half_plus_two", &[("Content-Type", kind)], &body);
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.headers["content-type"], kind);
            let response = PredictResponse::decode(&answer.body[..]).expect("a message");
            let spec = response.model_spec.expect("a spec");
            assert_eq!(
                (spec.name.as_str(), spec.version_choice),
                ("half_plus_two", Some(VersionChoice::Version(1)),)
            );
            let output = &response.outputs["y"];
            assert_eq!(output.tensor_content.is_empty(), form == Form::Values);
            let output = tensor_from_proto(output).expect("a tensor");
            assert_eq!(output.values::<f32>(), Some(&[2.5, 3.0][..]));
        }
    }
}

#[test]
fn messages_that_contradict_their_path_are_refused() {
    let server = serve(false);
    let kind = [("Content-Type", "application/x-protobuf")];
    let refused = |model: &str, message: &PredictRequest, status, why: &str| {
        let answer = predict(&server, model, &kind, &message.encode_to_vec());
        answer.assert_refused(why, status, why);
    };
    let plain = |name, version| message(name, version, Form::Values);
    refused("half_plus_two", &plain("recommender", None), 400, "path");
    refused("half_plus_two/versions/1", &plain("", Some(2)), 400, "another version");
    refused("half_plus_two", &plain("", Some(2)), 404, "Servable not found");
    let mut none = plain("", None);
    none.inputs.clear();
    refused("half_plus_two", &none, 400, "input size does not match");
    let answer = predict(&server, "half_plus_two", &kind, b"{\"instances\": [1.0]}");
    answer.assert_refused("JSON", 400, "is not a valid tensorflow.serving.PredictRequest");
    let half = plain("", None).encode_to_vec();
    let answer = predict(&server, "half_plus_two", &kind, &half[..half.len() - 1]);
    answer.assert_refused("half", 400, "is not a valid tensorflow.serving.PredictRequest");
}

#[test]
fn half_precision_goes_through_json() {
    let server = serve(false);
    for model in ["echo_float16", "echo_bfloat16"] {
        for (body, answer) in [
            (r#"{"instances": [1.0, -2.5]}"#, json!({"predictions": [1.0, -2.5]})),
            (r#"{"inputs": [0.5]}"#, json!({"outputs": [0.5]})),
        ] {
            let got = predict(&server, model, &[], body.as_bytes());
            assert_eq!(got.status, 200, "{model}: {}", got.text());
            assert_eq!(got.json(), answer, "{model}");
        }
    }
    // NumPy has no bfloat16; float32 represents its values exactly.
    let answer = predict(&server, "echo_bfloat16", &[WANT_NPY], br#"{"inputs": [0.5]}"#);
    assert_eq!(assert_npy(&answer).values::<f32>(), Some(&[0.5][..]));
}
