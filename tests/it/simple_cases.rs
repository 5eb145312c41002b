//! The cases of Simple TensorFlow Serving (`tests/cases/simple-tensorflow-serving.json`) with its
//! own models, on a server that replaces it: inference with JSON and forms, models, pages, CORS.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use tensorserve::config::{Cors, ModelSettings};

use crate::support::client::{Answer, Field, post_form, request};
use crate::support::server::{TestServer, config, settings};
use crate::support::{alike, data, link, project};

const MODELS: &str = "simple-tensorflow-serving/models";
const TEMPLATE: &str = "tensorflow_template_application_model";

#[derive(Deserialize)]
struct Case {
    id: String,
    setup: String,
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    request_body: Option<Value>,
    request_body_raw: Option<String>,
    form: Option<BTreeMap<String, Value>>,
    expect_status: u16,
    expect_body: Option<Value>,
    #[serde(default)]
    expect_contains: Vec<String>,
}

/// Deliberate differences: the case, our status, and text of our response.
const MENDED: &[(&str, u16, &str)] = &[
    // The original prints a bare KeyError.
    ("err-version-missing", 400, "Invalid model version: 3, available versions of default: [2, 1]"),
    // The original uses the version that the file system lists last.
    ("json-two-versions-no-version", 200, "0.6414870023727417"),
    // Media types are case-insensitive.
    ("err-content-type-case", 200, "0.6414870023727417"),
    // The hooks of this model are bytecode of one version of Python.
    ("tf-preprocess", 400, "Python's marshal format, which is code for one version of Python"),
    // The start page is the dashboard.
    ("page-index", 200, "tensorserve"),
    // The error is JSON, like every other.
    ("auth-missing", 401, "\"error\""),
    // The original always prints port 8500.
    ("gen-client-default-is-bash", 200, "curl -H \"Content-Type: application/json\" -X POST -d"),
    // The original reports this with status 200.
    ("model-detail-missing", 404, "Model not found: nope"),
    // TensorFlow Serving's REST API is served, too.
    ("no-tfs-predict-route", 400, "error"),
    ("no-versions-route", 200, "AVAILABLE"),
];

/// Whether every platform that a case names is built in.
const HAS_ALL_PLATFORMS: bool = cfg!(all(
    feature = "onnx",
    feature = "mxnet",
    feature = "xgboost",
    feature = "sklearn",
    feature = "pmml",
    feature = "spark"
));

/// Whether the setup of a case names a platform other than TensorFlow.
fn is_of_other_platform(setup: &str) -> bool {
    setup.contains(" --model_platform=")
}

/// Serves the models that the text `setup` of a case describes, linked in `root` as
/// `name/version`.
fn serve(setup: &str, root: &Path) -> TestServer {
    if let Some((path, rest)) = setup.split_once(" --model_platform=") {
        return serve_other(path, rest);
    }
    let models: &[(&str, &str)] = if setup.starts_with("serve a base_path holding only version 1")
        || setup.starts_with("TMPL1 in a scratch dir")
    {
        &[("default/1", "tensorflow_template_application_model/1")]
    } else if setup.contains("tensorflow_template_application_model (versions 1 and 2)") {
        &[
            ("default/1", "tensorflow_template_application_model/1"),
            ("default/2", "tensorflow_template_application_model/2"),
        ]
    } else if setup.starts_with("model_config_file:") {
        &[
            ("default/1", "tensorflow_template_application_model/1"),
            ("default/2", "tensorflow_template_application_model/2"),
            ("deep_image_model/1", "deep_image_model/1"),
            ("distributed_tensorflow_model/1", "distributed_tensorflow_model/1"),
            ("simplest/1", "simplest_model/1"),
            ("estimator/1533527330", "tensorflow_estimator_model/1533527330"),
        ]
    } else if setup.starts_with("serve models/simplest_model") {
        &[("default/1", "simplest_model/1")]
    } else if setup.starts_with("serve models/tensorflow_estimator_model") {
        &[("default/1533527330", "tensorflow_estimator_model/1533527330")]
    } else if setup.starts_with("serve models/deep_image_model") {
        &[("default/1", "deep_image_model/1")]
    } else if setup.starts_with("serve models/preprocess_simplest_model") {
        &[("default/1", "preprocess_simplest_model/1")]
    } else if setup.starts_with("TMPL + ") {
        &[("default/2", "tensorflow_template_application_model/2")]
    } else {
        panic!("unknown setup {setup:?}");
    };
    for (place, model) in models {
        link(&data(MODELS).join(model), &root.join(place));
    }
    let server = serve_all(root, setup);
    if setup.contains("--reload_models") {
        // The case requests a version that appears while the server runs.
        link(&data(MODELS).join(TEMPLATE).join("2"), &root.join("default/2"));
        server.wait_until("version 2 is served", |server| {
            server.get("/v1/models/default/versions/2").text().contains("AVAILABLE")
        });
    }
    server
}

/// Serves a model of another platform. `path` is the case's text for its location; `rest` begins
/// with the platform and ends with the model's name.
fn serve_other(path: &str, rest: &str) -> TestServer {
    let path = match path {
        "serve the same ONNX file" => "onnx_mnist_model/onnx_model.proto",
        _ => {
            path.split_once("models/").and_then(|(_, path)| path.split(' ').next()).expect("a path")
        }
    };
    let platform = rest.split(' ').next().expect("a platform");
    let name = rest.split_once("as '").and_then(|(_, name)| name.split('\'').next());
    serve_file(name.unwrap_or("default"), path, platform)
}

/// Serves the model of another platform at `path` as Simple TensorFlow Serving.
fn serve_file(name: &str, path: &str, platform: &str) -> TestServer {
    let mut settings = settings();
    let mut model = ModelSettings {
        name: Some(name.to_owned()),
        path: Some(data(MODELS).join(path)),
        ..ModelSettings::default()
    };
    model.each.platform = Some(platform.to_owned());
    settings.models.push(model);
    let mut config = config(settings);
    config.protocols.replaces_simple = true;
    let server = TestServer::start_configured(&config);
    server.wait_until_started();
    server
}

/// Serves every version of every model in `root` as Simple TensorFlow Serving with these flags.
fn serve_all(root: &Path, flags: &str) -> TestServer {
    let mut settings = settings();
    settings.paths.push(root.to_owned());
    settings.each.version_policy = Some("all".to_owned());
    let mut config = config(settings);
    config.protocols.replaces_simple = true;
    if !flags.contains("--enable_cors=\"\"") {
        config.http.cors = Cors::AnyOrigin;
    }
    if flags.contains("--enable_auth=True") {
        config = config.with_one_user("u", "p");
    }
    let server = TestServer::start_configured(&config);
    server.wait_until_started();
    server
}

#[test]
fn every_case_passes() {
    #[derive(Deserialize)]
    struct Cases {
        cases: Vec<Case>,
    }
    let text = fs::read_to_string(project("tests/cases/simple-tensorflow-serving.json"));
    let Cases { cases } = serde_json::from_str(&text.expect("cases")).expect("cases");
    let mut by_setup: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in &cases {
        by_setup.entry(&case.setup).or_default().push(case);
    }
    let mut failures = Vec::new();
    let mut passed = 0;
    for (setup, cases) in by_setup {
        if is_of_other_platform(setup) && !HAS_ALL_PLATFORMS {
            continue;
        }
        let root = tempfile::tempdir().expect("temporary directory");
        let server = serve(setup, root.path());
        for case in cases {
            match check(case, &ask(&server, case)) {
                Ok(()) => passed += 1,
                Err(why) => failures.push(format!("{}: {why}", case.id)),
            }
        }
    }
    println!("{passed} passed");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    let expected = if HAS_ALL_PLATFORMS { 71 } else { 64 };
    assert_eq!(passed, expected, "cases are missing");
}

/// The other file formats of models that the cases cover in one format.
#[test]
#[cfg(all(feature = "xgboost", feature = "sklearn"))]
fn files_of_other_forms_answer_the_same() {
    let row = json!({"data": [[1.0, 2.0, 3.0, 4.0]]}).to_string();
    for form in ["bst", "joblib", "pkl"] {
        let server = serve_file("default", &format!("xgboost_iris/model.{form}"), "xgboost");
        let answer = server.post("/", &row).json();
        assert!(alike(&answer, &json!({"result": [1.877_554_9]}), Some(1e-6)), "{form}: {answer}");
    }
    // The two files hold different forests; the expected values were computed by hand.
    for (form, logs) in [("joblib", "[[-Infinity,-1.6094379"), ("pkl", "[[-Infinity,-1.07044141")] {
        let server =
            serve_file("default", &format!("scikitlearn_iris/model.{form}"), "scikitlearn");
        let answer = server.post("/", &row).text();
        // Numbers that JSON does not have are written as in Python.
        let logs = format!("\"predict_log_proba\":{logs}");
        assert!(answer.contains(&logs), "{form}: {answer}");
        assert!(answer.contains("\"predict\":[2],"), "{form}: {answer}");
    }
}

fn ask(server: &TestServer, case: &Case) -> Answer {
    if let Some(form) = &case.form {
        return ask_form(server, case, form);
    }
    let body = match (&case.request_body, &case.request_body_raw) {
        (Some(body), _) => body.to_string(),
        (None, raw) => raw.clone().unwrap_or_default(),
    };
    // Two cases contain a placeholder.
    let image = fs::read(data("simple-tensorflow-serving/images/mew.jpg")).expect("image");
    let standard = STANDARD.encode(image);
    assert!(standard.contains('/') || standard.contains('+'), "the text is also valid as URL-safe");
    let body = body.replace("<standard base64 with / or +>", &standard);
    let ones = json!([[vec![vec![1.0; 28]; 28]]]).to_string();
    let body = body.replace("\"<1x1x28x28 ones>\"", &ones);
    let headers: Vec<(&str, &str)> =
        case.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    request(server.address, &case.method, &case.path, &headers, body)
}

/// Sends a form: a field for each text, a file for each `@path`.
fn ask_form(server: &TestServer, case: &Case, form: &BTreeMap<String, Value>) -> Answer {
    if case.headers.values().any(|kind| kind == "application/x-www-form-urlencoded") {
        return ask_text_form(server, case, form);
    }
    let mut fields: Vec<(&str, Option<&str>, Vec<u8>)> = Vec::new();
    for (name, value) in form {
        let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        for value in values {
            let text = value.as_str().expect("text");
            match text.strip_prefix("@${DATA}/") {
                Some(file) => fields.push((name, Some(file), fs::read(data(file)).expect(file))),
                None => fields.push((name, None, text.into())),
            }
        }
    }
    let fields: Vec<Field> = fields.iter().map(|(n, f, c)| (*n, *f, c.as_slice())).collect();
    post_form(server.address, &case.path, &fields)
}

/// Sends a URL-encoded form with every byte escaped.
fn ask_text_form(server: &TestServer, case: &Case, form: &BTreeMap<String, Value>) -> Answer {
    let escaped = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
    let field = |(name, value): (&String, &Value)| {
        format!("{}={}", escaped(name), escaped(value.as_str().expect("text")))
    };
    let body = form.iter().map(field).collect::<Vec<_>>().join("&");
    let kind = [("Content-Type", "application/x-www-form-urlencoded")];
    request(server.address, &case.method, &case.path, &kind, body)
}

fn check(case: &Case, answer: &Answer) -> Result<(), String> {
    let got = answer.text();
    let mended = MENDED.iter().find(|(id, ..)| *id == case.id);
    let status = mended.map_or(case.expect_status, |(_, status, _)| *status);
    if answer.status != status {
        return Err(format!("status {}, not {status}: {got}", answer.status));
    }
    if let Some((_, _, part)) = mended {
        return got.contains(part).then_some(()).ok_or(format!("{part:?} is not in {got}"));
    }
    let kind = answer.headers.get("content-type").map(String::as_str);
    if kind != Some("application/json") {
        // A page or plain text.
        let parts = case.expect_contains.iter().map(String::as_str);
        let word = case.expect_body.as_ref().and_then(Value::as_str);
        let missing = parts.chain(word).find(|part| !got.contains(part));
        let is_source = case.path.contains("/gen_client");
        let is_for_data = case.path == "/" || (case.path.starts_with("/v1/") && !is_source);
        return match (missing, is_for_data) {
            (Some(part), _) => Err(format!("{part:?} is not in {got}")),
            (None, true) => Err(format!("not JSON: {:?}", answer.headers)),
            (None, false) => Ok(()),
        };
    }
    // The logarithm of 0, as Python's JSON writes it.
    let json = got.replace("-Infinity", "null");
    let mut answered: Value = serde_json::from_str(&json).map_err(|e| format!("{e}: {got}"))?;
    if case.id == "sk-predict" {
        // The case omits one output.
        answered
            .as_object_mut()
            .and_then(|all| all.remove("predict_log_proba"))
            .ok_or(got.clone())?;
    }
    // Expected parts are searched in an error's message or in the whole body.
    let text = answered["error"].as_str().unwrap_or(&got);
    if let Some(part) = case.expect_contains.iter().find(|part| !text.contains(*part)) {
        return Err(format!("{part:?} is not in {got}"));
    }
    match &case.expect_body {
        Some(want) if !alike(&answered, want, Some(1e-6)) => Err(format!("got {got}\nnot {want}")),
        _ => Ok(()),
    }
}

/// Links every TensorFlow model in `root`.
fn link_saved_models(root: &Path) -> PathBuf {
    for entry in fs::read_dir(data(MODELS)).expect("models").flatten() {
        let mut versions = fs::read_dir(entry.path()).expect("versions").flatten();
        if versions.any(|version| version.path().join("saved_model.pb").exists()) {
            link(&entry.path(), &root.join(entry.file_name()));
        }
    }
    root.to_owned()
}

#[test]
fn every_loadable_model_answers_with_its_known_values() {
    let root = tempfile::tempdir().expect("temporary directory");
    let server = serve_all(&link_saved_models(root.path()), "");
    let ones = json!([[1, 1, 1, 1, 1, 1, 1, 1, 1]]);
    let encode = |file: &str| {
        let image = fs::read(data("simple-tensorflow-serving/images").join(file)).expect(file);
        base64::engine::general_purpose::URL_SAFE.encode(image)
    };
    let example = "Ch8KDgoBYRIJCgcKBWhlbGxvCg0KAWISCBIGCgQAAAA_";
    let template = |version: i64| {
        json!({"model_name": TEMPLATE, "model_version": version,
               "data": {"keys": [[7]], "features": ones}})
    };
    let cases = [
        (template(1), json!({"softmax": [[0.615_544_97, 0.384_455]]})),
        (template(2), json!({"softmax": [[0.641_487, 0.358_513]]})),
        (
            json!({"model_name": "deep_image_model",
                   "data": {"images": [encode("mnist_1.jpg"), encode("inception_0.jpg")]}}),
            json!({"prediction": [13, 7]}),
        ),
        (
            json!({"model_name": "distributed_tensorflow_model",
                   "data": {"keys": [[1], [2]], "features": [[1.0], [2.0]]}}),
            json!({"keys": [[1], [2]], "prediction": [[12.043_603_9], [14.088_453_3]]}),
        ),
        (
            json!({"model_name": "tensorflow_estimator_model", "base64_decode": true,
                   "data": {"inputs": [example]}}),
            json!({"scores": [[0.550_998_75, 0.449_001_22]], "classes": [["0", "1"]]}),
        ),
        (
            json!({"model_name": "simplest_model", "data": {"keys": [[3], [-4]]}}),
            json!({"keys": [[3], [-4]]}),
        ),
        // Without its Python hooks, the model is an ordinary graph.
        (
            json!({"model_name": "preprocess_simplest_model", "data": {"keys": [5, 6]}}),
            json!({"keys": [5, 6]}),
        ),
        (
            json!({"model_name": "tf2_two_signatures", "data": {"x": [[1.5], [2]]}}),
            json!({"y": [[3.0], [4.0]]}),
        ),
        // The original can only call the first signature.
        (
            json!({"model_name": "tf2_two_signatures", "signature_name": "other",
                   "data": {"q": [[1.5]]}}),
            json!({"z": [[2.5]]}),
        ),
    ];
    for (request, want) in cases {
        let answer = server.post("/", request.to_string());
        assert_eq!(answer.status, 200, "{request}: {}", answer.text());
        let got = answer.json();
        for (name, value) in want.as_object().expect("an object") {
            assert!(
                alike(&got[name], value, Some(1e-6)),
                "{request}: {name} of {got} is not {value}"
            );
        }
    }
}

#[test]
fn a_model_with_an_unknown_operation_is_told_of_and_hinders_no_other() {
    let root = tempfile::tempdir().expect("temporary directory");
    let server = serve_all(&link_saved_models(root.path()), "");
    let answer = server.get("/readyz");
    assert_eq!(answer.status, 503);
    let error = answer.error();
    assert!(error.contains("model custom_op_model") && error.contains("ZeroOut"), "{error}");
    let body = json!({"model_name": "custom_op_model", "data": {"input": [[1, 2]]}});
    let answer = server.post("/", body.to_string());
    assert_eq!(answer.status, 400);
    assert!(answer.error().contains("Invalid model name: custom_op_model"), "{}", answer.error());
    let body = json!({"model_name": "simplest_model", "data": {"keys": [[1]]}});
    assert_eq!(server.post("/", body.to_string()).json(), json!({"keys": [[1]]}));
}
