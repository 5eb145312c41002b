//! Places with objects, for programs that read many and write many: folders of this machine and
//! prefixes of object stores alike.
//!
//! Everything here blocks the calling thread, which must not run asynchronous code. An object
//! appears as a whole or not at all. Requests to a store are repeated while it is unavailable.

mod drafts;
mod find;
mod key;
mod local;
mod reader;
mod remote;
mod runtime;
#[cfg(test)]
mod server;
#[cfg(test)]
mod tests;
mod upload;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use self::drafts::DraftFile;
pub use self::find::{FoundObjects, find, find_prefix};
use self::local::Folder;
use self::reader::RemoteReader;
use self::remote::Remote;
use crate::config::StoreConfig;
use crate::location::{Location, StoreKind, is_location};
use tensorserve_tensor::error::{Code, Error, Result};

/// The folder of drafts in a place on this machine. Listings do not show it.
const DRAFTS: &str = "_transform/tmp";

/// The most objects of a listing, which is kept in memory: some 200 bytes each.
const MOST_OBJECTS: usize = 5_000_000;

/// Requests of [`Place::map`] that run at the same time.
const REQUESTS: usize = 16;

/// How often a request is tried unless told otherwise.
const ATTEMPTS: u32 = 5;

/// How places are reached.
#[derive(Clone, Debug)]
pub struct PlaceOptions {
    /// Credentials, endpoint and region, as for models. The cache is not used.
    pub stores: StoreConfig,
    /// How often a request is tried while the store is unavailable; at least once. The waiting time
    /// in between doubles, from half a second.
    pub attempts: u32,
}

impl PlaceOptions {
    /// The usual number of attempts.
    #[must_use]
    pub fn new(stores: StoreConfig) -> Self {
        PlaceOptions { stores, attempts: ATTEMPTS }
    }
}

/// An object of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its name in the place, with `/` between parts.
    pub key: String,
    /// Bytes.
    pub size: u64,
    /// Changes when the object changes: the ETag; for files size, time and inode.
    pub tag: String,
}

/// What a place has.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The objects, sorted by key.
    pub objects: Vec<ObjectInfo>,
    /// Files that are not among them, because their names cannot be keys.
    pub unusable: Vec<UnusableName>,
}

/// A name that cannot be a key: it is not UTF-8, or too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusableName {
    /// What it looks like, with U+FFFD in place of what is not UTF-8.
    pub name: String,
    /// The path, in quotes and with escapes.
    pub shown: String,
    /// Why it is no key.
    pub why: &'static str,
}

impl UnusableName {
    fn error(&self) -> Error {
        Error::invalid(format!("{}: {}; rename it", self.shown, self.why))
    }
}

/// A place with objects. Clones are cheap, and share connections.
#[derive(Clone)]
pub struct Place {
    access: Access,
}

#[derive(Clone)]
enum Access {
    Local(Arc<Folder>),
    Remote(Arc<Remote>),
}

impl Place {
    /// Opens a folder (`out`, `/data/out`, `file:///data/out`) or a prefix of a store
    /// (`s3://bucket/out`). Neither needs to exist. Sends no request.
    ///
    /// # Errors
    /// If the location or a setting for its store is not valid, or it is a file.
    pub fn open(location: &str, options: &PlaceOptions) -> Result<Self> {
        let access = if is_location(location) {
            let parsed = Location::parse(location)?;
            if !parsed.kind().has_objects() {
                return Err(Error::invalid(format!(
                    "{parsed}: a web server has no list of files, and takes none; name a directory, \
                     or a prefix of a store such as s3://BUCKET/PATH"
                )));
            }
            Access::Remote(Arc::new(Remote::open(&parsed, options)?))
        } else {
            Access::Local(Arc::new(Folder::open(&local_path(location)?)?))
        };
        Ok(Place { access })
    }

    /// Opens the place up to the last `/` of `location`, and returns what follows it: the prefix of
    /// the keys that are meant. `s3://bucket/in/data` means every key that begins with `in/data`.
    ///
    /// # Errors
    /// As [`Place::open`].
    pub fn open_prefix(location: &str, options: &PlaceOptions) -> Result<(Self, String)> {
        let location = location.strip_prefix("file://").unwrap_or(location);
        let scheme = location.find("://").map_or(0, |at| at + 3);
        let rest = location.get(scheme..).unwrap_or_default();
        let (folder, prefix) = match rest.rfind('/') {
            Some(at) => location.split_at(scheme + at + 1),
            None if scheme > 0 => (location, ""),
            None => (".", location),
        };
        key::check_prefix(prefix).map_err(|e| e.context(location))?;
        Ok((Place::open(folder, options)?, prefix.to_owned()))
    }

    /// Whether it is a folder of this machine.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self.access, Access::Local(_))
    }

    /// The location, without secrets and without `/` at the end.
    #[must_use]
    pub fn display(&self) -> String {
        match &self.access {
            Access::Local(folder) => folder.root.display().to_string(),
            Access::Remote(remote) => remote.location.to_string(),
        }
    }

    /// The objects whose keys begin with `prefix`, at any depth, sorted by key. Directories, the
    /// keys ending in `/` with which tools mark them, and special files are left out. Links to files are
    /// followed, links to directories are not.
    ///
    /// # Errors
    /// If it cannot be listed, has more than 5 million objects, or one whose name cannot be a path.
    pub fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let Listing { objects, unusable } = self.survey(prefix)?;
        match unusable.first() {
            None => Ok(objects),
            Some(unusable) => Err(unusable.error()),
        }
    }

    /// As [`Place::list`], with the files of a folder whose names cannot be keys.
    ///
    /// # Errors
    /// If it cannot be listed, or has more than 5 million objects; that of a store also if the name of one cannot
    /// be a path.
    pub fn survey(&self, prefix: &str) -> Result<Listing> {
        match &self.access {
            Access::Local(folder) => folder.survey(prefix),
            Access::Remote(remote) => {
                let objects = remote.list(prefix)?;
                Ok(Listing { objects, unusable: Vec::new() })
            }
        }
    }

    /// An object; `None` if there is none.
    ///
    /// # Errors
    /// If the place does not tell.
    pub fn head(&self, key: &str) -> Result<Option<ObjectInfo>> {
        match &self.access {
            Access::Local(folder) => folder.head(key),
            Access::Remote(remote) => remote.head(key),
        }
    }

    /// Reads an object, or its bytes in `range`, as a stream. From a store, up to 24 MiB are held in
    /// memory, and a transfer that is interrupted is resumed. What fails on the way is an
    /// [`io::Error`] that [`error_of`] turns back.
    ///
    /// # Errors
    /// [`Code::FailedPrecondition`], also on the way, if the object changes or does not have
    /// `expected_tag`; [`Code::NotFound`]; [`Code::OutOfRange`] if it is shorter than `range`.
    pub fn read(
        &self,
        key: &str,
        range: Option<Range<u64>>,
        expected_tag: Option<&str>,
    ) -> Result<Box<dyn Read + Send>> {
        match &self.access {
            Access::Local(folder) => Ok(Box::new(folder.read(key, range, expected_tag)?)),
            Access::Remote(remote) => {
                Ok(Box::new(RemoteReader::open(remote, key, range, expected_tag)?))
            }
        }
    }

    /// The content of an object of at most `max_bytes`; `None` if there is none.
    ///
    /// # Errors
    /// [`Code::ResourceExhausted`] if it is larger; else as [`Place::read`].
    pub fn get(&self, key: &str, max_bytes: u64) -> Result<Option<Vec<u8>>> {
        let reader = match self.read(key, None, None) {
            Err(error) if error.code() == Code::NotFound => return Ok(None),
            reader => reader?,
        };
        let mut bytes = Vec::new();
        let read = reader.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(error_of)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > max_bytes {
            let place = self.display();
            return Err(Error::new(
                Code::ResourceExhausted,
                format!("{place}/{key}: it has more than {max_bytes} bytes"),
            ));
        }
        Ok(Some(bytes))
    }

    /// Writes an object, in place of one with this key.
    ///
    /// # Errors
    /// If it cannot be written; then the place has what it had before.
    pub fn put(&self, key: &str, bytes: &[u8]) -> Result<ObjectInfo> {
        match &self.access {
            Access::Local(folder) => folder.put(key, bytes),
            Access::Remote(remote) => remote.put(key, bytes),
        }
    }

    /// Writes an object unless there is one with this key; returns whether it has. Of several
    /// processes at the same time, one gets `true`, if each writes something else.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn put_new(&self, key: &str, bytes: &[u8]) -> Result<bool> {
        match &self.access {
            Access::Local(folder) => folder.put_new(key, bytes),
            Access::Remote(remote) => remote.put_new(key, bytes),
        }
    }

    /// Writes the objects `parts` of this place one after the other as one object. From and to a
    /// store through this machine, with bounded memory.
    ///
    /// # Errors
    /// [`Code::NotFound`] if a part is missing; [`Code::FailedPrecondition`] if one changes.
    pub fn publish_parts(&self, key: &str, parts: &[String]) -> Result<ObjectInfo> {
        key::check(key)?;
        match &self.access {
            Access::Local(folder) => {
                let mut draft = folder.draft()?;
                for part in parts {
                    let mut reader = folder.read(part, None, None)?;
                    io::copy(&mut reader, &mut draft.file).map_err(error_of)?;
                }
                folder.publish(key, draft)
            }
            Access::Remote(remote) => upload::join(remote, key, parts),
        }
    }

    /// Publishes drafts of this place as the objects of these keys, as [`Draft::publish`], but faster than
    /// one after the other: in a folder, all are on the disk before the first is renamed. Returns what
    /// has become of each.
    pub fn publish_all(&self, drafts: Vec<(String, Draft)>) -> Vec<Result<ObjectInfo>> {
        let Access::Local(folder) = &self.access else {
            return self.map(drafts, |(key, draft)| draft.publish(&key));
        };
        if drafts.iter().any(|(_, draft)| matches!(draft.content, Content::Nameless(_))) {
            return drafts.iter().map(|_| Err(another_place())).collect();
        }
        let file = |(key, draft): (String, Draft)| match draft.content {
            Content::Named(file) => Some((key, file)),
            Content::Nameless(_) => None,
        };
        folder.publish_all(drafts.into_iter().filter_map(file).collect())
    }

    /// Calls `each` with all items, and returns its results in order. For a store, several calls run at
    /// the same time, because they wait for the network.
    pub fn map<T: Send, R: Send>(&self, items: Vec<T>, each: impl Fn(T) -> R + Sync) -> Vec<R> {
        let helpers = match self.access {
            Access::Local(_) => 0,
            Access::Remote(_) => items.len().min(REQUESTS).saturating_sub(1),
        };
        let done = Mutex::new(Vec::with_capacity(items.len()));
        let items = Mutex::new(items.into_iter().enumerate());
        let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some((index, item)) = next() {
                let result = each(item);
                done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
            }
        };
        thread::scope(|scope| {
            for _ in 0..helpers {
                // Without it, this thread does more.
                let _ =
                    thread::Builder::new().name("transfer".to_owned()).spawn_scoped(scope, work);
            }
            work();
        });
        let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// Removes an object. That there is none is no error.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn delete(&self, key: &str) -> Result<()> {
        match &self.access {
            Access::Local(folder) => folder.delete(key),
            Access::Remote(remote) => remote.delete(key),
        }
    }

    /// An empty file to write an object in.
    ///
    /// # Errors
    /// If it cannot be created: in the folder, or, for a store, in the directory for temporary files
    /// (`TMPDIR`).
    pub fn draft(&self) -> Result<Draft> {
        let content = match &self.access {
            Access::Local(folder) => Content::Named(folder.draft()?),
            Access::Remote(_) => Content::Nameless(tempfile::tempfile().map_err(|e| {
                let folder = std::env::temp_dir();
                local::failed(&folder, "no temporary file can be created (see TMPDIR)", &e)
            })?),
        };
        Ok(Draft { place: self.clone(), content })
    }

    /// Removes the drafts that killed processes have left, and returns how many. Those of other
    /// machines go after a day. For stores there are none: their drafts have no name.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn clean_drafts(&self) -> Result<usize> {
        match &self.access {
            Access::Local(folder) => folder.clean_drafts(),
            Access::Remote(_) => Ok(0),
        }
    }
}

/// An object that is being written. It vanishes on drop, and with the process.
pub struct Draft {
    place: Place,
    content: Content,
}

enum Content {
    /// In the folder of the place.
    Named(DraftFile),
    Nameless(File),
}

impl Draft {
    /// The file, open to read and write.
    pub fn file(&mut self) -> &mut File {
        match &mut self.content {
            Content::Named(draft) => &mut draft.file,
            Content::Nameless(file) => file,
        }
    }

    /// Publishes all of the file as the object `key`, in place of one with this key. In a folder,
    /// it is renamed when it is on the disk; to a store, it is uploaded, in parts if it is large.
    ///
    /// # Errors
    /// If it cannot be written; then the place has what it had before.
    pub fn publish(self, key: &str) -> Result<ObjectInfo> {
        key::check(key)?;
        match (&self.place.access, self.content) {
            (Access::Local(folder), Content::Named(draft)) => folder.publish(key, draft),
            (Access::Remote(remote), Content::Nameless(mut file)) => {
                let length = file.metadata().and_then(|meta| {
                    file.seek(SeekFrom::Start(0))?;
                    Ok(meta.len())
                });
                let length = length.map_err(error_of)?;
                upload::upload(remote, key, length, &mut file)
            }
            _ => Err(another_place()),
        }
    }
}

fn another_place() -> Error {
    Error::internal("a draft belongs to another kind of place")
}

/// The error behind one of a reader of this module; any other [`io::Error`] in words.
#[must_use]
pub fn error_of(error: io::Error) -> Error {
    let code = Code::of_io(&error);
    let text = error.to_string();
    let inner = error.into_inner().and_then(|inner| inner.downcast::<Error>().ok());
    inner.map_or_else(|| Error::new(code, text), |inner| *inner)
}

/// The path of a location that is not in a store.
fn local_path(location: &str) -> Result<std::path::PathBuf> {
    let path = location.strip_prefix("file://").unwrap_or(location);
    if path.contains("://") {
        let kinds = StoreKind::ALL.into_iter().filter(|kind| kind.has_objects());
        let schemes: Vec<&str> = kinds.map(StoreKind::scheme).collect();
        let (last, others) = schemes.split_last().unwrap_or((&"", &[]));
        return Err(Error::invalid(format!(
            "{location}: this kind of location is not known; use a path, {} or {last}",
            others.join(", ")
        )));
    }
    if path.is_empty() || path.contains('\0') {
        return Err(Error::invalid(format!("{location:?} is not a path")));
    }
    Ok(Path::new(path).to_owned())
}

/// The bytes of an object of `size` bytes that `range` means.
fn within(shown: &str, size: u64, range: Option<Range<u64>>) -> Result<Range<u64>> {
    let range = range.unwrap_or(0..size);
    if range.start > range.end || range.end > size {
        let Range { start, end } = range;
        return Err(Error::new(
            Code::OutOfRange,
            format!("{shown}: it has {size} bytes, and bytes {start} to {end} were asked for"),
        ));
    }
    Ok(range)
}

fn changed(shown: &str) -> Error {
    Error::precondition(format!(
        "{shown}: it has changed since the plan was made; start again with a new plan"
    ))
}

fn too_many(shown: &str) -> Error {
    Error::invalid(format!("{shown}: more than {MOST_OBJECTS} objects; name a longer prefix"))
}
