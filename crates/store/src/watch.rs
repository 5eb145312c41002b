//! Which locations are watched, and which downloads are under way.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::Runtime;

use crate::cache::{Cache, files_of};
use crate::client::{RemoteObject, StoreClient};
use crate::config::StoreConfig;
use crate::download::{DownloadProgress, download};
use crate::errors::StoreFailure;
use crate::listing::{DownloadUnit, Listing};
use crate::location::Location;
use crate::source::{
    Tree, WatchedLocation, keep_listing, nothing_at, offline_listing, retry_delay,
};
use tensorserve_tensor::error::{Code, Error, Result};

/// Files that were written this recently may be part of an upload that is under way.
const SETTLED: Duration = Duration::from_secs(10);

/// The time after which such files are listed again.
const SETTLE_INTERVAL: Duration = Duration::from_secs(2);

/// Units and locations that are remembered.
const MOST_UNITS: usize = 20_000;
const MOST_SOURCES: usize = 1000;

/// What is known about a location.
pub enum Listed {
    /// The location was not listed yet, or its one file is not here yet; the text says what it
    /// waits for.
    Pending(String),
    /// What the location contained when it was last listed.
    Tree(Arc<Tree>),
    /// The location could not be listed, and nothing of it is in the cache.
    Failed(Error),
}

/// Whether a directory is here.
#[derive(Debug)]
pub enum Fetch {
    /// The directory is not in the cache, and not of the mirror.
    Foreign,
    /// The whole directory is here.
    Here,
    /// The directory is being downloaded; the text says how far it is.
    Pending(String),
    /// The directory could not be downloaded. It is tried again when it is asked for later.
    Failed(Error),
}

/// The state of a location, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceReport {
    /// The location, without secrets.
    pub location: String,
    /// When it was last listed.
    pub listed_at: Option<SystemTime>,
    /// Why it cannot be listed.
    pub error: Option<String>,
    /// What is served was downloaded by an earlier process, and the store has not responded yet.
    pub is_offline: bool,
    /// Its objects.
    pub objects: usize,
    /// Downloads under way, their bytes so far, and their bytes in all.
    pub downloads: usize,
    /// See `downloads`.
    pub downloaded: u64,
    /// See `downloads`.
    pub to_download: u64,
}

/// What is called when something has changed.
pub(crate) type ChangeHook = Box<dyn Fn() + Send + Sync>;

/// The state of the mirror, which its threads share.
pub(crate) struct Watch {
    config: StoreConfig,
    pub(crate) cache: Cache,
    state: Mutex<WatchState>,
    on_change: Arc<OnceLock<ChangeHook>>,
}

#[derive(Default)]
struct WatchState {
    /// By location as it was asked for.
    sources: BTreeMap<String, WatchedLocation>,
    /// What can be downloaded, by the directory or file that it becomes.
    units: HashMap<PathBuf, KnownUnit>,
    /// By the name of the unit.
    fetches: HashMap<String, FetchState>,
}

#[derive(Clone)]
struct KnownUnit {
    unit: Arc<DownloadUnit>,
    client: Arc<StoreClient>,
    /// The location as it was asked for.
    asked: String,
}

enum FetchState {
    Running(Arc<DownloadProgress>, String),
    Failed { error: Error, retry_at: Instant, failures: u32 },
}

impl Watch {
    pub(crate) fn new(
        config: StoreConfig,
        cache: Cache,
        on_change: Arc<OnceLock<ChangeHook>>,
    ) -> Self {
        Watch { config, cache, state: Mutex::default(), on_change }
    }

    /// The bytes of a download under way, and of all of it.
    pub(crate) fn progress(&self, id: &str) -> Option<(u64, u64)> {
        match self.state().fetches.get(id)? {
            FetchState::Running(progress, _) => Some((progress.done(), progress.total)),
            FetchState::Failed { .. } => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        if let Some(hook) = self.on_change.get() {
            hook();
        }
    }

    pub(crate) fn list(self: &Arc<Self>, text: &str, runtime: &Runtime) -> Listed {
        let mut state = self.state();
        let WatchState { sources, fetches, .. } = &mut *state;
        if !sources.contains_key(text) {
            match Location::parse(text) {
                Err(error) => return Listed::Failed(error),
                Ok(location) => {
                    if sources.len() >= MOST_SOURCES {
                        sources.clear();
                    }
                    sources.insert(text.to_owned(), WatchedLocation::new(location));
                }
            }
        }
        let Some(source) = sources.get_mut(text) else {
            return Listed::Pending(String::new());
        };
        if source.is_due() {
            source.is_listing = true;
            let (watch, text) = (Arc::clone(self), text.to_owned());
            runtime.spawn(async move { watch.refresh(&text).await });
        }
        if let Some(tree) = &source.tree {
            return Listed::Tree(Arc::clone(tree));
        }
        if let Some(error) = &source.error {
            return Listed::Failed(error.duplicate());
        }
        let awaited = source.awaited.as_deref().and_then(|place| self.cache.id_of(place));
        Listed::Pending(match awaited.and_then(|id| fetches.get(id)) {
            Some(FetchState::Running(progress, _)) => progress.text(),
            Some(FetchState::Failed { .. }) | None => "the store is being listed".to_owned(),
        })
    }

    /// Lists a location once, and takes over what it contains.
    async fn refresh(self: &Arc<Self>, text: &str) {
        let outcome = self.list_remote(text).await;
        let outcome = match outcome {
            Ok((client, remote)) => self.take_over(text, &client, remote).await,
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            self.list_failed(text, error);
        }
    }

    /// The objects of a location, in the region that the store names.
    async fn list_remote(&self, text: &str) -> Result<(Arc<StoreClient>, Vec<RemoteObject>)> {
        let client = self.client(text)?;
        let StoreFailure { error, region } = match client.list().await {
            Ok(objects) => return Ok((client, objects)),
            Err(failure) => failure,
        };
        if region.is_none() {
            return Err(error);
        }
        if let Some(source) = self.state().sources.get_mut(text) {
            source.region = region;
            source.client = None;
        }
        let client = self.client(text)?;
        let objects = client.list().await.map_err(|failure| failure.error)?;
        Ok((client, objects))
    }

    /// The connection to a location.
    fn client(&self, text: &str) -> Result<Arc<StoreClient>> {
        let mut state = self.state();
        let gone = || Error::internal("the location is no longer watched");
        let source = state.sources.get_mut(text).ok_or_else(gone)?;
        if let Some(client) = &source.client {
            return Ok(Arc::clone(client));
        }
        let client = StoreClient::new(&source.location, &self.config, source.region.as_deref())?;
        Ok(Arc::clone(source.client.insert(Arc::new(client))))
    }

    /// Takes over what a location contains.
    async fn take_over(
        self: &Arc<Self>,
        text: &str,
        client: &Arc<StoreClient>,
        remote: Vec<RemoteObject>,
    ) -> Result<()> {
        let (listing, notes) = Listing::new(&client.location, remote);
        if listing.objects.is_empty() {
            return Err(nothing_at(&client.location));
        }
        let before = self.state().sources.get(text).and_then(|source| source.tree.clone());
        // The content of one file or archive may have been removed from the cache.
        let is_here = |tree: &Tree| !tree.has_content() || tree.root().exists();
        let is_same = before.as_ref().is_some_and(|it| *it.listing == listing && is_here(it));
        let tree = match before {
            Some(tree) if is_same => tree,
            _ => Arc::new(self.tree_of(text, client, Arc::new(listing)).await?),
        };
        if !is_same {
            keep_listing(&self.cache, &client.location, &tree.listing);
        }
        if let Some(source) = self.state().sources.get_mut(text) {
            source.listed(notes);
            source.tree = Some(tree);
            source.awaited = None;
        }
        if !is_same {
            self.changed();
        }
        Ok(())
    }

    /// The tree of a listing. Downloads the one file of a location that is a file.
    async fn tree_of(
        self: &Arc<Self>,
        text: &str,
        client: &Arc<StoreClient>,
        listing: Arc<Listing>,
    ) -> Result<Tree> {
        if !listing.is_file() {
            return Tree::of_names(client, listing, &self.cache);
        }
        let unit =
            listing.unit(&client.location, "").ok_or_else(|| nothing_at(&client.location))?;
        let (id, name) = (unit.id.clone(), unit.name.clone());
        let place = self.know(unit, client, text);
        if !self.cache.is_whole(&id) {
            let progress = self.begin_fetch(&id, text, &place);
            let Some((known, progress)) = progress else {
                return Err(Error::unavailable(format!(
                    "{}: is being downloaded",
                    client.location
                )));
            };
            if let Some(source) = self.state().sources.get_mut(text) {
                source.awaited = Some(place);
            }
            let outcome = download(client, &self.cache, &known.unit, &progress).await;
            self.state().fetches.remove(&id);
            outcome?;
        }
        Ok(Tree::of_content(client, listing, &self.cache, &id, &name))
    }

    /// A listing has failed. What an earlier process has downloaded counts until there is another.
    fn list_failed(self: &Arc<Self>, text: &str, error: Error) {
        let mut state = self.state();
        let Some(source) = state.sources.get_mut(text) else {
            return;
        };
        source.failed(error);
        let is_news = source.failures == 1;
        let (location, client) = (source.location.clone(), source.client.clone());
        let has_tree = source.tree.is_some();
        let delay = source.retry_delay();
        drop(state);
        if let (false, Some(client)) = (has_tree, client)
            && let Some(tree) = self.offline_tree(&location, &client)
            && let Some(source) = self.state().sources.get_mut(text)
        {
            log::warn!("{location}: serving what was downloaded before, until the store responds");
            source.tree = Some(Arc::new(tree));
            source.is_offline = true;
        }
        if is_news {
            self.changed();
        }
        if !has_tree {
            // Also where the sources are scanned only once.
            let (watch, text) = (Arc::clone(self), text.to_owned());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let is_due = match watch.state().sources.get_mut(&text) {
                    Some(source) if source.is_due() => {
                        source.is_listing = true;
                        true
                    }
                    _ => false,
                };
                if is_due {
                    Box::pin(watch.refresh(&text)).await;
                }
            });
        }
    }

    /// What an earlier process has downloaded of a location.
    fn offline_tree(&self, location: &Location, client: &Arc<StoreClient>) -> Option<Tree> {
        let listing = Arc::new(offline_listing(&self.cache, location)?);
        if !listing.is_file() {
            return Tree::of_names(client, listing, &self.cache).ok();
        }
        let DownloadUnit { id, name, .. } = listing.unit(location, "")?;
        Some(Tree::of_content(client, listing, &self.cache, &id, &name))
    }

    /// Remembers what can be downloaded, and returns where it will be.
    pub(crate) fn know(
        &self,
        unit: DownloadUnit,
        client: &Arc<StoreClient>,
        asked: &str,
    ) -> PathBuf {
        let place = files_of(&self.cache.unit(&unit.id)).join(&unit.name);
        let units = &mut self.state().units;
        if units.len() >= MOST_UNITS {
            units.clear();
        }
        let (unit, client, asked) = (Arc::new(unit), Arc::clone(client), asked.to_owned());
        units.insert(place.clone(), KnownUnit { unit, client, asked });
        place
    }

    pub(crate) fn fetch(self: &Arc<Self>, place: &Path, runtime: &Runtime) -> Fetch {
        let Some(id) = self.cache.id_of(place) else {
            return Fetch::Foreign;
        };
        if self.cache.is_whole(id) {
            self.cache.touch(id);
            return Fetch::Here;
        }
        match self.state().fetches.get(id) {
            Some(FetchState::Running(progress, _)) => return Fetch::Pending(progress.text()),
            Some(FetchState::Failed { error, retry_at, .. }) if Instant::now() < *retry_at => {
                return Fetch::Failed(error.duplicate());
            }
            Some(FetchState::Failed { .. }) | None => {}
        }
        let known = self.state().units.get(place).cloned();
        let Some(KnownUnit { asked, .. }) = known else {
            return Fetch::Failed(Error::unavailable("it is no longer in the cache of models"));
        };
        let failures = match self.state().fetches.get(id) {
            Some(FetchState::Failed { failures, .. }) => *failures,
            Some(FetchState::Running(..)) | None => 0,
        };
        let Some((known, progress)) = self.begin_fetch(id, &asked, place) else {
            return Fetch::Pending("it is being downloaded".to_owned());
        };
        let (watch, text) = (Arc::clone(self), progress.text());
        runtime.spawn(async move { watch.run_fetch(known, &progress, failures).await });
        Fetch::Pending(text)
    }

    /// Registers a download. `None` if it is under way.
    fn begin_fetch(
        &self,
        id: &str,
        asked: &str,
        place: &Path,
    ) -> Option<(KnownUnit, Arc<DownloadProgress>)> {
        let mut state = self.state();
        if let Some(FetchState::Running(..)) = state.fetches.get(id) {
            return None;
        }
        let known = state.units.get(place)?.clone();
        let is_repeated = match state.fetches.get(id) {
            Some(_) => true,
            None => state.sources.get(asked).is_some_and(|source| source.failures > 0),
        };
        let progress = Arc::new(DownloadProgress::new(known.unit.bytes(), is_repeated));
        let running = FetchState::Running(Arc::clone(&progress), asked.to_owned());
        state.fetches.insert(id.to_owned(), running);
        Some((known, progress))
    }

    /// Downloads a unit once its upload is complete.
    async fn run_fetch(
        self: &Arc<Self>,
        known: KnownUnit,
        progress: &DownloadProgress,
        failures: u32,
    ) {
        let KnownUnit { unit, client, asked } = known;
        let outcome = match settle(&client, &unit, progress).await {
            Ok(()) => download(&client, &self.cache, &unit, progress).await,
            Err(error) => Err(error),
        };
        let mut state = self.state();
        state.fetches.remove(&unit.id);
        if let Err(error) = outcome {
            let has_changed = matches!(error.code(), Code::Aborted | Code::NotFound);
            match has_changed {
                true => log::info!("{error}; it is listed again"),
                false if failures == 0 => log::warn!("{}: not downloaded: {error}", unit.shown),
                false => log::debug!("{}: not downloaded: {error}", unit.shown),
            }
            let failures = failures + 1;
            let retry_at = Instant::now() + retry_delay(failures);
            state.fetches.insert(unit.id.clone(), FetchState::Failed { error, retry_at, failures });
            if let Some(source) = state.sources.get_mut(&asked).filter(|_| has_changed) {
                source.list_soon();
            }
        }
        drop(state);
        self.changed();
    }

    pub(crate) fn reports(&self) -> Vec<SourceReport> {
        let state = self.state();
        let reports = state.sources.iter().map(|(text, source)| {
            let running = state.fetches.values().filter_map(|fetch| match fetch {
                FetchState::Running(progress, asked) if asked == text => Some(progress),
                FetchState::Running(..) | FetchState::Failed { .. } => None,
            });
            let running: Vec<&Arc<DownloadProgress>> = running.collect();
            SourceReport {
                location: source.location.to_string(),
                listed_at: source.listed_at,
                error: source.error.as_ref().map(|error| error.message().to_owned()),
                is_offline: source.is_offline,
                objects: source.tree.as_ref().map_or(0, |tree| tree.listing.objects.len()),
                downloads: running.len(),
                downloaded: running.iter().map(|progress| progress.done()).sum(),
                to_download: running.iter().map(|progress| progress.total).sum(),
            }
        });
        reports.collect()
    }
}

/// Waits until the files of a unit no longer change: an upload of several files may be under way.
async fn settle(
    client: &StoreClient,
    unit: &DownloadUnit,
    progress: &DownloadProgress,
) -> Result<()> {
    let age = unit.modified().elapsed();
    // Of a file in the future, the clocks differ.
    if age.is_ok_and(|age| age >= SETTLED) {
        return Ok(());
    }
    progress.wait_for("waiting for its upload to end");
    tokio::time::sleep(SETTLE_INTERVAL).await;
    let remote = client.list().await.map_err(|failure| failure.error)?;
    let (listing, _) = Listing::new(&client.location, remote);
    let now = listing.unit(&client.location, &unit.manifest.within);
    match now.is_some_and(|now| now.id == unit.id) {
        true => Ok(()),
        false => {
            Err(Error::new(Code::Aborted, format!("{}: its files are still changing", unit.shown)))
        }
    }
}
