//! `serve` as SageMaker's container, and `docker` for SageMaker's local mode.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

use crate::sagemaker_cases::{Part, Tally, cases_of};
use crate::support::client::{get, post};
use crate::support::process::{Ended, Process, ended, tensorserve};
use crate::support::{data, free_ports, link};

const HALF_PLUS_THREE: &str = "tensorflow-serving/upstream/testdata/saved_model_half_plus_three";

/// A version of half_plus_three.
fn version() -> PathBuf {
    data(HALF_PLUS_THREE).join("00000123")
}

/// A directory with that version at each of these paths.
fn model_dir(versions: &[&str]) -> TempDir {
    let root = tempfile::tempdir().expect("temporary directory");
    for path in versions {
        link(&version(), &root.path().join(path));
    }
    root
}

/// `serve` with these SageMaker variables and no others.
fn container(model_dir: &Path, variables: &[(&str, &str)]) -> Command {
    let mut command = tensorserve(&["serve"]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SAGEMAKER_") {
            command.env_remove(name);
        }
    }
    command.env("SAGEMAKER_MODEL_DIR", model_dir).env("SAGEMAKER_BIND_TO_PORT", "0");
    // Another test may use the default port.
    if !variables.iter().any(|(name, _)| *name == "SAGEMAKER_SAFE_PORT_RANGE") {
        command.env("TENSORSERVE_GRPC_PORT", "0");
    }
    command.envs(variables.iter().copied());
    command
}

fn serve(model_dir: &TempDir, variables: &[(&str, &str)]) -> Process {
    Process::start(container(model_dir.path(), variables))
}

fn refused(model_dir: &Path, variables: &[(&str, &str)]) -> String {
    let Ended { status, stderr, .. } = ended(&mut container(model_dir, variables));
    assert_eq!(status.code(), Some(1), "{stderr}");
    stderr
}

fn predicts(process: &Process, model: &str) {
    let path = format!("/v1/models/{model}:predict");
    let answer = post(process.address, &path, r#"{"instances": [1.0, 2.0, 5.0]}"#);
    let expected = serde_json::json!({"predictions": [3.5, 4.0, 5.5]});
    assert_eq!(answer.json(), expected, "{model}");
}

#[test]
fn models_are_found_at_any_depth_with_all_their_versions() {
    let root = model_dir(&["half_plus_three/00000123", "half_plus_three/00000124", "b/c/Servo/1"]);
    // No time, port or temporary name has these digits by chance.
    let hidden = root.path().join("half_plus_three/.0000011122233344");
    fs::create_dir(&hidden).expect("a directory");
    fs::write(hidden.join(".hidden_file"), b"").expect("written");
    let process = serve(&root, &[]);
    for model in ["half_plus_three/versions/123", "half_plus_three/versions/124", "Servo"] {
        predicts(&process, model);
    }
    let printed = process.printed.join("\n");
    let base = format!("base_path: '{}'", root.path().join("half_plus_three").display());
    for part in [
        "using default model name: Servo",
        "name: 'half_plus_three'",
        &base,
        "model_platform: 'tensorflow'",
        "versions: 123",
        "versions: 124",
    ] {
        assert!(printed.contains(part), "{part:?} is not in: {printed}");
    }
    assert!(!printed.contains("11122233344"), "{printed}");
}

#[test]
fn the_folder_itself_is_the_model_called_model() {
    let root = model_dir(&["1"]);
    let process = serve(&root, &[]);
    predicts(&process, "model");
    assert!(process.printed.contains(&"using default model name: model".to_owned()));
}

#[test]
fn the_default_model_is_the_one_that_is_named() {
    let root = model_dir(&["a/1", "b/1"]);
    let named = [("SAGEMAKER_TFS_DEFAULT_MODEL_NAME", "b")];
    let process = serve(&root, &named);
    assert!(process.printed.contains(&"using default model name: b".to_owned()));
    let error = refused(root.path(), &[("SAGEMAKER_TFS_DEFAULT_MODEL_NAME", "c")]);
    assert!(
        error.contains("there is no model \"c\"") && error.contains("the models are a, b"),
        "{error}"
    );
}

/// Cases with deliberately different responses. `docs/sagemaker.md` gives the reasons.
const OTHERWISE: [&str; 2] = [
    // The server does not run nginx.
    "cfg-nginx-default",
    "cfg-nginx-env",
];

#[test]
fn every_case_of_the_start_passes() {
    let mut tally = Tally::default();
    for case in cases_of(Part::Start) {
        let root = match case.id.as_str() {
            "cfg-servo" => model_dir(&["export/Servo/1"]),
            _ => model_dir(&["half_plus_three/00000123", "half_plus_three/00000124"]),
        };
        let hidden = root.path().join("half_plus_three/.00000111");
        if case.id == "cfg-model-config" {
            fs::create_dir(hidden).expect("a directory");
        }
        let variables: Vec<(&str, &str)> = case
            .setup
            .env
            .iter()
            .filter(|(_, value)| *value != "9000-9999")
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        let printed = match case.method.as_str() {
            "START" => refused(root.path(), &variables),
            _ => serve(&root, &variables).printed.join("\n"),
        };
        // The test's directory stands for /opt/ml/model.
        let printed = printed.replace(&root.path().display().to_string(), "/opt/ml/model");
        let is_missing = |part: &&String| match case.id.as_str() {
            "cfg-batching" => printed.matches(part.as_str()).count() != 1,
            _ => !printed.contains(part.as_str()),
        };
        let missing = case.expect_contains.iter().find(is_missing);
        let surplus = case.expect_not_contains.iter().find(|part| printed.contains(part.as_str()));
        let outcome = match missing.or(surplus) {
            None => Ok(()),
            Some(part) => Err(format!("{part:?}: {printed}")),
        };
        tally.note(&case, outcome, &OTHERWISE);
    }
    tally.assert(5, &OTHERWISE);
}

#[test]
fn batching_is_printed_as_the_container_does() {
    let process = serve(
        &model_dir(&["m/1"]),
        &[
            ("SAGEMAKER_TFS_ENABLE_BATCHING", "true"),
            ("SAGEMAKER_TFS_MAX_BATCH_SIZE", "16"),
            ("SAGEMAKER_TFS_BATCH_TIMEOUT_MICROS", "500"),
            ("SAGEMAKER_TFS_NUM_BATCH_THREADS", "100"),
            ("SAGEMAKER_TFS_MAX_ENQUEUED_BATCHES", "1"),
        ],
    );
    for line in [
        "max_batch_size { value: 16 }",
        "batch_timeout_micros { value: 500 }",
        "num_batch_threads { value: 100 }",
        "max_enqueued_batches { value: 1 }",
    ] {
        let times = process.printed.iter().filter(|printed| *printed == line).count();
        assert_eq!(times, 1, "{line:?} in {:?}", process.printed);
    }
    predicts(&process, "m");
}

#[test]
fn what_cannot_start_says_why() {
    let root = model_dir(&["m/1"]);
    for (name, value, part) in [
        ("SAGEMAKER_TFS_ENABLE_BATCHING", "yes", "must be 'true' or 'false'"),
        ("SAGEMAKER_MULTI_MODEL", "maybe", "SAGEMAKER_MULTI_MODEL must be 'true' or 'false'"),
        (
            "SAGEMAKER_SAFE_PORT_RANGE",
            "9000-9001",
            "not enough ports available in SAGEMAKER_SAFE_PORT_RANGE (9000-9001)",
        ),
    ] {
        let error = refused(root.path(), &[(name, value)]);
        assert!(error.contains(part), "{error}");
    }
    let empty = tempfile::tempdir().expect("temporary directory");
    let error = refused(empty.path(), &[]);
    assert!(error.contains("no SavedModel bundles found!"), "{error}");
    let twice = model_dir(&["a/m/1", "b/m/1"]);
    let error = refused(twice.path(), &[]);
    assert!(error.contains("two models have the name \"m\""), "{error}");
}

#[test]
fn a_default_model_that_cannot_be_loaded_ends_the_container() {
    let root = model_dir(&["half_plus_three/1"]);
    fs::create_dir(root.path().join("code")).expect("a directory");
    let script = "import nothing_of_that_name\n";
    fs::write(root.path().join("code/inference.py"), script).expect("written");
    let Ended { status, stdout, stderr } = ended(&mut container(root.path(), &[]));
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the default model \"half_plus_three\" cannot be loaded"), "{stderr}");
    // The traceback is printed once, and not in the table of models.
    assert_eq!(stderr.matches("Traceback").count(), 1, "{stderr}");
    assert!(!stdout.contains("Traceback"), "{stdout}");
}

#[test]
fn models_of_ones_own_are_not_the_containers() {
    let root = model_dir(&["m/1"]);
    let mut command = tensorserve(&["serve", "--http-port=0", "--grpc-port=0"]);
    command.arg(root.path()).env("SAGEMAKER_MULTI_MODEL", "true").env("SAGEMAKER_BATCH", "true");
    let process = Process::start(command);
    assert!(!process.printed.iter().any(|line| line.contains("default model")));
    predicts(&process, "m");
    let both = ended(tensorserve(&["serve", "--sagemaker"]).arg(root.path()));
    assert_eq!(both.status.code(), Some(2), "{}", both.stderr);
}

#[test]
fn the_ports_of_tensorflow_serving_are_open_for_handlers() {
    let root = model_dir(&["m/1"]);
    let low = free_ports(2);
    let range = format!("{low}-{}", low + 9);
    let mut process = serve(&root, &[("SAGEMAKER_SAFE_PORT_RANGE", range.as_str())]);
    let rest = format!("127.0.0.1:{}", low + 1).parse().expect("an address");
    assert_eq!(get(rest, "/v1/models/m").status, 200);
    let grpc = format!("listening on grpc://[::]:{low}");
    let without_ipv6 = format!("listening on grpc://0.0.0.0:{low}");
    assert!(process.printed.iter().any(|line| *line == grpc || *line == without_ipv6));
    let open = process.printed.iter().find(|line| line.starts_with("open: ")).expect("a line");
    let further = format!(":{}, gRPC on ", low + 1);
    assert_eq!(open.matches("HTTP on ").count(), 2, "{open}");
    assert!(open.contains(&further) && open.contains("also for other machines"), "{open}");
    process.signal("TERM");
    assert!(process.wait().success());
    assert!(TcpListener::bind(rest).is_ok(), "the port is free again");
}

#[test]
fn an_archive_is_served() {
    let root = tempfile::tempdir().expect("temporary directory");
    let archive = root.path().join("model.tar.gz");
    let file = fs::File::create(&archive).expect("a file");
    let mut builder = tar::Builder::new(GzEncoder::new(file, Compression::fast()));
    builder.append_dir_all("half/1", version()).expect("packed");
    builder.into_inner().and_then(GzEncoder::finish).expect("finished");
    let mut command = container(Path::new("/nowhere"), &[]);
    command.arg("--model-dir").arg(&archive);
    predicts(&Process::start(command), "half");
    fs::write(&archive, b"no archive").expect("written");
    let error = refused(&archive, &[]);
    assert!(error.contains("model.tar.gz: "), "{error}");
}

/// An archive `name` in `folder` with these files and directories.
fn packed(folder: &Path, name: &str, content: &[(&str, &Path)]) -> PathBuf {
    let archive = folder.join(name);
    let file = fs::File::create(&archive).expect("a file");
    let mut builder = tar::Builder::new(GzEncoder::new(file, Compression::fast()));
    for (place, path) in content {
        match path.is_dir() {
            true => builder.append_dir_all(place, path).expect("packed"),
            false => builder.append_path_with_name(path, place).expect("packed"),
        }
    }
    builder.into_inner().and_then(GzEncoder::finish).expect("finished");
    archive
}

/// Training jobs leave an archive without a `code/`.
#[test]
fn an_archive_is_a_model_for_serve_and_transform() {
    let root = tempfile::tempdir().expect("temporary directory");
    let deep = packed(root.path(), "ranker.tar.gz", &[("export/Servo/1", &version())]);
    let process = Process::serve(&deep, &[]);
    let answer = post(process.address, "/v1/models/ranker:predict", r#"{"instances": [1.0]}"#);
    assert_eq!(answer.json()["predictions"], serde_json::json!([3.5]), "{}", answer.text());
    // A model of another platform, at the root.
    let pickle = data("platforms/sklearn/iris_logreg_pipeline.pkl");
    let flat = packed(root.path(), "model.tar.gz", &[("model.pkl", &pickle)]);
    let row = r#"{"instances": [[5.1, 3.5, 1.4, 0.2]]}"#;
    let process = Process::serve(&flat, &[]);
    let answer = post(process.address, "/v1/models/model:predict", row);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let expected = answer.json();
    let mut command = container(Path::new("/nowhere"), &[]);
    command.arg("--model-dir").arg(&flat);
    let process = Process::start(command);
    let answer = post(process.address, "/invocations", row);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json(), expected);
    for (archive, csv, found) in [(&deep, "1.0\n", "3.5\n"), (&flat, "5.1,3.5,1.4,0.2\n", "{")] {
        let input = root.path().join("in.csv");
        fs::write(&input, csv).expect("written");
        let output = tempfile::tempdir().expect("temporary directory");
        let mut command = tensorserve(&["transform"]);
        command.arg(archive).arg("--input").arg(&input).arg("--output").arg(output.path());
        let ended = ended(&mut command);
        assert!(ended.status.success(), "{}", ended.stderr);
        let text = fs::read_to_string(output.path().join("in.csv.out")).expect("an output");
        assert!(text.starts_with(found), "{text}");
    }
}

/// This binary, run as `docker` in `folder`.
fn docker(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = tensorserve(arguments);
    command.arg0("/usr/local/bin/docker").current_dir(folder);
    command
}

#[test]
fn docker_says_what_the_sdk_asks() {
    let root = tempfile::tempdir().expect("temporary directory");
    let says = |arguments: &[&str]| {
        let answer = ended(&mut docker(root.path(), arguments));
        assert!(answer.status.success() && answer.stderr.is_empty(), "{}", answer.stderr);
        answer.stdout
    };
    assert!(says(&["compose", "version"]).contains("v2"));
    assert!(!says(&["info"]).contains("Cgroup Driver: none"));
    let context: serde_json::Value =
        serde_json::from_str(&says(&["context", "inspect"])).expect("JSON");
    let host = context[0]["Endpoints"]["docker"]["Host"].as_str().expect("text");
    assert!(host.starts_with("unix://"));
    assert!(!says(&["images", "-q", "image:tag"]).trim().is_empty());
    says(&["compose", "-f", "x.yaml", "down"]);
    let unknown = ended(&mut docker(root.path(), &["swarm", "init"]));
    assert_eq!(unknown.status.code(), Some(1));
    assert!(unknown.stderr.contains("docker swarm init"), "{}", unknown.stderr);
    let missing = ended(&mut docker(root.path(), &["compose", "up"]));
    assert!(missing.stderr.contains("docker-compose.yaml"), "{}", missing.stderr);
}

#[test]
fn docker_compose_up_serves() {
    let root = model_dir(&["m/1"]);
    let port = free_ports(1);
    let compose = format!(
        "services:\n  algo-1:\n    command: serve\n    image: any\n    environment:\n    \
         - SAGEMAKER_TFS_DEFAULT_MODEL_NAME=m\n    ports:\n    - {port}:8080\n    volumes:\n    \
         - {}:/opt/ml/model\nversion: '2.3'\n",
        root.path().display()
    );
    let file = root.path().join("docker-compose.yaml");
    fs::write(&file, compose).expect("written");
    let file = file.display().to_string();
    let up = ["compose", "-f", &file, "up", "--build", "--abort-on-container-exit"];
    let mut command = docker(root.path(), &up);
    // Variables of the caller, which a container does not see.
    command.env("SAGEMAKER_MULTI_MODEL", "true").env("TENSORSERVE_GRPC_PORT", "0");
    let mut process = Process::start(command);
    assert_eq!(process.address.port(), port);
    predicts(&process, "m");
    process.signal("TERM");
    assert_eq!(process.wait().code(), Some(0));
}
