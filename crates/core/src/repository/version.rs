//! One version of a model on its way from found to gone.

use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::State;
use super::journal::{LifecycleEvent, WATCH};
use super::policy::Phase;
use super::servable::Servable;
use super::source::Fingerprint;
use tensorserve_platform::{Completeness, Platform};
use tensorserve_tensor::error::Error;

/// The wait between tries of a failed load doubles up to this, unless it begins longer.
pub(super) const LONGEST_RETRY: Duration = Duration::from_secs(60);

pub(super) struct Version {
    pub(super) folder: PathBuf,
    /// It should be served.
    pub(super) aspired: bool,
    pub(super) state: State,
    /// Since when it is in that state.
    pub(super) since: SystemTime,
    /// Who wanted what happens to it.
    pub(super) by: Arc<str>,
    /// When its last load or unload began.
    began: Instant,
    /// What happened to it and is in no journal yet.
    unreported: Vec<LifecycleEvent>,
    /// Its files were still changing at the last look.
    pub(super) changing: bool,
    /// All its files are there and no longer change.
    pub(super) complete: bool,
    /// What its files looked like at the last look.
    pub(super) seen: Option<Fingerprint>,
    /// What it takes in memory, by estimate.
    pub(super) bytes: Option<u64>,
    pub(super) servable: Option<Arc<Servable>>,
    pub(super) attempts: u32,
    pub(super) retry_at: Instant,
}

impl Version {
    pub(super) fn new(folder: PathBuf) -> Self {
        Version {
            folder,
            aspired: false,
            state: State::Found("just found".to_owned()),
            since: SystemTime::now(),
            by: WATCH.into(),
            began: Instant::now(),
            unreported: Vec::new(),
            changing: false,
            complete: false,
            seen: None,
            bytes: None,
            servable: None,
            attempts: 0,
            retry_at: Instant::now(),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        match self.state {
            State::Found(_) if self.complete => Phase::Loadable,
            State::Ready => Phase::Ready,
            State::Loading | State::Warming | State::Draining => Phase::Moving,
            State::Found(_) | State::Gone | State::Failed(_) => Phase::Waiting,
        }
    }

    /// What happened to it since this was last asked, with its number, for the journal.
    pub(super) fn take_events(&mut self, number: i64) -> impl Iterator<Item = LifecycleEvent> {
        let happened = mem::take(&mut self.unreported).into_iter();
        happened.map(move |event| LifecycleEvent { version: Some(number), ..event })
    }

    fn happens(&mut self, what: &'static str) {
        if matches!(self.state, State::Loading | State::Draining) {
            self.began = Instant::now();
        }
        let ends = matches!(self.state, State::Ready | State::Gone | State::Failed(_));
        let took = ends.then(|| self.began.elapsed());
        let (at, who) = (self.since, Arc::clone(&self.by));
        let error = self.failure().map(|error| error.message().to_owned());
        self.unreported.push(LifecycleEvent { at, version: None, what, took, who, error });
    }

    /// Whether it is in memory, or on its way there.
    pub(super) fn is_in_memory(&self) -> bool {
        match self.state {
            State::Loading | State::Warming | State::Ready | State::Draining => true,
            State::Found(_) | State::Failed(_) | State::Gone => false,
        }
    }

    /// Whether it serves.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Why it could not be loaded.
    pub(super) fn failure(&self) -> Option<&Error> {
        match &self.state {
            State::Failed(error) => Some(error),
            State::Found(_)
            | State::Loading
            | State::Warming
            | State::Ready
            | State::Draining
            | State::Gone => None,
        }
    }

    /// Whether it will not change by itself before the files do.
    pub(super) fn is_settled(&self) -> bool {
        match self.state {
            State::Ready | State::Failed(_) => true,
            // One that was wanted again while it drained is loaded again.
            State::Gone => !self.aspired,
            // One that waits for files, but not one that waits to be seen twice or to be loaded.
            State::Found(_) => {
                !self.aspired || (self.seen.is_some() && !self.changing && !self.complete)
            }
            State::Loading | State::Warming | State::Draining => false,
        }
    }
}

/// Notes whether a version whose files no longer change has all of them.
pub(super) fn check_completeness(version: &mut Version, platform: Option<&dyn Platform>) {
    let completeness = match platform {
        Some(platform) => platform.check(&version.folder),
        None => Completeness::Missing("a model of a known kind, such as saved_model.pb".to_owned()),
    };
    version.complete = matches!(completeness, Completeness::Complete);
    version.bytes = None;
    match completeness {
        Completeness::Complete => {
            become_state(version, State::Found("to be loaded".to_owned()));
        }
        Completeness::Missing(what) => {
            let reason = format!("{what} is missing");
            let is_news = !matches!(&version.state, State::Found(before) if *before == reason);
            if is_news {
                log::warn!("{}: not loaded yet: {reason}", version.folder.display());
            }
            become_state(version, State::Found(reason));
        }
        Completeness::Broken(error) => {
            let message = error.message();
            let is_news =
                !matches!(&version.state, State::Failed(before) if before.message() == message);
            if is_news {
                log::error!("{}: can not be loaded: {error}", version.folder.display());
            }
            version.attempts += 1;
            version.retry_at = Instant::now() + LONGEST_RETRY;
            become_state(version, State::Failed(error));
        }
    }
}

pub(super) fn become_state(version: &mut Version, next: State) {
    debug_assert!(version.state.may_become(&next), "{} can not become {next}", version.state);
    let is_news = mem::discriminant(&version.state) != mem::discriminant(&next);
    version.state = next;
    if !is_news {
        return;
    }
    version.since = SystemTime::now();
    match version.state {
        State::Found(_) => {}
        State::Loading => version.happens("loading"),
        State::Warming => version.happens("warming"),
        State::Ready => version.happens("available"),
        State::Draining => version.happens("unloading"),
        State::Gone => version.happens("end"),
        State::Failed(_) => version.happens("failed"),
    }
}
