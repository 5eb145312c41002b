//! The folder of downloaded versions, which several processes may share.
//!
//! ```text
//! units/ID/files/NAME  a version, whole: it was renamed into place
//! units/ID/unit.json   what it consists of
//! units/ID.part        the same while it is downloaded, by the process that locks ID
//! locks/ID             shared: the version is in use; exclusive: it is downloaded or removed
//! listings/HASH.json   the last listing of a location
//! trees/PROCESS        names without contents, for the discovery of models
//! ```
//! The kernel releases the locks of a process that ends, however it ends.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde::de::DeserializeOwned;

use crate::listing::Manifest;
use tensorserve_tensor::error::{Code, Error, Result};

/// A version that was used this recently is not removed: a process may be about to load it.
const RECENT: Duration = Duration::from_secs(60);

/// How long a lease waits for a writer of a whole unit, and how often it looks. A writer holds its lock for
/// a moment after the unit is whole.
const WRITER_PATIENCE: Duration = Duration::from_secs(2);
const WRITER_POLL: Duration = Duration::from_millis(2);

const UNITS: &str = "units";
const LOCKS: &str = "locks";
const LISTINGS: &str = "listings";
const TREES: &str = "trees";

/// The ending of a directory that is being filled.
const PART: &str = ".part";

/// The ending of a directory that is being removed.
const GONE: &str = ".gone";

/// The file that says what a unit consists of.
pub(crate) const MANIFEST: &str = "unit.json";

/// The folder of downloaded versions.
pub(crate) struct Cache {
    root: PathBuf,
    limit: u64,
    /// The directory of this process for names, and the lock that shows that it lives.
    trees: PathBuf,
    _living: File,
    /// Held while room is made, so that two downloads do not count the same bytes as free.
    room: Mutex<()>,
}

/// Keeps a version from being removed.
#[derive(Debug)]
pub struct CacheLease {
    _lock: File,
}

/// The right to write or remove a version.
pub(crate) struct WriteLock {
    _lock: File,
}

impl Cache {
    /// Opens the folder, creates it if necessary, and removes what ended processes have left.
    ///
    /// # Errors
    /// If it cannot be written, or every user can write to it.
    pub(crate) fn open(root: &Path, limit: u64) -> Result<Self> {
        let unusable = |e: io::Error| unusable(root, &e);
        for inner in [UNITS, LOCKS, LISTINGS, TREES] {
            create_private(&root.join(inner)).map_err(unusable)?;
        }
        let mode = fs::metadata(root).map_err(unusable)?.permissions().mode();
        if mode & 0o002 != 0 {
            let why = "every user can write to it; a model is a program: use another directory";
            return Err(unusable(io::Error::new(io::ErrorKind::PermissionDenied, why)));
        }
        let created = (0..).find_map(|number: u32| {
            let name = format!("process-{}-{number}", std::process::id());
            let trees = root.join(TREES).join(name);
            match DirBuilder::new().mode(0o700).create(&trees) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => None,
                outcome => Some(outcome.map(|()| trees)),
            }
        });
        let trees = created.unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()));
        let trees = trees.map_err(unusable)?;
        let living = File::create(trees.join("new")).map_err(unusable)?;
        living.lock().map_err(unusable)?;
        // Under its own name only when it is locked: without the lock, its process counts as dead.
        fs::rename(trees.join("new"), trees.join("lock")).map_err(unusable)?;
        let cache =
            Cache { root: root.to_owned(), limit, trees, _living: living, room: Mutex::default() };
        cache.remove_leftovers();
        Ok(cache)
    }

    /// The directory of this process for names without contents.
    pub(crate) fn trees(&self) -> &Path {
        &self.trees
    }

    /// The most bytes that it may hold.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The directory of a whole unit.
    pub(crate) fn unit(&self, id: &str) -> PathBuf {
        self.root.join(UNITS).join(id)
    }

    /// The directory of a unit that is being downloaded.
    pub(crate) fn part(&self, id: &str) -> PathBuf {
        self.root.join(UNITS).join(format!("{id}{PART}"))
    }

    /// Where the last listing of a location is kept.
    pub(crate) fn listing(&self, hash: &str) -> PathBuf {
        self.root.join(LISTINGS).join(format!("{hash}.json"))
    }

    /// Whether all of a unit is here.
    pub(crate) fn is_whole(&self, id: &str) -> bool {
        self.unit(id).is_dir()
    }

    /// The unit that `path` is in.
    pub(crate) fn id_of<'p>(&self, path: &'p Path) -> Option<&'p str> {
        let inside = path.strip_prefix(self.root.join(UNITS)).ok()?;
        inside.components().next()?.as_os_str().to_str()
    }

    /// Keeps a unit from being removed for as long as the lease exists. `None` if it is not here.
    /// Waits for a writer that has just made it whole, or is about to remove it.
    pub(crate) fn lease(&self, id: &str) -> Option<CacheLease> {
        let end = Instant::now() + WRITER_PATIENCE;
        let file = loop {
            match self.locked(id, true) {
                Some(file) => break file,
                None if !self.is_whole(id) || Instant::now() >= end => return None,
                None => thread::sleep(WRITER_POLL),
            }
        };
        let now = SystemTime::now();
        let _ = file.set_modified(now);
        self.is_whole(id).then_some(CacheLease { _lock: file })
    }

    /// Marks a unit as needed, so that it is not removed before it is loaded.
    pub(crate) fn touch(&self, id: &str) {
        let lock = OpenOptions::new().write(true).open(self.lock_file(id));
        let _ = lock.and_then(|lock| lock.set_modified(SystemTime::now()));
    }

    /// The right to write a unit; `None` if another download, or a lease, has it.
    pub(crate) fn write_lock(&self, id: &str) -> Option<WriteLock> {
        self.locked(id, false).map(|lock| WriteLock { _lock: lock })
    }

    fn lock_file(&self, id: &str) -> PathBuf {
        self.root.join(LOCKS).join(id)
    }

    fn locked(&self, id: &str, shared: bool) -> Option<File> {
        let path = self.lock_file(id);
        // Another process can remove the file between its opening and its locking.
        for _ in 0..100 {
            let file = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .read(true)
                .open(&path)
                .ok()?;
            match if shared { file.try_lock_shared() } else { file.try_lock() } {
                Ok(()) => {}
                Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return None,
            }
            let is_same =
                |there: fs::Metadata| file.metadata().is_ok_and(|it| it.ino() == there.ino());
            if fs::metadata(&path).is_ok_and(is_same) {
                return Some(file);
            }
        }
        None
    }

    /// What a whole unit consists of.
    pub(crate) fn manifest(&self, id: &str) -> Option<Manifest> {
        read_json(&self.unit(id).join(MANIFEST))
    }

    /// The whole units, with when they were last used, the latest first.
    pub(crate) fn whole_units(&self) -> Vec<(SystemTime, String)> {
        let mut units: Vec<_> =
            self.entries().into_iter().filter(|(_, name)| !name.contains('.')).collect();
        units.sort();
        units.reverse();
        units
    }

    /// The names in the directory of units, with when each unit was last used.
    fn entries(&self) -> Vec<(SystemTime, String)> {
        let entries = fs::read_dir(self.root.join(UNITS)).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .map(|name| {
                let id = name.split('.').next().unwrap_or(&name);
                let used = fs::metadata(self.lock_file(id)).and_then(|meta| meta.modified());
                (used.unwrap_or(SystemTime::UNIX_EPOCH), name)
            })
            .collect()
    }

    /// The bytes of everything that is here.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries().iter().map(|(_, name)| disk_bytes(&self.root.join(UNITS).join(name))).sum()
    }

    /// Removes units that are not in use, the least recently used first, until `bytes` more fit.
    /// `id` is the unit to make room for.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] if what is in use leaves no room.
    pub(crate) fn make_room(&self, id: &str, bytes: u64) -> Result<()> {
        let _turn = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entries = self.entries();
        entries.retain(|(_, name)| name.split('.').next() != Some(id));
        entries.sort();
        let sizes = entries.into_iter().map(|(used, name)| {
            let size = disk_bytes(&self.root.join(UNITS).join(&name));
            (used, name, size)
        });
        let sizes: Vec<_> = sizes.collect();
        let mut total: u64 = sizes.iter().map(|(_, _, size)| size).sum();
        for (used, name, size) in &sizes {
            if total.saturating_add(bytes) <= self.limit {
                return Ok(());
            }
            let is_recent = used.elapsed().is_ok_and(|since| since < RECENT);
            if !is_recent && self.remove(name) {
                log::info!("{}: removed a version that is not in use", self.root.display());
                total = total.saturating_sub(*size);
            }
        }
        if total.saturating_add(bytes) <= self.limit {
            return Ok(());
        }
        let (need, limit, used) = (in_mb(bytes), in_mb(self.limit), in_mb(total));
        Err(Error::new(
            Code::ResourceExhausted,
            format!(
                "the cache of models has no room for {need} MB: {used} MB of its {limit} MB are in \
                 use; raise model_cache_bytes"
            ),
        ))
    }

    /// Removes what is called `name` in the directory of units, unless it is in use.
    fn remove(&self, name: &str) -> bool {
        let id = name.split('.').next().unwrap_or(name);
        let Some(lock) = self.write_lock(id) else {
            return false;
        };
        let folder = self.root.join(UNITS).join(name);
        // A process that ends in the middle must not leave half a unit under its name.
        let gone = self.root.join(UNITS).join(format!("{id}{GONE}"));
        let removed = match name.ends_with(GONE) {
            true => fs::remove_dir_all(&folder),
            false => fs::rename(&folder, &gone).and_then(|()| fs::remove_dir_all(&gone)),
        };
        if removed.is_ok() && !self.is_whole(id) && !self.part(id).exists() {
            let _ = fs::remove_file(self.lock_file(id));
        }
        drop(lock);
        removed.is_ok()
    }

    /// Removes what processes have left that were killed.
    fn remove_leftovers(&self) {
        for (_, name) in self.entries() {
            if name.ends_with(GONE) {
                self.remove(&name);
            }
        }
        let trees = fs::read_dir(self.root.join(TREES)).into_iter().flatten().flatten();
        for tree in trees.map(|entry| entry.path()).filter(|tree| *tree != self.trees) {
            let is_dead = File::open(tree.join("lock")).is_ok_and(|lock| lock.try_lock().is_ok());
            if is_dead {
                let _ = fs::remove_dir_all(&tree);
            }
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.trees);
    }
}

fn create_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

fn unusable(root: &Path, error: &io::Error) -> Error {
    let message = format!(
        "{}: the cache of models cannot be used: {error}; set model_cache_dir to a directory that \
         the server can write to",
        root.display()
    );
    Error::new(Code::of_io(error), message)
}

/// The directory for the files of a unit: nothing of ours has a name in there.
pub(crate) fn files_of(unit: &Path) -> PathBuf {
    unit.join("files")
}

/// Megabytes, rounded up.
pub(crate) fn in_mb(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

/// The value in a JSON file; `None` if it cannot be read.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// The bytes that the files below `folder` take on the disk; a file with several names counts once for all.
pub(crate) fn disk_bytes(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => disk_bytes(&entry.path()),
        Ok(meta) => (meta.blocks() * 512).max(meta.len().min(512)) / meta.nlink().max(1),
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_units(limit: u64, units: &[(&str, usize)]) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().expect("a directory");
        let cache = Cache::open(folder.path(), limit).expect("opened");
        for (age, (id, bytes)) in units.iter().rev().enumerate() {
            fs::create_dir(cache.unit(id)).expect("created");
            fs::write(cache.unit(id).join("data"), vec![1; *bytes]).expect("written");
            drop(cache.lease(id).expect("here"));
            let used = SystemTime::now() - RECENT * (2 + u32::try_from(age).expect("few"));
            let lock = File::open(cache.lock_file(id)).expect("a lock");
            lock.set_modified(used).expect("set");
        }
        (folder, cache)
    }

    #[test]
    fn the_least_recently_used_makes_room_and_what_is_in_use_stays() {
        let (_folder, cache) = with_units(100_000, &[("a", 40_000), ("b", 40_000)]);
        cache.make_room("c", 10_000).expect("there is room");
        assert!(cache.is_whole("a") && cache.is_whole("b"));
        let lease = cache.lease("a").expect("here");
        cache.make_room("c", 50_000).expect("b makes room");
        assert!(cache.is_whole("a") && !cache.is_whole("b"));
        let error = cache.make_room("c", 90_000).expect_err("a is in use");
        assert_eq!(error.code(), Code::ResourceExhausted);
        assert!(error.message().contains("raise model_cache_bytes"), "{error}");
        drop(lease);
        // It was used a moment ago.
        cache.make_room("c", 90_000).expect_err("a may be about to be loaded");
        let lock = File::open(cache.lock_file("a")).expect("a lock");
        lock.set_modified(SystemTime::now() - 2 * RECENT).expect("set");
        cache.make_room("c", 90_000).expect("a makes room");
        assert!(!cache.is_whole("a") && cache.whole_units().is_empty());
    }

    #[test]
    fn a_lease_waits_for_the_writer_of_a_whole_unit() {
        let (_folder, cache) = with_units(1000, &[("a", 10)]);
        let writer = cache.write_lock("a").expect("free");
        thread::scope(|scope| {
            let lease = scope.spawn(|| cache.lease("a").is_some());
            thread::sleep(Duration::from_millis(50));
            assert!(!lease.is_finished());
            drop(writer);
            assert!(lease.join().expect("no panic"));
        });
    }

    #[test]
    fn a_lease_excludes_writers_and_a_writer_excludes_leases() {
        let (_folder, cache) = with_units(1000, &[("a", 10)]);
        let (one, two) = (cache.lease("a").expect("shared"), cache.lease("a").expect("shared"));
        assert!(cache.write_lock("a").is_none());
        drop((one, two));
        let writer = cache.write_lock("a").expect("free");
        assert!(cache.lease("a").is_none() && cache.write_lock("a").is_none());
        drop(writer);
        assert!(cache.lease("a").is_some() && cache.lease("b").is_none());
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not() {
        let (folder, cache) = with_units(1000, &[]);
        let trees = folder.path().join(TREES);
        fs::create_dir_all(trees.join("process-0-0/x")).expect("created");
        fs::write(trees.join("process-0-0/lock"), "").expect("written");
        fs::create_dir(folder.path().join(UNITS).join("old.gone")).expect("created");
        let other = Cache::open(folder.path(), 1000).expect("opened");
        assert!(!trees.join("process-0-0").exists());
        assert!(cache.trees().exists() && other.trees().exists() && cache.trees() != other.trees());
        assert!(!folder.path().join(UNITS).join("old.gone").exists());
        drop(other);
        assert_eq!(fs::read_dir(&trees).expect("readable").count(), 1);
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let folder = tempfile::tempdir().expect("a directory");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("set");
        let error = Cache::open(folder.path(), 1000).err().expect("refused");
        assert!(error.message().contains("every user can write"), "{error}");
    }
}
