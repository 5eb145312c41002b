//! Plain unary calls are answered without the layers of the gRPC library. Whatever arrives, the response is that of these
//! layers, which still take the calls whose content type is `application/grpc+proto`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{HeaderMap, Request};
use prost::Message;
use tensorserve_proto::inference::ModelInferRequest;
use tensorserve_proto::inference::model_infer_request::InferInputTensor;
use tensorserve_proto::serving::PredictRequest;
use tensorserve_proto::{Form, tensor_to_proto};
use tensorserve_tensor::{Shape, Tensor, aligned_vec};

use crate::support::grpc::{PREDICT, body, half_plus_two};
use crate::support::process::Process;
use crate::support::project;

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// What a client sends after the head.
#[derive(Clone, Default)]
struct SentCall {
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    /// Frames of the body.
    parts: Vec<Vec<u8>>,
    has_trailers: bool,
}

/// What a client receives: the fields of the head and of the trailers, and the body.
#[derive(Debug, PartialEq)]
struct ReceivedAnswer {
    fields: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// The fields of `headers` without those that differ between two calls, or say what the end of the stream says.
fn fields(headers: &HeaderMap) -> impl Iterator<Item = (String, String)> {
    let all =
        headers.iter().filter(|(name, _)| !matches!(name.as_str(), "content-length" | "date"));
    all.map(|(name, value)| (name.to_string(), format!("{value:?}")))
}

/// Sends `call` with this content type.
async fn send(client: &SendRequest<Bytes>, call: &SentCall, content_type: &str) -> ReceivedAnswer {
    let mut client = client.clone().ready().await.expect("ready");
    let mut request = Request::post(format!("http://server{}", call.path));
    for (name, value) in &call.headers {
        request = request.header(*name, *value);
    }
    let request = request.header("content-type", content_type).header("te", "trailers");
    let request = request.body(()).expect("a request");
    let ends_with_head = call.parts.is_empty() && !call.has_trailers;
    let (response, mut stream) = client.send_request(request, ends_with_head).expect("sent");
    for (number, part) in call.parts.iter().enumerate() {
        let is_last = number + 1 == call.parts.len() && !call.has_trailers;
        // The server may have refused the rest.
        let _ = stream.send_data(part.clone().into(), is_last);
        // The answer is the same however the parts arrive: this makes most of them arrive one by one.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    if call.has_trailers {
        let trailers = [("x-sum".parse().expect("a name"), "1".parse().expect("a value"))];
        let _ = stream.send_trailers(trailers.into_iter().collect());
    }
    let (head, mut received) = response.await.expect("a response").into_parts();
    assert_eq!(head.status, 200);
    let mut body = Vec::new();
    while let Some(data) = received.data().await {
        let data = data.expect("data");
        received.flow_control().release_capacity(data.len()).expect("capacity");
        body.extend_from_slice(&data);
    }
    let trailers = received.trailers().await.expect("trailers").unwrap_or_default();
    ReceivedAnswer { fields: fields(&head.headers).chain(fields(&trailers)).collect(), body }
}

/// Sends each call both ways, and returns the status of each.
fn statuses(server: SocketAddr, calls: &[(&str, SentCall)]) -> Vec<String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let stream = tokio::net::TcpStream::connect(server).await.expect("connects");
        stream.set_nodelay(true).expect("set");
        let (client, connection) = h2::client::handshake(stream).await.expect("a handshake");
        tokio::spawn(connection);
        let mut statuses = Vec::new();
        for (name, call) in calls {
            let mut plain = send(&client, call, "application/grpc").await;
            let mut other = send(&client, call, "application/grpc+proto").await;
            for answer in [&mut plain, &mut other] {
                // A deadline is noticed while a call waits or before its run, which have words of their own.
                if answer.fields.get("grpc-status").is_some_and(|status| status == "\"4\"") {
                    let words = answer.fields.remove("grpc-message").expect("a message");
                    assert!(words.contains("the%20request's%20deadline"), "{name}: {words}");
                }
            }
            assert_eq!(plain, other, "{name}");
            let status = plain.fields.get("grpc-status").expect("a status").trim_matches('"');
            println!("{name}: {status} {:?}", plain.fields.get("grpc-message"));
            statuses.push(status.to_owned());
        }
        statuses
    })
}

fn infer(values: usize) -> Vec<u8> {
    let input = InferInputTensor {
        name: "x".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![i64::try_from(values).expect("in range")],
        ..InferInputTensor::default()
    };
    let request = ModelInferRequest {
        model_name: "half_plus_two".to_owned(),
        id: "1".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![1_f32.to_le_bytes().repeat(values).into()],
        ..ModelInferRequest::default()
    };
    request.encode_to_vec()
}

/// Calls of the method at `path` with `message`, good ones and odd ones, and the status of each.
fn calls(path: &'static str, message: &[u8]) -> Vec<(&'static str, SentCall, &'static str)> {
    let good = body(message);
    let sent = |parts: &[&[u8]]| SentCall {
        path,
        parts: parts.iter().map(|part| part.to_vec()).collect(),
        ..SentCall::default()
    };
    let with =
        |name, value, parts: &[&[u8]]| SentCall { headers: vec![(name, value)], ..sent(parts) };
    let flagged = |flag: u8| [&[flag][..], &good[1..]].concat();
    let bytes: Vec<&[u8]> = good.chunks(1).take(100).collect();
    let rest = &good[bytes.len()..];
    let longer = [&good[..], b"x"].concat();
    let too_long = [&[0, 0xff, 0xff, 0xff, 0xff][..], message].concat();
    vec![
        ("whole", sent(&[&good]), "0"),
        ("byte by byte", sent(&[&bytes[..], &[rest]].concat()), "0"),
        ("head and message", sent(&[&good[..5], &good[5..]]), "0"),
        ("a part of the head", sent(&[&good[..3], &good[3..]]), "0"),
        ("empty parts", sent(&[b"", &good[..7], b"", &good[7..], b""]), "0"),
        ("trailers", SentCall { has_trailers: true, ..sent(&[&good]) }, "0"),
        ("trailers in the message", SentCall { has_trailers: true, ..sent(&[&good[..9]]) }, "13"),
        ("identity", with("grpc-encoding", "identity", &[&good]), "0"),
        ("gzip that is not used", with("grpc-encoding", "gzip", &[&good]), "0"),
        ("gzip that is none", with("grpc-encoding", "gzip", &[&flagged(1)]), "13"),
        ("unknown encoding", with("grpc-encoding", "snappy", &[&good]), "12"),
        ("compressed without encoding", sent(&[&flagged(1)]), "13"),
        ("an unknown flag", sent(&[&flagged(7)]), "13"),
        ("nothing", sent(&[]), "13"),
        ("an empty part", sent(&[b""]), "13"),
        ("only a part of the head", sent(&[&good[..4]]), "13"),
        ("only the head", sent(&[&good[..5]]), "13"),
        ("half", sent(&[&good[..good.len() / 2]]), "13"),
        ("a byte more", sent(&[&longer]), "13"),
        ("a byte more, later", sent(&[&good, b"x"]), "13"),
        // The first one is answered.
        ("two messages", sent(&[&good, &good]), "0"),
        ("too long", sent(&[&too_long]), "11"),
        ("no fields", sent(&[&body(b"")]), if path == PREDICT { "3" } else { "5" }),
        ("no protobuf", sent(&[&body(&[0xff; 20])]), "13"),
        ("a deadline that has passed", with("grpc-timeout", "0n", &[&good]), "4"),
    ]
}

fn check(server: SocketAddr, calls: Vec<(&'static str, SentCall, &'static str)>) {
    let expected: Vec<_> =
        calls.iter().map(|(name, _, status)| format!("{name}: {status}")).collect();
    let calls: Vec<_> = calls.into_iter().map(|(name, call, _)| (name, call)).collect();
    let found = calls.iter().zip(statuses(server, &calls));
    let found: Vec<_> = found.map(|((name, _), status)| format!("{name}: {status}")).collect();
    assert_eq!(found, expected);
}

#[test]
fn answers_are_those_of_the_librarys_layers() {
    let process = Process::serve(&project("models/half_plus_two"), &[]);
    check(process.grpc(), calls(PREDICT, &half_plus_two().encode_to_vec()));
    check(process.grpc(), calls(INFER, &infer(3)));
    // Its outputs are sent from where they are.
    check(process.grpc(), calls(INFER, &infer(100_000)));
}

#[test]
fn responses_that_are_too_large_are_refused_alike() {
    let mut x = aligned_vec::<f32>(1000);
    x.resize(1000, 1.0);
    let x = Tensor::from_vec(Shape::vector(1000), x).expect("a tensor");
    let inputs = [("x".to_owned(), tensor_to_proto(&x, Form::Content))].into();
    // The response has the version and the signature too.
    let message = PredictRequest { inputs, ..half_plus_two() }.encode_to_vec();
    let most = message.len().to_string();
    let process =
        Process::serve(&project("models/half_plus_two"), &["--grpc-max-message-bytes", &most]);
    let call = SentCall { path: PREDICT, parts: vec![body(&message)], ..SentCall::default() };
    check(process.grpc(), vec![("too large", call, "11")]);
}
