//! SIGHUP: the settings are read again while the server serves.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tensorserve_auth::Role;
use tensorserve_auth::file::add_key;

use crate::support::client::{Client, post};
use crate::support::process::{Process, tensorserve};
use crate::support::{pause_between_requests, project};

const BODY: &str = r#"{"instances":[1.0,2.0,5.0]}"#;

/// A server with a configuration file, and its log.
struct Served {
    process: Process,
    folder: TempDir,
}

impl Served {
    fn start(file: &str) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        write(folder.path(), file);
        let process = Process::start(Served::command(folder.path()));
        Served { process, folder }
    }

    fn command(folder: &Path) -> Command {
        let mut command = tensorserve(&["serve", "--http-port", "0", "--grpc-port", "off"]);
        command.args(["--log-level", "info", "--config"]).arg(folder.join("tensorserve.toml"));
        command.stderr(File::create(folder.join("log")).expect("a file"));
        command
    }

    fn address(&self) -> SocketAddr {
        self.process.address
    }

    /// Writes the configuration file, as an editor does: not at once.
    fn write(&self, file: &str) {
        write(self.folder.path(), file);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("the log")
    }

    /// Waits until `holds` returns true; `what` and the log say what is missing.
    fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < Duration::from_secs(300), "{what}\n{}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGHUP with this file; waits until the log has a further line with `told`.
    fn reload(&self, file: &str, told: &str) {
        let before = self.log().matches(told).count();
        self.write(file);
        self.process.signal("HUP");
        self.wait_until(told, |served| served.log().matches(told).count() > before);
    }

    fn status(&self, model: &str) -> u16 {
        post(self.address(), &format!("/v1/models/{model}:predict"), BODY).status
    }

    fn stop(mut self) {
        self.process.signal("TERM");
        let start = Instant::now();
        assert!(self.process.wait().success());
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}

fn write(folder: &Path, file: &str) {
    fs::write(folder.join("tensorserve.toml"), file).expect("written");
}

fn model(name: &str, more: &str) -> String {
    let path = project("models/half_plus_two");
    format!("[[models]]\nname = \"{name}\"\npath = \"{}\"\n{more}\n", path.display())
}

const READ_AGAIN: &str = "SIGHUP: the settings were read again";

/// Sends requests to the model `kept` until told to stop. All must be answered.
fn ask(address: SocketAddr, answered: &AtomicU64, stop: &AtomicBool) {
    let mut client = Client::connect(address).expect("connects");
    while !stop.load(SeqCst) {
        let path = "/v1/models/kept:predict";
        let answer = client.request("POST", path, &[], BODY.as_bytes()).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.text());
        answered.fetch_add(1, SeqCst);
        pause_between_requests();
    }
}

/// Ends the requests also if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn models_and_labels_follow_the_file_and_no_request_of_others_is_lost() {
    let served = Served::start(&[model("kept", ""), model("old", "")].concat());
    let (answered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let asking = scope.spawn(|| ask(served.address(), &answered, &stop));
        let _stopping = StopOnDrop(&stop);
        for _ in 0..3 {
            let labelled = [model("kept", ""), model("new", "labels = { stable = 1 }")].concat();
            served.reload(&labelled, "models 1 added, 1 removed");
            served.wait_until("new serves", |served| served.status("new/labels/stable") == 200);
            served.wait_until("old is gone", |served| served.status("old") == 404);
            served.reload(&[model("kept", ""), model("new", "")].concat(), "models 1 changed");
            let is_gone = |served: &Served| served.status("new/labels/stable") != 200;
            served.wait_until("the label is gone", is_gone);
            assert_eq!(served.status("new"), 200);
            served.reload(&[model("kept", ""), model("old", "")].concat(), READ_AGAIN);
            served.wait_until("old serves", |served| served.status("old") == 200);
        }
        let enough = answered.load(SeqCst) + 10;
        served.wait_until("requests", |_| answered.load(SeqCst) >= enough || asking.is_finished());
        stop.store(true, SeqCst);
        asking.join().expect("no request failed");
    });
    served.stop();
}

#[test]
fn all_mistakes_are_named_and_nothing_changes() {
    let served = Served::start(&model("kept", ""));
    let wrong = ["http_threads = 0\nmax_boddy_bytes = 5\n", &model("other", "")].concat();
    served.reload(&wrong, "The settings stay as they were");
    let log = served.log();
    for (line, setting) in [(1, "http_threads"), (2, "max_boddy_bytes")] {
        let place = format!("tensorserve.toml:{line}: ");
        let found = log.lines().find(|text| text.contains(&place));
        assert!(found.is_some_and(|text| text.contains(setting)), "{log}");
    }
    assert_eq!((served.status("kept"), served.status("other")), (200, 404));
    // Half of a file, and none.
    let half = "[[models]]\nname = \"oth";
    served.reload(half, "The settings stay as they were");
    fs::remove_file(served.folder.path().join("tensorserve.toml")).expect("removed");
    let missing = "no such file";
    served.process.signal("HUP");
    served.wait_until(missing, |served| served.log().contains(missing));
    assert_eq!(served.status("kept"), 200);
    served.reload(&[model("kept", ""), model("other", "")].concat(), "models 1 added");
    served.wait_until("other serves", |served| served.status("other") == 200);
    served.stop();
}

#[test]
fn settings_that_need_a_restart_are_named() {
    let served = Served::start(&model("kept", ""));
    served.reload(&model("kept", ""), "no change of models and certificates");
    assert!(!served.log().contains("take effect at the next start"), "{}", served.log());
    let changed = ["body_timeout = \"5s\"\nnum_batch_threads = 7\n", &model("kept", "")].concat();
    served.reload(&changed, READ_AGAIN);
    let told = "these settings changed and take effect at the next start: body_timeout, \
                num_batch_threads or inline_budget_micros";
    served.wait_until(told, |served| served.log().contains(told));
    served.stop();
}

#[test]
fn a_storm_of_signals_ends_with_the_last_file() {
    let served = Served::start(&model("kept", ""));
    for number in 0..1000 {
        if number % 100 == 0 {
            served.write(&[model("kept", ""), model(&format!("m{number}"), "")].concat());
        }
        served.process.signal("HUP");
    }
    served.wait_until("the last file is in effect", |served| served.status("m900") == 200);
    served.wait_until("the others are gone", |served| {
        (0..900).step_by(100).all(|number| served.status(&format!("m{number}")) == 404)
    });
    assert_eq!(served.status("kept"), 200);
    served.process.signal("HUP");
    served.stop();
}

#[test]
fn a_file_that_hangs_holds_up_no_stop() {
    let served = Served::start(&model("kept", ""));
    let path: PathBuf = served.folder.path().join("tensorserve.toml");
    fs::remove_file(&path).expect("removed");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    served.process.signal("HUP");
    assert_eq!(served.status("kept"), 200);
    served.stop();
}

#[test]
fn users_are_read_again_also_without_a_poll_interval() {
    let folder = tempfile::tempdir().expect("a directory");
    let users = folder.path().join("auth.toml");
    add_key(&users, "first", "key-of-first", &[Role::Infer]).expect("a key");
    let file = format!("auth_file = \"{}\"\npoll_interval = \"0\"\n", users.display());
    let file = [file.as_str(), &model("kept", "")].concat();
    let served = Served::start(&file);
    let status = |key: &str| {
        let mut client = Client::connect(served.address()).expect("connects");
        let value = format!("Bearer {key}");
        let headers = [("authorization", value.as_str())];
        let path = "/v1/models/kept:predict";
        client.request("POST", path, &headers, BODY.as_bytes()).expect("an answer").status
    };
    assert_eq!((status("key-of-first"), status("key-of-second")), (200, 401));
    add_key(&users, "second", "key-of-second", &[Role::Infer]).expect("a key");
    served.process.signal("HUP");
    served.wait_until("the second key is known", |_| status("key-of-second") == 200);
    assert_eq!(status("key-of-first"), 200);
    served.stop();
}
