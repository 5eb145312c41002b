//! Isolated models: a crash of a run ends the model's own process, which is started again, and nothing
//! else; answers are those of a model in the server's process.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use prost::Message;
use serde_json::json;
use tensorserve_proto::serving::{ModelSpec, PredictRequest};
use tensorserve_proto::{Form, tensor_to_proto};
use tensorserve_tensor::{Buffer, DType, Shape, StringsBuilder, Tensor, aligned_vec};
use tonic::Code;

use crate::support::client::{get, post};
use crate::support::grpc::{Caller, PREDICT};
use crate::support::process::{Process, children, is_running, kill, model_processes, tensorserve};
use crate::support::{copy, data, pause_between_requests, project, wait_until};

const CRASHES: &str = "/v1/models/aborts_when_empty:predict";
/// The input for which the model `aborts_when_empty` ends its process.
const FATAL: &str = r#"{"inputs": []}"#;
const HARMLESS: &str = r#"{"inputs": [1]}"#;

/// Serves the models that `config` names, relative to its directory.
fn serve(root: &Path, config: &str) -> Process {
    let file = root.join("models.toml");
    fs::write(&file, config).expect("written");
    let ports = ["--http-port", "0", "--grpc-port", "0", "--poll-interval", "100ms"];
    let mut command = tensorserve(&["serve", "--log-level", "off"]);
    command.args(ports).arg("--config").arg(file);
    Process::start(command)
}

/// A directory with the models `half_plus_two` and `aborts_when_empty`, and a configuration that
/// isolates the latter.
fn place() -> (tempfile::TempDir, String) {
    let root = tempfile::tempdir().expect("temporary directory");
    copy(&project("models/half_plus_two"), &root.path().join("half_plus_two"));
    copy(&data("probe/aborts_when_empty"), &root.path().join("aborts_when_empty"));
    let path = root.path().display();
    let config = format!(
        "[[models]]\nname = \"half_plus_two\"\npath = \"{path}/half_plus_two\"\n\
         [[models]]\nname = \"aborts_when_empty\"\npath = \"{path}/aborts_when_empty\"\n\
         isolation = \"process\"\n"
    );
    (root, config)
}

#[test]
fn a_crash_of_a_run_ends_the_process_of_its_model_alone() {
    let (root, config) = place();
    let server = serve(root.path(), &config);
    let [first] = model_processes(&server)[..] else { panic!("not one process") };
    let (asked, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let ask = |body| post(server.address, CRASHES, body);
    let crash = || {
        for _ in 0..2 {
            wait_until("it is served", || ask(HARMLESS).status == 200);
            assert_eq!(ask(HARMLESS).json(), json!({"outputs": [2.0]}));
            let answer = ask(FATAL);
            answer.assert_refused("fatal", 503, "aborts_when_empty");
            assert!(answer.error().contains("SIGABRT"), "{}", answer.error());
        }
        wait_until("it is served", || ask(HARMLESS).status == 200);
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            while !stop.load(SeqCst) {
                let body = r#"{"instances": [1.0, 2.0]}"#;
                let answer = post(server.address, "/v1/models/half_plus_two:predict", body);
                assert_eq!(answer.json(), json!({"predictions": [2.5, 3.0]}));
                asked.fetch_add(1, SeqCst);
                pause_between_requests();
            }
        });
        let crashed = scope.spawn(crash).join();
        stop.store(true, SeqCst);
        other.join().expect("no request to the other model is lost");
        crashed.expect("the model recovers");
    });
    assert!(asked.load(SeqCst) > 10, "{asked:?} requests");
    let [last] = model_processes(&server)[..] else { panic!("not one process") };
    assert_ne!(first, last);
    // Over gRPC as well.
    let caller = Caller::connect(server.grpc()).expect("connects");
    let none = tensor(DType::Float, &[0], 0);
    let status = caller.call(PREDICT, predict("aborts_when_empty", &none)).expect_err("fatal");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

/// systemd sends SIGTERM to every process of a service: the server is what stops, with its last requests answered.
#[test]
fn a_signal_to_every_process_ends_the_server_alone() {
    let (root, config) = place();
    let server = serve(root.path(), &config);
    let model = model_processes(&server);
    // The host, its keepers and the model.
    let mut others = children(server.id());
    let mut next = 0;
    while let Some(&process) = others.get(next) {
        others.extend(children(process));
        next += 1;
    }
    assert!(model.iter().all(|process| others.contains(process)), "{model:?} in {others:?}");
    for signal in ["TERM", "INT", "HUP"] {
        let sent = Command::new("kill")
            .args(["-s", signal])
            .args(others.iter().map(u32::to_string))
            .status();
        assert!(sent.expect("kill runs").success());
    }
    assert_eq!(post(server.address, CRASHES, HARMLESS).json(), json!({"outputs": [2.0]}));
    assert_eq!(model_processes(&server), model);
    drop(server);
    wait_until("the processes end with the server", || {
        others.iter().all(|process| !is_running(*process))
    });
}

#[test]
fn the_same_crash_ends_a_server_that_does_not_isolate_the_model() {
    let (root, config) = place();
    let config = format!("load_probe = false\n{}", config.replace("\"process\"", "\"none\""));
    let mut server = serve(root.path(), &config);
    let address = server.address;
    thread::spawn(move || post(address, CRASHES, FATAL));
    assert!(!server.wait().success());
}

#[test]
fn a_version_that_crashes_in_its_load_fails() {
    let (root, config) = place();
    let folder = root.path().join("aborts_when_empty");
    fs::remove_dir_all(&folder).expect("removed");
    copy(&data("probe/aborts"), &folder);
    let server = serve(root.path(), &config);
    let status = || get(server.address, "/v1/models/aborts_when_empty").text();
    wait_until("it has failed", || status().contains("\"END\""));
    assert!(status().contains("SIGABRT"), "{}", status());
    assert_eq!(model_processes(&server), [0_u32; 0]);
    // A good version in its place.
    copy(&data("probe/aborts_when_empty/1"), &folder.join("2"));
    wait_until("it is served", || post(server.address, CRASHES, HARMLESS).status == 200);
}

#[test]
fn a_version_that_exhausts_the_memory_in_its_load_fails() {
    let root = tempfile::tempdir().expect("temporary directory");
    copy(&data("probe/takes_memory"), &root.path().join("takes_memory"));
    let path = root.path().display();
    let config = format!(
        "load_probe_memory = \"512MiB\"\n\
         [[models]]\nname = \"m\"\npath = \"{path}/takes_memory\"\nisolation = \"process\"\n"
    );
    let server = serve(root.path(), &config);
    let status = || get(server.address, "/v1/models/m").text();
    wait_until("the version has failed", || status().contains("\"END\""));
    let reason = "more than the 512 MiB of load_probe_memory";
    assert!(status().contains(reason), "{}", status());
    assert!(!get(server.address, "/v1/models").text().is_empty(), "the server serves on");
}

#[test]
fn processes_end_with_their_version_and_with_the_server() {
    let (root, config) = place();
    let mut server = serve(root.path(), &config);
    let [first] = model_processes(&server)[..] else { panic!("not one process") };
    let folder = root.path().join("aborts_when_empty");
    copy(&folder.join("1"), &folder.join("2"));
    wait_until("the first version is unloaded", || !is_running(first));
    wait_until("one process is left", || model_processes(&server).len() == 1);
    let [second] = model_processes(&server)[..] else { panic!("not one process") };
    assert_eq!(post(server.address, CRASHES, HARMLESS).status, 200);
    let host = children(server.id());
    server.signal("KILL");
    server.wait();
    wait_until("the process ends", || !is_running(second));
    wait_until("the host ends", || host.iter().all(|&id| !is_running(id)));
}

#[test]
fn a_process_that_is_killed_is_started_again() {
    let (root, config) = place();
    let server = serve(root.path(), &config);
    let [first] = model_processes(&server)[..] else { panic!("not one process") };
    kill(first);
    wait_until("it has ended", || !is_running(first));
    wait_until("it is served", || post(server.address, CRASHES, HARMLESS).status == 200);
}

/// A tensor whose bytes differ.
fn tensor(dtype: DType, dims: &[i64], elements: usize) -> Tensor {
    let shape = Shape::new(dims).expect("a shape");
    let Some(size) = dtype.size() else {
        let mut strings = StringsBuilder::default();
        (0..elements).for_each(|i| strings.push(&[0xff, 0, b'a'].repeat(i % 5)));
        return Tensor::from_strings(shape, strings).expect("a tensor");
    };
    let mut bytes = aligned_vec::<u8>(elements * size);
    for i in 0..elements * size {
        let byte = (i % 100) as u8;
        bytes.push(if dtype == DType::Bool { byte % 2 } else { byte });
    }
    Tensor::numeric(dtype, shape, Buffer::new(Arc::new(bytes))).expect("a tensor")
}

fn predict(model: &str, x: &Tensor) -> Vec<u8> {
    let request = PredictRequest {
        model_spec: Some(ModelSpec { name: model.to_owned(), ..ModelSpec::default() }),
        inputs: [("x".to_owned(), tensor_to_proto(x, Form::Content))].into(),
        output_filter: Vec::new(),
    };
    request.encode_to_vec()
}

#[test]
fn answers_are_those_of_the_servers_own_process() {
    const ECHOES: [(&str, DType); 15] = [
        ("echo_bfloat16", DType::BFloat16),
        ("echo_bool", DType::Bool),
        ("echo_complex64", DType::Complex64),
        ("echo_float16", DType::Half),
        ("echo_float32", DType::Float),
        ("echo_float64", DType::Double),
        ("echo_int16", DType::Int16),
        ("echo_int32", DType::Int32),
        ("echo_int64", DType::Int64),
        ("echo_int8", DType::Int8),
        ("echo_string", DType::String),
        ("echo_uint32", DType::UInt32),
        ("echo_uint64", DType::UInt64),
        ("echo_uint8", DType::UInt8),
        ("aborts_when_empty", DType::Float),
    ];
    let (root, _) = place();
    for (model, _) in &ECHOES[..14] {
        let echo = data("tensorflow-serving/generated").join(model);
        copy(&echo, &root.path().join(model));
    }
    let servers = ["process", "none"].map(|isolation| {
        let mut command = tensorserve(&["serve", "--http-port", "0", "--grpc-port", "0"]);
        command.args(["--log-level", "off", "--load-probe", "false", "--isolation", isolation]);
        command.args(["--request-timeout", "10m"]);
        command.arg(root.path());
        Process::start(command)
    });
    // All of them and half_plus_two.
    assert_eq!(model_processes(&servers[0]).len(), ECHOES.len() + 1);
    assert_eq!(children(servers[1].id()).len(), 0);
    let callers =
        servers.each_ref().map(|server| Caller::connect(server.grpc()).expect("connects"));
    let ask = |model: &str, x: &Tensor| {
        let answers = callers.each_ref().map(|caller| {
            caller.call(PREDICT, predict(model, x)).map_err(|s| (s.code(), s.message().to_owned()))
        });
        assert_eq!(answers[0], answers[1], "{model} {x:?}");
        answers[0].is_ok()
    };
    for (model, dtype) in ECHOES {
        let answered = [1, 3, 1000].map(|count| ask(model, &tensor(dtype, &[count as i64], count)));
        assert!(answered.iter().all(|&is_ok| is_ok), "{model}: {answered:?}");
        // Errors of the runtime pass as they are.
        ask(model, &tensor(DType::Complex128, &[1], 1));
    }
    // 10 MB, in the memory file.
    for (model, dtype) in [("echo_float32", DType::Float), ("echo_string", DType::String)] {
        assert!(ask(model, &tensor(dtype, &[2_500_000], 2_500_000)), "{model}");
        assert!(ask(model, &tensor(dtype, &[1], 1)), "{model}");
    }
    for path in ["/v1/models/echo_float32/metadata", "/v1/models/half_plus_two/metadata"] {
        let [isolated, plain] = servers.each_ref().map(|server| get(server.address, path).json());
        assert_eq!(isolated, plain);
    }
}
