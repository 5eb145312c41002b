//! Servers that answer wrongly, or not at all.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorserve_loadgen::plan::Arrivals;
use tensorserve_loadgen::results::{FailureKind, RunEnd};
use tensorserve_loadgen::run::run;

use crate::known_delays::{go, plan};
use crate::server::{KnownReply, KnownServer};

const MS: Duration = Duration::from_millis(1);

#[test]
fn statuses_are_counted_and_the_first_failure_is_kept() {
    let server = KnownServer::start(|number, arrived| match number % 2 {
        0 => KnownReply::with(arrived + MS, "503 Service Unavailable", "{\"error\": \"full\"}"),
        _ => KnownReply::ok(arrived + MS),
    });
    let mut plan = plan(&server, Arrivals::Closed);
    (plan.duration, plan.connections) = (500 * MS, 4);
    let results = go(&plan);
    let (good, bad) = (results.counts.statuses[&200], results.counts.statuses[&503]);
    assert!(good > 10 && bad > 10 && good.abs_diff(bad) < 10, "{:?}", results.counts);
    assert_eq!((results.counts.failed(), results.counts.succeeded), (bad, good));
    // Latencies are of what succeeded.
    assert_eq!(results.latency.len(), good);
    let first = results.first_failure.expect("a failure");
    assert_eq!((first.status, first.text.as_str()), (Some(503), "{\"error\": \"full\"}"));
}

#[test]
fn a_server_that_closes_connections_is_connected_to_again() {
    let server = KnownServer::start(|number, arrived| {
        let mut reply = KnownReply::ok(arrived + MS);
        if number % 5 == 4 {
            reply.bytes.splice(..17, *b"HTTP/1.1 200 OK\r\nConnection: close\r\n");
            reply.closes = true;
        }
        reply
    });
    let mut plan = plan(&server, Arrivals::Closed);
    (plan.duration, plan.connections) = (500 * MS, 4);
    let results = go(&plan);
    assert_eq!(results.counts.failed(), 0, "{:?} {:?}", results.counts, results.first_failure);
    assert!(results.counts.reconnects > 5, "{:?}", results.counts);
}

#[test]
fn a_response_that_is_cut_or_is_no_response_is_a_failure() {
    for (bytes, kind) in [
        (&b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"[..], FailureKind::Closed),
        (b"", FailureKind::Closed),
        (b"220 smtp ready\r\n\r\n", FailureKind::Malformed),
    ] {
        let server = KnownServer::start(move |number, arrived| match number % 3 {
            0 => KnownReply { at: arrived, bytes: bytes.to_vec(), closes: true },
            _ => KnownReply::ok(arrived + MS),
        });
        let mut plan = plan(&server, Arrivals::Closed);
        (plan.duration, plan.connections) = (300 * MS, 2);
        let results = go(&plan);
        let failed = results.counts.failures.get(&kind).copied().unwrap_or(0);
        assert!(failed > 3, "{kind:?} {:?} {:?}", results.counts, results.first_failure);
        assert_eq!(results.counts.failed(), failed, "{:?}", results.counts);
        assert!(results.counts.succeeded > 3, "{:?}", results.counts);
    }
}

#[test]
fn a_request_that_is_never_answered_times_out_and_counts() {
    let server = KnownServer::start(|number, arrived| match number {
        20 => KnownReply::ok(arrived + Duration::from_secs(3600)),
        _ => KnownReply::ok(arrived + MS),
    });
    let mut plan = plan(&server, Arrivals::Closed);
    (plan.duration, plan.connections, plan.timeout, plan.warm_up) =
        (1000 * MS, 2, 300 * MS, Duration::ZERO);
    let results = go(&plan);
    assert_eq!(
        results.counts.failures.get(&FailureKind::Timeout),
        Some(&1),
        "{:?}",
        results.counts
    );
    assert!(results.latency.max() >= 300_000_000, "{}", results.latency.max());
}

#[test]
fn a_server_that_dies_ends_the_run() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("binds");
    let address = listener.local_addr().expect("an address");
    let server = KnownServer::start(|_, arrived| KnownReply::ok(arrived));
    let mut plan = plan(&server, Arrivals::Poisson(100.0));
    // It accepts the connections, and goes away.
    (plan.address, plan.connections, plan.duration) = (address, 4, Duration::from_secs(3600));
    let dies = std::thread::spawn(move || {
        let accepted: Vec<_> = listener.incoming().take(4).collect();
        drop((accepted, listener));
    });
    let start = Instant::now();
    let results = go(&plan);
    dies.join().expect("ended");
    assert_eq!(results.ended, RunEnd::ServerGone);
    assert!(start.elapsed() < Duration::from_secs(60));
    let first = results.first_failure.expect("a failure");
    assert!(first.text.contains("refused") || first.text.contains("closed"), "{first:?}");
}

#[test]
fn a_rate_that_the_server_cannot_hold_is_seen() {
    let server = KnownServer::start(|_, arrived| KnownReply::ok(arrived + 20 * MS));
    let mut plan = plan(&server, Arrivals::Fixed(1000.0));
    (plan.duration, plan.connections, plan.warm_up) = (1000 * MS, 4, Duration::ZERO);
    let results = go(&plan);
    // Four connections with 20 ms each make 200 a second.
    assert!((50..250).contains(&results.counts.completed), "{:?}", results.counts);
    assert_eq!(results.counts.succeeded + results.counts.unsent, 1000, "{:?}", results.counts);
    assert!(results.counts.waited > 100, "{:?}", results.counts);
    // The wait for a connection is part of the latency.
    assert!(results.latency.max() > 500_000_000, "{}", results.latency.max());
}

#[test]
fn a_plan_that_makes_no_run_is_refused() {
    let server = KnownServer::start(|_, arrived| KnownReply::ok(arrived));
    let good = plan(&server, Arrivals::Closed);
    let refused = |change: &dyn Fn(&mut tensorserve_loadgen::plan::LoadPlan)| {
        let mut plan = good.clone();
        change(&mut plan);
        run(&plan, &mut |_| true).expect_err("refused").to_string()
    };
    assert!(refused(&|plan| plan.connections = 0).contains("connections"));
    assert!(refused(&|plan| plan.arrivals = Arrivals::Fixed(0.0)).contains("rate"));
    assert!(refused(&|plan| plan.arrivals = Arrivals::Poisson(f64::NAN)).contains("rate"));
    assert!(refused(&|plan| plan.duration = Duration::ZERO).contains("duration"));
    assert!(refused(&|plan| plan.requests = Arc::default()).contains("request"));
    let nobody =
        TcpListener::bind(("127.0.0.1", 0)).expect("binds").local_addr().expect("an address");
    let message = refused(&|plan| plan.address = nobody);
    assert!(message.contains(&nobody.to_string()) && message.contains("refused"), "{message}");
}
