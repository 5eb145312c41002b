//! The API of the SageMaker service: `/endpoints/NAME/…`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tensorserve::config::units::CommaSeparated;

use crate::support::client::{Answer, request};
use crate::support::data;
use crate::support::server::TestServer;

const HALF_PLUS_THREE: (&str, &str) = ("half_plus_three", "sagemaker/models/half_plus_three");
const BODY: &str = r#"{"instances": [1.0, 2.0, 5.0]}"#;
const JSON: (&str, &str) = ("Content-Type", "application/json");

fn call(server: &TestServer, what: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    request(server.address, "POST", &format!("/endpoints/{what}"), headers, body)
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.get(name).map(String::as_str)
}

/// Asserts that clients raise the error `kind` with `text` in its message.
fn assert_raises(answer: &Answer, status: u16, kind: &str, text: &str) -> Value {
    assert_eq!(answer.status, status, "{}", answer.text());
    assert_eq!(header(answer, "x-amzn-errortype"), Some(kind));
    assert_eq!(header(answer, "content-type"), Some("application/json"));
    assert_eq!(header(answer, "x-amzn-requestid").map(str::len), Some(36));
    let json = answer.json();
    let message = json["Message"].as_str().expect("a message");
    assert!(message.contains(text), "{text:?} is not in {message:?}");
    json
}

#[test]
fn an_endpoint_answers_whatever_its_name() {
    let server = TestServer::container(&[HALF_PLUS_THREE], |_| {});
    for name in ["my-endpoint", "", "a%2Fb", "bad_name%21"] {
        // Clients omit the content type unless the caller sets it.
        let answer = call(&server, &format!("{name}/invocations"), &[], BODY);
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        assert_eq!(answer.json(), json!({"predictions": [3.5, 4.0, 5.5]}));
        assert_eq!(header(&answer, "x-amzn-invoked-production-variant"), Some("AllTraffic"));
        assert_eq!(header(&answer, "x-amzn-requestid").map(str::len), Some(36));
        assert_eq!(header(&answer, "content-encoding"), None);
    }
}

#[test]
fn a_request_has_one_id() {
    let server = TestServer::container(&[HALF_PLUS_THREE], |_| {});
    let ids = |headers: &[(&str, &str)], body| {
        let answer = call(&server, "e/invocations", headers, body);
        ["x-request-id", "x-amzn-requestid"].map(|name| header(&answer, name).map(str::to_owned))
    };
    for body in [BODY, "no JSON"] {
        let [ours, amazons] = ids(&[], body);
        assert_eq!(ours.as_deref().map(str::len), Some(36));
        assert_eq!(ours, amazons);
        assert_ne!(ours, ids(&[], body)[0]);
        let brought = Some("of-the-client".to_owned());
        let [ours, amazons] = ids(&[("X-Request-Id", "of-the-client")], body);
        assert_eq!((ours, amazons), (brought.clone(), brought));
    }
}

#[test]
fn a_models_failure_is_a_model_error() {
    let server = TestServer::container(&[HALF_PLUS_THREE], |_| {});
    let answer = call(&server, "e/invocations", &[JSON], r#"{"instances": ["a"]}"#);
    let start = "Received client error (400) from primary with message \"{";
    let json = assert_raises(&answer, 424, "ModelError", start);
    assert_eq!(json["OriginalStatusCode"], 400);
    assert_eq!(json["ErrorCode"], "CLIENT_ERROR_FROM_MODEL");
    let original: Value =
        serde_json::from_str(json["OriginalMessage"].as_str().expect("text")).expect("JSON");
    let error = original["error"].as_str().expect("an error");
    assert!(error.contains("is not of expected type: float"), "{error}");

    let headers = [JSON, ("X-Amzn-SageMaker-Target-Model", "nope.tar.gz")];
    let json =
        assert_raises(&call(&server, "e/invocations", &headers, BODY), 424, "ModelError", "404");
    assert!(json["OriginalMessage"].as_str().is_some_and(|text| text.contains("Latest(nope)")));

    let headers = [("Content-Type", "application/pdf")];
    let json =
        assert_raises(&call(&server, "e/invocations", &headers, "x"), 424, "ModelError", "415");
    assert_eq!(json["OriginalStatusCode"], 415);

    let long = format!("{{\"instances\": [\"{}\"]}}", "é".repeat(3000));
    let json =
        assert_raises(&call(&server, "e/invocations", &[JSON], &long), 424, "ModelError", "");
    assert!(json["OriginalMessage"].as_str().expect("text").len() <= 2048);
}

#[test]
fn calls_that_are_none_are_refused() {
    let server = TestServer::container(&[HALF_PLUS_THREE], |settings| {
        settings.server.max_body_bytes = Some("1000".parse().expect("a size"));
    });
    let answer = call(&server, "e/nothing", &[JSON], BODY);
    assert_raises(&answer, 404, "UnknownOperationException", "/endpoints/e/nothing");
    let answer = server.get("/endpoints/e/invocations");
    assert_raises(&answer, 405, "ValidationError", "POST");
    let answer = call(&server, "e/invocations", &[JSON], &" ".repeat(1001));
    assert_raises(&answer, 413, "ValidationError", "larger than 1000 bytes");
    let answer = call(&server, "e/async-invocations", &[JSON], BODY);
    assert_raises(&answer, 400, "ValidationError", "sagemaker_async_output");
}

#[test]
fn of_several_models_the_target_is_meant_or_the_endpoint() {
    let models = [HALF_PLUS_THREE, ("twice", "sagemaker/synth/multiply_2")];
    let server = TestServer::container(&models, |_| {});
    let body = r#"{"instances": [[2.0]]}"#;
    let answer = call(&server, "e/invocations", &[JSON], body);
    let named = ["half_plus_three", "twice", "tfs-model-name"];
    let json = assert_raises(&answer, 424, "ModelError", "does not name a model");
    for part in named {
        assert!(json["OriginalMessage"].as_str().is_some_and(|text| text.contains(part)), "{json}");
    }
    let twice = json!({"predictions": [[4.0]]});
    assert_eq!(call(&server, "twice/invocations", &[JSON], body).json(), twice);
    let target = [JSON, ("X-Amzn-SageMaker-Target-Model", "twice.tar.gz")];
    assert_eq!(call(&server, "half_plus_three/invocations", &target, body).json(), twice);
    // `/invocations` ignores the header, as the container does.
    let answer = request(server.address, "POST", "/invocations", &target, body);
    assert_eq!(answer.status, 400, "{}", answer.text());
}

/// The payloads of an event stream.
fn events(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    while !stream.is_empty() {
        let number = |at: usize| u32::from_be_bytes(stream[at..at + 4].try_into().unwrap());
        let (length, headers) = (number(0) as usize, number(4) as usize);
        let text = String::from_utf8_lossy(&stream[12..12 + headers]).into_owned();
        assert!(text.contains(":event-type") && text.contains("PayloadPart"), "{text}");
        payloads.push(stream[12 + headers..length - 4].to_vec());
        stream = &stream[length..];
    }
    payloads
}

#[test]
fn a_stream_is_one_event() {
    let server = TestServer::container(&[HALF_PLUS_THREE], |_| {});
    let headers = [JSON, ("X-Amzn-SageMaker-Accept", "application/json")];
    let answer = call(&server, "e/invocations-response-stream", &headers, BODY);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let kind = header(&answer, "content-type");
    assert_eq!(kind, Some("application/vnd.amazon.eventstream"));
    assert_eq!(header(&answer, "x-amzn-sagemaker-content-type"), Some("application/json"));
    let line = b"{    \"predictions\": [3.5, 4.0, 5.5    ]}".to_vec();
    assert_eq!(events(&answer.body), [line]);
    let answer = call(&server, "e/invocations-response-stream", &headers, "bad");
    assert_raises(&answer, 424, "ModelError", "400");
}

/// The content of the file at `location`, once it exists.
fn outcome(location: &str) -> String {
    let path = Path::new(location.strip_prefix("file://").expect("a file"));
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < Duration::from_secs(300), "{location} does not appear");
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::read_to_string(path).expect("text")
}

#[test]
fn asynchronous_calls_write_files() {
    let root = tempfile::tempdir().expect("temporary directory");
    let (input, output) = (root.path().join("in"), root.path().join("out"));
    fs::create_dir(&input).expect("directory");
    fs::create_dir(&output).expect("directory");
    fs::write(input.join("good.csv"), "1,2\n3,4\n").expect("file");
    fs::write(input.join("bad.csv"), "a,b\n").expect("file");
    let server = TestServer::container(&[HALF_PLUS_THREE], |settings| {
        settings.server.sagemaker_async_input = Some(CommaSeparated(vec![input.clone()]));
        settings.server.sagemaker_async_output = Some(output.clone());
    });
    let later = |file: &str, body: &str| {
        let location = format!("file://{}", input.join(file).display());
        let mut headers = vec![
            ("X-Amzn-SageMaker-Content-Type", "text/csv"),
            ("X-Amzn-SageMaker-Inference-Id", "my id"),
        ];
        if !file.is_empty() {
            headers.push(("X-Amzn-SageMaker-InputLocation", &location));
        }
        call(&server, "e/async-invocations", &headers, body)
    };
    for (file, body) in [("good.csv", ""), ("", "1,2\n3,4\n")] {
        let answer = later(file, body);
        assert_eq!(answer.status, 202, "{}", answer.text());
        assert_eq!(answer.json(), json!({"InferenceId": "my id"}));
        let location = header(&answer, "x-amzn-sagemaker-outputlocation").expect("a location");
        let json: Value = serde_json::from_str(&outcome(location)).expect("JSON");
        assert_eq!(json, json!({"predictions": [[3.5, 4.0], [4.5, 5.0]]}));
    }
    let answer = later("bad.csv", "");
    let location = header(&answer, "x-amzn-sagemaker-failurelocation").expect("a location");
    assert!(outcome(location).contains("is not of expected type: float"));
    assert_raises(&later("good.csv", "x"), 400, "ValidationError", "both");
    assert_raises(&later("", ""), 400, "ValidationError", "neither");
}

#[test]
fn asynchronous_calls_read_only_what_they_may() {
    let root = tempfile::tempdir().expect("temporary directory");
    let (input, output) = (root.path().join("in"), root.path().join("out"));
    fs::create_dir(&input).expect("directory");
    let secret = root.path().join("secret");
    fs::write(&secret, "[1]").expect("file");
    std::os::unix::fs::symlink(&secret, input.join("link")).expect("a link");
    let server = TestServer::container(&[HALF_PLUS_THREE], |settings| {
        settings.server.sagemaker_async_input = Some(CommaSeparated(vec![input.clone()]));
        settings.server.sagemaker_async_output = Some(output);
    });
    let file = |path: &Path| format!("file://{}", path.display());
    for location in [
        file(&secret),
        file(&input.join("../secret")),
        file(&input.join("link")),
        file(&input),
        file(&input.join("missing")),
        file(&data("sagemaker/inputs/test.csv")),
        "file://good.csv".to_owned(),
        "s3://bucket/key".to_owned(),
        "/etc/passwd".to_owned(),
    ] {
        let headers = [("X-Amzn-SageMaker-InputLocation", location.as_str())];
        let answer = call(&server, "e/async-invocations", &headers, "");
        assert_raises(&answer, 400, "ValidationError", "InputLocation");
    }
}

#[test]
fn a_stop_waits_for_what_was_promised() {
    let root = tempfile::tempdir().expect("temporary directory");
    let output = root.path().to_owned();
    let server = TestServer::container(&[HALF_PLUS_THREE], |settings| {
        settings.server.sagemaker_async_output = Some(output);
    });
    let answers: Vec<Answer> =
        (0..50).map(|_| call(&server, "e/async-invocations", &[], BODY)).collect();
    server.stop();
    for answer in answers {
        let location = header(&answer, "x-amzn-sagemaker-outputlocation").expect("a location");
        let path = Path::new(location.strip_prefix("file://").expect("a file"));
        assert!(path.exists(), "{location} was not written");
    }
}
