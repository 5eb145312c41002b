//! Models that are one file: finding it, and reading it whole.
//!
//! Such a model is named by its file, or by a version folder that holds it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Completeness;
use crate::error::{Code, Error, Result};

/// Whether `path` is a file whose name ends like a model's, or a folder that holds one.
pub(super) fn recognises(path: &Path, endings: &[&str]) -> bool {
    match path.is_file() {
        true => ends_with(path, endings),
        false => !inside(path, endings).is_empty(),
    }
}

/// Whether there is one such file, and not several.
pub(super) fn check(path: &Path, endings: &[&str]) -> Completeness {
    match find(path, endings) {
        Ok(_) => Completeness::Complete,
        Err(error) if error.code() == Code::NotFound => {
            Completeness::Missing(format!("a file *{}", endings.join(" or *")))
        }
        Err(error) => Completeness::Broken(error),
    }
}

/// The model's file: `path` itself, whatever its name, or the only one in the folder `path` whose
/// name ends like a model's.
///
/// # Errors
/// [`Code::NotFound`] if there is none; [`Code::FailedPrecondition`] if there are several.
pub(super) fn find(path: &Path, endings: &[&str]) -> Result<PathBuf> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    let shown = path.display();
    match &*inside(path, endings) {
        [] => Err(Error::not_found(format!("{shown} holds no file *{}", endings.join(" or *")))),
        [file] => Ok(file.clone()),
        [one, other, ..] => Err(Error::new(
            Code::FailedPrecondition,
            format!(
                "{shown} holds several models, {} and {}: give each a folder of its own, or name \
                 the file",
                one.display(),
                other.display()
            ),
        )),
    }
}

/// All of `file`.
///
/// # Errors
/// If it can not be read; [`Code::ResourceExhausted`] if it has more than `most` bytes.
pub(super) fn read(file: &Path, most: u64) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| {
        Error::new(Code::of_io(&e), format!("{}: {e}", file.display())).with_source(e)
    };
    let mut bytes = Vec::new();
    let open = File::open(file).map_err(failed)?;
    open.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > most) {
        let message = format!("{} has more than {most} bytes", file.display());
        return Err(Error::new(Code::ResourceExhausted, message));
    }
    Ok(bytes)
}

/// Files in `folder` whose names end so, sorted.
fn inside(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        paths.filter(|path| ends_with(path, endings) && path.is_file()).collect();
    found.sort();
    found
}

/// Folders in `folder`; none if it can not be read.
pub(super) fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
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
        let folder = tempfile::tempdir().expect("temporary folder");
        let (one, odd) = (folder.path().join("a.PMML"), folder.path().join("odd"));
        assert!(matches!(check(folder.path(), &ENDINGS), Completeness::Missing(_)));
        fs::write(&one, "12345").expect("written");
        fs::write(&odd, "").expect("written");
        assert!(recognises(&one, &ENDINGS) && recognises(folder.path(), &ENDINGS));
        assert!(!recognises(&odd, &ENDINGS));
        assert_eq!(find(folder.path(), &ENDINGS).expect("one"), one);
        assert_eq!(find(&odd, &ENDINGS).expect("named"), odd);
        assert_eq!(read(&one, 5).expect("small"), b"12345");
        assert!(read(&one, 4).is_err());

        fs::write(folder.path().join("b.xml"), "").expect("written");
        assert!(matches!(check(folder.path(), &ENDINGS), Completeness::Broken(_)));
    }
}
