//! Finds models below a directory, as SageMaker's container does: a directory at any depth that is named
//! by a number and has a `saved_model.pb` is a version; the name of its parent is the model's name.
//!
//! Directories are visited in byte order, so that the first model is the same on every machine.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tensorserve_core::config::{ModelConfig, SourceConfig, VersionPolicy, names_version};
use tensorserve_tensor::error::{Error, Result};

/// A model that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedModelBundle {
    /// The name of its directory; `model` for the root.
    pub name: String,
    /// The directory of its versions.
    pub base: PathBuf,
    /// Its versions that hold a SavedModel, ascending.
    pub versions: Vec<i64>,
}

impl SavedModelBundle {
    /// The source of the model `name`. If `pinned`, the version policy is exactly the versions that were
    /// found, and otherwise that of `common`.
    #[must_use]
    pub fn source(&self, name: &str, common: &ModelConfig, pinned: bool) -> SourceConfig {
        let mut model = common.clone();
        if pinned {
            model.policy = VersionPolicy::Specific(self.versions.clone());
        }
        SourceConfig { path: self.base.clone(), name: Some(name.to_owned()), model }
    }
}

/// The models below a directory.
#[derive(Debug, Default)]
pub struct SagemakerLayout {
    /// Models, in the order of their paths.
    pub bundles: Vec<SavedModelBundle>,
    /// Directories that are skipped and why, for the log.
    pub notes: Vec<String>,
}

/// The most directories below the root.
const MOST_FOLDERS: usize = 100_000;

/// The largest depth of directories.
const DEEPEST: usize = 32;

const SAVED_MODEL: &str = "saved_model.pb";

/// Finds the models below `root`, which stands for `/opt/ml/model`.
///
/// # Errors
/// If it cannot be read, contains no SavedModel, or two models have the same name.
pub fn find(root: &Path) -> Result<SagemakerLayout> {
    let mut walk = LayoutWalk {
        root,
        left: MOST_FOLDERS,
        line: Vec::new(),
        layout: SagemakerLayout::default(),
    };
    walk.folder(root, 0)?;
    let SagemakerLayout { bundles, notes } = walk.layout;
    if bundles.is_empty() {
        let root = root.display();
        let mut message = format!(
            "no SavedModel bundles found! Looked below {root} for NAME/1/saved_model.pb, at any \
             depth"
        );
        for note in notes {
            message.push_str("; ");
            message.push_str(&note);
        }
        return Err(Error::not_found(message));
    }
    let mut names: BTreeMap<&str, &Path> = BTreeMap::new();
    for SavedModelBundle { name, base, .. } in &bundles {
        if let Some(other) = names.insert(name, base) {
            let (one, two) = (other.display(), base.display());
            return Err(Error::invalid(format!(
                "two models have the name {name:?}: {one} and {two}; rename one of the directories"
            )));
        }
    }
    Ok(SagemakerLayout { bundles, notes })
}

struct LayoutWalk<'a> {
    root: &'a Path,
    left: usize,
    /// The directories from the root to the current one, to detect links to one of them.
    line: Vec<(u64, u64)>,
    layout: SagemakerLayout,
}

impl LayoutWalk<'_> {
    /// Visits the directories in `folder` recursively.
    fn folder(&mut self, folder: &Path, depth: usize) -> Result<()> {
        let unreadable = |e: std::io::Error| {
            Error::unavailable(format!("{} cannot be read: {e}", folder.display())).with_source(e)
        };
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            let root = self.root.display();
            return Err(Error::invalid(format!(
                "{root} contains more than {MOST_FOLDERS} directories: set the path to a directory of models"
            )));
        }
        let meta = fs::metadata(folder).map_err(unreadable)?;
        let place = (meta.dev(), meta.ino());
        if depth > DEEPEST || self.line.contains(&place) {
            return Ok(());
        }
        let mut inner = Vec::new();
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.is_dir() {
                inner.push(path);
            }
        }
        inner.sort();
        inner = self.versions(folder, inner);
        self.line.push(place);
        for path in inner {
            self.folder(&path, depth + 1)?;
        }
        self.line.pop();
        Ok(())
    }

    /// Adds the versions among the directories in `base`; returns the other directories.
    fn versions(&mut self, base: &Path, folders: Vec<PathBuf>) -> Vec<PathBuf> {
        let (mut versions, mut others) = (Vec::new(), Vec::new());
        for path in folders {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.unwrap_or_default();
            let is_number = names_version(&name);
            let has_model = path.join(SAVED_MODEL).is_file();
            match (is_number, has_model) {
                (true, true) => match name.parse::<i64>() {
                    Ok(number) => versions.push(number),
                    Err(_) => self.note(&path, "is skipped: its number is too large"),
                },
                (false, true) => {
                    self.note(
                        &path,
                        "is skipped: it has a SavedModel, but its name is not a number",
                    );
                    others.push(path);
                }
                (_, false) => others.push(path),
            }
        }
        versions.sort_unstable();
        versions.dedup();
        if versions.is_empty() {
            return others;
        }
        match self.name(base) {
            Some(name) => {
                for path in &others {
                    self.note_empty_version(path);
                }
                self.layout.bundles.push(SavedModelBundle {
                    name,
                    base: base.to_owned(),
                    versions,
                });
            }
            None => {
                self.note(base, "is skipped: a model's name must be UTF-8 and must not contain :")
            }
        }
        others
    }

    /// The name of the model in `base`.
    fn name(&self, base: &Path) -> Option<String> {
        if base == self.root {
            return Some("model".to_owned());
        }
        let name = base.file_name()?.to_str()?;
        (!name.contains(':')).then(|| name.to_owned())
    }

    /// SageMaker's container would wait for such a version until its start times out.
    fn note_empty_version(&mut self, path: &Path) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if names_version(name) {
            self.note(path, "is skipped: it has no saved_model.pb");
        }
    }

    fn note(&mut self, path: &Path, what: &str) {
        self.layout.notes.push(format!("{} {what}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    fn tree(models: &[&str]) -> TempDir {
        let root = tempfile::tempdir().expect("temporary directory");
        for model in models {
            let path = root.path().join(model);
            fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
            fs::write(path, b"").expect("written");
        }
        root
    }

    fn found(root: &TempDir) -> Vec<(String, String, Vec<i64>)> {
        let layout = find(root.path()).expect("found");
        let relative = |base: &Path| {
            let base = base.strip_prefix(root.path()).expect("below the root");
            base.display().to_string()
        };
        let bundles = layout.bundles.iter();
        bundles.map(|b| (b.name.clone(), relative(&b.base), b.versions.clone())).collect()
    }

    #[test]
    fn names_versions_and_their_order() {
        let root = tree(&[
            "b/00000124/saved_model.pb",
            "b/00000123/saved_model.pb",
            "b/.00000111/saved_model.pb",
            "a/deep/in/here/000/saved_model.pb",
            ".hidden/7/saved_model.pb",
            "code/inference.py",
        ]);
        let of = |name: &str, base: &str, versions: &[i64]| {
            (name.to_owned(), base.to_owned(), versions.to_vec())
        };
        let expected = vec![
            of(".hidden", ".hidden", &[7]),
            of("here", "a/deep/in/here", &[0]),
            of("b", "b", &[123, 124]),
        ];
        assert_eq!(found(&root), expected);
        // The layout that training jobs of the SDK write.
        let root = tree(&["export/Servo/1/saved_model.pb"]);
        assert_eq!(found(&root), [of("Servo", "export/Servo", &[1])]);
        let root = tree(&["1/saved_model.pb", "2/saved_model.pb"]);
        assert_eq!(found(&root), [of("model", "", &[1, 2])]);
    }

    #[test]
    fn skipped_directories_are_noted() {
        let root = tree(&["m/1/saved_model.pb", "m/2/readme", "m/3", "x/saved_model.pb"]);
        let layout = find(root.path()).expect("found");
        assert_eq!(layout.bundles[0].versions, [1]);
        let notes = layout.notes.join("\n");
        assert!(notes.contains("m/2 is skipped: it has no saved_model.pb"), "{notes}");
        assert!(notes.contains("x is skipped: it has a SavedModel, but"), "{notes}");
        assert_eq!(layout.notes.len(), 2);
    }

    #[test]
    fn a_directory_without_models_is_an_error() {
        let root = tree(&["m/latest/saved_model.pb"]);
        let error = find(root.path()).expect_err("no version");
        assert!(error.message().starts_with("no SavedModel bundles found!"), "{error}");
        assert!(error.message().contains("its name is not a number"), "{error}");
        let error = find(&root.path().join("missing")).expect_err("no folder");
        assert!(error.message().contains("missing cannot be read"), "{error}");
    }

    #[test]
    fn one_name_twice_is_an_error_with_both_places() {
        let root = tree(&["a/m/1/saved_model.pb", "b/m/1/saved_model.pb"]);
        let error = find(root.path()).expect_err("twice");
        assert!(
            error.message().contains("a/m and ") && error.message().contains("b/m;"),
            "{error}"
        );
    }

    #[test]
    fn links_are_followed_but_not_in_a_circle() {
        let root = tree(&["m/1/saved_model.pb"]);
        symlink(root.path(), root.path().join("m/again")).expect("a link");
        symlink(root.path().join("m"), root.path().join("n")).expect("a link");
        let names: Vec<String> = found(&root).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["m", "n"]);
    }
}
