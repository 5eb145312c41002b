//! The entrypoint of the images as the platforms start it: TensorFlow Serving's image, KServe, Vertex
//! AI, Cloud Run; and the files in `examples/containers`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;
use yaml_rust2::{Yaml, YamlLoader};

use crate::support::client::{get, post, request};
use crate::support::process::{Process, ended, tensorserve};
use crate::support::{copy, data, free_ports, link, project};

const HALF_PLUS_TWO: &str = "tensorflow-serving/upstream/testdata/saved_model_half_plus_two_cpu";

/// Variables of platforms that may be set where the tests run.
const PLATFORM_VARIABLES: [&str; 7] = [
    "MODEL_NAME",
    "MODEL_BASE_PATH",
    "PORT",
    "AIP_HTTP_PORT",
    "AIP_PREDICT_ROUTE",
    "AIP_HEALTH_ROUTE",
    "AIP_STORAGE_URI",
];

/// A command of the image, as its entrypoint gets it, with these variables alone.
fn container(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = tensorserve(&["container"]);
    command.args(arguments);
    for name in PLATFORM_VARIABLES {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    command
}

/// Free ports in place of those of TensorFlow Serving's image, which other programs may use.
fn other_ports() -> [String; 2] {
    [format!("--port={}", free_ports(1)), format!("--rest_api_port={}", free_ports(1))]
}

/// A directory of models with half_plus_two under each of these names.
fn models(names: &[&str]) -> TempDir {
    let root = tempfile::tempdir().expect("a directory");
    for name in names {
        link(&data(HALF_PLUS_TWO), &root.path().join(name));
    }
    root
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

fn predicts(process: &Process, path: &str) {
    let answer = post(process.address, path, r#"{"instances": [1.0, 5.0]}"#);
    assert_eq!(answer.json(), json!({"predictions": [2.5, 4.5]}), "{path}: {}", answer.text());
}

#[test]
fn the_image_of_tensorflow_serving_serves_the_model_of_its_variables() {
    let root = models(&["half plus two", "other"]);
    let base = ("MODEL_BASE_PATH", text(root.path()));
    let [grpc, http] = &other_ports();
    let command = container(&[grpc, http], &[("MODEL_NAME", "half plus two"), base]);
    let process = Process::start(command);
    predicts(&process, "/v1/models/half%20plus%20two:predict");
    assert_eq!(get(process.address, "/v1/models/other").status, 404);
    assert!(process.grpc().port() != 0);

    let wrong = ended(&mut container(&[], &[("MODEL_NAME", "team/m"), base]));
    assert_eq!(wrong.status.code(), Some(1));
    assert!(
        wrong.stderr.starts_with("error: MODEL_NAME: \"team/m\" contains / or :"),
        "{}",
        wrong.stderr
    );
}

#[test]
fn the_entrypoint_of_tensorflow_serving_waits_for_the_model() {
    let root = models(&[]);
    let programs = tempfile::tempdir().expect("a directory");
    symlink(env!("CARGO_BIN_EXE_tensorserve"), programs.path().join("tensorserve"))
        .expect("a link");
    let script = project("scripts/image/tf_serving_entrypoint.sh");
    assert_ne!(fs::metadata(&script).expect("a script").permissions().mode() & 0o111, 0);
    let [grpc, http] = &other_ports();
    // Only for its environment.
    let of_tests = container(&[], &[("MODEL_BASE_PATH", text(root.path()))]);
    let mut command = Command::new(&script);
    command.args([grpc, http]);
    for (name, value) in of_tests.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("PATH", format!("{}:/usr/bin:/bin", text(programs.path())));
    let mut process = Process::start(command);
    let unready = get(process.address, "/readyz");
    assert_eq!(unready.status, 503);
    assert!(unready.text().contains("model"), "{}", unready.text());
    link(&data(HALF_PLUS_TWO), &root.path().join("model"));
    let start = Instant::now();
    while get(process.address, "/readyz").status != 200 {
        assert!(start.elapsed() < Duration::from_secs(300), "never ready");
        thread::sleep(Duration::from_millis(50));
    }
    predicts(&process, "/v1/models/model:predict");
    // The script must not stand between the server and signals.
    process.signal("TERM");
    assert!(process.wait().success());
}

#[test]
fn commands_of_the_image_are_tensorserves() {
    let version = ended(&mut container(&["--version"], &[("MODEL_NAME", "m")]));
    let ours = format!("tensorserve {}\n", env!("CARGO_PKG_VERSION"));
    assert!(version.stdout.starts_with(&ours), "{}", version.stdout);
    let root = models(&["m"]);
    let port = free_ports(1).to_string();
    let command = container(&["serve", text(root.path()), "--grpc-port", "0"], &[("PORT", &port)]);
    let process = Process::start(command);
    assert_eq!(process.address.port().to_string(), port);
    predicts(&process, "/v1/models/m:predict");
    let url = format!("http://{}", process.address);
    assert!(ended(&mut container(&["health", &url], &[])).status.success());
    let wrong = ended(&mut container(&["serve", "/models"], &[("PORT", "http")]));
    assert_eq!(wrong.status.code(), Some(1));
    assert_eq!(wrong.stderr, "error: PORT: \"http\" is not a port (0 to 65535) for HTTP\n");
}

#[test]
fn help_states_the_rules() {
    let help = ended(&mut container(&["help", "container"], &[])).stdout;
    for variable in ["MODEL_NAME", "MODEL_BASE_PATH", "AIP_STORAGE_URI", "PORT"] {
        assert!(help.contains(variable), "{variable} is not in: {help}");
    }
}

/// A container as Vertex AI starts it, with the model `name` in its storage.
fn vertex(name: &str, more: &[(&str, &str)]) -> (Process, TempDir) {
    // Copied, because a model has the name of its directory and not of a link to that.
    let root = models(&[]);
    let port = free_ports(1).to_string();
    let storage = root.path().join(name);
    copy(&data(HALF_PLUS_TWO), &storage);
    let variables = [
        ("AIP_MODE", "PREDICTION"),
        ("AIP_HTTP_PORT", port.as_str()),
        ("AIP_PREDICT_ROUTE", PREDICT),
        ("AIP_HEALTH_ROUTE", HEALTH),
        ("AIP_STORAGE_URI", text(&storage)),
        ("TENSORSERVE_GRPC_PORT", "0"),
    ];
    let command = container(&[], &[&variables, more].concat());
    let process = Process::start(command);
    assert_eq!(process.address.port().to_string(), port);
    (process, root)
}

const PREDICT: &str = "/v1/endpoints/11/deployedModels/22:predict";
const HEALTH: &str = "/v1/endpoints/11/deployedModels/22";

#[test]
fn vertex_gets_predictions_at_the_routes_that_it_names() {
    let (process, _root) = vertex("half_plus_two", &[]);
    assert_eq!(get(process.address, HEALTH).status, 200);
    predicts(&process, PREDICT);
    let body = r#"{"parameters": {"threshold": 0.5}, "instances": [{"x": [1.0]}, {"x": [5.0]}]}"#;
    let named = post(process.address, PREDICT, body);
    assert_eq!(named.json(), json!({"predictions": [[2.5], [4.5]]}), "{}", named.text());
    // As clients send it through rawPredict.
    let raw = post(process.address, PREDICT, r#"{"inputs": [1.0]}"#);
    assert_eq!(raw.json(), json!({"outputs": [2.5]}));
    let unknown = r#"{"instances": [1.0], "parameters": {"signature_name": "other"}}"#;
    let message = "Serving signature name: \"other\" not found in signature def";
    post(process.address, PREDICT, unknown).assert_refused("signature", 400, message);
    post(process.address, PREDICT, "{\"instances\": [1.0").assert_refused(
        "syntax",
        400,
        "JSON Parse error",
    );
    post(process.address, PREDICT, "{}").assert_refused(
        "empty",
        400,
        "Missing 'inputs' or 'instances' key",
    );
    let wrong = request(process.address, "GET", PREDICT, &[], "");
    assert_eq!(wrong.status, 405);
    // The other APIs are there for other ways to the container.
    predicts(&process, "/v1/models/half_plus_two:predict");
    let metrics = get(process.address, "/metrics").text();
    assert!(metrics.contains(r#"protocol="vertex",method="predict",code="OK"} 3"#), "{metrics}");
}

#[test]
fn vertex_gets_no_predictions_while_the_server_stops() {
    let (mut process, _root) = vertex("m", &[("TENSORSERVE_SHUTDOWN_DELAY", "10s")]);
    assert_eq!(get(process.address, HEALTH).status, 200);
    process.signal("TERM");
    let start = Instant::now();
    while get(process.address, HEALTH).status != 503 {
        assert!(start.elapsed() < Duration::from_secs(9), "reported ready");
        thread::sleep(Duration::from_millis(20));
    }
    predicts(&process, PREDICT);
    assert!(process.wait().success());
}

#[test]
fn vertex_is_told_that_no_model_can_be_served() {
    let empty = tempfile::tempdir().expect("a directory");
    let routes =
        [("AIP_HTTP_PORT", "0"), ("AIP_HEALTH_ROUTE", "/"), ("TENSORSERVE_GRPC_PORT", "0")];
    let process = Process::start(container(&["serve", text(empty.path())], &routes));
    let message = "there is no model yet";
    post(process.address, "/predict", r#"{"instances": [1]}"#).assert_refused("none", 503, message);
    let root = models(&["a", "b"]);
    let process = Process::start(container(&["serve", text(root.path())], &routes));
    assert_eq!(get(process.address, "/").status, 200);
    let message = "this route does not name a model, and there are 2";
    post(process.address, "/predict", r#"{"instances": [1]}"#).assert_refused("two", 400, message);

    let missing = [("AIP_HTTP_PORT", "0"), ("AIP_STORAGE_URI", "/no/such/model")];
    let ended = ended(&mut container(&[], &missing));
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("/no/such/model: there is no such file"), "{}", ended.stderr);
}

/// A YAML document of `examples/containers`.
fn example(name: &str) -> Yaml {
    let file = project("examples/containers").join(name);
    let text = fs::read_to_string(&file).expect(name);
    let mut documents = YamlLoader::load_from_str(&text).expect(name);
    documents.remove(0)
}

fn words(yaml: &Yaml) -> Vec<String> {
    let words = yaml.as_vec().map(Vec::as_slice).unwrap_or_default();
    words.iter().map(|word| word.as_str().expect("a word").to_owned()).collect()
}

/// `arguments` with each `(old, new)` of `changes`, which must occur.
fn changed(arguments: &[String], changes: &[(&str, &str)]) -> Vec<String> {
    for (old, _) in changes {
        assert!(arguments.iter().any(|argument| argument.contains(old)), "{old} in {arguments:?}");
    }
    let change = |argument: &String| {
        changes.iter().fold(argument.clone(), |argument, (old, new)| argument.replace(old, new))
    };
    arguments.iter().map(change).collect()
}

#[test]
fn the_runtime_of_kserve_starts_the_server() {
    let runtime = example("kserve.yaml");
    let container = &runtime["spec"]["containers"][0];
    assert_eq!(container["name"].as_str(), Some("kserve-container"));
    let command = words(&container["command"]);
    assert_eq!(command, ["/usr/bin/tensorflow_model_server"]);
    let root = models(&["served"]);
    let [grpc, http] = &other_ports();
    let arguments = changed(
        &words(&container["args"]),
        &[
            ("{{.Name}}", "flowers"),
            ("--port=9000", grpc),
            ("--rest_api_port=8080", http),
            ("/mnt/models", text(&root.path().join("served"))),
        ],
    );
    // Kubernetes gives a user without a name neither a home nor a shell.
    let mut server = tensorserve(&arguments);
    server.arg0(&command[0]).env_remove("HOME").env_remove("USER").current_dir("/");
    let process = Process::start(server);
    predicts(&process, "/v1/models/flowers:predict");
    assert!(http.ends_with(&format!("={}", process.address.port())));
    assert!(grpc.ends_with(&format!("={}", process.grpc().port())));
    assert_eq!(get(process.address, "/metrics").status, 200);
}

#[test]
fn the_services_of_the_compose_file_start() {
    let compose = example("compose.yaml");
    let services = compose["services"].as_hash().expect("services");
    assert_eq!(services.len(), 3);
    let root = models(&["half_plus_two"]);
    let list = root.path().join("models.config");
    let path = text(&root.path().join("half_plus_two")).to_owned();
    let listed = format!(
        "model_config_list {{ config {{ name: 'half_plus_two' base_path: '{path}' \
         model_platform: 'tensorflow' }} }}"
    );
    fs::write(&list, listed).expect("written");
    for (name, service) in services {
        let name = name.as_str().expect("a name");
        let mut arguments = words(&service["command"]);
        let mut variables: Vec<(&str, &str)> = Vec::new();
        for (key, value) in service["environment"].as_hash().into_iter().flatten() {
            variables.push((key.as_str().expect("a name"), value.as_str().expect("a value")));
        }
        for argument in &mut arguments {
            *argument = argument.replacen("/models", text(root.path()), 1);
        }
        match name {
            "tensorserve" => {
                arguments.extend(["--http-port=0", "--grpc-port=0"].map(str::to_owned))
            }
            _ => {
                variables.push(("MODEL_BASE_PATH", text(root.path())));
                arguments.extend(other_ports());
            }
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let process = Process::start(container(&arguments, &variables));
        predicts(&process, "/v1/models/half_plus_two:predict");
    }
}

#[test]
fn the_services_of_clouds_start() {
    let cloud_run = example("cloud-run.yaml");
    let container_of_cloud_run = &cloud_run["spec"]["template"]["spec"]["containers"][0];
    let root = models(&["half_plus_two"]);
    let mount = container_of_cloud_run["volumeMounts"][0]["mountPath"].as_str().expect("a path");
    let arguments = changed(&words(&container_of_cloud_run["args"]), &[(mount, text(root.path()))]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let port = free_ports(1).to_string();
    let variables = [("PORT", port.as_str()), ("K_SERVICE", "s"), ("TENSORSERVE_GRPC_PORT", "0")];
    let process = Process::start(container(&arguments, &variables));
    assert_eq!(process.address.port().to_string(), port);
    predicts(&process, "/v1/models/half_plus_two:predict");
    let probe = &container_of_cloud_run["startupProbe"]["httpGet"]["path"];
    assert_eq!(get(process.address, probe.as_str().expect("a path")).status, 200);
    drop(process);

    let azure = example("azure-ml.yaml");
    let variables = azure["environment_variables"].as_hash().expect("variables");
    let value = |name: &str| {
        let value = variables.get(&Yaml::String(name.to_owned()));
        value.and_then(Yaml::as_str).expect(name).to_owned()
    };
    let folder = azure["model"]["path"].as_str().expect("a path").to_owned();
    let (name, base) = (value("MODEL_NAME"), value("MODEL_BASE_PATH"));
    let mount = azure["environment"]["inference_config"]["scoring_route"]["path"].as_str();
    assert_eq!(mount, Some(format!("/v1/models/{name}:predict").as_str()), "{base} {folder}");
    let [grpc, http] = &other_ports();
    let root = models(&[&name]);
    let variables = [("MODEL_NAME", name.as_str()), ("MODEL_BASE_PATH", text(root.path()))];
    let process = Process::start(container(&[grpc, http], &variables));
    predicts(&process, mount.expect("a path"));
    for probe in ["liveness_route", "readiness_route"] {
        let path = azure["environment"]["inference_config"][probe]["path"].as_str().expect(probe);
        assert_eq!(get(process.address, path).status, 200, "{probe}");
    }
}
