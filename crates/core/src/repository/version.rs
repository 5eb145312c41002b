//! One version of a model, from found to unloaded.

use std::mem;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime};

use super::VersionState;
use super::files::Fingerprint;
use super::journal::{LifecycleEvent, WATCH};
use super::policy::{LONGEST_RETRY, Phase, VersionSnapshot};
use super::servable::Servable;
use super::trial::TrialReport;
use super::watch::ReleaseWatch;
use tensorserve_platform::Completeness;
use tensorserve_tensor::error::Error;

pub(super) struct Version {
    pub(super) folder: PathBuf,
    /// The version should be served.
    pub(super) aspired: bool,
    pub(super) state: VersionState,
    /// Since when it is in that state.
    pub(super) since: SystemTime,
    /// Who has requested its next steps: a user, or the scan of its source.
    pub(super) by: Arc<str>,
    /// When its last load or unload began.
    began: Instant,
    /// What happened to it and is in no journal yet.
    unreported: Vec<LifecycleEvent>,
    /// What the last check of its files found.
    pub(super) files: FileCheck,
    /// What its files looked like then.
    pub(super) seen: Option<Fingerprint>,
    pub(super) servable: Option<Arc<Servable>>,
    /// What its trial has shown.
    pub(super) trial: Option<Arc<TrialReport>>,
    /// Ends its trial before it is decided.
    pub(super) trial_is_cancelled: Arc<AtomicBool>,
    /// It serves, and may be held after all until then.
    pub(super) watch: Option<ReleaseWatch>,
    /// Whether it may be loaded.
    pub(super) standing: Standing,
    /// An operator wants it to serve without a trial.
    pub(super) is_released: bool,
    /// How often it has failed since it was last ready, or since its files changed.
    pub(super) attempts: u32,
    /// When a failed load may be attempted again.
    pub(super) retry_at: Instant,
}

/// Whether a version may be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// If the policy of its model wants it.
    Wanted,
    /// It was held before the server was started.
    HeldBefore,
    /// An operator does not want it.
    Dropped,
}

/// What a check of a version's files found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileCheck {
    /// The files were not checked yet, or are still changing.
    Pending,
    /// Some are missing or broken.
    Incomplete,
    /// All are there.
    Complete,
}

impl Version {
    pub(super) fn new(folder: PathBuf) -> Self {
        Version {
            folder,
            aspired: false,
            state: VersionState::Found("its files have not been checked yet".to_owned()),
            since: SystemTime::now(),
            by: WATCH.into(),
            began: Instant::now(),
            unreported: Vec::new(),
            files: FileCheck::Pending,
            seen: None,
            servable: None,
            trial: None,
            trial_is_cancelled: Arc::default(),
            watch: None,
            standing: Standing::Wanted,
            is_released: false,
            attempts: 0,
            retry_at: Instant::now(),
        }
    }

    /// A version that was held before the server was started, and why.
    pub(super) fn held_before(folder: PathBuf, why: &str) -> Self {
        let state = format!("held before the server was started: {why}");
        Version {
            state: VersionState::Found(state),
            standing: Standing::HeldBefore,
            files: FileCheck::Incomplete,
            ..Version::new(folder)
        }
    }

    /// Where it is in its lifecycle, as far as the next step goes.
    pub(super) fn phase(&self) -> Phase {
        match &self.state {
            VersionState::Found(_) => match self.files {
                FileCheck::Pending => Phase::Unchecked,
                FileCheck::Incomplete => Phase::Incomplete,
                FileCheck::Complete => Phase::Loadable,
            },
            VersionState::Loading | VersionState::Warming | VersionState::Trial => Phase::Loading,
            VersionState::Held(_) => Phase::Held,
            VersionState::Ready => Phase::Ready,
            VersionState::Draining => match &self.servable {
                Some(servable) if !servable.is_idle() => Phase::Draining,
                Some(_) => Phase::Drained,
                None => Phase::Unloading,
            },
            VersionState::Failed(_) => Phase::Failed,
            VersionState::Unloaded => Phase::Unloaded,
        }
    }

    /// What decides about its next step.
    pub(super) fn snapshot(&self, version: i64) -> VersionSnapshot {
        let bytes = self.memory_estimate();
        let is_watched = self.watch.is_some();
        VersionSnapshot { version, aspired: self.aspired, phase: self.phase(), is_watched, bytes }
    }

    /// What it takes in memory, in bytes, as TensorFlow Serving estimates it: a fifth more than
    /// its files.
    pub(super) fn memory_estimate(&self) -> u64 {
        let files = self.seen.map_or(0, |seen| seen.bytes);
        files.saturating_add(files / 5)
    }

    /// Its lifecycle events since the last call, with its number.
    pub(super) fn take_events(&mut self, number: i64) -> impl Iterator<Item = LifecycleEvent> {
        let events = mem::take(&mut self.unreported).into_iter();
        events.map(move |event| LifecycleEvent { version: Some(number), ..event })
    }

    fn add_event(&mut self, what: &'static str) {
        if matches!(self.state, VersionState::Loading | VersionState::Draining) {
            self.began = Instant::now();
        }
        let ends = matches!(
            self.state,
            VersionState::Ready
                | VersionState::Held(_)
                | VersionState::Unloaded
                | VersionState::Failed(_)
        );
        let took = ends.then(|| self.began.elapsed());
        let (at, who) = (self.since, Arc::clone(&self.by));
        let error = match &self.state {
            VersionState::Held(why) => Some(why.clone()),
            VersionState::Found(_)
            | VersionState::Loading
            | VersionState::Warming
            | VersionState::Trial
            | VersionState::Ready
            | VersionState::Draining
            | VersionState::Unloaded
            | VersionState::Failed(_) => self.failure().map(|error| error.message().to_owned()),
        };
        self.unreported.push(LifecycleEvent { at, version: None, what, took, who, error });
    }

    /// Whether it is in memory, or on its way there.
    pub(super) fn is_in_memory(&self) -> bool {
        match self.state {
            VersionState::Loading
            | VersionState::Warming
            | VersionState::Trial
            | VersionState::Held(_)
            | VersionState::Ready
            | VersionState::Draining => true,
            VersionState::Found(_) | VersionState::Failed(_) | VersionState::Unloaded => false,
        }
    }

    /// Whether it serves.
    pub(super) fn is_ready(&self) -> bool {
        self.state.is_ready()
    }

    /// Why it could not be loaded.
    pub(super) fn failure(&self) -> Option<&Error> {
        match &self.state {
            VersionState::Failed(error) => Some(error),
            VersionState::Found(_)
            | VersionState::Loading
            | VersionState::Warming
            | VersionState::Trial
            | VersionState::Held(_)
            | VersionState::Ready
            | VersionState::Draining
            | VersionState::Unloaded => None,
        }
    }

    /// Whether it stays in its state until its files change.
    pub(super) fn is_settled(&self) -> bool {
        self.phase().is_settled(self.aspired)
    }

    /// Puts it into its next state.
    pub(super) fn set_state(&mut self, next: VersionState) {
        debug_assert!(self.state.may_become(&next), "{} cannot become {next}", self.state);
        let is_news = mem::discriminant(&self.state) != mem::discriminant(&next);
        self.state = next;
        if !is_news {
            return;
        }
        self.since = SystemTime::now();
        match self.state {
            VersionState::Found(_) => {}
            VersionState::Loading => self.add_event("loading"),
            VersionState::Warming => self.add_event("warming"),
            VersionState::Trial => self.add_event("trial"),
            VersionState::Held(_) => self.add_event("held"),
            VersionState::Ready => self.add_event("available"),
            VersionState::Draining => self.add_event("unloading"),
            VersionState::Unloaded => self.add_event("end"),
            VersionState::Failed(_) => self.add_event("failed"),
        }
    }

    /// Its files are being fetched from a store; `what` says how far that is.
    pub(super) fn is_fetched_later(&mut self, what: String) {
        self.files = FileCheck::Pending;
        // A failure is shown until there is something better.
        if self.failure().is_none() {
            self.set_state(VersionState::Found(what));
        }
    }

    /// Its files could not be fetched from their store, which is tried again.
    pub(super) fn fetch_failed(&mut self, error: Error) {
        self.files = FileCheck::Pending;
        if self.failure().is_none_or(|before| before.message() != error.message()) {
            self.set_state(VersionState::Failed(error));
        }
    }

    /// Its files, which no longer change, have been checked; `None` if no platform recognises them.
    pub(super) fn checked(&mut self, completeness: Option<Completeness>) {
        let completeness = completeness.unwrap_or_else(|| {
            let what = "a model file of a supported platform (such as saved_model.pb)";
            Completeness::Missing(what.to_owned())
        });
        self.files = match completeness {
            Completeness::Complete => FileCheck::Complete,
            Completeness::Missing(_) | Completeness::Broken(_) => FileCheck::Incomplete,
        };
        match completeness {
            Completeness::Complete => {
                self.set_state(VersionState::Found("to be loaded".to_owned()))
            }
            Completeness::Missing(what) => {
                let reason = format!("{what} is missing");
                if !matches!(&self.state, VersionState::Found(before) if *before == reason) {
                    log::warn!("{}: not loaded yet: {reason}", self.folder.display());
                }
                self.set_state(VersionState::Found(reason));
            }
            Completeness::Broken(error) => {
                if self.failure().is_none_or(|before| before.message() != error.message()) {
                    log::error!("{}: cannot be loaded: {error}", self.folder.display());
                }
                self.attempts = self.attempts.saturating_add(1);
                self.retry_at = Instant::now() + LONGEST_RETRY;
                self.set_state(VersionState::Failed(error));
            }
        }
    }
}
