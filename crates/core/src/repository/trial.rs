//! A trial of a new version: recorded requests run on it and on the version whose place it is to take.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::ModelHandle;
use super::growth::RunGrowth;
use crate::comparison::{
    NamedOutputs, OutputFigures, OutputRules, ReleaseRules, SignatureChanges, VersionComparison,
};
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

/// A recorded request, which can run on any version.
pub trait TrialRequest: Send {
    /// Where it was recorded, for messages: `golden.tfrecord record 3`.
    fn source(&self) -> &str;

    /// All outputs of the version for it, by name. Blocks, until `deadline` at most.
    ///
    /// # Errors
    /// What the version reports.
    fn outputs(&self, version: &ModelHandle, deadline: Instant) -> Result<NamedOutputs>;
}

impl<R: TrialRequest + ?Sized> TrialRequest for Box<R> {
    fn source(&self) -> &str {
        (**self).source()
    }

    fn outputs(&self, version: &ModelHandle, deadline: Instant) -> Result<NamedOutputs> {
        (**self).outputs(version, deadline)
    }
}

/// Where recorded requests for a trial may be.
#[derive(Clone, Copy, Debug)]
pub struct TrialSources<'a> {
    /// The model's name.
    pub model: &'a str,
    /// The directories of versions, the most important one first.
    pub folders: &'a [&'a Path],
    /// The files of the model's request log, the newest first. They may have requests to other models, too.
    pub logs: &'a [PathBuf],
    /// The most requests that are wanted.
    pub most: usize,
}

/// Recorded requests for a trial.
#[derive(Default)]
pub struct TrialRequests {
    /// The requests.
    pub requests: Vec<Box<dyn TrialRequest>>,
    /// What could not be read of the request log.
    pub notes: Vec<String>,
}

/// Requests that run twice on the old version, to see whether it draws random numbers.
const REPEATED: usize = 50;

/// The most time for that: with long runs, fewer requests tell as much.
const LONGEST_REPETITION: Duration = Duration::from_secs(20);

/// Medians of fewer runs say little about how long a run takes, unless they are long.
const TIMED: usize = 30;
const TIMED_IF_LONG: usize = 5;

/// What so many runs have to take together.
const LONG: Duration = Duration::from_secs(5);

/// Failed requests whose errors are kept.
const MOST_ERRORS: usize = 100;

/// The longest run of a recorded request.
const LONGEST_RUN: Duration = Duration::from_secs(60);

/// Both versions, and what requests have shown of them.
pub struct VersionTrial<'v> {
    old: &'v ModelHandle,
    new: &'v ModelHandle,
    rules: &'v ReleaseRules,
    comparison: VersionComparison,
    widened: Vec<(String, f64)>,
    old_times: Vec<Duration>,
    new_times: Vec<Duration>,
    old_growth: RunGrowth,
    new_growth: RunGrowth,
    errors: Vec<String>,
    failed_in_new: u64,
    failed_in_both: u64,
    failed_in_old: u64,
}

/// What a trial has found.
#[derive(Clone, Debug, Default)]
pub struct TrialReport {
    /// What is against the new version; nothing if it may take the place of the old one.
    pub against: Vec<String>,
    /// Requests that both versions answered.
    pub requests: u64,
    /// What each output had in common.
    pub outputs: BTreeMap<String, OutputFigures>,
    /// Outputs in which the old version differs from itself, with what is allowed for that.
    pub widened: Vec<(String, f64)>,
    /// The medians of the runs of the old and of the new version.
    pub medians: [Duration; 2],
    /// How many times as long the new version takes, by the medians; `None` if too few requests ran.
    pub slowdown: Option<f64>,
    /// Memory that the runs of the new version leave behind and those of the old one do not, in bytes: over half of
    /// the runs.
    pub leak: Option<u64>,
    /// The first requests that only the new version fails, with its errors.
    pub errors: Vec<String>,
    /// All of these requests.
    pub failed_in_new: u64,
    /// Requests that both versions fail.
    pub failed_in_both: u64,
    /// Requests that only the old version fails.
    pub failed_in_old: u64,
    /// What the new version takes and gives differently.
    pub changes: SignatureChanges,
    /// What else is worth knowing, such as files that could not be read.
    pub notes: Vec<String>,
    /// For live requests: without figures, and with the rules that held in the trial.
    pub(super) live: VersionComparison,
}

impl TrialReport {
    /// Of a trial that could not take place.
    pub(super) fn refused(why: impl Into<String>) -> Self {
        TrialReport { against: vec![why.into()], ..TrialReport::default() }
    }

    /// What is against the version, on one line.
    pub(super) fn summary(&self) -> String {
        self.against.join("; ")
    }
}

impl<'v> VersionTrial<'v> {
    /// Of two versions that run no request yet.
    #[must_use]
    pub fn new(old: &'v ModelHandle, new: &'v ModelHandle, rules: &'v ReleaseRules) -> Self {
        let comparison = VersionComparison::new(rules.outputs.clone(), rules.of_output.clone());
        VersionTrial {
            old,
            new,
            rules,
            comparison,
            widened: Vec::new(),
            old_times: Vec::new(),
            new_times: Vec::new(),
            old_growth: RunGrowth::default(),
            new_growth: RunGrowth::default(),
            errors: Vec::new(),
            failed_in_new: 0,
            failed_in_both: 0,
            failed_in_old: 0,
        }
    }

    /// Runs requests as long as `goes_on` says so, which is asked before each with the time that the one before took.
    /// The first of them run twice on the old version: a model that draws random numbers differs from itself.
    pub fn run<R: TrialRequest>(
        &mut self,
        requests: &[R],
        mut goes_on: impl FnMut(Duration) -> bool,
    ) {
        let exact = OutputRules { tolerance: Some(0.0), ..OutputRules::default() };
        let mut noise = VersionComparison::new(exact, BTreeMap::new());
        let (start, mut took) = (Instant::now(), Duration::ZERO);
        for (number, request) in (1..).zip(requests.iter().take(REPEATED)) {
            if start.elapsed() >= LONGEST_REPETITION {
                break;
            }
            if !goes_on(took) {
                return;
            }
            let began = Instant::now();
            let (first, _) = outputs(self.old, request);
            let (second, _) = outputs(self.old, request);
            if let (Ok(first), Ok(second)) = (first, second) {
                noise.add(number, &first, &second);
            }
            // So that neither version is measured cold.
            let _ = outputs(self.new, request);
            took = began.elapsed();
        }
        self.widened = self.comparison.widen(&noise);
        for (number, request) in (1..).zip(requests) {
            if !goes_on(took) {
                return;
            }
            let began = Instant::now();
            self.run_on_both(number, request);
            took = began.elapsed();
        }
    }

    fn run_on_both(&mut self, number: u64, request: &impl TrialRequest) {
        // Whoever runs second finds warm caches.
        let mut on_old = || self.old_growth.during(|| outputs(self.old, request));
        let mut on_new = || self.new_growth.during(|| outputs(self.new, request));
        let ((old, old_time), (new, new_time)) = if number % 2 == 1 {
            let old = on_old();
            (old, on_new())
        } else {
            let new = on_new();
            (on_old(), new)
        };
        match (old, new) {
            (Ok(old), Ok(new)) => {
                self.old_times.push(old_time);
                self.new_times.push(new_time);
                self.comparison.add(number, &old, &new);
            }
            (Ok(_), Err(error)) => {
                self.failed_in_new += 1;
                if self.errors.len() < MOST_ERRORS {
                    self.errors.push(format!("{}: {error}", request.source()));
                }
            }
            (Err(_), Ok(_)) => self.failed_in_old += 1,
            (Err(_), Err(_)) => self.failed_in_both += 1,
        }
    }

    /// What was found.
    #[must_use]
    pub fn report(&self) -> TrialReport {
        let changes = SignatureChanges::between(self.old.signatures(), self.new.signatures());
        let medians = [median(&self.old_times), median(&self.new_times)];
        let [old, new] = medians.map(|time| time.as_secs_f64());
        let slowdown = self.is_timed().then(|| new / old.max(1e-9));
        let leak = self.old_growth.leak_of(&self.new_growth);
        TrialReport {
            against: self.against(slowdown, leak, &changes),
            requests: self.comparison.requests(),
            outputs: self.comparison.figures(),
            widened: self.widened.clone(),
            medians,
            slowdown,
            leak,
            errors: self.errors.clone(),
            failed_in_new: self.failed_in_new,
            failed_in_both: self.failed_in_both,
            failed_in_old: self.failed_in_old,
            changes,
            notes: Vec::new(),
            live: self.comparison.anew(),
        }
    }

    /// Whether enough requests ran to compare their times.
    fn is_timed(&self) -> bool {
        let count = self.old_times.len();
        let is_long = || self.old_times.iter().sum::<Duration>() >= LONG;
        count >= TIMED || (count >= TIMED_IF_LONG && is_long())
    }

    fn against(
        &self,
        slowdown: Option<f64>,
        leak: Option<u64>,
        changes: &SignatureChanges,
    ) -> Vec<String> {
        let mut against = self.comparison.against();
        if self.comparison.requests() == 0 {
            against.push("no request was answered by both versions".to_owned());
        }
        if let Some(first) = self.errors.first() {
            let count = self.failed_in_new;
            against.push(format!(
                "{count} requests fail that the old version answers; the first: {first}"
            ));
        }
        let most = self.rules.max_slowdown;
        if let Some(slowdown) = slowdown.filter(|slowdown| *slowdown > most) {
            let runs = format!("its runs take {slowdown:.2} times as long");
            against.push(format!("{runs}, and may take {most} times"));
        }
        if let Some(leak) = leak {
            let mib = leak >> 20;
            against.push(format!("its runs leave memory behind: {mib} MiB in half of them"));
        }
        if !self.rules.allow_changes {
            against.extend(changes.lost.iter().cloned());
        }
        against
    }
}

/// The outputs of the version for a request, and how long the run took, without the time that this thread waited for
/// a CPU: on a busy machine that is most of it for a thread of low priority, whatever the model.
fn outputs(version: &ModelHandle, request: &impl TrialRequest) -> (Result<NamedOutputs>, Duration) {
    let (start, waited) = (Instant::now(), os::machine::thread_cpu_wait());
    let run = || request.outputs(version, start + LONGEST_RUN);
    // A version that panics fails the request, as it does a client's.
    let outputs = catch_unwind(AssertUnwindSafe(run));
    let outputs = outputs.unwrap_or_else(|_| Err(Error::internal("internal error")));
    let waiting = os::machine::thread_cpu_wait().zip(waited);
    let waiting = waiting.map(|(now, before)| now.saturating_sub(before)).unwrap_or_default();
    (outputs, start.elapsed().saturating_sub(waiting))
}

/// Their median; zero if there are none.
fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
