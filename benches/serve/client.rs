//! A closed-loop client: each connection sends, waits for the response, sends again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::scenario::Scenario;

pub struct Load {
    /// Nanoseconds.
    pub latency: Histogram<u64>,
    pub failed: u64,
    pub time: Duration,
}

pub fn run(address: SocketAddr, requests: &[Vec<u8>], connections: usize, time: Duration) -> Load {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let requests: std::sync::Arc<Vec<Vec<u8>>> = std::sync::Arc::new(requests.to_vec());
        let start = Instant::now();
        let end = start + time;
        let tasks: Vec<_> = (0..connections)
            .map(|number| {
                let requests = std::sync::Arc::clone(&requests);
                tokio::spawn(async move { connection(address, &requests, number, end).await })
            })
            .collect();
        let mut load = Load { latency: Histogram::new(3).expect("histogram"), failed: 0, time };
        for task in tasks {
            let (latency, failed) = task.await.expect("no panic");
            load.latency.add(&latency).expect("same range");
            load.failed += failed;
        }
        load.time = start.elapsed();
        load
    })
}

async fn connection(
    address: SocketAddr,
    requests: &[Vec<u8>],
    number: usize,
    end: Instant,
) -> (Histogram<u64>, u64) {
    let mut latency = Histogram::new(3).expect("histogram");
    let mut failed = 0;
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.set_nodelay(true).expect("nodelay");
    let mut buffer = vec![0; 1 << 20];
    let mut next = number;
    while Instant::now() < end {
        let start = Instant::now();
        stream.write_all(&requests[next % requests.len()]).await.expect("sent");
        next += 1;
        let (status, _) = answer(&mut stream, &mut buffer).await;
        failed += u64::from(status != 200);
        let nanos = u64::try_from(start.elapsed().as_nanos()).expect("short");
        latency.record(nanos.max(1)).expect("in range");
    }
    (latency, failed)
}

/// Reads one response; returns its status and where its body is in the buffer.
async fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> (u16, std::ops::Range<usize>) {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await.expect("answer");
        assert!(read > 0, "the server closed the connection");
        filled += read;
        let Some(head) = buffer[..filled].windows(4).position(|w| w == b"\r\n\r\n") else {
            continue;
        };
        let text = std::str::from_utf8(&buffer[..head]).expect("text");
        let status: u16 = text[9..12].parse().expect("status");
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        let start = head + 4;
        let end = start + length.unwrap_or(0);
        while filled < end {
            let read = stream.read(&mut buffer[filled..]).await.expect("answer");
            assert!(read > 0, "the server closed the connection");
            filled += read;
        }
        return (status, start..end);
    }
}

/// Sends each request once and checks the responses.
pub fn check(address: SocketAddr, scenario: &Scenario) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        let mut buffer = vec![0; 1 << 20];
        for request in &scenario.requests {
            stream.write_all(request).await.expect("sent");
            let (status, body) = answer(&mut stream, &mut buffer).await;
            let text = String::from_utf8_lossy(&buffer[body]);
            assert_eq!(status, 200, "{}: {text}", scenario.name);
            assert!(text.contains("predictions"), "{text}");
        }
    });
}

/// Waits until the versions of a server run in the form in which they stay. Earlier servers have one form.
pub fn wait_for_optimization(address: SocketAddr) {
    let is_busy = |line: &str| {
        let count = line.strip_prefix("tensorserve_optimizing_versions ");
        count.is_some_and(|count| count != "0")
    };
    while metrics(address).lines().any(is_busy) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn metrics(address: SocketAddr) -> String {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("sent");
        let mut buffer = vec![0; 1 << 20];
        let (_, body) = answer(&mut stream, &mut buffer).await;
        String::from_utf8_lossy(&buffer[body]).into_owned()
    })
}

/// The rows and the batches of a model that the server has run so far.
pub fn batches(address: SocketAddr, model: &str) -> (f64, f64) {
    let text = metrics(address);
    let sum = |name: &str| {
        let start = format!("tensorserve_batch_rows_{name}{{model=\"{model}\"");
        let lines = text.lines().filter(|line| line.starts_with(&start));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    (sum("sum"), sum("count"))
}
