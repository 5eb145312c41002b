//! Models that are in a store, such as a bucket, and become local directories before they are
//! loaded.
//!
//! The lifecycle manager handles them like others: it discovers models in a tree of names, and the
//! files of a version are fetched while the version waits for its files.

use std::any::Any;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::source::{self, DiscoveredModel, Discovery};
use super::{Repository, RepositoryShared};
use crate::config::{SourceConfig, is_store_url};
use crate::metrics::StoreReport;
use tensorserve_platform::Platforms;
use tensorserve_tensor::error::{Code, Error, Result};

/// How often a request that loads a model from a store looks how far that is.
const FETCH_INTERVAL: Duration = Duration::from_millis(50);

/// Reaches the stores. No method waits for one.
pub trait ModelStores: Send + Sync {
    /// Sets what is to be called when a listing has changed, or a directory has arrived or failed.
    fn on_change(&self, hook: Box<dyn Fn() + Send + Sync>);

    /// What is known about a location, such as `s3://bucket/models`. Lists it again in the
    /// background.
    fn list(&self, location: &Path) -> StoreListing;

    /// Whether `folder` is here; begins to fetch it if it is not.
    fn fetch(&self, folder: &Path) -> StoreFetch;

    /// Keeps a fetched directory from being removed. `None` if it is not here any more.
    fn lease(&self, folder: &Path) -> Option<FolderLease>;

    /// Whether `location` is `root`, or below it.
    fn is_within(&self, location: &Path, root: &Path) -> bool;

    /// The state of every location that was asked for.
    fn reports(&self) -> Vec<StoreReport>;

    /// The bytes that fetched directories take, and the most that they may take; `None` before the
    /// first location.
    fn cache_bytes(&self) -> Option<(u64, u64)>;
}

/// Keeps a directory from being removed.
pub type FolderLease = Arc<dyn Any + Send + Sync>;

/// What is known about a location.
pub enum StoreListing {
    /// Nothing yet; the text says what it waits for.
    Pending(String),
    /// What the location contained when it was last listed.
    Tree(Arc<dyn StoreTree>),
    /// The location could not be listed.
    Failed(Error),
}

/// The names of the files at a location, as a local directory, in which models are discovered.
pub trait StoreTree: Send + Sync {
    /// The directory or file that stands for the location.
    fn root(&self) -> &Path;

    /// Where the directory `place` of the tree is once it is fetched.
    fn local(&self, place: &Path) -> Option<PathBuf>;
}

/// Whether a directory is here.
#[derive(Debug)]
pub enum StoreFetch {
    /// The directory comes from no store.
    Local,
    /// The whole directory was fetched and verified.
    Whole,
    /// The directory is being fetched; the text says how far it is.
    Pending(String),
    /// The directory could not be fetched; that is tried again.
    Failed(Error),
}

/// No stores: every location is refused.
pub struct NoStores;

impl ModelStores for NoStores {
    fn on_change(&self, _hook: Box<dyn Fn() + Send + Sync>) {}

    fn list(&self, location: &Path) -> StoreListing {
        let message = format!(
            "{}: this build of tensorserve reads models from local directories only (feature \
             `stores`)",
            location.display()
        );
        StoreListing::Failed(Error::new(Code::Unimplemented, message))
    }

    fn fetch(&self, _folder: &Path) -> StoreFetch {
        StoreFetch::Local
    }

    fn lease(&self, _folder: &Path) -> Option<FolderLease> {
        None
    }

    fn is_within(&self, _location: &Path, _root: &Path) -> bool {
        false
    }

    fn reports(&self) -> Vec<StoreReport> {
        Vec::new()
    }

    fn cache_bytes(&self) -> Option<(u64, u64)> {
        None
    }
}

/// What a look at a source has found.
pub(super) enum Scanned {
    Found(Discovery),
    /// Its store was not listed yet; the text says what it waits for.
    Pending(String),
    Failed(Error),
}

impl From<Result<Discovery>> for Scanned {
    fn from(outcome: Result<Discovery>) -> Self {
        outcome.map_or_else(Scanned::Failed, Scanned::Found)
    }
}

/// Finds the models and versions of a source in a store. `discover` looks for them in its tree.
pub(super) fn discover_in_store(
    source: &SourceConfig,
    stores: &dyn ModelStores,
    discover: impl FnOnce(&SourceConfig) -> Result<Discovery>,
) -> Scanned {
    let tree = match stores.list(&source.path) {
        StoreListing::Tree(tree) => tree,
        StoreListing::Pending(what) => return Scanned::Pending(what),
        StoreListing::Failed(error) => return Scanned::Failed(error),
    };
    let in_tree = SourceConfig { path: tree.root().to_owned(), ..source.clone() };
    let mut discovery = match discover(&in_tree) {
        Ok(discovery) => discovery,
        Err(error) => return Scanned::Failed(error),
    };
    for model in &mut discovery.models {
        model.source.clone_from(&source.path);
        model.versions = std::mem::take(&mut model.versions)
            .into_iter()
            .filter_map(|(number, place)| Some((number, tree.local(&place)?)))
            .collect();
    }
    let (root, location) = (tree.root().display().to_string(), source.path.display().to_string());
    let notes = discovery.notes.iter().map(|note| note.replace(&root, &location));
    discovery.notes = notes.collect();
    Scanned::Found(discovery)
}

impl Repository {
    /// Fetches the versions that a request is about to load, if they are in a store.
    pub(crate) async fn fetch_for(&self, source: &SourceConfig, deadline: Instant) -> Result<()> {
        while is_store_url(&source.path) && !self.is_fetched(source).await? {
            if Instant::now() >= deadline {
                return Err(late(&source.path));
            }
            tokio::time::sleep(FETCH_INTERVAL).await;
        }
        Ok(())
    }

    /// Fetches everything at a location, and returns its local directory or file.
    pub(crate) async fn fetch_whole(&self, location: &Path, deadline: Instant) -> Result<PathBuf> {
        loop {
            let stores = &self.0.stores;
            match stores.list(location) {
                StoreListing::Failed(error) => return Err(error),
                StoreListing::Pending(_) => {}
                StoreListing::Tree(tree) => {
                    let folder = tree.local(tree.root()).unwrap_or_default();
                    match stores.fetch(&folder) {
                        StoreFetch::Local | StoreFetch::Whole => return Ok(folder),
                        StoreFetch::Pending(_) => {}
                        StoreFetch::Failed(error) => return Err(error),
                    }
                }
            }
            if Instant::now() >= deadline {
                return Err(late(location));
            }
            tokio::time::sleep(FETCH_INTERVAL).await;
        }
    }

    /// Whether all versions that a request is about to load are here.
    async fn is_fetched(&self, source: &SourceConfig) -> Result<bool> {
        let (shared, source) = (Arc::clone(&self.0), source.clone());
        // Discovery reads directories.
        let looked = tokio::task::spawn_blocking(move || shared.fetch_requested(&source)).await;
        looked.map_err(|e| {
            Error::internal("the background thread that looks for models failed").with_source(e)
        })?
    }
}

fn late(location: &Path) -> Error {
    let message = format!("{}: not downloaded before the deadline", location.display());
    Error::new(Code::DeadlineExceeded, message)
}

impl RepositoryShared {
    /// Whether all versions of the one model of `source` that its settings name are here.
    fn fetch_requested(&self, source: &SourceConfig) -> Result<bool> {
        let platforms: &Platforms = &self.platforms;
        let discover = |local: &SourceConfig| source::discover(local, platforms, &BTreeSet::new());
        let discovery = match discover_in_store(source, &*self.stores, discover) {
            Scanned::Found(discovery) => discovery,
            Scanned::Pending(_) => return Ok(false),
            Scanned::Failed(error) => return Err(error),
        };
        // Several models, or none, are refused where the request is carried out.
        let Some(model) = discovery.models.first() else {
            return Ok(true);
        };
        self.fetch_versions(model)
    }

    fn fetch_versions(&self, model: &DiscoveredModel) -> Result<bool> {
        let mut are_here = true;
        for number in model.requested_versions()? {
            let folder = model.versions.get(&number).cloned().unwrap_or_default();
            match self.stores.fetch(&folder) {
                StoreFetch::Local | StoreFetch::Whole => {}
                StoreFetch::Pending(_) => are_here = false,
                StoreFetch::Failed(error) => return Err(error),
            }
        }
        Ok(are_here)
    }
}
