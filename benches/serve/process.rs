//! Servers in their own processes, and the CPU time they use.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use actix_web::{App, HttpServer, web};

use crate::client;
use crate::scenario::project;

pub struct Process {
    child: Child,
    pub address: SocketAddr,
    /// The gRPC address, if it listens on one; otherwise the HTTP address.
    pub grpc: SocketAddr,
    /// The directory of its `inference.py`, removed when it ends.
    code: Option<tempfile::TempDir>,
}

/// What a server prints when it is ready.
const READY: &str = "ready after";

impl Process {
    /// The release server, serving the sample models.
    pub fn server() -> Self {
        Process::server_of(env!("CARGO_BIN_EXE_tensorserve"), &[])
    }

    /// This binary of the server, serving the sample models and `more`.
    pub fn server_of(binary: &str, more: &[PathBuf]) -> Self {
        let mut command = Command::new(binary);
        command.args(["serve", "--http-port", "0", "--grpc-port", "0", "--log-level", "warn"]);
        // The server inherits TENSORSERVE_… variables, to try other settings.
        command.arg(project("models"));
        command.arg(project("tests/data/tensorflow-serving/generated/echo_float32"));
        command.arg(project("tests/data/rows/text_of_length"));
        command.args(more);
        Process::start(command, READY)
    }

    /// The release server, serving the models in `folder`.
    pub fn serving(folder: &Path, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorserve"));
        command.args(["serve", "--http-port", "0", "--grpc-port", "off", "--log-level", "warn"]);
        command.args(options).arg(folder);
        Process::start(command, READY)
    }

    /// The release server, serving half_plus_two, with this `inference.py`.
    pub fn with_code(script: &str, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        std::fs::write(folder.path().join("inference.py"), script).expect("written");
        let code = folder.path().to_str().expect("text");
        let options = [&["--code", code][..], options].concat();
        let mut process = Process::serving(&project("models/half_plus_two"), &options);
        process.code = Some(folder);
        process
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// This program as a bare echo.
    pub fn echo() -> Self {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.arg("--echo-server");
        Process::start(command, "listening on")
    }

    /// This program as a bare echo over gRPC.
    pub fn grpc_echo() -> Self {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.arg("--grpc-echo-server");
        Process::start(command, "listening on")
    }

    fn start(mut command: Command, ready: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
        let output = child.stdout.take().expect("piped");
        let mut address = None;
        let mut grpc = None;
        let mut lines = BufReader::new(output).lines();
        for line in lines.by_ref() {
            let line = line.expect("a line");
            if let Some(text) = line.strip_prefix("listening on http://") {
                address = Some(text.parse().expect("an address"));
            }
            if let Some(text) = line.strip_prefix("listening on grpc://") {
                grpc = Some(text.parse().expect("an address"));
            }
            if line.starts_with(ready) {
                break;
            }
        }
        // Further output must not block it.
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.or(grpc).expect("it prints its address");
        if ready == READY {
            client::wait_for_optimization(address);
        }
        Process { child, address, grpc: grpc.unwrap_or(address), code: None }
    }

    /// CPU time of all its threads so far.
    pub fn cpu(&self) -> Duration {
        cpu_of(self.child.id())
    }
}

/// CPU time of all threads of a process so far, from the scheduler.
pub fn cpu_of(process: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("tasks");
    let nanos = tasks.flatten().map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0u64)
    });
    Duration::from_nanos(nanos.sum())
}

/// The ids of a process's children.
pub fn children(parent: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |number: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        rest.split(' ').nth(1).and_then(|number| number.parse().ok()) == Some(parent)
    };
    numbers.filter(is_child).collect()
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A bare actix-web handler that echoes the body, with as many threads as the server.
pub fn echo_server() {
    actix_web::rt::System::new().block_on(async {
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let echo = |body: web::Bytes| async move { body };
        let app = move || {
            let limit = web::PayloadConfig::new(64 << 20);
            App::new().app_data(limit).default_service(web::to(echo))
        };
        let server = HttpServer::new(app).workers(threads).bind(("127.0.0.1", 0)).expect("binds");
        println!("listening on http://{}", server.addrs()[0]);
        server.run().await.expect("runs");
    });
}
