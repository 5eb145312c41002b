//! The files of a version: whether they are all there, and whether they change.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tensorserve_os::files::endless_kind;
use tensorserve_platform::states::{DEEPEST, FileStates, Strictness, files_of, inside};
use tensorserve_platform::{Completeness, Platforms};
use tensorserve_tensor::error::{Code, Error, Result};

/// The state of a version's files at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    hash: u64,
    /// The latest change of any of them.
    newest: SystemTime,
    /// The size of all files, without directories.
    pub(super) bytes: u64,
}

impl Fingerprint {
    /// Reads the metadata of all files of the version at `path`; unreadable ones count as missing.
    pub(super) fn of(path: &Path) -> Self {
        Fingerprint::from(&FileStates::of(path))
    }

    /// Whether no file has changed for `time`. Then no copy is in progress, and the files need not
    /// be compared again.
    pub(super) fn is_settled(&self, time: Duration) -> bool {
        let since = SystemTime::now().duration_since(self.newest);
        since.is_ok_and(|since| since >= time)
    }
}

impl From<&FileStates> for Fingerprint {
    fn from(states: &FileStates) -> Self {
        let mut hasher = DefaultHasher::new();
        states.hash(&mut hasher);
        Fingerprint { hash: hasher.finish(), newest: states.newest(), bytes: states.bytes() }
    }
}

/// Whether the version in `folder` can be loaded; `None` if no platform recognises it. `named` is the platform that
/// its settings name.
pub(super) fn check(
    folder: &Path,
    platforms: &Platforms,
    named: Option<&str>,
) -> Option<Completeness> {
    let platform = platforms.of_version(folder, named)?;
    if let Some(found) = find_endless(files_of(folder), 0) {
        return Some(Completeness::Broken(Error::invalid(found)));
    }
    Some(platform.loader.check(folder))
}

/// Checks the version in `folder` for a load that follows at once.
///
/// # Errors
/// If it cannot be loaded.
pub(super) fn check_whole(folder: &Path, platforms: &Platforms, named: Option<&str>) -> Result<()> {
    let path = folder.display();
    match check(folder, platforms, named) {
        Some(Completeness::Complete) => Ok(()),
        Some(Completeness::Missing(what)) => {
            Err(Error::new(Code::FailedPrecondition, format!("{path}: {what} is missing")))
        }
        Some(Completeness::Broken(error)) => Err(error),
        None => Err(Error::not_found(format!(
            "{path} contains no model file of a supported platform, such as saved_model.pb"
        ))),
    }
}

/// What is wrong with the first of these paths, or below them, that a runtime could wait for without end.
fn find_endless(paths: Vec<PathBuf>, depth: usize) -> Option<String> {
    for path in paths {
        let Ok(meta) = fs::metadata(&path) else {
            continue;
        };
        if let Some(kind) = endless_kind(&meta) {
            let path = path.display();
            return Some(format!("{path} is {kind}; the files of a model must be regular files"));
        }
        if meta.is_dir()
            && depth < DEEPEST
            && let Some(found) = find_endless(inside(&path), depth + 1)
        {
            return Some(found);
        }
    }
    None
}

/// The files of a version while it is loaded. What is read of files that change meanwhile may be of no version at
/// all: a runtime even takes it for a model without variables when their directory is away for a moment.
pub(super) struct FilesInUse<'a> {
    folder: &'a Path,
    before: FileStates,
    /// The load runs code of the model, which may change its own files.
    runs_own_code: bool,
}

impl<'a> FilesInUse<'a> {
    /// Before the load. `checked` is what the files looked like when they were found to be whole; if they differ, or
    /// were not checked, they are checked now.
    ///
    /// # Errors
    /// If they are not whole, or change at this moment.
    pub(super) fn begin(
        folder: &'a Path,
        checked: Option<Fingerprint>,
        (platforms, named): (&Platforms, Option<&str>),
        runs_own_code: bool,
    ) -> Result<Self> {
        let before = FileStates::of(folder);
        if checked != Some(Fingerprint::from(&before)) {
            check_whole(folder, platforms, named)?;
            // The files that were checked and those that count from now on must be the same.
            if FileStates::of(folder) != before {
                let path = folder.display();
                return Err(Error::unavailable(format!("{path}: its files are still changing")));
            }
        }
        Ok(FilesInUse { folder, before, runs_own_code })
    }

    /// After the load: its outcome, unless files have changed meanwhile.
    pub(super) fn end<T>(self, loaded: Result<T>) -> Result<T> {
        let after = FileStates::of(self.folder);
        let strictness = match self.runs_own_code {
            true => Strictness::Presence,
            false => Strictness::Moment,
        };
        let Some(change) = self.before.change(&after, strictness) else {
            return loaded;
        };
        let why = format!("its files changed while it was loaded: {change}");
        match loaded {
            Ok(_) => Err(Error::unavailable(why)),
            Err(error) => Err(Error::unavailable(format!("{why} ({})", error.message()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_shows_in_the_fingerprint() {
        let place = tempfile::tempdir().expect("temporary directory");
        let folder = place.path();
        fs::write(folder.join("saved_model.pb"), "x").expect("file");
        let before = Fingerprint::of(folder);
        assert_eq!(before, Fingerprint::of(folder));
        assert!(!before.is_settled(Duration::from_secs(60)));
        fs::write(folder.join("more"), "y").expect("file");
        assert_ne!(before, Fingerprint::of(folder));
        // The directory itself does not add to the size.
        fs::create_dir(folder.join("variables")).expect("directory");
        fs::write(folder.join("variables/data"), "1234").expect("file");
        assert_eq!((before.bytes, Fingerprint::of(folder).bytes), (1, 6));
    }
}
