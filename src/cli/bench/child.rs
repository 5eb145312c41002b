//! A server that is started for the run.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::super::http_client;
use crate::config::environment::Environment;
use tensorserve_tensor::error::{Error, Result};

/// How long it may take to stop.
const STOP: Duration = Duration::from_secs(5);

/// The longest wait until its versions are optimized.
const OPTIMIZATION: Duration = Duration::from_secs(120);

/// Whether a line of the metrics says that versions are being optimized.
fn is_optimizing(line: &str) -> bool {
    let count = line.strip_prefix("tensorserve_optimizing_versions ");
    count.is_some_and(|count| count != "0")
}

/// A server of this program on free ports of this machine, which ends when it is dropped.
pub(in crate::cli) struct ServerChild {
    child: Child,
    /// `http://HOST:PORT`.
    pub(in crate::cli) url: String,
    /// The address of its gRPC port.
    pub(in crate::cli) grpc: Option<String>,
}

impl ServerChild {
    /// Serves what is at `path`, with the settings of the environment and these variables, and waits until it is ready.
    ///
    /// # Errors
    /// If it does not become ready; it has said why on stderr.
    pub(in crate::cli) fn start(path: &str, variables: &[(String, String)]) -> Result<Self> {
        let failed = |e| Error::internal("a server could not be started").with_source(e);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["serve", "--host", "127.0.0.1", "--http-port", "0", "--grpc-port", "0"]);
        // The pipe is closed when this process ends, however it ends, and the server stops with it.
        command.args(["--stop-with-stdin", "true", "--log-level", "warn"]).arg(path);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C ends the run, whose last requests the server still answers.
        command.process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let mut lines =
            child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        let (mut url, mut grpc) = (None, None);
        let mut why = "it has ended".to_owned();
        let mut is_ready = false;
        for line in lines.by_ref().map_while(std::io::Result::ok) {
            if let Some(of_http) =
                line.strip_prefix("listening on ").filter(|it| it.starts_with("http"))
            {
                url = Some(of_http.to_owned());
            }
            if let Some(address) = line.strip_prefix("listening on grpc://") {
                grpc = Some(address.to_owned());
            }
            is_ready = line.starts_with("ready after");
            if line.starts_with("not ready") {
                why = line;
                break;
            }
            if is_ready {
                break;
            }
        }
        // What it prints later must not fill the pipe.
        let drain = thread::Builder::new().name("server output".to_owned());
        let drained = drain.spawn(move || lines.for_each(drop)).map(drop);
        let server = ServerChild { child, url: url.unwrap_or_default(), grpc };
        drained.map_err(failed)?;
        match is_ready && !server.url.is_empty() {
            true => {
                server.wait_for_optimization();
                Ok(server)
            }
            false => {
                Err(Error::precondition(format!("{path}: the server did not become ready: {why}")))
            }
        }
    }

    /// Waits until its versions run in the form in which they stay.
    fn wait_for_optimization(&self) {
        let (url, environment) = (format!("{}/metrics", self.url), Environment::default());
        let start = Instant::now();
        while start.elapsed() < OPTIMIZATION {
            let metrics = http_client::get(&url, &environment).map(|(_, text)| text);
            if !metrics.is_ok_and(|text| text.lines().any(is_optimizing)) {
                return;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// How its process has ended, if it has.
    pub(in crate::cli) fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("the server ended ({status})"))
    }

    /// The id of its process.
    pub(in crate::cli) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        // The end of its standard input stops it, and what it has started.
        drop(self.child.stdin.take());
        let start = Instant::now();
        while start.elapsed() < STOP {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
