//! Finds libtensorflow on the machine.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The file names in use: that of the Python wheels, and that of the C API's own archive.
const NAMES: [&str; 2] = ["libtensorflow_cc.so.2", "libtensorflow.so.2"];

/// What [`find`] came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// This file.
    File(PathBuf),
    /// No file of our own; ask the system's loader for [`NAMES`].
    System,
}

/// Looks for the library: at the path `given` (a file or folder) if there is one, else in the
/// folders `search`, first match first, else wherever the system's loader looks.
///
/// # Errors
/// If a path was given and there is no library: a wrong setting must not fall back silently.
pub(super) fn find(given: Option<&Path>, search: &[PathBuf]) -> Result<Found> {
    if let Some(path) = given {
        if path.is_file() {
            return Ok(Found::File(path.to_owned()));
        }
        return in_folder(path).map(Found::File).ok_or_else(|| {
            Error::not_found(format!(
                "no libtensorflow at {} (looked for {})",
                path.display(),
                NAMES.join(" and ")
            ))
        });
    }
    let file = search.iter().find_map(|folder| in_folder(folder));
    Ok(file.map_or(Found::System, Found::File))
}

/// The names to ask the system's loader for.
pub(super) fn system_names() -> [&'static str; 2] {
    NAMES
}

/// The error when nothing was found: where we looked, and how to get it.
pub(super) fn missing(search: &[PathBuf], last: &str) -> Error {
    let mut looked: Vec<String> = search.iter().map(|f| f.display().to_string()).collect();
    looked.push("the system's library path".to_owned());
    Error::unavailable(format!(
        "libtensorflow was not found ({last}). Looked in: {}. Get it with `make lib` in \
         tensorserve's source folder or `pip install tensorflow-cpu`, or name it with \
         --libtensorflow PATH",
        looked.join(", ")
    ))
}

/// A library in `folder` itself, in its `tensorflow/`, or in one of its
/// `tensorflow-VERSION-DEVICE-MACHINE/tensorflow/` (what `make lib` makes); the newest first.
fn in_folder(folder: &Path) -> Option<PathBuf> {
    let direct = |folder: &Path| NAMES.map(|n| folder.join(n)).into_iter().find(|f| f.is_file());
    let below = |folder: &Path| direct(folder).or_else(|| direct(&folder.join("tensorflow")));
    if let Some(file) = below(folder) {
        return Some(file);
    }
    let entries = fs::read_dir(folder).ok()?.flatten();
    let fetched = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("tensorflow-") && name.ends_with(ARCH)
    });
    let mut fetched: Vec<PathBuf> = fetched.map(|entry| entry.path()).collect();
    fetched.sort();
    fetched.iter().rev().find_map(|folder| below(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_make_fetched_newest_first() {
        let home = tempfile::tempdir().expect("temporary folder");
        for version in ["2.20.0", "2.21.0"] {
            let name = format!("tensorflow-{version}-cpu-{}/tensorflow", ARCH);
            let folder = home.path().join(name);
            fs::create_dir_all(&folder).expect("folder");
            fs::write(folder.join(NAMES[0]), "").expect("file");
        }
        let Ok(Found::File(file)) = find(None, &[home.path().to_owned()]) else {
            panic!("not found");
        };
        assert!(file.to_string_lossy().contains("2.21.0"));
    }

    #[test]
    fn a_wrong_path_is_an_error_and_not_skipped() {
        let error = find(Some(Path::new("/nowhere/at/all")), &[]).expect_err("nothing there");
        assert!(error.message().contains("/nowhere/at/all"));
    }
}
