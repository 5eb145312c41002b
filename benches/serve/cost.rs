//! The CPU time of one request, compared with that of another in the same run.

use std::time::Duration;

use crate::client;
use crate::process::Process;

/// Pairs of measurements in a round. The speed of a machine changes from one second to the next: what is
/// compared must be measured within a fraction of one.
const PAIRS: u32 = 8;

/// The CPU time of a request in microseconds, measured for this long.
pub type Cost<'a> = Box<dyn Fn(Duration) -> f64 + 'a>;

/// A request and another one that it is compared with.
pub struct Comparison<'a> {
    pub name: &'a str,
    pub ours: Cost<'a>,
    pub bound: Cost<'a>,
}

/// Measures each comparison for `time` in each round, and prints the medians and the ratio of both costs:
/// its median, and the range of half of the pairs.
pub fn compare(comparisons: &[Comparison<'_>], rounds: usize, time: Duration) {
    let slice = time / PAIRS;
    let mut pairs = vec![Vec::new(); comparisons.len()];
    // The first round is for the servers to measure their models.
    for round in 0..=rounds {
        for (comparison, pairs) in comparisons.iter().zip(&mut pairs) {
            for pair in 0..PAIRS {
                let (ours, bound) = if pair % 2 == 0 {
                    let ours = (comparison.ours)(slice);
                    (ours, (comparison.bound)(slice))
                } else {
                    let bound = (comparison.bound)(slice);
                    ((comparison.ours)(slice), bound)
                };
                if round > 0 {
                    pairs.push((ours, bound));
                }
            }
        }
    }
    println!("CPU time of a request in us: medians of {} pairs of {slice:?}", pairs[0].len());
    println!("{:<60}{:>9}{:>9}{:>8}{:>15}", "", "cost", "against", "ratio", "half of them");
    for (comparison, pairs) in comparisons.iter().zip(&pairs) {
        let ours = quantile(pairs.iter().map(|(ours, _)| *ours), 0.5);
        let bound = quantile(pairs.iter().map(|(_, bound)| *bound), 0.5);
        let ratio = |at| quantile(pairs.iter().map(|(ours, bound)| ours / bound), at);
        let half = format!("{:.2} to {:.2}", ratio(0.25), ratio(0.75));
        let name = comparison.name;
        println!("{name:<60}{ours:>9.1}{bound:>9.1}{:>8.3}{half:>15}", ratio(0.5));
    }
}

/// The value below which this part of the values lies.
pub fn quantile(values: impl Iterator<Item = f64>, part: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = (part * values.len() as f64) as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}

/// The cost of a request that is sent over this many connections at once.
pub fn http<'a>(process: &'a Process, request: &[u8], connections: usize) -> Cost<'a> {
    http_in_turn(process, &[request.to_vec()], connections)
}

/// The cost of one of these requests, sent in turn over this many connections at once.
pub fn http_in_turn<'a>(
    process: &'a Process,
    requests: &[Vec<u8>],
    connections: usize,
) -> Cost<'a> {
    let requests = requests.to_vec();
    Box::new(move |time| {
        let before = process.cpu();
        let load = client::run(process.address, &requests, connections, time);
        assert_eq!(load.failed, 0, "requests failed");
        per_request(process.cpu() - before, load.latency.len())
    })
}

pub fn per_request(used: Duration, requests: u64) -> f64 {
    used.as_secs_f64() * 1e6 / requests as f64
}

/// A request of HTTP, with more header lines in `headers`.
pub fn post(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: h\r\n{headers}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}
