//! The command line of TensorFlow Serving, with real models.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::support::client::{Client, get, post, request};
use crate::support::model_server::{
    HALF_PLUS_THREE, HALF_PLUS_TWO, Place, UPSTREAM, assert_fails, base_path, command, list,
    listed, write_list,
};
use crate::support::process::{ended, run};
use crate::support::{data, link};

#[test]
fn version_and_help() {
    let answer = ended(&mut command(&["--version"]));
    assert!(answer.status.success());
    let mut lines = answer.stdout.lines();
    let ours = format!("TensorFlow ModelServer: {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(lines.next(), Some(ours.as_str()));
    assert!(lines.next().is_some_and(|line| line.starts_with("TensorFlow Library: 2.")));
    let help = ended(&mut command(&["--help"]));
    assert!(help.status.success());
    assert!(help.stdout.starts_with("usage: tensorflow_model_server\nFlags:\n"));
    // The name as the first argument has the same effect.
    let by_argument = run(&["tensorflow_model_server", "--version"]);
    assert_eq!(by_argument.stdout, answer.stdout);
    assert_eq!(run(&["tensorflow_model_server", "--help"]).stdout, help.stdout);
}

#[test]
fn every_flag_is_in_the_docs() {
    let docs = fs::read_to_string(crate::support::project("docs/tensorflow-serving.md"));
    let docs = docs.expect("docs");
    let help = ended(&mut command(&["--help"])).stdout;
    let flags = help.lines().filter_map(|line| line.trim().strip_prefix("--"));
    let names: Vec<&str> = flags.filter_map(|flag| flag.split('=').next()).collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        assert!(docs.contains(&format!("`{name}`")), "{name} is not in the docs");
    }
}

#[test]
fn one_model_is_served_and_unknown_flags_are_told() {
    let flags = [
        &base_path(HALF_PLUS_TWO),
        "--model_name=m",
        "--prot=1",
        "--port",
        "--prefer_tflite_model",
    ];
    let place = Place::start(&flags, |_| ());
    assert_eq!(place.value("m"), Some(2.5));
    // Leading zeros in a version number are ignored.
    assert_eq!(place.value("m/versions/123"), Some(2.5));
    assert_eq!(place.value("m/versions/00000123"), Some(2.5));
    let status = get(place.process.address, "/v1/models/m").json();
    assert_eq!(status["model_version_status"][0]["version"], "123");
    let log = place.log();
    for part in [
        "unknown argument: --prot=1\nunknown argument: --port\nusage: tensorflow_model_server",
        "--prefer_tflite_model is ignored: TensorFlow Lite models are not served",
        "Exporting HTTP/REST API at:localhost:",
    ] {
        assert!(log.contains(part), "{part:?} is not in: {log}");
    }
    // As in TensorFlow Serving: all interfaces, and no CORS headers by default.
    let loopback = if TcpListener::bind("[::1]:0").is_ok() { "[::1]" } else { "127.0.0.1" };
    let address = format!("{loopback}:{}", place.process.address.port());
    let answer = get(address.parse().expect("an address"), "/v1/models/m");
    assert_eq!(answer.status, 200);
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    assert_eq!(get(place.process.address, "/monitoring/prometheus/metrics").status, 404);
}

#[test]
fn a_value_that_is_none_ends_the_start() {
    for flag in ["--port=many", "--enable_batching=maybe", "--per_process_gpu_memory_fraction=x"] {
        let answer = ended(&mut command(&[flag]));
        assert_eq!(answer.status.code(), Some(255), "{flag}");
        assert!(answer.stderr.contains("Couldn't interpret value"), "{}", answer.stderr);
        assert!(answer.stderr.contains("usage: "), "{}", answer.stderr);
    }
}

#[test]
fn mistakes_at_the_start_are_told_as_there() {
    let fails = |flags: &[&str], message: &str| {
        assert_fails(&ended(&mut command(flags)), message);
    };
    let model = base_path(HALF_PLUS_TWO);
    fails(
        &[],
        "INVALID_ARGUMENT: Both server_options.model_base_path and \
         server_options.model_config_file are empty!",
    );
    fails(
        &[&model, "--batching_parameters_file=/x"],
        "INVALID_ARGUMENT: server_options.batching_parameters_file is set without setting \
         server_options.enable_batching to true.",
    );
    fails(
        &[&model, "--port=0"],
        "INVALID_ARGUMENT: At least one of server_options.grpc_port or \
         server_options.grpc_socket_path must be set.",
    );
    fails(&["--model_config_file=/no/such"], "NOT_FOUND: /no/such; No such file or directory");
    let root = tempfile::tempdir().expect("temporary directory");
    let file = root.path().join("models.config");
    let flag = format!("--model_config_file={}", file.display());
    let model = |name: &str| listed(name, Path::new("/m"), "");
    fs::write(&file, list(&[model("m"), model("m")])).expect("written");
    fails(&[&flag], "INVALID_ARGUMENT: Illegal to list model m multiple times in config list");
    fs::write(&file, "model_config_list {\n  config { nme: \"m\" }\n}").expect("written");
    let place = "Error parsing text-format tensorflow.serving.ModelServerConfig: 2:12: ";
    let file = file.display();
    fails(&[&flag], &format!("INVALID_ARGUMENT: Invalid protobuf file: '{file}': {place}"));
    let taken = TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = taken.local_addr().expect("address").port();
    let flag = format!("--rest_api_port={port}");
    fails(&[&base_path(HALF_PLUS_TWO), &flag], "UNAVAILABLE: ");
}

#[test]
fn a_list_of_models_with_policies_and_labels() {
    let two = data(&format!("{UPSTREAM}/saved_model_half_plus_two_2_versions"));
    let place = Place::start(&["--model_config_file=ROOT/models.config"], |root| {
        let both = "model_version_policy { specific { versions: 123 versions: 124 } } \
                    version_labels { key: 'stable' value: 123 } \
                    version_labels { key: 'canary' value: 124 }";
        let models = [listed("a", &two, both), listed("b", &data(HALF_PLUS_THREE), "")];
        write_list(root, &list(&models));
    });
    assert_eq!(place.value("a"), Some(2.5));
    assert_eq!(place.value("b"), Some(3.5));
    let status = get(place.process.address, "/v1/models/a").json();
    let versions = status["model_version_status"].as_array().expect("versions").clone();
    let versions: Vec<&str> = versions.iter().filter_map(|v| v["version"].as_str()).collect();
    assert_eq!(versions, ["124", "123"]);
    assert_eq!(place.value("a/labels/stable"), Some(2.5));
    assert_eq!(place.value("a/labels/canary"), Some(2.5));
    let unknown = place.predict("a/labels/other");
    unknown.assert_refused("label", 400, "Unrecognized servable version label: other");
}

#[test]
fn a_new_list_takes_over_under_load_and_a_bad_one_changes_nothing() {
    let flags =
        ["--model_config_file=ROOT/models.config", "--model_config_file_poll_wait_seconds=1"];
    let place = Place::start(&flags, |root| {
        link(&data(HALF_PLUS_TWO), &root.join("first/m"));
        link(&data(HALF_PLUS_THREE), &root.join("second/m"));
        write_list(root, &list(&[listed("m", &root.join("first/m"), "")]));
    });
    assert_eq!(place.value("m"), Some(2.5));
    let address = place.process.address;
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let load = thread::spawn(move || {
        let mut client = Client::connect(address).expect("connects");
        let mut answers = Vec::new();
        while stopped.try_recv().is_err() {
            let body = br#"{"instances": [1.0]}"#;
            let answer = client.request("POST", "/v1/models/m:predict", &[], body);
            let answer = answer.expect("an answer");
            assert_eq!(answer.status, 200, "{}", answer.text());
            let value = answer.json()["predictions"][0].as_f64().expect("a number");
            if answers.last() != Some(&value) {
                answers.push(value);
            }
        }
        answers
    });
    // The version number of `m` from another directory, and one more model.
    let root = place.root.path();
    let second = listed("m", &root.join("second/m"), "");
    let other = listed("other", &data(HALF_PLUS_TWO), "");
    place.write_list(&list(&[second.clone(), other]));
    place.wait_until("the second directory serves", |place| place.value("m") == Some(3.5));
    place.wait_until("the other model serves", |place| place.value("other") == Some(2.5));
    // One list for each kind of mistake.
    for (text, part) in [
        ("model_config_list {\n  config { name: 7 }\n}", "2:18: "),
        (&list(&[second.clone(), second.clone()]), "Illegal to list model m multiple times"),
        (&list(&[listed("m", Path::new("relative"), "")]), "to have an absolute path"),
        ("", "the file has no model_config_list"),
    ] {
        place.write_list(text);
        place.wait_until(part, |place| place.log().contains(part));
        assert!(place.log().contains("the models stay unchanged"));
        assert_eq!(place.value("other"), Some(2.5));
    }
    // A missing directory does not affect other models, and unlisted models are unloaded.
    let missing = listed("missing", &root.join("nowhere"), "");
    place.write_list(&list(&[second, missing]));
    place.wait_until("the other model is unloaded", |place| place.value("other").is_none());
    place.wait_until("error in the log", |place| {
        place.log().contains("{name: missing} due to error")
    });
    stop.send(()).expect("running client");
    assert_eq!(load.join().expect("no request failed"), [2.5, 3.5]);
}

#[test]
fn batching_parameters_are_read_again_with_the_list() {
    let flags = [
        "--model_config_file=ROOT/models.config",
        "--model_config_file_poll_wait_seconds=1",
        "--enable_batching",
        "--batching_parameters_file=ROOT/batching",
    ];
    let place = Place::start(&flags, |root| {
        link(&data(HALF_PLUS_TWO), &root.join("first/m"));
        write_list(root, &list(&[listed("m", &root.join("first/m"), "")]));
        fs::write(root.join("batching"), "max_batch_size { value: 2 }").expect("written");
    });
    let three =
        || post(place.process.address, "/v1/models/m:predict", r#"{"instances": [1, 2, 3]}"#);
    assert_eq!(three().status, 400);
    fs::write(place.root.path().join("batching"), "max_batch_size { value: 8 }").expect("written");
    place.wait_until("the new batch size is in effect", |_| three().status == 200);
    assert!(place.log().contains("has new batching parameters"), "{}", place.log());
}

#[test]
fn batching_parameters_are_in_effect() {
    let flags = [
        &base_path(HALF_PLUS_TWO),
        "--enable_batching",
        "--batching_parameters_file=ROOT/batching",
    ];
    let place = Place::start(&flags, |root| {
        let text = "max_batch_size { value: 16 }\nnum_batch_threads { value: 2 }\n\
                    thread_pool_name { value: 'x' }\nallowed_batch_sizes: [8, 16]";
        fs::write(root.join("batching"), text).expect("written");
    });
    let rows = |count: usize| {
        let body = format!("{{\"instances\": {:?}}}", vec![1.0; count]);
        post(place.process.address, "/v1/models/default:predict", body)
    };
    assert_eq!(rows(16).status, 200);
    let message = "Task size 17 is larger than maximum input batch size 16";
    rows(17).assert_refused("17 rows", 400, message);
    let bad = tempfile::tempdir().expect("temporary directory");
    let file: PathBuf = bad.path().join("batching");
    fs::write(&file, "max_batch_size { value: 16 } allowed_batch_sizes: 8").expect("written");
    let flag = format!("--batching_parameters_file={}", file.display());
    let answer = ended(&mut command(&[&base_path(HALF_PLUS_TWO), "--enable_batching", &flag]));
    let message = "INVALID_ARGUMENT: Last entry in allowed_batch_sizes must match max_batch_size; \
                   last entry was 8; expected 16";
    assert_fails(&answer, message);
}

#[test]
fn each_version_can_bring_its_own_batching() {
    let flags =
        ["--model_base_path=ROOT/m", "--enable_batching", "--enable_per_model_batching_parameters"];
    let place = Place::start(&flags, |root| {
        let version = root.join("m/1");
        let model = data(HALF_PLUS_TWO).join("00000123");
        link(&model.join("saved_model.pb"), &version.join("saved_model.pb"));
        link(&model.join("variables"), &version.join("variables"));
        let file = version.join("batching_params.pbtxt");
        fs::write(file, "max_batch_size { value: 4 }").expect("written");
    });
    let body = r#"{"instances": [1, 2, 3, 4, 5]}"#;
    let answer = post(place.process.address, "/v1/models/default:predict", body);
    answer.assert_refused("5 rows", 400, "Task size 5 is larger than maximum input batch size 4");
}

#[test]
fn metrics_where_the_file_says_and_headers_for_browsers() {
    let flags = [
        &base_path(HALF_PLUS_TWO),
        "--monitoring_config_file=ROOT/monitoring",
        "--rest_api_enable_cors_support",
        "--file_system_poll_wait_seconds=0",
    ];
    let place = Place::start(&flags, |root| {
        fs::write(root.join("monitoring"), "prometheus_config { enable: true }").expect("written");
    });
    let address = place.process.address;
    let metrics = get(address, "/monitoring/prometheus/metrics");
    assert_eq!(metrics.status, 200);
    let text = metrics.text();
    assert!(text.contains("# TYPE :tensorflow:serving:request_count counter\n"), "{text}");
    assert!(!text.contains("tensorserve_"), "{text}");
    assert!(get(address, "/metrics").text().contains("tensorserve_build_info"));
    assert!(!metrics.headers.contains_key("access-control-allow-origin"));
    let origin = [("Origin", "http://example.org")];
    let answers = [
        request(address, "OPTIONS", "/v1/models/default:predict", &origin, ""),
        place.predict("default"),
        place.predict("unknown"),
        get(address, "/v1/nothing"),
    ];
    for answer in answers {
        let header = |name: &str| answer.headers.get(name).map(String::as_str);
        assert_eq!(header("access-control-allow-origin"), Some("*"));
        assert_eq!(header("access-control-allow-methods"), Some("POST, GET"));
        assert_eq!(header("access-control-allow-headers"), Some("Content-Type"));
    }
}

#[test]
fn versions_are_looked_for_once_if_told_so() {
    let flags = ["--model_base_path=ROOT/m", "--file_system_poll_wait_seconds=0"];
    let place = Place::start(&flags, |root| {
        link(&data(HALF_PLUS_TWO).join("00000123"), &root.join("m/1"));
    });
    assert_eq!(place.value("default"), Some(2.5));
    link(&data(HALF_PLUS_THREE).join("00000123"), &place.root.path().join("m/2"));
    // Longer than the default poll interval.
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(place.value("default"), Some(2.5));
    assert!(!place.log().contains("version 2"), "{}", place.log());
}
