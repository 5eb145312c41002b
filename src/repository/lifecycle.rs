//! The one thread that changes which versions are loaded.
//!
//! It wakes up to look at the sources, when they are changed ([`reload`]), when a load ends, and
//! while versions drain. Loads and unloads run on threads of their own ([`work`]) and report back
//! as [`Event`]s, so a slow load never holds up a swap of another model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, Sender, unbounded};
use tokio::sync::oneshot;

use super::policy::{self, Action, Snapshot};
use super::servable::Servable;
use super::source::{self, Discovery, Fingerprint, Found};
use super::version::{LONGEST_RETRY, Version, become_state, check_completeness};
use super::{Shared, State, VersionStatus};
use crate::config::{ModelConfig, SourceConfig, VersionPolicy};
use crate::error::{Error, Result};
use crate::os;

mod reload;
mod work;

/// How often a draining version is looked at.
const DRAIN_POLL: Duration = Duration::from_millis(5);

/// Files that have not changed for this long are no copy under way.
const SETTLED: Duration = Duration::from_secs(3);

/// How many versions that are gone stay on the board.
const HISTORY: usize = 16;

/// Freed memory is given back to the system at most this often: it stops the allocator.
const TRIM_EVERY: Duration = Duration::from_millis(500);

/// How often files are looked at when the sources are not.
const FILES_POLL: Duration = Duration::from_secs(1);

/// What a loading or unloading thread reports, and what others ask for.
enum Event {
    Warming(Key),
    Loaded(Key, Result<Arc<Servable>>, Duration),
    Unloaded(Key),
    Sources(Vec<SourceConfig>, oneshot::Sender<Result<()>>),
}

/// A version in one life of its model.
#[derive(Clone)]
struct Key {
    model: Arc<str>,
    version: i64,
    life: u64,
}

struct Model {
    /// The path of its source.
    source: PathBuf,
    /// Another one after it came from another source.
    life: u64,
    config: ModelConfig,
    /// Threads within an operation that suited the last version.
    threads: Option<usize>,
    versions: BTreeMap<i64, Version>,
}

impl Model {
    fn new(found: &Found, life: u64) -> Self {
        let (source, config) = (found.source.clone(), found.config.clone());
        Model { source, life, config, threads: None, versions: BTreeMap::new() }
    }
}

/// Models of which nobody can say at this look whether they are there.
#[derive(Default)]
struct Unknown {
    /// Sources without a name that could not be read: any model of theirs could be.
    sources: BTreeSet<PathBuf>,
    models: BTreeSet<String>,
}

impl Unknown {
    fn covers(&self, name: &str, model: &Model) -> bool {
        self.models.contains(name) || self.sources.contains(&model.source)
    }
}

struct Manager {
    shared: Arc<Shared>,
    sources: Vec<SourceConfig>,
    /// Whether the sources are to be looked at when it is time to look.
    looks: bool,
    next_look: Instant,
    models: BTreeMap<Arc<str>, Model>,
    /// Lives of models so far.
    lives: u64,
    /// What serves for models that have come to another source and are not ready from there.
    predecessors: BTreeMap<Arc<str>, Vec<Arc<Servable>>>,
    /// What is no longer served, but still held by requests.
    parting: Vec<Arc<Servable>>,
    /// Who waits for a change of the sources.
    reload: Option<oneshot::Sender<Result<()>>>,
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

/// Tells the thread what to do.
#[derive(Clone)]
pub(super) struct Control(Sender<Event>);

impl Control {
    /// Serves these sources from now on. The answer comes when that is done, or has failed; none
    /// comes from a repository that has stopped.
    pub(super) fn set_sources(&self, sources: Vec<SourceConfig>) -> oneshot::Receiver<Result<()>> {
        let (answer, outcome) = oneshot::channel();
        let _ = self.0.send(Event::Sources(sources, answer));
        outcome
    }
}

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>, sources: Vec<SourceConfig>) -> Result<Control> {
    let (report, events) = unbounded();
    let control = Control(report.clone());
    let mut manager = Manager {
        shared,
        sources,
        looks: true,
        next_look: Instant::now(),
        models: BTreeMap::new(),
        lives: 0,
        predecessors: BTreeMap::new(),
        parting: Vec::new(),
        reload: None,
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
    Ok(control)
}

impl Manager {
    fn run(&mut self) {
        let poll_interval = self.shared.config.poll_interval;
        while !self.shared.board().stopped {
            if Instant::now() >= self.next_look {
                if self.looks {
                    self.look();
                }
                self.check_files();
                self.looks = poll_interval.is_some();
                self.next_look = Instant::now() + poll_interval.unwrap_or(FILES_POLL);
            }
            self.finish_drains();
            self.finish_partings();
            self.act();
            self.tell();
            self.answer_reload();
            self.trim();
            let draining = self.versions().any(|v| matches!(v.state, State::Draining));
            let draining = draining || !self.parting.is_empty();
            let until_look = self.next_look.saturating_duration_since(Instant::now());
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

    /// Looks at all sources.
    fn look(&mut self) {
        self.has_looked = true;
        let shared = Arc::clone(&self.shared);
        let mut there: BTreeMap<String, Found> = BTreeMap::new();
        let mut unknown = Unknown::default();
        for source in &self.sources.clone() {
            let path = &source.path;
            let discovery = match source::discover(source, &shared.platforms) {
                Ok(discovery) => discovery,
                Err(error) => {
                    match &source.name {
                        Some(name) => drop(unknown.models.insert(name.clone())),
                        None => drop(unknown.sources.insert(path.clone())),
                    }
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
                let model = self.models.get(name.as_str());
                if model.is_some_and(|model| model.source == *path) {
                    let (config, versions) = (source.model.clone(), BTreeMap::new());
                    let found =
                        Found { name: name.clone(), source: path.clone(), versions, config };
                    there.entry(name).or_insert(found);
                }
            }
        }
        self.update(there, &unknown);
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
        let mut unwanted = Vec::new();
        for (name, model) in &mut self.models {
            if !there.contains_key(&**name) && !unknown.covers(name, model) {
                model.versions.values_mut().for_each(|version| version.aspired = false);
                unwanted.push(Arc::clone(name));
            }
        }
        for name in &unwanted {
            if self.predecessors.contains_key(name) {
                self.part_with_predecessors(name);
                self.publish(name);
            }
        }
        for (name, found) in there {
            let name: Arc<str> = name.into();
            if self.models.get(&name).is_some_and(|model| {
                model.source != found.source && unknown.sources.contains(&model.source)
            }) {
                continue; // It may still be in the source that can not be read.
            }
            self.adopt(&name, &found);
            let Some(model) = self.models.get_mut(&name) else {
                continue;
            };
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
            let alive = |v: &Version| v.aspired || !matches!(v.state, State::Gone);
            let stays = model.versions.values().any(alive) || self.predecessors.contains_key(name);
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

    fn handle(&mut self, event: Event) {
        match event {
            Event::Warming(key) => {
                if let Some(version) = self.version(&key) {
                    become_state(version, State::Warming);
                }
            }
            Event::Unloaded(key) => {
                self.working -= 1;
                self.freed = true;
                if let Some(version) = self.version(&key) {
                    become_state(version, State::Gone);
                    if version.aspired {
                        // It was wanted again while it drained.
                        self.looks = true;
                        self.next_look = Instant::now();
                    }
                }
                log::info!("{} version {}: unloaded", key.model, key.version);
            }
            Event::Loaded(key, Ok(servable), time) => {
                self.working -= 1;
                self.loaded(&key, servable, time);
            }
            Event::Loaded(key, Err(error), _) => {
                self.working -= 1;
                self.shared.metrics.load_failed(&key.model);
                self.fail(&key, error);
            }
            Event::Sources(sources, answer) => self.set_sources(sources, answer),
        }
    }

    /// The version, unless its model has begun another life.
    fn version(&mut self, key: &Key) -> Option<&mut Version> {
        let model = self.models.get_mut(&key.model).filter(|model| model.life == key.life)?;
        model.versions.get_mut(&key.version)
    }

    fn loaded(&mut self, key: &Key, servable: Arc<Servable>, time: Duration) {
        let threads = servable.threads();
        let Some(version) = self.version(key) else {
            self.parting.push(servable);
            return;
        };
        version.servable = Some(servable);
        version.attempts = 0;
        become_state(version, State::Ready);
        let name = &key.model;
        if let Some(model) = self.models.get_mut(name) {
            model.threads = Some(threads);
        }
        self.publish(name);
        log::info!("{name} version {}: ready after {} ms", key.version, time.as_millis());
    }

    fn fail(&mut self, key: &Key, error: Error) {
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
