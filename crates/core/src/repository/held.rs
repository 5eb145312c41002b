//! Versions that are held, remembered over restarts of the server: without that, the newest version would take all
//! traffic untried.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tensorserve_tensor::names::beginning;

/// The most bytes of a reason that are kept.
const LONGEST_REASON: usize = 4000;

/// A file for each version that is held, named after the hash of its path, with its path and the reason.
pub(super) struct HeldVersions {
    directory: Option<PathBuf>,
}

impl HeldVersions {
    /// In this directory, which is made when it is needed. Without one, nothing is remembered.
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        HeldVersions { directory }
    }

    fn file_of(&self, folder: &Path) -> Option<PathBuf> {
        let mut hasher = DefaultHasher::new();
        folder.hash(&mut hasher);
        Some(self.directory.as_ref()?.join(format!("{:016x}", hasher.finish())))
    }

    /// Remembers that the version in `folder` is held.
    pub(super) fn remember(&self, folder: &Path, why: &str) {
        let Some(file) = self.file_of(folder) else {
            return;
        };
        let text = format!("{}\n{}", folder.display(), beginning(why, LONGEST_REASON));
        let write = || -> io::Result<()> {
            fs::create_dir_all(file.parent().unwrap_or(&file))?;
            let new = file.with_extension("new");
            fs::write(&new, &text)?;
            fs::rename(&new, &file)
        };
        if let Err(error) = write() {
            let (folder, file) = (folder.display(), file.display());
            log::error!("{file}: {error}: {folder} will not be held after a restart of the server");
        }
    }

    /// The version in `folder` is not held any more.
    pub(super) fn forget(&self, folder: &Path) {
        let Some(file) = self.file_of(folder) else {
            return;
        };
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let (folder, file) = (folder.display(), file.display());
                log::error!("{file}: {error}: {folder} will be held after a restart of the server");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Why the version in `folder` was held; `None` if it was not.
    pub(super) fn reason(&self, folder: &Path) -> Option<String> {
        let text = fs::read_to_string(self.file_of(folder)?).ok()?;
        let (path, why) = text.split_once('\n')?;
        (Path::new(path) == folder).then(|| why.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_remembered_until_it_is_forgotten() {
        let root = tempfile::tempdir().expect("temporary directory");
        let directory = Some(root.path().join("a/b"));
        let held = HeldVersions::new(directory.clone());
        let (one, two) = (Path::new("/models/m/1"), Path::new("/models/m/2"));
        held.forget(one);
        assert_eq!(held.reason(one), None);
        held.remember(one, "it is\nslow");
        let later = HeldVersions::new(directory);
        assert_eq!(later.reason(one).as_deref(), Some("it is\nslow"));
        assert_eq!(later.reason(two), None);
        later.forget(one);
        assert_eq!(held.reason(one), None);
        let nowhere = HeldVersions::new(None);
        nowhere.remember(one, "");
        assert_eq!(nowhere.reason(one), None);
    }
}
