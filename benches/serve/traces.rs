//! `make bench ARGS=traces`: what traces and the access log cost a small request that is not recorded.

use std::time::Duration;

use crate::cost::{Comparison, compare, http, post};
use crate::process::Process;
use crate::scenario::project;

/// Connections of each client.
const MANY: usize = 64;

const PATH: &str = "/v1/models/half_plus_two:predict";
const BODY: &[u8] = br#"{"instances": [1.0, 2.0, 5.0]}"#;

/// A trace that its caller does not record.
const UNSAMPLED: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\r\n";

pub fn run(rounds: usize, time: Duration) {
    let collector = Process::echo();
    let endpoint = format!("--otlp-endpoint=http://{}", collector.address);
    let serve = |options: &[&str]| {
        let model = project("models/half_plus_two");
        Process::serving(&model, options)
    };
    let none = serve(&[]);
    let unsampled = serve(&[&endpoint, "--trace-sampling=0"]);
    let hundredth = serve(&[&endpoint, "--trace-sampling=0.01"]);
    let logged = serve(&["--access-log=0.0001", "--log-format=json"]);
    let plain = post(PATH, "", BODY);
    let traced = post(PATH, UNSAMPLED, BODY);
    let cases = [
        ("the same server", &none, &plain),
        ("traces, none sampled", &unsampled, &plain),
        ("traces, one in 100 sampled", &hundredth, &plain),
        ("access log, one in 10,000", &logged, &plain),
        ("traces, requests with an unsampled traceparent", &unsampled, &traced),
    ];
    println!("half_plus_two, against a server without traces and without an access log");
    let comparisons = cases.map(|(name, server, request)| Comparison {
        name,
        ours: http(server, request, MANY),
        bound: http(&none, request, MANY),
    });
    compare(&comparisons, rounds, time);
}
