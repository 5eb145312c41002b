//! The server as a process under the name `tensorflow_model_server`.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::client::{Answer, post};
use super::data;
use super::process::{Ended, Process, tensorserve};

pub const UPSTREAM: &str = "tensorflow-serving/upstream/testdata";
pub const HALF_PLUS_TWO: &str =
    "tensorflow-serving/upstream/testdata/saved_model_half_plus_two_cpu";
pub const HALF_PLUS_THREE: &str =
    "tensorflow-serving/upstream/testdata/saved_model_half_plus_three";

/// This binary under the name of TensorFlow Serving's binary.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = tensorserve(arguments);
    command.arg0("/usr/bin/tensorflow_model_server");
    command
}

/// A server with its own directory, which also holds its log.
pub struct Place {
    pub process: Process,
    pub root: TempDir,
}

impl Place {
    /// Starts a server with these flags. `ROOT` in a flag stands for the directory that `prepare`
    /// fills.
    pub fn start(flags: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        let root = tempfile::tempdir().expect("temporary directory");
        prepare(root.path());
        let shown = root.path().display().to_string();
        let flags: Vec<String> = flags.iter().map(|f| f.replace("ROOT", &shown)).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut command = command(&flags);
        // As a variable, 0 selects a free port; as a flag, it would disable the port.
        command.env("TENSORSERVE_HTTP_PORT", "0").env("TENSORSERVE_GRPC_PORT", "0");
        command.stderr(File::create(root.path().join("log")).expect("a file"));
        Place { process: Process::start(command), root }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.root.path().join("log")).expect("the log")
    }

    pub fn predict(&self, target: &str) -> Answer {
        let path = format!("/v1/models/{target}:predict");
        post(self.process.address, &path, r#"{"instances": [1.0]}"#)
    }

    /// The prediction of `target` for 1; `None` for an error.
    pub fn value(&self, target: &str) -> Option<f64> {
        let answer = self.predict(target);
        (answer.status == 200).then(|| answer.json()["predictions"][0].as_f64().expect("a number"))
    }

    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(
                start.elapsed() < Duration::from_secs(300),
                "not reached: {what}: {}",
                self.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Replaces the model list atomically.
    pub fn write_list(&self, text: &str) {
        write_list(self.root.path(), text);
    }
}

pub fn write_list(root: &Path, text: &str) {
    fs::write(root.join("models.new"), text).expect("written");
    fs::rename(root.join("models.new"), root.join("models.config")).expect("renamed");
}

/// An entry of a model list.
pub fn listed(name: &str, path: &Path, rest: &str) -> String {
    let path = path.display();
    format!(
        "config {{ name: \"{name}\" base_path: \"{path}\" model_platform: \"tensorflow\" {rest} }}\n"
    )
}

pub fn list(models: &[String]) -> String {
    format!("# Models\nmodel_config_list: {{\n{}}}\n", models.join(""))
}

pub fn base_path(path: &str) -> String {
    format!("--model_base_path={}", data(path).display())
}

pub fn assert_fails(ended: &Ended, message: &str) {
    assert_eq!(ended.status.code(), Some(255), "{}{}", ended.stdout, ended.stderr);
    let line = format!("Failed to start server. Error: {message}");
    assert!(ended.stdout.contains(&line), "{line:?} is not in: {}", ended.stdout);
}
