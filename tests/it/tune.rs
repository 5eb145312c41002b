//! `tensorserve tune`: settings are found, written and accepted by the server; servers that die, and Ctrl-C.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::support::process::{Ended, Process, run, tensorserve};
use crate::support::{project, wait_until};

/// A promise that is kept on any machine, however busy.
const EASY: &str = "p99=2s";

fn tune(options: &[&str]) -> Ended {
    let model = project("models/half_plus_two").display().to_string();
    run(&[&["tune", &model][..], options].concat())
}

fn number(figures: &Value, pointer: &str) -> f64 {
    let number = figures.pointer(pointer).and_then(Value::as_f64);
    number.unwrap_or_else(|| panic!("{pointer}: {figures}"))
}

#[test]
fn settings_are_written_for_the_server() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (file, report) = (place("tuned.toml"), place("tune.html"));
    let options =
        ["--slo", EASY, "--budget", "10s", "--json", "--output", &file, "--report", &report];
    let ended = tune(&options);
    assert!(ended.status.success(), "{} {}", ended.stdout, ended.stderr);
    let figures: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    assert_eq!(figures.pointer("/slo").and_then(Value::as_str), Some(EASY), "{figures}");
    let capacity = number(&figures, "/capacity");
    let curve = figures.pointer("/curve").and_then(Value::as_array).expect("a curve");
    let marked: Vec<&Value> =
        curve.iter().filter(|point| point["is_capacity"] == Value::Bool(true)).collect();
    assert_eq!(marked.len(), 1, "{figures}");
    assert!(number(marked[0], "/slo_ms") <= 2000.0, "{figures}");
    // It is the closest run of those that were held, and one of these was no slower than the capacity.
    let apart = |point: &Value| (number(point, "/rate") - capacity).abs();
    let held: Vec<&Value> =
        curve.iter().filter(|point| point["is_held"] == Value::Bool(true)).collect();
    assert!(held.iter().all(|point| apart(point) >= apart(marked[0])), "{figures}");
    let is_reached = |point: &&Value| number(point, "/rate") >= capacity * (1.0 - 1e-6);
    assert!(held.iter().any(is_reached), "{figures}");
    // A replica is planned for 70 % of it, and that was measured.
    assert!((number(&figures, "/planned/rate") / capacity - 0.7).abs() < 1e-6, "{figures}");
    assert!(number(&figures, "/planned/cpu_cores") > 0.0, "{figures}");
    assert!(number(&figures, "/planned/requests_in_progress") > 0.0, "{figures}");
    assert_eq!(figures.pointer("/autoscaling/1/value"), Some(&"keda.requestsInProgress".into()));

    let text = fs::read_to_string(&file).expect("the file");
    for part in ["# Settings for ", "# Capacity of a replica: ", "p99=2s", "# Replicas: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let is_default = figures.pointer("/is_default_best") == Some(&Value::Bool(true));
    let has_settings = text.lines().any(|line| !line.starts_with('#') && line.contains(" = "));
    assert_eq!(has_settings, !is_default, "{text}");
    Process::serve(&project("models/half_plus_two"), &["--config", &file]);
    let page = fs::read_to_string(&report).expect("a report");
    assert!(page.contains("Latency by rate") && page.contains("capacity, requests/s"), "{page}");
    assert!(!page.contains("<script") && !page.contains("src="), "{page}");

    // Nothing is measured for a file that cannot be written.
    let ended = tune(&options);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stdout);
    assert!(
        ended.stderr.contains("--force") && !ended.stderr.contains("looking"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_rate_takes_replicas() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("tuned.toml").display().to_string();
    let options = ["--slo", EASY, "--rate", "1000000", "--budget", "8s", "--output", &file];
    let ended = tune(&[&options[..], &["--protocol", "grpc"]].concat());
    assert!(ended.status.success(), "{} {}", ended.stdout, ended.stderr);
    for part in [
        "one replica cannot serve 1000000 requests/s; 1000000 requests/s take ",
        " replicas, of at most ",
        "capacity",
        "keda.requestsInProgress",
        "sum(rate(tensorserve_request_duration_seconds_sum{",
        "autoscaling.targetCPUUtilizationPercentage",
        "gRPC",
    ] {
        assert!(ended.stdout.contains(part), "{part}: {}", ended.stdout);
    }
    let text = fs::read_to_string(&file).expect("the file");
    assert!(text.contains("--rate 1000000") && text.contains("Replicas: "), "{text}");
}

#[test]
fn what_cannot_be_tuned_is_said() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("tuned.toml").display().to_string();
    let inside = project("models/half_plus_two/tensorserve.toml").display().to_string();
    for (options, status, parts) in [
        (vec![], 2, vec!["--slo"]),
        (vec!["--slo", "p99=20"], 2, vec!["no unit", "p99=20ms"]),
        (vec!["--slo", "p98=1ms"], 2, vec!["p50, p90, p99 or p99.9"]),
        (vec!["--slo", "foo"], 2, vec!["p50, p90, p99 or p99.9"]),
        (vec!["--slo", EASY, "--rate", "5", "--max"], 2, vec!["--max"]),
        (vec!["--slo", EASY, "--rate", "0"], 1, vec!["--rate"]),
        (vec!["--slo", EASY, "--budget", "1s"], 1, vec!["--budget"]),
        (vec!["--slo", EASY, "--connections", "0"], 1, vec!["--connections"]),
        (vec!["--slo", EASY, "--output", "/nowhere/x.toml"], 1, vec!["/nowhere/x.toml"]),
        (vec!["--slo", EASY, "--output", &inside], 1, vec!["pre- and post-processing"]),
        (vec!["--slo", EASY, "--data", "@/nowhere"], 1, vec!["/nowhere"]),
        (vec!["--slo", EASY, "--signature", "nope"], 1, vec!["nope", "serving_default"]),
        (
            vec!["--slo", EASY, "--data", "{\"instances\": \"x\"}"],
            1,
            vec!["with the default settings", "every request failed: status 400"],
        ),
        (vec!["--slo", "p99=1us"], 1, vec!["p99=1us cannot be kept", "the best p99 is"]),
    ] {
        let mut options = options.clone();
        if !options.contains(&"--output") {
            options.extend(["--output", &file]);
        }
        let ended = tune(&options);
        assert_eq!(ended.status.code(), Some(status), "{options:?}: {}", ended.stderr);
        for part in parts {
            assert!(ended.stderr.contains(part), "{options:?}: {part}: {}", ended.stderr);
        }
        assert!(!Path::new(&file).exists(), "{options:?}");
    }
    for (target, part) in
        [("http://127.0.0.1:1/v1/models/m", "not the URL"), ("/nowhere", "/nowhere")]
    {
        let ended = run(&["tune", target, "--slo", EASY, "--output", &file]);
        assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

/// A tune that runs, with enough time for trials however busy the machine is.
struct Tuning {
    child: Child,
    said: Lines<BufReader<ChildStderr>>,
}

impl Tuning {
    fn start(file: &str) -> Self {
        let model = project("models/half_plus_two").display().to_string();
        let words = ["tune", &model, "--slo", EASY, "--budget", "10m", "--output", file];
        let mut command: Command = tensorserve(&words);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts");
        let said = BufReader::new(child.stderr.take().expect("piped")).lines();
        Tuning { child, said }
    }

    /// Reads up to the line that contains `part`.
    fn wait_for(&mut self, part: &str) {
        let mut lines = self.said.by_ref().map(|line| line.expect("a line"));
        assert!(lines.any(|line| line.contains(part)), "it has ended without {part:?}");
    }

    /// The server that runs, other than `former`.
    fn server(&self, former: Option<u32>) -> u32 {
        let pid = self.child.id();
        let servers = || {
            let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let text = text.unwrap_or_default();
            text.split_whitespace()
                .find_map(|pid| pid.parse().ok().filter(|pid| Some(*pid) != former))
        };
        wait_until("a server runs", || servers().is_some());
        servers().expect("a server")
    }

    fn signal(&self, pid: u32, name: &str) {
        let status = Command::new("kill").args(["-s", name, &pid.to_string()]).status();
        assert!(status.expect("kill").success());
    }

    /// What it says until it ends, and its exit status.
    fn end(mut self) -> (String, Option<i32>) {
        let lines: Vec<String> = self.said.by_ref().map(|line| line.expect("a line")).collect();
        (lines.join("\n"), self.child.wait().expect("exits").code())
    }
}

#[test]
fn a_candidate_that_dies_is_out_and_ctrl_c_ends_the_rest() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("tuned.toml");
    let mut tuning = Tuning::start(&file.display().to_string());
    tuning.wait_for("trying ");
    let default = tuning.server(None);
    let candidate = tuning.server(Some(default));
    tuning.signal(candidate, "KILL");
    tuning.wait_for(" is out: ");
    // The search goes on.
    let next = tuning.server(Some(candidate));
    tuning.signal(tuning.child.id(), "INT");
    let (said, status) = tuning.end();
    assert_eq!(status, Some(130), "{said}");
    for part in ["interrupted", "the default settings: ", "nothing is written"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!Path::new(&format!("/proc/{next}")).exists(), "the server of the trial runs on");
    assert!(!file.exists());
}

#[test]
fn default_settings_that_die_are_an_error() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("tuned.toml");
    let mut tuning = Tuning::start(&file.display().to_string());
    tuning.wait_for("trying ");
    let default = tuning.server(None);
    tuning.signal(default, "KILL");
    let (said, status) = tuning.end();
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("error: with the default settings: "), "{said}");
    assert!(!file.exists());
}
