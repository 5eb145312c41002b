//! SIGTERM under load: every request that was sent is answered.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::support::client::{Client, get, post};
use crate::support::grpc::Caller;
use crate::support::process::{Process, tensorserve};
use crate::support::{data, project};

const ROUNDS: usize = 20;
const CONNECTIONS: usize = 8;
const PATH: &str = "/v1/models/half_plus_two:predict";

/// Sends requests until the server refuses connections, and counts the responses. Connects again
/// after every few requests, because a shutdown must not lose new connections either.
fn ask(address: SocketAddr, answered: &AtomicU64, stopping: &AtomicBool) {
    loop {
        let mut client = match Client::connect(address) {
            Ok(client) => client,
            // The server has stopped, as requested; nothing was sent.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                assert!(stopping.load(SeqCst), "refused while it should serve");
                return;
            }
            Err(error) => panic!("connecting: {error}"),
        };
        for _ in 0..50 {
            let answer = client.request("POST", PATH, &[], br#"{"instances":[1.0,2.0,5.0]}"#);
            let answer = answer.unwrap_or_else(|error| panic!("a request was lost: {error}"));
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.json()["predictions"], serde_json::json!([2.5, 3.0, 4.5]));
            answered.fetch_add(1, SeqCst);
            if answer.closes() {
                break;
            }
        }
    }
}

#[test]
fn a_stop_under_load_loses_no_request() {
    let mut longest = Duration::ZERO;
    for round in 0..ROUNDS {
        let mut process = Process::serve(&project("models/half_plus_two"), &[]);
        let (answered, stopping) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let client = || scope.spawn(|| ask(process.address, &answered, &stopping));
            let clients: Vec<_> = (0..CONNECTIONS).map(|_| client()).collect();
            while answered.load(SeqCst) < 200 {
                thread::sleep(Duration::from_millis(1));
            }
            // A different moment in each round.
            thread::sleep(Duration::from_millis(7 * round as u64 % 40));
            stopping.store(true, SeqCst);
            process.signal(if round % 4 == 3 { "INT" } else { "TERM" });
            clients.into_iter().for_each(|client| client.join().expect("no request failed"));
        });
        let start = Instant::now();
        assert!(process.wait().success(), "round {round}");
        longest = longest.max(start.elapsed());
    }
    println!("{ROUNDS} stops, ended at most {longest:?} after the last refusal");
}

#[test]
fn a_hangup_does_not_end_the_server() {
    let mut process = Process::serve(&project("models/half_plus_two"), &[]);
    for _ in 0..200 {
        process.signal("HUP");
    }
    let answer = post(process.address, PATH, r#"{"instances":[1.0,2.0,5.0]}"#);
    assert_eq!(answer.json()["predictions"], serde_json::json!([2.5, 3.0, 4.5]));
    process.signal("TERM");
    assert!(process.wait().success());
}

/// Makes calls on one connection after another, until the server refuses connections.
fn call(address: SocketAddr, answered: &AtomicU64, stopping: &AtomicBool) {
    loop {
        let Ok(caller) = Caller::connect(address) else {
            assert!(stopping.load(SeqCst), "refused while it should serve");
            return;
        };
        for _ in 0..20 {
            match caller.half_plus_two() {
                Ok(()) => answered.fetch_add(1, SeqCst),
                // The server closed the connection and refused another one: nothing was sent.
                Err(status) if never_sent(&status) => {
                    assert!(stopping.load(SeqCst), "refused while it should serve");
                    return;
                }
                Err(status) => panic!("a call was lost: {status:?}"),
            };
        }
    }
}

/// Whether a call failed before it was sent: the connection was refused, or the server closed it while the call waited
/// for its turn in the client. Then hyper gives the request back, with this error only (`Envelope` in
/// `hyper::client::dispatch`).
fn never_sent(status: &Status) -> bool {
    let is_given_back =
        status.code() == Code::Cancelled && status.message() == "operation was canceled";
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        let refused = error.downcast_ref::<std::io::Error>();
        if refused.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            return true;
        }
        if is_given_back && error.to_string() == "connection closed" {
            return true;
        }
        cause = error.source();
    }
    status.code() == Code::Unavailable && status.message().contains("onnection refused")
}

#[test]
fn a_stop_under_load_loses_no_call() {
    let mut longest = Duration::ZERO;
    for round in 0..ROUNDS / 2 {
        let mut process = Process::serve(&project("models/half_plus_two"), &[]);
        let (answered, stopping) = (AtomicU64::new(0), AtomicBool::new(false));
        let address = process.grpc();
        thread::scope(|scope| {
            let client = || scope.spawn(|| call(address, &answered, &stopping));
            let clients: Vec<_> = (0..CONNECTIONS).map(|_| client()).collect();
            while answered.load(SeqCst) < 200 {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(Duration::from_millis(7 * round as u64 % 40));
            stopping.store(true, SeqCst);
            process.signal("TERM");
            clients.into_iter().for_each(|client| client.join().expect("no call failed"));
        });
        let start = Instant::now();
        assert!(process.wait().success(), "round {round}");
        longest = longest.max(start.elapsed());
    }
    println!("ended at most {longest:?} after the last refusal");
}

#[test]
fn a_run_that_has_begun_is_finished() {
    let slow = data("tensorflow-serving/generated/slow_add_zero");
    let mut process = Process::serve(&slow, &[]);
    let address = process.address;
    let answer = thread::scope(|scope| {
        let body = r#"{"instances":[[1.0]]}"#;
        let client = scope.spawn(move || post(address, "/v1/models/slow_add_zero:predict", body));
        // The second request in flight is the one for the metrics.
        let start = Instant::now();
        while !get(address, "/metrics").text().contains("tensorserve_in_flight_requests 2\n") {
            assert!(start.elapsed() < Duration::from_secs(300), "never in flight");
        }
        process.signal("TERM");
        client.join().expect("answered")
    });
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(process.wait().success());
}

#[test]
fn readiness_goes_first() {
    let mut process =
        Process::serve(&project("models/half_plus_two"), &["--shutdown-delay", "10s"]);
    let address = process.address;
    assert_eq!(get(address, "/readyz").status, 200);
    process.signal("TERM");
    let start = Instant::now();
    while get(address, "/readyz").status == 200 {
        assert!(start.elapsed() < Duration::from_secs(9), "still ready");
        thread::sleep(Duration::from_millis(5));
    }
    // Requests still arrive until load balancers check readiness again.
    let answer = post(address, PATH, r#"{"instances":[1.0]}"#);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(process.wait().success());
    assert!(start.elapsed() >= Duration::from_secs(9), "the delay was not kept");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut process = Process::serve(&project("models/half_plus_two"), &["--shutdown-delay", "1h"]);
    process.signal("TERM");
    let start = Instant::now();
    while get(process.address, "/readyz").status == 200 {
        assert!(start.elapsed() < Duration::from_secs(300), "still ready");
    }
    process.signal("INT");
    assert_eq!(process.wait().code(), Some(130));
}

/// A server whose stdin is a pipe.
fn with_piped_stdin(options: &[&str]) -> Process {
    let mut command = tensorserve(&["serve", "--http-port", "0", "--grpc-port", "off"]);
    command.args(options).arg(project("models/half_plus_two")).stdin(Stdio::piped());
    Process::start(command)
}

#[test]
fn the_end_of_stdin_stops_a_server_that_is_told_to_stop_with_it() {
    let mut process = with_piped_stdin(&["--stop-with-stdin", "true"]);
    assert_eq!(get(process.address, "/readyz").status, 200);
    process.close_stdin();
    assert!(process.wait().success());

    let mut process = with_piped_stdin(&[]);
    process.close_stdin();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(get(process.address, "/readyz").status, 200);
    process.signal("TERM");
    assert!(process.wait().success());
}
