//! How other threads reach the lifecycle manager: requests with a completion, and reports.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;
use tokio::sync::oneshot;

use super::VersionKey;
use super::found::RequestedModel;
use crate::config::SourceConfig;
use crate::repository::ChangeRequest;
use crate::repository::servable::Servable;
use crate::repository::trial::TrialReport;
use tensorserve_tensor::error::Result;

/// What the lifecycle manager reacts to.
pub(super) enum ManagerEvent {
    /// A version is loaded and runs its warm-up.
    Warming(VersionKey),
    /// A load has ended, after this time.
    Loaded(VersionKey, Result<Arc<Servable>>, Duration),
    /// The trial of a version has ended.
    Judged(VersionKey, Box<TrialReport>),
    /// The memory of a version is released.
    Unloaded(VersionKey),
    /// A path responds again, or a store has something new.
    DiskResponds,
    /// Serve these sources instead of the present ones.
    SetSources(Vec<SourceConfig>, Completion),
    /// Load one more model, until the deadline at the latest, at the request of a user.
    LoadModel(Box<SourceConfig>, Instant, Arc<str>, Completion),
    /// The files of a model that a user has requested were found, or not.
    Requested(Result<Box<RequestedModel>>, Instant, Arc<str>, Completion),
    /// Unload a model that was loaded by request, at the request of a user.
    UnloadModel(Arc<str>, Arc<str>, Completion),
    /// Change a model, at the request of a user.
    ChangeModel(Arc<str>, ChangeRequest, Arc<str>, Completion),
}

/// Where the outcome of a request to the lifecycle manager goes.
pub(super) struct Completion(oneshot::Sender<Result<()>>);

impl Completion {
    /// A completion, and where its outcome arrives.
    pub(super) fn channel() -> (Self, oneshot::Receiver<Result<()>>) {
        let (sender, outcome) = oneshot::channel();
        (Completion(sender), outcome)
    }

    /// Sends the outcome, which is dropped if no receiver is left.
    pub(super) fn finish(self, outcome: Result<()>) {
        let _ = self.0.send(outcome);
    }
}

/// Sends requests to the lifecycle manager. Each returns a receiver for the outcome, which stays
/// empty if the repository is stopped first.
#[derive(Clone)]
pub(in crate::repository) struct Control(Sender<ManagerEvent>);

impl Control {
    pub(super) fn new(events: Sender<ManagerEvent>) -> Self {
        Control(events)
    }

    /// Replaces the sources. Done when every version of theirs is ready or has failed.
    pub(in crate::repository) fn set_sources(
        &self,
        sources: Vec<SourceConfig>,
    ) -> oneshot::Receiver<Result<()>> {
        self.request(|completion| ManagerEvent::SetSources(sources, completion))
    }

    /// Loads one more model. Done when it is ready, has failed, or at `deadline`.
    pub(in crate::repository) fn load_model(
        &self,
        source: SourceConfig,
        deadline: Instant,
        by: Arc<str>,
    ) -> oneshot::Receiver<Result<()>> {
        let source = Box::new(source);
        self.request(|completion| ManagerEvent::LoadModel(source, deadline, by, completion))
    }

    /// Unloads a model that was loaded by request. Done when all of its memory is released.
    pub(in crate::repository) fn unload_model(
        &self,
        name: Arc<str>,
        by: Arc<str>,
    ) -> oneshot::Receiver<Result<()>> {
        self.request(|completion| ManagerEvent::UnloadModel(name, by, completion))
    }

    /// Changes a model. Done when the change is in effect.
    pub(in crate::repository) fn change_model(
        &self,
        name: Arc<str>,
        change: ChangeRequest,
        by: Arc<str>,
    ) -> oneshot::Receiver<Result<()>> {
        self.request(|completion| ManagerEvent::ChangeModel(name, change, by, completion))
    }

    fn request(
        &self,
        event: impl FnOnce(Completion) -> ManagerEvent,
    ) -> oneshot::Receiver<Result<()>> {
        let (completion, outcome) = Completion::channel();
        let _ = self.0.send(event(completion));
        outcome
    }
}
