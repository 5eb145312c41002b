//! ONNX models and MXNet checkpoints, served.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tensorserve::config::ModelSettings;

use crate::support::client::post;
use crate::support::process::{Process, tensorserve};
use crate::support::server::{TestServer, settings};
use crate::support::{alike, copy, data};

/// A server of the model at `path`.
fn serve(path: PathBuf, platform: Option<&str>) -> TestServer {
    let mut settings = settings();
    let mut model = ModelSettings { path: Some(path), ..ModelSettings::default() };
    model.name = Some("model".to_owned());
    model.each.platform = platform.map(str::to_owned);
    settings.models.push(model);
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

/// A directory with a copy of `source` as version 1 of `model`.
fn versioned(source: &Path) -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("temporary directory");
    copy(source, &home.path().join("model/1"));
    home
}

fn expect(server: &TestServer, request: &Value, answer: &Value) {
    let got = server.post("/v1/models/model:predict", request.to_string());
    assert_eq!(got.status, 200, "{}", got.text());
    assert!(alike(&got.json(), answer, Some(1e-6)), "{}", got.text());
}

#[test]
fn a_file_is_a_model() {
    let server = serve(data("platforms/onnx/half_plus_two.onnx"), None);
    expect(&server, &json!({"inputs": [1, 2, 5]}), &json!({"outputs": [2.5, 3.0, 4.5]}));
    expect(&server, &json!({"instances": [1, 2]}), &json!({"predictions": [2.5, 3.0]}));
}

#[test]
fn a_classifier_answers_with_labels_and_scores() {
    let home = tempfile::tempdir().expect("temporary directory");
    let version = home.path().join("model/1");
    std::fs::create_dir_all(&version).expect("directory");
    let file = data("platforms/onnx/iris_logreg_zipmap.onnx");
    std::fs::copy(file, version.join("model.onnx")).expect("copied");
    let server = serve(home.path().join("model"), None);
    let rows = json!([[5.1, 3.5, 1.4, 0.2], [6.0, 2.9, 4.5, 1.5], [6.3, 3.3, 6.0, 2.5]]);
    // Computed with onnxruntime 1.31.1 in Python.
    let scores = json!([
        [0.984_703_1, 0.015_296_797, 6.203_780_6e-8],
        [0.011_724_683, 0.778_964_8, 0.209_310_41],
        [1.491_786_2e-5, 0.006_202_660_5, 0.993_782_46]
    ]);
    let outputs = json!({"output_label": [0, 1, 2], "output_probability": scores});
    expect(&server, &json!({"inputs": rows}), &json!({"outputs": outputs}));
    let metadata = server.get("/v1/models/model/metadata").json();
    let signature = &metadata["metadata"]["signature_def"]["signature_def"]["serving_default"];
    let dims = &signature["outputs"]["output_probability"]["tensor_shape"]["dim"];
    assert_eq!((&dims[0]["size"], &dims[1]["size"]), (&json!("-1"), &json!("3")), "{metadata}");
    let wrong = server.post("/v1/models/model:predict", r#"{"instances": [[1, 2, 3]]}"#);
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("[?, 4]"), "{}", wrong.text());
}

/// skl2onnx wrote both (make_onnx.py).
#[test]
fn classes_have_their_names_and_targets_their_outputs() {
    let made = |name: &str| data("platforms/onnx/made").join(name).join("model.onnx");
    let server = serve(made("skl_logistic_texts_15"), None);
    let row = json!({"instances": [[5.1, 3.5, 1.4, 0.2]]});
    let answer = server.post("/v1/models/model:predict", row.to_string()).json();
    let prediction = &answer["predictions"][0];
    assert_eq!(prediction["output_label"], "setosa", "{answer}");
    let classes = json!(["setosa", "versicolor", "virginica"]);
    assert_eq!(prediction["output_probability_classes"], classes, "{answer}");
    assert_eq!(prediction["output_probability"].as_array().map(Vec::len), Some(3), "{answer}");
    server.stop();

    let server = serve(made("skl_multi_texts_15"), None);
    let answer = server.post("/v1/models/model:predict", row.to_string()).json();
    let prediction = &answer["predictions"][0];
    assert_eq!(prediction["label"].as_array().map(Vec::len), Some(2), "{answer}");
    for name in ["probabilities_0", "probabilities_1"] {
        assert_eq!(prediction[name].as_array().map(Vec::len), Some(3), "{answer}");
    }
}

#[test]
fn a_model_of_another_name_is_one_if_its_platform_is_named() {
    let models = data("simple-tensorflow-serving/models");
    let server = serve(models.join("onnx_mnist_model/onnx_model.proto"), Some("pytorch_onnx"));
    let ones = json!({"inputs": [[vec![[1.0; 28]; 28]]]});
    let answer = server.post("/v1/models/model:predict", ones.to_string()).json();
    let first = answer["outputs"][0][0].as_f64().expect("a number");
    assert!((first + 2.333_852_05).abs() < 1e-5, "{answer}");
}

#[test]
fn a_checkpoint_of_mxnet_is_a_model() {
    let source = data("simple-tensorflow-serving/models/mxnet_mlp");
    let home = versioned(&source);
    for (path, platform) in
        [(home.path().join("model"), None), (source.join("mx_mlp"), Some("mxnet"))]
    {
        let server = serve(path, platform);
        // Computed by hand from the parameters.
        let answer = json!({"outputs": [[2.950_734_8], [8.336_845_9]]});
        expect(&server, &json!({"inputs": [[1, 2], [12, 2]]}), &answer);
        let answer = json!({"predictions": [[2.950_734_8]]});
        expect(&server, &json!({"instances": [{"data": [1, 2]}]}), &answer);
    }
}

#[test]
fn onnx_runtime_reports_nothing_to_its_maker() {
    let model = versioned(&data("platforms/onnx/half_plus_two.onnx").with_file_name(""));
    let home = tempfile::tempdir().expect("a directory");
    let mut command =
        tensorserve(&["serve", "--http-port", "0", "--grpc-port", "0", "--log-level", "error"]);
    command.arg("--platform").arg("onnx").env("HOME", home.path()).env_remove("XDG_CACHE_HOME");
    let model = model.path().join("model/1/half_plus_two.onnx");
    let process = Process::start({
        command.arg(model);
        command
    });
    let body = r#"{"instances": [1.0]}"#;
    let answer = post(process.address, "/v1/models/half_plus_two:predict", body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    // Where it keeps what it has not sent yet, and an identifier of the machine.
    let kept = home.path().join(".cache/Microsoft");
    assert!(!kept.exists(), "{} exists", kept.display());
}
