//! The one thread that changes which versions are loaded.
//!
//! It wakes up to look at the sources ([`scan`]), when they are changed ([`reload`]), when a model
//! is asked for by itself ([`requested`]), when a load ends, and while versions drain. Loads and
//! unloads run on threads of their own ([`work`]) and report back as [`ManagerEvent`]s, so a slow load
//! never holds up a swap of another model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};

use self::control::{Completion, ManagerEvent};
use self::entry::{FormerStage, ModelEntry};
use super::policy::{self, Action, Snapshot};
use super::servable::Servable;
use super::version::{LONGEST_RETRY, Version, become_state};
use super::{Shared, State, VersionStatus};
use crate::config::SourceConfig;
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

mod batching;
mod change;
mod control;
mod entry;
mod memory;
mod overrides;
mod reload;
mod requested;
mod scan;
mod work;

pub(super) use self::control::Control;

/// How often a draining version is looked at.
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// How many versions that are gone stay on the board.
const HISTORY: usize = 16;

/// Models that are not there any more, and of which it is remembered what suited them.
const MOST_REMEMBERED: usize = 10_000;

/// Freed memory is given back to the system at most this often: it stops the allocator.
const TRIM_EVERY: Duration = Duration::from_millis(500);

/// How often files are looked at when the sources are not.
const FILES_POLL: Duration = Duration::from_secs(1);

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
    has_scanned: bool,
    /// Whether the sources, and not only files of versions that wait, are due at `next_scan`.
    scans_sources: bool,
    next_scan: Instant,
    /// The request that has changed the sources.
    reload: Option<Completion>,
    events: Receiver<ManagerEvent>,
    report: Sender<ManagerEvent>,
    /// Loads and unloads under way.
    working: usize,
    /// Lines that were logged, and are not to be repeated at every scan.
    logged: BTreeSet<String>,
    /// Memory has been freed since it was given back to the system.
    freed: bool,
    trimmed_at: Instant,
}

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>, sources: Vec<SourceConfig>) -> Result<Control> {
    let (report, events) = unbounded();
    let control = Control::new(report.clone());
    let mut manager = LifecycleManager {
        shared,
        models: BTreeMap::new(),
        sources,
        has_scanned: false,
        scans_sources: true,
        next_scan: Instant::now(),
        reload: None,
        events,
        report,
        working: 0,
        logged: BTreeSet::new(),
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
            if Instant::now() >= self.next_scan {
                if self.scans_sources {
                    self.scan_sources();
                }
                self.check_files();
                self.scans_sources = poll_interval.is_some();
                self.next_scan = Instant::now() + poll_interval.unwrap_or(FILES_POLL);
            }
            self.finish_drains();
            self.unload_former();
            self.act();
            self.complete_loads();
            self.complete_returns();
            self.tell();
            self.complete_reload();
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
        let former = self.models.values().flat_map(|entry| &entry.former);
        let former = former.into_iter().any(|f| matches!(f.stage, FormerStage::Draining(_)));
        if draining || former {
            wait = DRAIN_POLL;
        }
        let next = self.next_deadline().map_or(self.next_scan, |at| at.min(self.next_scan));
        wait.min(next.saturating_duration_since(Instant::now()))
    }

    /// The next moment when a request gives up waiting for a model.
    fn next_deadline(&self) -> Option<Instant> {
        let waiters = |entry: &ModelEntry| {
            let waiters = [entry.load_waiter.as_ref(), entry.return_waiter.as_ref()];
            waiters.into_iter().flatten().map(|waiter| waiter.deadline).min()
        };
        self.models.values().filter_map(waiters).min()
    }

    /// The versions of models that the sources have.
    fn configured_versions(&self) -> impl Iterator<Item = &Version> {
        let models = self.models.values().filter(|entry| entry.is_configured());
        models.flat_map(|model| model.versions.values())
    }

    /// Logs a line, once.
    fn log_once(&mut self, line: String) {
        if self.logged.len() > 1000 {
            self.logged.clear();
        }
        if !self.logged.contains(&line) {
            log::warn!("{line}");
            self.logged.insert(line);
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
                        self.scans_sources = true;
                        self.next_scan = Instant::now();
                    }
                }
                log::info!("{} version {}: unloaded", key.model, key.version);
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
            }
            ManagerEvent::SetSources(sources, completion) => self.set_sources(sources, completion),
            ManagerEvent::LoadModel(source, deadline, by, completion) => {
                self.load_model(&source, deadline, &by, completion);
            }
            ManagerEvent::UnloadModel(name, by, completion) => {
                self.unload_model(&name, &by, completion);
            }
            ManagerEvent::ChangeModel(name, change, by, completion) => {
                self.change_model(&name, change, &by, completion)
            }
        }
    }

    /// The version, unless its model has begun another incarnation.
    fn version(&mut self, key: &VersionKey) -> Option<&mut Version> {
        self.models.get_mut(&key.model)?.version_mut(key)
    }

    /// The entry of a model; a new one if there is none.
    fn entry(&mut self, name: &Arc<str>) -> &mut ModelEntry {
        let new = || ModelEntry::new(Arc::clone(name));
        self.models.entry(Arc::clone(name)).or_insert_with(new)
    }

    fn loaded(&mut self, key: &VersionKey, servable: Arc<Servable>, time: Duration) {
        let (name, threads) = (&key.model, servable.threads());
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        let Some(version) = entry.version_mut(key) else {
            if let Some(former) = entry.former.iter_mut().find(|former| former.key == *key) {
                former.stage = FormerStage::Draining(servable);
            }
            return;
        };
        version.servable = Some(servable);
        version.attempts = 0;
        become_state(version, State::Ready);
        entry.remember_threads(threads);
        self.apply_batching();
        self.publish(name);
        log::info!("{name} version {}: ready after {} ms", key.version, time.as_millis());
    }

    fn fail(&mut self, key: &VersionKey, error: Error) {
        let (name, number) = (&key.model, key.version);
        let serves = |entry: &ModelEntry| entry.has_ready_version() || entry.has_predecessors();
        let serving = self.models.get(name).is_some_and(serves);
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

    /// Shows requests what serves for `name` now.
    fn publish(&mut self, name: &Arc<str>) {
        let Some(entry) = self.models.get_mut(name) else {
            return;
        };
        self.shared.publish(name, entry.servables(), &entry.config);
        if entry.has_ready_version() {
            entry.drain_predecessors();
        }
    }

    /// Puts the state of everything on the board.
    fn tell(&mut self) {
        let settled = self.configured_versions().all(Version::is_settled);
        let mut board = self.shared.board();
        let started = board.started || (settled && self.working == 0 && self.has_scanned);
        let newly_started = started && !board.started;
        board.started = started;
        for (name, model) in self.models.iter_mut().filter(|(_, entry)| !entry.is_removed()) {
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

    /// Drops the entries of models of which nothing is left.
    fn forget_removed(&mut self) {
        let remembered = self.models.values().filter(|entry| entry.is_dormant()).count();
        let has_room = remembered <= MOST_REMEMBERED;
        self.models.retain(|_, entry| !entry.is_dormant() || entry.is_remembered(has_room));
    }

    /// Gives freed memory back to the system.
    fn trim(&mut self) {
        let mut waiters = self.models.values().flat_map(|entry| &entry.unload_waiters);
        let awaited = waiters.any(|waiter| waiter.remaining.is_empty());
        if self.freed && (awaited || self.trimmed_at.elapsed() >= TRIM_EVERY) {
            os::release_memory();
            self.freed = false;
            self.trimmed_at = Instant::now();
        }
        self.complete_unloads();
        self.forget_removed();
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
