//! HTTP/2 connections that flood, stall or stay silent: they take little memory, the server closes
//! abusive ones, and the calls of other clients continue.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use prost::Message;
use tonic::Code;

use crate::support::client::get;
use crate::support::grpc::{
    CONTINUATION, Caller, DATA, END_HEADERS, END_STREAM, Frames, GO_AWAY, HEADERS, PING, PREDICT,
    PREFACE, RESET, SETTINGS, body, frame, half_plus_two, head,
};
use crate::support::process::Process;
use crate::support::{project, wait_until};

const ENHANCE_YOUR_CALM: u32 = 11;

/// Runs `attack` during the calls of another client, and limits the growth of the server's memory.
fn serve_during(attack: impl FnOnce(SocketAddr)) {
    let process = Process::serve(&project("models/half_plus_two"), &["--header-timeout", "1s"]);
    let good = Caller::connect(process.grpc()).expect("connects");
    good.half_plus_two().expect("an answer");
    process.forget_peak();
    let before = process.peak();
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let slowest = thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !stop.load(SeqCst) {
                let start = Instant::now();
                good.half_plus_two().expect("an answer during the attack");
                slowest = slowest.max(start.elapsed());
                answered.fetch_add(1, SeqCst);
            }
            slowest
        });
        attack(process.grpc());
        // Calls after the attack count too, because its effects may last.
        let enough = answered.load(SeqCst) + 10;
        let start = Instant::now();
        while answered.load(SeqCst) < enough && start.elapsed() < Duration::from_secs(300) {
            thread::sleep(Duration::from_millis(1));
        }
        stop.store(true, SeqCst);
        calls.join().expect("no call failed")
    });
    let grown = (process.peak() - before) / 1024;
    println!("{answered:?} calls, slowest {slowest:?}, memory growth {grown} MB");
    assert!(answered.load(SeqCst) >= 10, "the calls of the other client stopped");
    assert!(slowest < Duration::from_secs(20), "a call took {slowest:?}");
    assert!(grown < 96, "{grown} MB");
    Caller::connect(process.grpc()).expect("connects").half_plus_two().expect("server responds");
}

/// Sends `bytes` up to `times` times. Whether all could be sent.
fn flood(frames: &mut Frames, bytes: &[u8], times: usize) -> bool {
    (0..times).all(|_| frames.send(bytes).is_ok())
}

fn call(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &head())
}

#[test]
fn calls_that_are_taken_back_at_once() {
    serve_during(|address| {
        let mut frames = Frames::connect(address, &[]);
        let mut all_taken = true;
        for first in (1..400_000).step_by(2000) {
            let pair = |stream| [call(stream), frame(RESET, 0, stream, &8_u32.to_be_bytes())];
            let bytes: Vec<u8> =
                (first..first + 2000).step_by(2).flat_map(pair).flatten().collect();
            all_taken = all_taken && frames.send(&bytes).is_ok();
        }
        assert!(!all_taken, "200,000 calls were started and reset");
        let (_, reason) = frames.until_closed().expect("connection closes");
        assert!(reason.is_none_or(|reason| reason == ENHANCE_YOUR_CALM), "{reason:?}");
    });
}

#[test]
fn pings_and_settings_that_are_never_read() {
    for kind in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
        serve_during(|address| {
            let mut frames = Frames::connect(address, &[]);
            let many = kind.repeat(4096);
            let all = flood(&mut frames, &many, 500);
            println!("all accepted: {all}");
        });
    }
}

#[test]
fn heads_without_end() {
    serve_during(|address| {
        let mut frames = Frames::connect(address, &[]);
        frames.send(&frame(HEADERS, 0, 1, &head())).expect("sent");
        let more = [&b"\x00\x7f\xd1\x1e"[..], &[b'a'; 4000]].concat();
        assert!(
            !flood(&mut frames, &frame(CONTINUATION, 0, 1, &more), 10_000),
            "all 40 MB were accepted"
        );
        // Empty frames, which a limit on the size of the head does not stop.
        let mut frames = Frames::connect(address, &[]);
        frames.send(&frame(HEADERS, 0, 1, &head())).expect("sent");
        let empty = frame(CONTINUATION, 0, 1, &[]).repeat(1000);
        assert!(!flood(&mut frames, &empty, 1000), "a million frames were accepted");
    });
}

#[test]
fn streams_by_the_thousand() {
    serve_during(|address| {
        let mut frames = Frames::connect(address, &[]);
        let calls: Vec<u8> = (1..20_000).step_by(2).flat_map(call).collect();
        let _ = frames.send(&calls);
        // The calls stay open: empty DATA frames, but no message.
        let empty: Vec<u8> = (1..2000).step_by(2).flat_map(|s| frame(DATA, 0, s, &[])).collect();
        flood(&mut frames, &empty, 100);
    });
}

#[test]
fn answers_that_are_never_read() {
    serve_during(|address| {
        // A window of 0: the server can send headers, but no data.
        let mut frames = Frames::connect(address, &[0, 4, 0, 0, 0, 0]);
        let message = body(&half_plus_two().encode_to_vec());
        for stream in (1..2000).step_by(2) {
            let data = frame(DATA, END_STREAM, stream, &message);
            frames.send(&[call(stream), data].concat()).expect("sent");
        }
        thread::sleep(Duration::from_secs(1));
    });
}

#[test]
fn clients_that_grant_no_window_for_their_response_are_disconnected() {
    let options = ["--write-timeout", "1s"];
    let process = Process::serve(&project("models/half_plus_two"), &options);
    let message = body(&half_plus_two().encode_to_vec());
    // No window at all, and one of 3 bytes, which the server fills.
    for window in [0, 3] {
        let mut frames = Frames::connect(process.grpc(), &[0, 4, 0, 0, 0, window]);
        let start = Instant::now();
        frames.send(&[call(1), frame(DATA, END_STREAM, 1, &message)].concat()).expect("sent");
        // It reads everything that the server sends.
        let (kinds, _) = frames.until_closed().expect("connection closes");
        assert!(kinds.contains(&HEADERS), "{kinds:?}");
        let took = start.elapsed();
        assert!(took > Duration::from_secs(1) && took < Duration::from_secs(50), "{took:?}");
    }
}

#[test]
fn a_message_that_does_not_come_to_its_end() {
    let options = ["--body-timeout", "500ms"];
    let process = Process::serve(&project("models/half_plus_two"), &options);
    let caller = Caller::connect(process.grpc()).expect("connects");
    let start = Instant::now();
    let status = caller.call_without_message(PREDICT);
    let took = start.elapsed();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("did not arrive within 0.5 s"), "{status}");
    assert!(took >= Duration::from_millis(450) && took < Duration::from_secs(50), "{took:?}");
    // The connection stays usable.
    caller.half_plus_two().expect("an answer");
}

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECT: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

#[test]
fn messages_to_the_servers_own_services_end_in_time() {
    let options = ["--body-timeout", "500ms"];
    let process = Process::serve(&project("models/half_plus_two"), &options);
    let caller = Caller::connect(process.grpc()).expect("connects");
    for path in [CHECK, WATCH, REFLECT] {
        let start = Instant::now();
        let status = caller.call_without_message(path);
        let took = start.elapsed();
        // Reflection ends its stream without a status of its own.
        assert_eq!(status.code() == Code::DeadlineExceeded, path != REFLECT, "{path}: {status}");
        assert!(took >= Duration::from_millis(450) && took < Duration::from_secs(50), "{took:?}");
    }
    caller.half_plus_two().expect("an answer");
}

#[test]
fn messages_to_the_servers_own_services_are_small() {
    let process = Process::serve(&project("models/half_plus_two"), &[]);
    let caller = Caller::connect(process.grpc()).expect("connects");
    for (path, field) in [(CHECK, 1), (WATCH, 1), (REFLECT, 4)] {
        let mut message = vec![field << 3 | 2];
        prost::encode_length_delimiter(8000, &mut message).expect("room");
        message.resize(8003, b'a');
        let status = caller.call(path, message).expect_err(path);
        assert_eq!(status.code() == Code::OutOfRange, path != REFLECT, "{path}: {status}");
    }
    caller.half_plus_two().expect("an answer");
}

#[test]
fn clients_that_watch_the_health_are_counted() {
    let process = Process::serve(&project("models/half_plus_two"), &[]);
    let callers: Vec<_> =
        (0..5).map(|_| Caller::connect(process.grpc()).expect("connects")).collect();
    // Each connection has its own thread, which keeps its calls open until all have been started.
    let all_begun = std::sync::Barrier::new(callers.len());
    let refused: usize = thread::scope(|scope| {
        let each = callers.into_iter().map(|caller| {
            let all_begun = &all_begun;
            scope.spawn(move || {
                let codes = caller.begin_many(WATCH, 250, || _ = all_begun.wait());
                assert!(codes.iter().all(|c| [Code::Ok, Code::ResourceExhausted].contains(c)));
                codes.iter().filter(|code| **code == Code::ResourceExhausted).count()
            })
        });
        let each: Vec<_> = each.collect();
        each.into_iter().map(|thread| thread.join().expect("no call failed otherwise")).sum()
    });
    assert_eq!(refused, 5 * 250 - 1024);
    // The server learns of the closed connections when it reads from them.
    let caller = Caller::connect(process.grpc()).expect("connects");
    wait_until("the places are free again", || caller.begin(WATCH, None) == Code::Ok);
}

#[test]
fn clients_that_say_nothing_are_closed() {
    serve_during(|address| {
        let quiet: [&[u8]; 3] = [b"", &PREFACE[..10], &PREFACE[..23]];
        let mut all = Vec::new();
        for bytes in quiet.into_iter().cycle().take(300) {
            let mut frames = Frames(std::net::TcpStream::connect(address).expect("connects"));
            frames.0.set_read_timeout(Some(Duration::from_secs(30))).expect("socket option");
            frames.send(bytes).expect("sent");
            all.push(frames);
        }
        for frames in &mut all {
            frames.until_closed().expect("connection closes");
        }
    });
}

#[test]
fn connections_are_counted() {
    let options = ["--header-timeout", "1s", "--max-connections", "4"];
    let process = Process::serve(&project("models/half_plus_two"), &options);
    let quiet: Vec<_> =
        (0..4).map(|_| std::net::TcpStream::connect(process.grpc()).expect("connects")).collect();
    // The silent connections must be closed first.
    let start = Instant::now();
    let caller = Caller::connect(process.grpc()).expect("connects");
    caller.half_plus_two().expect("an answer");
    assert!(start.elapsed() > Duration::from_millis(500), "a fifth connection was served");
    drop(quiet);
}

/// The most calls of a client that may wait for their messages, and those of a connection that may be open.
const SILENT_CALLS: u32 = 4096;
const OF_CONNECTION: u32 = 256;

/// Makes silent calls that are refused, 64 at a time, from `stream` on, which moves behind them, until a frame of this
/// type arrives, or the server closes the connection. Returns the payload.
fn refused_until(frames: &mut Frames, kind: u8, stream: &mut u32) -> Option<Vec<u8>> {
    loop {
        assert!(*stream < 2 * 10_000, "10,000 refused calls have no consequence");
        let calls: Vec<u8> = (0..64).flat_map(|number| call(*stream + 2 * number)).collect();
        *stream += 128;
        frames.send(&calls).ok()?;
        let mut answered = 0;
        while answered < 64 {
            let (found, payload) = frames.next().ok()?;
            if found == kind {
                return Some(payload);
            }
            answered += usize::from(found == HEADERS);
        }
    }
}

#[test]
fn a_client_that_goes_on_with_refused_calls_is_sent_away_and_others_are_served() {
    // Calls that end are silent no more, and the next ones are not refused.
    let patient = ["--body-timeout", "10m"];
    let process = Process::serve(&project("models/half_plus_two"), &patient);
    let attacker = Ipv4Addr::new(127, 0, 0, 2);
    let silent: Vec<_> = (0..SILENT_CALLS / OF_CONNECTION)
        .map(|_| {
            let mut frames = Frames::connect_from(attacker, process.grpc());
            let calls: Vec<u8> = (0..OF_CONNECTION).flat_map(|n| call(1 + 2 * n)).collect();
            frames.send(&calls).expect("sent");
            frames
        })
        .collect();
    let in_flight = || {
        let metrics = get(process.address, "/metrics").text();
        let line = metrics.lines().find_map(|l| l.strip_prefix("tensorserve_in_flight_requests "));
        line.and_then(|number| number.trim().parse::<f64>().ok()).expect("a number")
    };
    wait_until("all calls are there", || in_flight() >= f64::from(SILENT_CALLS));
    let mut frames = Frames::connect_from(attacker, process.grpc());
    let mut stream = 1;
    let farewell = refused_until(&mut frames, GO_AWAY, &mut stream).expect("a GOAWAY");
    assert_eq!(farewell.get(4..8), Some(&ENHANCE_YOUR_CALM.to_be_bytes()[..]));
    let good = Caller::connect(process.grpc()).expect("connects");
    good.half_plus_two().expect("an answer to another client");
    let end = refused_until(&mut frames, GO_AWAY, &mut stream);
    assert!(end.is_none_or(|farewell| farewell.get(4..8) != Some(&[0; 4])), "it is cut off");
    assert!(frames.until_closed().is_ok(), "the connection is closed");
    good.half_plus_two().expect("an answer to another client");
    drop(silent);
}
