//! What people who operate the server see and change: the state of models, the past, the way
//! things go. None of it holds a request up.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use super::{Engine, stopping};
use crate::config::{RepositoryConfig, SourceConfig};
use crate::repository::ChangeRequest;
use tensorserve_os::machine;
use tensorserve_tensor::error::{Code, Error, Result};

/// What is fixed when the server starts.
#[derive(Debug)]
pub struct Facts {
    /// When it started.
    pub started_at: SystemTime,
    /// Memory for models, if it is limited.
    pub memory_limit: Option<u64>,
    /// Memory that the process can have.
    pub machine_memory: Option<u64>,
    /// Processors.
    pub cores: usize,
}

impl Facts {
    pub(super) fn new(config: &RepositoryConfig) -> Self {
        Facts {
            started_at: SystemTime::now(),
            memory_limit: config.memory_limit,
            machine_memory: machine::memory(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        }
    }
}

impl Engine {
    /// What is fixed when the server starts.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// Why the server is not ready; nothing if it is.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let mut reasons = self.0.repository.obstacles();
        if self.is_draining() {
            reasons.insert(0, "it was told not to take new clients (drain)".to_owned());
        }
        if self.is_stopping() {
            reasons.insert(0, stopping().message().to_owned());
        }
        reasons
    }

    /// Whether the server will stop.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Relaxed)
    }

    /// Whether it was told not to take new clients.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.draining.load(Relaxed)
    }

    /// From now on the server says that it is not ready, or no longer does. It serves every request
    /// either way.
    pub fn set_draining(&self, draining: bool) {
        self.0.draining.store(draining, Relaxed);
    }

    /// Loads one more model as [`Engine::load_model`] does, because `by` wants it.
    ///
    /// # Errors
    /// The same.
    pub async fn load_for(&self, source: SourceConfig, deadline: Instant, by: &str) -> Result<()> {
        let outcome = self.0.repository.load_model(source, deadline, by).await;
        outcome.unwrap_or_else(|_| Err(stopping()))
    }

    /// Takes a model away as [`Engine::unload_model`] does, because `by` wants it.
    ///
    /// # Errors
    /// The same.
    pub async fn unload_for(&self, name: &str, by: &str) -> Result<()> {
        let outcome = self.0.repository.unload_model(name, by).await;
        outcome.unwrap_or_else(|_| Err(stopping()))
    }

    /// Changes something of a model, at the request of the user `by`, and returns when that is done.
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

    /// The source of a model in the folder that an operator names: one below a folder that the
    /// server was started with, links and `..` followed.
    ///
    /// # Errors
    /// [`Code::PermissionDenied`] for any other folder, whether or not it is there.
    pub fn source_at(&self, name: &str, path: &Path) -> Result<SourceConfig> {
        let refuse = || {
            let message = "the path is not below a folder that this server was started with";
            Error::new(Code::PermissionDenied, message)
        };
        let real = path.canonicalize().map_err(|_| refuse())?;
        let mut roots = self.0.roots.iter().filter_map(|root| root.canonicalize().ok());
        if !path.is_absolute() || !roots.any(|root| real.starts_with(root)) {
            return Err(refuse());
        }
        let (name, model) = (Some(name.to_owned()), self.0.config.common.clone());
        Ok(SourceConfig { path: real, name, model })
    }
}

/// The folders that operators may load models from.
pub(super) fn roots(sources: &[SourceConfig], more: &[PathBuf]) -> Vec<PathBuf> {
    sources.iter().map(|source| &source.path).chain(more).cloned().collect()
}
