//! `tensorserve replay`: requests of a log, sent again, and their answers compared with those of the log.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::client::{get, post};
use crate::support::data;
use crate::support::grpc::{Caller, PREDICT};
use crate::support::model_server::HALF_PLUS_TWO;
use crate::support::process::{Ended, Process, run};
use crate::support::saved_model::{
    FLOAT, SavedModel, a_float_tensor, a_type, node, placeholder, signature, tensor,
};
use crate::support::wait_until;

use prost::Message;
use tensorserve_proto::serving::{ModelSpec, PredictRequest};
use tensorserve_proto::{Form, tensor_to_proto};
use tensorserve_tensor::{Shape, Tensor, aligned_vec};

/// Writes `y = x * factor` and `z = -x`.
fn write(folder: &Path, factor: f32) {
    let of_float = [("T", a_type(FLOAT))];
    let value = [("dtype", a_type(FLOAT)), ("value", a_float_tensor(&[], &[factor]))];
    let signature = signature(
        &[("x", tensor("x:0", FLOAT, &[-1]))],
        &[("y", tensor("y:0", FLOAT, &[-1])), ("z", tensor("z:0", FLOAT, &[-1]))],
    );
    let nodes = vec![
        placeholder("x", FLOAT, &[-1]),
        node("factor", "Const", &[], &value),
        node("y", "Mul", &["x", "factor"], &of_float),
        node("z", "Neg", &["x"], &of_float),
    ];
    let signatures = vec![("serving_default", signature)];
    SavedModel { nodes, signatures, ..SavedModel::default() }.write(folder);
}

/// The requests of a log.
const REQUESTS: u64 = 12;

/// A server with a request log answers what `ask` asks it. Returns its log.
fn logged(root: &Path, model: &Path, ask: impl FnOnce(&Process)) -> String {
    let logs = root.join("logs");
    let mut server = Process::serve(model, &["--request-log", &format!("{}/", logs.display())]);
    ask(&server);
    server.signal("TERM");
    assert!(server.wait().success());
    let files = fs::read_dir(&logs).expect("a directory");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("an entry").path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0).display().to_string()
}

/// A log of version 1, which doubles numbers.
struct Trial {
    root: TempDir,
    log: String,
}

impl Trial {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let model = root.path().join("logged/m");
        write(&model.join("1"), 2.0);
        let log = logged(root.path(), &model, |server| {
            for number in 1..REQUESTS {
                let body = format!("{{\"instances\": [{number}.5, -3.25]}}");
                let answer = post(server.address, "/v1/models/m:predict", body);
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            // One that asks for one output only.
            let mut x = aligned_vec::<f32>(1);
            x.push(100.0);
            let x = Tensor::from_vec(Shape::vector(1), x).expect("a tensor");
            let request = PredictRequest {
                model_spec: Some(ModelSpec { name: "m".to_owned(), ..ModelSpec::default() }),
                inputs: [("x".to_owned(), tensor_to_proto(&x, Form::Content))].into(),
                output_filter: vec!["z".to_owned()],
            };
            let caller = Caller::connect(server.grpc()).expect("connects");
            caller.call(PREDICT, request.encode_to_vec()).expect("an answer");
        });
        Trial { root, log }
    }

    /// A server of a version of the model.
    fn serve(&self, version: u32, factor: f32, options: &[&str]) -> Process {
        let model = self.root.path().join(format!("served-{version}-{factor}/m"));
        write(&model.join(version.to_string()), factor);
        Process::serve(&model, options)
    }
}

fn replay(log: &str, server: &Process, options: &[&str]) -> Ended {
    let url = format!("http://{}/v1/models/m", server.address);
    let grpc = server.grpc().to_string();
    run(&[&["replay", log, &url, "--grpc", &grpc][..], options].concat())
}

fn assert_exit(ended: &Ended, code: i32) {
    assert_eq!(ended.status.code(), Some(code), "{}{}", ended.stdout, ended.stderr);
}

/// How many requests a server has answered.
fn answered(server: &Process) -> u64 {
    let page = get(server.address, "/metrics").text();
    let lines = page.lines().filter(|line| line.starts_with("tensorserve_requests_total{"));
    lines.map(|line| line.rsplit(' ').next().and_then(|n| n.parse::<u64>().ok()).expect(line)).sum()
}

#[test]
fn a_server_that_logs_the_replay_gets_what_the_log_had() {
    let root = tempfile::tempdir().expect("a directory");
    let (model, logs) = (root.path().join("m"), root.path().join("logs"));
    write(&model.join("1"), 2.0);
    let server = Process::serve(&model, &["--request-log", &format!("{}/", logs.display())]);
    for number in 0..REQUESTS {
        let body = format!("{{\"instances\": [{number}]}}");
        assert_eq!(post(server.address, "/v1/models/m:predict", body).status, 200);
    }
    let log = || fs::read_dir(&logs).ok()?.next()?.ok().map(|entry| entry.path());
    wait_until("a record", || {
        log().is_some_and(|it| fs::metadata(it).is_ok_and(|it| it.len() > 0))
    });
    let ended = replay(&log().expect("a log").display().to_string(), &server, &["--verify"]);
    assert_exit(&ended, 0);
    let words: Vec<&str> = ended.stdout.split(' ').take(3).collect();
    assert!(matches!(words[..], [sent, "of", total] if sent == total), "{}", ended.stdout);
}

#[test]
fn the_same_model_gives_the_same_answers() {
    let trial = Trial::new();
    let server = trial.serve(1, 2.0, &["--receipts", "true"]);
    let ended = replay(&trial.log, &server, &[]);
    assert_exit(&ended, 0);
    let sent = format!("{REQUESTS} of {REQUESTS} requests sent to m on http://");
    assert!(ended.stdout.starts_with(&sent), "{}", ended.stdout);
    assert!(ended.stdout.contains(&format!("{REQUESTS} answered, 0 failed")), "{}", ended.stdout);
    assert!(!ended.stdout.contains("equal bits"), "{}", ended.stdout);
    assert_eq!(answered(&server), REQUESTS);

    let ended = replay(&trial.log, &server, &["--verify", "--tolerance", "0"]);
    assert_exit(&ended, 0);
    assert!(ended.stdout.contains("\nthe same: "), "{}", ended.stdout);
    let digest = format!("{REQUESTS} requests were answered by version 1 (sha256:");
    assert!(ended.stdout.contains(&digest), "{}", ended.stdout);

    let options = ["--verify", "--tolerance", "0", "--connections", "4", "--json"];
    let ended = replay(&trial.log, &server, &options);
    assert_exit(&ended, 0);
    let found: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(found["good"], true, "{found}");
    assert_eq!(found["verified"]["different"], 0, "{found}");
    // The last request asks for z only, then and now.
    let requests = |output: &str| found["verified"]["outputs"][output]["requests"].as_u64();
    assert_eq!((requests("y"), requests("z")), (Some(REQUESTS - 1), Some(REQUESTS)), "{found}");
    assert_eq!(answered(&server), 3 * REQUESTS);
}

#[test]
fn answers_that_differ_are_named() {
    let trial = Trial::new();
    let server = trial.serve(2, 2.2, &[]);
    let ended = replay(&trial.log, &server, &["--verify"]);
    assert_exit(&ended, 1);
    let versions = format!("{REQUESTS} requests of version 1 were answered by version 2\n");
    assert!(ended.stdout.contains(&versions), "{}", ended.stdout);
    let (_, different) = ended.stdout.split_once("\ndifferent:\n").expect(&ended.stdout);
    let first = format!("  {} record 1: output \"y\": values differ by ", trial.log);
    assert!(different.starts_with(&first), "{}", ended.stdout);
    // Ten are listed of the eleven that ask for y.
    assert!(different.contains("\n  and 1 more\n"), "{}", ended.stdout);
    assert!(different.contains("in 11 of 11 requests"), "{}", ended.stdout);
    assert!(!different.contains("output \"z\""), "{}", ended.stdout);
    // As much as it differs by is allowed.
    assert_exit(&replay(&trial.log, &server, &["--verify", "--tolerance", "y=0.2"]), 0);

    let slight = trial.serve(3, 2.000_000_2, &[]);
    assert_exit(&replay(&trial.log, &slight, &["--verify"]), 0);
    let ended = replay(&trial.log, &slight, &["--verify", "--tolerance", "0", "--json"]);
    assert_exit(&ended, 1);
    let found: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!((&found["good"], &found["failed"]), (&false.into(), &0.into()), "{found}");
    assert!(found["verified"]["different"].as_u64() > Some(0), "{found}");
    assert_eq!(found["versions"][0]["answered"], 3, "{found}");
}

#[test]
fn every_method_of_a_log_is_replayed() {
    let root = tempfile::tempdir().expect("a directory");
    let model = root.path().join("m");
    crate::support::link(&data(HALF_PLUS_TWO).join("00000123"), &model.join("123"));
    let log = logged(root.path(), &model, |server| {
        let ask = |method: &str, body: &str| {
            let answer = post(server.address, &format!("/v1/models/m:{method}"), body);
            assert_eq!(answer.status, 200, "{}", answer.text());
        };
        ask("predict", r#"{"instances": [1.0, 2.0]}"#);
        ask("regress", r#"{"signature_name": "regress_x_to_y", "examples": [{"x": 2.0}]}"#);
        let classify = r#"{"signature_name": "classify_x_to_y", "context": {"x": 4.0},
                           "examples": [{}, {"x": 2.0}]}"#;
        ask("classify", classify);
    });
    let server = Process::serve(&model, &[]);
    let ended = replay(&log, &server, &["--verify", "--tolerance", "0", "--json"]);
    assert_exit(&ended, 0);
    let found: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let outputs = found["verified"]["outputs"].as_object().expect("outputs");
    let names: Vec<&str> = outputs.keys().map(String::as_str).collect();
    assert_eq!(names, ["classes", "scores", "values", "y"], "{found}");
    assert!(outputs.values().all(|output| output["equal"] == 1), "{found}");
}

#[test]
fn a_log_that_cannot_be_replayed_is_refused_before_anything_is_sent() {
    let trial = Trial::new();
    let server = trial.serve(1, 2.0, &[]);
    let place = |name: &str| trial.root.path().join(name).display().to_string();
    let refused = |log: &str, options: &[&str], why: &[&str]| {
        let ended = replay(log, &server, options);
        assert_exit(&ended, 1);
        why.iter().for_each(|why| assert!(ended.stderr.contains(why), "{why}: {}", ended.stderr));
        assert_eq!((ended.stdout.as_str(), answered(&server)), ("", 0));
    };
    // A bit of the last record.
    let mut bytes = fs::read(&trial.log).expect("a log");
    let last = bytes.len() - 10;
    bytes[last] ^= 1;
    let damaged = place("damaged");
    fs::write(&damaged, bytes).expect("written");
    refused(&damaged, &[], &[&damaged, "record 12"]);
    // Without responses.
    let (body, bare) = (place("body.json"), place("bare"));
    fs::write(&body, "{\"instances\": [1]}").expect("written");
    let model = trial.root.path().join("logged/m").display().to_string();
    assert_exit(&run(&["warmup", "record", &model, &body, "--output", &bare]), 0);
    let why = [&*format!("{bare} record 1: "), "no response to compare with", "request_log"];
    refused(&bare, &["--verify"], &why);
    refused(&place("nothing"), &[], &["there is no such file"]);
    fs::write(place("empty"), "").expect("written");
    refused(&place("empty"), &[], &["the logs have no requests"]);
    refused(&trial.log, &["--tolerance", "0"], &["--tolerance is a rule of --verify"]);
    refused(&trial.log, &["--connections", "0"], &["--connections must be from 1"]);
    // What has no response can be sent.
    assert_exit(&replay(&bare, &server, &[]), 0);
    assert_eq!(answered(&server), 1);
}

#[test]
fn failures_are_told_by_their_status() {
    let trial = Trial::new();
    let server = trial.serve(1, 2.0, &[]);
    let url = format!("http://{}/v1/models/other", server.address);
    let grpc = server.grpc().to_string();
    let ended = run(&["replay", &trial.log, &url, "--grpc", &grpc, "--verify"]);
    assert_exit(&ended, 1);
    let failed = format!("{REQUESTS} NotFound, the first: {} record 1: ", trial.log);
    assert!(ended.stdout.contains(&failed), "{}", ended.stdout);
    assert!(ended.stdout.contains("no request was answered"), "{}", ended.stdout);
    // Nobody listens.
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("a port");
    let ended = run(&["replay", &trial.log, &url, "--grpc", &nobody.to_string()]);
    assert_exit(&ended, 1);
    assert!(ended.stderr.contains(&format!("grpc://{nobody}")), "{}", ended.stderr);
}

#[test]
fn a_server_that_goes_away_ends_the_replay() {
    let trial = Trial::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let leaving = thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("a connection");
        connection.read_exact(&mut [0; 24]).expect("a preface");
    });
    let url = "http://127.0.0.1:1/v1/models/m";
    let ended = run(&["replay", &trial.log, url, "--grpc", &address, "--json"]);
    leaving.join().expect("it left");
    assert_exit(&ended, 1);
    let found: Value = serde_json::from_str(&ended.stdout).expect(&ended.stderr);
    assert_eq!(
        (&found["ended"], &found["answered"]),
        (&"server_gone".into(), &0.into()),
        "{found}"
    );
    assert_eq!((&found["requests"], &found["failed"]), (&REQUESTS.into(), &1.into()), "{found}");
}
