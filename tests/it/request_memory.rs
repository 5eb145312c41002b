//! The memory of all requests together is bounded (`max_request_memory`), and nothing that a client
//! sends makes the server allocate more than it was sent, beyond small factors.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use tensorserve::config::Settings;
use tensorserve_proto::tensorflow::tensor_shape_proto::Dim;
use tensorserve_proto::tensorflow::{TensorProto, TensorShapeProto};

use crate::support::client::{Answer, Client, get, post, request};
use crate::support::grpc::{Caller, half_plus_two};
use crate::support::process::Process;
use crate::support::server::TestServer;
use crate::support::{data, project};

const PREDICT: &str = "/v1/models/half_plus_two:predict";
const NPY: (&str, &str) = ("Content-Type", "application/x-npy");

/// Much longer than a refusal takes on a busy machine, much shorter than the work that is refused.
const SOON: Duration = Duration::from_secs(5);
/// What a busy machine may take for what takes milliseconds.
const BUSY: Duration = Duration::from_secs(30);

fn serve(change: impl FnOnce(&mut Settings)) -> TestServer {
    TestServer::with(&project("models/half_plus_two"), change)
}

fn with_memory(size: &'static str) -> TestServer {
    serve(|s| {
        s.server.max_request_memory = Some(size.parse().expect("a size"));
        s.paths.push(data("tensorflow-serving/generated/echo_float32"));
    })
}

fn timely(what: &str, send: impl FnOnce() -> Answer) -> Answer {
    let start = Instant::now();
    let answer = send();
    assert!(start.elapsed() < SOON, "{what}: {:?}", start.elapsed());
    answer
}

const GRPC_PREDICT: &str = "/tensorflow.serving.PredictionService/Predict";

/// The value of a metric without labels.
fn metric(address: SocketAddr, name: &str) -> f64 {
    let text = get(address, "/metrics").text();
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect(name)
}

fn npy(shape: &str) -> Vec<u8> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
    header.extend(std::iter::repeat_n(' ', 117 - header.len()));
    header.push('\n');
    [&b"\x93NUMPY\x01\x00\x76\x00"[..], header.as_bytes()].concat()
}

#[test]
fn an_array_of_2_to_the_40_empty_rows_is_refused() {
    let server = serve(|_| {});
    let body = npy("(1099511627776, 0)");
    for path in [PREDICT, "/invocations"] {
        for accept in ["application/json", "application/jsonlines"] {
            let headers = [NPY, ("Accept", accept)];
            let answer = timely(path, || request(server.address, "POST", path, &headers, &body));
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert!(answer.text().contains("too many elements"), "{}", answer.text());
            server.assert_serves(path);
        }
    }
}

/// A message that declares a shape and holds no values.
fn declared(dtype: i32, size: i64) -> Vec<u8> {
    let mut message = half_plus_two();
    let dim = vec![Dim { size, name: String::new() }];
    let shape = TensorShapeProto { dim, unknown_rank: false };
    let tensor = TensorProto { dtype, tensor_shape: Some(shape), ..TensorProto::default() };
    message.inputs.insert("x".to_owned(), tensor);
    message.encode_to_vec()
}

#[test]
fn memory_of_short_strings_is_reserved_before_the_run() {
    let server = serve(|s| {
        s.server.max_request_memory = Some("32MiB".parse().expect("a size"));
        s.paths.push(data("tensorflow-serving/generated/echo_string"));
    });
    // 1 byte each, and 24 in the runtime.
    let body = format!(r#"{{"instances": ["a"{}]}}"#, r#","a""#.repeat(900_000));
    let answer = post(server.address, "/v1/models/echo_string:predict", body.as_bytes());
    answer.assert_refused("strings", 413, "max_request_memory");
    let metrics = get(server.address, "/metrics").text();
    let runs = r#"tensorserve_run_duration_seconds_count{model="echo_string""#;
    let runs = metrics.lines().filter(|line| line.starts_with(runs) && !line.ends_with(" 0"));
    assert_eq!(runs.count(), 0, "{metrics}");
    server.assert_serves("many strings");
}

#[test]
fn a_declared_shape_without_values_takes_no_memory() {
    let server = serve(|_| {});
    let caller = Caller::connect(server.grpc_address()).expect("connected");
    // A float, and the type with the largest elements (DT_COMPLEX128).
    for dtype in [1, 18] {
        let body = declared(dtype, 1 << 28);
        assert!(body.len() < 100);
        let headers = [("Content-Type", "application/x-protobuf")];
        let answer = timely("REST", || request(server.address, "POST", PREDICT, &headers, &body));
        answer.assert_refused("REST", 400, "is too large for its values");
        let start = Instant::now();
        let status = caller.call(GRPC_PREDICT, body).expect_err("refused");
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status:?}");
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
    server.assert_serves("declared shapes");
}

#[test]
fn a_request_that_can_never_fit_is_told_so() {
    let server = serve(|s| s.server.max_request_memory = Some("4MiB".parse().expect("a size")));
    // Two bytes for each number; as a tensor four.
    let numbers = format!(r#"{{"inputs": [{}1]}}"#, "1,".repeat(900_000));
    for path in [PREDICT, "/invocations"] {
        let answer = server.post(path, &numbers);
        answer.assert_refused(path, 413, "max_request_memory");
    }
    let body = format!(r#"{{"data": {{"x": [{}1]}}}}"#, "1,".repeat(900_000));
    server.post("/", &body).assert_refused("POST /", 413, "max_request_memory");
    assert!(metric(server.address, "tensorserve_request_memory_refusals_total") >= 3.0);
    server.assert_serves("large requests");
}

#[test]
fn a_call_that_can_never_fit_is_told_so() {
    let server = serve(|s| s.server.max_request_memory = Some("4MiB".parse().expect("a size")));
    let caller = Caller::connect(server.grpc_address()).expect("connected");
    let mut message = half_plus_two();
    let dim = vec![Dim { size: 500_000, name: String::new() }];
    let tensor_shape = Some(TensorShapeProto { dim, unknown_rank: false });
    let float_val = vec![1.0; 500_000];
    let tensor = TensorProto { dtype: 1, tensor_shape, float_val, ..TensorProto::default() };
    message.inputs.insert("x".to_owned(), tensor);
    let status = caller.call(GRPC_PREDICT, message.encode_to_vec()).expect_err("too large");
    assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status:?}");
    assert!(status.message().contains("max_request_memory"), "{status:?}");
    for _ in 0..100 {
        caller.half_plus_two().expect("a small call");
    }
}

#[test]
fn a_response_that_does_not_fit_is_refused_and_not_written() {
    let server = with_memory("4MiB");
    // 400 KB of input and output; as indented JSON several times as much.
    let numbers = vec!["-1.2345678e-30"; 30_000].join(",");
    let body = format!(r#"{{"inputs": [{numbers}]}}"#);
    let path = "/v1/models/echo_float32:predict";
    assert_eq!(server.post(path, &body).status, 200);
    let many = format!(r#"{{"inputs": [{}1]}}"#, "1,".repeat(200_000));
    server.post(path, &many).assert_refused("the response", 413, "max_request_memory");
}

/// A request whose body arrives slowly, and holds 3 MiB.
fn slow_request(address: SocketAddr) -> Client {
    let mut slow = announced(address);
    slow.send(&vec![b' '; 3 << 20]).expect("sent");
    let start = Instant::now();
    while metric(address, "tensorserve_request_memory_bytes") < f64::from(3 << 20) {
        assert!(start.elapsed() < BUSY, "the body is not accounted for");
        std::thread::sleep(Duration::from_millis(10));
    }
    slow
}

/// A request of which only the head is sent, which announces 4 MiB.
fn announced(address: SocketAddr) -> Client {
    let mut client = Client::connect(address).expect("connected");
    let head = format!("POST {PREDICT} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", 4 << 20);
    client.send(head.as_bytes()).expect("sent");
    client
}

#[test]
fn a_body_that_does_not_fit_is_refused_before_it_is_received() {
    let server = with_memory("8MiB");
    let slow = slow_request(server.address);
    let answer = announced(server.address).answer("POST").expect("an answer");
    answer.assert_refused("while others use the memory", 503, "try again");
    drop(slow);
    // What is only announced keeps nobody out.
    let silent: Vec<Client> = (0..10).map(|_| announced(server.address)).collect();
    let body = format!(r#"{{"inputs": [{}1]}}"#, "1,".repeat(200_000));
    let start = Instant::now();
    while server.post(PREDICT, &body).status != 200 {
        assert!(start.elapsed() < BUSY, "the memory did not return");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(silent);
}

#[test]
fn memory_in_use_makes_others_wait_but_not_small_requests() {
    let server = with_memory("8MiB");
    let body = format!(r#"{{"inputs": [{}1]}}"#, "1,".repeat(200_000));
    let slow = slow_request(server.address);
    let answer = server.post(PREDICT, &body);
    answer.assert_refused("while others use the memory", 503, "try again");
    assert_eq!(answer.headers.get("retry-after").map(String::as_str), Some("1"));
    for _ in 0..100 {
        server.assert_serves("a small request");
    }
    drop(slow);
    let start = Instant::now();
    while server.post(PREDICT, &body).status != 200 {
        assert!(start.elapsed() < BUSY, "the memory did not return");
        std::thread::sleep(Duration::from_millis(20));
    }
    let start = Instant::now();
    // The request for the metrics itself holds a little.
    while metric(server.address, "tensorserve_request_memory_bytes") > f64::from(64 << 10) {
        assert!(start.elapsed() < BUSY, "a response that was sent still holds memory");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn gzip_that_looks_like_examples_is_not_decoded_to_find_out() {
    let process = Process::serve(&project("models/half_plus_two"), &[]);
    let address = process.address;
    // Millions of empty features: 64 MB that compress to 61 KB.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let inner = b"\x0a\x00".repeat(30 << 20);
    let mut features = vec![0x0a];
    prost::encoding::encode_varint(inner.len() as u64, &mut features);
    encoder.write_all(&features).expect("written");
    encoder.write_all(&inner).expect("written");
    let body = encoder.finish().expect("finished");
    assert!(body.len() < 100_000, "{}", body.len());
    let before = resident(address);
    let headers = [("Content-Type", "application/x-tfexample"), ("Content-Encoding", "gzip")];
    let answer = timely("examples", || request(address, "POST", "/invocations", &headers, &body));
    assert!(answer.status >= 400, "{}", answer.status);
    let grown = resident(address) - before;
    assert!(grown < 400e6, "{grown} bytes");
    assert_eq!(post(address, PREDICT, r#"{"inputs": [1]}"#).status, 200);
}

fn resident(address: SocketAddr) -> f64 {
    metric(address, "tensorserve_resident_memory_bytes")
}

#[test]
fn probes_are_answered_while_all_memory_is_in_use() {
    let process =
        Process::serve(&project("models/half_plus_two"), &["--max-request-memory", "1MiB"]);
    let caller = Caller::connect(process.grpc()).expect("connects");
    let check = || caller.call("/grpc.health.v1.Health/Check", Vec::new());
    // Each holds what every request gets when its body begins, of which there is room for 64.
    let head = format!("POST {PREDICT} HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{{");
    let mut waiting = Vec::new();
    let start = Instant::now();
    let is_refused = || post(process.address, PREDICT, r#"{"inputs": [1]}"#).status == 503;
    while waiting.len() < 64 || !is_refused() {
        assert!(start.elapsed() < BUSY, "no request is refused");
        let mut client = Client::connect(process.address).expect("connected");
        client.send(head.as_bytes()).expect("sent");
        waiting.push(client);
    }
    assert_eq!(get(process.address, "/healthz").status, 200);
    check().expect("serving");
    let refused = caller.half_plus_two().expect_err("no memory");
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    drop(waiting);
}
