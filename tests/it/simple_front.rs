//! A server that replaces Simple TensorFlow Serving: command line, list of models, CORS, pages with
//! hostile names, and profiles.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;

use serde_json::{Value, json};
use tensorserve::config::Cors;

use crate::support::client::{get, post, post_form, request};
use crate::support::fake::Model;
use crate::support::place::Place;
use crate::support::process::{Process, ended, run, tensorserve};
use crate::support::server::{TestServer, config, settings};
use crate::support::{data, link, project};

const MODELS: &str = "simple-tensorflow-serving/models";
const TEMPLATE: &str = "simple-tensorflow-serving/models/tensorflow_template_application_model";

/// This binary, run as `stfs`.
fn stfs(arguments: &[&str]) -> std::process::Command {
    let mut command = tensorserve(arguments);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("STFS_") {
            command.env_remove(name);
        }
    }
    command.arg0("/usr/local/bin/stfs");
    command
}

fn features() -> Value {
    json!({"data": {"keys": [[1]], "features": [[1, 1, 1, 1, 1, 1, 1, 1, 1]]}})
}

#[test]
fn the_command_line_serves_prints_its_settings_and_no_password() {
    let path = data(TEMPLATE).display().to_string();
    let mut command = stfs(&["--port", "0", "--model_base", &path, "--enable_auth=False"]);
    command.env("STFS_AUTH_PASSWORD", "hunter2").env("STFS_MODEL_NAME", "from_variable");
    let process = Process::start(command);
    let printed = process.printed.join("\n");
    for part in ["model_name: from_variable", &format!("model_base_path: {path}"), "port: 0"] {
        assert!(printed.contains(part), "{part:?} is not in: {printed}");
    }
    assert!(!printed.contains("hunter2") && printed.contains("auth_password: (not shown)"));
    assert!(!printed.contains("grpc://"), "gRPC must be off: {printed}");
    let answer = post(process.address, "/", features().to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    // Both versions are served; a request without a version uses the higher one.
    assert!(answer.text().contains("0.6414870023727417"), "{}", answer.text());
    let models = get(process.address, "/v1/models").json();
    assert_eq!(models[0]["model_version_list"], json!(["1", "2"]));
    assert_eq!(models[0]["model_base_path"], path);
}

#[test]
#[cfg(all(feature = "xgboost", feature = "mxnet"))]
fn models_of_other_platforms_are_named_by_flag_and_in_the_list() {
    use crate::support::alike;

    let boosted = data(MODELS).join("xgboost_iris/model.bst").display().to_string();
    let row = json!({"data": [[1.0, 2.0, 3.0, 4.0]]}).to_string();
    let flags = ["--port=0", "--model_base_path", &boosted, "--model_platform=xgboost"];
    let process = Process::start(stfs(&flags));
    let answer = post(process.address, "/", &row);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.text(), "{\"result\":[1.8775548934936523]}\n");
    let detail = get(process.address, "/v1/models/default").json();
    assert_eq!(detail["platform"], "XGBoost");
    assert_eq!(detail["model_base_path"], boosted);
    assert_eq!(detail["model_version_list"], json!(["1"]));
    // TensorFlow Serving's API serves the model, too.
    let body = json!({"instances": [[1.0, 2.0, 3.0, 4.0]]}).to_string();
    let answer = post(process.address, "/v1/models/default:predict", body).json();
    assert!(alike(&answer, &json!({"predictions": [1.877_554_9]}), Some(1e-6)), "{answer}");

    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("models.json");
    let list = json!({"model_config_list": [
        {"name": "default", "base_path": data(MODELS).join("simplest_model")},
        {"name": "mxnet_mlp_model", "base_path": data(MODELS).join("mxnet_mlp/mx_mlp"),
         "platform": "mxnet"},
        {"name": "boosted", "base_path": boosted, "platform": "xgboost"},
    ]});
    fs::write(&file, list.to_string()).expect("written");
    let file = file.display().to_string();
    let process = Process::start(stfs(&["--port=0", "--model_config_file", &file]));
    let ask = |name: &str, data: Value| {
        let body = json!({"model_name": name, "model_version": 1, "data": data}).to_string();
        post(process.address, "/", body).json()
    };
    assert_eq!(ask("default", json!({"keys": [[4]]})), json!({"keys": [[4]]}));
    let answer = ask("mxnet_mlp_model", json!({"data": [[12.0, 2.0]]}));
    assert!(alike(&answer, &json!({"lro": [[8.336_845_9]]}), Some(1e-6)), "{answer}");
    let answer = ask("boosted", json!([[1.0, 2.0, 3.0, 4.0]]));
    assert_eq!(answer, json!({"result": [1.877_554_893_493_652_3]}));
}

#[test]
#[cfg(feature = "xgboost")]
fn mistakes_in_the_data_of_other_platforms_are_told() {
    let boosted = data(MODELS).join("xgboost_iris/model.bst").display().to_string();
    let flags = ["--port=0", "--model_base_path", &boosted, "--model_platform=xgboost"];
    let process = Process::start(stfs(&flags));
    for (wrong, message) in [
        ("[[1, 2, 3]]", "Cannot feed value of shape (1, 3) for Tensor data"),
        ("[1, 2, 3, 4]", "Cannot feed value of shape (4,) for Tensor data"),
        ("7", "Cannot feed value of shape () for Tensor data"),
        ("[[1, \"x\", 3, 4]]", "could not convert string to float"),
        ("[[1], [2, 3]]", "ragged"),
        ("{}", "Input op name 'data' does not exist in input data"),
        ("{\"ids\": [1], \"values\": [1]}", "Input op name 'data' does not exist"),
    ] {
        let answer = post(process.address, "/", format!("{{\"data\": {wrong}}}"));
        assert_eq!(answer.status, 400, "{wrong}: {}", answer.text());
        assert!(answer.error().contains(message), "{wrong}: {}", answer.error());
    }
}

#[test]
#[cfg(feature = "xgboost")]
fn marshalled_hooks_beside_a_model_are_told_of_when_asked_for() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let model = folder.path().join("model.bst");
    fs::copy(data(MODELS).join("xgboost_iris/model.bst"), &model).expect("copied");
    fs::write(folder.path().join("preprocess_function.marshal"), "code").expect("written");
    let path = model.display().to_string();
    let flags = ["--port=0", "--model_base_path", &path, "--model_platform=xgboost"];
    let process = Process::start(stfs(&flags));
    let row = json!([[1.0, 2.0, 3.0, 4.0]]);
    let asked = json!({"preprocess": "true", "data": row}).to_string();
    let answer = post(process.address, "/", asked);
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert!(answer.error().contains("Python's marshal format"), "{}", answer.error());
    let not_asked = json!({"preprocess": "false", "data": row}).to_string();
    assert_eq!(post(process.address, "/", not_asked).status, 200);
}

#[test]
#[cfg(feature = "spark")]
fn rows_in_libsvms_form_are_checked() {
    let path = data(MODELS).join("mllib_lr_model").display().to_string();
    let flags = ["--port=0", "--model_base_path", &path, "--model_platform=spark"];
    let process = Process::start(stfs(&flags));
    let ask = |data: Value| post(process.address, "/", json!({"data": data}).to_string());
    let row = json!({"format": "libsvm", "max_ids": 692, "ids": [128], "values": [51]});
    let sparse = ask(row.clone()).json();
    let mut dense = vec![0.0; 692];
    dense[128] = 51.0;
    let answer = ask(json!([dense])).json();
    for (name, value) in sparse.as_object().expect("an object") {
        assert!(value.is_number(), "a single row must give scalars: {sparse}");
        assert_eq!(answer[name], json!([value]), "{name}");
    }
    for (name, value, message) in [
        ("max_ids", json!(691), "max_ids must be 692"),
        ("ids", json!([692]), "id 692 is out of range: the model has 692 features"),
        ("ids", json!([-1]), "id -1 is out of range: the model has 692 features"),
        ("ids", json!([1, 2]), "there are 2 ids and 1 values"),
        ("values", json!(["x"]), "could not convert string to float"),
    ] {
        let mut wrong = row.clone();
        wrong[name] = value;
        let answer = ask(wrong);
        assert_eq!(answer.status, 400, "{name}: {}", answer.text());
        assert!(answer.error().contains(message), "{name}: {}", answer.error());
    }
}

#[test]
fn a_list_of_models_is_served_without_those_for_other_platforms() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("models.json");
    let path = |name: &str| data(MODELS).join(name);
    let list = json!({"model_config_list": [
        {"name": "default", "base_path": "/replaced/by/the/later/one"},
        {"name": "boosted", "base_path": "/m", "platform": "caffe2"},
        {"name": "default", "base_path": path("simplest_model"), "platform": "tensorflow"},
        {"name": "images", "base_path": path("deep_image_model")},
    ]});
    fs::write(&file, list.to_string()).expect("written");
    let log = folder.path().join("log");
    let mut command = stfs(&["--port=0", "--model_config_file", &file.display().to_string()]);
    command.stderr(fs::File::create(&log).expect("a file"));
    let process = Process::start(command);
    let answer = post(process.address, "/", json!({"data": {"keys": [[4]]}}).to_string());
    assert_eq!(answer.json(), json!({"keys": [[4]]}));
    let names = get(process.address, "/v1/models").json();
    let names: Vec<&Value> =
        names.as_array().expect("a list").iter().map(|m| &m["model_name"]).collect();
    assert_eq!(names, ["default", "images"]);
    let log = fs::read_to_string(log).expect("the log");
    for part in [
        "model boosted: platform \"caffe2\" is unknown; the platforms are: ",
        "model default is listed twice; /replaced/by/the/later/one is ignored",
    ] {
        assert!(log.contains(part), "{part:?} is not in: {log}");
    }
}

#[test]
fn mistakes_and_help() {
    let wrong = ended(&mut stfs(&["--prot=1"]));
    assert_eq!(wrong.status.code(), Some(2));
    assert!(wrong.stderr.contains("--port"), "{}", wrong.stderr);
    let remote = ended(&mut stfs(&["--model_base_path=hdfs://default/models"]));
    assert_eq!(remote.status.code(), Some(1));
    assert!(remote.stderr.contains("is not a directory of this machine"), "{}", remote.stderr);
    let help = run(&["simple_tensorflow_serving", "--help"]);
    assert!(help.status.success());
    let docs = fs::read_to_string(project("docs/simple-tensorflow-serving.md")).expect("docs");
    let flags =
        help.stdout.split("--").skip(1).filter_map(|rest| rest.split([' ', '[', '\n']).next());
    let flags: Vec<&str> = flags.filter(|flag| *flag != "help").collect();
    assert!(flags.len() >= 20, "{flags:?}");
    for flag in flags {
        assert!(docs.contains(&format!("`{flag}`")), "{flag} is not in the docs");
    }
}

fn simple(models: &[(&str, Model)], cors: Cors) -> Place {
    Place::configured(
        models,
        |_, _| (),
        |config| {
            config.protocols.replaces_simple = true;
            config.http.cors = cors;
        },
    )
}

#[test]
fn browsers_may_ask_from_anywhere_if_it_is_on() {
    let place = simple(&[("models/m/1", Model::default())], Cors::AnyOrigin);
    let address = place.server.address;
    let origin = ("Origin", "http://x.example");
    for (method, path, status) in [("GET", "/health", 200), ("GET", "/nowhere", 404)] {
        let answer = request(address, method, path, &[origin], "");
        assert_eq!(answer.status, status);
        assert_eq!(answer.headers["access-control-allow-origin"], "http://x.example", "{path}");
        assert!(answer.headers["vary"].contains("Origin"));
        assert!(!answer.headers.contains_key("access-control-allow-credentials"));
    }
    assert_eq!(get(address, "/health").headers["access-control-allow-origin"], "*");
    let preflight = [
        origin,
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type, authorization"),
    ];
    let answer = request(address, "OPTIONS", "/", &preflight, "");
    assert_eq!((answer.status, answer.text().as_str()), (200, ""));
    assert_eq!(answer.headers["access-control-allow-headers"], "content-type, authorization");
    let methods = &answer.headers["access-control-allow-methods"];
    assert_eq!(methods, "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT");
    // Without the preflight headers, OPTIONS is refused like any other method.
    assert_eq!(request(address, "OPTIONS", "/", &[origin], "").status, 405);
}

#[test]
fn browsers_may_ask_the_originals_routes_only() {
    let place = simple(&[("models/m/1", Model::default())], Cors::AnyOrigin);
    let address = place.server.address;
    let origin = ("Origin", "http://x.example");
    for path in
        ["/", "/v1/models", "/v1/models/m/gen_json", "/json_inference", "/static/simple.css"]
    {
        let answer = request(address, "GET", path, &[origin], "");
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.headers["access-control-allow-origin"], "http://x.example", "{path}");
    }
    for path in ["/api/v1/status", "/api/v1/audit", "/api/v1/nothing", "/metrics", "/openapi.json"]
    {
        let preflight = [origin, ("Access-Control-Request-Method", "GET")];
        let answer = request(address, "GET", path, &preflight[..1], "");
        let names = answer.headers.keys();
        let allowed: Vec<_> = names.filter(|name| name.starts_with("access-control")).collect();
        assert!(allowed.is_empty(), "{path}: {allowed:?}");
        let answer = request(address, "OPTIONS", path, &preflight, "");
        assert_ne!(answer.status, 200, "{path}");
        assert!(!answer.headers.contains_key("access-control-allow-methods"), "{path}");
    }
}

#[test]
fn browsers_may_not_if_it_is_off() {
    let place = simple(&[("models/m/1", Model::default())], Cors::Off);
    let origin = ("Origin", "http://x.example");
    let answer = request(place.server.address, "GET", "/health", &[origin], "");
    assert_eq!(answer.status, 200);
    assert!(answer.headers.keys().all(|name| !name.starts_with("access-control")));
    let preflight = [origin, ("Access-Control-Request-Method", "POST")];
    assert_eq!(request(place.server.address, "OPTIONS", "/", &preflight, "").status, 405);
}

#[test]
fn shared_paths_are_tensorflow_servings_under_other_names() {
    let place = Place::of(&Model::default(), |_| ());
    assert!(place.server.get("/v1/models").json().is_object());
    assert!(place.server.get("/v1/models/m").json()["model_version_status"].is_array());
    // A server that replaces TensorFlow Serving does not have the other paths.
    let answer = place.server.get("/v1/models/m/gen_json?signature=serving_default");
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.json()["data"].is_object());
    let answer = place.server.get("/v1/models/m/gen_json?version=9");
    answer.assert_refused("version", 404, "Model not found: m");
    let answer = place.server.get("/v1/models/m/gen_json?version=x");
    answer.assert_refused("version", 400, "x is not a whole number");
    let answer = place.server.get("/v1/models/m/gen_json?signature=x");
    answer.assert_refused("signature", 404, "signature \"x\" not found");
    let exact = Place::configured(
        &[("models/m/1", Model::default())],
        |_, _| (),
        |config| config.answer_as_tfs(),
    );
    let answer = exact.server.get("/v1/models/m/gen_json");
    answer.assert_refused("exact", 400, "Malformed request");
}

const HOSTILE: &str = "<img onerror=alert(1) src=x>\"'&";

#[test]
fn hostile_names_and_data_stay_text_on_pages() {
    let folder = format!("models/{HOSTILE}/1");
    let place = simple(&[(&folder, Model::default())], Cors::Off);
    let escaped = "&lt;img onerror=alert(1) src=x&gt;&quot;&#39;&amp;";
    for path in ["/json_inference", "/image_inference"] {
        let answer = place.server.get(path);
        let page = answer.text();
        assert_eq!(answer.status, 200, "{path}");
        assert!(page.contains(escaped) && !page.contains("<img"), "{path}: {page}");
        let policy = &answer.headers["content-security-policy"];
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        assert!(!page.contains("<script") && !page.contains("style="), "{page}");
    }
    let form = "model_name=%3Cscript%3E&signature_name=%22%3E&json_data=%3C%2Ftextarea%3E%3Cb%3E";
    let answer = place.server.post("/run_json_inference", form);
    let page = answer.text();
    assert_eq!(answer.status, 400);
    assert!(page.contains("&lt;/textarea&gt;&lt;b&gt;") && !page.contains("<b>"), "{page}");
    assert!(page.contains("value=\"&lt;script&gt;\"") && !page.contains("<script>"), "{page}");
    let answer = place.server.get("/v1/models/%3Cscript%3E");
    assert_eq!((answer.status, answer.text().as_str()), (404, "Model not found: &lt;script&gt;"));
    let list = place.server.get("/v1/models");
    assert_eq!(list.json()[0]["model_name"], HOSTILE);
    assert_eq!(list.headers["content-type"], "application/json");
}

#[test]
fn a_file_that_is_no_image_gets_the_models_own_error_on_the_page() {
    let mut settings = settings();
    settings.paths.push(data(MODELS).join("deep_image_model"));
    let server = TestServer::start(settings);
    server.wait_until_started();
    let here = fs::read_dir(".").expect("a directory").count();
    let fields = [
        ("model_name", None, &b"deep_image_model"[..]),
        ("image", Some("../../evil.html"), &b"<script>alert(1)</script>"[..]),
    ];
    let answer = post_form(server.address, "/run_image_inference", &fields);
    let page = answer.text();
    assert_eq!(answer.status, 400, "{page}");
    assert!(page.contains("25 bytes that are not a picture"), "{page}");
    assert!(page.contains("Sess.run() fail because of"), "{page}");
    assert!(!page.contains("<script"), "{page}");
    assert_eq!(fs::read_dir(".").expect("a directory").count(), here, "a file was written");
    let image = fs::read(data("simple-tensorflow-serving/images/mew.jpg")).expect("image");
    let fields = [("image", Some("mew.jpg"), image.as_slice())];
    let answer = post_form(server.address, "/run_image_inference", &fields);
    let page = answer.text();
    assert_eq!(answer.status, 200, "{page}");
    assert!(page.contains("src=\"data:image/jpeg;base64,"), "the picture is shown");
    assert!(page.contains("&quot;prediction&quot;:[6]"), "{page}");
}

#[test]
fn pages_say_which_methods_they_take() {
    let place = simple(&[("models/m/1", Model::default())], Cors::Off);
    for (method, path, allowed) in [
        ("POST", "/json_inference", "GET, HEAD"),
        ("GET", "/run_json_inference", "POST"),
        ("DELETE", "/static/images/favicon.ico", "GET, HEAD"),
    ] {
        let answer = request(place.server.address, method, path, &[], "");
        assert_eq!((answer.status, answer.headers["allow"].as_str()), (405, allowed), "{path}");
    }
    assert_eq!(place.server.get("/static/../../etc/passwd").status, 404);
    assert_eq!(place.server.get("/static/simple.css").status, 200);
}

/// Serves a TensorFlow 1 model and a TensorFlow 2 model.
fn old_and_new(root: &Path) -> TestServer {
    link(&data(TEMPLATE).join("1"), &root.join("old/1"));
    link(&project("models/digits"), &root.join("digits"));
    let mut settings = settings();
    settings.paths.push(root.to_owned());
    let server = TestServer::start_configured(&config(settings));
    server.wait_until_started();
    server
}

/// The rows of a profile's table: operation and other columns.
fn rows(profile: &str) -> Vec<(String, String)> {
    let table = profile.lines().skip_while(|line| !line.starts_with("node name |")).skip(1);
    let rows = table.take_while(|line| !line.is_empty());
    let row = |line: &str| line.split_once(' ').map(|(op, rest)| (op.to_owned(), rest.to_owned()));
    rows.filter_map(row).collect()
}

#[test]
fn a_profile_tells_which_operations_took_the_time() {
    let root = tempfile::tempdir().expect("temporary directory");
    let server = old_and_new(root.path());
    let mut body = features();
    body["model_name"] = json!("old");
    let plain = server.post("/", body.to_string()).json();
    body["run_profile"] = json!("true");
    let answer = server.post("/", body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut profiled = answer.json();
    let text = profiled["__PROFILE__"].as_str().expect("text").to_owned();
    let rows = rows(&text);
    // MatMul, or an operation that the runtime has fused it into.
    let matmul = rows.iter().find(|(op, _)| op.contains("MatMul"));
    assert!(matmul.is_some_and(|(_, columns)| columns.contains("us (")), "{text}");
    assert!(rows.iter().any(|(op, _)| op.contains("Softmax")), "{text}");
    profiled.as_object_mut().expect("an object").remove("__PROFILE__");
    assert_eq!(profiled, plain);
    // Any other value requests no profile.
    for other in [json!("false"), json!(true), json!("True"), json!({"a": [1]}), json!(null)] {
        body["run_profile"] = other;
        assert_eq!(server.post("/", body.to_string()).json(), plain, "{body}");
    }
    // The member may also follow the data.
    let late = body["data"].clone();
    let late = format!("{{\"data\": {late}, \"model_name\": \"old\", \"run_profile\": \"true\"}}");
    assert!(server.post("/", late).json()["__PROFILE__"].is_string());
    // An invalid request gets the same error with a profile.
    body["data"]["features"] = json!([[1, 2]]);
    body["run_profile"] = json!("true");
    let answer = server.post("/", body.to_string());
    answer.assert_refused("shape", 400, "Cannot feed value of shape (1, 2)");
}

#[test]
fn a_profile_of_a_form_with_an_image() {
    let root = tempfile::tempdir().expect("temporary directory");
    let server = old_and_new(root.path());
    let image = fs::read(project("examples/images/digits/3_45.png")).expect("image");
    let fields = [
        ("image", Some("3.png"), image.as_slice()),
        ("model_name", None, &b"digits"[..]),
        ("run_profile", None, &b"true"[..]),
    ];
    let answer = post_form(server.address, "/", &fields);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let profile = answer.json()["__PROFILE__"].as_str().expect("text").to_owned();
    assert!(rows(&profile).iter().any(|(op, _)| op.contains("MatMul")), "{profile}");
}
