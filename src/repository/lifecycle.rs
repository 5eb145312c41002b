//! The one thread that changes which versions are loaded.
//!
//! It wakes up to look at the sources, when a load ends, and while versions drain. Loads and
//! unloads run on threads of their own and report back as [`Event`]s, so a slow load never holds
//! up a swap of another model.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};

use super::policy::{self, Action, Snapshot};
use super::servable::{Load, Servable};
use super::source::{self, Discovery, Fingerprint, Found};
use super::version::{RETRY, Version, become_state, check_completeness};
use super::{Shared, State, VersionStatus};
use crate::config::{ModelConfig, VersionPolicy};
use crate::error::{Error, Result};
use crate::os;

/// How often a draining version is looked at.
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// Files that have not changed for this long are no copy under way.
const SETTLED: Duration = Duration::from_secs(3);

/// How many versions that are gone stay on the board.
const HISTORY: usize = 16;

/// Freed memory is given back to the system at most this often: it stops the allocator.
const TRIM_EVERY: Duration = Duration::from_millis(500);

/// What a loading or unloading thread reports.
enum Event {
    Warming(Arc<str>, i64),
    Loaded(Arc<str>, i64, Result<Arc<Servable>>, Duration),
    Unloaded(Arc<str>, i64),
}

struct Model {
    config: ModelConfig,
    /// Threads within an operation that suited the last version.
    threads: Option<usize>,
    versions: BTreeMap<i64, Version>,
}

/// Models of which nobody can say at this look whether they are there.
#[derive(Default)]
struct Unknown {
    /// A source could not be read: any model could be.
    all: bool,
    models: BTreeSet<String>,
}

struct Manager {
    shared: Arc<Shared>,
    models: BTreeMap<Arc<str>, Model>,
    events: Receiver<Event>,
    report: Sender<Event>,
    /// Loads and unloads under way.
    working: usize,
    /// Lines that were logged, not to be repeated at every look.
    noted: BTreeSet<String>,
    has_looked: bool,
    freed: bool,
    trimmed_at: Instant,
}

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>) -> Result<()> {
    let (report, events) = unbounded();
    let mut manager = Manager {
        shared,
        models: BTreeMap::new(),
        events,
        report,
        working: 0,
        noted: BTreeSet::new(),
        has_looked: false,
        freed: false,
        trimmed_at: Instant::now(),
    };
    let thread = thread::Builder::new().name("repository".to_owned());
    thread.spawn(move || manager.run()).map_err(|e| {
        Error::internal("the repository thread could not be started").with_source(e)
    })?;
    Ok(())
}

impl Manager {
    fn run(&mut self) {
        let every = self.shared.config.poll_interval;
        let mut next_look = Instant::now();
        while !self.shared.board().stopped {
            if Instant::now() >= next_look {
                self.look();
                next_look = Instant::now() + every;
            }
            self.finish_drains();
            self.act();
            self.tell();
            self.trim();
            let draining = self.versions().any(|v| matches!(v.state, State::Draining));
            let until_look = next_look.saturating_duration_since(Instant::now());
            let wait = if draining { until_look.min(DRAIN_POLL) } else { until_look };
            // Short enough to notice that the server stops.
            if let Ok(event) = self.events.recv_timeout(wait.min(Duration::from_millis(100))) {
                self.handle(event);
                while let Ok(event) = self.events.try_recv() {
                    self.handle(event);
                }
            }
        }
    }

    fn versions(&self) -> impl Iterator<Item = &Version> {
        self.models.values().flat_map(|model| model.versions.values())
    }

    /// Looks at all sources, and at the files of versions that are not loaded.
    fn look(&mut self) {
        self.has_looked = true;
        let shared = Arc::clone(&self.shared);
        let mut there: BTreeMap<String, Found> = BTreeMap::new();
        let mut unknown = Unknown::default();
        for source in &shared.config.sources {
            let path = &source.path;
            let discovery = match source::discover(source, &shared.platforms) {
                Ok(discovery) => discovery,
                Err(error) => {
                    unknown.all = true;
                    self.note(format!("{error}; what is loaded from it stays"));
                    self.problem(path, Some(error.to_string()));
                    continue;
                }
            };
            let Discovery { models, unreadable, empty, notes } = discovery;
            notes.into_iter().for_each(|note| self.note(note));
            unknown.models.extend(unreadable);
            let nothing = models.iter().all(|found| found.versions.is_empty());
            self.problem(path, nothing.then(|| "no model is there".to_owned()));
            self.add(models, &mut there);
            for name in empty {
                if let Some(model) = self.models.get(name.as_str()) {
                    let (config, versions) = (model.config.clone(), BTreeMap::new());
                    there.entry(name.clone()).or_insert(Found { name, versions, config });
                }
            }
        }
        self.update(there, &unknown);
        self.check_files();
    }

    /// Adds what one source has; a model that an earlier one has too counts there.
    fn add(&mut self, models: Vec<Found>, there: &mut BTreeMap<String, Found>) {
        for found in models {
            if there.contains_key(&found.name) {
                self.note(format!("model {:?} is there twice; the first counts", found.name));
                continue;
            }
            there.insert(found.name.clone(), found);
        }
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

    /// Puts a source's problem on the board, or takes it off. A source whose models still serve
    /// has none.
    fn problem(&mut self, path: &Path, problem: Option<String>) {
        let mut serving = self.versions().filter(|version| matches!(version.state, State::Ready));
        let stays = problem.is_some() && serving.any(|version| version.folder.starts_with(path));
        let path = path.display().to_string();
        let mut board = self.shared.board();
        match problem {
            Some(problem) if !stays => board.problems.insert(path, problem),
            _ => board.problems.remove(&path),
        };
    }

    /// Brings the list of models and versions up to date with what is there.
    fn update(&mut self, there: BTreeMap<String, Found>, unknown: &Unknown) {
        for (name, model) in &mut self.models {
            let is_unknown = unknown.all || unknown.models.contains(&**name);
            if !there.contains_key(&**name) && !is_unknown {
                model.versions.values_mut().for_each(|version| version.aspired = false);
            }
        }
        for (name, found) in there {
            let name: Arc<str> = name.into();
            let model = self.models.entry(Arc::clone(&name)).or_insert_with(|| Model {
                config: found.config.clone(),
                threads: None,
                versions: BTreeMap::new(),
            });
            model.config = found.config;
            let ready = model.versions.values().any(|v| matches!(v.state, State::Ready));
            if found.versions.is_empty() && ready {
                // An emptied folder looks like a mistake, or like storage that went away.
                self.note(format!(
                    "model {name} has no version on disk any more; the loaded one stays"
                ));
                continue;
            }
            update_versions(model, found.versions);
            if let VersionPolicy::Specific(wanted) = &model.config.policy {
                let missing =
                    wanted.iter().filter(|v| !model.versions.get(v).is_some_and(|v| v.aspired));
                let missing: Vec<String> = missing.map(i64::to_string).collect();
                if !missing.is_empty() {
                    self.note(format!("model {name}: version {} is not there", missing.join(", ")));
                }
            }
        }
        self.models.retain(|name, model| {
            let stays =
                model.versions.values().any(|v| v.aspired || !matches!(v.state, State::Gone));
            if !stays {
                self.shared.board().models.remove(&**name);
            }
            stays
        });
    }

    /// Finds out, of versions that wait or have failed, whether they can be loaded now.
    fn check_files(&mut self) {
        let shared = Arc::clone(&self.shared);
        let now = Instant::now();
        for model in self.models.values_mut() {
            for version in model.versions.values_mut().filter(|v| v.aspired) {
                let waits = matches!(version.state, State::Found(_));
                let failed = matches!(version.state, State::Failed(_));
                if !waits && !failed {
                    continue;
                }
                let seen = Fingerprint::of(&version.folder);
                let changed = version.seen.replace(seen) != Some(seen);
                let retries = version.attempts <= shared.config.max_load_retries;
                if failed && changed {
                    version.attempts = 0;
                } else if failed && !(retries && now >= version.retry_at) {
                    continue;
                }
                version.changing = changed && !seen.is_settled(SETTLED);
                if version.changing {
                    version.complete = false;
                    become_state(version, State::Found("its files still change".to_owned()));
                    continue;
                }
                let platform = shared.platforms.of_folder(&version.folder);
                check_completeness(version, platform.map(|p| &**p));
            }
        }
    }

    /// Takes every step that is due.
    fn act(&mut self) {
        let names: Vec<Arc<str>> = self.models.keys().cloned().collect();
        for name in names {
            while let Some(action) = self.next_action(&name) {
                match action {
                    Action::Load(_) if self.working >= self.shared.config.load_threads => break,
                    Action::Load(number) => self.start_load(&name, number),
                    Action::Unload(number) => self.start_drain(&name, number),
                }
            }
            self.forget_unwanted(&name);
        }
    }

    fn next_action(&self, name: &Arc<str>) -> Option<Action> {
        let versions = &self.models.get(name)?.versions;
        let snapshots = versions.iter().map(|(&number, version)| Snapshot {
            version: number,
            aspired: version.aspired,
            phase: version.phase(),
        });
        policy::next_action(&snapshots.collect::<Vec<_>>())
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

    fn start_load(&mut self, name: &Arc<str>, number: i64) {
        let shared = Arc::clone(&self.shared);
        let Some(model) = self.models.get_mut(name) else {
            return;
        };
        let Some(version) = model.versions.get_mut(&number) else {
            return;
        };
        become_state(version, State::Loading);
        version.attempts += 1;
        let (folder, config, threads) =
            (version.folder.clone(), model.config.clone(), model.threads);
        let (name, report) = (Arc::clone(name), self.report.clone());
        log::debug!("{name} version {number}: loading from {}", folder.display());
        let load = move || {
            let start = Instant::now();
            let loaded = catch_unwind(AssertUnwindSafe(|| {
                let platform = shared.platforms.of_folder(&folder);
                let platform = platform.ok_or_else(|| Error::not_found("the model is gone"))?;
                let load = Load {
                    model: &name,
                    version: number,
                    folder: &folder,
                    platform: &**platform,
                    config: &config,
                    batcher: &shared.batcher,
                    metrics: &shared.metrics,
                    threads,
                };
                let warming = || drop(report.send(Event::Warming(Arc::clone(&name), number)));
                load.run(warming).map(Arc::new)
            }));
            let loaded = loaded.unwrap_or_else(|_| {
                shared.metrics.panicked();
                Err(Error::internal("loading it met a bug; see the log"))
            });
            let _ = report.send(Event::Loaded(name, number, loaded, start.elapsed()));
        };
        self.working += 1;
        self.spawn("load", load);
    }

    /// Runs `work` on a thread of its own; on this one if there can be no other.
    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) {
        let slot = Arc::new(std::sync::Mutex::new(Some(work)));
        let inside = Arc::clone(&slot);
        let take = |slot: &std::sync::Mutex<Option<_>>| {
            slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
        };
        let thread = thread::Builder::new().name(name.to_owned());
        let spawned = thread.spawn(move || {
            if let Some(work) = take(&inside) {
                work();
            }
        });
        if spawned.is_err()
            && let Some(work) = take(&slot)
        {
            work();
        }
    }

    fn start_drain(&mut self, name: &Arc<str>, number: i64) {
        if let Some(model) = self.models.get_mut(name)
            && let Some(version) = model.versions.get_mut(&number)
        {
            become_state(version, State::Draining);
            log::info!("{name} version {number}: no longer served");
        }
        self.publish(name);
    }

    /// Unloads draining versions that no request holds any more.
    fn finish_drains(&mut self) {
        let mut free = Vec::new();
        for (name, model) in &mut self.models {
            for (&number, version) in &mut model.versions {
                let draining = matches!(version.state, State::Draining);
                let alone = |servable: &Arc<Servable>| Arc::strong_count(servable) == 1;
                if draining && version.servable.as_ref().is_some_and(alone) {
                    free.extend(version.servable.take().map(|s| (Arc::clone(name), number, s)));
                }
            }
        }
        for (name, number, servable) in free {
            let report = self.report.clone();
            self.working += 1;
            self.spawn("unload", move || {
                drop(servable);
                let _ = report.send(Event::Unloaded(name, number));
            });
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Warming(name, number) => {
                if let Some(version) = self.version(&name, number) {
                    become_state(version, State::Warming);
                }
            }
            Event::Unloaded(name, number) => {
                self.working -= 1;
                self.freed = true;
                if let Some(version) = self.version(&name, number) {
                    become_state(version, State::Gone);
                }
                log::info!("{name} version {number}: unloaded");
            }
            Event::Loaded(name, number, Ok(servable), time) => {
                self.working -= 1;
                if let Some(model) = self.models.get_mut(&name) {
                    model.threads = Some(servable.threads());
                }
                if let Some(version) = self.version(&name, number) {
                    version.servable = Some(servable);
                    version.attempts = 0;
                    become_state(version, State::Ready);
                }
                self.publish(&name);
                log::info!("{name} version {number}: ready after {} ms", time.as_millis());
            }
            Event::Loaded(name, number, Err(error), _) => {
                self.working -= 1;
                self.shared.metrics.load_failed(&name);
                self.fail(&name, number, error);
            }
        }
    }

    fn version(&mut self, name: &Arc<str>, number: i64) -> Option<&mut Version> {
        self.models.get_mut(name)?.versions.get_mut(&number)
    }

    fn fail(&mut self, name: &Arc<str>, number: i64, error: Error) {
        let serving = self
            .models
            .get(name)
            .is_some_and(|model| model.versions.values().any(|v| matches!(v.state, State::Ready)));
        let consequence = if serving { "; the version that serves stays" } else { "" };
        log::error!("{name} version {number}: could not be loaded{consequence}: {error}");
        if let Some(cause) = std::error::Error::source(&error) {
            log::debug!("{name} version {number}: {cause}");
        }
        if let Some(version) = self.version(name, number) {
            let (first, longest) = RETRY;
            let doubled = first * 2u32.saturating_pow(version.attempts.saturating_sub(1).min(8));
            version.retry_at = Instant::now() + doubled.min(longest);
            become_state(version, State::Failed(error));
        }
    }

    /// Shows requests the versions of `name` that are ready now.
    fn publish(&self, name: &Arc<str>) {
        let Some(model) = self.models.get(name) else {
            return;
        };
        let ready = model.versions.values().filter(|v| matches!(v.state, State::Ready));
        let ready = ready.filter_map(|version| version.servable.clone());
        self.shared.publish(name, ready.collect(), &model.config.labels);
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
            for (&number, version) in &model.versions {
                let state = version.state.clone();
                shown.insert(number, VersionStatus { version: number, state });
            }
        }
        drop(board);
        if newly_started {
            self.shared.board_changed.notify_all();
        }
    }

    /// Gives freed memory back to the system.
    fn trim(&mut self) {
        if self.freed && self.trimmed_at.elapsed() >= TRIM_EVERY {
            os::release_memory();
            self.freed = false;
            self.trimmed_at = Instant::now();
        }
    }
}

/// Adds new versions, notes vanished ones, and marks those that should be served.
fn update_versions(model: &mut Model, found: BTreeMap<i64, PathBuf>) {
    let there: BTreeSet<i64> = found.keys().copied().collect();
    let aspired = policy::aspired(&there, &model.config.policy);
    for (number, folder) in found {
        match model.versions.get_mut(&number) {
            Some(version) => version.folder = folder,
            // One that is not wanted is nothing to anyone.
            None if !aspired.contains(&number) => {}
            None => {
                model.versions.insert(number, Version::new(folder));
            }
        }
    }
    for (number, version) in &mut model.versions {
        version.aspired = aspired.contains(number);
        if version.aspired && matches!(version.state, State::Gone) {
            version.complete = false;
            version.seen = None;
            become_state(version, State::Found("wanted again".to_owned()));
        }
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
