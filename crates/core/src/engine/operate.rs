//! The functions for operators: the state of the server, drain, and changes of models. None of them
//! delays requests.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use super::{Engine, stopping};
use crate::config::{RepositoryConfig, SourceConfig, is_store_url};
use crate::repository::ChangeRequest;
use tensorserve_os::machine;
use tensorserve_tensor::error::{Code, Error, Result};

/// Facts about the server that do not change after its start.
#[derive(Debug)]
pub struct ServerFacts {
    /// When it started.
    pub started_at: SystemTime,
    /// The memory limit for models, if there is one.
    pub memory_limit: Option<u64>,
    /// Memory of the machine or the container.
    pub machine_memory: Option<u64>,
    /// Processor cores.
    pub cores: usize,
}

impl ServerFacts {
    pub(super) fn new(config: &RepositoryConfig) -> Self {
        ServerFacts {
            started_at: SystemTime::now(),
            memory_limit: config.memory_limit,
            machine_memory: machine::memory(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }
}

impl Engine {
    /// Facts about the server that do not change after its start.
    #[must_use]
    pub fn facts(&self) -> &ServerFacts {
        &self.0.facts
    }

    /// The reasons why the server is not ready; empty if it is.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = self.0.repository.obstacles();
        if self.is_draining() {
            reasons.insert(0, "the server is draining".to_owned());
        }
        if self.is_stopping() {
            reasons.insert(0, stopping().message().to_owned());
        }
        reasons
    }

    /// Whether the shutdown has begun.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Relaxed)
    }

    /// Whether an operator has begun a drain.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.draining.load(Relaxed)
    }

    /// Begins or ends a drain: the server reports that it is not ready, and still serves every
    /// request.
    pub fn set_draining(&self, draining: bool) {
        self.0.draining.store(draining, Relaxed);
    }

    /// Loads one more model like [`Engine::load_model`], at the request of the user `by`.
    ///
    /// # Errors
    /// Those of [`Engine::load_model`].
    pub async fn load_for(&self, source: SourceConfig, deadline: Instant, by: &str) -> Result<()> {
        self.0.repository.fetch_for(&source, deadline).await?;
        let outcome = self.0.repository.load_model(source, deadline, by).await;
        outcome.unwrap_or_else(|_| Err(stopping()))
    }

    /// Downloads everything at a location in a store, and returns its local directory or file.
    ///
    /// # Errors
    /// What the store reports; [`Code::DeadlineExceeded`] at `deadline`.
    pub async fn fetch_whole(&self, location: &Path, deadline: Instant) -> Result<PathBuf> {
        self.0.repository.fetch_whole(location, deadline).await
    }

    /// Unloads a model like [`Engine::unload_model`], at the request of the user `by`.
    ///
    /// # Errors
    /// Those of [`Engine::unload_model`].
    pub async fn unload_for(&self, name: &str, by: &str) -> Result<()> {
        let outcome = self.0.repository.unload_model(name, by).await;
        outcome.unwrap_or_else(|_| Err(stopping()))
    }

    /// Changes a model at the request of the user `by`, and returns when the change is done.
    ///
    /// # Errors
    /// [`Code::NotFound`] if there is no such model, version or label,
    /// [`Code::FailedPrecondition`] if it cannot be changed so, [`Code::AlreadyExists`] for a
    /// model that is not out of service, [`Code::DeadlineExceeded`] for one that is not back in
    /// time, and what its load reports.
    pub async fn change(&self, model: &str, change: ChangeRequest, by: &str) -> Result<()> {
        let outcome = self.0.repository.change(model, change, by).await;
        outcome.unwrap_or_else(|_| Err(stopping()))
    }

    /// The source for a model directory that an operator names. It must be inside a directory that
    /// the server may load models from, after links and `..` are resolved, or below the URL of one
    /// of its sources.
    ///
    /// # Errors
    /// [`Code::PermissionDenied`] for any other directory, whether or not it exists.
    pub fn source_at(&self, name: &str, path: &Path) -> Result<SourceConfig> {
        let refuse = || {
            let message =
                "the path is not inside a directory that this server may load models from";
            Error::new(Code::PermissionDenied, message)
        };
        let (named, model) = (Some(name.to_owned()), self.0.config.common.clone());
        if is_store_url(path) {
            let stores = self.0.repository.stores();
            let is_allowed = self.0.roots.iter().any(|root| stores.is_within(path, root));
            let source = SourceConfig { path: path.to_owned(), name: named, model };
            return is_allowed.then_some(source).ok_or_else(refuse);
        }
        let real = path.canonicalize().map_err(|_| refuse())?;
        let mut roots = self.0.roots.iter().filter_map(|root| root.canonicalize().ok());
        if !path.is_absolute() || !roots.any(|root| real.starts_with(root)) {
            return Err(refuse());
        }
        Ok(SourceConfig { path: real, name: named, model })
    }
}

/// The directories from which operators may load models.
pub(super) fn roots(sources: &[SourceConfig], more: &[PathBuf]) -> Vec<PathBuf> {
    sources.iter().map(|source| &source.path).chain(more).cloned().collect()
}
