//! SIGTERM with clients that pause: with open streams, in the middle of a request or of a response, or without
//! either. The server waits for runs, not for them.

use std::io::Read;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use prost::Message;
use tensorserve_proto::inference::model_infer_request::InferInputTensor;
use tensorserve_proto::inference::{InferTensorContents, ModelInferRequest};

use crate::support::client::Client;
use crate::support::grpc::{
    DATA, END_HEADERS, END_STREAM, Frames, HEADERS, PING, PREDICT, PREFACE, body, frame,
    half_plus_two, head_of,
};
use crate::support::process::Process;
use crate::support::project;

/// Less than the shutdown timeout, which is 30 s, and more than a busy machine needs.
const SOON: Duration = Duration::from_secs(20);

const STREAM: &str = "/inference.GRPCInferenceService/ModelStreamInfer";
const REFLECT: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const CHECK: &str = "/grpc.health.v1.Health/Check";

/// SIGTERM to a server with these clients, which it does not wait for.
fn assert_stops<C>(open: impl FnOnce(&Process) -> C) -> C {
    let mut process = Process::serve(&project("models/half_plus_two"), &[]);
    let clients = open(&process);
    process.signal("TERM");
    let start = Instant::now();
    assert!(process.wait().success());
    let took = start.elapsed();
    println!("stopped after {took:?}");
    assert!(took < SOON, "{took:?}");
    clients
}

/// A connection on which the server has read this call, and that never answers the server's pings.
fn call(address: SocketAddr, path: &str, window: u8, message: Option<(u8, &[u8])>) -> Frames {
    let mut frames = Frames::connect(address, &[0, 4, 0, 0, 0, window]);
    frames.send(&frame(HEADERS, END_HEADERS, 1, &head_of(path))).expect("sent");
    if let Some((flags, part)) = message {
        frames.send(&frame(DATA, flags, 1, part)).expect("sent");
    }
    frames.send(&frame(PING, 0, 0, &[0; 8])).expect("sent");
    frames.until(PING);
    frames
}

/// A request of a stream.
fn of_stream() -> Vec<u8> {
    let contents = InferTensorContents { fp32_contents: vec![4.0], ..Default::default() };
    let input = InferInputTensor {
        name: "x".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1],
        contents: Some(contents),
        ..InferInputTensor::default()
    };
    let request = ModelInferRequest {
        model_name: "half_plus_two".to_owned(),
        inputs: vec![input],
        ..ModelInferRequest::default()
    };
    body(&request.encode_to_vec())
}

#[test]
fn connections_without_calls() {
    assert_stops(|process| {
        let address = process.grpc();
        // Nothing, half a preface, no call, and a call that was answered.
        let silent = std::net::TcpStream::connect(address).expect("connects");
        let mut half = Frames(std::net::TcpStream::connect(address).expect("connects"));
        half.send(&PREFACE[..10]).expect("sent");
        let idle = Frames::connect(address, &[]);
        let answered = call(address, CHECK, 100, Some((END_STREAM, &body(&[]))));
        (silent, half, idle, answered)
    });
}

#[test]
fn streams_that_idle() {
    assert_stops(|process| {
        let address = process.grpc();
        let (request, watch) = (of_stream(), body(&[]));
        let silent = (0..20).map(|_| call(address, STREAM, 100, None));
        let mut all: Vec<_> = silent.collect();
        all.extend((0..20).map(|_| call(address, STREAM, 255, Some((0, &request)))));
        all.push(call(address, REFLECT, 100, None));
        // The list of services.
        all.push(call(address, REFLECT, 255, Some((0, &body(&[0x3a, 1, b'*'])))));
        all.push(call(address, WATCH, 100, Some((END_STREAM, &watch))));
        all
    });
}

#[test]
fn calls_that_stop_in_the_middle() {
    assert_stops(|process| {
        let address = process.grpc();
        let message = body(&half_plus_two().encode_to_vec());
        let none = call(address, PREDICT, 100, None);
        let half = call(address, PREDICT, 100, Some((0, &message[..20])));
        let half_of_stream = call(address, STREAM, 100, Some((0, &of_stream()[..20])));
        // The client grants no window for the response.
        let blocked = call(address, PREDICT, 0, Some((END_STREAM, &message)));
        let blocked_stream = call(address, STREAM, 0, Some((0, &of_stream())));
        (none, half, half_of_stream, blocked, blocked_stream)
    });
}

#[test]
fn http_requests_that_stop_in_the_middle() {
    const PATH: &str = "POST /v1/models/half_plus_two:predict HTTP/1.1\r\nHost: h\r\n";
    let mut clients = assert_stops(|process| {
        let parts = ["", "GET /readyz HTTP/1.1\r\nHo"].map(str::to_owned);
        let declared =
            ["", "{\"inst"].map(|part| format!("{PATH}Content-Length: 30\r\n\r\n{part}"));
        let open = |bytes: String| {
            let mut client = Client::connect(process.address).expect("connects");
            client.send(bytes.as_bytes()).expect("sent");
            client
        };
        let clients = [parts, declared].concat().into_iter().map(open).collect::<Vec<_>>();
        let streamed = "GET /api/v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_owned();
        let events = open(streamed);
        events.writer().read_exact(&mut [0; 15]).expect("the beginning of the events");
        (clients, events)
    });
    for client in &mut clients.0[2..] {
        let answer = client.answer("POST").expect("an answer");
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.text().contains("the server is shutting down"), "{}", answer.text());
    }
}
