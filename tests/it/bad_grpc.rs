//! HTTP/2 connections that flood, stall or say nothing: the server takes little memory for them,
//! ends those that go too far, and other clients' calls go on at the same time.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use prost::Message;
use tonic::Code;

use crate::support::grpc::{
    CONTINUATION, Caller, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, PING, PREDICT, PREFACE,
    RESET, SETTINGS, body, frame, half_plus_two, head,
};
use crate::support::process::Process;
use crate::support::project;

const ENHANCE_YOUR_CALM: u32 = 11;

/// Runs `attack` while another client's calls go on, and bounds what memory it takes.
fn under(attack: impl FnOnce(SocketAddr)) {
    let process = Process::serve(&project("models/half_plus_two"), &["--header-timeout", "1s"]);
    let good = Caller::connect(process.grpc()).expect("connects");
    good.half_plus_two().expect("an answer");
    process.forget_peak();
    let before = process.peak();
    let (ends, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let slowest = thread::scope(|scope| {
        let calls = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !ends.load(SeqCst) {
                let start = Instant::now();
                good.half_plus_two().expect("an answer while others attack");
                slowest = slowest.max(start.elapsed());
                answered.fetch_add(1, SeqCst);
            }
            slowest
        });
        attack(process.grpc());
        // Those after it count too: it is not undone at once.
        let enough = answered.load(SeqCst) + 10;
        let start = Instant::now();
        while answered.load(SeqCst) < enough && start.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(1));
        }
        ends.store(true, SeqCst);
        calls.join().expect("no call failed")
    });
    let grown = (process.peak() - before) / 1024;
    println!("{answered:?} calls meanwhile, the slowest in {slowest:?}; {grown} MB more");
    assert!(answered.load(SeqCst) >= 10, "calls did not go on");
    assert!(slowest < Duration::from_secs(5), "a call took {slowest:?}");
    assert!(grown < 96, "{grown} MB");
    Caller::connect(process.grpc()).expect("connects").half_plus_two().expect("still there");
}

/// Sends `bytes` until they are not taken any more, at most `times`. Whether all were.
fn flood(frames: &mut Frames, bytes: &[u8], times: usize) -> bool {
    (0..times).all(|_| frames.send(bytes).is_ok())
}

fn call(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &head())
}

#[test]
fn calls_that_are_taken_back_at_once() {
    under(|address| {
        let mut frames = Frames::connect(address, &[]);
        let mut all_taken = true;
        for first in (1..400_000).step_by(2000) {
            let pair = |stream| [call(stream), frame(RESET, 0, stream, &8_u32.to_be_bytes())];
            let bytes: Vec<u8> =
                (first..first + 2000).step_by(2).flat_map(pair).flatten().collect();
            all_taken = all_taken && frames.send(&bytes).is_ok();
        }
        assert!(!all_taken, "200,000 calls were begun and taken back");
        let (_, reason) = frames.until_closed().expect("it is closed");
        assert!(reason.is_none_or(|reason| reason == ENHANCE_YOUR_CALM), "{reason:?}");
    });
}

#[test]
fn pings_and_settings_that_are_never_read() {
    for kind in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[])] {
        under(|address| {
            let mut frames = Frames::connect(address, &[]);
            let many = kind.repeat(4096);
            let all = flood(&mut frames, &many, 500);
            println!("all taken: {all}");
        });
    }
}

#[test]
fn heads_without_end() {
    under(|address| {
        let mut frames = Frames::connect(address, &[]);
        frames.send(&frame(HEADERS, 0, 1, &head())).expect("sent");
        let more = [&b"\x00\x7f\xd1\x1e"[..], &[b'a'; 4000]].concat();
        assert!(!flood(&mut frames, &frame(CONTINUATION, 0, 1, &more), 10_000), "all 40 MB taken");
        // Empty ones, of which any number is in no bytes at all.
        let mut frames = Frames::connect(address, &[]);
        frames.send(&frame(HEADERS, 0, 1, &head())).expect("sent");
        let empty = frame(CONTINUATION, 0, 1, &[]).repeat(1000);
        assert!(!flood(&mut frames, &empty, 1000), "a million frames taken");
    });
}

#[test]
fn streams_by_the_thousand() {
    under(|address| {
        let mut frames = Frames::connect(address, &[]);
        let calls: Vec<u8> = (1..20_000).step_by(2).flat_map(call).collect();
        let _ = frames.send(&calls);
        // Neither are their bodies sent; empty DATA keeps them busy.
        let empty: Vec<u8> = (1..2000).step_by(2).flat_map(|s| frame(DATA, 0, s, &[])).collect();
        flood(&mut frames, &empty, 100);
    });
}

#[test]
fn answers_that_are_never_read() {
    under(|address| {
        // No window: nothing but heads may be answered.
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
fn a_message_that_does_not_come_to_its_end() {
    let options = ["--body-timeout", "500ms"];
    let process = Process::serve(&project("models/half_plus_two"), &options);
    let caller = Caller::connect(process.grpc()).expect("connects");
    let start = Instant::now();
    let status = caller.call_without_message(PREDICT);
    let took = start.elapsed();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("did not arrive within 0.5 s"), "{status}");
    assert!(took >= Duration::from_millis(450) && took < Duration::from_secs(5), "{took:?}");
    // The connection goes on.
    caller.half_plus_two().expect("an answer");
}

#[test]
fn clients_that_say_nothing_are_closed() {
    under(|address| {
        let quiet: [&[u8]; 3] = [b"", &PREFACE[..10], &PREFACE[..23]];
        let mut all = Vec::new();
        for said in quiet.into_iter().cycle().take(300) {
            let mut frames = Frames(std::net::TcpStream::connect(address).expect("connects"));
            frames.0.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
            frames.send(said).expect("sent");
            all.push(frames);
        }
        for frames in &mut all {
            frames.until_closed().expect("it is closed");
        }
    });
}

#[test]
fn connections_are_counted() {
    let options = ["--header-timeout", "1s", "--max-connections", "4"];
    let process = Process::serve(&project("models/half_plus_two"), &options);
    let quiet: Vec<_> =
        (0..4).map(|_| std::net::TcpStream::connect(process.grpc()).expect("connects")).collect();
    // There is room when the silent ones have been closed.
    let start = Instant::now();
    let caller = Caller::connect(process.grpc()).expect("connects");
    caller.half_plus_two().expect("an answer");
    assert!(start.elapsed() > Duration::from_millis(500), "a fifth connection was served");
    drop(quiet);
}
