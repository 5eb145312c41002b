//! Finds the shared library of a platform's runtime.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tensorserve_tensor::error::{Error, Result};

use crate::{LoadOptions, trust};

/// A shared library to find.
pub struct Library {
    /// Its name in messages, and the name of the flag for its path.
    pub name: &'static str,
    /// Names of its file, best first. A version may follow (`.so.1.2.3`).
    pub files: &'static [&'static str],
    /// The directory of its Python package that contains it.
    pub package: &'static str,
    /// The extra of tensorserve's wheel that installs it; empty if pip alone does not.
    pub extra: &'static str,
    /// Its name for `tensorserve fetch`.
    pub runtime: &'static str,
}

/// A directory to search for libraries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SearchFolder {
    /// Its absolute path.
    pub path: PathBuf,
    /// The user has named it. In all others, a library that every user of the machine can replace
    /// is skipped: a library that is opened runs.
    pub is_named: bool,
}

impl From<PathBuf> for SearchFolder {
    /// A folder that the user has named.
    fn from(path: PathBuf) -> Self {
        SearchFolder { path, is_named: true }
    }
}

impl From<&str> for SearchFolder {
    /// A folder that the user has named.
    fn from(path: &str) -> Self {
        PathBuf::from(path).into()
    }
}

/// The settings of a runtime with one library: where it is, and how many threads a run uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RuntimeConfig {
    /// The library file or its directory, if configured.
    pub library: Option<PathBuf>,
    /// Directories to search, in order.
    pub search: Vec<SearchFolder>,
    /// Threads within one operation; 0 for the number that a load requests.
    pub intra_op_threads: i32,
}

impl RuntimeConfig {
    /// Finds `library` where the settings say and opens it with `open`. Also returns its file.
    ///
    /// # Errors
    /// Those of [`Library::open`].
    pub fn open<T, E: std::error::Error + Send + Sync + 'static>(
        &self,
        library: &Library,
        open: impl Fn(&Path) -> Result<T, E>,
    ) -> Result<(T, PathBuf)> {
        library.open(self.library.as_deref(), &self.search, open)
    }

    /// The configured number of threads within one operation, else that of `options`.
    #[must_use]
    pub fn threads(&self, options: &LoadOptions) -> usize {
        match usize::try_from(self.intra_op_threads) {
            Ok(configured @ 1..) => configured,
            _ => options.threads,
        }
    }
}

/// A library that is opened by the first model that needs it, so that commands without one stay fast.
pub struct LazyLibrary<T> {
    opened: Mutex<Option<(T, PathBuf)>>,
}

impl<T> Default for LazyLibrary<T> {
    fn default() -> Self {
        LazyLibrary { opened: Mutex::new(None) }
    }
}

impl<T: Clone> LazyLibrary<T> {
    /// The library, which `open` opens if that has not succeeded before.
    ///
    /// # Errors
    /// Those of `open`; the next call tries again.
    pub fn get_or_open(&self, open: impl FnOnce() -> Result<(T, PathBuf)>) -> Result<T> {
        let mut opened = self.opened();
        if let Some((library, _)) = &*opened {
            return Ok(library.clone());
        }
        let (library, file) = open()?;
        *opened = Some((library.clone(), file));
        Ok(library)
    }

    /// The library, if it is open.
    pub fn get(&self) -> Option<T> {
        self.opened().as_ref().map(|(library, _)| library.clone())
    }

    /// The file of the open library.
    pub fn file(&self) -> Option<PathBuf> {
        self.opened().as_ref().map(|(_, file)| file.clone())
    }

    fn opened(&self) -> MutexGuard<'_, Option<(T, PathBuf)>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of [`Library::find`].
#[derive(Debug, PartialEq, Eq)]
pub enum FoundLibrary {
    /// This file.
    File(PathBuf),
    /// None found; let the system's loader search for [`Library::files`].
    System,
}

impl Library {
    /// Looks for the library: at the path `given` (a file or directory) if there is one, else in
    /// the directories `search`, in this order, else in the search path of the system's loader.
    ///
    /// # Errors
    /// If a path was given and there is no library: a wrong setting must not be ignored.
    pub fn find(&self, given: Option<&Path>, search: &[SearchFolder]) -> Result<FoundLibrary> {
        match given {
            Some(path) => self.at(path).map(FoundLibrary::File),
            None => Ok(self
                .search(search, &mut Vec::new())
                .map_or(FoundLibrary::System, FoundLibrary::File)),
        }
    }

    /// Finds the library and opens it with `open`. Also returns its file.
    ///
    /// # Errors
    /// As [`Library::find`]; if the library cannot be opened.
    /// [`Code::Unavailable`](tensorserve_tensor::error::Code::Unavailable) if none was named.
    pub fn open<T, E: std::error::Error + Send + Sync + 'static>(
        &self,
        given: Option<&Path>,
        search: &[SearchFolder],
        open: impl Fn(&Path) -> Result<T, E>,
    ) -> Result<(T, PathBuf)> {
        let mut skipped = Vec::new();
        let file = match given {
            Some(path) => Some(self.at(path)?),
            None => self.search(search, &mut skipped),
        };
        if let Some(file) = file {
            return match open(&file) {
                Ok(opened) => Ok((opened, file)),
                Err(e) => {
                    let message = format!("{} cannot be loaded: {e}", file.display());
                    let error = match given {
                        Some(_) => Error::invalid(message),
                        None => Error::unavailable(message),
                    };
                    Err(error.with_source(e))
                }
            };
        }
        let mut last = String::new();
        for name in self.files {
            match open(Path::new(name)) {
                Ok(opened) => return Ok((opened, opened_file(name))),
                Err(e) => last = e.to_string(),
            }
        }
        Err(self.missing(search, &skipped, &last))
    }

    /// The version of the library in `file`, where it is only in the name of a directory: that of
    /// `tensorserve fetch`, or that of the installed Python package.
    #[must_use]
    pub fn version_of(&self, file: &Path) -> Option<String> {
        let package = self.package.split('/').next().unwrap_or_default();
        let prefix = format!("{package}-");
        let version = |name: &str| {
            let version = name.strip_prefix(&prefix)?;
            let is_end = |c: char| c != '.' && !c.is_ascii_digit();
            let end = version.find(is_end).unwrap_or(version.len());
            version.get(..end).map(|version| version.trim_end_matches('.').to_owned())
        };
        let mut above = file.ancestors().skip(1);
        let around =
            above.find(|path| path.file_name().is_some_and(|name| name == package))?.parent()?;
        let fetched = around.file_name().and_then(|name| version(&name.to_string_lossy()));
        fetched.or_else(|| {
            let entries = fs::read_dir(around).ok()?.flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let mut installed = names.filter(|name| name.ends_with(".dist-info"));
            installed.find_map(|name| version(&name))
        })
    }

    /// The library at `path`, a file or directory that the user has named. Its path is absolute: the
    /// loader searches for a name without a directory elsewhere.
    fn at(&self, path: &Path) -> Result<PathBuf> {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if absolute.is_file() {
            return Ok(absolute);
        }
        self.in_folder(&absolute).ok_or_else(|| {
            Error::invalid(format!(
                "no {} at {} (looked for {})",
                self.name,
                path.display(),
                self.files.join(" and ")
            ))
        })
    }

    /// The first library in `folders`. Libraries that are skipped are logged, and added to `skipped`
    /// with the reason.
    fn search(&self, folders: &[SearchFolder], skipped: &mut Vec<String>) -> Option<PathBuf> {
        for SearchFolder { path, is_named } in folders {
            let Some(file) = self.in_folder(path) else {
                continue;
            };
            let open = if *is_named { None } else { trust::open_to_all(&file) };
            let Some(open) = open else {
                return Some(file);
            };
            let (file, open) = (file.display(), open.display());
            let why = format!("{file} was skipped: other users can change or replace {open}");
            log::warn!("{why}; to use it, name it with --{} {file}", self.name);
            skipped.push(why);
        }
        None
    }

    /// The error if no library was found: the directories searched, and how to install it.
    fn missing(&self, search: &[SearchFolder], skipped: &[String], last: &str) -> Error {
        let mut looked: Vec<String> = search.iter().map(|f| f.path.display().to_string()).collect();
        looked.push("the system's library path".to_owned());
        let skipped: String = skipped.iter().map(|why| format!(" {why}.")).collect();
        // `make lib` fetches those that the wheel has extras for.
        let make =
            if self.extra.is_empty() { "" } else { " (in its source directory: `make lib`)" };
        Error::unavailable(format!(
            "{name} was not found ({last}). Looked in: {looked}.{skipped} Install it with {remedy}{make}, \
             or name it with --{name} PATH",
            name = self.name,
            remedy = install_commands(self.runtime, self.extra),
            looked = looked.join(", "),
        ))
    }

    /// A library in `folder` itself, in what it has of the Python package, or in one of its
    /// `PACKAGE-VERSION-DEVICE-MACHINE/` (what `make lib` and `tensorserve fetch` make); the newest
    /// first, and of the same version the one for GPUs.
    fn in_folder(&self, folder: &Path) -> Option<PathBuf> {
        let (package, _) = self.package.split_once('/').unwrap_or((self.package, ""));
        let below = |folder: &Path| {
            // `folder` may contain the package, or be the package.
            let parent = folder.file_name().is_some_and(|name| name == package);
            let beside = if parent { folder.parent() } else { None };
            let mut places = vec![folder.to_owned(), folder.join(self.package)];
            places.extend(beside.map(|beside| beside.join(self.package)));
            places.iter().find_map(|place| self.directly_in(place))
        };
        if let Some(file) = below(folder) {
            return Some(file);
        }
        let prefix = format!("{package}-");
        let entries = fs::read_dir(folder).ok()?.flatten();
        let fetched = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(&prefix) && name.ends_with(ARCH)
        });
        let mut fetched: Vec<PathBuf> = fetched.map(|entry| entry.path()).collect();
        fetched.sort_by_cached_key(|folder| (version_of(folder), folder.clone()));
        fetched.iter().rev().find_map(|folder| below(folder))
    }

    fn directly_in(&self, folder: &Path) -> Option<PathBuf> {
        let entries = fs::read_dir(folder).ok()?.flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.sort();
        let is_called = |file: &Path, wanted: &str| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let rest = name.strip_prefix(wanted);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.')) && file.is_file()
        };
        // A name without a version is a link to the newest.
        let of = |wanted: &&str| files.iter().find(|file| is_called(file, wanted));
        self.files.iter().find_map(of).cloned()
    }
}

/// The commands that install a runtime, for a sentence: `tensorserve fetch`, which every installation has,
/// and the `extra` of the wheel, if there is one, which pip knows where the wheel is installed.
#[must_use]
pub fn install_commands(runtime: &str, extra: &str) -> String {
    let fetch = format!("`tensorserve fetch {runtime}`");
    if extra.is_empty() {
        return fetch;
    }
    format!("{fetch} or, where pip has installed tensorserve, `pip install 'tensorserve[{extra}]'`")
}

/// The version in the name `PACKAGE-VERSION-…` of a directory, for comparison.
fn version_of(folder: &Path) -> Vec<u64> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let version = name.split('-').nth(1).unwrap_or_default();
    version.split('.').map_while(|number| number.parse().ok()).collect()
}

/// The file that the system's loader has opened for the library `name`; the name if that is unknown.
fn opened_file(name: &str) -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files = maps.lines().filter_map(|line| Some(Path::new(line.get(line.find('/')?..)?)));
    let is_named = |file: &&Path| {
        file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name))
    };
    files.find(is_named).map_or_else(|| PathBuf::from(name), Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const LIBRARY: Library = Library {
        name: "libnumbers",
        files: &["libnumbers_best.so.2", "libnumbers.so"],
        package: "numbers/capi",
        extra: "numbers",
        runtime: "numbers",
    };

    fn file(path: &Path) {
        fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        fs::write(path, "").expect("file");
    }

    fn found(folder: &Path) -> String {
        match LIBRARY.find(None, &[folder.to_owned().into()]) {
            Ok(FoundLibrary::File(file)) => {
                file.strip_prefix(folder).expect("below").display().to_string()
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn finds_what_make_fetched_newest_first() {
        let home = tempfile::tempdir().expect("temporary directory");
        assert_eq!(found(home.path()), "Ok(System)");
        for version in ["2.9.0", "2.20.0", "2.21.0"] {
            let folder = format!("numbers-{version}-cpu-{ARCH}/numbers/capi");
            file(&home.path().join(folder).join("libnumbers.so.2.1"));
        }
        assert!(found(home.path()).starts_with("numbers-2.21.0-cpu"), "{}", found(home.path()));
    }

    #[test]
    fn finds_it_in_its_python_package_under_its_best_name() {
        let home = tempfile::tempdir().expect("temporary directory");
        let package = home.path().join("numbers");
        file(&package.join("capi/libnumbers_other.so.2"));
        assert_eq!(found(&package), "Ok(System)");
        file(&package.join("capi/libnumbers.so.1.31.1"));
        assert_eq!(found(&package), "capi/libnumbers.so.1.31.1");
        file(&package.join("capi/libnumbers_best.so.2"));
        assert_eq!(found(&package), "capi/libnumbers_best.so.2");
    }

    #[test]
    fn a_wrong_path_is_an_error_and_not_skipped() {
        let wrong = Path::new("/nowhere/at/all");
        let error = LIBRARY.find(Some(wrong), &[]).expect_err("a missing library");
        assert!(error.message().starts_with("no libnumbers at /nowhere/at/all"));
    }

    #[test]
    fn what_is_not_there_is_told_with_how_to_get_it() {
        let open = |_: &Path| Err::<(), _>(std::io::Error::other("not here"));
        let error = LIBRARY.open(None, &["/srv/lib".into()], open).expect_err("a missing library");
        for part in ["(not here)", "/srv/lib", "--libnumbers PATH"] {
            assert!(error.message().contains(part), "{error}");
        }
        let fetch = error.message().find("`tensorserve fetch numbers`").expect("fetch");
        let pip = error.message().find("`pip install 'tensorserve[numbers]'`").expect("pip");
        assert!(fetch < pip, "{error}");
    }

    #[test]
    fn what_others_can_replace_is_opened_only_where_the_user_names_it() {
        let home = tempfile::tempdir().expect("temporary directory");
        let lib = home.path().join("lib");
        let library = lib.join("libnumbers.so");
        file(&library);
        fs::set_permissions(&lib, fs::Permissions::from_mode(0o777)).expect("permissions");
        let found_by_itself = SearchFolder { path: lib.clone(), is_named: false };
        let named = SearchFolder { path: lib.clone(), is_named: true };
        let find = |folder: &SearchFolder| LIBRARY.find(None, std::slice::from_ref(folder)).ok();
        assert_eq!(find(&found_by_itself), Some(FoundLibrary::System));
        assert_eq!(find(&named), Some(FoundLibrary::File(library.clone())));
        assert_eq!(LIBRARY.find(Some(&lib), &[]).ok(), Some(FoundLibrary::File(library.clone())));
        let open = |_: &Path| Err::<(), _>(std::io::Error::other("not here"));
        let error = LIBRARY.open(None, &[found_by_itself], open).expect_err("skipped");
        let skipped = format!("{} was skipped", library.display());
        assert!(error.message().contains(&skipped), "{error}");
    }

    #[test]
    fn a_file_name_is_that_file_and_not_one_of_the_loader() {
        let here = std::env::current_dir().expect("working directory").join("Cargo.toml");
        let found = LIBRARY.find(Some(Path::new("Cargo.toml")), &[]);
        assert_eq!(found.ok(), Some(FoundLibrary::File(here)));
    }

    #[test]
    fn the_version_is_in_the_name_of_a_directory() {
        let of = |package, file: &str| {
            let library = Library { package, ..LIBRARY };
            library.version_of(Path::new(file))
        };
        let file = "/l/ai_edge_litert-2.3.0-cpu-x86_64/ai_edge_litert/libLiteRt.so";
        assert_eq!(of("ai_edge_litert", file).as_deref(), Some("2.3.0"));
        let file = "/l/executorch-1.5.1-cpu-x86_64/executorch/lib/libexecutorch.so";
        assert_eq!(of("executorch/lib", file).as_deref(), Some("1.5.1"));
        assert_eq!(of("executorch/lib", "/usr/lib/libexecutorch.so"), None);
        let folder = tempfile::tempdir().expect("a directory");
        let package = folder.path().join("executorch/lib");
        for made in [package.clone(), folder.path().join("executorch-1.5.1.dist-info")] {
            fs::create_dir_all(made).expect("created");
        }
        let file = package.join("libexecutorch.so");
        assert_eq!(of("executorch/lib", &file.to_string_lossy()).as_deref(), Some("1.5.1"));
    }
}
