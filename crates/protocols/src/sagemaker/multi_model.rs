//! The sources of the models of a multi-model endpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::layout::{self, SavedModelBundle};
use tensorserve_archive as archive;
use tensorserve_core::config::{ModelConfig, SourceConfig, is_store_url};
use tensorserve_tensor::error::{Error, Result};

/// Where SageMaker puts the models of a multi-model endpoint.
pub const MODELS_DIR: &str = "/opt/ml/models";

/// The directory with a model's `inference.py`, if it has one.
#[must_use]
pub fn code_folder(folder: &Path) -> Option<PathBuf> {
    let code = folder.join("code");
    code.join("inference.py").is_file().then_some(code)
}

/// The configuration of a multi-model endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct MultiModelConfig {
    /// The directory that models may be loaded from. Clients may also call it [`MODELS_DIR`].
    pub root: PathBuf,
    /// The settings of its models.
    pub common: ModelConfig,
    /// The time limit of a load.
    pub load_timeout: Duration,
    /// The ports for REST and gRPC in the response to a load.
    pub ports: (u16, u16),
    /// The most memory that the process may use after a load; by default the free memory counts.
    pub memory_limit: Option<u64>,
    /// Unload the least recently used models to make room.
    pub evict: bool,
    /// Load a model on first use, from the directory or archive with its name below the root.
    pub load_on_use: bool,
}

/// A model that could be loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCandidate {
    /// Its path and settings.
    pub source: SourceConfig,
    /// The size of its files, which is about the least memory that it takes.
    pub bytes: u64,
    /// The archive that it was unpacked from, if it was.
    pub archive: Option<UnpackedArchive>,
}

/// An archive, and the temporary directory with its content.
#[derive(Clone, Debug, PartialEq)]
pub struct UnpackedArchive {
    archive: PathBuf,
    folder: PathBuf,
}

impl UnpackedArchive {
    /// The error for the client, who knows the archive and not the directory. The original error
    /// becomes the cause, for the log.
    pub(super) fn describe(&self, error: Error) -> Error {
        let folder = self.folder.display().to_string();
        if !error.message().contains(&folder) {
            return error;
        }
        let archive = self.archive.display().to_string();
        let message = error.message().replace(&folder, &archive);
        Error::new(error.code(), message).with_source(error)
    }
}

impl MultiModelConfig {
    /// Finds the model in the directory or archive `url`, to be loaded as `name`.
    ///
    /// # Errors
    /// [`Code::NotFound`](tensorserve_tensor::error::Code::NotFound) if there is no model, or not below the
    /// root; other errors for invalid archives and for several models.
    pub fn candidate(&self, name: &str, url: &str) -> Result<ModelCandidate> {
        let place = self.place(url)?;
        if !archive::is_archive(&place) {
            return self.candidate_in(name, &place, None);
        }
        let folder = archive::unpacked(&place, &archive::ExtractionLimits::default())?;
        let archive = UnpackedArchive { archive: place, folder: folder.clone() };
        self.candidate_in(name, &folder, Some(archive.clone()))
            .map_err(|error| archive.describe(error))
    }

    /// The location that `url` names, if models are loaded from a store: below the root, or relative
    /// to it.
    ///
    /// # Errors
    /// If it is not below the root.
    pub(super) fn store_url(&self, url: &str) -> Result<Option<PathBuf>> {
        let root = self.root.to_string_lossy();
        let root = root.trim_end_matches('/');
        let is_store = is_store_url(&self.root);
        if !is_store && !is_store_url(Path::new(url)) {
            return Ok(None);
        }
        let below = url.strip_prefix(MODELS_DIR).unwrap_or(url);
        let below = below.strip_prefix(root).filter(|rest| rest.starts_with('/')).unwrap_or(below);
        let inside = below.trim_matches('/');
        let leads_out = inside.split('/').any(|part| matches!(part, "" | "." | ".."));
        if !is_store || inside.contains("://") || leads_out {
            return Err(Error::not_found(format!(
                "{url} is not below {root}, the place that models are loaded from"
            )));
        }
        Ok(Some(PathBuf::from(format!("{root}/{inside}"))))
    }

    pub(super) fn candidate_in(
        &self,
        name: &str,
        folder: &Path,
        archive: Option<UnpackedArchive>,
    ) -> Result<ModelCandidate> {
        let bundle = the_bundle(folder)?;
        let mut source = bundle.source(name, &self.common, true);
        if let Some(code) = code_folder(folder) {
            source.model.code = Some(code);
        }
        Ok(ModelCandidate { source, bytes: size(&bundle.base, 0), archive })
    }

    /// The path below the root with the name of the model, for a load on first use.
    #[must_use]
    pub fn place_of(&self, name: &str) -> Option<String> {
        if is_store_url(&self.root) {
            return Some(name.to_owned());
        }
        let forms = [format!("{name}/model"), name.to_owned(), format!("{name}.tar.gz")];
        forms.into_iter().find(|form| self.root.join(form).exists())
    }

    /// The directory or file that `url` names. It must be below the root after links are resolved.
    fn place(&self, url: &str) -> Result<PathBuf> {
        let path = Path::new(url.strip_prefix("file://").unwrap_or(url));
        let below = path.strip_prefix(MODELS_DIR).unwrap_or(path);
        // Relative paths and paths below SageMaker's root are relative to the configured root.
        let nothing = || Error::not_found(format!("there is no file or directory at {url}"));
        let place = self.root.join(below).canonicalize().map_err(|_| nothing())?;
        let root = self.root.canonicalize().map_err(|_| nothing())?;
        if !place.starts_with(&root) || place == root {
            return Err(Error::not_found(format!(
                "{url} is not below {}, the directory that models are loaded from",
                self.root.display()
            )));
        }
        Ok(place)
    }
}

/// The one model in `folder`: the one whose versions it contains, or the only one below.
fn the_bundle(folder: &Path) -> Result<SavedModelBundle> {
    let mut bundles = layout::find(folder)?.bundles;
    if let Some(at) = bundles.iter().position(|bundle| bundle.base == folder) {
        return Ok(bundles.swap_remove(at));
    }
    let names: Vec<&str> = bundles.iter().map(|bundle| bundle.name.as_str()).collect();
    let (folder, names) = (folder.display(), names.join(", "));
    match (bundles.pop(), bundles.is_empty()) {
        (Some(bundle), true) => Ok(bundle),
        _ => Err(Error::invalid(format!(
            "{folder} contains several models: {names}; give the path of one"
        ))),
    }
}

/// The size of all files below `folder`.
fn size(folder: &Path, depth: usize) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() && depth < 8 => size(&entry.path(), depth + 1),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    });
    sizes.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use tensorserve_tensor::error::Code;

    fn with_models(paths: &[&str]) -> (tempfile::TempDir, MultiModelConfig) {
        let outer = tempfile::tempdir().expect("temporary directory");
        let root = outer.path().join("models");
        fs::create_dir(&root).expect("a directory");
        for path in paths {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
            fs::write(path, b"12345").expect("written");
        }
        let config = MultiModelConfig {
            root,
            common: ModelConfig::default(),
            load_timeout: Duration::from_secs(1),
            ports: (1, 2),
            memory_limit: None,
            evict: false,
            load_on_use: false,
        };
        (outer, config)
    }

    #[test]
    fn urls_are_folders_below_the_root() {
        let (_outer, config) =
            with_models(&["m/model/3/saved_model.pb", "m/model/code/inference.py"]);
        let own = config.root.join("m/model").display().to_string();
        for url in
            ["/opt/ml/models/m/model", "m", "/opt/ml/models/m/", "file:///opt/ml/models/m", &own]
        {
            let ModelCandidate { source, bytes, .. } = config.candidate("x", url).expect(url);
            assert_eq!(source.name.as_deref(), Some("x"));
            assert_eq!(source.path, config.root.join("m/model"), "{url}");
            assert_eq!(bytes, 10);
        }
        let ModelCandidate { source, .. } = config.candidate("x", "m/model").expect("found");
        assert_eq!(source.model.code, Some(config.root.join("m/model/code")));
        assert_eq!(config.place_of("m").as_deref(), Some("m/model"));
    }

    #[test]
    fn models_outside_the_root_are_refused() {
        let (outer, config) = with_models(&["m/1/saved_model.pb"]);
        let secret = outer.path().join("secret/1");
        fs::create_dir_all(&secret).expect("directories");
        fs::write(secret.join("saved_model.pb"), b"").expect("written");
        symlink(outer.path().join("secret"), config.root.join("link")).expect("a link");
        let own = outer.path().join("secret").display().to_string();
        for url in [
            "../secret",
            "/opt/ml/models/../secret",
            "m/../../secret",
            "link",
            &own,
            "/",
            "",
            "/opt/ml/models",
            "missing",
            "m/1/saved_model.pb/x",
            "m\0",
        ] {
            let error = config.candidate("x", url).expect_err(url);
            assert_eq!(error.code(), Code::NotFound, "{url:?}: {error}");
        }
    }

    #[test]
    fn several_models_are_refused() {
        let (_outer, config) = with_models(&["m/a/1/saved_model.pb", "m/b/1/saved_model.pb"]);
        let error = config.candidate("x", "m").expect_err("two");
        assert!(error.message().contains("several models: a, b"), "{error}");
    }

    #[test]
    fn urls_of_a_store_are_below_the_root() {
        let (_outer, mut config) = with_models(&[]);
        assert_eq!(config.store_url("m").expect("local"), None);
        assert!(config.store_url("s3://b/m").is_err(), "the root is a directory");
        config.root = "s3://b/models/".into();
        let found =
            |url: &str| config.store_url(url).map(|found| found.map(|it| it.display().to_string()));
        let want = Some("s3://b/models/m.tar.gz".to_owned());
        for url in ["s3://b/models/m.tar.gz", "/opt/ml/models/m.tar.gz", "m.tar.gz"] {
            assert_eq!(found(url).expect(url), want);
        }
        for url in [
            "s3://b/other/m",
            "s3://c/models/m",
            "../m",
            "s3://b/models",
            "https://h/m",
            "a//b",
            "",
        ] {
            assert!(found(url).is_err(), "{url}");
        }
    }
}
