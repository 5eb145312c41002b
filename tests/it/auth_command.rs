//! `tensorserve auth` writes files that a server accepts.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::support::client::request;
use crate::support::data;
use crate::support::process::{Process, tensorserve};

/// Runs `tensorserve auth` with `input` on stdin. Returns success, stdout and stderr.
fn auth(arguments: &[&str], input: &str) -> (bool, String, String) {
    let mut command = tensorserve(&[&["auth"], arguments].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("process starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A command that does not read stdin may have exited already.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("process exits");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn users_and_keys_that_are_made_are_let_in() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let file = folder.path().join("auth.toml");
    let file = file.to_str().expect("text");
    let (succeeded, _, stderr) =
        auth(&["add-user", "ana", "--role", "admin", "--file", file], "correct horse\n");
    assert!(succeeded && stderr.contains("--auth-file"), "{stderr}");
    let (succeeded, key, stderr) =
        auth(&["add-key", "ci", "--role", "infer", "--role", "metrics", "--file", file], "");
    assert!(succeeded && stderr.contains("printed only once"), "{stderr}");
    let key = key.trim_end();
    assert!(key.starts_with("tsk_") && !key.contains(char::is_whitespace), "{key}");
    let text = fs::read_to_string(file).expect("text");
    assert!(!text.contains(key) && !text.contains("correct horse"), "{text}");

    let (succeeded, table, _) = auth(&["list", "--file", file], "");
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(succeeded, "{table}");
    assert_eq!(rows[1], ["ana", "user", "admin,", "infer,", "metrics"]);
    assert_eq!(rows[2], ["ci", "key", "infer,", "metrics"]);
    assert!(auth(&["check", "--file", file], "").0);

    let model = data("tensorflow-serving/upstream/testdata/saved_model_half_plus_two_cpu");
    let mut command = tensorserve(&["serve", model.to_str().expect("text"), "--auth-file", file]);
    command.env("TENSORSERVE_HTTP_PORT", "0").env("TENSORSERVE_GRPC_PORT", "0");
    let server = Process::start(command);
    let bearer = format!("Bearer {key}");
    let status =
        |headers: &[(&str, &str)]| request(server.address, "GET", "/v1/models", headers, "").status;
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[("Authorization", &bearer)]), 200);
    assert_eq!(status(&[("Authorization", "Basic YW5hOmNvcnJlY3QgaG9yc2U=")]), 200);
    assert!(server.printed.iter().any(|line| line.ends_with("auth.toml")), "{:?}", server.printed);
}

#[test]
fn mistakes_are_told_and_change_nothing() {
    let folder = tempfile::tempdir().expect("temporary directory");
    let path = folder.path().join("auth.toml");
    let file = path.to_str().expect("text");
    let fails = |arguments: &[&str], input: &str, why: &str| {
        let before = fs::read(&path).ok();
        let (succeeded, stdout, stderr) = auth(&[arguments, &["--file", file]].concat(), input);
        assert!(!succeeded && stderr.contains(why), "{arguments:?}: {stderr}");
        assert_eq!(stdout, "", "{arguments:?}");
        assert_eq!(fs::read(&path).ok(), before, "{arguments:?}");
    };
    fails(&["list"], "", "No such file");
    fails(&["add-user", "ana", "--role", "admin"], "short\n", "at least 8");
    fails(&["add-user", "ana", "--role", "root"], "long enough\n", "possible values");
    fails(&["add-key", "ci"], "", "--role");
    fails(&["add-key", "a:b", "--role", "infer"], "", "neither colons");
    assert!(auth(&["add-key", "ci", "--role", "infer", "--file", file], "").0);
    fails(&["add-key", "ci", "--role", "infer"], "", "exists already");
    fs::write(&path, "[keys.ci]\nsha256 = \"x\"\nroles = []\n").expect("written");
    fails(&["check"], "", "line 2");
    fails(&["add-key", "cd", "--role", "infer"], "", "line 2");
    let (succeeded, hash, _) = auth(&["hash"], "correct horse\n");
    assert!(succeeded && hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
}

#[test]
fn a_server_does_not_start_without_its_file() {
    for (text, why) in
        [(None, "No such file"), (Some("[users.x"), "line 1"), (Some(""), "no users")]
    {
        let folder = tempfile::tempdir().expect("temporary directory");
        let path = folder.path().join("auth.toml");
        if let Some(text) = text {
            fs::write(&path, text).expect("written");
        }
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
        let file = path.to_str().expect("text");
        let models = models.to_str().expect("text");
        let mut command = tensorserve(&["serve", models, "--auth-file", file]);
        command.env("TENSORSERVE_HTTP_PORT", "0").env("TENSORSERVE_GRPC_PORT", "off");
        let output = command.output().expect("process exits");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{stderr}");
        assert!(
            stderr.contains("auth_file: ") && stderr.contains(file) && stderr.contains(why),
            "{stderr}"
        );
    }
}
