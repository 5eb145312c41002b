//! Model files that are recognised by their names, or by their content where other programs use the name, too.

use std::path::{Path, PathBuf};

use tensorserve_platform::{Completeness, ModelPath, files};
use tensorserve_tensor::error::{Code, Error, Result};

/// A folder with more files of [`ModelFiles::shared`] than this is not searched further.
const MAX_SNIFFED_FILES: usize = 16;

/// How the file of a model is found.
pub struct ModelFiles {
    /// The library, as in [`FilePlatform`](crate::FilePlatform).
    pub title: &'static str,
    /// Endings that only this library uses.
    pub own: &'static [&'static str],
    /// Endings that other programs use, too: `looks_like_model` decides.
    pub shared: &'static [&'static str],
    /// Endings by which another platform is recognised: they are looked for last, which is where this platform is
    /// named.
    pub named: &'static [&'static str],
    /// Whether the content of a file with one of the `shared` endings is a model of this library.
    pub looks_like_model: fn(&Path) -> bool,
}

impl ModelFiles {
    /// Whether `place` has a file of the library.
    #[must_use]
    pub fn recognises(&self, place: &ModelPath) -> bool {
        place.has_file(self.own) || self.by_content(place).next().is_some()
    }

    /// Whether `folder` has one such file.
    #[must_use]
    pub fn check(&self, folder: &Path) -> Completeness {
        match self.find(folder) {
            Ok(_) => Completeness::Complete,
            Err(error) if error.code() == Code::NotFound => {
                Completeness::Missing(format!("a file *{}", self.own.join(" or *")))
            }
            Err(error) => Completeness::Broken(error),
        }
    }

    /// The file of the model: `path` itself, or the one in the folder `path`.
    pub fn find(&self, path: &Path) -> Result<PathBuf> {
        let place = ModelPath::new(path);
        if place.is_file() {
            return Ok(path.to_owned());
        }
        if let Some(file) = files::only(path, place.files(self.own))? {
            return Ok(file);
        }
        if let Some(file) = files::only(path, self.by_content(&place))? {
            return Ok(file);
        }
        if let Some(file) = files::only(path, place.files(self.named))? {
            return Ok(file);
        }
        let only_named = self.named.iter().filter(|ending| !self.shared.contains(ending));
        let whole: Vec<&str> = self.own.iter().chain(only_named).copied().collect();
        Err(Error::not_found(format!(
            "{} has no {} model: no file *{}, and no file *{} with a model",
            path.display(),
            self.title,
            whole.join(" or *"),
            self.shared.join(" or *"),
        )))
    }

    fn by_content<'a>(&self, place: &'a ModelPath) -> impl Iterator<Item = &'a PathBuf> {
        let candidates = place.files(self.shared).take(MAX_SNIFFED_FILES);
        candidates.filter(|file| (self.looks_like_model)(file))
    }
}
