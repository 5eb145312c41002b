//! Requests whose decoding takes long must not hold up other clients, nor go on for clients that have
//! left.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::client::{Client, get, post};
use crate::support::data;
use crate::support::server::TestServer;

const ECHO: &str = "/v1/models/echo_float32:predict";

/// A server with one thread for connections.
fn serve() -> TestServer {
    TestServer::with(&data("tensorflow-serving/generated/echo_float32"), |settings| {
        settings.server.http_threads = Some(1);
    })
}

/// A request of many megabytes whose values are nested and short, which takes long.
fn large() -> String {
    let mut body = r#"{"inputs": ["#.to_owned();
    for n in 0..2_000_000 {
        write!(body, "{}.5,", n % 1000).expect("written");
    }
    body + "1]}"
}

/// The memory that requests hold, in bytes.
fn request_memory(address: SocketAddr) -> f64 {
    let text = get(address, "/metrics").text();
    let line = text.lines().find(|line| line.starts_with("tensorserve_request_memory_bytes "));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a gauge")
}

#[test]
fn a_large_request_does_not_hold_up_small_ones() {
    let server = serve();
    let (address, body) = (server.address, large());
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let start = Instant::now();
            let answer = post(address, ECHO, &body);
            assert_eq!(answer.status, 200, "{}", answer.text());
            start.elapsed()
        });
        let mut client = Client::connect(address).expect("connects");
        let (mut slowest, mut requests) = (Duration::ZERO, 0);
        while !sending.is_finished() {
            let start = Instant::now();
            let answer = client.request("POST", ECHO, &[], br#"{"inputs": [1]}"#);
            assert_eq!(answer.expect("an answer").status, 200);
            slowest = slowest.max(start.elapsed());
            requests += 1;
        }
        let large = sending.join().expect("answered");
        let what = format!("the large one {large:?}, {requests} small ones, slowest {slowest:?}");
        assert!(slowest < large / 5, "{what}");
    });
}

#[test]
fn the_decoding_for_a_client_that_has_left_ends() {
    let server = serve();
    // Refused at its very end, so that most of the time goes into decoding it.
    let (address, body) = (server.address, large().replace("1]}", "false]}"));
    let mut taken = Vec::new();
    // The decoder has a low priority: on a busy machine it may wait longer than it works.
    for _ in 0..5 {
        let start = Instant::now();
        assert_eq!(post(address, ECHO, &body).status, 400);
        let whole = start.elapsed();
        let took = time_with_a_client_that_leaves(address, &body);
        if took < whole / 2 {
            return;
        }
        taken.push((took, whole));
    }
    panic!("with a client that left, and for a whole request: {taken:?}");
}

/// How long memory stays reserved for a body whose client leaves when its decoding has begun; 10 s if
/// none was seen to be.
fn time_with_a_client_that_leaves(address: SocketAddr, body: &str) -> Duration {
    let mut client = Client::connect(address).expect("connects");
    let length = body.len();
    let head = format!("POST {ECHO} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
    client.send(head.as_bytes()).expect("sent");
    client.send(body.as_bytes()).expect("sent");
    let start = Instant::now();
    let all = Duration::from_secs(10);
    while request_memory(address) < 1e6 {
        if start.elapsed() > all {
            return all;
        }
    }
    drop(client);
    while request_memory(address) > 1e6 {
        thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}
