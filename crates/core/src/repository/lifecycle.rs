//! The lifecycle manager: the one thread that decides which versions are loaded.
//!
//! The manager collects [`ManagerEvent`]s: requests from other threads ([`control`]) and reports of loads
//! and unloads, which run on threads of their own ([`work`]), so that a slow load never delays
//! another model. Each changes the [`ModelEntry`] of one model. Every so often it scans the sources
//! ([`scan`]), which can change all entries. Then it carries out, model by model, the next
//! [`Action`]s, which a pure function of the entry finds ([`plan`]), and shows readers the result.

use std::convert::Infallible;
use std::slice;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, bounded, unbounded};

use self::change::return_result;
use self::control::{Completion, ManagerEvent};
use self::disk::Disk;
use self::entry::ModelEntry;
use self::memory::FreedMemory;
use self::plan::{Action, PlanLimits};
use self::requested::load_result;
use self::schedule::LoggedOnce;
use self::sources::{ModelEntries, Sources};
use self::tried::LoadedStep;
use self::waiters::ReadyWaiter;
use self::work::LoadThreads;
use super::servable::Servable;
use super::version::Version;
use super::{RepositoryShared, VersionState, policy};
use crate::config::SourceConfig;
use tensorserve_platform::EndedProcess;
use tensorserve_tensor::error::{Error, Result};

mod batching;
mod change;
mod control;
mod disk;
mod entry;
mod former;
mod found;
mod memory;
mod overrides;
mod plan;
mod reconcile;
mod release;
mod reload;
mod requested;
mod scan;
mod schedule;
mod sources;
mod tried;
mod waiters;
mod work;

pub(super) use self::control::Control;

/// How often the manager checks whether requests still hold a draining version.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// How often the manager checks whether the server stops.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// Removed models whose thread counts are remembered.
const MOST_REMEMBERED: usize = 2000;

/// A version in one incarnation of its model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct VersionKey {
    model: Arc<str>,
    incarnation: u64,
    version: i64,
}

/// The state of the lifecycle manager's thread.
struct LifecycleManager {
    shared: Arc<RepositoryShared>,
    /// Everything about each model is in its entry.
    models: ModelEntries,
    sources: Sources,
    disk: Disk,
    threads: LoadThreads,
    events: Receiver<ManagerEvent>,
    /// Outcomes of requests, to be sent once the board shows them.
    outcomes: Vec<(Completion, Result<()>)>,
    /// Nothing has changed since the board was written.
    is_shown: bool,
    /// When live requests of new versions were last looked at.
    watched_at: Instant,
    freed: FreedMemory,
    logged: LoggedOnce,
}

/// Keeps a repository from looking for models and loading them until it is dropped.
#[must_use]
pub struct HeldLoads {
    _sender: Sender<Infallible>,
}

/// Starts the thread.
pub(super) fn start(
    shared: Arc<RepositoryShared>,
    sources: Vec<SourceConfig>,
) -> Result<(Control, HeldLoads)> {
    let (sender, events) = unbounded();
    let (hold, held) = bounded::<Infallible>(0);
    let sources = Sources::new(sources, shared.config.poll_interval);
    let threads = LoadThreads::new(Arc::clone(&shared), sender.clone());
    let stores = Arc::clone(&shared.stores);
    let mut manager = LifecycleManager {
        shared,
        models: ModelEntries::new(),
        sources,
        disk: Disk::new(sender.clone()),
        threads,
        events,
        outcomes: Vec::new(),
        is_shown: false,
        watched_at: Instant::now(),
        freed: FreedMemory::new(),
        logged: LoggedOnce::default(),
    };
    let thread = thread::Builder::new().name("repository".to_owned());
    let run = move || {
        // Nothing arrives: it ends when the sender is dropped.
        let _ = held.recv();
        manager.run();
    };
    thread.spawn(run).map_err(|e| {
        Error::internal("the repository thread could not be started").with_source(e)
    })?;
    let reports = sender.clone();
    stores.on_change(Box::new(move || drop(reports.send(ManagerEvent::DiskResponds))));
    Ok((Control::new(sender), HeldLoads { _sender: hold }))
}

impl LifecycleManager {
    fn run(&mut self) {
        while !self.shared.board().stopped {
            self.collect_events();
            self.check_watches();
            self.advance();
            if self.sources.schedule.is_due() {
                if self.sources.schedule.includes_sources() {
                    self.scan_sources();
                }
                self.check_files();
                self.sources.schedule.done();
                self.advance();
            }
        }
    }

    /// Waits for events, and lets them change the entries.
    fn collect_events(&mut self) {
        let Ok(event) = self.events.recv_timeout(self.time_to_wait()) else {
            return;
        };
        self.handle(event);
        while let Ok(event) = self.events.try_recv() {
            self.handle(event);
        }
    }

    /// How long there is nothing to do if nothing happens.
    fn time_to_wait(&self) -> Duration {
        let mut wait = STOP_INTERVAL;
        if self.models.values().any(ModelEntry::is_draining) {
            wait = DRAIN_INTERVAL;
        }
        let deadlines = self.models.values().filter_map(|entry| entry.waiters.next_deadline());
        let next = deadlines.chain([self.sources.schedule.next()]).min();
        next.map_or(wait, |next| wait.min(next.saturating_duration_since(Instant::now())))
    }

    fn handle(&mut self, event: ManagerEvent) {
        self.is_shown = false;
        match event {
            ManagerEvent::Warming(key) => {
                if let Some(version) = self.version(&key) {
                    version.set_state(VersionState::Warming);
                }
            }
            ManagerEvent::Loaded(key, outcome, time) => self.load_ended(&key, outcome, time),
            ManagerEvent::Judged(key, report) => self.judged(&key, *report),
            ManagerEvent::Unloaded(key) => self.unload_ended(&key),
            ManagerEvent::DiskResponds => self.sources.schedule.scan_sources_now(),
            ManagerEvent::SetSources(sources, completion) => self.set_sources(sources, completion),
            ManagerEvent::LoadModel(source, deadline, by, completion) => {
                self.load_model(source, by, (deadline, completion));
            }
            ManagerEvent::Requested(found, deadline, by, completion) => {
                self.add_requested(found, &by, ReadyWaiter { deadline, completion });
            }
            ManagerEvent::UnloadModel(name, by, completion) => {
                self.unload_model(&name, &by, completion);
            }
            ManagerEvent::ChangeModel(name, change, by, completion) => {
                self.change_model(&name, change, &by, completion);
            }
        }
    }

    /// Carries out every action that is due, and shows the result.
    fn advance(&mut self) {
        self.models.values().for_each(ModelEntry::cancel_useless_trials);
        let awake = self.models.iter().filter(|(_, entry)| !entry.is_dormant());
        let names: Vec<Arc<str>> = awake.map(|(name, _)| Arc::clone(name)).collect();
        self.carry_out_actions(&names);
        if !self.is_shown {
            self.complete_reload();
            self.update_board();
            self.outcomes.drain(..).for_each(|(completion, outcome)| completion.finish(outcome));
            self.forget_removed();
            self.is_shown = true;
        }
        self.freed.release_if_due();
    }

    /// Carries out every action on these models that is due.
    fn carry_out_actions(&mut self, names: &[Arc<str>]) {
        let mut limits = self.limits();
        for name in names {
            while let Some(entry) = self.models.get(name)
                && let Some(action) = plan::next_action(&entry.snapshot(), &limits)
            {
                self.carry_out(name, action);
                self.is_shown = false;
                limits = self.limits();
            }
        }
    }

    fn limits(&mut self) -> PlanLimits {
        PlanLimits {
            now: Instant::now(),
            has_free_thread: self.threads.has_free(),
            memory: self.memory_budget(),
        }
    }

    fn carry_out(&mut self, name: &Arc<str>, action: Action) {
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        match action {
            Action::Publish => {
                let servables = entry.publish();
                self.shared.publish(name, servables, entry.live_comparison(), &entry.config);
            }
            Action::Load(number) => {
                entry.begin_load(number).into_iter().for_each(|job| self.threads.load(job));
            }
            Action::Refuse(number, no_room) => {
                let (key, error) = (entry.key(number), memory::no_room(name, number, no_room));
                self.load_failed(&key, error);
            }
            Action::Drain(number) => {
                entry.drain(number);
                log::info!("{name} version {number}: no longer served");
            }
            Action::DrainPredecessors => entry.drain_predecessors(),
            Action::Unload(number) => {
                entry.take_drained(number).into_iter().for_each(|it| self.threads.unload(it));
            }
            Action::UnloadFormer(index) => {
                entry.take_former(index).into_iter().for_each(|it| self.threads.unload(it));
            }
            Action::Discard(number) => entry.discard(number),
            Action::CompleteLoad(outcome) => {
                let result = load_result(name, entry, outcome);
                if result.is_err() {
                    // Nothing of it stays.
                    entry.remove();
                }
                let waiting = entry.waiters.take_load();
                self.outcomes.extend(waiting.map(|completion| (completion, result)));
            }
            Action::CompleteReturn(outcome) => {
                let result = return_result(name, entry, outcome);
                let waiting = entry.waiters.take_return();
                self.outcomes.extend(waiting.map(|completion| (completion, result)));
            }
            Action::CompleteUnloads => {
                let waiting = entry.waiters.take_done_unloads();
                // A request that unloads a model relies on its memory being free.
                self.freed.release();
                self.outcomes.extend(waiting.into_iter().map(|completion| (completion, Ok(()))));
            }
        }
    }

    /// A load has ended, after this time.
    fn load_ended(&mut self, key: &VersionKey, outcome: Result<Arc<Servable>>, time: Duration) {
        self.threads.ended(key);
        let (name, number) = (&key.model, key.version);
        let servable = match outcome {
            Ok(servable) => servable,
            Err(error) => {
                self.memory_released(key);
                return self.load_failed(key, error);
            }
        };
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        let may_be_tried = self.shared.board().started;
        match entry.version_loaded(key, servable, may_be_tried) {
            LoadedStep::Former => {}
            LoadedStep::Serves => {
                self.serve(name);
                log::info!("{name} version {number}: ready after {} ms", time.as_millis());
            }
            LoadedStep::OnTrial(job) => self.threads.try_version(*job),
        }
    }

    /// Lets requests get what a model serves now, before another event is handled.
    fn serve(&mut self, name: &Arc<str>) {
        // Batching parameters may have changed while a version was loaded.
        self.apply_batching(name);
        self.carry_out_actions(slice::from_ref(name));
    }

    /// A version could not be loaded, or there is no room for it.
    fn load_failed(&mut self, key: &VersionKey, error: Error) {
        let (name, number) = (&key.model, key.version);
        self.shared.metrics.load_failed(name);
        let serves = self.models.get(name).is_some_and(ModelEntry::serves);
        let consequence =
            if serves { "; the version that is being served stays loaded" } else { "" };
        log::error!("{name} version {number}: could not be loaded{consequence}: {error}");
        if let Some(cause) = std::error::Error::source(&error) {
            log::debug!("{name} version {number}: {cause}");
        }
        let first = self.shared.config.load_retry_interval;
        if let Some(version) = self.version(key) {
            let is_final =
                std::error::Error::source(&error).is_some_and(|e| e.is::<EndedProcess>());
            version.attempts = if is_final { u32::MAX } else { version.attempts + 1 };
            version.retry_at = Instant::now() + policy::retry_delay(version.attempts, first);
            version.set_state(VersionState::Failed(error));
        }
    }

    /// The memory of a version is released.
    fn unload_ended(&mut self, key: &VersionKey) {
        self.threads.ended(key);
        self.memory_released(key);
        if let Some(version) = self.version(key) {
            version.set_state(VersionState::Unloaded);
            if version.aspired {
                // It became aspired again while it drained.
                self.sources.schedule.scan_sources_now();
            }
        }
        log::info!("{} version {}: unloaded", key.model, key.version);
    }

    /// The entry of a model; a new one if there is none.
    fn entry(&mut self, name: &Arc<str>) -> &mut ModelEntry {
        let new = || ModelEntry::new(Arc::clone(name));
        self.models.entry(Arc::clone(name)).or_insert_with(new)
    }

    /// The version, unless its model has begun another incarnation.
    fn version(&mut self, key: &VersionKey) -> Option<&mut Version> {
        self.models.get_mut(&key.model)?.version_mut(key)
    }

    /// The versions of models that the sources have.
    fn configured_versions(&self) -> impl Iterator<Item = &Version> {
        let models = self.models.values().filter(|entry| entry.is_configured());
        models.flat_map(|model| model.versions.values())
    }

    /// Shows readers the state of everything.
    fn update_board(&mut self) {
        let is_settled = self.configured_versions().all(Version::is_settled);
        let mut statuses = Vec::new();
        for (name, entry) in &mut self.models {
            for event in entry.take_events() {
                self.shared.journal.record(name, event);
            }
            entry.forget_unloaded();
            statuses.extend(entry.status().map(|status| (Arc::clone(name), status)));
        }
        let mut board = self.shared.board();
        // Names are sorted already.
        board.models = statuses.into_iter().collect();
        board.problems.clone_from(self.sources.problems());
        let is_loaded = is_settled && self.threads.are_idle();
        let is_started = is_loaded && self.sources.have_been_scanned();
        if is_started && !board.started {
            board.started = true;
            self.shared.board_changed.notify_all();
        }
    }

    /// Drops the entries of models of which nothing is left.
    fn forget_removed(&mut self) {
        let remembered = self.models.values().filter(|entry| entry.is_dormant()).count();
        let has_room = remembered <= MOST_REMEMBERED;
        self.models.retain(|_, entry| !entry.is_dormant() || entry.is_remembered(has_room));
    }
}
