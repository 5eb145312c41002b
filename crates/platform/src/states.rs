//! What the files of a model look like at one moment, to find out whether they change meanwhile.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The most directory levels to visit: enough for any model, and a limit for cyclic links.
pub const DEEPEST: usize = 16;

/// The files of a model and their directories at one moment, without what is in the files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileStates {
    /// The directory of the model, if it has one.
    folder: Option<FileState>,
    path: PathBuf,
    /// What is in it, or the model's files.
    found: BTreeMap<PathBuf, FileState>,
}

/// A file or a directory at one moment. Without its number, which some network file systems assign anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileState {
    is_folder: bool,
    bytes: u64,
    /// When its content was changed, in seconds and nanoseconds.
    modified: (i64, i64),
    /// When anything of it was changed: a copy may set the other time to the past, but not this one.
    changed: (i64, i64),
}

impl FileState {
    fn of(found: &Metadata) -> Self {
        FileState {
            is_folder: found.is_dir(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }

    /// What has become of it in the meantime; `None` if nothing that matters. What is added to a directory does
    /// not matter.
    fn became(&self, later: Option<&Self>, strictness: Strictness) -> Option<&'static str> {
        let Some(later) = later else {
            return Some("removed");
        };
        let is_folder = self.is_folder && later.is_folder;
        match strictness {
            Strictness::Presence => None,
            Strictness::Content => {
                let content = |state: &Self| (state.is_folder, state.bytes, state.modified);
                (!is_folder && content(self) != content(later)).then_some("changed")
            }
            Strictness::Moment if !is_folder => (self != later).then_some("changed"),
            // A change of what is in a directory changes both times, and its own move only one.
            Strictness::Moment => {
                let is_moved = self.changed != later.changed && self.modified == later.modified;
                is_moved.then_some("moved")
            }
        }
    }
}

/// What counts as a change of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// That one is gone.
    Presence,
    /// That they have other contents.
    Content,
    /// That they may have been away, or had other contents, for a moment.
    Moment,
}

impl FileStates {
    /// Reads the metadata of all files of the model at `path`; unreadable ones count as missing.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let folder = fs::metadata(path).ok().filter(Metadata::is_dir);
        let mut found = BTreeMap::new();
        visit(files_of(path), 0, &mut found);
        FileStates { folder: folder.as_ref().map(FileState::of), path: path.to_owned(), found }
    }

    /// What has become of the files until `later`: which one was removed, changed or moved. Files that were added
    /// do not matter: Python writes its caches beside what it reads.
    #[must_use]
    pub fn change(&self, later: &Self, strictness: Strictness) -> Option<String> {
        let own = self.folder.as_ref().map(|state| (&self.path, state, later.folder.as_ref()));
        let found = self.found.iter().map(|(path, state)| (path, state, later.found.get(path)));
        own.into_iter().chain(found).find_map(|(path, state, after)| {
            Some(format!("{} was {}", path.display(), state.became(after, strictness)?))
        })
    }

    /// The paths of all files, without directories.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.found.iter().filter(|(_, state)| !state.is_folder).map(|(path, _)| path.as_path())
    }

    /// The size of all files in bytes, without directories.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let files = self.found.values().filter(|state| !state.is_folder);
        files.fold(0, |bytes, state| bytes.saturating_add(state.bytes))
    }

    /// The latest change of a file or a directory, in whole seconds.
    #[must_use]
    pub fn newest(&self) -> SystemTime {
        let seconds = self.found.values().map(|state| u64::try_from(state.changed.0).unwrap_or(0));
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.max().unwrap_or(0))
    }
}

fn visit(paths: Vec<PathBuf>, depth: usize, found: &mut BTreeMap<PathBuf, FileState>) {
    for path in paths {
        let Ok(meta) = fs::metadata(&path) else {
            continue;
        };
        if meta.is_dir() && depth < DEEPEST {
            visit(inside(&path), depth + 1, found);
        }
        found.insert(path, FileState::of(&meta));
    }
}

/// The files of the model at `path`: the entries of its directory, its one file, or, where several
/// files are in one directory, those whose names begin with the last part of `path`.
#[must_use]
pub fn files_of(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        return inside(path);
    }
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let (Some(folder), Some(prefix)) = (path.parent(), path.file_name()) else {
        return Vec::new();
    };
    let begins = |path: &PathBuf| {
        let name = path.file_name().map(OsStr::as_encoded_bytes);
        name.is_some_and(|name| name.starts_with(prefix.as_encoded_bytes()))
    };
    inside(folder).into_iter().filter(begins).collect()
}

/// The entries of a directory, in byte order; none if it cannot be read.
#[must_use]
pub fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
        fs::write(path, text).expect("written");
    }

    /// What is said of a change that `make` makes to a model, by strictness.
    fn changes(make: impl FnOnce(&Path)) -> [Option<String>; 3] {
        let place = tempfile::tempdir().expect("temporary directory");
        let model = place.path().join("m");
        write(&model.join("weights"), "1234");
        write(&model.join("part/labels"), "x");
        let before = FileStates::of(&model);
        assert_eq!(before.bytes(), 5);
        make(&model);
        let after = FileStates::of(&model);
        [Strictness::Presence, Strictness::Content, Strictness::Moment].map(|strictness| {
            let text = before.change(&after, strictness)?;
            Some(text.replace(&format!("{}/", place.path().display()), ""))
        })
    }

    #[test]
    fn what_was_read_must_stay_and_what_is_added_does_not_matter() {
        let told = |what: &str| Some(what.to_owned());
        assert_eq!(changes(|_| ()), [None, None, None]);
        assert_eq!(changes(|model| write(&model.join("part/cache"), "x")), [None, None, None]);
        let deleted = changes(|model| fs::remove_file(model.join("part/labels")).expect("removed"));
        assert_eq!(deleted, [(); 3].map(|()| told("m/part/labels was removed")));
        let deleted = changes(|model| fs::remove_dir_all(model).expect("removed"));
        assert_eq!(deleted, [(); 3].map(|()| told("m was removed")));
        let changed = || told("m/weights was changed");
        let written = changes(|model| write(&model.join("weights"), "5678"));
        assert_eq!(written, [None, changed(), changed()]);
    }

    #[test]
    fn what_was_away_for_a_moment_has_changed() {
        let away = |path: PathBuf| {
            fs::rename(&path, path.with_extension("away")).expect("renamed");
            fs::rename(path.with_extension("away"), &path).expect("renamed");
        };
        let moved = |what: &str| [None, None, Some(what.to_owned())];
        assert_eq!(changes(|model| away(model.to_owned())), moved("m was moved"));
        assert_eq!(changes(|model| away(model.join("part"))), moved("m/part was moved"));
        assert_eq!(changes(|model| away(model.join("weights"))), moved("m/weights was changed"));
    }
}
