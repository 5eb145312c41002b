//! Models of OpenVINO, served by processes of their own.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::client::{get, post};
use crate::support::process::{Process, is_running, kill, model_processes, tensorserve};
use crate::support::{data, fetched, project, wait_until};

/// A server of the models in `folder`, with more options.
fn serve(folder: &Path, options: &[&str]) -> Process {
    let ports = ["--http-port", "0", "--grpc-port", "0", "--poll-interval", "100ms"];
    let mut command = tensorserve(&["serve", "--log-level", "off"]);
    command.args(ports).args(options).arg(folder);
    Process::start(command)
}

/// A folder of these models of `made/`, each with one version.
fn models(names: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("a directory");
    names.iter().for_each(|name| add(root.path(), "made", name));
    root
}

fn add(root: &Path, folder: &str, name: &str) {
    let version = root.join(name).join("1");
    fs::create_dir_all(&version).expect("a directory");
    for ending in ["xml", "bin"] {
        let file = data(&format!("platforms/openvino/{folder}/{name}.{ending}"));
        fs::copy(file, version.join(format!("{name}.{ending}"))).expect("copied");
    }
}

fn predict(server: &Process, model: &str, body: &Value) -> crate::support::client::Answer {
    post(server.address, &format!("/v1/models/{model}:predict"), body.to_string())
}

#[test]
fn outputs_are_those_of_openvino_to_the_bit() {
    let expected = fs::read_to_string(data("platforms/openvino/expected.json")).expect("a file");
    let expected: Value = serde_json::from_str(&expected).expect("JSON");
    let expected = expected.as_object().expect("models");
    let names: Vec<&str> = expected.keys().map(String::as_str).collect();
    let root = models(&names);
    let server = serve(root.path(), &[]);
    for (name, case) in expected {
        let answer = predict(&server, name, &json!({"inputs": case["inputs"]}));
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
        let outputs = &answer.json()["outputs"];
        let wanted = case["outputs"].as_object().expect("outputs");
        for (alias, value) in wanted {
            // A single output has no name there.
            let got = if wanted.len() == 1 { outputs } else { &outputs[alias] };
            assert_eq!(singles(got), singles(value), "{name} {alias}");
        }
    }
}

/// All numbers of a value, as floats of 32 bits; truth values as they are.
fn singles(value: &Value) -> Vec<String> {
    match value {
        Value::Array(values) => values.iter().flat_map(singles).collect(),
        #[allow(clippy::cast_possible_truncation)] // The outputs have 32 bits.
        Value::Number(number) => vec![format!("{:?}", number.as_f64().expect("a number") as f32)],
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Object(_) => {
            vec![value.to_string()]
        }
    }
}

#[test]
fn what_openvino_would_change_or_not_take_is_refused() {
    let root = models(&["dense", "several", "image"]);
    let server = serve(root.path(), &[]);
    let ids =
        |id: Value| json!({"inputs": {"left": [[1, 2]], "ids": [id], "flags": [[true, true]]}});
    assert_eq!(predict(&server, "several", &ids(json!(3))).status, 200);
    let image = |size: usize| json!({"inputs": vec![vec![vec![vec![0.5; size]; 8]; 3]; 1]});
    assert_eq!(predict(&server, "image", &image(8)).status, 200);
    for (model, body, parts) in [
        ("several", ids(json!(2_147_483_648_i64)), &["ids", "2147483648", "32 bits"][..]),
        ("several", ids(json!("3")), &["Type: String", "int64"]),
        ("dense", json!({"instances": [[1, 2, 3]]}), &["[?, 4]"]),
        ("dense", json!({"instances": []}), &["instances"]),
        ("dense", json!({"inputs": {"z": [[1, 2, 3, 4]]}}), &["\"z\"", "\"x\""]),
        ("image", image(7), &["[1, 3, 8, 8]"]),
    ] {
        let answer = predict(&server, model, &body);
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        for part in parts {
            assert!(answer.error().contains(part), "{part}: {}", answer.text());
        }
    }
}

#[test]
fn a_run_that_does_not_end_is_cancelled() {
    let root = models(&["unbounded", "dense"]);
    let server = serve(root.path(), &["--request-timeout", "2s"]);
    // Twice that and 1 never becomes more than 100.
    let answer = predict(&server, "unbounded", &json!({"instances": [[-1]]}));
    assert_eq!(answer.status, 504, "{}", answer.text());
    let again = || predict(&server, "unbounded", &json!({"instances": [[3], [1]]}));
    wait_until("it runs again", || again().status == 200);
    assert_eq!(again().json(), json!({"predictions": [[127.0], [63.0]]}));
}

#[test]
fn the_end_of_its_process_disturbs_no_other_model() {
    let root = models(&["dense"]);
    crate::support::copy(&project("models/half_plus_two"), &root.path().join("half_plus_two"));
    let server = serve(root.path(), &[]);
    let row = json!({"instances": [[5.1, 3.5, 1.4, 0.2]]});
    let before = predict(&server, "dense", &row).json();
    let [process] = model_processes(&server)[..] else { panic!("not one process") };
    kill(process);
    wait_until("it has ended", || !is_running(process));
    let other = predict(&server, "half_plus_two", &json!({"instances": [2.0]}));
    assert_eq!(other.json(), json!({"predictions": [3.0]}));
    wait_until("it is served", || predict(&server, "dense", &row).status == 200);
    assert_eq!(predict(&server, "dense", &row).json(), before);
}

#[test]
fn what_cannot_be_served_is_told_and_nothing_else_suffers() {
    let root = models(&["dense"]);
    for name in ["stateful", "any_rank", "texts"] {
        add(root.path(), "refused", name);
    }
    let server = serve(root.path(), &[]);
    for (name, words) in [
        ("stateful", "keeps a state"),
        ("any_rank", "no fixed rank"),
        ("texts", "is not supported"),
    ] {
        let status = get(server.address, &format!("/v1/models/{name}"));
        assert!(
            status.text().contains("END") && status.text().contains(words),
            "{}",
            status.text()
        );
    }
    let row = json!({"instances": [[5.1, 3.5, 1.4, 0.2]]});
    assert_eq!(predict(&server, "dense", &row).status, 200);
}

#[test]
fn the_library_can_be_named() {
    let root = models(&["half"]);
    let place = fetched("openvino/libs").display().to_string();
    let server = serve(root.path(), &["--libopenvino", &place]);
    let row = json!({"instances": [[1, 2, 3]]});
    assert_eq!(predict(&server, "half", &row).status, 200);
    let version = crate::support::process::ended(
        tensorserve(&["--version"]).env("TENSORSERVE_LIBOPENVINO", &place),
    );
    assert!(version.stdout.contains("OpenVINO 2026."), "{}", version.stdout);
}
