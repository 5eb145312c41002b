//! The process that load probes and isolated models are forked from: when it is killed, it is started again, and nothing
//! else notices; while it cannot be, the server says so.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;

use serde_json::json;

use crate::support::client::{Answer, get, post};
use crate::support::process::{Process, children, is_running, tensorserve};
use crate::support::{copy, data, pause_between_requests, project, wait_until};

/// The models `half_plus_two` and, isolated, `fragile`, which adds 1, with a server of this program.
struct Serving {
    root: tempfile::TempDir,
    server: Process,
}

impl Serving {
    fn start(program: Option<&Path>) -> Self {
        let root = tempfile::tempdir().expect("temporary directory");
        copy(&project("models/half_plus_two"), &root.path().join("half_plus_two"));
        copy(&data("probe/aborts_when_empty"), &root.path().join("fragile"));
        let path = root.path().display();
        let config = format!(
            "[[models]]\nname = \"half_plus_two\"\npath = \"{path}/half_plus_two\"\n\
             [[models]]\nname = \"fragile\"\npath = \"{path}/fragile\"\nisolation = \"process\"\n"
        );
        let file = root.path().join("models.toml");
        fs::write(&file, config).expect("written");
        let mut command = tensorserve(&["serve", "--log-level", "error", "--http-port", "0"]);
        command.args(["--grpc-port", "0", "--poll-interval", "100ms"]).arg("--config").arg(file);
        command.arg("--load-probe-cache").arg(root.path().join("probes"));
        if let Some(program) = program {
            let mut other = Command::new(program);
            other.args(command.get_args());
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => other.env(name, value),
                    None => other.env_remove(name),
                };
            }
            command = other;
        }
        Serving { root, server: Process::start(command) }
    }

    fn ask(&self, model: &str) -> Answer {
        let path = format!("/v1/models/{model}:predict");
        post(self.server.address, &path, r#"{"inputs": [1]}"#)
    }

    fn status(&self, model: &str) -> String {
        get(self.server.address, &format!("/v1/models/{model}")).text()
    }

    /// Kills the process that others are forked from, and waits until it has ended.
    fn kill_host(&self) {
        let [host] = children(self.server.id())[..] else { panic!("not one process") };
        let killed = Command::new("kill").args(["-s", "KILL", &host.to_string()]).status();
        assert!(killed.expect("kill").success());
        wait_until("it has ended", || !is_running(host));
    }

    /// Publishes another version that no probe has seen.
    fn add_version(&self, model: &str, number: u32) {
        let staged = self.root.path().join("staged");
        copy(&self.root.path().join(model).join("1"), &staged);
        fs::write(staged.join("note"), format!("{model} {number}")).expect("written");
        let folder = self.root.path().join(model).join(number.to_string());
        fs::rename(staged, folder).expect("renamed");
    }

    fn is_available(&self, model: &str, version: u32) -> bool {
        let path = format!("/v1/models/{model}/versions/{version}");
        get(self.server.address, &path).text().contains("\"AVAILABLE\"")
    }
}

#[test]
fn the_process_is_started_again_and_no_request_to_another_model_is_lost() {
    let serving = Serving::start(None);
    let (asked, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            while !stop.load(SeqCst) {
                assert_eq!(serving.ask("half_plus_two").json(), json!({"outputs": [2.5]}));
                asked.fetch_add(1, SeqCst);
                pause_between_requests();
            }
        });
        let attack = scope.spawn(|| {
            for round in 0..3 {
                wait_until("the isolated model serves", || serving.ask("fragile").status == 200);
                serving.kill_host();
                // Versions that come while it is away wait for it.
                serving.add_version("half_plus_two", round + 2);
                serving.add_version("fragile", round + 2);
                for model in ["half_plus_two", "fragile"] {
                    wait_until(model, || serving.is_available(model, round + 2));
                }
                assert_eq!(serving.ask("fragile").json(), json!({"outputs": [2.0]}));
                assert_eq!(get(serving.server.address, "/readyz").status, 200);
            }
        });
        let outcome = attack.join();
        stop.store(true, SeqCst);
        other.join().expect("no request to the other model is lost");
        outcome.expect("the process is started again");
    });
    assert!(asked.load(SeqCst) > 10, "{asked:?} requests");
    // The one that was started last ends with the server, too.
    let mut server = serving.server;
    let hosts = children(server.id());
    let forked: Vec<u32> = hosts.iter().flat_map(|&host| children(host)).collect();
    server.signal("KILL");
    server.wait();
    wait_until("all end", || hosts.iter().chain(&forked).all(|&id| !is_running(id)));
}

#[test]
fn while_the_process_cannot_be_started_the_server_is_not_ready_and_says_why() {
    let place = tempfile::tempdir().expect("temporary directory");
    let program = place.path().join("tensorserve");
    fs::copy(env!("CARGO_BIN_EXE_tensorserve"), &program).expect("copied");
    let serving = Serving::start(Some(&program));
    let ready = || get(serving.server.address, "/readyz");
    wait_until("the isolated model serves", || serving.ask("fragile").status == 200);
    assert_eq!(ready().status, 200);
    fs::set_permissions(&program, Permissions::from_mode(0o644)).expect("changed");
    serving.kill_host();
    wait_until("it is not ready", || ready().status == 503);
    let why = "cannot be started again: Permission denied";
    for text in [ready().text(), serving.status("fragile"), serving.ask("fragile").text()] {
        assert!(text.contains(why), "{text}");
    }
    assert_eq!(serving.ask("fragile").status, 503);
    assert_eq!(serving.ask("half_plus_two").json(), json!({"outputs": [2.5]}));
    // A version that nobody can probe is not loaded.
    serving.add_version("half_plus_two", 2);
    wait_until("it has failed", || serving.status("half_plus_two").contains(why));
    assert_eq!(serving.ask("half_plus_two").json(), json!({"outputs": [2.5]}));
    fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("changed");
    wait_until("it is ready", || ready().status == 200);
    assert_eq!(serving.ask("fragile").json(), json!({"outputs": [2.0]}));
    wait_until("the version is loaded", || serving.is_available("half_plus_two", 2));
}
