//! The lifecycle manager: the one thread that decides which versions are loaded.
//!
//! It collects [`ManagerEvent`]s: requests from other threads ([`control`]) and reports of loads
//! and unloads, which run on threads of their own ([`work`]), so that a slow load never delays
//! another model. Each changes the [`ModelEntry`] of one model. Every so often it scans the sources
//! ([`scan`]), which can change all entries. Then it carries out, model by model, the next
//! [`Action`]s, which a pure function of the entry finds ([`plan`]), and shows readers the result.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};

use self::control::{Completion, ManagerEvent};
use self::entry::ModelEntry;
use self::memory::FreedMemory;
use self::plan::{Action, Limits};
use self::reload::Reload;
use self::schedule::{LoggedOnce, ScanSchedule};
use super::version::Version;
use super::{Shared, State, policy};
use crate::config::SourceConfig;
use tensorserve_tensor::error::{Error, Result};

mod batching;
mod change;
mod control;
mod entry;
mod memory;
mod overrides;
mod plan;
mod reconcile;
mod reload;
mod requested;
mod scan;
mod schedule;
mod work;

pub(super) use self::control::Control;

/// How often the manager checks whether requests still hold a draining version.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// How often the manager checks whether the server stops.
const STOP_INTERVAL: Duration = Duration::from_millis(100);

/// Models that are not there any more, and of which it is remembered what suited them.
const MOST_REMEMBERED: usize = 10_000;

/// A version in one incarnation of its model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct VersionKey {
    model: Arc<str>,
    incarnation: u64,
    version: i64,
}

struct LifecycleManager {
    shared: Arc<Shared>,
    models: BTreeMap<Arc<str>, ModelEntry>,
    sources: Vec<SourceConfig>,
    /// Sources that cannot be used, by path, and why.
    problems: BTreeMap<String, String>,
    schedule: ScanSchedule,
    has_scanned: bool,
    /// The request that has changed the sources.
    reload: Option<Reload>,
    events: Receiver<ManagerEvent>,
    /// For loads and unloads, to report to this thread.
    reports: Sender<ManagerEvent>,
    /// Loads and unloads under way.
    working: usize,
    /// Nothing has changed since the board was written.
    is_shown: bool,
    /// Outcomes of requests, to be sent once the board shows them.
    outcomes: Vec<(Completion, Result<()>)>,
    freed: FreedMemory,
    logged: LoggedOnce,
}

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>, sources: Vec<SourceConfig>) -> Result<Control> {
    let (reports, events) = unbounded();
    let control = Control::new(reports.clone());
    let schedule = ScanSchedule::new(shared.config.poll_interval);
    let mut manager = LifecycleManager {
        shared,
        models: BTreeMap::new(),
        sources,
        problems: BTreeMap::new(),
        schedule,
        has_scanned: false,
        reload: None,
        events,
        reports,
        working: 0,
        is_shown: false,
        outcomes: Vec::new(),
        freed: FreedMemory::new(),
        logged: LoggedOnce::default(),
    };
    let thread = thread::Builder::new().name("repository".to_owned());
    thread.spawn(move || manager.run()).map_err(|e| {
        Error::internal("the repository thread could not be started").with_source(e)
    })?;
    Ok(control)
}

impl LifecycleManager {
    fn run(&mut self) {
        while !self.shared.board().stopped {
            self.collect_events();
            self.advance();
            if self.schedule.is_due() {
                if self.schedule.includes_sources() {
                    self.scan_sources();
                }
                self.check_files();
                self.schedule.done();
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
        let deadlines = self.models.values().filter_map(ModelEntry::next_deadline);
        let next = deadlines.chain([self.schedule.next()]).min();
        next.map_or(wait, |next| wait.min(next.saturating_duration_since(Instant::now())))
    }

    fn handle(&mut self, event: ManagerEvent) {
        self.is_shown = false;
        match event {
            ManagerEvent::Warming(key) => {
                if let Some(version) = self.version(&key) {
                    version.set_state(State::Warming);
                }
            }
            ManagerEvent::Loaded(key, outcome, time) => self.load_ended(&key, outcome, time),
            ManagerEvent::Unloaded(key) => self.unload_ended(&key),
            ManagerEvent::SetSources(sources, completion) => self.set_sources(sources, completion),
            ManagerEvent::LoadModel(source, deadline, by, completion) => {
                self.load_model(&source, deadline, &by, completion);
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
        let names: Vec<Arc<str>> = self.models.keys().cloned().collect();
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

    fn limits(&self) -> Limits {
        Limits {
            now: Instant::now(),
            has_free_thread: self.working < self.shared.config.load_threads,
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
                self.shared.publish(name, servables, &entry.config);
            }
            Action::Load(number) => self.start_load(name, number),
            Action::Refuse(number, no_room) => {
                let (key, error) = (entry.key(number), memory::no_room(name, number, no_room));
                entry.load_attempted(number);
                self.load_failed(&key, error);
            }
            Action::Drain(number) => {
                entry.drain(number);
                log::info!("{name} version {number}: no longer served");
            }
            Action::DrainPredecessors => entry.drain_predecessors(),
            Action::Unload(number) => {
                let drained = entry.take_drained(number);
                self.start_unload(drained);
            }
            Action::UnloadFormer(index) => {
                let drained = entry.take_former(index);
                self.start_unload(drained);
            }
            Action::Discard(number) => entry.discard(number),
            Action::CompleteLoad(outcome) => self.complete_load(name, outcome),
            Action::CompleteReturn(outcome) => self.complete_return(name, outcome),
            Action::CompleteUnloads => {
                let done = entry.take_done_unloads();
                // Whoever unloads a model relies on its memory being free.
                self.freed.release();
                self.outcomes.extend(done.into_iter().map(|completion| (completion, Ok(()))));
            }
        }
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
        board.problems.clone_from(&self.problems);
        let is_started = is_settled && self.working == 0 && self.has_scanned;
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
