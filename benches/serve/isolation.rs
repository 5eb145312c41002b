//! `make bench ARGS=isolation`: the latency of one model while other models load and unload.
//!
//! Model A gets requests on a fixed schedule, at a rate that keeps the machine half busy; latency
//! counts from the scheduled time of a request. (Half of the maximum rate would be too much, because
//! requests that arrive close together cost less each.) In alternating phases, B and C, with 100 MB
//! of variables each, are moved into and out of the directory of models repeatedly, or left alone.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::process::Process;
use crate::scenario::{self, Scenario, project};
use crate::{big_model, client};

/// Bytes of variables of B and C.
const BYTES: usize = 100 << 20;
/// Connections of the schedule.
const CONNECTIONS: u32 = 8;
/// The length of one phase: short, so that other load on the machine affects both kinds equally.
const PHASE: Duration = Duration::from_secs(2);

/// If the median latency is above this, requests pile up.
const BEHIND: Duration = Duration::from_millis(5);

/// Latencies in nanoseconds.
type Latency = Histogram<u64>;

pub fn run(model: &str, time: Duration) {
    let scenario = scenario::all().into_iter().find(|s| s.name == model).expect("a model");
    let root = tempfile::tempdir().expect("temporary directory");
    let (models, aside) = (root.path().join("models"), root.path().join("aside"));
    fs::create_dir_all(&models).expect("directory");
    let a = project("models").join(scenario.name);
    std::os::unix::fs::symlink(a, models.join(scenario.name)).expect("link");
    for name in ["b", "c"] {
        big_model::write(&aside.join(name).join("1"), BYTES);
    }
    // Files that have not changed for 3 s are loaded at the first scan.
    thread::sleep(Duration::from_millis(3500));
    let server = Process::serving(&models, &[]);
    client::check(server.address, &scenario);
    let (rate, busy) = half_load(server.address, &scenario);
    println!(
        "A is {}, at {rate:.0} requests per second, which use {:.0} % of the CPUs; \
         {} s with loads and as long without",
        scenario.name,
        busy * 100.0,
        time.as_secs()
    );
    let mut alone = Histogram::new(3).expect("histogram");
    let mut beside: Latency = Histogram::new(3).expect("histogram");
    let mut loads = 0;
    let phases = (time.as_millis() / PHASE.as_millis()).max(1);
    for phase in 0..phases {
        let with_loads = |beside: &mut Latency| {
            let (latency, count) = while_loading(server.address, &scenario, rate, &models, &aside);
            beside.add(&latency).expect("same range");
            count
        };
        if phase % 2 == 1 {
            loads += with_loads(&mut beside);
        }
        alone.add(ask(server.address, &scenario, Some(rate))).expect("same range");
        if phase % 2 == 0 {
            loads += with_loads(&mut beside);
        }
    }
    println!("{loads} loads and unloads of {} MB; latency of A in us:", BYTES >> 20);
    println!("{:<12}{:>10}{:>10}{:>10}{:>10}", "", "p50", "p90", "p99", "p99.9");
    let quantiles = [0.5, 0.9, 0.99, 0.999];
    let row = |name: &str, latency: &Latency| {
        let micros = quantiles.map(|q| latency.value_at_quantile(q) as f64 / 1000.0);
        let cells = micros.map(|value| format!("{value:>10.0}"));
        println!("{name:<12}{}", cells.concat());
        micros
    };
    let (alone, beside) = (row("alone", &alone), row("with loads", &beside));
    let ratios = [0, 1, 2, 3].map(|i| format!("{:>10.2}", beside[i] / alone[i]));
    println!("{:<12}{}", "ratio", ratios.concat());
}

/// One phase with loads: latencies, and the number of loads and unloads.
fn while_loading(
    address: SocketAddr,
    scenario: &Scenario,
    rate: f64,
    models: &Path,
    aside: &Path,
) -> (Latency, u64) {
    let (over, loads) = (AtomicBool::new(false), AtomicU64::new(0));
    let latency = thread::scope(|scope| {
        for name in ["b", "c"] {
            let (over, loads) = (&over, &loads);
            scope.spawn(move || {
                let (inside, outside) = (models.join(name), aside.join(name));
                while !over.load(SeqCst) {
                    fs::rename(&outside, &inside).expect("moves in");
                    wait_for(address, name, true);
                    fs::rename(&inside, &outside).expect("moves out");
                    wait_for(address, name, false);
                    loads.fetch_add(1, SeqCst);
                }
            });
        }
        let latency = ask(address, scenario, Some(rate));
        over.store(true, SeqCst);
        latency
    });
    (latency, loads.into_inner())
}

/// The rate of requests that keeps the machine half busy, to within a tenth, and the CPU
/// utilization at that rate. Both include the client, which also competes with loads.
fn half_load(address: SocketAddr, scenario: &Scenario) -> (f64, f64) {
    // The rate without a schedule.
    let unscheduled = ask(address, scenario, None).len();
    let mut rate = unscheduled as f64 / PHASE.as_secs_f64() / 2.0;
    loop {
        let before = processor_time();
        let latency = ask(address, scenario, Some(rate));
        let after = processor_time();
        let busy = (after.0 - before.0) / (after.1 - before.1);
        // Behind schedule, latencies keep growing.
        let behind = Duration::from_nanos(latency.value_at_quantile(0.5)) > BEHIND;
        if busy <= 0.5 && !behind {
            return (rate, busy);
        }
        rate *= 0.9;
    }
}

/// CPU time used so far, and available so far, of the whole machine, in ticks.
fn processor_time() -> (f64, f64) {
    let text = fs::read_to_string("/proc/stat").expect("/proc/stat");
    let line = text.lines().next().expect("a line for all CPUs");
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|t| t.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user.
    let all: f64 = ticks.iter().take(8).sum();
    (all - ticks[3] - ticks[4], all)
}

/// Sends requests for one phase: at `rate` per second on schedule, or without a schedule as many as
/// are answered.
fn ask(address: SocketAddr, scenario: &Scenario, rate: Option<f64>) -> Latency {
    let start = Instant::now() + Duration::from_millis(20);
    let interval = rate.map(|rate| Duration::from_secs_f64(1.0 / rate));
    let end = start + PHASE;
    let connection = |first: u32| {
        let mut latency: Latency = Histogram::new(3).expect("histogram");
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.set_nodelay(true).expect("nodelay");
        let mut number = first;
        loop {
            let due = interval.map_or_else(Instant::now, |interval| start + interval * number);
            if due >= end {
                return latency;
            }
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let request = &scenario.requests[number as usize % scenario.requests.len()];
            stream.write_all(request).expect("sent");
            assert_eq!(answer(&mut stream).0, 200, "a request failed");
            latency.record(due.elapsed().as_nanos() as u64).expect("in range");
            number += CONNECTIONS;
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..CONNECTIONS).map(|first| scope.spawn(move || connection(first))).collect();
        let mut all: Latency = Histogram::new(3).expect("histogram");
        for thread in threads {
            all.add(thread.join().expect("no panic")).expect("same range");
        }
        all
    })
}

/// Waits until `model` is ready, or unloaded.
fn wait_for(address: SocketAddr, model: &str, ready: bool) {
    let mut stream = TcpStream::connect(address).expect("connects");
    let request = format!("GET /v1/models/{model} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    loop {
        stream.write_all(request.as_bytes()).expect("sent");
        let (status, body) = answer(&mut stream);
        let is_ready = body.contains("\"AVAILABLE\"");
        let is_gone = status == 404 || body.contains("\"END\"");
        if if ready { is_ready } else { is_gone } {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Reads one response: status and body.
fn answer(stream: &mut TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        let read = stream.read(&mut buffer).expect("answer");
        assert!(read > 0, "the server closed the connection");
        bytes.extend_from_slice(&buffer[..read]);
        let Some(head) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().expect("a number"));
        if bytes.len() >= head + 4 + length {
            let status = text[9..12].parse().expect("status");
            return (status, String::from_utf8_lossy(&bytes[head + 4..]).into_owned());
        }
    }
}
