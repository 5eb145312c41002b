//! `make bench`: the cost of a request, compared with its lower bounds.
//!
//! Absolute times mean little on a shared machine, so one run measures everything in alternating
//! order, several times: the release server in its own process, a bare actix-web handler that echoes
//! the same bytes (also in its own process), libtensorflow in a bare loop through the same bindings,
//! and the JSON reader and writer alone. Medians are printed.
//!
//! CPU time per request is that of the whole server process, from the kernel's accounting, without
//! the client.
//!
//! Other measurements: `handlers`, the cost of an `inference.py` ([`handlers`]); `isolation`, the latency
//! of one model while others load and unload ([`isolation`]); `v2`, the Open Inference Protocol
//! ([`open_inference`]); `traces`, what traces cost requests that are not recorded ([`traces`]); `against
//! BINARY`, this server against another binary of it ([`against`]).
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod against;
mod big_model;
mod client;
mod cost;
mod grpc;
mod handlers;
mod isolation;
mod json;
mod open_inference;
mod process;
mod raw;
mod scenario;
mod traces;

use std::collections::BTreeMap;
use std::time::Duration;

use client::Load;
use cost::{per_request, quantile};
use process::Process;
use scenario::Scenario;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|a| a == "--echo-server") {
        keep_as_the_server();
        return process::echo_server();
    }
    if arguments.iter().any(|a| a == "--grpc-echo-server") {
        keep_as_the_server();
        return grpc::echo_server();
    }
    let number = |name: &str, default: usize| {
        let at = arguments.iter().position(|a| a == name);
        at.map_or(default, |at| arguments[at + 1].parse().expect("a number"))
    };
    let rounds = number("--rounds", 5);
    let millis = number("--millis", 1000) as u64;
    if arguments.iter().any(|a| a == "handlers") {
        return handlers::run(rounds, Duration::from_millis(millis));
    }
    if arguments.iter().any(|a| a == "v2") {
        let at = arguments.iter().position(|a| a == "--only");
        let only = at.map_or("", |at| arguments[at + 1].as_str());
        return open_inference::run(rounds, Duration::from_millis(millis), only);
    }
    if arguments.iter().any(|a| a == "traces") {
        return traces::run(rounds, Duration::from_millis(millis));
    }
    let only: Vec<&String> =
        arguments.iter().skip(1).filter(|a| scenario::NAMES.contains(&a.as_str())).collect();
    let connections = match number("--connections", 0) {
        0 => vec![1, 8, 64],
        one => vec![one],
    };
    let scenarios: Vec<Scenario> = scenario::all()
        .into_iter()
        .filter(|s| only.is_empty() || only.iter().any(|name| *name == s.name))
        .collect();
    // For profiling: load on a server that is already running.
    if let Some(at) = arguments.iter().position(|a| a == "--client") {
        let address = arguments[at + 1].parse().expect("an address");
        let time = Duration::from_millis(millis);
        let load = client::run(address, &scenarios[0].requests, connections[0], time);
        println!("{} requests, {} failed", load.latency.len(), load.failed);
        return;
    }
    if arguments.iter().any(|a| a == "isolation") {
        let model = only.first().map_or("wide_mlp", |name| name.as_str());
        return isolation::run(model, Duration::from_secs(number("--seconds", 60) as u64));
    }
    if let Some(at) = arguments.iter().position(|a| a == "against") {
        let time = Duration::from_millis(millis);
        return against::run(&arguments[at + 1], &scenarios, rounds, time);
    }
    println!(
        "{rounds} rounds of {millis} ms each, medians; CPU time of the whole server process\n"
    );
    let mut bench = Bench {
        time: Duration::from_millis(millis),
        connections,
        echo: Process::echo(),
        grpc_echo: Process::grpc_echo(),
        server: Process::server(),
        raw: raw::Raw::load(&scenarios),
        figures: BTreeMap::new(),
    };
    bench.warm(&scenarios);
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        bench.round(&scenarios, round % 2 == 1);
    }
    bench.print(&scenarios);
}

/// Gives the echo the allocator's settings of the server. With glibc's own, large bodies cost an echo up to
/// twice the time, and comparisons with it flatter the server.
fn keep_as_the_server() {
    tensorserve_os::keep_freed_memory(tensorserve_os::KEPT_BY_SERVER);
}

struct Bench {
    time: Duration,
    connections: Vec<usize>,
    echo: Process,
    grpc_echo: Process,
    server: Process,
    raw: raw::Raw,
    /// All values of each figure, by name.
    figures: BTreeMap<String, Vec<f64>>,
}

impl Bench {
    fn note(&mut self, name: String, value: f64) {
        self.figures.entry(name).or_default().push(value);
    }

    fn median(&self, name: &str) -> f64 {
        quantile(self.figures.get(name).into_iter().flatten().copied(), 0.5)
    }

    /// Lets the server measure its models, and checks every response once.
    fn warm(&mut self, scenarios: &[Scenario]) {
        for scenario in scenarios {
            client::check(self.server.address, scenario);
            for call in grpc::calls() {
                grpc::run(self.server.grpc, &call, Duration::from_millis(100));
            }
            for connections in self.connections.clone() {
                let time = Duration::from_millis(500);
                client::run(self.server.address, &scenario.requests, connections, time);
            }
        }
    }

    fn round(&mut self, scenarios: &[Scenario], backwards: bool) {
        for scenario in scenarios {
            self.raw_figures(scenario);
            for connections in self.connections.clone() {
                let mut contestants = vec!["echo", "server"];
                if backwards {
                    contestants.reverse();
                }
                for contestant in contestants {
                    self.measure(contestant, scenario, connections);
                }
            }
        }
        for (name, value) in json::figures() {
            self.note(name, value);
        }
        for call in grpc::calls() {
            let mut contestants = vec!["echo", "server"];
            if backwards {
                contestants.reverse();
            }
            for contestant in contestants {
                self.measure_grpc(contestant, &call);
            }
        }
    }

    fn measure_grpc(&mut self, contestant: &str, call: &grpc::Call) {
        let process = if contestant == "echo" { &self.grpc_echo } else { &self.server };
        let before = process.cpu();
        let answered = grpc::run(process.grpc, call, self.time);
        let used = process.cpu() - before;
        let name = |figure: &str| format!("grpc {} {contestant} {figure}", call.name);
        self.note(name("cpu"), per_request(used, answered));
        self.note(name("rate"), answered as f64 / self.time.as_secs_f64());
    }

    fn print_grpc(&self) {
        println!("\ngRPC Predict against a bare tonic echo of the same messages");
        println!(
            "{:<18}{:>7}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}",
            "model",
            "calls",
            "cpu us/req",
            "echo us/req",
            "echo/server",
            "req/s",
            "echo req/s",
            "server/echo"
        );
        for call in grpc::calls() {
            let get = |contestant: &str, figure: &str| {
                self.median(&format!("grpc {} {contestant} {figure}", call.name))
            };
            let (cpu, echo) = (get("server", "cpu"), get("echo", "cpu"));
            let (rate, echo_rate) = (get("server", "rate"), get("echo", "rate"));
            println!(
                "{:<18}{:>7}{cpu:>12.1}{echo:>12.1}{:>12.2}{rate:>12.0}{echo_rate:>12.0}{:>12.2}",
                call.name,
                call.concurrency,
                echo / cpu,
                rate / echo_rate
            );
        }
    }

    fn raw_figures(&mut self, scenario: &Scenario) {
        for (batch, micros) in self.raw.run(scenario) {
            self.note(format!("{} raw {batch}", scenario.name), micros);
        }
        let micros = json::request_micros(scenario);
        self.note(format!("{} json", scenario.name), micros);
    }

    fn measure(&mut self, contestant: &str, scenario: &Scenario, connections: usize) {
        let process = if contestant == "echo" { &self.echo } else { &self.server };
        let address = process.address;
        let is_server = contestant == "server";
        let batches =
            || if is_server { client::batches(address, scenario.name) } else { (0.0, 0.0) };
        let batches_before = batches();
        let before = process.cpu();
        let load: Load = client::run(address, &scenario.requests, connections, self.time);
        let used = process.cpu() - before;
        let batches_after = batches();
        assert_eq!(load.failed, 0, "{contestant}, {}: requests failed", scenario.name);
        let name = |figure: &str| format!("{} {contestant} {connections} {figure}", scenario.name);
        #[allow(clippy::cast_precision_loss)]
        let requests = load.latency.len() as f64;
        let micros = |quantile: f64| load.latency.value_at_quantile(quantile) as f64 / 1000.0;
        if is_server {
            let (rows, runs) =
                (batches_after.0 - batches_before.0, batches_after.1 - batches_before.1);
            self.note(name("batch"), rows / runs);
        }
        self.note(name("cpu"), per_request(used, load.latency.len()));
        self.note(name("rate"), requests / load.time.as_secs_f64());
        self.note(name("p50"), micros(0.5));
        self.note(name("p99"), micros(0.99));
    }

    fn print(&self, scenarios: &[Scenario]) {
        println!("libtensorflow alone, on one thread (us of CPU time per call, and per row)");
        println!("{:<16}{:>16}{:>16}{:>16}{:>16}", "", "1 row", "8 rows", "32 rows", "128 rows");
        for scenario in scenarios {
            print!("{:<16}", scenario.name);
            for batch in raw::BATCHES {
                let micros = self.median(&format!("{} raw {batch}", scenario.name));
                let per_row = micros / batch as f64;
                print!("{:>16}", format!("{micros:.1} ({per_row:.2})"));
            }
            println!();
        }
        println!("\nserver against a bare echo of the same bytes");
        println!(
            "{:<16}{:>6}{:>12}{:>12}{:>8}{:>12}{:>12}{:>12}{:>14}{:>12}",
            "model",
            "conns",
            "cpu us/req",
            "echo us/req",
            "ratio",
            "req/s",
            "p50 us",
            "p99 us",
            "echo p50/p99",
            "rows/run"
        );
        for scenario in scenarios {
            for connections in self.connections.clone() {
                let get = |contestant: &str, figure: &str| {
                    self.median(&format!("{} {contestant} {connections} {figure}", scenario.name))
                };
                let (cpu, echo) = (get("server", "cpu"), get("echo", "cpu"));
                println!(
                    "{:<16}{connections:>6}{cpu:>12.1}{echo:>12.1}{:>8.2}{:>12.0}{:>12.0}{:>12.0}{:>14}{:>12.1}",
                    scenario.name,
                    cpu / echo,
                    get("server", "rate"),
                    get("server", "p50"),
                    get("server", "p99"),
                    format!("{:.0}/{:.0}", get("echo", "p50"), get("echo", "p99")),
                    get("server", "batch"),
                );
            }
        }
        println!("\none connection, against the sum of its parts (us of CPU time)");
        println!(
            "{:<16}{:>10}{:>10}{:>10}{:>10}{:>10}{:>8}",
            "model", "echo", "json", "raw call", "sum", "server", "ratio"
        );
        for scenario in scenarios {
            let echo = self.median(&format!("{} echo 1 cpu", scenario.name));
            let json = self.median(&format!("{} json", scenario.name));
            let raw = self.median(&format!("{} raw 1", scenario.name));
            let server = self.median(&format!("{} server 1 cpu", scenario.name));
            let sum = echo + json + raw;
            println!(
                "{:<16}{echo:>10.1}{json:>10.1}{raw:>10.1}{sum:>10.1}{server:>10.1}{:>8.2}",
                scenario.name,
                server / sum
            );
        }
        self.print_grpc();
        println!("\nJSON of 224 x 224 x 3 numbers (GB of text per second, one core)");
        for name in json::KINDS {
            let (read, write) =
                (self.median(&format!("read {name}")), self.median(&format!("write {name}")));
            let (serde_read, serde_write) = (
                self.median(&format!("serde read {name}")),
                self.median(&format!("serde write {name}")),
            );
            println!(
                "{name:<16} read {read:.2} (typed serde_json {serde_read:.2}, ratio {:.1})   \
                 write {write:.2} (serde_json {serde_write:.2}, ratio {:.1})",
                read / serde_read,
                write / serde_write
            );
        }
    }
}
