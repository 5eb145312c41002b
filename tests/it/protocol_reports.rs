//! Failures of protocols that users have reported about servers of models, each with the right response.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use prost::Message;
use serde_json::json;
use tensorserve_proto::inference::{ModelReadyRequest, ModelReadyResponse};
use tensorserve_proto::serving::{ModelSpec, PredictRequest, PredictResponse};
use tensorserve_proto::tensorflow::tensor_shape_proto::Dim;
use tensorserve_proto::tensorflow::{TensorProto, TensorShapeProto};
use tensorserve_proto::{Form, tensor_from_proto, tensor_to_proto};
use tensorserve_tensor::DType;
use tonic::{Code, Status};

use crate::support::client::{Client, request};
use crate::support::fake::tensor;
use crate::support::grpc::{
    Caller, DATA, END_HEADERS, END_STREAM, HEADERS, PREDICT, PREFACE, RESET, SETTINGS, body, frame,
    half_plus_two, head,
};
use crate::support::process::{Process, tensorserve};
use crate::support::{copy, data, free_ports, project};

fn predict(caller: &Caller, request: &PredictRequest) -> Result<PredictResponse, Status> {
    let answer = caller.call(PREDICT, request.encode_to_vec())?;
    Ok(PredictResponse::decode(&answer[..]).expect("a message"))
}

fn message(model: &str, input: &str, tensor: TensorProto) -> PredictRequest {
    PredictRequest {
        model_spec: Some(ModelSpec { name: model.to_owned(), ..ModelSpec::default() }),
        inputs: [(input.to_owned(), tensor)].into(),
        output_filter: Vec::new(),
    }
}

/// `count` strings in the content of a message to the model `tokens`.
fn tokens(content: &[u8], count: i64) -> PredictRequest {
    let shape =
        TensorShapeProto { dim: vec![Dim { size: count, ..Dim::default() }], unknown_rank: false };
    let tensor = TensorProto {
        dtype: DType::String.number(),
        tensor_shape: Some(shape),
        tensor_content: content.to_vec().into(),
        ..TensorProto::default()
    };
    message("tokens", "text", tensor)
}

/// The dimensions and the strings of the output `tokens`.
fn token_lists(response: &PredictResponse) -> (Vec<i64>, Vec<String>) {
    let tensor = tensor_from_proto(&response.outputs["tokens"]).expect("a tensor");
    let strings = tensor.strings().expect("strings").iter();
    let texts = strings.map(|text| String::from_utf8_lossy(text).into_owned()).collect();
    (tensor.shape().dims().to_vec(), texts)
}

/// Clients in Go write strings as `tensor_content`.
#[test]
fn strings_in_the_content_of_a_tensor_are_read_as_tensorflow_reads_them() {
    let model = data("reports/03-string-tensor-content/tokens");
    let process = Process::serve(&model, &[]);
    let caller = Caller::connect(process.grpc()).expect("connects");
    let over_http = |request: &PredictRequest| {
        let headers = [("Content-Type", "application/x-protobuf")];
        let path = "/v1/models/tokens:predict";
        request_bytes(process.address, path, &headers, &request.encode_to_vec())
    };
    let list = tokens(b"\x01\x02abc", 2);
    let expected = (vec![2, 1], vec!["a".to_owned(), "bc".to_owned()]);
    assert_eq!(token_lists(&predict(&caller, &list).expect("tokens")), expected);
    let (status, bytes) = over_http(&list);
    assert_eq!(status, 200);
    let response = PredictResponse::decode(&bytes[..]).expect("a message");
    assert_eq!(token_lists(&response), expected);
    for (content, count) in [
        (&b"\xff\xd8\xff\xe0 JFIF"[..], 1),
        (b"\x01\x02ab", 2),
        (b"\x01\x02abcd", 2),
        (b"\x01\x02abc", 1),
        (b"\x01\x02abc", 3),
    ] {
        let request = tokens(content, count);
        let refusal = predict(&caller, &request).expect_err("no list of strings");
        assert_eq!(refusal.code(), Code::InvalidArgument, "{content:?}");
        assert!(refusal.message().starts_with("tensor parsing error: text"), "{refusal}");
        let (status, text) = over_http(&request);
        let text = String::from_utf8_lossy(&text);
        assert!(status == 400 && text.contains("tensor parsing error: text"), "{text}");
    }
}

fn request_bytes(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> (u16, Vec<u8>) {
    let answer = request(address, "POST", path, headers, body);
    (answer.status, answer.body)
}

/// The input of the model of the container: 1 and 2.
fn one_and_two(form: Form) -> PredictRequest {
    let x = tensor(&[2], [1.0, 2.0]).expect("a vector");
    message("model", "x", tensor_to_proto(&x, form))
}

fn container(model_dir: &Path, low: u16) -> Command {
    let mut command = tensorserve(&["serve", "--model-dir"]);
    command.arg(model_dir);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SAGEMAKER_") {
            command.env_remove(name);
        }
    }
    command.env("SAGEMAKER_BIND_TO_PORT", "0");
    command.env("SAGEMAKER_SAFE_PORT_RANGE", format!("{low}-{}", low + 9));
    command
}

/// Handlers read `outputs["y"].float_val`.
#[test]
fn the_grpc_port_of_sagemakers_container_answers_with_lists_of_values() {
    let root = tempfile::tempdir().expect("a directory");
    let version = data("reports/08-sagemaker-handler-grpc-float-val/model/1");
    copy(&version, &root.path().join("model/1"));
    let low = free_ports(10);
    let _process = Process::start(container(root.path(), low));
    let address = format!("127.0.0.1:{low}").parse().expect("an address");
    let caller = Caller::connect(address).expect("connects");
    for form in [Form::Values, Form::Content] {
        let y = predict(&caller, &one_and_two(form)).expect("an answer").outputs["y"].clone();
        assert_eq!((y.float_val, y.tensor_content.len()), (vec![2.5, 3.0], 0));
    }
}

/// Whoever sends lists of values may read nothing else.
#[test]
fn lists_of_values_are_answered_with_lists_of_values() {
    let model = data("reports/08-sagemaker-handler-grpc-float-val/model");
    let process = Process::serve(&model, &[]);
    let caller = Caller::connect(process.grpc()).expect("connects");
    let y = predict(&caller, &one_and_two(Form::Values)).expect("an answer").outputs["y"].clone();
    assert_eq!((y.float_val, y.tensor_content.len()), (vec![2.5, 3.0], 0));
    let y = predict(&caller, &one_and_two(Form::Content)).expect("an answer").outputs["y"].clone();
    assert_eq!((y.float_val.len(), y.tensor_content.len()), (0, 8));
}

/// What Java's client sends by default.
const H2C: &str = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
                   HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n";
const WEBSOCKET: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
                         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// A request to half_plus_two. Its payload has the words that are looked for in heads.
fn predict_over_http(headers: &str, is_chunked: bool) -> String {
    let body = r#"{"instances": [1.0], "a": "\n\nConnection: Upgrade\n\n"}"#;
    let head = format!("POST /v1/models/half_plus_two:predict HTTP/1.1\r\nHost: x\r\n{headers}");
    match is_chunked {
        true => format!(
            "{head}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        ),
        false => format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()),
    }
}

#[test]
fn offers_of_another_protocol_are_ignored_and_the_connection_goes_on() {
    let process = Process::serve(&project("models/half_plus_two"), &[]);
    let expected = json!({"predictions": [2.5]});
    for offer in [H2C, WEBSOCKET, "upgrade: h2c, websocket\r\nconnection: UPGRADE\r\n"] {
        let requests = [(offer, false), ("", false), (offer, true), (offer, false), ("", true)];
        let requests = requests.map(|(headers, chunked)| predict_over_http(headers, chunked));
        let mut client = Client::connect(process.address).expect("connects");
        let check = |client: &mut Client| {
            let answer = client.answer("POST").expect("an answer");
            assert_eq!((answer.status, answer.json()), (200, expected.clone()), "{offer}");
            assert_eq!(answer.headers.get("connection"), None, "{offer}");
        };
        // One after the other, and all at once.
        for request in &requests {
            client.send(request.as_bytes()).expect("sent");
            check(&mut client);
        }
        client.send(requests.concat().as_bytes()).expect("sent");
        requests.iter().for_each(|_| check(&mut client));
        // A byte at a time.
        for byte in requests[0].as_bytes() {
            client.send(&[*byte]).expect("sent");
            std::thread::sleep(Duration::from_micros(200));
        }
        check(&mut client);
        client.send(requests[1].as_bytes()).expect("sent");
        check(&mut client);
    }
    // Without a payload, too.
    let mut client = Client::connect(process.address).expect("connects");
    for _ in 0..3 {
        let request =
            format!("GET /v1/models/half_plus_two HTTP/1.1\r\nHost: x\r\n{WEBSOCKET}\r\n");
        client.send(request.as_bytes()).expect("sent");
        assert_eq!(client.answer("GET").expect("an answer").status, 200);
    }
}

/// The frames of the response to a call with this authority, whose field is given as its bytes: their kinds,
/// and whether it has a message.
fn called(socket: &Path, authority: &[u8]) -> (Vec<u8>, bool) {
    let mut stream = UnixStream::connect(socket).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("socket option");
    let plain = head();
    // The authority of `head`, between the path and the type.
    let at = plain.windows(3).position(|bytes| bytes == b"\x01\x01h").expect("an authority");
    let block = [&plain[..at], authority, &plain[at + 3..]].concat();
    let message = body(&half_plus_two().encode_to_vec());
    let bytes = [
        PREFACE.to_vec(),
        frame(SETTINGS, 0, 0, b""),
        frame(HEADERS, END_HEADERS, 1, &block),
        frame(DATA, END_STREAM, 1, &message),
    ];
    stream.write_all(&bytes.concat()).expect("sent");
    let (mut kinds, mut has_message) = (Vec::new(), false);
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).expect("a frame");
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).expect("a payload");
        if head[5..] != [0, 0, 0, 1] {
            continue;
        }
        kinds.push(head[3]);
        has_message |= head[3] == DATA && payload.len() > 5;
        if head[3] == RESET || head[4] & END_STREAM != 0 {
            return (kinds, has_message);
        }
    }
}

/// Clients in Java and older ones in Go make the path of a UNIX socket the authority.
#[test]
fn the_authority_of_calls_over_a_unix_socket_may_be_a_path() {
    let folder = tempfile::tempdir().expect("a directory");
    let socket = folder.path().join("x.sock");
    let option = format!("--grpc-socket-path={}", socket.display());
    let _process = Process::serve(&project("models/half_plus_two"), &[&option]);
    let texts = ["localhost", "%2Ftmp%2Fx.sock", "/tmp/x.sock", "unix:/tmp/a b#c?d@e[f.sock", "/é"];
    for text in texts {
        let length = u8::try_from(text.len()).expect("short");
        for name in [&b"\x01"[..], b"\x11", b"\x41", b"\x40\x0a:authority", b"\x00\x0a:authority"] {
            let field = [name, &[length], text.as_bytes()].concat();
            let (kinds, has_message) = called(&socket, &field);
            assert!(has_message && !kinds.contains(&RESET), "{text} after {name:?}: {kinds:?}");
        }
    }
    // `/tmp/x.sock`, compressed as clients in Go do.
    let compressed = b"\x41\x88\x61\x34\xd6\xc7\x95\xd0\x72\x75";
    assert!(called(&socket, compressed).1);
}

/// Clients poll it until a model is there.
#[test]
fn a_model_that_does_not_exist_is_not_ready() {
    let process = Process::serve(&project("models/half_plus_two"), &[]);
    let caller = Caller::connect(process.grpc()).expect("connects");
    for (name, version, expected) in [
        ("half_plus_two", "", true),
        ("half_plus_two", "1", true),
        ("half_plus_two", "7", false),
        ("nothing", "", false),
        ("nothing", "1", false),
    ] {
        let request = ModelReadyRequest { name: name.to_owned(), version: version.to_owned() };
        let path = "/inference.GRPCInferenceService/ModelReady";
        let answer = caller.call(path, request.encode_to_vec()).expect("an answer");
        let answer = ModelReadyResponse::decode(&answer[..]).expect("a message");
        assert_eq!(answer.ready, expected, "{name} {version}");
    }
}
