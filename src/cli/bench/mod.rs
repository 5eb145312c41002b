//! `tensorserve bench`: load for a server, and how it bears it.
//!
//! [`target`] finds the model, or [`child`] starts a server for it; [`payload`] makes its requests, [`figures`] asks
//! the server for its own, and [`show`] prints what the crate `loadgen` has measured.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::child::ServerChild;
use self::figures::{CpuUse, WatchedServer, rows_per_batch};
pub(in crate::cli) use self::payload::DEFAULT_SIGNATURE;
use self::payload::LoadProtocol;
use self::sequence::ComparedRun;
use self::show::LiveView;
use self::target::ModelTarget;
use self::written::{LoadSource, WrittenLoad};
use super::interrupt::stop_on_signals;
use super::print_line;
use crate::config::environment::Environment;
use crate::config::units::HumanDuration;
use tensorserve_loadgen::compare::RunComparison;
use tensorserve_loadgen::plan::{Arrivals, LoadPlan, LoadTls, WireKind};
use tensorserve_loadgen::ramp::{self, LoadRamp};
use tensorserve_loadgen::report;
use tensorserve_loadgen::results::RunEnd;
use tensorserve_loadgen::run::{self, LiveWindow};
use tensorserve_loadgen::summary::{LoadSetting, LoadSummary};
use tensorserve_tensor::error::{Error, Result};

pub(in crate::cli) mod child;
pub(in crate::cli) mod figures;
mod payload;
pub(in crate::cli) mod replay;
pub(in crate::cli) mod sequence;
pub(in crate::cli) mod show;
pub(in crate::cli) mod target;
pub(in crate::cli) mod written;

pub(super) const HELP: &str = "\
Without --rate the loop is closed: each connection sends, waits for the response, and sends again. With --rate it is \
open: requests are due at that rate whatever the server does, and their latency counts from when they were due. Use it \
for latencies: a closed loop sends less while the server is slow, and so hides what users would see.

The exit status is 0, and 1 if every request failed, the server went away, or --compare finds the run worse. Requests \
have the credentials in TENSORSERVE_KEY, or in TENSORSERVE_USER and TENSORSERVE_PASSWORD.

Examples:
  tensorserve bench http://127.0.0.1:8500/v1/models/half_plus_two
  tensorserve bench http://127.0.0.1:8500/v1/models/half_plus_two --connections 64 --duration 30s
  tensorserve bench http://127.0.0.1:8500/v1/models/ranker --rate 500 --data @body.json --json
  tensorserve bench models/half_plus_two --protocol v2-raw --rows 32
  tensorserve bench models/half_plus_two --ramp 1000..20000:8 --duration 5s
  tensorserve bench models/half_plus_two --rate 2000 --compare before.json --tolerance 10%";

/// Connections of a closed loop, and of an open one, where they are only used as far as they are needed.
const CLOSED_CONNECTIONS: usize = 16;
pub(in crate::cli) const OPEN_CONNECTIONS: usize = 128;

/// What is measured, and what is not counted before.
const DURATION: Duration = Duration::from_secs(10);
const WARM_UP: Duration = Duration::from_secs(1);

/// When requests of an open loop are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ArrivalKind {
    Poisson,
    Fixed,
}

/// The requests that are sent, as all commands with a load take them.
#[derive(Args)]
pub(in crate::cli) struct PayloadArguments {
    /// What is sent
    #[arg(
        long,
        value_enum,
        value_name = "PROTOCOL",
        default_value = "v1",
        help_heading = "Requests"
    )]
    pub(in crate::cli) protocol: LoadProtocol,
    /// Body of the requests: text, or @FILE; may be repeated, and bodies then take turns [default: made from the
    /// signature, as `tensorserve inspect` shows it]
    #[arg(long, value_name = "BODY", help_heading = "Requests")]
    data: Vec<String>,
    /// Signature of the model that the bodies are made for [default: serving_default]
    #[arg(long, value_name = "NAME", help_heading = "Requests", conflicts_with = "data")]
    pub(in crate::cli) signature: Option<String>,
    /// Rows of the bodies that are made [default: as in the example of `tensorserve inspect`]
    #[arg(long, value_name = "N", help_heading = "Requests", conflicts_with = "data")]
    rows: Option<usize>,
    /// Media type of the bodies that are given [default: that of the protocol]
    #[arg(long, value_name = "TYPE", help_heading = "Requests", requires = "data")]
    content_type: Option<String>,
    /// A header of the requests, such as 'X-Request-Priority: low'; may be repeated
    #[arg(long, value_name = "NAME: VALUE", help_heading = "Requests")]
    header: Vec<String>,
}

impl PayloadArguments {
    /// Refuses options that would have no effect.
    ///
    /// # Errors
    /// If there is one.
    pub(in crate::cli) fn check(&self) -> Result<()> {
        match self.content_type.is_some() && self.protocol.wire() == WireKind::Grpc {
            true => Err(Error::invalid("--content-type: calls of gRPC have their own")),
            false => Ok(()),
        }
    }
}

/// Options of `bench`.
#[derive(Args)]
pub(super) struct Arguments {
    /// A model of a running server, such as http://127.0.0.1:8500/v1/models/NAME, with /versions/N or
    /// /labels/L if wanted; or a path, for which a server is started with the settings of the environment
    #[arg(value_name = "URL|PATH")]
    target: String,
    /// Name of the model, if the URL names none and the server has several
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    #[command(flatten)]
    payload: PayloadArguments,
    /// Address of gRPC calls, where a URL is given [default: port 8501 of its host]
    #[arg(long, value_name = "HOST:PORT", help_heading = "Requests")]
    grpc: Option<String>,
    /// Send the predict requests in this file of a request log (`request_log`), with their spacing; may be
    /// repeated. With --protocol grpc also those of the other methods
    #[arg(long, value_name = "FILE", help_heading = "Requests",
          conflicts_with_all = ["data", "signature", "rows", "rate", "ramp"])]
    replay: Vec<PathBuf>,
    /// How many times as fast as in the log they follow each other
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 1.0,
        help_heading = "Requests",
        requires = "replay"
    )]
    speed: f64,
    /// Do not ask the server for its times (X-Server-Timing)
    #[arg(long, help_heading = "Requests")]
    no_server_timing: bool,

    /// Requests a second, of an open loop [default: a closed loop]
    #[arg(long, value_name = "R", help_heading = "Load")]
    rate: Option<f64>,
    /// Open loops with even steps from one rate to another, and the knee between them: FROM..TO or
    /// FROM..TO:STEPS, with 10 steps by default, each for --duration
    #[arg(long, value_name = "RAMP", help_heading = "Load", conflicts_with_all = ["rate", "compare"])]
    ramp: Option<String>,
    /// When the requests of an open loop are due: independent of each other, as those of many users, or at
    /// even distances [default: poisson]
    #[arg(long, value_enum, value_name = "KIND", help_heading = "Load")]
    arrivals: Option<ArrivalKind>,
    /// Connections, and so the most requests at a time [default: 16 of a closed loop, 128 of an open one]
    #[arg(long, value_name = "N", help_heading = "Load")]
    connections: Option<usize>,
    /// Threads of the client [default: one for every four cores]
    #[arg(long, value_name = "N", help_heading = "Load")]
    threads: Option<usize>,
    /// Time that is measured [default: 10s, or as long as the log of --replay]
    #[arg(long, value_name = "DURATION", help_heading = "Load")]
    duration: Option<HumanDuration>,
    /// Time before it, whose requests do not count [default: 1s, or 0s with --replay]
    #[arg(long, value_name = "DURATION", help_heading = "Load")]
    warm_up: Option<HumanDuration>,
    /// End as soon as the quantiles are steady: half of their 95 % intervals is below 2 % of the median and
    /// 5 % of the 99th percentile
    #[arg(long, help_heading = "Load")]
    until_steady: bool,
    /// A request without a response after this time has failed
    #[arg(long, value_name = "DURATION", default_value = "30s", help_heading = "Load")]
    timeout: HumanDuration,

    /// Print the figures as JSON
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write the figures as JSON to this file, too
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    save: Option<PathBuf>,
    /// Write a report as one HTML file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    report: Option<PathBuf>,
    /// Compare with the figures of an earlier run in this file; the exit status is 1 if this run is worse
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    compare: Option<PathBuf>,
    /// By how much a figure may be worse: a share such as 5% or 0.05
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = sequence::share,
          help_heading = "Output", requires = "compare")]
    tolerance: f64,
}

/// Runs the load, prints the figures, and returns the exit status.
pub(super) fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode> {
    check(arguments)?;
    let rates = arguments.ramp.as_deref().map(ramp::rates).transpose()?;
    let before = arguments.compare.as_deref().map(sequence::read).transpose()?;
    // Stopped when it is dropped.
    let child = match target::is_url(&arguments.target) {
        true => None,
        false => Some(ServerChild::start(&arguments.target, &[])?),
    };
    let url = child.as_ref().map_or(arguments.target.as_str(), |child| child.url.as_str());
    let mut target = ModelTarget::of(url, arguments.model.as_deref(), environment)?;
    if arguments.payload.protocol.wire() == WireKind::Grpc {
        let started = child.as_ref().and_then(|child| child.grpc.as_deref());
        target.address = target.grpc_address(arguments.grpc.as_deref().or(started))?;
    }
    let target = target;
    let source = LoadSource {
        payload: &arguments.payload,
        logs: &arguments.replay,
        speed: arguments.speed,
        is_timed: !arguments.no_server_timing,
        place: &arguments.target,
    };
    let written = WrittenLoad::of(&source, &target, environment)?;
    let tls = target.tls(arguments.payload.protocol.wire(), environment)?;
    let plan = plan(arguments, &target, tls, &written);
    plan.check()?;
    let stop = Arc::new(AtomicBool::new(false));
    stop_on_signals(Arc::clone(&stop), "interrupted: the figures are of the time until now")?;
    let bench = Bench {
        server: WatchedServer {
            target: &target,
            process: child.as_ref().map(ServerChild::id),
            environment,
        },
        place: place(&arguments.target, &target),
        words: written.words,
        stop: &stop,
    };
    match rates {
        Some(rates) => run_ramp(arguments, &bench, &plan, &rates),
        None => run_once(arguments, &bench, &plan, before.as_ref()),
    }
}

/// Refuses options that would have no effect.
fn check(arguments: &Arguments) -> Result<()> {
    let is_grpc = arguments.payload.protocol.wire() == WireKind::Grpc;
    let is_path = !target::is_url(&arguments.target);
    let is_closed = arguments.rate.is_none() && arguments.ramp.is_none();
    let refused = [
        (arguments.grpc.is_some() && !is_grpc, "--grpc: the protocol is not one of gRPC"),
        (
            arguments.grpc.is_some() && is_path,
            "--grpc: a server that is started has a port of its own",
        ),
        (
            arguments.arrivals.is_some() && is_closed,
            "--arrivals: requests are due with --rate or --ramp only",
        ),
    ];
    match refused.into_iter().find(|(is_refused, _)| *is_refused) {
        Some((_, why)) => Err(Error::invalid(why)),
        None => arguments.payload.check(),
    }
}

/// What stays the same in all runs.
pub(in crate::cli) struct Bench<'b> {
    pub(in crate::cli) server: WatchedServer<'b>,
    /// What is measured, in words.
    pub(in crate::cli) place: String,
    /// What is sent, in words.
    pub(in crate::cli) words: String,
    /// Ends runs, once it is set.
    pub(in crate::cli) stop: &'b AtomicBool,
}

fn run_once(
    arguments: &Arguments,
    bench: &Bench<'_>,
    plan: &LoadPlan,
    before: Option<&LoadSummary>,
) -> Result<ExitCode> {
    let summary = bench.measure(plan)?;
    let comparison = before.map(|before| RunComparison::of(before, &summary, arguments.tolerance));
    let json = ComparedRun { summary: &summary, comparison: comparison.as_ref() };
    let json = serde_json::to_string(&json).unwrap_or_default();
    if arguments.json {
        print_line(&json);
    } else {
        show::print(&summary);
        comparison.iter().for_each(sequence::print_comparison);
    }
    if let Some(path) = &arguments.save {
        sequence::write(path, &json)?;
    }
    if let Some(path) = &arguments.report {
        sequence::write(path, &report::of_run(&summary, before.zip(comparison.as_ref())))?;
    }
    let is_worse = comparison.is_some_and(|comparison| comparison.is_worse);
    Ok(status(!is_worse && is_useful(&summary)))
}

fn run_ramp(
    arguments: &Arguments,
    bench: &Bench<'_>,
    plan: &LoadPlan,
    rates: &[f64],
) -> Result<ExitCode> {
    let mut steps: Vec<LoadSummary> = Vec::new();
    for rate in rates {
        let arrivals = arrivals_of(arguments, *rate);
        let step = bench.measure(&LoadPlan { arrivals, ..plan.clone() })?;
        let ends = matches!(step.ended, RunEnd::ServerGone | RunEnd::Stopped);
        steps.push(step);
        // Higher rates would only show the same.
        let not_held = steps.iter().rev().take_while(|step| !step.held_its_rate()).count();
        if ends || not_held >= 2 {
            break;
        }
    }
    let ramp = LoadRamp::of(steps);
    let json = serde_json::to_string(&ramp).unwrap_or_default();
    match arguments.json {
        true => print_line(&json),
        false => sequence::print_ramp(&ramp),
    }
    if let Some(path) = &arguments.save {
        sequence::write(path, &json)?;
    }
    if let Some(path) = &arguments.report {
        sequence::write(path, &report::of_ramp(&ramp))?;
    }
    Ok(status(ramp.steps.iter().all(is_useful)))
}

fn status(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn is_useful(summary: &LoadSummary) -> bool {
    summary.succeeded > 0 && summary.ended != RunEnd::ServerGone
}

/// What is measured, in words.
pub(in crate::cli) fn place(written: &str, target: &ModelTarget) -> String {
    match target::is_url(written) {
        true => format!("{} on {}", target.model, target.server),
        false => format!("{} of {written}", target.model),
    }
}

impl Bench<'_> {
    /// Runs a plan, with the figures of the server beside those of the client.
    fn measure(&self, plan: &LoadPlan) -> Result<LoadSummary> {
        self.measure_while(plan, &mut |_| true)
    }

    /// Runs a plan for as long as `goes_on` agrees, which is asked after each window.
    ///
    /// # Errors
    /// If the server cannot be connected to.
    pub(in crate::cli) fn measure_while(
        &self,
        plan: &LoadPlan,
        goes_on: &mut dyn FnMut(LiveWindow<'_>) -> bool,
    ) -> Result<LoadSummary> {
        let batches = self.server.batches();
        let mut cpu = CpuUse::default();
        let view = LiveView::new(plan);
        let results = run::run(plan, &mut |window| {
            cpu.add(self.server.process, window.window.counts.answered());
            view.show(window);
            goes_on(window) && !self.stop.load(Relaxed)
        });
        view.clear();
        let setting = LoadSetting::of(plan, self.place.clone(), self.words.clone());
        let mut summary = LoadSummary::of(setting, &results?);
        summary.server.cpu_us_per_request = cpu.per_request();
        summary.server.rows_per_batch = rows_per_batch(batches, self.server.batches());
        Ok(summary)
    }
}

/// Threads of the client: one for every four cores.
pub(in crate::cli) fn default_threads() -> usize {
    (thread::available_parallelism().map_or(1, std::num::NonZero::get) / 4).max(1)
}

fn arrivals_of(arguments: &Arguments, rate: f64) -> Arrivals {
    match arguments.arrivals {
        None | Some(ArrivalKind::Poisson) => Arrivals::Poisson(rate),
        Some(ArrivalKind::Fixed) => Arrivals::Fixed(rate),
    }
}

fn plan(
    arguments: &Arguments,
    target: &ModelTarget,
    tls: Option<LoadTls>,
    written: &WrittenLoad,
) -> LoadPlan {
    let is_open = arguments.rate.is_some() || arguments.ramp.is_some() || written.times.is_some();
    let arrivals = match (&written.times, arguments.rate) {
        (Some(times), _) => Arrivals::Times(times.as_slice().into()),
        (None, None) => Arrivals::Closed,
        (None, Some(rate)) => arrivals_of(arguments, rate),
    };
    // As long as the log, and as its last request is due.
    let last = written.times.as_ref().and_then(|times| times.last()).copied();
    let of_log = last.map(|last| Duration::from_nanos(last) + Duration::from_millis(1));
    let warm_up = if of_log.is_some() { Duration::ZERO } else { WARM_UP };
    let connections = if is_open { OPEN_CONNECTIONS } else { CLOSED_CONNECTIONS };
    LoadPlan {
        address: target.address,
        wire: arguments.payload.protocol.wire(),
        tls,
        requests: Arc::clone(&written.requests),
        arrivals,
        connections: arguments.connections.unwrap_or(connections),
        threads: arguments.threads.unwrap_or_else(default_threads),
        warm_up: arguments.warm_up.map_or(warm_up, |warm_up| warm_up.0),
        duration: arguments.duration.map_or(of_log.unwrap_or(DURATION), |duration| duration.0),
        timeout: arguments.timeout.0,
        until_steady: arguments.until_steady,
    }
}
