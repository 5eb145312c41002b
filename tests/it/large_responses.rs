//! Large responses, whose parts go to the connection from where they are in memory: their bytes and their
//! order, however slowly a client reads.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use tensorserve::config::Settings;

use crate::https::{self, Authority};
use crate::support::client::{Client, request};
use crate::support::data;
use crate::support::server::TestServer;

const LENGTH: &str = "inference-header-content-length";

fn serve(change: impl FnOnce(&mut Settings)) -> TestServer {
    TestServer::with(&data("tensorflow-serving/generated/echo_float32"), change)
}

/// The raw bytes of this many floats.
fn floats(count: usize) -> Vec<u8> {
    (0..count).flat_map(|n| (n as f32).to_le_bytes()).collect()
}

/// A request whose response has the same raw bytes as `content`.
fn echo(content: &[u8]) -> Vec<u8> {
    let document = format!(
        r#"{{"parameters":{{"binary_data_output":true}},"inputs":[{{"name":"x","shape":[{}],"datatype":"FP32","parameters":{{"binary_data_size":{}}}}}]}}"#,
        content.len() / 4,
        content.len()
    );
    let head = format!(
        "POST /v2/models/echo_float32/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n{LENGTH}: {}\r\n\r\n",
        document.len() + content.len(),
        document.len()
    );
    [head.as_bytes(), document.as_bytes(), content].concat()
}

/// Checks a response to [`echo`].
fn check(body: &[u8], length: &str, content: &[u8]) {
    let document: usize = length.parse().expect("a number");
    assert!(body[document..] == *content, "{} bytes are not {}", body.len(), content.len());
}

#[test]
fn pipelined_responses_keep_their_order() {
    let server = serve(|_| {});
    let sizes = [1_000_000, 3, 50_000, 400_000, 1, 2_000_000, 30_000];
    let contents: Vec<Vec<u8>> = sizes.map(floats).into();
    for pause in [0, 5] {
        let mut client = Client::connect(server.address).expect("connects");
        let requests: Vec<u8> = contents.iter().flat_map(|content| echo(content)).collect();
        let mut writer = client.writer();
        thread::scope(|scope| {
            scope.spawn(move || writer.write_all(&requests).expect("sent"));
            for content in &contents {
                thread::sleep(Duration::from_millis(20 * pause));
                let answer = client.answer("POST").expect("a response");
                assert_eq!(answer.status, 200, "{}", answer.text());
                check(&answer.body, &answer.headers[LENGTH], content);
            }
        });
    }
}

#[test]
fn a_client_may_read_slowly() {
    let server = serve(|_| {});
    let content = floats(1_000_000);
    let mut client = Client::connect(server.address).expect("connects");
    client.send(&echo(&content)).expect("sent");
    let (mut reader, mut received) = (client.writer(), Vec::new());
    let mut buffer = vec![0; 64 << 10];
    while received.len() < content.len() {
        let count = reader.read(&mut buffer).expect("bytes");
        assert!(count > 0, "the connection ended after {} bytes", received.len());
        received.extend_from_slice(&buffer[..count]);
        thread::sleep(Duration::from_millis(1));
    }
    let head = received.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
    assert!(received.ends_with(&content) && received.len() < head + 4 + content.len() + 1000);
    // The connection is in order.
    client.send(&echo(&floats(10))).expect("sent");
    assert_eq!(client.answer("POST").expect("a response").status, 200);
}

#[test]
fn encrypted_responses_are_whole() {
    let authority = Authority::new();
    let server = serve(|settings| authority.certify(settings));
    let mut stream = https::connect(server.address, &authority.client(None));
    for count in [500_000, 10, 100_000] {
        let content = floats(count);
        stream.write_all(&echo(&content)).expect("sent");
        let mut received = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        while !received.ends_with(&content) {
            let count = stream.read(&mut buffer).expect("bytes");
            assert!(count > 0, "the connection ended after {} bytes", received.len());
            received.extend_from_slice(&buffer[..count]);
        }
    }
}

#[test]
fn large_documents_have_their_length() {
    let server = serve(|_| {});
    let values: Vec<String> = (0..200_000).map(|n| format!("{n}.0")).collect();
    let body = format!("{{\"instances\": [{}]}}", values.join(", "));
    let path = "/v1/models/echo_float32:predict";
    for _ in 0..3 {
        let answer = request(server.address, "POST", path, &[], &body);
        assert_eq!(answer.status, 200);
        assert!(!answer.headers.contains_key("transfer-encoding"), "{:?}", answer.headers);
        let found = answer.json();
        let found = found["predictions"].as_array().expect("a list");
        assert!(found.iter().map(|v| v.as_f64()).eq((0..200_000).map(|n| Some(f64::from(n)))));
    }
}
