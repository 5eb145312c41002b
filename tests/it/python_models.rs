//! Models in Python, served over HTTP and gRPC: objects of plain Python, which need no packages.

use std::fs;
use std::path::Path;
use std::process::Command;

use prost::Message;
use serde_json::json;
use tensorserve_proto::serving::{ModelSpec, PredictRequest, PredictResponse};
use tensorserve_proto::{Form, tensor_from_proto, tensor_to_proto};
use tensorserve_tensor::{Shape, Tensor, aligned_vec};

use crate::support::grpc::{Caller, PREDICT};
use crate::support::process::run;
use crate::support::server::{TestServer, settings};

const MODULE: &str = "
import os

class Sums:
    n_features_in_ = 2

    def predict(self, rows):
        if any(row[0] < 0 for row in rows):
            raise ValueError('the first number is negative')
        if any(row[0] == 99 for row in rows):
            os._exit(9)
        return [float(sum(row)) for row in rows]
";

/// Writes the model `name` below `root`, with its module beside its versions.
fn write_model(root: &Path, name: &str) {
    let (version, code) = (root.join(name).join("1"), root.join(name).join("code"));
    fs::create_dir_all(&version).expect("created");
    fs::create_dir_all(&code).expect("created");
    fs::write(code.join("sums_of_rows.py"), MODULE).expect("written");
    let script = "import sys, pickle; sys.path.insert(0, sys.argv[1]); import sums_of_rows\n\
                  pickle.dump(sums_of_rows.Sums(), open(sys.argv[2], 'wb'))";
    let file = version.join("model.pkl");
    let status = Command::new("python3").args(["-c", script]).args([&code, &file]).status();
    assert!(status.expect("Python runs").success());
}

fn serve(root: &Path) -> TestServer {
    let mut settings = settings();
    settings.paths.push(root.to_owned());
    settings.each.runner = Some("python".to_owned());
    settings.each.runner_workers = Some(1);
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

#[test]
fn an_object_predicts_over_three_protocols() {
    let root = tempfile::tempdir().expect("a directory");
    write_model(root.path(), "sums");
    let server = serve(root.path());
    let path = "/v1/models/sums:predict";
    let answer = server.post(path, r#"{"instances": [[1, 2.5], [0, -1]]}"#);
    assert_eq!(answer.json(), json!({"predictions": [3.5, -1.0]}), "{}", answer.text());
    let body = json!({"inputs": [
        {"name": "data", "shape": [1, 2], "datatype": "FP64", "data": [1, 2.5]}
    ]});
    let answer = server.post("/v2/models/sums/infer", body.to_string());
    assert_eq!(answer.json()["outputs"][0]["data"], json!([3.5]), "{}", answer.text());

    let mut values = aligned_vec::<f64>(2);
    values.extend_from_slice(&[1.0, 2.5]);
    let row = Tensor::from_vec(Shape::new(&[1, 2]).expect("a shape"), values).expect("fits");
    let request = PredictRequest {
        model_spec: Some(ModelSpec { name: "sums".to_owned(), ..ModelSpec::default() }),
        inputs: [("data".to_owned(), tensor_to_proto(&row, Form::Content))].into(),
        output_filter: Vec::new(),
    };
    let caller = Caller::connect(server.grpc_address()).expect("a connection");
    let answer = caller.call(PREDICT, request.encode_to_vec()).expect("an answer");
    let answer = PredictResponse::decode(&*answer).expect("a response");
    let sums = tensor_from_proto(&answer.outputs["predict"]).expect("a tensor");
    assert_eq!(sums.values::<f64>(), Some(&[3.5][..]));

    let answer = server.post(path, r#"{"instances": [[-1, 0]]}"#);
    let refusal = json!({"error": "ValueError: the first number is negative"});
    assert_eq!((answer.status, answer.json()), (400, refusal));
    let answer = server.post(path, r#"{"instances": [[99, 0]]}"#);
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.text().contains("exited with status 9"), "{}", answer.text());
    let answer = server.post(path, r#"{"instances": [[1, 1]]}"#);
    assert_eq!(answer.json(), json!({"predictions": [2.0]}), "{}", answer.text());
}

#[test]
fn only_the_configuration_runs_a_model_in_python() {
    let root = tempfile::tempdir().expect("a directory");
    write_model(root.path(), "sums");
    let version = root.path().join("sums/1");
    // What comes with a model cannot choose it.
    fs::write(version.join("tensorserve.toml"), "runner = \"python\"\n").expect("written");
    let mut settings = settings();
    settings.paths.push(root.path().to_owned());
    let server = TestServer::start(settings);
    server.wait_until_started();
    let error = server.get("/v1/models/sums").text();
    assert!(error.contains("sums_of_rows.Sums") || error.contains("Sums"), "{error}");
    assert_ne!(server.post("/v1/models/sums:predict", r#"{"instances": [[1, 2]]}"#).status, 200);
}

#[test]
fn the_signatures_of_an_object_are_inspected() {
    let root = tempfile::tempdir().expect("a directory");
    write_model(root.path(), "sums");
    let model = root.path().join("sums").display().to_string();
    let inspected = run(&["inspect", &model, "--runner", "python"]);
    assert!(inspected.status.success(), "{}", inspected.stderr);
    for part in ["sums: ", "(python, ", "serving_default", "/v1/models/sums:predict"] {
        assert!(inspected.stdout.contains(part), "{part:?} is not in: {}", inspected.stdout);
    }
    let both = run(&["inspect", &model, "--runner", "python", "--platform", "sklearn"]);
    assert_eq!(both.status.code(), Some(2), "{}", both.stderr);
    let nowhere = run(&["inspect", &model, "--runner=python", "--runner-python=/no/python"]);
    assert_eq!(nowhere.status.code(), Some(1), "{}", nowhere.stdout);
    assert!(nowhere.stderr.contains("/no/python"), "{}", nowhere.stderr);
}
