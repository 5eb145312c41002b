//! The cost of the handlers of an `inference.py`, and how many of them run at a time:
//! `make bench ARGS=handlers`.
//!
//! CPU time is that of the server and of its Python processes.

use std::time::Duration;

use crate::client::{self, Load};
use crate::cost::{per_request, post, quantile};
use crate::process::{self, Process};
use crate::scenario::project;

const SMALL: &[u8] = br#"{"instances": [1.0, 2.0, 5.0]}"#;

/// The size of a photograph.
const LARGE: usize = 602_000;

/// Handlers that do nothing: both bodies pass through them unchanged.
const NOTHING: &str = "\
def input_handler(data, context):
    return data.read()

def output_handler(response, context):
    return response.content, context.accept_header
";

/// Handlers that read a body other than JSON, and send its length to the model.
const IMAGE: &str = "\
def input_handler(data, context):
    return '{\"instances\": [%d.0]}' % len(data.read())

def output_handler(response, context):
    return response.content, context.accept_header
";

/// Handlers that wait or compute, to be called by many clients at a time.
const AT_ONCE: [(&str, &str); 3] = [
    (
        "waits for 200 ms",
        "import time\n\
         def handler(data, context):\n    time.sleep(0.2)\n    return 'x', None\n",
    ),
    (
        "computes in Python",
        "def handler(data, context):\n    \
         n = 0\n    for i in range(100_000): n += i\n    return 'x', None\n",
    ),
    (
        "computes in a library",
        "import hashlib\n\
         def handler(data, context):\n    \
         hashlib.pbkdf2_hmac('sha256', b'x', b'x', 10_000)\n    return 'x', None\n",
    ),
];

/// Threads of a worker process to compare: one call at a time, and the default.
const THREADS: [&str; 2] = ["1", "128"];

/// A configuration of handlers to measure.
struct Way {
    name: &'static str,
    server: Process,
    request: Vec<u8>,
    /// For each round: CPU microseconds of the server, of Python, the median latency in microseconds,
    /// and the requests in a second.
    figures: Vec<[f64; 4]>,
}

impl Way {
    fn new(name: &'static str, script: Option<&str>, body: &[u8], kind: &str) -> Self {
        let request = post("/invocations", &format!("Content-Type: {kind}\r\n"), body);
        let server = match script {
            Some(script) => Process::with_code(script, &["--handler-workers", "2"]),
            None => Process::serving(&project("models/half_plus_two"), &[]),
        };
        Way { name, server, request, figures: Vec::new() }
    }

    fn with_threads(script: &str, threads: &'static str) -> Self {
        let options = ["--handler-workers", "2", "--handler-threads", threads];
        let request = post("/invocations", "", b"{}");
        let server = Process::with_code(script, &options);
        Way { name: threads, server, request, figures: Vec::new() }
    }

    fn measure(&mut self, connections: usize, time: Duration) {
        let python = || process::children(self.server.id()).into_iter().map(process::cpu_of).sum();
        let before: (Duration, Duration) = (self.server.cpu(), python());
        let requests = [self.request.clone()];
        let load: Load = client::run(self.server.address, &requests, connections, time);
        assert_eq!(load.failed, 0, "{}: requests failed", self.name);
        let after: (Duration, Duration) = (self.server.cpu(), python());
        let each = |used| per_request(used, load.latency.len());
        let p50 = load.latency.value_at_quantile(0.5) as f64 / 1000.0;
        let per_second = load.latency.len() as f64 / load.time.as_secs_f64();
        let used = [each(after.0 - before.0), each(after.1 - before.1)];
        self.figures.push([used[0], used[1], p50, per_second]);
    }

    fn median(&self, figure: usize) -> f64 {
        quantile(self.figures.iter().map(|figures| figures[figure]), 0.5)
    }
}

pub fn run(rounds: usize, time: Duration) {
    let image = vec![0xd8; LARGE];
    let mut ways = [
        Way::new("no handlers", None, SMALL, "application/json"),
        Way::new("handlers that do nothing", Some(NOTHING), SMALL, "application/json"),
        Way::new("handlers, body of 602 kB", Some(IMAGE), &image, "application/x-image"),
    ];
    println!("inference.py (us of CPU time per request, of the server and of Python)\n");
    for connections in [1, 8] {
        for way in &mut ways {
            way.figures.clear();
            way.measure(connections, time / 4);
            way.figures.clear();
        }
        for round in 0..rounds {
            for at in 0..ways.len() {
                let at = if round % 2 == 1 { ways.len() - 1 - at } else { at };
                ways[at].measure(connections, time);
            }
        }
        println!(
            "{:<28}{:>6}{:>10}{:>10}{:>10}{:>14}{:>10}",
            "", "conns", "server", "python", "sum", "over none", "p50 us"
        );
        let none = ways[0].median(0) + ways[0].median(1);
        for way in &ways {
            let (server, python, p50) = (way.median(0), way.median(1), way.median(2));
            let sum = server + python;
            println!(
                "{:<28}{connections:>6}{server:>10.1}{python:>10.1}{sum:>10.1}{:>14.1}{p50:>10.0}",
                way.name,
                sum - none
            );
        }
    }
    at_once(rounds, time);
}

/// Compares the throughput of handlers that wait or compute, with one thread for each worker process
/// and with the default number.
fn at_once(rounds: usize, time: Duration) {
    println!("\ninference.py, two processes, many clients\n");
    println!(
        "{:<24}{:>8}{:>9}{:>12}{:>10}{:>14}",
        "the handler", "clients", "threads", "requests/s", "p50 ms", "CPU us/call"
    );
    for (name, script) in AT_ONCE {
        let mut ways = THREADS.map(|threads| Way::with_threads(script, threads));
        for connections in [16, 64] {
            for way in &mut ways {
                way.measure(connections, time / 4);
                way.figures.clear();
            }
            for round in 0..rounds {
                for at in 0..ways.len() {
                    let at = if round % 2 == 1 { ways.len() - 1 - at } else { at };
                    // Long enough for a few turns of every client.
                    ways[at].measure(connections, time.max(Duration::from_secs(3)));
                }
            }
            for way in &ways {
                println!(
                    "{name:<24}{connections:>8}{:>9}{:>12.1}{:>10.1}{:>14.0}",
                    way.name,
                    way.median(3),
                    way.median(2) / 1000.0,
                    way.median(0) + way.median(1)
                );
            }
        }
    }
}
