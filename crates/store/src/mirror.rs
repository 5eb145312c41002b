//! The mirror: lists locations and downloads what is asked for.
//!
//! Nothing here blocks: [`StoreMirror::list`] and [`StoreMirror::fetch`] return what is known, and begin what
//! is missing on the mirror's own threads. When something has changed, the mirror says so.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::cache::{Cache, CacheLease};
use crate::config::StoreConfig;
use crate::source::{Tree, nothing_at};
use crate::watch::{ChangeHook, Fetch, Listed, SourceReport, Watch};
use tensorserve_tensor::error::{Error, Result};

/// The threads of all listings and downloads.
const THREADS: usize = 2;

/// How often [`StoreMirror::wait`] looks.
const WAIT_INTERVAL: Duration = Duration::from_millis(50);

/// Mirrors locations into a folder. Creates neither files nor threads before the first location.
pub struct StoreMirror {
    config: StoreConfig,
    on_change: Arc<OnceLock<ChangeHook>>,
    running: Mutex<Option<(Arc<Watch>, Runtime)>>,
}

impl StoreMirror {
    /// A mirror.
    #[must_use]
    pub fn new(mut config: StoreConfig) -> Self {
        // Paths of the cache are compared by their prefix.
        config.cache = std::path::absolute(&config.cache).unwrap_or(config.cache);
        StoreMirror { config, on_change: Arc::default(), running: Mutex::default() }
    }

    /// Sets what is called, on a thread of the mirror, when a listing has changed or a download has
    /// ended. Only the first call has an effect.
    pub fn on_change(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_change.set(Box::new(hook));
    }

    /// What is known about the location `text`. Lists it again in the background, if that was not
    /// done a moment ago.
    pub fn list(&self, text: &str) -> Listed {
        match self.with_watch(|watch, runtime| watch.list(text, runtime)) {
            Ok(listed) => listed,
            Err(error) => Listed::Failed(error),
        }
    }

    /// Where the directory or file `place` of a tree is when it is downloaded; its name changes with
    /// its content. `None` if the tree does not contain it.
    pub fn local(&self, tree: &Tree, asked: &str, place: &Path) -> Option<PathBuf> {
        if tree.has_content() {
            return Some(place.to_owned());
        }
        let within = place.strip_prefix(tree.root()).ok()?.to_str()?;
        let unit = tree.listing.unit(tree.location(), within)?;
        let known = |watch: &Arc<Watch>, _: &Runtime| watch.know(unit, &tree.client, asked);
        self.with_watch(known).ok()
    }

    /// Whether `place`, which [`StoreMirror::local`] has returned, is here. Begins to download it if it
    /// is not.
    pub fn fetch(&self, place: &Path) -> Fetch {
        if !place.starts_with(&self.config.cache) {
            return Fetch::Foreign;
        }
        match self.with_watch(|watch, runtime| watch.fetch(place, runtime)) {
            Ok(fetch) => fetch,
            Err(error) => Fetch::Failed(error),
        }
    }

    /// The bytes of a download under way, and of all of it.
    pub fn progress(&self, place: &Path) -> Option<(u64, u64)> {
        let progress = |watch: &Arc<Watch>, _: &Runtime| {
            let id = watch.cache.id_of(place)?;
            watch.progress(id)
        };
        self.with_watch(progress).ok().flatten()
    }

    /// Keeps what `place` is in from being removed. `None` if it is not in the cache.
    pub fn lease(&self, place: &Path) -> Option<CacheLease> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let (watch, _) = running.as_ref()?;
        watch.cache.lease(watch.cache.id_of(place)?)
    }

    /// Waits until the location `text` is listed.
    ///
    /// # Errors
    /// If it cannot be listed, and nothing of it is in the cache.
    pub async fn tree(&self, text: &str) -> Result<Arc<Tree>> {
        loop {
            match self.list(text) {
                Listed::Tree(tree) => return Ok(tree),
                Listed::Failed(error) => return Err(error),
                Listed::Pending(_) => tokio::time::sleep(WAIT_INTERVAL).await,
            }
        }
    }

    /// Waits until `place` is here.
    ///
    /// # Errors
    /// If it cannot be downloaded.
    pub async fn wait(&self, place: &Path) -> Result<()> {
        loop {
            match self.fetch(place) {
                Fetch::Here | Fetch::Foreign => return Ok(()),
                Fetch::Failed(error) => return Err(error),
                Fetch::Pending(_) => tokio::time::sleep(WAIT_INTERVAL).await,
            }
        }
    }

    /// Downloads everything at a location, and returns its directory or file.
    ///
    /// # Errors
    /// If it cannot be listed or downloaded.
    pub async fn whole(&self, text: &str) -> Result<PathBuf> {
        let tree = self.tree(text).await?;
        let nothing = || nothing_at(tree.location());
        let place = self.local(&tree, text, tree.root()).ok_or_else(nothing)?;
        self.wait(&place).await?;
        Ok(place)
    }

    /// The state of every location that was asked for.
    pub fn reports(&self) -> Vec<SourceReport> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().map_or(Vec::new(), |(watch, _)| watch.reports())
    }

    /// The bytes that the cache takes, and the most that it may take. `None` before the first
    /// location.
    pub fn cache_bytes(&self) -> Option<(u64, u64)> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let watch = Arc::clone(&running.as_ref()?.0);
        drop(running);
        Some((watch.cache.bytes(), watch.cache.limit()))
    }

    fn with_watch<T>(&self, use_it: impl FnOnce(&Arc<Watch>, &Runtime) -> T) -> Result<T> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            *running = Some(self.start()?);
        }
        match running.as_ref() {
            Some((watch, runtime)) => Ok(use_it(watch, runtime)),
            None => Err(Error::internal("the mirror has not started")),
        }
    }

    fn start(&self) -> Result<(Arc<Watch>, Runtime)> {
        let cache = Cache::open(&self.config.cache, self.config.cache_bytes)?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("stores")
            .enable_all()
            .build()
            .map_err(|e| {
                Error::internal("the threads of the stores cannot start").with_source(e)
            })?;
        let watch = Watch::new(self.config.clone(), cache, Arc::clone(&self.on_change));
        Ok((Arc::new(watch), runtime))
    }
}

impl Drop for StoreMirror {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((_, runtime)) = running {
            // Also in an asynchronous context, where waiting is not allowed.
            runtime.shutdown_background();
        }
    }
}
