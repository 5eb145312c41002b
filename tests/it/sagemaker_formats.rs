//! `/invocations` beyond the container's cases: what it accepts, returns and refuses.

use serde_json::json;
use tensorserve_codec::tfrecord;

use crate::support::client::{Answer, request};
use crate::support::data;
use crate::support::fake::{Loading, Model};
use crate::support::place::Place;
use crate::support::server::TestServer;

const HALF_PLUS_THREE: (&str, &str) = ("half_plus_three", "sagemaker/models/half_plus_three");

/// Sends a body of the content type `kind`.
fn invoke(server: &TestServer, kind: &str, body: impl AsRef<[u8]>) -> Answer {
    request(server.address, "POST", "/invocations", &[("Content-Type", kind)], body)
}

/// Sends a body of the content type `kind` with the header `Accept`.
fn invoke_for(server: &TestServer, accept: &str, kind: &str, body: impl AsRef<[u8]>) -> Answer {
    let headers = [("Content-Type", kind), ("Accept", accept)];
    request(server.address, "POST", "/invocations", &headers, body)
}

fn of(model: &str) -> TestServer {
    TestServer::container(&[("m", &format!("sagemaker/synth/{model}"))], |_| {})
}

fn extended(model: (&str, &str)) -> TestServer {
    TestServer::container(&[model], |settings| {
        settings.server.sagemaker_compatibility = Some("extended".to_owned());
    })
}

/// An array as `numpy.save` writes it.
fn npy(dtype: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}");
    let header = format!("{header:117}\n");
    let mut file = b"\x93NUMPY\x01\0".to_vec();
    file.extend_from_slice(&u16::try_from(header.len()).unwrap().to_le_bytes());
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(data);
    file
}

fn doubles(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn columns_of_text_are_text() {
    let server = of("string_echo_2d");
    let body = "a,\"b,c\"\r\n\"d\"\"e\", f\n\ng\th,\u{e9}\n";
    let answer = invoke(&server, "text/csv", body);
    let want = json!({"predictions": [["a", "b,c"], ["d\"e", " f"], ["g\th", "\u{e9}"]]});
    assert_eq!(answer.json(), want, "{}", answer.text());
    let server = of("string_echo_1d");
    let answer = invoke(&server, "text/csv; charset=utf-8", "one\n\"two, three\"\n");
    assert_eq!(answer.json(), json!({"predictions": ["one", "two, three"]}));
    // Not UTF-8, but the model accepts any bytes.
    let answer = invoke(&server, "text/csv", b"\xff\xfe\n");
    assert_eq!(answer.status, 200);
    assert!(answer.body.windows(2).any(|pair| pair == b"\xff\xfe"));
}

#[test]
fn arrays_come_and_go() {
    let server = TestServer::container(&[HALF_PLUS_THREE], |_| {});
    let array = npy("<f8", "(2, 3)", &doubles(&[1.0, 2.0, 5.0, 1.0, 2.0, 5.0]));
    let answer = invoke(&server, "application/x-npy", &array);
    let want = json!({"predictions": [[3.5, 4.0, 5.5], [3.5, 4.0, 5.5]]});
    assert_eq!(answer.json(), want, "{}", answer.text());
    let integers: Vec<u8> = [1i64, 2].iter().flat_map(|value| value.to_le_bytes()).collect();
    let answer = invoke(&server, "application/x-npy", npy("<i8", "(2,)", &integers));
    assert_eq!(answer.json(), json!({"predictions": [3.5, 4.0]}));

    let answer = invoke_for(&server, "application/x-npy", "text/csv", "1,2\n");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["content-type"], "application/x-npy");
    assert!(answer.body.starts_with(b"\x93NUMPY"));
    let head = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(head.contains("'<f4'") && head.contains("(1, 2)"), "{head}");
    assert!(answer.body.ends_with(&[3.5f32.to_le_bytes(), 4.0f32.to_le_bytes()].concat()));
    // A client that also accepts JSON gets JSON, as from the container.
    let both = "application/json, application/x-npy";
    let answer = invoke_for(&server, both, "text/csv", "1,2\n");
    assert_eq!(answer.json(), json!({"predictions": [[3.5, 4.0]]}));

    let broken = invoke(&server, "application/x-npy", &array[..array.len() - 1]);
    broken.assert_refused("a cut array", 400, "npy");
    let text = npy("|S1", "(2,)", b"ab");
    let refused = invoke(&server, "application/x-npy", text);
    refused.assert_refused("text", 400, "cannot be converted to type float of input \"x\"");
    let server = of("two_inputs");
    let refused = invoke(&server, "application/x-npy", &array);
    refused.assert_refused("two inputs", 400, "has 2 inputs");
}

#[test]
fn images_go_to_the_one_input_of_bytes() {
    let image = std::fs::read(data("sagemaker/inputs/tiny16x16.jpg")).expect("an image");
    let server = of("image_bytes_len");
    for kind in ["application/x-image", "image/jpeg", "IMAGE/PNG; x=y"] {
        let answer = invoke(&server, kind, &image);
        assert_eq!(answer.status, 200, "{kind}: {}", answer.text());
        assert!(answer.text().contains("\"length\": 808"), "{kind}: {}", answer.text());
    }
    let server = of("multiply_2");
    let refused = invoke(&server, "application/x-image", &image);
    refused.assert_refused("a model of numbers", 400, "does not accept images");
}

#[test]
fn records_go_to_the_one_input_of_bytes() {
    let server = of("string_echo_1d");
    let (mut file, records) = (Vec::new(), [&b"first"[..], b"second"]);
    records.iter().for_each(|record| tfrecord::append(record, &mut file));
    let answer = invoke(&server, "application/x-tfrecord", &file);
    assert_eq!(answer.json(), json!({"predictions": ["first", "second"]}));
    // A tf.Example without a record frame: {"a": 1}.
    let example = b"\x0a\x0c\x0a\x0a\x0a\x01a\x12\x05\x1a\x03\x0a\x01\x01";
    let answer = invoke(&server, "application/x-tfexample", example);
    assert_eq!(answer.status, 200, "{}", answer.text());
    for (what, body) in [("cut", &file[..file.len() - 1]), ("garbage", b"garbage".as_slice())] {
        let refused = invoke(&server, "application/x-tfrecord", body);
        refused.assert_refused(what, 400, "record at");
    }
    let server = of("multiply_2");
    let refused = invoke(&server, "application/x-tfrecord", &file);
    refused.assert_refused("a model of numbers", 400, "does not accept tf.Example");
    let headers = [
        ("Content-Type", "application/x-npy"),
        ("X-Amzn-SageMaker-Custom-Attributes", "tfs-method=classify"),
    ];
    let refused = request(server.address, "POST", "/invocations", &headers, "x");
    refused.assert_refused("an array to classify", 400, "application/x-tfrecord");
}

#[test]
fn extended_answers_are_what_is_accepted() {
    let server = extended(HALF_PLUS_THREE);
    let body = "1,2\n3,4\n";
    let answer = |accept| invoke_for(&server, accept, "text/csv", body);
    let csv = answer("text/csv, application/json");
    assert_eq!(csv.text(), "3.5,4.0\n4.5,5.0\n");
    assert_eq!(csv.headers["content-type"], "text/csv");
    let lines = answer("application/jsonlines");
    assert_eq!(lines.text(), "[3.5,4.0]\n[4.5,5.0]\n");
    assert_eq!(lines.headers["content-type"], "application/jsonlines");
    let line = answer("application/json");
    assert_eq!(line.text(), "{    \"predictions\": [[3.5, 4.0], [4.5, 5.0]    ]}");
    let lines = invoke_for(&server, "text/csv", "application/jsonlines", "1\n2\n");
    assert_eq!(lines.text(), "3.5\n4.0\n");
    let scalar = invoke_for(&server, "text/csv", "application/json", r#"{"inputs": 1.0}"#);
    scalar.assert_refused(
        "a scalar",
        400,
        "the outputs do not all have the same number of rows (y []): accept application/json",
    );

    let server = extended(("m", "sagemaker/synth/two_inputs"));
    let rows = r#"[{"a": [1, 2, 3], "b": 4}]"#;
    let body = format!("{{\"instances\": {rows}}}");
    let csv = invoke_for(&server, "text/csv", "application/json", &body);
    assert_eq!(csv.text(), "8,10.0\n");
    let lines = invoke_for(&server, "application/jsonlines", "application/json", &body);
    assert_eq!(lines.text(), "{\"b2\":8,\"sum\":10.0}\n");
    let refused = invoke_for(&server, "application/x-npy", "application/json", &body);
    refused.assert_refused("two outputs", 400, "the model has 2 outputs");

    let server = extended(("m", "sagemaker/synth/string_echo_2d"));
    let csv = invoke_for(&server, "text/csv", "text/csv", "a,\"b,\"\"c\"\n");
    assert_eq!(csv.text(), "a,\"b,\"\"c\"\n");
    let bytes = r#"{"instances": [[{"b64": "YP9h"}]]}"#;
    let lines = invoke_for(&server, "application/jsonlines", "application/json", bytes);
    let text = String::from_utf8(lines.body).expect("valid UTF-8");
    assert_eq!(text, "[\"`\u{fffd}a\"]\n");
}

#[test]
fn values_one_after_the_other_need_no_lines() {
    let server = TestServer::container(&[HALF_PLUS_THREE], |_| {});
    for body in ["[1.0][2.0]", "[1.0] [\n2.0\n]\n", "{\"x\": [1.0]}{\"x\": [2.0]}"] {
        let answer = invoke(&server, "application/json", body);
        assert_eq!(answer.json(), json!({"predictions": [[3.5], [4.0]]}), "{body}");
    }
}

#[test]
fn refusals_say_what_is_wrong() {
    let server = TestServer::container(&[HALF_PLUS_THREE], |_| {});
    for kind in [
        "application/json",
        "application/jsonlines",
        "text/csv",
        "application/x-npy",
        "application/x-image",
        "application/x-tfrecord",
    ] {
        for body in ["", " \r\n"] {
            let refused = invoke(&server, kind, body);
            refused.assert_refused(kind, 400, "The document is empty");
        }
    }
    let json = "application/json";
    for (what, kind, body, part) in [
        ("ragged rows", "text/csv", "1,2\n3\n", "'instances' list"),
        ("text for numbers", "text/csv", "1,a\n", "not of expected type: float"),
        ("an empty field", "text/csv", "1,,3\n", "not of expected type: float"),
        ("a quote that stays open", "text/csv", "\"1,2\n3,4", "not of expected type: float"),
        ("a bad line", "application/jsonlines", "[1]\n[2,]\n[3]", "line 2"),
        ("a bad value", "application/jsonlines", "[1]\n[\"a\"]", "element: 1"),
        ("base64", json, "eyJpbnN0YW5jZXMiOiBbMS4wXX0=", "raw-in-base64-out"),
        ("two requests", json, "{\"instances\":[1]}\n{\"instances\":[2]}", "at line 2"),
    ] {
        invoke(&server, kind, body).assert_refused(what, 400, part);
    }
    let refused = invoke(&server, "application/pdf", "x");
    refused.assert_refused("a type", 415, "Unsupported Media Type: application/pdf; supported are");
    let refused = invoke(&server, "foo\"bar", "x");
    refused.assert_refused("a quote", 415, "Unsupported Media Type: foo\"bar");
    let deep = "[".repeat(1_000_000);
    let refused = invoke(&server, json, deep);
    assert_eq!(refused.status, 400);
    server.assert_pings();
}

#[test]
fn ping_tells_of_the_model() {
    let models = [HALF_PLUS_THREE, ("twice", "sagemaker/synth/multiply_2")];
    let server = TestServer::container(&models, |settings| {
        settings.server.sagemaker_default_model = Some("later".to_owned());
    });
    let ping = |attributes: &str| {
        let headers = [("X-Amzn-SageMaker-Custom-Attributes", attributes)];
        request(server.address, "GET", "/ping", &headers, "")
    };
    ping("").assert_refused("a default model that is not there", 502, "\"later\"");
    assert_eq!(ping("tfs-model-name=twice").status, 200);
    ping("tfs-model-name=a/b").assert_refused("no name", 502, "invalid tfs-model-name");
    let answer = invoke(&server, "application/json", "[1.0]");
    answer.assert_refused("the default model", 404, "Latest(later)");
}

#[test]
fn ping_waits_for_every_version_during_the_start() {
    let slow = Model { loading: Loading::Gated, ..Model::default() };
    let models = [("models/m/1", Model::default()), ("models/m/2", slow)];
    let place = Place::with(&models, |settings, _| {
        settings.each.version_policy = Some("all".to_owned());
    });
    place.wait_for_state("m", 1, "AVAILABLE");
    place.wait_for_load_at_gate();
    assert_eq!(place.predict("m", "[[1]]").status, 200);
    place.server.get("/ping").assert_refused("the newest version loads", 502, "still loading");
    place.fake.loads_gate().open();
    place.wait_for_state("m", 2, "AVAILABLE");
    place.server.wait_until("the start", |server| server.get("/ping").status == 200);
    // Later versions do not take the server out of service.
    place.fake.loads_gate().close();
    place.write("models/m/3", &Model { loading: Loading::Gated, ..Model::default() });
    place.wait_for_load_at_gate();
    assert_eq!(place.server.get("/ping").status, 200);
    place.fake.loads_gate().open();
}

#[test]
fn the_2_20_image_is_a_switch_away() {
    let server = TestServer::container(&[HALF_PLUS_THREE], |settings| {
        settings.server.sagemaker_compatibility = Some("2.20".to_owned());
    });
    let answer = invoke_for(&server, "application/jsonlines", "application/json", "[1.0]");
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.text(), "{    \"predictions\": [[3.5]    ]}");
}
