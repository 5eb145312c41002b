//! Servers with the settings of a trial, and load for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::bench::child::ServerChild;
use super::super::bench::figures::{RequestSums, WatchedServer, cpu_seconds};
use super::super::bench::show::failure_text;
use super::super::bench::target::ModelTarget;
use super::super::bench::written::{LoadSource, WrittenLoad};
use super::super::bench::{Bench, DEFAULT_SIGNATURE, OPEN_CONNECTIONS, default_threads, place};
use super::super::http_client;
use super::Arguments;
use super::candidates::{ServedFacts, TrialSettings};
use super::search::TrialEnd;
use super::slo::{LatencySlo, SlowCount};
use crate::config::environment::Environment;
use tensorserve_loadgen::plan::{Arrivals, LoadPlan, WireKind};
use tensorserve_loadgen::results::RunEnd;
use tensorserve_loadgen::run::LiveWindow;
use tensorserve_loadgen::summary::LoadSummary;
use tensorserve_protocol::url::percent_encoded;

/// How long a request may take at least before it has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server that uses less of a core than this has no requests left.
const QUIET: f64 = 0.2;

/// How often that is looked at.
const QUIET_WINDOW: Duration = Duration::from_millis(100);

/// What all trials have in common.
pub(super) struct TuneRig<'t> {
    pub(super) arguments: &'t Arguments,
    pub(super) environment: &'t Environment,
    pub(super) stop: &'t AtomicBool,
}

/// A server with the settings of a trial, which ends when it is dropped.
pub(super) struct TrialServer<'t> {
    rig: &'t TuneRig<'t>,
    child: ServerChild,
    target: ModelTarget,
    plan: LoadPlan,
    /// What is sent, in words.
    pub(super) words: String,
    /// What is measured, in words.
    pub(super) place: String,
    /// How long the start has taken.
    pub(super) started_in: Duration,
}

impl TuneRig<'_> {
    /// Starts a server.
    ///
    /// # Errors
    /// If it does not become ready, or no request can be made for it.
    pub(super) fn start(&self, settings: &TrialSettings) -> Result<TrialServer<'_>, TrialEnd> {
        self.check_stop()?;
        let began = Instant::now();
        let out = |error: tensorserve_tensor::error::Error| TrialEnd::Out(error.to_string());
        let arguments = self.arguments;
        let child = ServerChild::start(&arguments.path, &settings.variables()).map_err(out)?;
        let started_in = began.elapsed();
        let mut target = ModelTarget::of(&child.url, arguments.model.as_deref(), self.environment)?;
        if arguments.payload.protocol.wire() == WireKind::Grpc {
            target.address = target.grpc_address(child.grpc.as_deref())?;
        }
        let source = LoadSource {
            payload: &arguments.payload,
            logs: &[],
            speed: 1.0,
            is_timed: false,
            place: &arguments.path,
        };
        let written = WrittenLoad::of(&source, &target, self.environment)?;
        let plan = LoadPlan {
            address: target.address,
            wire: arguments.payload.protocol.wire(),
            tls: target.tls(arguments.payload.protocol.wire(), self.environment)?,
            requests: Arc::clone(&written.requests),
            arrivals: Arrivals::Closed,
            connections: 1,
            threads: arguments.threads.unwrap_or_else(default_threads),
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(1),
            timeout: TIMEOUT.max(arguments.slo.limit() * 4),
            until_steady: false,
        };
        plan.check()?;
        let place = place(&arguments.path, &target);
        self.check_stop()?;
        Ok(TrialServer { rig: self, child, target, plan, words: written.words, place, started_in })
    }

    /// # Errors
    /// If the user has stopped the command.
    fn check_stop(&self) -> Result<(), TrialEnd> {
        if self.stop.load(Relaxed) { Err(TrialEnd::Interrupted) } else { Ok(()) }
    }

    /// The most connections of a load.
    pub(super) fn connections(&self) -> usize {
        self.arguments.connections.unwrap_or(OPEN_CONNECTIONS)
    }
}

impl TrialServer<'_> {
    /// What the server says about the model.
    pub(super) fn facts(&self, cores: usize) -> ServedFacts {
        let server = &self.target.server;
        let url = format!("{server}/api/v1/models/{}", percent_encoded(&self.target.model));
        let status = http_client::get(&url, self.rig.environment).ok();
        let status = status.and_then(|(_, body)| serde_json::from_str(&body).ok());
        let signature = self.rig.arguments.payload.signature.as_deref();
        let signature = signature.unwrap_or(DEFAULT_SIGNATURE);
        let status = status.unwrap_or(Value::Null);
        ServedFacts::of(&status, signature, cores, self.rig.environment)
    }

    /// The requests that the server has answered so far.
    pub(super) fn requests(&self) -> Option<RequestSums> {
        self.watched().requests()
    }

    /// A closed loop.
    ///
    /// # Errors
    /// If every request fails, or the server does not survive it.
    pub(super) fn closed(
        &mut self,
        connections: usize,
        time: Duration,
    ) -> Result<LoadSummary, TrialEnd> {
        let plan = LoadPlan { connections, ..self.timed(time) };
        self.load(&plan, &mut |_| true)
    }

    /// An open loop, which ends early when it is clear that the promise is not kept. Returns how many requests were slow.
    ///
    /// # Errors
    /// If the server does not survive it.
    pub(super) fn open(
        &mut self,
        rate: f64,
        time: Duration,
    ) -> Result<(LoadSummary, SlowCount), TrialEnd> {
        let slo = self.rig.arguments.slo;
        let plan = LoadPlan {
            arrivals: Arrivals::Poisson(rate),
            connections: self.rig.connections(),
            ..self.timed(time)
        };
        let mut watch = RateWatch { slo, due: rate * time.as_secs_f64(), slow: 0.0 };
        self.wait_until_quiet(plan.timeout);
        let summary = self.load(&plan, &mut |live| !watch.is_lost_after(live))?;
        let seen = slo.slow_in(&summary);
        Ok((summary, seen))
    }

    /// Waits until the server has done what an earlier load has left to do, which would delay the next one.
    fn wait_until_quiet(&self, longest: Duration) {
        let began = Instant::now();
        let mut before = cpu_seconds(self.child.id());
        while before.is_some() && began.elapsed() < longest && !self.rig.stop.load(Relaxed) {
            std::thread::sleep(QUIET_WINDOW);
            let now = cpu_seconds(self.child.id());
            let used = now.zip(before).map_or(0.0, |(now, before)| now - before);
            if used < QUIET * QUIET_WINDOW.as_secs_f64() {
                return;
            }
            before = now;
        }
    }

    fn timed(&self, time: Duration) -> LoadPlan {
        let warm_up = (time / 5).clamp(Duration::from_millis(50), Duration::from_secs(1));
        LoadPlan { warm_up, duration: time, ..self.plan.clone() }
    }

    fn watched(&self) -> WatchedServer<'_> {
        WatchedServer {
            target: &self.target,
            process: Some(self.child.id()),
            environment: self.rig.environment,
        }
    }

    fn load(
        &mut self,
        plan: &LoadPlan,
        goes_on: &mut dyn FnMut(LiveWindow<'_>) -> bool,
    ) -> Result<LoadSummary, TrialEnd> {
        self.rig.check_stop()?;
        let bench = Bench {
            server: self.watched(),
            place: self.place.clone(),
            words: self.words.clone(),
            stop: self.rig.stop,
        };
        let measured = bench.measure_while(plan, goes_on);
        self.rig.check_stop()?;
        if let Some(why) = self.child.ended() {
            return Err(TrialEnd::Out(why));
        }
        let summary = measured.map_err(|error| TrialEnd::Out(error.to_string()))?;
        if summary.ended == RunEnd::ServerGone {
            return Err(TrialEnd::Out("the server accepts no connections any more".to_owned()));
        }
        if summary.succeeded == 0
            && let Some(failure) = &summary.first_failure
        {
            let why = format!("every request failed: {}", failure_text(failure));
            return Err(TrialEnd::Out(why));
        }
        Ok(summary)
    }

    /// # Errors
    /// If more requests have failed than the promise lets be slow.
    // Counters of one run are exact.
    #[allow(clippy::cast_precision_loss)]
    pub(super) fn check_failures(&self, summary: &LoadSummary) -> Result<(), TrialEnd> {
        let share = summary.failed as f64 / summary.sent.max(1) as f64;
        match &summary.first_failure {
            Some(failure) if share > self.rig.arguments.slo.slow_share() => Err(TrialEnd::Out(
                format!("{:.1} % of the requests failed: {}", share * 100.0, failure_text(failure)),
            )),
            Some(_) | None => Ok(()),
        }
    }
}

/// A run ends when this share of the requests that may not be slow are slow.
const LOST: f64 = 0.2;

/// Looks for runs that cannot keep the promise any more.
struct RateWatch {
    slo: LatencySlo,
    /// Requests that are due in the run.
    due: f64,
    /// Those so far that were slow, or failed.
    slow: f64,
}

impl RateWatch {
    /// Whether far more requests are slow already than may be in all of the run.
    // Counters of one run are exact.
    #[allow(clippy::cast_precision_loss)]
    fn is_lost_after(&mut self, live: LiveWindow<'_>) -> bool {
        let latencies = live.window.latency.0.iter();
        let slow: u64 =
            latencies.filter(|(at, _)| !self.slo.allows(*at)).map(|(_, count)| count).sum();
        self.slow += slow as f64;
        let allowed = self.slo.slow_share();
        self.slow > (allowed + LOST * (1.0 - allowed)) * self.due + 3.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorserve_loadgen::results::{LoadWindow, SparseCounts};

    #[test]
    fn a_run_ends_when_too_many_requests_were_slow() {
        let slo = LatencySlo::read("p99=1ms").expect("valid");
        let mut watch = RateWatch { slo, due: 1000.0, slow: 0.0 };
        // A few more than may be slow are no reason to end it: how many are slow tells how far the rate is too high.
        let mut after = |fast: u64, slow: u64| {
            let latency = SparseCounts(vec![(900_000, fast), (2_000_000, slow)]);
            let window = LoadWindow { latency, ..LoadWindow::default() };
            watch.is_lost_after(LiveWindow {
                window: &window,
                seconds: 0.1,
                measured: 0.1,
                of: 1.0,
            })
        };
        assert!(!after(100, 50));
        assert!(!after(0, 150));
        assert!(after(0, 20));
    }
}
