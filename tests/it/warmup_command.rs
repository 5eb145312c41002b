//! `tensorserve warmup`: writes files of recorded requests, and checks them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use tensorserve_protocols::tfs::warm_up::file_of;

use crate::support::model_server::HALF_PLUS_TWO;
use crate::support::process::{Ended, Process, run, tensorserve};
use crate::support::{data, link};

/// A directory with the model `m`, which has the version 123.
fn model() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("temporary directory");
    let model = data(HALF_PLUS_TWO).join("00000123");
    for part in ["saved_model.pb", "variables", "assets"] {
        link(&model.join(part), &root.path().join("m/123").join(part));
    }
    root
}

fn warmup(arguments: &[&str]) -> Ended {
    run(&[&["warmup"], arguments].concat())
}

fn with_stdin(arguments: &[&str], text: &str) -> Ended {
    let mut command = tensorserve(&[&["warmup"], arguments].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("starts");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("ends");
    Ended {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn bodies_become_a_file_that_is_checked_and_warms_up() {
    let root = model();
    let model = root.path().join("m");
    let made = with_stdin(&["record", text(&model), "-"], r#"{"instances": [1.0, 2.0]}"#);
    assert!(made.status.success(), "{}{}", made.stdout, made.stderr);
    let file = file_of(&model.join("123"));
    assert!(made.stdout.contains(": 1 records, "), "{}", made.stdout);
    let checked = warmup(&["check", text(&model)]);
    assert!(checked.status.success(), "{}{}", checked.stdout, checked.stderr);
    assert!(checked.stdout.contains(": 1 records ran in "), "{}", checked.stdout);
    let process = Process::serve(&model, &[]);
    assert!(process.printed.iter().any(|line| line.starts_with("ready after")));

    // Examples, for a signature that the bodies do not name.
    let body = root.path().join("body.json");
    fs::write(&body, r#"{"examples": [{"x": 2.0}]}"#).expect("written");
    let more = ["--method", "regress", "--signature", "regress_x_to_y", text(&body), text(&body)];
    let arguments = [&["record", text(&model)], &more[..]].concat();
    let refused = warmup(&arguments);
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("use --force to replace it"), "{}", refused.stderr);
    let other = root.path().join("other");
    let to_other = [&arguments[..], &["--output", text(&other)]].concat();
    assert!(warmup(&to_other).status.success());
    let before = fs::read(&file).expect("readable");
    let checked = warmup(&["check", text(&model.join("123")), "--file", text(&other)]);
    assert!(checked.stdout.contains(": 2 records ran in "), "{}", checked.stdout);
    assert_eq!(fs::read(&file).expect("readable"), before);
    assert!(warmup(&[&arguments[..], &["--force"]].concat()).status.success());
    assert_eq!(fs::read(&file).expect("readable"), fs::read(&other).expect("readable"));
}

#[test]
fn a_log_becomes_a_file() {
    let root = model();
    let model = root.path().join("m");
    let log = file_of(&data("tensorflow-serving/generated/half_plus_two_warmup_ok/00000123"));
    let make = |most: &str| {
        warmup(&["record", text(&model), "--log", text(&log), "--most", most, "--force"])
    };
    let made = make("1000");
    assert!(made.status.success(), "{}{}", made.stdout, made.stderr);
    assert!(made.stdout.contains(": 4 records, "), "{}", made.stdout);
    assert!(make("2").stdout.contains(": 2 records, "));
    assert!(make("1001").stderr.contains("--most must be from 1 to 1000"));
}

#[test]
fn what_fails_is_told_and_nothing_is_written() {
    let root = model();
    let model = root.path().join("m");
    let file = file_of(&model.join("123"));
    for (body, part) in [
        (r#"{"instances": ["#, "JSON Parse error"),
        (r#"{"instances": ["a"]}"#, "is not of expected type: float"),
        (r#"{"signature_name": "none", "instances": [1]}"#, "\"none\" not found"),
        (r#"{"instances": [[[1.0]], [[2.0], [3.0]]]}"#, "Expecting tensor size"),
    ] {
        let made = with_stdin(&["record", text(&model), "-"], body);
        assert_eq!(made.status.code(), Some(1), "{body}");
        assert!(made.stderr.contains(part), "{body}: {part:?} is not in {}", made.stderr);
        assert!(made.stderr.contains("nothing was written"), "{}", made.stderr);
        assert!(!file.exists());
    }
    let checked = warmup(&["check", text(&model)]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(checked.stderr.contains("there is no such file"), "{}", checked.stderr);
    let given = |name: &str| {
        let folder = format!("tensorflow-serving/generated/half_plus_two_warmup_{name}/00000123");
        file_of(&data(&folder))
    };
    for (name, part) in [
        ("failing_request", "record 1 (predict): FAILED_PRECONDITION: Serving signature key"),
        ("unsupported_type", "record 1 (session_run): UNIMPLEMENTED: "),
        ("not_tfrecord", "record 1: DATA_LOSS: "),
        ("unparsable_record", "record 1: INVALID_ARGUMENT: Failed to parse warmup record"),
    ] {
        let checked = warmup(&["check", text(&model), "--file", text(&given(name))]);
        assert_eq!(checked.status.code(), Some(1), "{name}");
        assert!(checked.stdout.contains(part), "{name}: {part:?} is not in {}", checked.stdout);
        assert!(checked.stdout.contains("1 failed: the version would fail to load"), "{name}");
    }
    let broken = data("tensorflow-serving/generated/broken_model");
    let checked = warmup(&["check", text(&broken)]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(checked.stderr.contains("broken_model"), "{}", checked.stderr);
}

/// libtensorflow says so whenever it is opened.
#[test]
fn lines_of_libraries_stay_out() {
    let root = model();
    let model = root.path().join("m");
    let body = r#"{"instances": [1.0, 2.0]}"#;
    let made = with_stdin(&["record", text(&model), "-"], body);
    let checked = warmup(&["check", text(&model)]);
    for ended in [made, checked] {
        assert!(ended.status.success(), "{}", ended.stderr);
        assert!(
            !ended.stderr.contains("oneDNN") && !ended.stderr.contains("absl"),
            "{}",
            ended.stderr
        );
    }
}
