//! Discovers which models and versions exist in a source.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::policy;
use crate::config::{ModelConfig, SourceConfig, VersionPolicy, is_model_name};
use tensorserve_platform::{ModelPath, Platforms, names_version};
use tensorserve_tensor::error::{Code, Error, Result};

/// A model that a source holds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DiscoveredModel {
    pub(super) name: String,
    /// The path of the source it comes from.
    pub(super) source: PathBuf,
    /// Directories of its versions.
    pub(super) versions: BTreeMap<i64, PathBuf>,
    pub(super) config: ModelConfig,
}

impl DiscoveredModel {
    /// The versions to load of those that are there, if a request loads the model.
    pub(super) fn requested_versions(&self) -> Result<BTreeSet<i64>> {
        let there: BTreeSet<i64> = self.versions.keys().copied().collect();
        let requested = policy::aspired(&there, &self.config.policy);
        let (name, path) = (&self.name, self.source.display());
        if let VersionPolicy::Specific(all) = &self.config.policy
            && let Some(missing) = all.iter().find(|version| !there.contains(version))
        {
            return Err(Error::not_found(format!("model {name}: no version {missing} in {path}")));
        }
        if requested.is_empty() {
            return Err(Error::not_found(format!("model {name}: no version in {path}")));
        }
        Ok(requested)
    }
}

/// What one scan of a source found.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    pub(super) models: Vec<DiscoveredModel>,
    /// Names of directories that may be models, but cannot be read.
    pub(super) unreadable: BTreeSet<String>,
    /// Names of directories without a version: models that were emptied, or not models at all.
    pub(super) empty: BTreeSet<String>,
    /// Warnings for the log, each to be logged once.
    pub(super) notes: BTreeSet<String>,
}

/// Finds the models and versions in `source`. Nothing in the directories `hanging` is touched: they do
/// not respond.
///
/// # Errors
/// If its directory cannot be read. What is loaded from it should then stay loaded.
pub(super) fn discover(
    source: &SourceConfig,
    platforms: &Platforms,
    hanging: &BTreeSet<PathBuf>,
) -> Result<Discovery> {
    let mut discovery = Discovery::default();
    let (path, named) = (&source.path, source.model.platform);
    let place = ModelPath::without(path, hanging);
    let hanging_inside = hanging.iter().filter(|hangs| hangs.parent() == Some(path));
    if source.name.is_some() || hanging_inside.clone().any(|hangs| is_version(hangs)) {
        check_responds(path, hanging)?;
    }
    if platforms.is_model_at(&place, named) {
        let (name, version) = name_of_model_folder(path);
        let versions = BTreeMap::from([(version, path.clone())]);
        discovery.add(source.name.clone().unwrap_or(name), versions, source);
        return Ok(discovery);
    }
    let folders = subfolders(path, hanging)?;
    let versions = versions_among(&folders, &mut discovery.notes);
    if !versions.is_empty() || source.name.is_some() {
        discovery.ignore_files(&platforms.model_files_at(&place, named), "numbered versions");
        let name = source.name.clone().unwrap_or_else(|| folder_name(path));
        discovery.add(name, versions, source);
        return Ok(discovery);
    }
    for (name, folder) in folders {
        if name.starts_with('.') {
            continue;
        }
        if platforms.is_model_at(&ModelPath::without(&folder, hanging), named) {
            discovery.add(name, BTreeMap::from([(1, folder)]), source);
            continue;
        }
        // One unreadable model does not hide the others.
        let folders = check_responds(&folder, hanging).and_then(|()| subfolders(&folder, hanging));
        let versions = match folders {
            Ok(folders) => versions_among(&folders, &mut discovery.notes),
            Err(error) => {
                discovery.notes.insert(format!("{error}; versions loaded from it stay loaded"));
                discovery.unreadable.insert(name);
                continue;
            }
        };
        if versions.is_empty() {
            discovery.empty.insert(name);
        } else {
            discovery.add(name, versions, source);
        }
    }
    let names = hanging_inside.filter_map(|hangs| hangs.file_name());
    discovery.unreadable.extend(names.map(|name| name.to_string_lossy().into_owned()));
    discovery.ignore_files(&platforms.model_files_at(&place, named), "directories of models");
    Ok(discovery)
}

/// Fails if something in `folder` is in `hanging`: its versions cannot be known.
fn check_responds(folder: &Path, hanging: &BTreeSet<PathBuf>) -> Result<()> {
    match hanging.iter().find(|hangs| hangs.starts_with(folder)) {
        Some(hangs) => Err(no_response(hangs)),
        None => Ok(()),
    }
}

/// The error of a path that does not respond.
pub(super) fn no_response(path: &Path) -> Error {
    Error::unavailable(format!("{} does not respond: its file system hangs", path.display()))
}

fn is_version(folder: &Path) -> bool {
    folder.file_name().and_then(OsStr::to_str).is_some_and(names_version)
}

impl Discovery {
    /// Notes that model files are not served because they lie beside `others`: an export or a
    /// vocabulary that was left there must not become a model, or hide the others.
    fn ignore_files(&mut self, files: &[PathBuf], others: &str) {
        let Some(folder) = files.first().and_then(|file| file.parent()) else {
            return;
        };
        let names = files.iter().filter_map(|file| file.file_name());
        let names: Vec<_> = names.map(OsStr::to_string_lossy).collect();
        self.notes.insert(format!(
            "{} contains model files beside {others}, and these files are not served: {}; put each into \
             a directory of its own, or configure its path",
            folder.display(),
            names.join(", ")
        ));
    }

    fn add(&mut self, name: String, versions: BTreeMap<i64, PathBuf>, source: &SourceConfig) {
        if !is_model_name(&name) {
            let note = format!("model {name:?} is ignored: a model name cannot contain : or /");
            self.notes.insert(note);
            return;
        }
        let (config, source) = (source.model.clone(), source.path.clone());
        self.models.push(DiscoveredModel { name, source, versions, config });
    }
}

/// Name and version of a model whose own directory is a source: `half_plus_two/3` is version 3 of
/// `half_plus_two`; any other directory is version 1 of the model of its name. A file gives its
/// model its name without the extension.
fn name_of_model_folder(path: &Path) -> (String, i64) {
    if path.is_file() {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        return (stem.unwrap_or_else(|| folder_name(path)), 1);
    }
    let name = folder_name(path);
    match (name.parse(), real_path(path).parent()) {
        (Ok(version), Some(parent)) if version >= 0 => (folder_name(parent), version),
        _ => (name, 1),
    }
}

fn real_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The last part of the path, also of `.` and `models/..`.
fn folder_name(path: &Path) -> String {
    let real = real_path(path);
    let name = real.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "default".to_owned())
}

/// Directories in `path` whose names are valid UTF-8, in byte order, without those in `hanging`.
fn subfolders(path: &Path, hanging: &BTreeSet<PathBuf>) -> Result<Vec<(String, PathBuf)>> {
    let unreadable = |e: std::io::Error| {
        let message = format!("{} cannot be read: {e}", path.display());
        Error::new(Code::of_io(&e), message).with_source(e)
    };
    let mut folders = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if hanging.contains(&entry.path()) {
            continue;
        }
        // Links count as what they point to: `current -> v7` is common.
        let is_folder = fs::metadata(entry.path()).is_ok_and(|meta| meta.is_dir());
        if let (true, Ok(name)) = (is_folder, entry.file_name().into_string()) {
            folders.push((name, entry.path()));
        }
    }
    folders.sort();
    Ok(folders)
}

/// The directories named by a number. Of two with the same number (`1` and `001`) the later in byte
/// order counts, as in TensorFlow Serving.
fn versions_among(
    folders: &[(String, PathBuf)],
    notes: &mut BTreeSet<String>,
) -> BTreeMap<i64, PathBuf> {
    let mut versions = BTreeMap::new();
    for (name, folder) in folders {
        let Some(version) = names_version(name).then(|| name.parse().ok()).flatten() else {
            continue;
        };
        if let Some(other) = versions.insert(version, folder.clone()) {
            notes.insert(format!(
                "two directories have version number {version}: {} is used, {} is ignored",
                folder.display(),
                other.display()
            ));
        }
    }
    versions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use tensorserve_platform::{
        Completeness, ForeignFormats, Inspection, LoadOptions, Loaded, ModelLoader,
        ModelPath as Path,
    };

    /// Loads models that are the directories with a `saved_model.pb`, and files `*.flat`.
    struct ByFile;

    impl ModelLoader for ByFile {
        fn recognises(&self, place: &Path) -> bool {
            place.path().join("saved_model.pb").is_file() || place.has_file(&[".flat"])
        }

        fn check(&self, _folder: &std::path::Path) -> Completeness {
            Completeness::Complete
        }

        fn inspect(&self, _: &std::path::Path, _: &LoadOptions) -> Result<Inspection> {
            Err(Error::internal("nothing is loaded here"))
        }

        fn load(&self, _: &std::path::Path, _: &LoadOptions) -> Result<Loaded> {
            Err(Error::internal("nothing is loaded here"))
        }
    }

    struct Place {
        root: tempfile::TempDir,
        platforms: Platforms,
    }

    impl Place {
        fn with(models: &[&str]) -> Self {
            let root = tempfile::tempdir().expect("temporary directory");
            for model in models {
                let folder = root.path().join(model);
                fs::create_dir_all(&folder).expect("directory");
                fs::write(folder.join("saved_model.pb"), "x").expect("file");
            }
            let platform = ForeignFormats::platform().with_loader(ByFile);
            Place { root, platforms: Platforms::new(vec![platform]) }
        }

        fn discover(&self, path: &str, name: Option<&str>) -> Vec<(String, Vec<i64>)> {
            let (path, name) = (self.root.path().join(path), name.map(str::to_owned));
            let source = SourceConfig { path, name, model: ModelConfig::default() };
            let found = discover(&source, &self.platforms, &BTreeSet::new()).expect("readable");
            let brief = |found: DiscoveredModel| (found.name, found.versions.into_keys().collect());
            found.models.into_iter().map(brief).collect()
        }
    }

    #[test]
    fn a_folder_of_models() {
        let place = Place::with(&["all/a/1", "all/a/00000002", "all/b", "all/.hidden/1"]);
        fs::create_dir_all(place.root.path().join("all/scripts/lib")).expect("directory");
        let want = [("a".to_owned(), vec![1, 2]), ("b".to_owned(), vec![1])];
        assert_eq!(place.discover("all", None), want);
    }

    #[test]
    fn a_folder_of_versions_and_a_single_model() {
        let place = Place::with(&["m/1", "m/3", "m/latest"]);
        assert_eq!(place.discover("m", None), [("m".to_owned(), vec![1, 3])]);
        assert_eq!(place.discover("m", Some("other")), [("other".to_owned(), vec![1, 3])]);
        assert_eq!(place.discover("m/3", None), [("m".to_owned(), vec![3])]);
        assert_eq!(place.discover("m/latest", None), [("latest".to_owned(), vec![1])]);
    }

    #[test]
    fn model_files_beside_models_or_versions_are_noted() {
        let place = Place::with(&["all/a/1", "all/b"]);
        let root = place.root.path();
        for file in ["all/c.flat", "all/d.flat", "all/notes.txt", "all/.e.flat", "all/a/x.flat"] {
            fs::write(root.join(file), "x").expect("file");
        }
        let found = |path: &str, platform| {
            let model = ModelConfig { platform, ..ModelConfig::default() };
            let source = SourceConfig { path: root.join(path), name: None, model };
            let found = discover(&source, &place.platforms, &BTreeSet::new()).expect("readable");
            (found.models.len(), found.notes.into_iter().collect::<Vec<String>>())
        };
        let (models, notes) = found("all", None);
        let part =
            "beside directories of models, and these files are not served: c.flat, d.flat; put";
        assert!(models == 2 && notes.len() == 1 && notes[0].contains(part), "{notes:?}");
        let (models, notes) = found("all/a", None);
        let part = "beside numbered versions, and these files are not served: x.flat;";
        assert!(models == 1 && notes.len() == 1 && notes[0].contains(part), "{notes:?}");
        // The files of another platform than the named one are none of its models.
        assert_eq!(found("all", Some("other")).1, [""; 0]);
    }

    #[test]
    fn odd_names() {
        let place = Place::with(&["m/1", "m/001", "m/-1", "m/1.tmp", "m/99999999999999999999"]);
        assert_eq!(place.discover("m", None), [("m".to_owned(), vec![1])]);
        let place = Place::with(&["all/with:colon/1", "all/fine/1"]);
        assert_eq!(place.discover("all", None), [("fine".to_owned(), vec![1])]);
    }

    #[test]
    fn a_missing_folder_is_an_error() {
        let place = Place::with(&[]);
        let path = place.root.path().join("nothing");
        let missing = SourceConfig { path, name: None, model: ModelConfig::default() };
        assert!(discover(&missing, &place.platforms, &BTreeSet::new()).is_err());
    }

    #[test]
    fn what_hangs_hides_no_other_model() {
        let place = Place::with(&["all/a/1", "all/b/1", "all/b/2", "all/c"]);
        let discovered = |path: &str, hanging: &str| {
            let root = place.root.path();
            let (path, hanging) = (root.join(path), BTreeSet::from([root.join(hanging)]));
            let source = SourceConfig { path, name: None, model: ModelConfig::default() };
            let found = discover(&source, &place.platforms, &hanging)?;
            let names: Vec<String> = found.models.into_iter().map(|found| found.name).collect();
            Ok::<_, Error>((names.join(" "), found.unreadable.into_iter().collect::<String>()))
        };
        let pair = |models: &str, unreadable: &str| (models.to_owned(), unreadable.to_owned());
        assert_eq!(discovered("all", "all/b").expect("readable"), pair("a c", "b"));
        assert_eq!(discovered("all", "all/b/2").expect("readable"), pair("a c", "b"));
        assert_eq!(discovered("all", "all/c").expect("readable"), pair("a b", "c"));
        // One of its versions is there and cannot be read: nothing is known about the model.
        let error = discovered("all/b", "all/b/2").expect_err("unreadable");
        assert!(error.message().contains("all/b/2 does not respond"), "{error}");
    }
}
