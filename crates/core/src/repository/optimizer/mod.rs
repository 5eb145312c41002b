//! Other forms of loaded models that take less CPU time, such as one whose variables are constants. A version serves as
//! it was loaded; its other form is made afterwards, and takes over once it has been shown, at low priority, to compute
//! the same and to take less time. Otherwise the version stays as it is, and its status says why.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Instant;

use arc_swap::ArcSwap;
use crossbeam::channel::{Receiver, Sender, unbounded};

use self::proof::{TwoForms, Worth};
use self::samples::ComparedInputs;
use self::watched::WatchedExecutable;
use super::form::{FormKind, OptimizationState, OptimizedForm};
use super::ordinary::OrdinaryForm;
use super::remembered::RememberedForm;
use super::servable::LoadedVersion;
use super::{Servable, ServingTable, TrialSources, VersionFiles};
use crate::comparison::Tolerance;
use crate::config::{EngineChoice, OptimizeMode};
use crate::metrics::{Metrics, OptimizingVersion};
use tensorserve_os as os;
use tensorserve_platform::{Executable, LARGEST_IRREGULAR, Optimization, OptimizedModel};
use tensorserve_tensor::{Signature, Tensor};

mod proof;
mod samples;
mod watched;

/// The most recorded requests that are compared.
const MOST_RECORDED: usize = 200;

/// The share of the CPU time of another form from which on a later one is preferred to it.
const NOTABLY: f64 = 0.97;

/// The thread that makes other forms of versions, one after the other.
#[derive(Default)]
pub(super) struct Optimizer {
    jobs: OnceLock<Option<Sender<OptimizationJob>>>,
    is_stopped: Arc<AtomicBool>,
}

/// A version whose other form is wanted.
struct OptimizationJob {
    version: Weak<LoadedVersion>,
    /// Has the version with its present queues, as long as it serves.
    table: Arc<ArcSwap<ServingTable>>,
    files: Arc<dyn VersionFiles>,
    /// The files of its request log, the newest first.
    logs: Vec<PathBuf>,
    /// The inputs of recorded requests, with the numbers of their signatures, once they are read.
    recorded: OnceLock<Vec<(usize, Vec<Tensor>)>>,
    metrics: Metrics,
    _counted: OptimizingVersion,
}

/// How much of a form is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thoroughness {
    /// All that there is.
    Full,
    /// A little: the same form of the same files has been compared on this machine.
    Again,
}

/// The inputs of each signature that are compared [`Thoroughness::Again`].
const COMPARED_AGAIN: usize = 2;

/// A form that computes the same and takes less time.
struct FoundForm {
    number: usize,
    made: OptimizedModel,
    comparison: FormComparison,
    cpu: f64,
}

/// What the comparison of a form has shown.
#[derive(Default)]
struct FormComparison {
    /// Inputs for which it computes the same.
    compared: usize,
    /// The largest magnitude of floats up to which it does, if it rounds otherwise for larger ones.
    limit: Option<f32>,
}

/// What a form must be.
#[derive(Clone, Copy)]
struct Demands {
    /// How equal its results must be.
    tolerance: Tolerance,
    /// How much less CPU time it must take.
    worth: Worth,
}

impl Optimizer {
    /// Looks for another form of a version that serves, unless that has begun.
    pub(super) fn consider(
        &self,
        servable: &Servable,
        table: &Arc<ArcSwap<ServingTable>>,
        files: &Arc<dyn VersionFiles>,
        metrics: &Metrics,
        logs: impl FnOnce() -> Vec<PathBuf>,
    ) {
        if !servable.loaded.forms.begin() {
            return;
        }
        let jobs = self.jobs.get_or_init(|| start(Arc::clone(&self.is_stopped)));
        let (version, files) = (Arc::downgrade(&servable.loaded), Arc::clone(files));
        if let Some(jobs) = jobs {
            let _counted = metrics.optimizing();
            let (table, logs) = (Arc::clone(table), logs());
            let (recorded, metrics) = (OnceLock::new(), metrics.clone());
            let _ = jobs.send(OptimizationJob {
                version,
                table,
                files,
                logs,
                recorded,
                metrics,
                _counted,
            });
        }
    }

    /// Ends what is under way after the present run.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Relaxed);
    }
}

fn start(is_stopped: Arc<AtomicBool>) -> Option<Sender<OptimizationJob>> {
    let (sender, jobs) = unbounded();
    let thread = thread::Builder::new().name("optimizer".to_owned());
    let spawned = thread.spawn(move || work(&jobs, &is_stopped));
    if let Err(error) = &spawned {
        log::warn!("models run as they are: the thread that optimizes them cannot start: {error}");
    }
    spawned.is_ok().then_some(sender)
}

fn work(jobs: &Receiver<OptimizationJob>, is_stopped: &AtomicBool) {
    for job in jobs {
        if is_stopped.load(Relaxed) {
            return;
        }
        for kind in FormKind::ALL {
            let found = catch_unwind(AssertUnwindSafe(|| job.run(kind, is_stopped)));
            job.end(
                kind,
                found.unwrap_or_else(|_| {
                    Some(OptimizationState::Unchanged(
                        "internal error; see the server log".to_owned(),
                    ))
                }),
            );
        }
        // The form that is not needed any more, and what making the other one took.
        os::release_memory();
    }
}

impl OptimizationJob {
    /// Publishes what was found, unless the version is gone.
    fn end(&self, kind: FormKind, found: Option<OptimizationState>) {
        let (Some(version), Some(found)) = (self.version.upgrade(), found) else {
            return;
        };
        let (model, number) = (version.model(), version.number());
        match &found {
            OptimizationState::Optimized(form) => {
                let (what, OptimizedForm { compared, cpu, .. }) = (form.text(), form);
                self.metrics.form_found(model, kind.label(), "took_over");
                log::info!(
                    "{model} version {number}: optimized: {what}; {compared} results were the same, with {cpu:.2} of \
                     the CPU time"
                );
            }
            OptimizationState::Unchanged(why) => {
                self.metrics.form_found(model, kind.label(), "unchanged");
                log::debug!("{model} version {number}: not optimized: {why}");
            }
            OptimizationState::Waiting | OptimizationState::Running => {}
        }
        version.forms.set(kind, found);
    }

    /// Makes forms of this kind until one computes the same, and lets it take over if it is worth it. `None` if none is
    /// wanted or the version is gone. Blocks.
    fn run(&self, kind: FormKind, is_stopped: &AtomicBool) -> Option<OptimizationState> {
        let unchanged = |why: String| Some(OptimizationState::Unchanged(why));
        let version = self.version.upgrade()?;
        if version.forms.state(kind) != OptimizationState::Running {
            return None;
        }
        if !version.is_warmed() {
            return unchanged("it was not warmed up (warm_up is false)".to_owned());
        }
        let demands = demands(kind, &version);
        let settings = remembered_as(kind, version.forms.mode());
        drop(version);
        if let Some(settings) = settings
            && let Some(known) = at_low_priority(|| self.remembered(settings))
            && let Some(state) = self.take_again(kind, known, demands.tolerance, is_stopped)?
        {
            return Some(state);
        }
        let mut best: Option<FoundForm> = None;
        let mut first = None;
        for number in 0.. {
            let made = match self.version.upgrade()?.form(kind, number) {
                Ok(Optimization::Made(made)) => made,
                Ok(Optimization::None(why)) => return unchanged(first.unwrap_or(why)),
                Ok(Optimization::Unknown) => return unchanged(kind.none().to_owned()),
                Err(error) => return unchanged(format!("another form cannot be made: {error}")),
            };
            let (ends_group, is_last) = (made.ends_group, made.is_last);
            let tried = || self.try_form((number, made), demands, is_stopped);
            match at_low_priority(tried)? {
                Ok(found) => {
                    if best.as_ref().is_none_or(|best| found.cpu < best.cpu * NOTABLY) {
                        best = Some(found);
                    }
                }
                Err(why) => {
                    first.get_or_insert(why);
                }
            }
            if ends_group && let Some(found) = best.take() {
                let FoundForm { number, made, comparison, cpu } = found;
                let FormComparison { compared, limit: largest } = comparison;
                self.take_over(kind, &made.executable, largest)?;
                let form = OptimizedForm { what: made.what, compared, cpu, largest };
                if let Some((settings, version)) = settings.zip(self.version.upgrade()) {
                    let form = RememberedForm { number, form: form.clone() };
                    version.remembered().remember_form(settings, &form);
                }
                return Some(OptimizationState::Optimized(form));
            }
            if is_last {
                return unchanged(first.unwrap_or_default());
            }
        }
        None
    }

    /// The form of the version that took over when it was loaded before.
    fn remembered(&self, settings: &str) -> Option<RememberedForm> {
        self.version.upgrade()?.remembered().form(settings)
    }

    /// Lets a form that is known to be worth it take over, unless it shows to be another one. `None` if the version is gone.
    fn take_again(
        &self,
        kind: FormKind,
        known: RememberedForm,
        tolerance: Tolerance,
        is_stopped: &AtomicBool,
    ) -> Option<Option<OptimizationState>> {
        let RememberedForm { number, form } = known;
        let made = match self.version.upgrade()?.form(kind, number) {
            Ok(Optimization::Made(made)) if made.what == form.what => made,
            Ok(_) | Err(_) => return Some(None),
        };
        let compared = || self.compare(&made, tolerance, Thoroughness::Again, is_stopped);
        if at_low_priority(compared)?.is_err() {
            return Some(None);
        }
        self.take_over(kind, &made.executable, form.largest)?;
        log::debug!("form {number} takes over again, as when the version was loaded before");
        Some(Some(OptimizationState::Optimized(form)))
    }

    /// Compares and times a form. An error says why it is not taken. `None` if the version is gone.
    fn try_form(
        &self,
        (number, made): (usize, OptimizedModel),
        demands: Demands,
        is_stopped: &AtomicBool,
    ) -> Option<Result<FoundForm, String>> {
        let not_taken = |why| Some(Err(format!("{}, but {why}", made.what)));
        let full = Thoroughness::Full;
        let comparison = match self.compare(&made, demands.tolerance, full, is_stopped)? {
            Ok(comparison) => comparison,
            Err(why) => return not_taken(why),
        };
        match demands.worth.of(&self.shares(&made, is_stopped)?) {
            Ok(cpu) => Some(Ok(FoundForm { number, made, comparison, cpu })),
            Err(why) => not_taken(why),
        }
    }

    /// Lets a form run from now on, for floats up to `largest`. `None` if the version is gone.
    fn take_over(
        &self,
        kind: FormKind,
        form: &Arc<dyn Executable>,
        largest: Option<f32>,
    ) -> Option<()> {
        let version = self.version.upgrade()?;
        let own = version.executable.current();
        let form = match largest {
            None => Arc::clone(form),
            Some(largest) => {
                let (form, original) = (Arc::clone(form), Arc::clone(&own));
                Arc::new(OrdinaryForm { form, original, takes_unknown: true, largest })
            }
        };
        let form = match kind {
            FormKind::Optimized => form,
            FormKind::OtherEngine => {
                let (watched, metrics) = (Arc::downgrade(&version), self.metrics.clone());
                Arc::new(WatchedExecutable::new(watched, own, form, metrics))
            }
        };
        version.executable.switch(form);
        Some(())
    }

    /// The version, as long as another form of it is wanted.
    fn wanted(&self, is_stopped: &AtomicBool) -> Option<Arc<LoadedVersion>> {
        self.version.upgrade().filter(|_| !is_stopped.load(Relaxed))
    }

    /// The version in its present form and in another one. `None` if the version is gone.
    fn forms<'m>(&self, made: &'m OptimizedModel, is_stopped: &AtomicBool) -> Option<TwoForms<'m>> {
        let version = self.wanted(is_stopped)?;
        let (present, threads) = (version.executable.current(), version.threads);
        Some(TwoForms { present, other: &made.executable, threads })
    }

    /// The inputs of recorded requests to a signature, once they are read.
    fn recorded_of(&self, signature: usize) -> impl Iterator<Item = &Vec<Tensor>> {
        let all = self.recorded.get().into_iter().flatten();
        all.filter(move |(number, _)| *number == signature).map(|(_, inputs)| inputs)
    }

    /// Compares the other form with the present one. An error says what was not the same. `None` if the version is gone.
    fn compare(
        &self,
        made: &OptimizedModel,
        tolerance: Tolerance,
        thoroughness: Thoroughness,
        is_stopped: &AtomicBool,
    ) -> Option<Result<FormComparison, String>> {
        let signatures = self.signatures()?;
        if thoroughness == Thoroughness::Full && self.recorded.get().is_none() {
            let recorded = self.read_recorded(is_stopped)?;
            self.recorded.get_or_init(|| recorded);
        }
        let mut comparison = FormComparison::default();
        for (index, signature) in called(&signatures, made.only) {
            let mut telling = 0;
            let mut all = samples::compared_inputs(signature, self.recorded_of(index));
            if thoroughness == Thoroughness::Again {
                all.retain(|inputs| inputs.tells);
                all.truncate(COMPARED_AGAIN);
            }
            for inputs in all {
                let run = (&inputs, tolerance);
                match self.compare_run(made, (index, signature), run, is_stopped)? {
                    Ok(has_outputs) => telling += usize::from(has_outputs && inputs.tells),
                    Err(why) => return Some(Err(why)),
                }
                comparison.compared += 1;
            }
            if thoroughness == Thoroughness::Again {
                continue;
            }
            // Without inputs, one run shows all.
            if !signature.inputs.is_empty()
                && let Err(why) = proof::tells_enough(signature, telling)
            {
                return Some(Err(why));
            }
            let called = (index, signature);
            if let Err(why) =
                self.compare_large(made, called, tolerance, &mut comparison, is_stopped)?
            {
                return Some(Err(why));
            }
        }
        Some(Ok(comparison))
    }

    /// Compares them on these inputs, and rests. As [`TwoForms::compare`]; `None` if the version is gone.
    fn compare_run(
        &self,
        made: &OptimizedModel,
        called: (usize, &Signature),
        (inputs, tolerance): (&ComparedInputs, Tolerance),
        is_stopped: &AtomicBool,
    ) -> Option<Result<bool, String>> {
        let began = Instant::now();
        let forms = self.forms(made, is_stopped)?;
        let found = forms.compare(called, inputs, tolerance);
        drop(forms);
        rest(began);
        Some(found)
    }

    /// Compares them on larger and larger floats, up to which a form may run if it need not compute the same to the bit.
    fn compare_large(
        &self,
        made: &OptimizedModel,
        called: (usize, &Signature),
        tolerance: Tolerance,
        comparison: &mut FormComparison,
        is_stopped: &AtomicBool,
    ) -> Option<Result<(), String>> {
        let mut largest = LARGEST_IRREGULAR;
        for magnitude in samples::MAGNITUDES {
            for inputs in samples::large(called.1, magnitude) {
                match self.compare_run(made, called, (&inputs, tolerance), is_stopped)? {
                    Ok(_) => comparison.compared += 1,
                    Err(why) if tolerance == Tolerance::None => return Some(Err(why)),
                    Err(why) => {
                        log::debug!("{}, up to floats of {largest}: {why}", made.what);
                        let least = comparison.limit.unwrap_or(f32::INFINITY);
                        comparison.limit = Some(largest.min(least));
                        return Some(Ok(()));
                    }
                }
            }
            largest = magnitude;
        }
        Some(Ok(()))
    }

    /// The CPU time of the other form as shares of that of the present one. `None` if the version is gone.
    fn shares(&self, made: &OptimizedModel, is_stopped: &AtomicBool) -> Option<Vec<f64>> {
        let goes_on = || !is_stopped.load(Relaxed) && self.version.strong_count() > 0;
        let signatures = self.signatures()?;
        let mut shares = Vec::new();
        for (index, signature) in called(&signatures, made.only) {
            let forms = self.forms(made, is_stopped)?;
            for tried in samples::timed_inputs(signature, self.recorded_of(index)) {
                shares.extend(tried.iter().find_map(|it| forms.share(index, it, &goes_on)));
            }
        }
        goes_on().then_some(shares)
    }

    /// The inputs of recorded requests: beside the version, and of its request log. `None` if the version is gone.
    fn read_recorded(&self, is_stopped: &AtomicBool) -> Option<Vec<(usize, Vec<Tensor>)>> {
        let servable = self.servable()?;
        let sources = TrialSources {
            model: servable.model(),
            folders: &[servable.folder()],
            logs: &self.logs,
            most: MOST_RECORDED,
        };
        let requests = match self.files.recorded(&sources) {
            Ok(recorded) => recorded.requests,
            Err(error) => {
                log::debug!("{}: recorded requests cannot be read: {error}", servable.model());
                Vec::new()
            }
        };
        drop(servable);
        let mut inputs = Vec::new();
        for request in &requests {
            let (began, servable) = (Instant::now(), self.servable()?);
            inputs.extend(samples::recorded_inputs(&servable, request));
            drop(servable);
            // The version may be idle now, and leave memory if it is to.
            rest(began);
            self.wanted(is_stopped)?;
        }
        Some(inputs)
    }

    /// Its signatures as the model has them, by number.
    fn signatures(&self) -> Option<Vec<Signature>> {
        Some(self.version.upgrade()?.model_signatures().cloned().collect())
    }

    /// The version with its present queues; `None` if it no longer serves.
    fn servable(&self) -> Option<Arc<Servable>> {
        let version = self.version.upgrade()?;
        let table = self.table.load();
        let mut ready = table.models.get(version.model())?.ready.iter();
        ready.find(|servable| Arc::ptr_eq(&servable.loaded, &version)).cloned()
    }
}

/// The signatures that requests call and that can be compared, with their numbers: what initializes a model changes it.
fn called(
    signatures: &[Signature],
    only: Option<usize>,
) -> impl Iterator<Item = (usize, &Signature)> {
    let all = signatures.iter().enumerate().filter(|(_, signature)| signature.read_only);
    all.filter(move |(number, _)| only.is_none_or(|only| only == *number))
}

/// Under which settings a form of this kind is remembered; `None` if it is not: another engine may be of another version.
fn remembered_as(kind: FormKind, mode: OptimizeMode) -> Option<&'static str> {
    match (kind, mode) {
        (FormKind::Optimized, OptimizeMode::Exact) => Some("exact"),
        (FormKind::Optimized, OptimizeMode::Fast) => Some("fast"),
        (FormKind::Optimized, OptimizeMode::Off) | (FormKind::OtherEngine, _) => None,
    }
}

fn demands(kind: FormKind, version: &LoadedVersion) -> Demands {
    match kind {
        FormKind::Optimized => Demands {
            tolerance: if version.may_round() { Tolerance::Versions } else { Tolerance::None },
            worth: Worth::OPTIMIZED,
        },
        FormKind::OtherEngine => Demands {
            tolerance: Tolerance::Versions,
            worth: match version.forms.engine() {
                EngineChoice::OpenVino => Worth::ANY,
                EngineChoice::Auto | EngineChoice::TensorFlow => Worth::OTHER_ENGINE,
            },
        },
    }
}

/// Does some work that requests come before. Forms are made without this: runtimes start threads then, for all later runs.
fn at_low_priority<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let lowered = || {
        os::lower_priority();
        work()
    };
    thread::scope(|scope| scope.spawn(lowered).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// Rests for as long as the work since `began` took: requests come first.
fn rest(began: Instant) {
    thread::sleep(began.elapsed());
}
