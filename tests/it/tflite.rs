//! TensorFlow Lite models, served.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use tensorserve::config::ModelSettings;

use crate::support::process::{Process, tensorserve};
use crate::support::server::{TestServer, settings};
use crate::support::{alike, data};

/// A server of the model at `path`.
fn serve(path: PathBuf) -> TestServer {
    let mut settings = settings();
    let mut model = ModelSettings { path: Some(path), ..ModelSettings::default() };
    model.name = Some("model".to_owned());
    settings.models.push(model);
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

fn made(name: &str) -> PathBuf {
    data("platforms/tflite/made").join(format!("{name}.tflite"))
}

#[test]
fn a_file_is_a_model() {
    let server = serve(made("dense"));
    let rows = json!({"instances": [[5.1, 3.5, 1.4, 0.2], [1, 2, 3, 4]]});
    let got = server.post("/v1/models/model:predict", rows.to_string());
    // Computed with ai_edge_litert 2.3.0 in Python.
    let scores = json!([
        [0.735_605_48, 0.127_823_37, 0.136_571_17],
        [0.505_528_27, 0.295_803_84, 0.198_667_93]
    ]);
    assert!(alike(&got.json(), &json!({"predictions": scores}), Some(1e-6)), "{}", got.text());
    let wrong = server.post("/v1/models/model:predict", r#"{"instances": [[1, 2, 3]]}"#);
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("[?, 4]"), "{}", wrong.text());
}

#[test]
fn each_signature_of_the_file_is_one() {
    let server = serve(made("signatures"));
    let request = json!({
        "signature_name": "compare",
        "inputs": {"left": [[1, 2]], "right": [[1, 3]]}
    });
    let got = server.post("/v1/models/model:predict", request.to_string());
    let outputs = json!({"alpha": [[2.0, 4.0]], "equal": [[true, false]], "sum": [[2.0, 5.0]]});
    assert!(alike(&got.json(), &json!({"outputs": outputs}), None), "{}", got.text());
}

#[test]
fn strings_are_looked_up() {
    let server = serve(made("strings"));
    let request = json!({"inputs": ["blue", "black", ""]});
    let got = server.post("/v1/models/model:predict", request.to_string());
    assert_eq!(got.json(), json!({"outputs": [3, -1, 4]}));
}

#[test]
fn a_file_that_ends_the_process_does_not_disturb_other_models() {
    let home = tempfile::tempdir().expect("temporary directory");
    for name in ["good", "bad"] {
        fs::create_dir_all(home.path().join(name).join("1")).expect("directories");
    }
    let mut bytes = fs::read(made("strings")).expect("a model");
    fs::write(home.path().join("good/1/model.tflite"), &bytes).expect("written");
    // LiteRT 2.3.0 throws an exception when it runs this.
    bytes[456] ^= 0x81;
    fs::write(home.path().join("bad/1/model.tflite"), &bytes).expect("written");
    let mut command =
        tensorserve(&["serve", "--http-port", "0", "--grpc-port", "0", "--log-level", "error"]);
    command.arg(home.path());
    let process = Process::start(command);
    let body = json!({"inputs": ["red"]}).to_string();
    let answer = crate::support::client::post(process.address, "/v1/models/good:predict", &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = crate::support::client::post(process.address, "/v1/models/bad:predict", &body);
    assert_ne!(answer.status, 200, "{}", answer.text());
}
