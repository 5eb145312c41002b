//! The server as a separate process, for tests of signals and of resource usage.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

/// A server started from the command line. Killed when dropped.
pub struct Process {
    child: Child,
    pub address: SocketAddr,
    /// The lines on stdout up to the readiness message.
    pub printed: Vec<String>,
}

/// `tensorserve` with `arguments`.
pub fn tensorserve<A: AsRef<OsStr>>(arguments: &[A]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorserve"));
    // Ignore settings in the environment of the tests, except library paths.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().into_owned();
        let is_library = text.starts_with("TENSORSERVE_LIB");
        if text.starts_with("TENSORSERVE_") && !is_library {
            command.env_remove(name);
        }
    }
    // Servers in the test process have set this variable.
    command.env_remove("TF_CPP_MIN_LOG_LEVEL");
    // Not that of the user who runs the tests.
    command.env("TENSORSERVE_LOAD_PROBE_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/probes"));
    command.args(arguments);
    command
}

/// The output and the exit status of a finished command.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

pub fn run<A: AsRef<OsStr>>(arguments: &[A]) -> Ended {
    ended(&mut tensorserve(arguments))
}

/// Runs a command to its end.
pub fn ended(command: &mut Command) -> Ended {
    let output = command.output().expect("process starts");
    Ended {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Process {
    /// Serves `path` on free ports; returns when the server reports its readiness.
    pub fn serve(path: &Path, options: &[&str]) -> Self {
        let mut command =
            tensorserve(&["serve", "--http-port", "0", "--grpc-port", "0", "--log-level", "error"]);
        command.args(options).arg(path);
        Process::start(command)
    }

    /// Starts a serving command; returns when the server reports its readiness.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("process starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut address = None;
        let mut printed = Vec::new();
        for line in lines.by_ref() {
            let line = said(line.expect("a line"));
            if let Some(text) = line
                .split_once("listening on http")
                .map(|(_, rest)| rest.trim_start_matches("s").trim_start_matches("://"))
            {
                address = Some(text.parse().expect("an address"));
            }
            let is_last = line.starts_with("ready after") || line.starts_with("not ready");
            printed.push(line);
            if is_last {
                break;
            }
        }
        // Drain the pipe, so that later output cannot block the server.
        thread::spawn(move || lines.for_each(drop));
        Process { child, address: address.expect("HTTP address on stdout"), printed }
    }

    /// The process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill");
        assert!(status.success(), "kill -s {name} {pid}");
    }

    /// Closes the pipe that is the process's stdin.
    pub fn close_stdin(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits until the process exits.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("process exits")
    }

    /// The resident memory in kB.
    pub fn resident(&self) -> u64 {
        self.status_number("VmRSS:")
    }

    /// Resets the peak of the resident memory, to exclude the loading of models.
    pub fn forget_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").expect("peak reset");
    }

    /// The peak of the resident memory in kB.
    pub fn peak(&self) -> u64 {
        self.status_number("VmHWM:")
    }

    /// The gRPC address.
    pub fn grpc(&self) -> SocketAddr {
        let line = self.printed.iter().find_map(|line| line.strip_prefix("listening on grpc://"));
        line.expect("gRPC address on stdout").parse().expect("an address")
    }

    pub fn threads(&self) -> u64 {
        self.status_number("Threads:")
    }

    pub fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).expect("a directory").count()
    }

    fn status_number(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = fs::read_to_string(path).expect("running process");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect(name);
        line.split_whitespace().next().and_then(|n| n.parse().ok()).expect(line)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a line on stdout says. It is an event if the log is JSON.
fn said(line: String) -> String {
    match serde_json::from_str::<serde_json::Value>(&line) {
        Ok(event) if line.starts_with('{') => event["message"].as_str().expect("text").to_owned(),
        _ => line,
    }
}

/// The children of a process.
pub fn children(id: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten() {
        let list = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.extend(list.split_whitespace().map(|id| id.parse::<u32>().expect("a number")));
    }
    children
}

/// The processes of isolated models: the server's child is the host, whose children are the keepers.
pub fn model_processes(server: &Process) -> Vec<u32> {
    let keepers = children(server.id()).into_iter().flat_map(children);
    keepers.flat_map(children).collect()
}

/// Ends a process at once.
pub fn kill(id: u32) {
    signal(id, "KILL");
}

/// Sends a process a signal.
pub fn signal(id: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &id.to_string()]).status();
    assert!(sent.expect("kill").success());
}

/// Whether a process runs or is stopped.
pub fn is_running(id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    !status.is_empty() && !status.contains("State:\tZ")
}
