//! One location that is watched: what it contained when it was last listed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use crate::cache::{Cache, files_of, read_json};
use crate::client::StoreClient;
use crate::listing::{ListedObject, Listing, hash_of};
use crate::location::Location;
use tensorserve_tensor::error::{Code, Error, Result};

/// The least time between two listings.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(500);

/// The longest time between attempts to list a location whose store fails.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// The files of a location, for the discovery of models: a tree of their names, or, where the
/// location is one file or archive, its content.
pub struct Tree {
    root: PathBuf,
    pub(crate) listing: Arc<Listing>,
    pub(crate) client: Arc<StoreClient>,
    /// The directory of names that is removed with this value.
    names: Option<PathBuf>,
}

impl Tree {
    /// The directory or file that stands for the location.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the files have their content, and are no names only.
    #[must_use]
    pub fn has_content(&self) -> bool {
        self.names.is_none()
    }

    /// The location.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.client.location
    }

    /// A tree of names.
    pub(crate) fn of_names(
        client: &Arc<StoreClient>,
        listing: Arc<Listing>,
        cache: &Cache,
    ) -> Result<Self> {
        static TREES: AtomicU64 = AtomicU64::new(0);
        let folder = cache.trees().join(TREES.fetch_add(1, Relaxed).to_string());
        let root = match listing.write_names(&client.location, &folder) {
            Ok(root) => root,
            Err(error) => {
                let _ = fs::remove_dir_all(&folder);
                return Err(error);
            }
        };
        Ok(Tree { root, listing, client: Arc::clone(client), names: Some(folder) })
    }

    /// The content of a location that is one file or archive, whose unit is `id`.
    pub(crate) fn of_content(
        client: &Arc<StoreClient>,
        listing: Arc<Listing>,
        cache: &Cache,
        id: &str,
        name: &str,
    ) -> Self {
        let root = inner_root(files_of(&cache.unit(id)).join(name));
        Tree { root, listing, client: Arc::clone(client), names: None }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if let Some(names) = &self.names {
            let _ = fs::remove_dir_all(names);
        }
    }
}

/// The directory in an archive that holds what was packed: archives often contain one directory,
/// and everything in it. One that is named by a number is a version.
fn inner_root(root: PathBuf) -> PathBuf {
    let entries = fs::read_dir(&root).into_iter().flatten().flatten();
    let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    match paths.as_slice() {
        [only] if only.is_dir() && !is_number(only) => only.clone(),
        _ => root,
    }
}

fn is_number(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A location that is watched.
pub(crate) struct WatchedLocation {
    pub(crate) location: Location,
    /// The region in which the store has said that the bucket is.
    pub(crate) region: Option<String>,
    pub(crate) client: Option<Arc<StoreClient>>,
    pub(crate) tree: Option<Arc<Tree>>,
    pub(crate) is_listing: bool,
    /// When it may be listed again.
    next: Instant,
    pub(crate) listed_at: Option<SystemTime>,
    /// Why it could not be listed, and how often in a row.
    pub(crate) error: Option<Error>,
    pub(crate) failures: u32,
    /// What is shown is what was listed by an earlier process.
    pub(crate) is_offline: bool,
    /// The unit that has to be here before there is a tree: that of one file or archive.
    pub(crate) awaited: Option<PathBuf>,
    /// Notes that were logged.
    notes: BTreeSet<String>,
}

impl WatchedLocation {
    pub(crate) fn new(location: Location) -> Self {
        WatchedLocation {
            location,
            region: None,
            client: None,
            tree: None,
            is_listing: false,
            next: Instant::now(),
            listed_at: None,
            error: None,
            failures: 0,
            is_offline: false,
            awaited: None,
            notes: BTreeSet::new(),
        }
    }

    /// Whether it is time to list it again.
    pub(crate) fn is_due(&self) -> bool {
        !self.is_listing && Instant::now() >= self.next
    }

    /// The next listing is due at once.
    pub(crate) fn list_soon(&mut self) {
        self.next = Instant::now();
    }

    /// A listing has arrived.
    pub(crate) fn listed(&mut self, notes: Vec<String>) {
        if self.error.take().is_some() {
            log::info!("{}: the store responds again", self.location);
        }
        for note in notes {
            if self.notes.len() < 1000 && self.notes.insert(note.clone()) {
                log::warn!("{note}");
            }
        }
        self.is_listing = false;
        self.is_offline = false;
        self.failures = 0;
        self.listed_at = Some(SystemTime::now());
        self.next = Instant::now() + SHORTEST_INTERVAL;
    }

    /// A listing has failed. Logs it if it is news.
    pub(crate) fn failed(&mut self, error: Error) {
        self.is_listing = false;
        self.failures = self.failures.saturating_add(1);
        self.next = Instant::now() + self.retry_delay();
        if self.error.as_ref().is_none_or(|before| before.message() != error.message()) {
            log::warn!("{error}; what is loaded from there stays loaded");
        }
        self.error = Some(error);
    }

    /// How long to wait after the last failure.
    pub(crate) fn retry_delay(&self) -> Duration {
        retry_delay(self.failures)
    }
}

/// How long to wait after a number of failures.
pub(crate) fn retry_delay(failures: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(failures.saturating_sub(1).min(10));
    (Duration::from_secs(1) * doubled).min(LONGEST_RETRY)
}

/// Keeps a listing for a restart without network.
pub(crate) fn keep_listing(cache: &Cache, location: &Location, listing: &Listing) {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let path = cache.listing(&hash_of(location));
    let number = WRITES.fetch_add(1, Relaxed);
    let temporary = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    let bytes = serde_json::to_vec(listing).unwrap_or_default();
    let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &path));
    if let Err(error) = written {
        let _ = fs::remove_file(&temporary);
        log::warn!("{location}: its listing cannot be kept for a restart without network: {error}");
    }
}

/// What an earlier process has downloaded of a location, restricted to what the location contained
/// when it was last listed.
pub(crate) fn offline_listing(cache: &Cache, location: &Location) -> Option<Listing> {
    let hash = hash_of(location);
    let last: Listing = read_json(&cache.listing(&hash))?;
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut objects: Vec<ListedObject> = Vec::new();
    for (_, id) in cache.whole_units() {
        let Some(manifest) = cache.manifest(&id).filter(|manifest| manifest.location == hash)
        else {
            continue;
        };
        let within = &manifest.within;
        let was_there = last.objects.iter().any(|object| is_below(&object.path, within));
        // Of several states of one version, the one that was used last.
        if !was_there || !taken.insert(within.clone()) {
            continue;
        }
        objects.extend(manifest.objects.iter().map(|object| {
            let path = [within.as_str(), object.path.as_str()];
            let path: Vec<&str> = path.into_iter().filter(|part| !part.is_empty()).collect();
            ListedObject { path: path.join("/"), ..object.clone() }
        }));
    }
    objects.sort_by(|a, b| a.path.cmp(&b.path));
    objects.dedup_by(|a, b| a.path == b.path);
    (!objects.is_empty()).then_some(Listing { objects })
}

fn is_below(path: &str, within: &str) -> bool {
    let rest = path.strip_prefix(within);
    within.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The error of a location without objects.
pub(crate) fn nothing_at(location: &Location) -> Error {
    Error::new(Code::NotFound, format!("{location}: there is no object at this path or below it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_directory_of_an_archive_is_its_root() {
        let folder = tempfile::tempdir().expect("a directory");
        let root = folder.path().join("a");
        fs::create_dir_all(root.join("half_plus_two/1")).expect("created");
        assert_eq!(inner_root(root.clone()), root.join("half_plus_two"));
        fs::write(root.join("README"), "").expect("written");
        assert_eq!(inner_root(root.clone()), root);
        let versions = folder.path().join("b");
        fs::create_dir_all(versions.join("1")).expect("created");
        assert_eq!(inner_root(versions.clone()), versions);
    }

    #[test]
    fn retries_become_rare() {
        let delays: Vec<u64> = (1..8).map(|failures| retry_delay(failures).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
    }
}
