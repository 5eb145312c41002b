//! Names of folders and files that would move a terminal's cursor, hide text, or look like lines of their own: they are
//! escaped or indented wherever they are printed or logged.

use std::fs::{self, File};
use std::path::Path;

use serde_json::Value;

use crate::support::client::get;
use crate::support::process::{Process, ended, tensorserve};
use crate::support::{copy, project, wait_until};

/// The name of a folder. Its lines look like some of the server's.
const NAME: &str = "m\r\u{1b}[2J\nready after 0.00 s\n[2026-01-01 ERROR forged] x\u{202e}";

/// A directory with a model of that name, whose second version is damaged, and one whose only version is.
fn place() -> tempfile::TempDir {
    let root = tempfile::tempdir().expect("temporary directory");
    let good = root.path().join("models").join(NAME);
    copy(&project("models/half_plus_two"), &good);
    for folder in [good.join("2"), root.path().join("models").join(format!("bad {NAME}")).join("1")]
    {
        fs::create_dir_all(&folder).expect("a directory");
        fs::write(folder.join("saved_model.pb"), "damaged").expect("written");
    }
    root
}

/// Checks that a text has none of the characters, and no line that only a name has.
fn assert_tame(what: &str, text: &str) {
    for hidden in ['\r', '\u{1b}', '\u{202e}'] {
        assert!(!text.contains(hidden), "{what} has {hidden:?}: {text:?}");
    }
    for line in text.lines() {
        assert!(!line.starts_with("ready after 0.00 s"), "{what}: {text}");
        assert!(!line.starts_with("[2026-01-01"), "{what}: {text}");
    }
}

/// Serves the models; what is on stdout until the server is ready, and on stderr until it has ended.
fn printed(root: &Path, options: &[&str]) -> (String, String) {
    let log = root.join("log");
    let ports = ["serve", "--http-port", "0", "--grpc-port", "0", "--poll-interval", "100ms"];
    let mut command = tensorserve(&ports);
    command.args(options).arg(root.join("models")).stderr(File::create(&log).expect("a file"));
    let mut server = Process::start(command);
    let read = || String::from_utf8(fs::read(&log).expect("the log")).expect("UTF-8");
    wait_until("the damaged versions have failed", || {
        read().matches("not a SavedModel").count() >= 2
    });
    let ready = get(server.address, "/readyz");
    assert!(ready.text().contains("bad m"), "{}", ready.text());
    server.signal("TERM");
    server.wait();
    (server.printed.join("\n"), read())
}

#[test]
fn a_server_prints_and_logs_no_name_as_it_is() {
    let root = place();
    let (stdout, stderr) = printed(root.path(), &["--log-level", "debug"]);
    assert!(stdout.contains("\\u{1b}[2J\\nready after"), "{stdout}");
    assert_tame("stdout", &stdout);
    assert_tame("the text log", &stderr);
}

#[test]
fn every_line_of_the_json_log_is_one_event() {
    let root = place();
    let (_, stderr) = printed(root.path(), &["--log-format", "json"]);
    let mut named = 0;
    for line in stderr.lines() {
        let event: Value = serde_json::from_str(line).expect(line);
        let message = event["message"].as_str().expect("a message");
        named += usize::from(message.contains(NAME));
    }
    assert!(named > 0, "{stderr}");
}

#[test]
fn commands_print_no_name_as_it_is() {
    let root = place();
    let models = root.path().join("models");
    let missing = root.path().join(NAME);
    for target in [models.as_path(), &models.join(NAME), &missing] {
        let ended = ended(tensorserve(&["inspect"]).arg(target));
        assert!(!ended.stdout.is_empty() || !ended.stderr.is_empty());
        assert_tame("stdout", &ended.stdout);
        assert_tame("stderr", &ended.stderr);
    }
    let transform =
        ["transform", "--input", missing.to_str().expect("UTF-8"), "--output", "/nowhere"];
    for arguments in [&["serve"][..], &transform] {
        let mut command = tensorserve(arguments);
        let ended = ended(command.arg("--model").arg(&missing).arg(&missing));
        assert!(!ended.status.success() && !ended.stderr.is_empty());
        assert_tame("stderr", &ended.stderr);
    }
}
