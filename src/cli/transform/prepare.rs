//! From the options to a run: the plan is frozen, or an earlier one goes on.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::json;

use super::arguments::Arguments;
use super::inputs::{JobInputs, MOST_NAMED, named};
use super::model::{LocalModelFiles, ModelOptions, TransformModel};
use super::options::{self, JobOptions};
use super::show::{Shown, note};
use super::{metrics, print_json};
use crate::cli::logging::{self, LibraryLines};
use crate::config::environment::Environment;
use crate::config::{Config, Settings};
use tensorserve_platform::Platforms;
use tensorserve_store::objects::{Place, PlaceOptions, UnusableName};
use tensorserve_tensor::error::{Error, Result};
use tensorserve_transform::batch::{Batch, RecordRunner};
use tensorserve_transform::job::FrozenJob;
use tensorserve_transform::lease::Lease;
use tensorserve_transform::model::Model;
use tensorserve_transform::plan::{Entry, Plan, PlanOptions, PlannedObject};
use tensorserve_transform::progress::Progress;
use tensorserve_transform::report::{ReportFacts, counted};
use tensorserve_transform::run::{EntryFeed, Run, RunOutcome};
use tensorserve_transform::state::{Marker, ObjectOutcome, State};
use tensorserve_transform::sweep;
use tensorserve_transform::verify::{Verified, verify};

mod preview;
mod summary;

use self::summary::{nothing_to_do, summarize};

/// Objects that are tried for their first records.
const TRIED: usize = 16;

/// What a command has become.
pub(super) enum PreparedCommand {
    /// The command is answered.
    Finished,
    /// A job is to be run.
    Job(Box<PreparedJob>),
}

/// A job that can be run.
pub(super) struct PreparedJob {
    run: Run,
    feed: EntryFeed,
    model: Arc<TransformModel>,
    arguments: Arguments,
    output: Place,
    progress: Arc<Progress>,
    /// Files that are no objects and fail, where this process is the one to say so.
    unusable: Vec<UnusableName>,
    /// What is said in the report and in the summary.
    facts: Vec<(String, String)>,
    /// The objects of the plan that are this run's own.
    planned_objects: usize,
    /// Whether some of its entries, or all of them, were done before.
    has_done: bool,
    is_finished: bool,
    _lease: Option<Lease>,
}

/// Everything that is known before the plan.
struct Setting {
    arguments: Arguments,
    inputs: JobInputs,
    output: Place,
    state: State,
    options: JobOptions,
    files: LocalModelFiles,
    settings: Settings,
    environment: Environment,
    platforms: Platforms,
    places: PlaceOptions,
    model: Option<TransformModel>,
    /// For `--entries-from-stdin`, the job and the plan of the process that has made it. Others read them
    /// when they have the lease.
    planned: Option<(FrozenJob, Plan)>,
    /// No other run has worked on the plan, nor does one now.
    is_first: bool,
}

/// What a run is to do.
struct OwnEntries {
    /// The objects of the plan that are its own.
    planned: usize,
    /// Whether some of them were done before.
    done: bool,
    /// The entries that are not done.
    pending: Vec<usize>,
}

/// Does everything up to the run.
///
/// # Errors
/// Wrong options; no input; a model that cannot be loaded; a job in the output that differs from this one.
pub(super) fn prepare(
    arguments: Arguments,
    environment: &Environment,
    platforms: Platforms,
    stop: &Arc<AtomicBool>,
) -> Result<PreparedCommand> {
    let mut setting = Setting::new(arguments, environment, platforms)?;
    setting.check_content_type()?;
    if setting.arguments.dry_run {
        return setting.dry_run().map(|()| PreparedCommand::Finished);
    }
    let shard = options::shard(setting.arguments.shard.as_deref(), |name| {
        environment.get(name).map(str::to_owned)
    })?;
    let is_worker = setting.arguments.entries_from_stdin;
    if setting.arguments.explain && !is_worker && !setting.arguments.plan_only {
        return setting.explain_only(shard).map(|()| PreparedCommand::Finished);
    }
    let lease = match (is_worker || setting.arguments.plan_only, shard) {
        (true, _) => None,
        (false, Some((index, count))) => {
            Some(Lease::take(&setting.output, &format!("shard-{index}-of-{count}"))?)
        }
        (false, None) => Some(Lease::take(&setting.output, "run")?),
    };
    if setting.arguments.overwrite {
        setting.state.clear()?;
    }
    if shard.is_some_and(|(index, _)| index > 0) {
        setting.inputs.unusable.clear();
    }
    let plan = setting.plan()?;
    let own = own_entries(&plan, shard);
    let done = setting.done(&plan, &own)?;
    let pending: Vec<usize> = own.into_iter().filter(|entry| !done.contains(entry)).collect();
    if setting.arguments.explain {
        setting.explain(&plan, &done, pending.len());
    }
    if !is_worker {
        let entries: Vec<&Entry> =
            pending.iter().filter_map(|&number| plan.entries.get(number)).collect();
        setting.state.forget_failures(&entries)?;
    }
    if setting.arguments.plan_only {
        for UnusableName { shown, why, .. } in setting.inputs.unusable.iter().take(MOST_NAMED) {
            note(&format!("note: {shown} is not in the plan: {why}"));
        }
        print_plan(&plan, &done, &pending);
        return Ok(PreparedCommand::Finished);
    }
    if !is_worker {
        let _ = setting.output.clean_drafts();
        let has_parts = plan.ranges() > 0;
        if pending.is_empty() && setting.inputs.unusable.is_empty() && !has_parts {
            setting.nothing_to_do(&plan, shard);
            return Ok(PreparedCommand::Finished);
        }
    }
    let own =
        OwnEntries { planned: setting.own_objects(&plan, shard), done: !done.is_empty(), pending };
    setting.job(plan, own, lease, stop).map(|job| PreparedCommand::Job(Box::new(job)))
}

/// The entries of a plan that this process is to do.
fn own_entries(plan: &Plan, shard: Option<(usize, usize)>) -> Vec<usize> {
    match shard {
        Some((index, count)) => plan.shard(index, count),
        None => (0..plan.entries.len()).collect(),
    }
}

impl Setting {
    fn new(
        mut arguments: Arguments,
        environment: &Environment,
        platforms: Platforms,
    ) -> Result<Self> {
        let (mut notes, mut is_prefix) = (Vec::new(), false);
        if let Some(file) = arguments.job_file.clone() {
            (notes, is_prefix) = options::of_job_file(&mut arguments, &file)?;
        }
        let with = |all: Environment, (name, value): &(String, String)| all.with(name, value);
        let environment = &arguments.env.iter().fold(environment.clone(), with);
        let mut settings = Settings::default().or_environment(environment);
        if settings.server.log_level.is_none() && environment.get("RUST_LOG").is_none() {
            settings.server.log_level = Some("warn".to_owned());
        }
        logging::start(&settings, environment, LibraryLines::AsTheyAre);
        let config = Config::new(settings.clone(), environment)?;
        let mut places = PlaceOptions::new(config.stores.clone());
        if let Some(retries) = arguments.retries {
            places.attempts = retries.saturating_add(1);
        }
        let output = arguments.output.as_deref().ok_or_else(|| {
            Error::invalid("no output: name a directory or a prefix of a store with --output")
        })?;
        let output = Place::open(output, &places)?;
        let mut state = State::new(output.clone());
        let planned = match arguments.entries_from_stdin {
            true => state.load()?,
            false => None,
        };
        let mut inputs = match &planned {
            Some((job, plan)) => JobInputs::planned(job, plan, &places)?,
            None => JobInputs::find(&arguments, is_prefix, &places)?,
        };
        inputs.without_outputs(&output, &arguments, state.has_begun()?)?;
        let mut options = JobOptions::new(&arguments, &inputs)?;
        let files = LocalModelFiles::find(&arguments.model, &config)?;
        options.job.frozen.model.clone_from(&files.fingerprint);
        notes.append(&mut options.notes);
        notes.iter().for_each(|text| note(&format!("note: {text}")));
        let environment = environment.clone();
        Ok(Setting {
            arguments,
            inputs,
            output,
            state,
            options,
            files,
            settings,
            environment,
            platforms,
            places,
            model: None,
            planned,
            is_first: false,
        })
    }

    /// The model, which is loaded when it is first needed.
    fn model(&mut self) -> Result<TransformModel> {
        if let Some(model) = self.model.take() {
            return Ok(model);
        }
        let options = ModelOptions {
            platforms: &self.platforms,
            platform: self.arguments.platform.as_deref(),
            signature: self.arguments.signature.as_deref(),
            variables: &self.arguments.env,
            threads: self.options.job.concurrency,
            timeout: self.options.timeout,
            as_container: self.options.job.frozen.sdk_exact.is_some(),
        };
        let model =
            TransformModel::load(&self.files, &options, self.settings.clone(), &self.environment)?;
        model.check_header(self.options.job.header)?;
        let (content_type, accept) =
            (self.options.content_type.clone(), self.options.accept.clone());
        Ok(model.for_job(content_type, accept))
    }

    /// The plan of an earlier run, or a new one.
    fn plan(&mut self) -> Result<Plan> {
        let planned = match self.planned.take() {
            Some(planned) => Some(planned),
            None => self.state.load()?,
        };
        if let Some((frozen, plan)) = planned {
            self.adopt(&frozen)?;
            if !self.arguments.entries_from_stdin {
                self.inputs.check_planned(&plan)?;
            }
            return Ok(plan);
        }
        let plan = self.new_plan()?;
        let (frozen, plan, is_first) = self.state.freeze(&self.options.job.frozen, plan)?;
        self.is_first = is_first;
        self.adopt(&frozen)?;
        Ok(plan)
    }

    /// A plan for the inputs, which is not written down.
    fn new_plan(&mut self) -> Result<Plan> {
        if self.options.is_auto && self.options.job.frozen.sdk_exact.is_none() {
            self.sweep()?;
        }
        let job = &self.options.job;
        let options = PlanOptions {
            objects_per_batch: job.batches_objects().then_some(job.frozen.batch_rows),
            max_entry_bytes: u64::try_from(job.frozen.max_payload_bytes).unwrap_or(u64::MAX),
            range_bytes: self.options.range_bytes,
        };
        Ok(Plan::new(std::mem::take(&mut self.inputs.objects), options))
    }

    /// The entries that are done, of those that this process is to do. The processes of a scheduler that names
    /// their entries rely on what the one that has made the plan says.
    fn done(&self, plan: &Plan, own: &[usize]) -> Result<BTreeSet<usize>> {
        if self.arguments.entries_from_stdin {
            return Ok(self.state.marked()?.into_iter().collect());
        }
        let job = &self.options.job.frozen;
        let Verified { done, damages } = verify(&self.state, job, plan, &self.output, own)?;
        if !damages.is_empty() {
            note(&format!(
                "note: some of what was done before is missing, damaged or changed; it is done again:{}",
                named(&damages)
            ));
        }
        Ok(done)
    }

    /// Checks that this job is the one of the state, and takes over what was found by trying.
    fn adopt(&mut self, frozen: &FrozenJob) -> Result<()> {
        if self.options.is_auto {
            self.options.job.frozen.batch_rows = frozen.batch_rows;
        }
        if self.options.is_auto_range {
            self.options.job.frozen.range_bytes = frozen.range_bytes;
        }
        let changes = frozen.changes(&self.options.job.frozen);
        if changes.is_empty() {
            return Ok(());
        }
        Err(Error::precondition(format!(
            "{} has the state of another job. What differs:\n  {}\nUse the same options and model to go \
             on, another --output, or --overwrite to start again",
            self.output.display(),
            changes.join("\n  ")
        )))
    }

    /// Tries numbers of records in a batch, with the first records. Objects that cannot be read, divided or run are
    /// passed over: they fail when it is their turn, and are treated as the policy says.
    fn sweep(&mut self) -> Result<()> {
        let model = Arc::new(self.model()?);
        let job = JobOptions::new(&self.arguments, &self.inputs)?.job;
        let served: Arc<dyn Model> = Arc::clone(&model) as Arc<dyn Model>;
        let runner = RecordRunner::new(Arc::new(job), served);
        let given = self.options.job.frozen.batch_rows;
        let objects = self.inputs.objects.iter().filter(|object| object.size > 0).take(TRIED);
        let objects: Vec<PlannedObject> = objects.map(PlannedObject::of).collect();
        let trials = objects.iter().find_map(|object| {
            let batches = self.batches_to_try(model.as_ref(), object);
            sweep::try_sizes(&runner, &batches).ok().filter(|trials| !trials.is_empty())
        });
        drop(runner);
        self.model = Arc::into_inner(model);
        self.options.job.frozen.batch_rows = given;
        let Some(trials) = trials else {
            return Ok(());
        };
        let rows = sweep::best(&trials).unwrap_or(1).max(1);
        // A last, smaller batch says how fast it is, not how many records there are.
        let rows = sweep::SIZES.into_iter().find(|size| *size >= rows).unwrap_or(rows);
        self.options.job.frozen.batch_rows = rows;
        if self.options.is_auto_range
            && let Some(bytes) = sweep::range_bytes(&trials, rows)
        {
            self.options.range_bytes = Some(bytes);
            self.options.job.frozen.range_bytes = bytes;
        }
        if self.arguments.explain {
            note(&format!(
                "batches of {}: the smallest that is not much slower than the fastest{}",
                counted(rows, "record"),
                sweep::explained(&trials)
            ));
        }
        Ok(())
    }

    /// The first records of an object, in batches of several sizes; none if it cannot be read.
    fn batches_to_try(&mut self, model: &dyn Model, object: &PlannedObject) -> Vec<Batch> {
        let mut batches = Vec::new();
        for size in sweep::SIZES {
            self.options.job.frozen.batch_rows = size;
            let batch = self.options.job.first_batch(model, &self.inputs.place, object);
            let Ok(Some(batch)) = batch else {
                break;
            };
            let is_whole = batch.len() == size;
            batches.push(batch);
            if !is_whole {
                break;
            }
        }
        batches
    }

    fn job(
        mut self,
        plan: Plan,
        own: OwnEntries,
        lease: Option<Lease>,
        stop: &Arc<AtomicBool>,
    ) -> Result<PreparedJob> {
        let OwnEntries { planned: planned_objects, done: has_done, pending } = own;
        let is_finished = pending.is_empty();
        let model = Arc::new(self.model()?);
        let entries = || pending.iter().filter_map(|&number| plan.entries.get(number));
        let objects: usize = entries().map(Entry::beginning_objects).sum();
        let total = entries().map(Entry::bytes).sum();
        let progress = Arc::new(Progress::new(u64::try_from(objects).unwrap_or(0), total));
        if let (Some(address), Some(engine)) = (&self.arguments.metrics_addr, model.engine()) {
            metrics::serve(address, engine.clone(), Arc::clone(&progress))?;
        }
        let feed = match self.arguments.entries_from_stdin {
            true => EntryFeed::Channel(numbers_of_stdin()?),
            false => EntryFeed::List(pending),
        };
        let dead_letters = self.options.dead_letters.as_deref();
        let dead_letters =
            dead_letters.map(|place| Place::open(place, &self.places)).transpose()?;
        let facts = self.facts();
        let served: Arc<dyn Model> = Arc::clone(&model) as Arc<dyn Model>;
        let run = Run {
            job: Arc::new(self.options.job),
            plan,
            input: self.inputs.place,
            output: self.output.clone(),
            state: self.state,
            dead_letters,
            model: served,
            is_first: self.is_first,
            progress: Arc::clone(&progress),
            stop: Arc::clone(stop),
        };
        let (arguments, output) = (self.arguments, self.output);
        let unusable = self.inputs.unusable;
        let job = PreparedJob {
            run,
            feed,
            model,
            arguments,
            output,
            progress,
            unusable,
            facts,
            planned_objects,
            has_done,
            is_finished,
            _lease: lease,
        };
        Ok(job)
    }

    fn facts(&self) -> Vec<(String, String)> {
        let job = &self.options.job;
        let fact = |name: &str, value: String| (name.to_owned(), value);
        vec![
            fact("model", self.arguments.model.display().to_string()),
            fact("input", self.inputs.named.clone()),
            fact("output", self.output.display()),
            fact("content type", job.frozen.content_type.clone()),
            fact("split", job.input.to_string()),
            fact("records in a batch", job.frozen.batch_rows.to_string()),
            fact("batches at the same time", job.concurrency.to_string()),
            fact("version", env!("CARGO_PKG_VERSION").to_owned()),
        ]
    }
}

impl PreparedJob {
    /// Runs it, and says how it went.
    ///
    /// # Errors
    /// If it could not go on, or there was nothing of the kind that it takes.
    pub(super) fn run(self) -> Result<RunOutcome> {
        let is_worker = self.arguments.entries_from_stdin;
        let threads = self.run.job.concurrency;
        let shown = Shown::start(self.arguments.progress, Arc::clone(&self.progress))?;
        let each = move |marker: &Marker| {
            if is_worker {
                print_json(marker);
            }
        };
        let mut failed = Vec::new();
        for UnusableName { shown, why, .. } in self.unusable.iter().filter(|_| !is_worker) {
            self.progress.fails(shown, why);
            let error = Some((*why).to_owned());
            failed.push(ObjectOutcome { key: shown.clone(), error, ..ObjectOutcome::default() });
        }
        let mut outcome = self.run.run(self.feed, &each);
        if let Ok(outcome) = &mut outcome {
            outcome.failed.append(&mut failed);
        }
        drop(shown);
        let (ended, busy) = match &outcome {
            Ok(outcome) if outcome.is_interrupted => ("interrupted".to_owned(), outcome.busy),
            Ok(outcome) if outcome.failed.is_empty() => ("done".to_owned(), outcome.busy),
            Ok(outcome) => {
                (format!("{} failed", counted(outcome.failed.len(), "object")), outcome.busy)
            }
            Err(error) => (format!("ended: {error}"), 0),
        };
        let facts = ReportFacts { facts: self.facts, ended: ended.clone(), busy, threads };
        let now = self.progress.snapshot();
        if ended == "done" && self.is_finished && !is_worker {
            nothing_to_do(self.planned_objects, &self.output);
        } else if !is_worker {
            summarize(&self.progress, &ended, &self.output, &facts);
        }
        drop(self.model);
        let has_taken = now.objects + now.failed_objects > 0 || self.has_done;
        if outcome.is_ok() && !is_worker && !has_taken && now.skipped_objects > 0 {
            return Err(Error::not_found(format!(
                "{}: no object is an image",
                self.arguments.input.join(", ")
            )));
        }
        outcome
    }
}

/// What a scheduler has to know of a plan. Each entry that is not done, the largest first, is its number,
/// its bytes, and the objects that begin in it.
fn print_plan(plan: &Plan, done: &BTreeSet<usize>, pending: &[usize]) {
    let mut entries: Vec<&Entry> =
        pending.iter().filter_map(|&number| plan.entries.get(number)).collect();
    entries.sort_by_key(|entry| (Reverse(entry.bytes()), entry.entry));
    let pending: Vec<(usize, u64, usize)> = entries
        .into_iter()
        .map(|entry| (entry.entry, entry.bytes(), entry.beginning_objects()))
        .collect();
    print_json(&json!({
        "entries": plan.entries.len(),
        "objects": plan.objects(),
        "bytes": plan.bytes(),
        "ranges": plan.ranges(),
        "done": done,
        "pending": pending,
    }));
}

/// The numbers on stdin, one on a line.
fn numbers_of_stdin() -> Result<crossbeam::channel::Receiver<usize>> {
    // Without a buffer: a number is taken when an entry thread is free, and not before.
    let (sender, numbers) = crossbeam::channel::bounded(0);
    let read = move || {
        for line in std::io::stdin().lines().map_while(std::result::Result::ok) {
            match line.trim().parse::<usize>() {
                Ok(number) => {
                    if sender.send(number).is_err() {
                        return;
                    }
                }
                Err(_) if line.trim().is_empty() => {}
                Err(_) => note(&format!("note: {line:?} on stdin is not the number of an entry")),
            }
        }
    };
    let started = std::thread::Builder::new().name("entries".to_owned()).spawn(read);
    let failed = |e| Error::internal("a thread could not be started").with_source(e);
    started.map(|_| numbers).map_err(failed)
}
