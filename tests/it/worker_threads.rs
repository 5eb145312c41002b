//! Several calls at a time in one worker process.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorserve_workers::HandlerError;
use tensorserve_workers::handlers::HandlerReply;

use crate::worker::{CONTEXT, Place, doing, in_time, runtime};

#[test]
fn calls_run_side_by_side() {
    let place = Place::open(&doing("def do(text):\n  time.sleep(0.05)"), |config| config.count = 8);
    let handlers = place.handlers.clone().expect("open");
    let round = || {
        let start = Instant::now();
        place.runtime.block_on(async {
            let calls = (0..20).map(|_| handlers.handler(&CONTEXT, b"x", in_time()));
            for answer in futures_util::future::join_all(calls).await {
                assert_eq!(&answer.expect("an answer").body[..], b"None");
            }
        });
        start.elapsed()
    };
    let times: Vec<Duration> = (0..3).map(|_| round()).collect();
    println!("20 calls that sleep 50 ms, 8 processes: {times:?}");
    // Three turns of 50 ms each.
    assert!(times.iter().min() < Some(&Duration::from_millis(200)), "{times:?}");
}

#[test]
fn a_client_that_goes_away_costs_no_process() {
    let place = Place::open(&doing("def do(text):\n  time.sleep(1.5)"), |config| {
        (config.count, config.threads) = (1, 1);
    });
    let before = place.processes();
    let call = place.handlers().handler(&CONTEXT, b"x", in_time());
    let given_up = place
        .runtime
        .block_on(async { tokio::time::timeout(Duration::from_millis(50), call).await.is_err() });
    assert!(given_up);
    let start = Instant::now();
    assert_eq!(place.says("echo"), "echo");
    assert!(start.elapsed() > Duration::from_millis(100), "the process was still busy");
    assert_eq!(place.processes(), before);
    // A request gets 504 at its deadline, and its process is kept.
    let soon = Instant::now() + Duration::from_millis(50);
    let call = place.handlers().handler(&CONTEXT, b"x", soon);
    let failure = place.runtime.block_on(call).expect_err("too late");
    assert_eq!(failure.status, 504, "{}", failure.error);
    // So does a request that never got a process.
    let soon = Instant::now() + Duration::from_millis(50);
    let call = place.handlers().handler(&CONTEXT, b"x", soon);
    let failure = place.runtime.block_on(call).expect_err("too late");
    assert_eq!(failure.status, 504);
    assert!(failure.error.message().contains("handler_workers"), "{}", failure.error);
    assert_eq!(place.says("echo"), "echo");
    assert_eq!(place.processes(), before);
}

/// An answer as text, or the status and the message of a failure.
type CallOutcome = Result<String, (u16, String)>;

/// Makes these calls at the same time; returns their answers or errors, and how long they took.
fn at_once(place: &Place, bodies: &[&str]) -> (Vec<CallOutcome>, Duration) {
    let start = Instant::now();
    let calls = bodies.iter().map(|body| {
        let handlers = Arc::clone(place.handlers.as_ref().expect("open"));
        async move { handlers.handler(&CONTEXT, body.as_bytes(), in_time()).await }
    });
    let answers = place.runtime.block_on(futures_util::future::join_all(calls));
    let text = |answer: HandlerReply| String::from_utf8(answer.body.to_vec()).expect("text");
    let failed = |e: HandlerError| (e.status, e.error.message().to_owned());
    (answers.into_iter().map(|answer| answer.map(text).map_err(failed)).collect(), start.elapsed())
}

#[test]
fn calls_that_wait_share_a_process() {
    let script = doing("def do(text):\n  time.sleep(0.2)\n  return os.getpid()");
    let place = Place::open(&script, |config| config.count = 1);
    let (_, _) = at_once(&place, &["x"; 64]);
    let (answers, time) = at_once(&place, &["x"; 64]);
    let process = place.processes()[0].to_string();
    assert!(answers.iter().all(|answer| answer.as_ref() == Ok(&process)), "{answers:?}");
    // One after the other they would take 12.8 s.
    assert!(time < Duration::from_secs(10), "{time:?}");
}

#[test]
fn a_process_with_one_thread_serves_one_call_at_a_time() {
    let script = doing(
        "running = 0\ndef do(text):\n  global running\n  running += 1\n  seen = running\n  \
         time.sleep(0.02)\n  running -= 1\n  return seen",
    );
    let place = Place::open(&script, |config| (config.count, config.threads) = (1, 1));
    let (answers, _) = at_once(&place, &["x"; 8]);
    assert!(answers.iter().all(|answer| answer.as_deref() == Ok("1")), "{answers:?}");
}

#[test]
fn handlers_that_compute_have_their_process_to_themselves() {
    // The computation lets other threads run.
    let script = doing(
        "import hashlib\nrunning = 0\ndef do(text):\n  global running\n  running += 1\n  \
         seen = running\n  hashlib.pbkdf2_hmac('sha256', b'x', b'x', 30_000)\n  running -= 1\n  \
         return seen",
    );
    let place = Place::open(&script, |config| config.count = 1);
    let (answers, _) = at_once(&place, &["x"; 16]);
    assert!(answers.iter().all(|answer| answer.as_deref() == Ok("1")), "{answers:?}");
}

#[test]
fn waits_of_all_kinds_let_other_calls_in() {
    let script = doing(
        "import select, socket, subprocess, concurrent.futures\n\
         pool = concurrent.futures.ThreadPoolExecutor(64)\n\
         def do(text):\n  \
           if text == 'socket':\n    a, b = socket.socketpair()\n    a.settimeout(0.2)\n    \
             try: a.recv(1)\n    except OSError: pass\n  \
           if text == 'select': select.select([], [], [], 0.2)\n  \
           if text == 'process': subprocess.run(['sleep', '0.2'])\n  \
           if text == 'future': pool.submit(time.sleep, 0.2).result()\n  \
           if text == 'event': threading.Event().wait(0.2)",
    );
    let place = Place::open(&script, |config| config.count = 1);
    for kind in ["socket", "select", "process", "future", "event"] {
        let (answers, time) = at_once(&place, &[kind; 64]);
        assert!(answers.iter().all(Result::is_ok), "{kind}: {answers:?}");
        // One after the other they would take 12.8 s.
        assert!(time < Duration::from_secs(10), "{kind}: {time:?}");
    }
}

#[test]
fn handlers_that_compute_are_not_interrupted() {
    // A read, a computation without waiting, and a write: interrupted, it loses increments.
    let script = doing(
        "count = 0\ndef do(text):\n  global count\n  time.sleep(0.05)\n  before = count\n  \
         sum(range(200_000))\n  for _ in range(20_000): pass\n  count = before + 1\n  return count",
    );
    let place = Place::open(&script, |config| config.count = 1);
    let (answers, _) = at_once(&place, &["x"; 32]);
    let mut counts: Vec<u32> =
        answers.into_iter().map(|a| a.expect("an answer").parse().expect("a number")).collect();
    counts.sort_unstable();
    assert_eq!(counts, (1..=32).collect::<Vec<u32>>());
}

#[test]
fn a_crash_fails_the_calls_of_its_process_only() {
    let script = doing(
        "def do(text):\n  time.sleep(0.2)\n  eval(text)\n  time.sleep(0.2)\n  return os.getpid()",
    );
    for (crash, says) in [("os.abort()", "SIGABRT"), ("sys.exit(3)", "exited with status 3")] {
        let place = Place::open(&script, |config| config.count = 2);
        let before = place.processes();
        let (answers, _) = at_once(&place, &["1", "1", "1", crash, "1", "1", "1", "1"]);
        let failed: Vec<&(u16, String)> =
            answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        let good: BTreeSet<&String> = answers.iter().filter_map(|a| a.as_ref().ok()).collect();
        assert!(failed.len() > 1, "{answers:?}");
        assert_eq!(good.len(), 1, "calls of the other process: {answers:?}");
        for (status, error) in failed {
            assert_eq!(*status, 502, "{error}");
            assert!(error.contains(says), "{error}");
        }
        place.wait_until("a new process", |place| {
            let now = place.processes();
            now.len() == 2 && now != before
        });
        place.recovers();
    }
}

#[test]
fn a_call_that_times_out_leaves_the_others_alone() {
    let script = doing("def do(text):\n  time.sleep(float(text))\n  return os.getpid()");
    let place = Place::open(&script, |config| {
        (config.count, config.timeout) = (1, Duration::from_millis(1000));
    });
    let before = place.processes();
    let late = std::thread::scope(|scope| {
        let (handlers, runtime) = (place.handlers.clone().expect("open"), runtime());
        let late = scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(600));
            let answer = handlers.handler(&CONTEXT, b"0.8", in_time());
            let answer = runtime.block_on(answer).expect("not stopped with the other call");
            String::from_utf8(answer.body.to_vec()).expect("text")
        });
        let (status, error) = place.fails("60");
        assert_eq!(status, 502);
        assert!(error.contains("was stopped: no reply after 1 s"), "{error}");
        late.join().expect("an answer")
    });
    assert_eq!(late, before[0].to_string(), "the process finished its other call");
    place.wait_until("a new process", |place| {
        let now = place.processes();
        now.len() == 1 && now != before
    });
    place.recovers();
}
