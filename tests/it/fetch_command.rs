//! `tensorserve fetch` as a command, without a network; the downloads are tested in `crates/fetch`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::process::{Ended, ended};

/// `tensorserve fetch` with `arguments` and nothing in the environment but `variables`.
fn fetch(arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorserve"));
    command.arg("fetch").args(arguments).env_clear();
    command.env("PIP_CONFIG_FILE", "/dev/null").envs(variables.iter().copied());
    command
}

fn assert_fails(ended: &Ended, parts: &[&str]) {
    assert_ne!(ended.status.code(), Some(0), "{}", ended.stdout);
    parts
        .iter()
        .for_each(|p| assert!(ended.stderr.contains(p), "{p:?} is not in {}", ended.stderr));
}

#[test]
fn what_can_be_fetched_is_listed() {
    let home = tempfile::tempdir().expect("temporary directory");
    let data = home.path().display().to_string();
    let list = ended(&mut fetch(&["--list"], &[("XDG_DATA_HOME", &data)]));
    for part in ["tensorflow ", "tensorflow-gpu", "onnxruntime", "not installed", "2.21.0"] {
        assert!(list.stdout.contains(part), "{part}: {}", list.stdout);
    }
    let verify = ended(&mut fetch(&["--verify"], &[("XDG_DATA_HOME", &data)]));
    let expected = format!("nothing is installed in {data}/tensorserve/lib\n");
    assert_eq!(verify.stdout, expected, "{}", verify.stderr);
    let missing = ended(&mut fetch(&["onnxruntime", "--verify"], &[("XDG_DATA_HOME", &data)]));
    assert_fails(&missing, &["libonnxruntime", "is not in"]);
}

#[test]
fn wrong_arguments_and_settings_are_told() {
    assert_fails(&ended(&mut fetch(&["pytorch"], &[])), &["pytorch", "tensorflow-gpu"]);
    assert_fails(&ended(&mut fetch(&[], &[])), &["<RUNTIME>"]);
    assert_fails(&ended(&mut fetch(&["onnxruntime"], &[])), &["HOME is not set", "--dest"]);
    let home = tempfile::tempdir().expect("temporary directory");
    let dest = home.path().display().to_string();
    let index = ["onnxruntime", "--dest", &dest, "--index-url", "ana:secret@mirror"];
    let wrong = ended(&mut fetch(&index, &[]));
    assert_fails(&wrong, &["\"mirror\" is not a URL", "https://pypi.org/simple"]);
    assert!(!wrong.stderr.contains("secret"), "{}", wrong.stderr);
    let no_file = [("PIP_CERT", "/no/certificates.pem")];
    let no_certificates = ended(&mut fetch(&["onnxruntime", "--dest", &dest], &no_file));
    assert_fails(&no_certificates, &["/no/certificates.pem"]);
    let file = home.path().join("file");
    fs::write(&file, "").expect("written");
    let below_file = file.join("lib").display().to_string();
    let url = ["onnxruntime", "--dest", &below_file, "--index-url", "http://127.0.0.1:1/"];
    assert_fails(&ended(&mut fetch(&url, &[])), &["Not a directory"]);
    let nobody = ["onnxruntime", "--dest", &dest, "--index-url", "http://ana:secret@127.0.0.1:1/"];
    let refused = ended(&mut fetch(&nobody, &[("PIP_RETRIES", "1")]));
    assert_fails(&refused, &["http://127.0.0.1:1/onnxruntime/", "refused", "retry 1 of 1"]);
    assert!(!refused.stderr.contains("secret"), "{}", refused.stderr);
}

#[test]
fn an_interrupted_download_installs_nothing_and_is_kept() {
    let home = tempfile::tempdir().expect("temporary directory");
    let dest = home.path().display().to_string();
    // Publishes the pinned file, sends the first bytes of it, and then nothing.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/simple", listener.local_addr().expect("address"));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines();
            let first = lines.next().and_then(Result::ok).unwrap_or_default();
            let path = first.split(' ').nth(1).unwrap_or_default();
            let _headers = lines.find(|line| line.as_ref().is_ok_and(String::is_empty));
            let file = path.trim_start_matches("/files/");
            let body = if path.starts_with("/simple") { page() } else { String::new() };
            let length = if body.is_empty() { size_of(file) } else { body.len() };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
            let _ = (&stream).write_all(head.as_bytes());
            if body.is_empty() {
                let _ = (&stream).write_all(&[7; 100_000]);
                thread::sleep(Duration::from_secs(60));
            }
        }
    });
    let mut command = fetch(&["onnxruntime", "--dest", &dest, "--index-url", &url], &[]);
    let child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
    let partial = home.path().join(format!(".{}.part/wheels", folder()));
    let received = || {
        let mut entries = fs::read_dir(&partial).into_iter().flatten().flatten();
        entries.next().and_then(|entry| entry.metadata().ok()).map_or(0, |file| file.len())
    };
    for _ in 0..600 {
        if received() == 100_000 {
            break;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill runs").success());
    let output = child.wait_with_output().expect("ended");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted: nothing was installed"), "{stderr}");
    assert_eq!(received(), 100_000, "{stderr}");
    assert!(!home.path().join(folder()).exists());
    let list = ended(&mut fetch(&["--list", "--dest", &dest], &[]));
    assert!(list.stdout.contains("begun"), "{}", list.stdout);
}

/// The wheel of ONNX Runtime for this machine, and the version of its library.
fn pinned() -> (serde_json::Value, String) {
    let pins = include_str!("../../scripts/runtimes.json");
    let pins: serde_json::Value = serde_json::from_str(pins).expect("JSON");
    let runtime = &pins["runtimes"]["onnxruntime"];
    let builds = runtime["builds"].as_array().expect("builds");
    let build = builds.iter().find(|build| build["machine"] == std::env::consts::ARCH);
    let version = runtime["version"].as_str().expect("a version").to_owned();
    (build.expect("a build")["wheels"][0].clone(), version)
}

fn page() -> String {
    let (wheel, _) = pinned();
    let file = wheel["file"].as_str().expect("a name");
    format!("<a href=\"/files/{file}\">{file}</a>")
}

fn size_of(file: &str) -> usize {
    let (wheel, _) = pinned();
    assert_eq!(wheel["file"], file);
    usize::try_from(wheel["size"].as_u64().expect("a size")).expect("a size")
}

fn folder() -> String {
    format!("onnxruntime-{}-cpu-{}", pinned().1, std::env::consts::ARCH)
}
