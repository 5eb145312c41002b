//! Models of TensorFlow in other files than `saved_model.pb`: frozen graphs, SavedModels in text, variables in
//! several parts, and the layout of Triton's repositories. `make_tensorflow.py` wrote them.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tensorserve::config::ModelSettings;
use tensorserve::config::units::CommaSeparated;

use crate::support::server::{TestServer, settings};
use crate::support::{copy, data, project};

fn serve(models: &[(&str, PathBuf)], deny: &[&str]) -> TestServer {
    let mut settings = settings();
    for (name, path) in models {
        let mut model = ModelSettings {
            path: Some(path.clone()),
            name: Some((*name).to_owned()),
            ..ModelSettings::default()
        };
        let denied = || CommaSeparated(deny.iter().map(|op| (*op).to_owned()).collect());
        model.each.deny_ops = (!deny.is_empty()).then(denied);
        settings.models.push(model);
    }
    let server = TestServer::start(settings);
    server.wait_until_started();
    server
}

fn file(name: &str) -> PathBuf {
    data("platforms/tensorflow").join(name)
}

fn outputs(server: &TestServer, model: &str, inputs: &Value) -> Value {
    let path = format!("/v1/models/{model}:predict");
    let answer = server.post(&path, json!({ "inputs": inputs }).to_string());
    assert_eq!(answer.status, 200, "{model}: {}", answer.text());
    answer.json()["outputs"].clone()
}

/// The state of version 1 of a model, with its error.
fn status(server: &TestServer, model: &str) -> String {
    server.get(&format!("/v1/models/{model}")).text()
}

#[test]
fn frozen_graphs_have_their_placeholders_as_inputs() {
    let folder = tempfile::tempdir().expect("a directory");
    let version = folder.path().join("declared/1");
    fs::create_dir_all(&version).expect("directories");
    fs::copy(file("half_plus_two.pb"), version.join("model.graphdef")).expect("copied");
    let declaration = "[[signature.inputs]]\nname = \"x\"\ndtype = \"float32\"\nshape = [-1, 3]\n\
                       [[signature.outputs]]\nname = \"y\"\n";
    fs::write(version.join("tensorserve.toml"), declaration).expect("written");
    let wrong = folder.path().join("wrong/1");
    fs::create_dir_all(&wrong).expect("directories");
    fs::copy(file("half_plus_two.pb"), wrong.join("model.pb")).expect("copied");
    fs::write(wrong.join("tensorserve.toml"), declaration.replace("\"y\"", "\"z\""))
        .expect("written");
    let models = [
        ("whole", file("half_plus_two.pb")),
        ("declared", folder.path().join("declared")),
        ("wrong", folder.path().join("wrong")),
    ];
    let server = serve(&models, &[]);
    let x = json!([[1.0, 2.0, 5.0], [9.0, 0.0, 0.0]]);
    let expected =
        json!({"best": [2, 0], "parts": [[2.5], [6.5]], "parts:1": [[3.0, 4.5], [2.0, 2.0]]});
    assert_eq!(outputs(&server, "whole", &x), expected);
    let expected = json!([[2.5, 3.0, 4.5], [6.5, 2.0, 2.0]]);
    assert_eq!(outputs(&server, "declared", &x), expected);
    assert!(
        status(&server, "wrong").contains("the graph has no tensor named"),
        "{}",
        status(&server, "wrong")
    );
}

/// Text is read by the runtime alone, which runs the initialization at once.
#[test]
fn saved_models_in_text_are_served_unless_operations_are_refused() {
    let server = serve(&[("text", file("text"))], &[]);
    assert_eq!(outputs(&server, "text", &json!([1.0, 2.0, 5.0])), json!([2.5, 3.0, 4.5]));
    server.stop();
    let server = serve(&[("text", file("text"))], &["external"]);
    let status = status(&server, "text");
    assert!(status.contains("text_format.Parse"), "{status}");
}

#[test]
fn variables_in_three_files_are_restored_without_the_devices_of_the_export() {
    let server = serve(&[("partitioned", file("partitioned"))], &[]);
    let found = outputs(&server, "partitioned", &json!([0, 4, 8]));
    assert_eq!(found, json!([[0.0, 0.0], [8.0, 80.0], [16.0, 160.0]]));
}

/// Modules of TensorFlow Hub for TensorFlow 1 have no tags.
#[test]
fn graphs_without_tags_are_served() {
    let refused = serve(&[("module", file("module"))], &[]);
    let why = status(&refused, "module");
    assert!(why.contains("tags = []"), "{why}");
    refused.stop();
    for tags in [Vec::new(), vec![String::new()]] {
        let mut settings = settings();
        let mut model = ModelSettings { path: Some(file("module")), ..ModelSettings::default() };
        model.each.tags = Some(CommaSeparated(tags));
        settings.models.push(model);
        let server = TestServer::start(settings);
        server.wait_until_started();
        let body = r#"{"signature_name": "default", "instances": [1, 2, 3]}"#;
        let answer = server.post("/v1/models/module:predict", body);
        assert_eq!(answer.json(), json!({"predictions": [2.0, 4.0, 6.0]}));
    }
}

#[test]
fn versions_in_the_layout_of_tritons_repositories_are_served() {
    let folder = tempfile::tempdir().expect("a directory");
    let model = folder.path().join("half");
    copy(&project("models/half_plus_two/1"), &model.join("1/model.savedmodel"));
    fs::write(model.join("config.pbtxt"), "backend: \"tensorflow\"").expect("written");
    let mut settings = settings();
    settings.paths.push(folder.path().to_owned());
    let server = TestServer::start(settings);
    server.wait_until_started();
    assert_eq!(outputs(&server, "half", &json!([1.0])), json!([2.5]));
}

#[test]
fn damaged_graphs_disturb_no_other_model() {
    let folder = tempfile::tempdir().expect("a directory");
    let whole = fs::read(file("half_plus_two.pb")).expect("readable");
    let put = |name: &str, content: &[u8]| -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, content).expect("written");
        path
    };
    let mut other = whole.clone();
    let at = other.windows(3).position(|bytes| bytes == b"Add").expect("an addition");
    other[at] = b'O';
    let models = [
        ("cut", put("cut.pb", &whole[..whole.len() / 2])),
        ("unknown", put("unknown.pb", &other)),
        ("whole", file("half_plus_two.pb")),
    ];
    let server = serve(&models, &[]);
    assert!(
        status(&server, "cut").contains("not a graph of TensorFlow"),
        "{}",
        status(&server, "cut")
    );
    assert!(
        status(&server, "unknown").contains("not registered"),
        "{}",
        status(&server, "unknown")
    );
    assert_eq!(outputs(&server, "whole", &json!([[1.0, 2.0, 5.0]]))["best"], json!([2]));
}
