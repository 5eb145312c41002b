//! Runs that do not end: a loop whose count is an input, and a process that is stopped. They take nothing from
//! other models, nor from health, metrics and the console, and leave nothing behind.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::support::client::{get, post};
use crate::support::process::{Process, children, is_running, model_processes, tensorserve};
use crate::support::wait_until;
use crate::support::{copy, data, link, pause_between_requests, project};

/// 2^60 iterations.
const ENDLESS: &str = r#"{"inputs": 1152921504606846976}"#;
const SHORT: &str = r#"{"inputs": 3}"#;
const LOOP: &str = "/v1/models/loop:predict";

/// More than the threads that may run them, twice.
const ATTACKERS: usize = 8;
const ATTACKS: usize = 2;

/// What a run may leave behind in kB: pools of memory that the runtime keeps.
const KEPT: u64 = 64 << 10;

/// Serves half_plus_two, and the model in `file` as `loop`, with these settings of the server and of that model.
fn serve(root: &Path, file: &str, settings: &str, of_model: &str) -> Process {
    copy(&project("models/half_plus_two"), &root.join("half_plus_two"));
    let name = if file == "saved_model" { "loop/1".to_owned() } else { format!("loop/1/{file}") };
    link(&data("platforms/endless").join(file), &root.join(name));
    let path = root.display();
    let config = format!(
        "request_timeout = \"1s\"\n{settings}\n\
         [[models]]\nname = \"half_plus_two\"\npath = \"{path}/half_plus_two\"\n\
         [[models]]\nname = \"loop\"\npath = \"{path}/loop\"\n{of_model}\n"
    );
    let file = root.join("models.toml");
    fs::write(&file, config).expect("written");
    let ports = ["--http-port", "0", "--grpc-port", "0"];
    let mut command = tensorserve(&["serve", "--log-level", "off"]);
    command.args(ports).arg("--config").arg(file);
    Process::start(command)
}

/// Calls `attack` while health, metrics, the console and the other model are asked, all of which must answer.
fn undisturbed<T>(server: &Process, attack: impl FnOnce() -> T) -> T {
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let ask = || {
        for path in ["/healthz", "/metrics", "/", "/api/v1/models/loop"] {
            assert_eq!(get(server.address, path).status, 200, "{path}");
        }
        let answer =
            post(server.address, "/v1/models/half_plus_two:predict", r#"{"instances": [1.0]}"#);
        assert_eq!(answer.text(), "{\n    \"predictions\": [2.5\n    ]\n}");
        rounds.fetch_add(1, SeqCst);
    };
    let outcome = thread::scope(|scope| {
        let others = scope.spawn(|| {
            while !stop.load(SeqCst) {
                ask();
                pause_between_requests();
            }
        });
        let outcome = catch_unwind(AssertUnwindSafe(attack));
        stop.store(true, SeqCst);
        others.join().expect("nothing else is disturbed");
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    });
    ask();
    assert!(rounds.load(SeqCst) > 3, "{rounds:?} rounds");
    outcome
}

/// The statuses of many requests that do not end.
fn attack(server: &Process) -> Vec<u16> {
    thread::scope(|scope| {
        let ask = || (0..ATTACKS).map(|_| post(server.address, LOOP, ENDLESS).status);
        let attackers: Vec<_> =
            (0..ATTACKERS).map(|_| scope.spawn(move || ask().collect::<Vec<_>>())).collect();
        attackers.into_iter().flat_map(|it| it.join().expect("answers")).collect()
    })
}

/// Attacks `file`, served with these settings.
fn endless_runs_end(file: &str, settings: &str, of_model: &str) {
    let root = tempfile::tempdir().expect("temporary directory");
    let server = serve(root.path(), file, settings, of_model);
    let sum = || post(server.address, LOOP, SHORT);
    let expected = json!({"outputs": if file == "idle.onnx" { 0 } else { 3 }});
    // Short runs, so that the next one is expected to be short.
    for _ in 0..100 {
        assert_eq!(sum().json(), expected, "{file}");
    }
    // The threads that runs start stay.
    undisturbed(&server, || attack(&server));
    let (threads, resident) = (|| server.threads(), server.resident());
    wait_until("it is served again", || sum().status == 200);
    let before = threads();
    let statuses = undisturbed(&server, || attack(&server));
    assert_eq!(statuses.len(), ATTACKERS * ATTACKS);
    let is_isolated = of_model.contains("process");
    let is_expected = |status: &u16| *status == 504 || (is_isolated && *status == 503);
    assert!(statuses.iter().all(is_expected), "{file}: {statuses:?}");
    wait_until("it is served again", || sum().status == 200);
    assert_eq!(sum().json(), expected, "{file}");
    wait_until("no thread is left behind", || threads() <= before);
    assert!(server.resident() < resident + KEPT, "{resident} kB, now {} kB", server.resident());
    wait_until("nothing of it runs", || cpu_ticks(server.id()) == 0);
}

/// The clock ticks that the process works within a few of them.
fn cpu_ticks(id: u32) -> u64 {
    let used = || {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).expect("running process");
        let fields: Vec<&str> =
            stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
        [11, 12].iter().map(|at| fields[*at].parse::<u64>().expect("ticks")).sum::<u64>()
    };
    let before = used();
    thread::sleep(Duration::from_millis(200));
    used().saturating_sub(before) / 4
}

const BATCH_THREADS: &str = "inline_budget_micros = 0";
const ISOLATED: &str = "isolation = \"process\"";

#[test]
fn loops_of_onnx_end() {
    endless_runs_end("adding.onnx", "", "");
}

#[test]
fn loops_of_onnx_with_nothing_to_compute_end_on_batch_threads() {
    endless_runs_end("idle.onnx", BATCH_THREADS, "");
}

#[test]
fn isolated_loops_of_onnx_end() {
    endless_runs_end("adding.onnx", "", ISOLATED);
}

#[test]
fn loops_of_tensorflow_end() {
    endless_runs_end("saved_model", "", "");
}

#[test]
fn loops_of_tensorflow_end_on_batch_threads() {
    endless_runs_end("saved_model", BATCH_THREADS, "");
}

#[test]
fn isolated_loops_of_tensorflow_end() {
    endless_runs_end("saved_model", BATCH_THREADS, ISOLATED);
}

#[test]
fn loops_of_tensorflow_lite_end() {
    endless_runs_end("adding.tflite", "", "");
}

#[test]
fn isolated_loops_of_tensorflow_lite_end() {
    endless_runs_end("adding.tflite", "", ISOLATED);
}

#[test]
fn a_process_that_is_stopped_is_killed_at_the_deadline() {
    for settings in ["", BATCH_THREADS] {
        let root = tempfile::tempdir().expect("temporary directory");
        let server = serve(root.path(), "adding.onnx", settings, ISOLATED);
        let [stopped] = model_processes(&server)[..] else { panic!("not one process") };
        assert_eq!(post(server.address, LOOP, SHORT).status, 200);
        signal("STOP", stopped);
        let statuses = undisturbed(&server, || attack(&server));
        assert!(statuses.contains(&504), "{statuses:?}");
        assert!(statuses.iter().all(|status| [503, 504].contains(status)), "{statuses:?}");
        wait_until("it is killed", || !is_running(stopped));
        wait_until("it is served again", || post(server.address, LOOP, SHORT).status == 200);
        assert!(children(server.id()).len() <= 1);
    }
}

fn signal(name: &str, id: u32) {
    let status = Command::new("kill").args(["-s", name, &id.to_string()]).status();
    assert!(status.expect("kill").success());
}
