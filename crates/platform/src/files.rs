//! Paths that may be models, and models that are one file: finds the file and reads it.
//!
//! Such a model is configured by the path of its file, or of a version directory that contains it.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::Completeness;
use tensorserve_os::files::{self, open_within};
use tensorserve_tensor::error::{Code, Error, Result};

pub use tensorserve_os::files::{open, read as read_open};

/// A path that may be a model. All platforms inspect it, so a directory is listed only once for all
/// of them.
pub struct ModelPath<'a> {
    path: &'a Path,
    is_file: bool,
    inside: OnceCell<Vec<PathBuf>>,
    hidden: Option<&'a BTreeSet<PathBuf>>,
}

impl<'a> ModelPath<'a> {
    /// The file or directory at `path`.
    #[must_use]
    pub fn new(path: &'a Path) -> Self {
        ModelPath { path, is_file: path.is_file(), inside: OnceCell::new(), hidden: None }
    }

    /// The directory at `path`, as if it did not contain `hidden`.
    #[must_use]
    pub fn without(path: &'a Path, hidden: &'a BTreeSet<PathBuf>) -> Self {
        ModelPath { hidden: Some(hidden), ..ModelPath::new(path) }
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Whether it is a file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.is_file
    }

    /// The file itself, or the sorted entries of the directory; empty if it cannot be read.
    fn entries(&self) -> &[PathBuf] {
        self.inside.get_or_init(|| {
            if self.is_file {
                return vec![self.path.to_owned()];
            }
            let entries = fs::read_dir(self.path).into_iter().flatten().flatten();
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            paths.retain(|path| self.hidden.is_none_or(|hidden| !hidden.contains(path)));
            paths.sort();
            paths
        })
    }

    /// Directories in it, sorted.
    pub fn folders(&self) -> impl Iterator<Item = &PathBuf> {
        self.entries().iter().filter(|path| path.is_dir())
    }

    /// The file itself, or files in the directory, if their names have one of these endings.
    pub fn files(&self, endings: &[&str]) -> impl Iterator<Item = &PathBuf> {
        self.entries().iter().filter(move |path| ends_with(path, endings) && path.is_file())
    }

    /// Whether there is a file with one of these endings.
    pub fn has_file(&self, endings: &[&str]) -> bool {
        self.files(endings).next().is_some()
    }
}

/// Whether there is exactly one file with one of these endings.
pub fn check(path: &Path, endings: &[&str]) -> Completeness {
    match find(path, endings) {
        Ok(_) => Completeness::Complete,
        Err(error) if error.code() == Code::NotFound => {
            Completeness::Missing(format!("a file *{}", endings.join(" or *")))
        }
        Err(error) => Completeness::Broken(error),
    }
}

/// The model's file: `path` itself, whatever its name, or the only one in the directory `path` with
/// one of these endings.
///
/// # Errors
/// [`Code::NotFound`] if there is none; [`Code::FailedPrecondition`] if there are several.
pub fn find(path: &Path, endings: &[&str]) -> Result<PathBuf> {
    let place = ModelPath::new(path);
    if place.is_file() {
        return Ok(path.to_owned());
    }
    match only(path, place.files(endings))? {
        Some(file) => Ok(file),
        None => {
            let endings = endings.join(" or *");
            Err(Error::not_found(format!("{} contains no file *{endings}", path.display())))
        }
    }
}

/// The one model of those that were `found` in the directory `path`; `None` if there is none.
///
/// # Errors
/// [`Code::FailedPrecondition`] if there are several.
pub fn only<'a>(
    path: &Path,
    found: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<Option<PathBuf>> {
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(one), Some(other)) => Err(Error::precondition(format!(
            "{} contains several models, {} and {}: put each into its own directory, or configure \
             the path of one file",
            path.display(),
            one.display(),
            other.display()
        ))),
        (one, _) => Ok(one.cloned()),
    }
}

/// The first bytes of `file`, at most `count`.
///
/// # Errors
/// If it cannot be read.
pub fn head(file: &Path, count: usize) -> std::io::Result<Vec<u8>> {
    let mut head = vec![0; count];
    let read = files::open(file)?.read_at(&mut head, 0)?;
    head.truncate(read);
    Ok(head)
}

/// The whole content of `file`, which must be a regular one.
///
/// # Errors
/// If it cannot be read; [`Code::ResourceExhausted`] if it has more than `most` bytes.
pub fn read(file: &Path, most: u64) -> Result<Vec<u8>> {
    content(file, files::open(file), most)
}

/// [`read`], of a file that is in `folder`, or in the model's if that is the folder of a version, also if it is a
/// link: for what the server shows or acts on.
///
/// # Errors
/// As [`read`]; [`Code::PermissionDenied`] if it is a link out of the model's folder.
pub fn read_within(folder: &Path, file: &Path, most: u64) -> Result<Vec<u8>> {
    content(file, open_within(folder, file), most)
}

/// The size in bytes of a file, under the conditions of [`read_within`].
///
/// # Errors
/// As [`read_within`].
pub fn size_within(folder: &Path, file: &Path) -> Result<u64> {
    let size = open_within(folder, file).and_then(|opened| opened.metadata());
    size.map(|found| found.len()).map_err(|e| of_file(file, e))
}

fn content(file: &Path, opened: std::io::Result<File>, most: u64) -> Result<Vec<u8>> {
    opened.and_then(|opened| files::read(&opened, most)).map_err(|e| {
        if e.kind() == ErrorKind::FileTooLarge {
            let message = format!("{} has more than {most} bytes", file.display());
            return Error::new(Code::ResourceExhausted, message).with_source(e);
        }
        of_file(file, e)
    })
}

fn of_file(file: &Path, error: std::io::Error) -> Error {
    Error::new(Code::of_io(&error), format!("{}: {error}", file.display())).with_source(error)
}

fn ends_with(path: &Path, endings: &[&str]) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
    name.is_some_and(|name| endings.iter().any(|ending| name.ends_with(ending)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDINGS: [&str; 2] = [".pmml", ".xml"];

    #[test]
    fn a_model_is_its_file_or_the_only_such_file_of_its_folder() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let (one, odd) = (folder.path().join("a.PMML"), folder.path().join("odd"));
        assert!(matches!(check(folder.path(), &ENDINGS), Completeness::Missing(_)));
        fs::write(&one, "12345").expect("written");
        fs::write(&odd, "").expect("written");
        let has_file = |path: &Path| ModelPath::new(path).has_file(&ENDINGS);
        assert!(has_file(&one) && has_file(folder.path()));
        assert!(!has_file(&odd));
        assert_eq!(find(folder.path(), &ENDINGS).expect("one"), one);
        assert_eq!(find(&odd, &ENDINGS).expect("named"), odd);
        assert_eq!(read(&one, 5).expect("small"), b"12345");
        assert!(read(&one, 4).is_err());

        fs::write(folder.path().join("b.xml"), "").expect("written");
        assert!(matches!(check(folder.path(), &ENDINGS), Completeness::Broken(_)));
    }
}
