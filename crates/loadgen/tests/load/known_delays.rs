//! The quantiles of a run are those of the server.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tensorserve_loadgen::plan::{Arrivals, LoadPlan, WireKind, WireRequest};
use tensorserve_loadgen::results::{LoadResults, RunEnd};
use tensorserve_loadgen::run::run;

use crate::server::{KnownReply, KnownServer};

const MS: Duration = Duration::from_millis(1);

/// How far a quantile may be off.
const TOLERANCE: f64 = 0.02;

pub(crate) fn plan(server: &KnownServer, arrivals: Arrivals) -> LoadPlan {
    let request = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n{}".to_vec();
    LoadPlan {
        address: server.address,
        wire: WireKind::Http,
        tls: None,
        requests: Arc::new(vec![WireRequest::http(request)]),
        arrivals,
        connections: 64,
        threads: 2,
        warm_up: 200 * MS,
        duration: Duration::from_secs(3),
        timeout: Duration::from_secs(10),
        until_steady: false,
    }
}

pub(crate) fn go(plan: &LoadPlan) -> LoadResults {
    run(plan, &mut |_| true).expect("it runs")
}

/// 200 ms, 2 % of the requests 600 ms, 0.4 % of them 2 s: the tolerance is longer than a thread usually waits for a
/// CPU on a machine that does other things, too.
fn delay(number: u64) -> Duration {
    match number % 1000 {
        n if n % 250 == 7 => 2000 * MS,
        n if n % 50 == 3 => 600 * MS,
        _ => 200 * MS,
    }
}

const DELAYS: [(f64, f64); 3] = [(0.5, 200.0), (0.99, 600.0), (0.999, 2000.0)];

/// Compares quantiles, in milliseconds. A machine that is busy with other things wakes threads late, which no client
/// can tell from a slow server: a run like that is repeated.
fn assert_in_one_run(mut run: impl FnMut() -> Vec<(f64, f64, f64)>) {
    let mut seen = Vec::new();
    for _ in 0..6 {
        let compared = run();
        if compared.iter().all(|(_, found, want)| (found / want - 1.0).abs() <= TOLERANCE) {
            return;
        }
        seen.push(compared);
    }
    panic!("quantile, found, wanted: {seen:?}");
}

fn found(results: &LoadResults, quantile: f64) -> f64 {
    results.latency.value_at_quantile(quantile) as f64 / 1e6
}

#[test]
fn a_closed_loop_shows_the_delays_of_the_server() {
    assert_in_one_run(|| {
        let server = KnownServer::start(|number, arrived| KnownReply::ok(arrived + delay(number)));
        let mut plan = plan(&server, Arrivals::Closed);
        plan.duration = Duration::from_secs(8);
        let results = go(&plan);
        assert_eq!(results.counts.failed(), 0, "{:?}", results.counts);
        assert!(results.counts.succeeded > 1000, "{:?}", results.counts);
        DELAYS.map(|(quantile, want)| (quantile, found(&results, quantile), want)).to_vec()
    });
}

#[test]
fn an_open_loop_shows_the_delays_of_the_server_and_holds_its_rate() {
    for arrivals in [Arrivals::Poisson(250.0), Arrivals::Fixed(250.0)] {
        assert_in_one_run(|| {
            let server =
                KnownServer::start(|number, arrived| KnownReply::ok(arrived + delay(number)));
            let mut plan = plan(&server, arrivals.clone());
            // More than are ever in flight: no request waits for a connection.
            (plan.duration, plan.connections) = (Duration::from_secs(8), 200);
            let results = go(&plan);
            assert_eq!((results.counts.failed(), results.counts.unsent), (0, 0));
            assert!(results.counts.succeeded.abs_diff(2000) < 150, "{:?}", results.counts);
            DELAYS.map(|(quantile, want)| (quantile, found(&results, quantile), want)).to_vec()
        });
    }
}

/// A server that writes no response for a second, from 1.5 s after the first request.
fn stalling(delay: Duration) -> KnownServer {
    let first = OnceLock::new();
    KnownServer::start(move |_, arrived| {
        let from = *first.get_or_init(|| arrived) + 1500 * MS;
        let (at, to) = (arrived + delay, from + 1000 * MS);
        KnownReply::ok(if at >= from && at < to { to } else { at })
    })
}

/// Requests are due every 5 ms for 4 s, and 200 of 800 wait for the end of the stall: the first of them for 1005 ms,
/// each after it for 5 ms less.
#[test]
fn a_stall_is_in_the_latency_of_all_requests_that_were_due_in_it() {
    let want = [(0.9, 605.0), (0.99, 965.0), (0.999, 1005.0)];
    assert_in_one_run(|| {
        let server = stalling(5 * MS);
        let mut plan = plan(&server, Arrivals::Fixed(200.0));
        (plan.duration, plan.connections) = (Duration::from_secs(4), 250);
        let results = go(&plan);
        assert_eq!((results.counts.succeeded, results.counts.unsent), (800, 0));
        want.map(|(quantile, want)| (quantile, found(&results, quantile), want)).to_vec()
    });
}

#[test]
fn a_request_that_waits_for_a_connection_in_a_stall_waits_for_the_server() {
    let want = [(0.9, 601.0), (0.99, 961.0), (0.999, 1001.0)];
    assert_in_one_run(|| {
        let server = stalling(MS);
        let mut plan = plan(&server, Arrivals::Fixed(200.0));
        (plan.duration, plan.connections) = (Duration::from_secs(4), 50);
        let results = go(&plan);
        assert!(results.counts.waited > 100, "{:?}", results.counts);
        want.map(|(quantile, want)| (quantile, found(&results, quantile), want)).to_vec()
    });
}

/// It sends nothing meanwhile, and shows what its connections saw: one slow request each.
#[test]
fn a_closed_loop_shows_a_stall_once_for_each_connection() {
    assert_in_one_run(|| {
        let server = stalling(50 * MS);
        let mut plan = plan(&server, Arrivals::Closed);
        (plan.warm_up, plan.connections) = (Duration::ZERO, 16);
        let results = go(&plan);
        let slow = results.windows.iter().flat_map(|window| &window.latency.0);
        let slow: u64 =
            slow.filter(|(latency, _)| *latency > 500_000_000).map(|(_, count)| count).sum();
        assert_eq!(slow, 16);
        let quantiles = [0.5, 0.99, 0.999];
        quantiles.map(|q| (q, found(&results, q), server.quantile(q).as_secs_f64() * 1e3)).to_vec()
    });
}

/// In one of a few runs: on a busy machine quantiles are not steady.
#[test]
fn a_run_ends_when_its_quantiles_are_steady() {
    let server = KnownServer::start(|number, arrived| {
        let delay = if number % 5 == 0 { 400 } else { 100 };
        KnownReply::ok(arrived + delay * MS)
    });
    let mut plan = plan(&server, Arrivals::Closed);
    plan.until_steady = true;
    plan.duration = Duration::from_secs(12);
    let runs = (0..4).map(|_| go(&plan));
    let results = runs.into_iter().find(|results| results.ended == RunEnd::Steady);
    let results = results.expect("steady quantiles");
    assert!(results.seconds < 11.5 && results.windows.len() >= 10, "{}", results.seconds);
    let windows: u64 = results.windows.iter().map(|window| window.counts.answered()).sum();
    assert_eq!(windows, results.counts.answered());
}

#[test]
fn the_caller_sees_each_window_and_can_end_the_run() {
    let server = KnownServer::start(|_, arrived| KnownReply::ok(arrived + MS));
    let mut plan = plan(&server, Arrivals::Poisson(200.0));
    plan.duration = Duration::from_secs(60);
    let mut seen = 0;
    let results = run(&plan, &mut |live| {
        seen += 1;
        assert!(live.measured > 0.0 && live.of > 59.0);
        seen < 2
    });
    let results = results.expect("it runs");
    assert_eq!((seen, results.ended), (2, RunEnd::Stopped));
    assert!(results.seconds < 30.0, "{}", results.seconds);
}
