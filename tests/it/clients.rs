//! The API of generated clients. `tests/clients/generated` runs the clients themselves.

use std::fs;

use serde_json::{Value, json};

use crate::support::client::{Answer, Client};
use crate::support::server::{TestServer, settings};
use crate::support::{data, link, project};

const MODELS: &str = "simple-tensorflow-serving/models";

/// Sends a GET request with the given `Host` header and the header lines `more`.
fn get(server: &TestServer, host: &str, more: &str, path: &str) -> Answer {
    let mut client = Client::connect(server.address).expect("connects");
    let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n");
    client.send(head.as_bytes()).expect("sent");
    client.answer("GET").expect("an answer")
}

fn text(server: &TestServer, path: &str) -> String {
    let answer = get(server, "127.0.0.1:8500", "", path);
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.text()
}

#[test]
fn every_case_of_gen_client_passes() {
    let root = tempfile::tempdir().expect("temporary directory");
    let model = data(MODELS).join("tensorflow_template_application_model");
    for version in ["1", "2"] {
        link(&model.join(version), &root.path().join("default").join(version));
    }
    let mut settings = settings();
    settings.paths.push(root.path().to_owned());
    let server = TestServer::start(settings);
    server.wait_until_started();
    let cases = fs::read_to_string(project("tests/cases/simple-tensorflow-serving.json"));
    let cases: Value = serde_json::from_str(&cases.expect("cases")).expect("JSON");
    let mut passed = 0;
    for case in cases["cases"].as_array().expect("a list") {
        let id = case["id"].as_str().expect("a name");
        if !id.starts_with("gen-client-") {
            continue;
        }
        let got = text(&server, case["path"].as_str().expect("a path"));
        for part in case["expect_contains"].as_array().into_iter().flatten() {
            let part = part.as_str().expect("text");
            assert!(got.contains(part), "{id}: {part:?} is not in {got}");
        }
        if let Some(body) = case.get("expect_body") {
            let got: Value = serde_json::from_str(&got).expect("JSON");
            assert_eq!(&got, body, "{id}");
        }
        passed += 1;
    }
    assert_eq!(passed, 3, "wrong number of gen-client cases");
}

#[test]
fn a_client_asks_where_it_was_asked_for_and_what() {
    let server = TestServer::of(&data(MODELS).join("tf2_two_signatures"));
    let path = "/v1/models/tf2_two_signatures/gen_client";
    let plain = get(&server, "models.example.com", "", path);
    assert_eq!(plain.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(plain.headers["x-content-type-options"], "nosniff");
    assert!(plain.text().contains("\"http://models.example.com/\""), "{}", plain.text());
    let proxied = get(&server, "models.example.com", "X-Forwarded-Proto: https\r\n", path);
    assert!(proxied.text().contains("\"https://models.example.com/\""), "{}", proxied.text());
    let strange = get(&server, "x\"$(reboot)", "", path);
    if strange.status == 200 {
        assert!(!strange.text().contains("reboot"), "{}", strange.text());
    }
    let other = text(&server, &format!("{path}?signature=other&version=1"));
    for part in ["\"signature_name\": \"other\"", "\"model_version\": 1", "\"q\": [[1], [1]]"] {
        assert!(other.contains(part), "{part} is not in {other}");
    }
    let rest = text(&server, &format!("{path}?language=python&variant=rest&version=1"));
    assert!(rest.contains("/v1/models/tf2_two_signatures/versions/1:predict\""), "{rest}");
}

#[test]
fn what_there_is_not_is_refused_in_words() {
    let server = TestServer::of(&data(MODELS).join("tf2_two_signatures"));
    let path = "/v1/models/tf2_two_signatures/gen_client";
    for (target, status, part) in [
        (
            format!("{path}?language=cobol"),
            400,
            "there is no client for the language \"cobol\"; available: json, bash",
        ),
        (
            format!("{path}?language=python&variant=soap"),
            400,
            "available: requests, rest, grpc, boto3",
        ),
        (format!("{path}?version=x"), 400, "version must be a whole number"),
        (format!("{path}?version=7"), 404, "Version 7 of model"),
        (format!("{path}?signature=%3Cb%3E"), 404, "signature \"<b>\" not found"),
        ("/v1/models/none/gen_client".to_owned(), 404, "Model not found: none"),
    ] {
        let answer = server.get(&target);
        answer.assert_refused(&target, status, part);
    }
}

#[test]
fn languages_are_listed_with_what_they_need() {
    let server = TestServer::of(&data(MODELS).join("tf2_two_signatures"));
    let list = server.get("/api/v1/clients").json();
    let languages = list["languages"].as_array().expect("a list");
    assert_eq!(languages.len(), 15);
    let python = languages.iter().find(|language| language["id"] == "python").expect("Python");
    assert_eq!(
        python["variants"][0],
        json!({"id": "requests", "name": "requests", "file": "client.py",
               "install": "pip install requests", "run": "python3 client.py"})
    );
    let answer = server.post("/api/v1/clients", "{}");
    assert_eq!((answer.status, answer.headers["allow"].as_str()), (405, "GET, HEAD"));
    // Every client can be generated.
    for language in languages {
        for variant in language["variants"].as_array().expect("a list") {
            let (language, variant) = (language["id"].as_str(), variant["id"].as_str());
            let (language, variant) = (language.expect("text"), variant.expect("text"));
            let query = format!("?language={language}&variant={variant}");
            let source = text(&server, &format!("/v1/models/tf2_two_signatures/gen_client{query}"));
            assert!(source.contains("[[1], [1]]"), "{source}");
        }
    }
}

/// What `gen_json` returns is an answerable request, and clients have the same data.
#[test]
fn an_image_model_gets_an_image() {
    let server = TestServer::of(&project("models/digits"));
    let sample: Value =
        serde_json::from_str(&text(&server, "/v1/models/digits/gen_json")).expect("JSON");
    let body = json!({ "model_name": "digits", "data": sample["data"] });
    let answer = server.post("/", body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["classes"].as_array().map(Vec::len), Some(2), "{}", answer.text());
    let path = "/v1/models/digits/gen_client?language=";
    let data: Value = serde_json::from_str(&text(&server, &format!("{path}json"))).expect("JSON");
    assert_eq!(data["data"], sample["data"]);
    let grpc = text(&server, &format!("{path}python&variant=grpc"));
    assert!(grpc.contains("import base64\n\nimport grpc\n"), "{grpc}");
    assert!(grpc.contains("return base64.b64decode(value[\"b64\"])"), "{grpc}");
}
