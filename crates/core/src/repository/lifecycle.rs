//! The one thread that changes which versions are loaded.
//!
//! It wakes up to look at the sources ([`scan`]), when they are changed ([`reload`]), when a model
//! is asked for by itself ([`requested`]), when a load ends, and while versions drain. Loads and
//! unloads run on threads of their own ([`work`]) and report back as [`ManagerEvent`]s, so a slow load
//! never holds up a swap of another model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};

use self::changes::{Changed, Returning};
use self::control::{Completion, ManagerEvent};
use self::requested::{Leaving, Origin};
use super::policy::{self, Action, Snapshot};
use super::servable::Servable;
use super::source::DiscoveredModel;
use super::version::{LONGEST_RETRY, Version, become_state};
use super::{Shared, State, VersionStatus};
use crate::config::{ModelConfig, SourceConfig};
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

mod batching;
mod changes;
mod control;
mod memory;
mod reload;
mod requested;
mod scan;
mod work;

pub(super) use self::control::Control;

/// How often a draining version is looked at.
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// How many versions that are gone stay on the board.
const HISTORY: usize = 16;

/// Of so many models it is remembered what suited them.
const MOST_KNOWN: usize = 10_000;

/// Freed memory is given back to the system at most this often: it stops the allocator.
const TRIM_EVERY: Duration = Duration::from_millis(500);

/// How often files are looked at when the sources are not.
const FILES_POLL: Duration = Duration::from_secs(1);

/// A version in one life of its model.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct VersionKey {
    model: Arc<str>,
    version: i64,
    life: u64,
}

struct Model {
    origin: Origin,
    /// The path of its source.
    source: PathBuf,
    /// Another one after it came from another source.
    life: u64,
    config: ModelConfig,
    versions: BTreeMap<i64, Version>,
}

impl Model {
    fn new(found: &DiscoveredModel, life: u64) -> Self {
        let (source, config) = (found.source.clone(), found.config.clone());
        let (origin, versions) = (Origin::Sources, BTreeMap::new());
        Model { origin, source, life, config, versions }
    }

    fn is_of_sources(&self) -> bool {
        matches!(self.origin, Origin::Sources)
    }

    /// Whether anything of it is in memory, or should be.
    fn is_alive(&self) -> bool {
        self.versions.values().any(|v| v.aspired || !matches!(v.state, State::Gone))
    }
}

struct LifecycleManager {
    shared: Arc<Shared>,
    sources: Vec<SourceConfig>,
    /// Whether the sources are to be looked at when it is time to look.
    looks: bool,
    next_look: Instant,
    models: BTreeMap<Arc<str>, Model>,
    /// Lives of models so far.
    lives: u64,
    /// What serves for models that have come to another source and are not ready from there.
    predecessors: BTreeMap<Arc<str>, Vec<(VersionKey, Arc<Servable>)>>,
    /// What is no longer served, but still held by requests.
    parting: Vec<(VersionKey, Arc<Servable>)>,
    /// Who waits for a change of the sources.
    reload: Option<Completion>,
    /// Who waits for models to be out of memory.
    leaving: Vec<Leaving>,
    /// Who waits for models to be back in service.
    returning: Vec<Returning>,
    /// Models of sources that are out of service.
    offline: BTreeSet<Arc<str>>,
    /// What was changed of models of sources.
    changed: BTreeMap<Arc<str>, Changed>,
    events: Receiver<ManagerEvent>,
    report: Sender<ManagerEvent>,
    /// Loads and unloads under way.
    working: usize,
    /// What every version in memory takes there, in bytes, by estimate.
    memory: BTreeMap<VersionKey, u64>,
    /// Threads within an operation that suited a model from a source, whether or not it is there.
    threads: BTreeMap<(Arc<str>, PathBuf), usize>,
    /// Lines that were logged, not to be repeated at every look.
    noted: BTreeSet<String>,
    has_looked: bool,
    freed: bool,
    trimmed_at: Instant,
}

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>, sources: Vec<SourceConfig>) -> Result<Control> {
    let (report, events) = unbounded();
    let control = Control::new(report.clone());
    let mut manager = LifecycleManager {
        shared,
        sources,
        looks: true,
        next_look: Instant::now(),
        models: BTreeMap::new(),
        lives: 0,
        predecessors: BTreeMap::new(),
        parting: Vec::new(),
        reload: None,
        leaving: Vec::new(),
        returning: Vec::new(),
        offline: BTreeSet::new(),
        changed: BTreeMap::new(),
        events,
        report,
        working: 0,
        memory: BTreeMap::new(),
        threads: BTreeMap::new(),
        noted: BTreeSet::new(),
        has_looked: false,
        freed: false,
        trimmed_at: Instant::now(),
    };
    let thread = thread::Builder::new().name("repository".to_owned());
    thread.spawn(move || manager.run()).map_err(|e| {
        Error::internal("the repository thread could not be started").with_source(e)
    })?;
    Ok(control)
}

impl LifecycleManager {
    fn run(&mut self) {
        let poll_interval = self.shared.config.poll_interval;
        while !self.shared.board().stopped {
            if Instant::now() >= self.next_look {
                if self.looks {
                    self.scan_sources();
                }
                self.check_files();
                self.looks = poll_interval.is_some();
                self.next_look = Instant::now() + poll_interval.unwrap_or(FILES_POLL);
            }
            self.finish_drains();
            self.finish_partings();
            self.act();
            self.answer_loads();
            self.answer_returns();
            self.tell();
            self.answer_reload();
            self.trim();
            if let Ok(event) = self.events.recv_timeout(self.time_to_wait()) {
                self.handle(event);
                while let Ok(event) = self.events.try_recv() {
                    self.handle(event);
                }
            }
        }
    }

    /// How long nothing is to be done if nothing happens.
    fn time_to_wait(&self) -> Duration {
        // Short enough to notice that the server stops.
        let mut wait = Duration::from_millis(100);
        let draining = self.models.values().flat_map(|model| model.versions.values());
        let draining = draining.into_iter().any(|v| matches!(v.state, State::Draining));
        if draining || !self.parting.is_empty() {
            wait = DRAIN_POLL;
        }
        let next = self.next_deadline().map_or(self.next_look, |at| at.min(self.next_look));
        wait.min(next.saturating_duration_since(Instant::now()))
    }

    /// The versions of models that the sources have.
    fn versions(&self) -> impl Iterator<Item = &Version> {
        let models = self.models.values().filter(|model| model.is_of_sources());
        models.flat_map(|model| model.versions.values())
    }

    /// Logs a line, once.
    fn note(&mut self, line: String) {
        if self.noted.len() > 1000 {
            self.noted.clear();
        }
        if !self.noted.contains(&line) {
            log::warn!("{line}");
            self.noted.insert(line);
        }
    }

    /// Takes every step that is due.
    fn act(&mut self) {
        let names: Vec<Arc<str>> = self.models.keys().cloned().collect();
        for name in names {
            while let Some(action) = self.next_action(&name) {
                match action {
                    Action::Load(_) if self.working >= self.shared.config.load_threads => break,
                    Action::Load(_) if !self.makes_way(&name) => break,
                    Action::Load(number) => {
                        if !self.start_load(&name, number) {
                            break;
                        }
                    }
                    Action::Unload(number) => self.start_drain(&name, number),
                }
            }
            self.forget_unwanted(&name);
        }
    }

    fn next_action(&self, name: &Arc<str>) -> Option<Action> {
        let model = self.models.get(name)?;
        let snapshots = model.versions.iter().map(|(&number, version)| Snapshot {
            version: number,
            aspired: version.aspired,
            phase: version.phase(),
        });
        policy::next_action(&snapshots.collect::<Vec<_>>(), model.config.transition)
    }

    /// Versions that never served and are no longer wanted are gone.
    fn forget_unwanted(&mut self, name: &Arc<str>) {
        let Some(model) = self.models.get_mut(name) else {
            return;
        };
        for version in model.versions.values_mut().filter(|v| !v.aspired) {
            if matches!(version.state, State::Found(_) | State::Failed(_)) {
                become_state(version, State::Gone);
            }
        }
    }

    fn handle(&mut self, event: ManagerEvent) {
        match event {
            ManagerEvent::Warming(key) => {
                if let Some(version) = self.version(&key) {
                    become_state(version, State::Warming);
                }
            }
            ManagerEvent::Unloaded(key) => {
                self.working -= 1;
                self.free(&key);
                if let Some(version) = self.version(&key) {
                    become_state(version, State::Gone);
                    if version.aspired {
                        // It was wanted again while it drained.
                        self.looks = true;
                        self.next_look = Instant::now();
                    }
                }
                log::info!("{} version {}: unloaded", key.model, key.version);
                self.left(&key);
            }
            ManagerEvent::Loaded(key, Ok(servable), time) => {
                self.working -= 1;
                self.loaded(&key, servable, time);
            }
            ManagerEvent::Loaded(key, Err(error), _) => {
                self.working -= 1;
                self.free(&key);
                self.shared.metrics.load_failed(&key.model);
                self.fail(&key, error);
                self.left(&key);
            }
            ManagerEvent::SetSources(sources, completion) => self.set_sources(sources, completion),
            ManagerEvent::LoadModel(source, deadline, by, completion) => {
                self.ask_for(&source, deadline, &by, completion);
            }
            ManagerEvent::UnloadModel(name, by, completion) => {
                self.take_back(&name, &by, completion)
            }
            ManagerEvent::ChangeModel(name, change, by, completion) => {
                self.change(&name, change, &by, completion)
            }
        }
    }

    /// The version, unless its model has begun another life.
    fn version(&mut self, key: &VersionKey) -> Option<&mut Version> {
        let model = self.models.get_mut(&key.model).filter(|model| model.life == key.life)?;
        model.versions.get_mut(&key.version)
    }

    fn loaded(&mut self, key: &VersionKey, servable: Arc<Servable>, time: Duration) {
        let threads = servable.threads();
        let Some(version) = self.version(key) else {
            self.parting.push((key.clone(), servable));
            return;
        };
        version.servable = Some(servable);
        version.attempts = 0;
        become_state(version, State::Ready);
        let name = &key.model;
        self.suited(name, threads);
        self.apply_batching();
        self.publish(name);
        log::info!("{name} version {}: ready after {} ms", key.version, time.as_millis());
    }

    fn fail(&mut self, key: &VersionKey, error: Error) {
        let (name, number) = (&key.model, key.version);
        let serving = self
            .models
            .get(name)
            .is_some_and(|model| model.versions.values().any(|v| matches!(v.state, State::Ready)));
        let serving = serving || self.predecessors.contains_key(name);
        let consequence = if serving { "; the version that serves stays" } else { "" };
        log::error!("{name} version {number}: could not be loaded{consequence}: {error}");
        if let Some(cause) = std::error::Error::source(&error) {
            log::debug!("{name} version {number}: {cause}");
        }
        let first = self.shared.config.load_retry_interval;
        let longest = LONGEST_RETRY.max(first);
        if let Some(version) = self.version(key) {
            let doubled = first * 2u32.saturating_pow(version.attempts.saturating_sub(1).min(8));
            version.retry_at = Instant::now() + doubled.min(longest);
            become_state(version, State::Failed(error));
        }
    }

    /// Notes how many threads within an operation suited a version, for the next one.
    fn suited(&mut self, name: &Arc<str>, threads: usize) {
        let Some(model) = self.models.get(name) else {
            return;
        };
        if self.threads.len() >= MOST_KNOWN {
            self.threads.clear();
        }
        self.threads.insert((Arc::clone(name), model.source.clone()), threads);
    }

    /// Shows requests the versions of `name` that are ready now.
    fn publish(&mut self, name: &Arc<str>) {
        let Some(model) = self.models.get(name) else {
            return;
        };
        let ready = model.versions.values().filter(|v| matches!(v.state, State::Ready));
        let mut ready: Vec<_> = ready.filter_map(|version| version.servable.clone()).collect();
        let is_own = !ready.is_empty();
        if !is_own {
            ready = self.stand_ins(name);
        }
        self.shared.publish(name, ready, &model.config);
        if is_own {
            self.part_with_predecessors(name);
        }
    }

    /// Puts the state of everything on the board.
    fn tell(&mut self) {
        let settled = self.versions().all(Version::is_settled);
        let mut board = self.shared.board();
        let started = board.started || (settled && self.working == 0 && self.has_looked);
        let newly_started = started && !board.started;
        board.started = started;
        for (name, model) in &mut self.models {
            forget_history(&mut model.versions);
            let shown = board.models.entry(name.to_string()).or_default();
            shown.retain(|number, _| model.versions.contains_key(number));
            for (&number, version) in &mut model.versions {
                for event in version.take_events(number) {
                    self.shared.journal.record(name, event);
                }
                let (state, since) = (version.state.clone(), version.since);
                shown.insert(number, VersionStatus { version: number, state, since });
            }
        }
        drop(board);
        if newly_started {
            self.shared.board_changed.notify_all();
        }
    }

    /// Gives freed memory back to the system.
    fn trim(&mut self) {
        let awaited = self.leaving.iter().any(Leaving::has_left);
        if self.freed && (awaited || self.trimmed_at.elapsed() >= TRIM_EVERY) {
            os::release_memory();
            self.freed = false;
            self.trimmed_at = Instant::now();
        }
        self.answer_unloads();
    }
}

/// Drops the oldest of the versions that are gone.
fn forget_history(versions: &mut BTreeMap<i64, Version>) {
    let gone = versions.iter().filter(|(_, v)| matches!(v.state, State::Gone) && !v.aspired);
    let gone: Vec<i64> = gone.map(|(&number, _)| number).collect();
    for number in gone.iter().take(gone.len().saturating_sub(HISTORY)) {
        versions.remove(number);
    }
}
