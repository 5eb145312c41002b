//! `tensorserve replay`: sends the requests of logs to a server again, and tells which answers are other ones now.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use clap::Args;
use futures_util::future::join_all;

use self::call::ReplayConnection;
use self::requests::{ReplayRequest, ReplayRequests};
use self::tally::{ReplayEnd, ReplayTally};
use super::bench::target::ModelTarget;
use super::comparison::RuleArguments;
use super::interrupt::stop_on_signals;
use super::{http_client, print_text};
use crate::config::environment::Environment;
use crate::config::units::HumanDuration;
use tensorserve_core::comparison::{ReleaseRules, VersionComparison};
use tensorserve_tensor::error::{Error, Result};

mod answers;
mod call;
mod requests;
mod tally;

pub(super) const HELP: &str = "\
The requests of a request log (the setting request_log) are sent over gRPC, in their order, each when the one before it \
on its connection is answered. With --verify, each answer is compared with the recorded one by the rules of `tensorserve \
compare`: without one, values may differ by 1e-3 of the largest magnitude in their output (2e-2 for floats of 2 bytes), \
and everything else must be equal. --tolerance 0 asks for equal bits.

All logs are read before the first request is sent: if a record is damaged, cannot be sent or, with --verify, has no \
response, nothing is sent. The exit status is 0 if every request was answered and no answer differs, and 1 otherwise. \
Requests have the credentials in TENSORSERVE_KEY, or in TENSORSERVE_USER and TENSORSERVE_PASSWORD.

Examples:
  tensorserve replay logs/ranker-1763733000-0001.tfrecord http://127.0.0.1:8500/v1/models/ranker
  tensorserve replay logs/*.tfrecord http://127.0.0.1:8500/v1/models/ranker --verify --tolerance 0
  tensorserve replay logs/*.tfrecord http://127.0.0.1:8500/v1/models/ranker/labels/canary --verify --connections 8";

#[derive(Args)]
pub(super) struct Arguments {
    /// Files of a request log
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// A model of a running server, such as http://127.0.0.1:8500/v1/models/NAME, with /versions/N or /labels/L if wanted
    #[arg(value_name = "URL")]
    target: String,
    /// Name of the model, if the URL names none and the server has several
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Address of gRPC calls [default: port 8501 of the URL's host]
    #[arg(long, value_name = "HOST:PORT")]
    grpc: Option<String>,
    /// Connections, each with one request at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: usize,
    /// A request without an answer after this time has failed
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    timeout: HumanDuration,
    /// Compare each answer with the recorded one
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    rules: RuleArguments,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The most connections.
const MOST_CONNECTIONS: usize = 1000;

/// Replays; see the help.
///
/// # Errors
/// If a rule or a log cannot be read, or there is no such server.
pub(super) fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode> {
    let Arguments { logs, verify, connections, .. } = arguments;
    if let (false, Some(option)) = (verify, arguments.rules.given()) {
        return Err(Error::invalid(format!("{option} is a rule of --verify, which is not given")));
    }
    if !(1..=MOST_CONNECTIONS).contains(connections) {
        return Err(Error::invalid(format!("--connections must be from 1 to {MOST_CONNECTIONS}")));
    }
    let mut rules = ReleaseRules::default();
    arguments.rules.read_into(&mut rules)?;
    let comparison = VersionComparison::new(rules.outputs, rules.of_output);
    let mut target = ModelTarget::of(&arguments.target, arguments.model.as_deref(), environment)?;
    if target.scheme == "https" {
        let message = "this command speaks gRPC without TLS: name the plain port, or that of a proxy on this machine";
        return Err(Error::invalid(format!("{}: {message}", arguments.target)));
    }
    target.address = target.grpc_address(arguments.grpc.as_deref())?;
    let (requests, total) = ReplayRequests::checked(logs, &target, *verify)?;
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_signals(Arc::clone(&stop), "interrupted: what was sent until now is told")?;
    let replay = Replaying {
        requests: Mutex::new(requests),
        tally: Mutex::new(ReplayTally::new(total, verify.then_some(comparison))),
        stop: &stop,
    };
    let failed = |e| Error::internal("the client cannot be started").with_source(e);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let start = Instant::now();
    runtime.map_err(failed)?.block_on(replay.all(arguments, &target, environment))?;
    let (time, tally) = (start.elapsed(), locked(&replay.tally));
    let place = format!("{} on {}", target.model, target.server);
    match arguments.json {
        true => print_text(&tally.json(&place, time).to_string()),
        false => tally.print(&place, time),
    }
    Ok(if tally.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A replay under way.
struct Replaying<'r> {
    requests: Mutex<ReplayRequests<'r>>,
    tally: Mutex<ReplayTally>,
    stop: &'r AtomicBool,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replaying<'_> {
    /// Sends all requests.
    async fn all(
        &self,
        arguments: &Arguments,
        target: &ModelTarget,
        environment: &Environment,
    ) -> Result<()> {
        let authorization = http_client::authorization(environment);
        let mut connections = Vec::new();
        for _ in 0..arguments.connections {
            let timeout = arguments.timeout.0;
            let open = ReplayConnection::open(target, authorization.as_deref(), timeout);
            connections.push(open.await?);
        }
        let sent = join_all(connections.into_iter().map(|connection| self.send(connection))).await;
        sent.into_iter().collect()
    }

    /// Sends requests over a connection, until there is none.
    async fn send(&self, mut connection: ReplayConnection) -> Result<()> {
        while let Some(mut request) = self.next()? {
            let message = std::mem::take(&mut request.message);
            let outcome = connection.call(request.path, message).await;
            locked(&self.tally).add(request, outcome);
        }
        Ok(())
    }

    /// The next request; `None` if no more are to be sent.
    fn next(&self) -> Result<Option<ReplayRequest>> {
        let mut tally = locked(&self.tally);
        if tally.end != ReplayEnd::Complete {
            return Ok(None);
        }
        let next = locked(&self.requests).next()?;
        if next.is_some() && self.stop.load(Relaxed) {
            tally.end = ReplayEnd::Stopped;
            return Ok(None);
        }
        Ok(next)
    }
}
