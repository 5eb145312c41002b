//! `make bench ARGS=traces`: what traces and the access log cost a small request that is not recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::client;
use crate::process::Process;
use crate::scenario::project;

/// Connections of each client.
const MANY: usize = 64;

const BODY: &str = r#"{"instances": [1.0, 2.0, 5.0]}"#;

/// A trace that its caller does not record.
const UNSAMPLED: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\r\n";

/// The CPU time of one request in microseconds, medians, against a server without traces.
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
    let (plain, traced) = ([request("")], [request(UNSAMPLED)]);
    let cases: [(&str, &Process, &[Vec<u8>]); 6] = [
        ("no traces", &none, &plain),
        ("traces, none sampled", &unsampled, &plain),
        ("traces, one in 100 sampled", &hundredth, &plain),
        ("access log, one in 10,000", &logged, &plain),
        ("no traces, with a traceparent", &none, &traced),
        ("traces, with an unsampled traceparent", &unsampled, &traced),
    ];
    let mut all: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for round in 0..=rounds {
        // In both orders, since machines drift.
        let mut order: Vec<_> = cases.iter().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (name, server, requests) in order {
            let before = server.cpu();
            let load = client::run(server.address, requests, MANY, time);
            assert_eq!(load.failed, 0, "requests failed");
            let used = server.cpu() - before;
            // The first round is for the servers to measure their model.
            if round > 0 {
                let micros = used.as_secs_f64() * 1e6 / load.latency.len() as f64;
                all.entry(name).or_default().push(micros);
            }
        }
    }
    let median = |name: &str| {
        let mut values = all[name].clone();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!("half_plus_two, CPU time of a request in us, medians of {rounds} rounds of {time:?}");
    for (name, _, requests) in &cases {
        let against = if *requests == plain { cases[0].0 } else { cases[4].0 };
        let (ours, bound) = (median(name), median(against));
        println!("{name:<42}{ours:>8.2}{:>9.3} of {against:?}", ours / bound);
    }
}

fn request(header: &str) -> Vec<u8> {
    let head = format!(
        "POST /v1/models/half_plus_two:predict HTTP/1.1\r\nHost: h\r\n{header}Content-Length: {}\r\n\r\n",
        BODY.len()
    );
    [head.as_bytes(), BODY.as_bytes()].concat()
}
