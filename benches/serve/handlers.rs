//! The cost of the handlers of an `inference.py`: `make bench ARGS=handlers`.
//!
//! CPU time is that of the server and of its Python processes.

use std::time::{Duration, Instant};

use crate::client::{self, Load};
use crate::process::{self, Process};

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

const SLEEP: &str = "\
import time

def handler(data, context):
    time.sleep(0.05)
    return 'slept', None
";

/// A configuration of handlers to measure.
struct Way {
    name: &'static str,
    server: Process,
    request: Vec<u8>,
    /// For each round: CPU microseconds of the server, of Python, and the median latency.
    figures: Vec<[f64; 3]>,
}

impl Way {
    fn new(name: &'static str, script: Option<&str>, body: &[u8], kind: &str) -> Self {
        let mut request = format!(
            "POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        Way { name, server: Process::with_code(script, 2), request, figures: Vec::new() }
    }

    fn measure(&mut self, connections: usize, time: Duration) {
        let python = || process::children(self.server.id()).into_iter().map(process::cpu_of).sum();
        let before: (Duration, Duration) = (self.server.cpu(), python());
        let requests = [self.request.clone()];
        let load: Load = client::run(self.server.address, &requests, connections, time);
        assert_eq!(load.failed, 0, "{}: requests failed", self.name);
        let after: (Duration, Duration) = (self.server.cpu(), python());
        let each = |used: Duration| used.as_secs_f64() * 1e6 / load.latency.len() as f64;
        let p50 = load.latency.value_at_quantile(0.5) as f64 / 1000.0;
        self.figures.push([each(after.0 - before.0), each(after.1 - before.1), p50]);
    }

    fn median(&self, figure: usize) -> f64 {
        let mut values: Vec<f64> = self.figures.iter().map(|figures| figures[figure]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
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
    let sleeping = Process::with_code(Some(SLEEP), 8);
    let mut times: Vec<Duration> = (0..rounds).map(|_| twenty(&sleeping)).collect();
    times.sort();
    println!("\n20 concurrent requests of 50 ms, 8 processes: {:?}", times[times.len() / 2]);
}

/// The time in which 20 concurrent requests are answered.
fn twenty(server: &Process) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let request =
                    b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
                assert_eq!(client::once(server.address, request), 200);
            });
        }
    });
    start.elapsed()
}
