//! Models with operations that read files, and the settings that refuse them.

use std::fs;
use std::path::Path;

use serde_json::json;
use tensorserve::config::ModelSettings;
use tensorserve::config::units::CommaSeparated;

use crate::support::process::{Process, run, tensorserve};
use crate::support::saved_model::{
    STRING, SavedModel, call, function, node, placeholder, signature, tensor,
};
use crate::support::server::{TestServer, settings};

/// A model that maps the name of a file to its content, in the graph itself or in a nested function.
fn file_reader(folder: &Path, is_nested: bool) {
    let mut model = SavedModel {
        nodes: vec![placeholder("x", STRING, &[])],
        signatures: vec![(
            "serving_default",
            signature(&[("x", tensor("x:0", STRING, &[]))], &[("y", tensor("y:0", STRING, &[]))]),
        )],
        ..SavedModel::default()
    };
    if is_nested {
        model.nodes.push(call("y", "outer", "x"));
        let reader = node("read", "ReadFile", &["x"], &[]);
        model.functions = vec![
            function("outer", &[call("call", "inner", "x")], "call:output:0"),
            function("inner", &[reader], "read:contents:0"),
        ];
    } else {
        model.nodes.push(node("y", "ReadFile", &["x"], &[]));
    }
    model.write(folder);
}

fn list(entries: &[&str]) -> Option<CommaSeparated<String>> {
    Some(CommaSeparated(entries.iter().map(|&entry| entry.to_owned()).collect()))
}

#[test]
fn a_model_that_reads_files_is_served_and_reported() {
    let root = tempfile::tempdir().expect("temporary directory");
    file_reader(&root.path().join("models/plain/1"), false);
    file_reader(&root.path().join("models/nested/1"), true);
    let secret = root.path().join("secret");
    fs::write(&secret, "content").expect("written");
    let server = TestServer::of(&root.path().join("models"));
    for (model, node, function) in [("plain", "y", json!(null)), ("nested", "read", json!("inner"))]
    {
        let body = json!({"inputs": secret.display().to_string()}).to_string();
        let answer = server.post(&format!("/v1/models/{model}:predict"), body);
        assert_eq!(answer.json(), json!({"outputs": "content"}), "{model}");
        let want = json!([
            {"op": "ReadFile", "access": "reads a file", "node": node, "function": function}
        ]);
        let detail = server.get(&format!("/api/v1/models/{model}")).json();
        assert_eq!(detail["versions"][0]["external_ops"], want, "{detail}");
        let status = server.get("/api/v1/status").json();
        let models = status["models"].as_array().expect("a list");
        let shown = models.iter().find(|shown| shown["name"] == model).expect("the model");
        assert_eq!(shown["versions"][0]["external_ops"], want, "{status}");
    }
}

#[test]
fn the_log_names_the_operation_once_for_each_loaded_version() {
    let root = tempfile::tempdir().expect("temporary directory");
    file_reader(&root.path().join("m/1"), false);
    let log = root.path().join("log");
    let mut command = tensorserve(&["serve", "--http-port", "0", "--grpc-port", "0"]);
    command.arg(root.path().join("m")).stderr(fs::File::create(&log).expect("a file"));
    drop(Process::start(command));
    let log = fs::read_to_string(log).expect("a log");
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("ReadFile")).collect();
    assert!(
        matches!(warnings[..], [line] if line.contains("WARN") && line.contains("m version 1")),
        "{log}"
    );
}

#[test]
fn inspect_names_the_operation_and_its_function() {
    let root = tempfile::tempdir().expect("temporary directory");
    file_reader(&root.path().join("nested/1"), true);
    let ended = run(&["inspect", &root.path().display().to_string()]);
    let line = "ReadFile reads a file (node \"read\" of function \"inner\")";
    assert!(ended.stdout.contains(line), "{}{}", ended.stdout, ended.stderr);
    let models = crate::support::project("models").display().to_string();
    let ordinary = run(&["inspect", &models]);
    assert!(!ordinary.stdout.contains("outside the model"), "{}", ordinary.stdout);
}

#[test]
fn the_settings_refuse_and_allow_operations_for_all_and_for_one_model() {
    let root = tempfile::tempdir().expect("temporary directory");
    let mut settings = settings();
    settings.each.deny_ops = list(&["external"]);
    for name in ["refused", "allowed"] {
        let path = root.path().join(name);
        file_reader(&path.join("1"), true);
        let mut model = ModelSettings {
            name: Some(name.to_owned()),
            path: Some(path),
            ..ModelSettings::default()
        };
        if name == "allowed" {
            model.each.allow_ops = list(&["ReadFile"]);
        }
        settings.models.push(model);
    }
    settings.paths.push(crate::support::project("models/half_plus_two"));
    let server = TestServer::start(settings);
    server.wait_until_started();
    let ready = server.get("/readyz").error();
    let part = "operation ReadFile (node \"read\" of function \"inner\"), which reads a file, and \
                deny_ops refuses it";
    assert!(ready.contains("refused") && ready.contains(part), "{ready}");
    assert!(!ready.contains("model allowed") && !ready.contains("half_plus_two"), "{ready}");
    let body = json!({"inputs": "/nowhere"}).to_string();
    server.post("/v1/models/refused:predict", body.clone()).assert_refused(
        "refused",
        404,
        "not found",
    );
    let allowed = server.post("/v1/models/allowed:predict", body);
    assert!(allowed.error().contains("/nowhere"), "{}", allowed.text());
    let detail = server.get("/api/v1/models/allowed").json();
    assert_eq!(detail["versions"][0]["external_ops"], json!([]), "allowed, so not reported");
    server.assert_serves("half_plus_two");
}
