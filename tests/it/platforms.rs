//! Models of several platforms in one server: discovery, names, versions and errors.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::client::post;
use crate::support::process::{Process, ended, tensorserve};
use crate::support::server::{TestServer, settings};
use crate::support::{alike, data, link, project};

fn put(from: &str, to: &Path) {
    fs::create_dir_all(to.parent().expect("a directory")).expect("directories");
    fs::copy(data(from), to).expect("copied");
}

fn predict(server: &TestServer, model: &str, instances: Value) -> Value {
    let path = format!("/v1/models/{model}:predict");
    server.post(&path, json!({"instances": instances}).to_string()).json()
}

#[test]
fn model_files_beside_directories_of_models_are_reported() {
    let root = tempfile::tempdir().expect("temporary directory");
    let models = root.path().join("models");
    link(&project("models/half_plus_two"), &models.join("half_plus_two"));
    put("platforms/onnx/half_plus_two.onnx", &models.join("flat.onnx"));
    put("platforms/xgboost/iris_softprob.ubj", &models.join("boosted.ubj"));
    fs::write(models.join("README.md"), "models").expect("written");
    let log = root.path().join("log");
    let mut command = tensorserve(&["serve", "--http-port", "0", "--grpc-port", "0"]);
    command.arg(&models).stderr(fs::File::create(&log).expect("a file"));
    drop(Process::start(command));
    let log = fs::read_to_string(log).expect("a log");
    assert!(log.contains("these files are not served: boosted.ubj, flat.onnx; put each"), "{log}");
    let inspected = ended(&mut tensorserve(&["inspect", &models.display().to_string()]));
    for file in ["flat.onnx: not served", "boosted.ubj: not served"] {
        assert!(inspected.stdout.contains(file), "{}{}", inspected.stdout, inspected.stderr);
    }
    assert!(!inspected.stdout.contains("README"), "{}", inspected.stdout);
}

#[test]
fn a_folder_of_models_of_all_kinds_is_served_and_watched() {
    let root = tempfile::tempdir().expect("temporary directory");
    let at = |path: &str| root.path().join(path);
    link(&project("models/half_plus_two"), &at("half_plus_two"));
    put("platforms/onnx/half_plus_two.onnx", &at("graph/1/model.onnx"));
    put("platforms/xgboost/iris_softprob.ubj", &at("boosted/model.ubj"));
    fs::create_dir_all(at("damaged/1")).expect("directories");
    fs::write(at("damaged/1/model.onnx"), "not one").expect("written");
    let mut settings = settings();
    settings.paths.push(root.path().to_owned());
    let server = TestServer::start(settings);
    server.wait_until_started();

    server.assert_serves("the start");
    assert_eq!(
        predict(&server, "graph", json!([1, 2, 5])),
        json!({"predictions": [2.5, 3.0, 4.5]})
    );
    let boosted = predict(&server, "boosted", json!([[5.1, 3.5, 1.4, 0.2]]));
    let want = json!({"predictions": [[0.922_617_1, 0.039_792_6, 0.037_590_3]]});
    assert!(alike(&boosted, &want, Some(1e-6)), "{boosted}");
    let error = server.get("/readyz").error();
    assert!(error.contains("model damaged: version 1: failed"), "{error}");

    // A new version takes over on any platform.
    put("platforms/onnx/iris_logreg.onnx", &at("graph/2/other.onnx"));
    server.wait_until("version 2 serves", |server| {
        server.get("/v1/models/graph/metadata").text().contains("probabilities")
    });
    let answer = predict(&server, "graph", json!([[5.1, 3.5, 1.4, 0.2]]));
    let want = json!({"predictions": [{"label": 0,
        "probabilities": [0.984_703_1, 0.015_296_8, 0.000_000_062]}]});
    assert!(alike(&answer, &want, Some(1e-6)), "{answer}");

    // Once repaired, the damaged model is served as well.
    put("platforms/onnx/half_plus_two.onnx", &at("damaged/1/model.onnx"));
    server.wait_until("all are ready", |server| server.get("/readyz").status == 200);
}

#[test]
fn a_models_platform_can_be_said() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let model = folder.path().join("boosted.model-file");
    put("platforms/xgboost/iris_softprob.ubj", &model);
    let path = model.display().to_string();

    let unknown = ended(&mut tensorserve(&["serve", &path]));
    assert_eq!(unknown.status.code(), Some(1));
    assert!(unknown.stderr.contains("name it with --platform"), "{}", unknown.stderr);
    let unknown = ended(&mut tensorserve(&["serve", "--platform", "xgbost", &path]));
    assert_eq!(unknown.status.code(), Some(1));
    assert!(unknown.stderr.contains("platform \"xgbost\" is unknown"), "{}", unknown.stderr);

    // An XGBoost model does not need libtensorflow.
    let nowhere = folder.path().display().to_string();
    let options = ["--platform", "xgboost", "--libtensorflow", &nowhere];
    let process = Process::serve(&model, &options);
    let body = json!({"instances": [[5.1, 3.5, 1.4, 0.2]]}).to_string();
    let answer = post(process.address, "/v1/models/boosted:predict", body);
    assert_eq!(answer.status, 200, "{}", answer.text());

    let inspected = ended(&mut tensorserve(&["inspect", "--platform", "xgboost", &path]));
    for part in ["boosted:", "(xgboost", "input", "data", "[?, 4]", "result"] {
        assert!(inspected.stdout.contains(part), "{part:?} is not in: {}", inspected.stdout);
    }
    // A TensorFlow model needs libtensorflow.
    let models = project("models/half_plus_two").display().to_string();
    let missing = ended(&mut tensorserve(&["serve", "--libtensorflow", &nowhere, &models]));
    assert_eq!(missing.status.code(), Some(1));
    assert!(missing.stderr.contains("no libtensorflow at"), "{}", missing.stderr);
}

#[test]
fn files_that_begin_alike_are_one_model() {
    let prefix = data("simple-tensorflow-serving/models/mxnet_mlp/mx_mlp");
    let process = Process::serve(&prefix, &[]);
    let body = json!({"instances": [[1.0, 2.0]]}).to_string();
    let answer = post(process.address, "/v1/models/mx_mlp:predict", body).json();
    assert!(alike(&answer, &json!({"predictions": [[2.950_734_8]]}), Some(1e-6)), "{answer}");
    let inspected = ended(&mut tensorserve(&["inspect", &prefix.display().to_string()]));
    assert!(inspected.stdout.contains("lro"), "{}", inspected.stdout);
}

/// Files beside model directories or version directories are not models.
#[test]
fn files_beside_models_and_versions_are_none() {
    let root = tempfile::tempdir().expect("temporary directory");
    let at = |path: &str| root.path().join(path);
    let version = project("models/half_plus_two");
    let version = fs::read_dir(version).expect("versions").flatten().next().expect("one").path();
    link(&version, &at("half_plus_two/7"));
    put("platforms/xgboost/iris_softprob.ubj", &at("vocabulary.ubj"));
    put("platforms/onnx/half_plus_two.onnx", &at("half_plus_two/exported.onnx"));
    let server = TestServer::of(root.path());
    server.assert_serves("the start");
    let status = server.get("/v1/models/half_plus_two").text();
    assert!(status.contains("\"7\"") && status.contains("AVAILABLE"), "{status}");
    let names: Vec<String> =
        server.engine.repository().ready_models().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["half_plus_two"]);
    let server = TestServer::of(&at("half_plus_two"));
    server.assert_serves("the start");
}

#[test]
fn steps_lie_beside_a_models_file() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let model = folder.path().join("iris.ubj");
    put("platforms/xgboost/iris_softprob.ubj", &model);
    let steps = "[[postprocess]]\nstep = \"top_k\"\noutput = \"result\"\nk = 1\n";
    fs::write(folder.path().join("tensorserve.toml"), steps).expect("written");
    let server = TestServer::of(&model);
    let answer = predict(&server, "iris", json!([[5.1, 3.5, 1.4, 0.2]]));
    assert!(answer["predictions"][0].is_object(), "{answer}");
}
