//! Models in formats that are not served: `serve`, `inspect` and the server say what they are, and how to get a
//! model that is served. Each format has a test in `crates/platform/src/foreign`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::process::run;
use crate::support::server::{TestServer, settings};
use crate::support::{copy, data, project};

fn write(folder: &Path, name: &str, content: &[u8]) {
    let file = folder.join(name);
    fs::create_dir_all(file.parent().expect("a folder")).expect("directories");
    fs::write(file, content).expect("written");
}

/// Files of formats, and a part of what is said about each.
const FORMATS: [(&str, &[u8], &str); 4] = [
    ("llama.gguf", b"GGUF\x03\0\0\0", "llama-server --model"),
    ("resnet.plan", b"ptrt", "serve the ONNX file that it was built from"),
    ("text.bin", b"\xba\x16\x4f\x2f\x0c\0\0\0", "a model of fastText"),
    ("net.textproto", b"ir_version: 8\ngraph {\n", "onnx.save(onnx.load(sys.argv[1])"),
];

#[test]
fn serve_and_inspect_say_what_a_file_is_and_how_it_is_converted() {
    let folder = tempfile::tempdir().expect("a directory");
    for (name, content, says) in FORMATS {
        let model = format!("m-{name}");
        write(folder.path(), name, content);
        write(folder.path(), &format!("{model}/1/{name}"), content);
        let paths = [
            folder.path().join(name),
            folder.path().join(&model).join("1"),
            folder.path().join(&model),
        ];
        for path in paths {
            let path = path.display().to_string();
            let inspected = run(&["inspect", &path]);
            assert_eq!(inspected.status.code(), Some(1), "{path}: {}", inspected.stderr);
            assert!(inspected.stderr.contains(says), "{path}: {}", inspected.stderr);
            // A directory of versions may get another version: the server starts, and reports the state.
            if !path.ends_with(&model) {
                let served = run(&["serve", &path, "--http-port", "0", "--grpc-port", "0"]);
                assert_eq!(served.status.code(), Some(1), "{path}: {}", served.stderr);
                assert!(served.stderr.contains(says), "{path}: {}", served.stderr);
            }
        }
    }
}

#[test]
fn the_state_of_such_a_model_has_the_reason_and_others_are_served() {
    let folder = tempfile::tempdir().expect("a directory");
    for (name, content, _) in FORMATS {
        let model = name.split('.').next().expect("a name");
        write(folder.path(), &format!("{model}/1/{name}"), content);
    }
    copy(&project("models/half_plus_two/1"), &folder.path().join("half/1"));
    let server = TestServer::of(folder.path());
    let list = server.post("/v2/repository/index", "{}").json();
    for (name, _, says) in FORMATS {
        let model = name.split('.').next().expect("a name");
        let status = server.get(&format!("/v1/models/{model}"));
        assert_eq!(status.status, 200, "{}", status.text());
        let version = &status.json()["model_version_status"][0];
        assert_eq!(version["state"], "END", "{version}");
        let message = version["status"]["error_message"].as_str().unwrap_or_default();
        assert!(message.contains(says), "{message}");
        let mut listed = list.as_array().into_iter().flatten();
        let listed = listed.find(|entry| entry["name"] == model).expect("in the list");
        assert!(listed["reason"].as_str().is_some_and(|reason| reason.contains(says)), "{listed}");
        let answer = server.post(&format!("/v1/models/{model}:predict"), r#"{"instances": [1]}"#);
        assert!(answer.status >= 400, "{}", answer.text());
    }
    let answer = server.post("/v1/models/half:predict", r#"{"instances": [1.0]}"#);
    assert_eq!(answer.json(), json!({"predictions": [2.5]}));
}

/// A repository as Triton's, of a model for each platform that is served.
#[test]
fn the_layouts_of_tritons_repositories_are_served() {
    let iris = json!([[5.1, 3.5, 1.4, 0.2]]);
    let models: [(&str, &str, &str, Value); 6] = [
        ("onnx", "onnx/iris_logreg.onnx", "model.onnx", iris.clone()),
        ("graphdef", "tensorflow/half_plus_two.pb", "model.graphdef", json!([[1.0, 2.0, 5.0]])),
        ("xgboost", "xgboost/iris_softprob.json", "xgboost.json", iris.clone()),
        ("lightgbm", "lightgbm/others/iris_multiclass.txt", "model.txt", iris.clone()),
        ("sklearn", "sklearn/iris_logreg_pipeline.pkl", "model.pkl", iris.clone()),
        ("declared", "onnx/iris_rf.onnx", "model.onnx", iris),
    ];
    let folder = tempfile::tempdir().expect("a directory");
    for (name, file, inside, _) in &models {
        let content = fs::read(data("platforms").join(file)).expect(file);
        write(folder.path(), &format!("{name}/1/{inside}"), &content);
        write(folder.path(), &format!("{name}/config.pbtxt"), b"max_batch_size: 8\n");
    }
    copy(&project("models/half_plus_two/1"), &folder.path().join("saved/1/model.savedmodel"));
    write(folder.path(), "saved/config.pbtxt", b"backend: \"tensorflow\"");
    let mut settings = settings();
    settings.paths.push(folder.path().to_owned());
    let server = TestServer::start(settings);
    server.wait_until_started();
    for (name, _, _, inputs) in models {
        let body = json!({ "inputs": inputs }).to_string();
        let answer = server.post(&format!("/v1/models/{name}:predict"), body);
        assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    }
    let answer = server.post("/v1/models/saved:predict", r#"{"instances": [1.0]}"#);
    assert_eq!(answer.json(), json!({"predictions": [2.5]}));
}
