//! The environment of the process. Nothing else in the program reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use super::written::{PREFIX, unknown_name, variable};
use tensorserve_platform::library::SearchFolder;

/// Variables with the prefix that are not settings.
const SPECIAL: [&str; 9] = [
    // The configuration file; it is not a key of itself.
    "TENSORSERVE_CONFIG",
    // A directory to search for libraries: the one in which `make` installs them.
    "TENSORSERVE_LIB_DIR",
    // Set by `make run`: its start time, in nanoseconds since 1970.
    "TENSORSERVE_CALLED_AT",
    // The number of shards of `tensorserve transform`.
    "TENSORSERVE_SHARDS",
    // The program that the Python package starts.
    "TENSORSERVE_BINARY",
    // For generated clients, which may run in the same shell.
    "TENSORSERVE_USER",
    "TENSORSERVE_PASSWORD",
    "TENSORSERVE_KEY",
    "TENSORSERVE_CA",
];

/// A snapshot of the environment, with the path of the program.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<String, OsString>,
    binary: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let named = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        Environment {
            variables: env::vars_os().filter_map(named).collect(),
            binary: env::current_exe().ok(),
        }
    }

    /// The value of a variable, if it is text.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name)?.to_str()
    }

    /// Whether a variable is set, to whatever value.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        self.variables.contains_key(name)
    }

    /// This environment with the variable `name`.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.insert(name.to_owned(), value.into());
        self
    }

    /// The value of a setting's variable.
    pub(super) fn setting(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(&variable(name)).map(OsString::as_os_str)
    }

    /// The names of SageMaker's variables that are set, sorted.
    pub fn of_sagemaker(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().map(String::as_str).filter(|name| name.starts_with("SAGEMAKER_"))
    }

    /// The prefix that the binary is installed in: `PREFIX` of `PREFIX/bin/tensorserve`.
    pub(crate) fn prefix(&self) -> Option<&Path> {
        let home = self.binary.as_deref()?.parent()?;
        home.parent().filter(|_| home.ends_with("bin"))
    }

    /// The variables that are text and whose name is wanted.
    pub(crate) fn text_of(&self, is_wanted: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
        let wanted = self.variables.iter().filter(|(name, _)| is_wanted(name));
        let text =
            |(name, value): (&String, &OsString)| Some((name.clone(), value.to_str()?.to_owned()));
        wanted.filter_map(text).collect()
    }

    /// An environment with these variables.
    #[cfg(test)]
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Self {
        let pairs = pairs.iter().map(|(n, v)| ((*n).to_owned(), OsString::from(v)));
        Environment { variables: pairs.collect(), binary: None }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.variables.get(name).map(PathBuf::from)
    }

    /// The path, if it is absolute.
    fn absolute(&self, name: &str) -> Option<PathBuf> {
        self.path(name).filter(|path| path.is_absolute())
    }

    /// The path of `program`: a bare name is looked up on the PATH and stays a name if it is not
    /// found there.
    pub(super) fn program(&self, program: PathBuf) -> PathBuf {
        if program.components().count() > 1 {
            return program;
        }
        let folders = self.variables.get("PATH").map(env::split_paths).into_iter().flatten();
        let mut files = folders.map(|folder| folder.join(&program));
        files.find(|file| file.is_file()).unwrap_or(program)
    }

    /// The directory for caches.
    pub(super) fn cache_directory(&self) -> PathBuf {
        let cache = self.absolute("XDG_CACHE_HOME");
        let home = || self.path("HOME").map(|home| home.join(".cache"));
        cache.or_else(home).unwrap_or_else(env::temp_dir).join("tensorserve")
    }

    /// The start time of `make run`, in nanoseconds since 1970.
    #[must_use]
    pub fn called_at(&self) -> Option<u128> {
        self.get("TENSORSERVE_CALLED_AT")?.parse().ok()
    }

    /// A mistake for each variable with our prefix that belongs to none of `settings`.
    pub(super) fn unknown_settings(&self, settings: &[&str]) -> Vec<String> {
        let known: Vec<String> = settings.iter().map(|name| variable(name)).collect();
        let mut known: Vec<&str> = known.iter().map(String::as_str).collect();
        known.extend(SPECIAL);
        let ours = self.variables.keys().filter(|name| name.starts_with(PREFIX));
        let unknown = ours.filter(|name| !known.contains(&name.as_str()));
        unknown.map(|name| unknown_name(name, &known, "a variable of tensorserve")).collect()
    }

    /// Directories to search for the library of the Python package `package`, in this order: beside
    /// the binary and in the `lib/` of its prefix; the directory that a variable names; the package
    /// where pip has installed the binary; in the active environment; what `tensorserve fetch` has
    /// installed; the package of the user and of the system. All are absolute: never the working
    /// directory, whose files may be someone else's. A library that is opened runs.
    pub(crate) fn library_directories(&self, package: &str) -> Vec<SearchFolder> {
        let home = self.binary.as_deref().and_then(Path::parent);
        let prefix = self.prefix();
        let mut own: Vec<PathBuf> = Vec::new();
        own.extend(home.into_iter().flat_map(|home| [home.join("lib"), home.to_owned()]));
        own.extend(prefix.map(|prefix| prefix.join("lib")));
        let mut found: Vec<PathBuf> = Vec::new();
        found.extend(prefix.into_iter().flat_map(|prefix| packages(prefix, package)));
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].map(|name| self.absolute(name));
        found.extend(active.iter().flatten().flat_map(|prefix| packages(prefix, package)));
        found.extend(self.user_library_directory());
        let user = self.absolute("HOME").map(|home| home.join(".local"));
        let system = ["/usr/local", "/usr"].map(PathBuf::from);
        let prefixes = user.into_iter().chain(system);
        found.extend(prefixes.flat_map(|prefix| packages(&prefix, package)));
        let mut seen = BTreeSet::new();
        found.retain(|path| !own.contains(path) && seen.insert(path.clone()));
        let named = self.absolute("TENSORSERVE_LIB_DIR").map(SearchFolder::from);
        own.into_iter().map(searched).chain(named).chain(found.into_iter().map(searched)).collect()
    }

    /// The directory of `tensorserve fetch`; `None` without a home directory.
    pub(crate) fn user_library_directory(&self) -> Option<PathBuf> {
        let data = self.absolute("XDG_DATA_HOME");
        let home = || Some(self.absolute("HOME")?.join(".local/share"));
        Some(data.or_else(home)?.join("tensorserve/lib"))
    }

    /// The mistake that the directory of libraries is not absolute: relative to which directory
    /// depends on where the server starts.
    pub(super) fn wrong_library_directory(&self) -> Option<String> {
        let named = self.path("TENSORSERVE_LIB_DIR").filter(|path| !path.as_os_str().is_empty())?;
        let why = "is not an absolute path";
        named.is_relative().then(|| format!("TENSORSERVE_LIB_DIR: {:?} {why}", named.display()))
    }

    /// The log level of libtensorflow for the log level `level` of tensorserve; `None` if the
    /// environment already sets it.
    pub(super) fn runtime_log_level(&self, level: Option<&str>) -> Option<u8> {
        if self.get("TF_CPP_MIN_LOG_LEVEL").is_some() {
            return None;
        }
        let level = level.or_else(|| self.get("RUST_LOG")).unwrap_or("info");
        // The most verbose part of a filter such as `warn,tensorserve=debug` is used.
        let loud = |word| level.to_ascii_lowercase().contains(word);
        Some(if loud("trace") {
            0
        } else if loud("debug") {
            1
        } else {
            // Its warnings are about missing instruction sets and GPUs; errors of requests are
            // returned to the clients.
            3
        })
    }
}

/// A directory that is searched without being named.
fn searched(path: PathBuf) -> SearchFolder {
    SearchFolder { path, is_named: false }
}

/// The directories in which pip has installed `package` below `prefix`: those of the newest Python
/// first.
fn packages(prefix: &Path, package: &str) -> Vec<PathBuf> {
    let mut packages = Vec::new();
    for lib in ["lib", "lib64"].map(|lib| prefix.join(lib)) {
        let entries = fs::read_dir(lib).into_iter().flatten().flatten();
        let mut pythons: Vec<(u32, PathBuf)> = entries
            .filter_map(|entry| {
                let name = entry.file_name();
                let minor = name.to_str()?.strip_prefix("python3")?;
                // Debian's own packages are in `python3`.
                Some((minor.trim_start_matches('.').parse().unwrap_or(0), entry.path()))
            })
            .collect();
        pythons.sort();
        for (_, python) in pythons.into_iter().rev() {
            let sites = ["site-packages", "dist-packages"].map(|site| python.join(site));
            packages
                .extend(sites.map(|site| site.join(package)).into_iter().filter(|p| p.is_dir()));
        }
    }
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Environment {
        let binary = Some("/opt/ts/target/release/tensorserve".into());
        Environment { binary, ..Environment::of(variables) }
    }

    #[test]
    fn an_unknown_variable_is_a_mistake() {
        let environment =
            with(&[("TENSORSERVE_HTTP_PROT", "1"), ("TENSORSERVE_HOST", "::"), ("HOME", "/")]);
        let unknown = environment.unknown_settings(&["http_port", "host"]);
        assert_eq!(unknown.len(), 1);
        assert!(unknown[0].contains("did you mean TENSORSERVE_HTTP_PORT?"), "{unknown:?}");
    }

    /// The directories for libtensorflow, as text.
    fn paths(environment: &Environment) -> Vec<String> {
        let folders = environment.library_directories("tensorflow").into_iter();
        folders.map(|folder| folder.path.display().to_string()).collect()
    }

    #[test]
    fn the_library_is_searched_next_to_the_binary_first() {
        let directories = paths(&with(&[("TENSORSERVE_LIB_DIR", "/srv/lib")]));
        assert_eq!(directories[0], "/opt/ts/target/release/lib");
        assert!(directories.contains(&"/srv/lib".into()));
        let binary = Some("/opt/ts/bin/tensorserve".into());
        let installed = Environment { binary, ..Environment::default() };
        assert!(paths(&installed).contains(&"/opt/ts/lib".into()));
    }

    #[test]
    fn only_what_belongs_to_the_binary_is_searched() {
        for directory in paths(&with(&[])) {
            let is_ours = directory.starts_with("/opt/ts/target/release");
            let is_installed = directory.starts_with("/usr");
            assert!(is_ours || is_installed, "{directory}");
        }
    }

    #[test]
    fn packages_beside_the_binary_come_before_those_of_an_active_environment() {
        let root = tempfile::tempdir().expect("temporary directory");
        let package = |path: &str| {
            let path = root.path().join(path).join("tensorflow");
            fs::create_dir_all(&path).expect("directory");
            path.display().to_string()
        };
        let expected = [
            package("own/lib/python3.12/site-packages"),
            package("own/lib/python3.9/site-packages"),
            package("own/lib/python3/dist-packages"),
            package("own/lib64/python3.12/site-packages"),
            package("active/lib/python3.11/site-packages"),
            package("conda/lib/python3.10/site-packages"),
            root.path().join("data/tensorserve/lib").display().to_string(),
            package("home/.local/lib/python3.11/site-packages"),
        ];
        let path = |name: &str| root.path().join(name).display().to_string();
        let environment = Environment {
            binary: Some(root.path().join("own/bin/tensorserve")),
            ..Environment::of(&[
                ("TENSORSERVE_LIB_DIR", "/srv/lib"),
                ("VIRTUAL_ENV", &path("active")),
                ("CONDA_PREFIX", &path("conda")),
                ("XDG_DATA_HOME", &path("data")),
                ("HOME", &path("home")),
            ])
        };
        let mut searched = paths(&environment);
        let rest = searched.split_off(4 + expected.len());
        assert_eq!(searched[..3], [path("own/bin/lib"), path("own/bin"), path("own/lib")]);
        assert_eq!(searched[3], "/srv/lib");
        assert_eq!(searched[4..], expected);
        assert!(rest.iter().all(|system| system.starts_with("/usr/")), "{rest:?}");
        // The active environment may be the binary's own.
        let own = [("VIRTUAL_ENV", root.path().join("own"))];
        let own = own.map(|(name, path)| (name.to_owned(), path.into_os_string()));
        let again = Environment { variables: own.into(), ..environment };
        let folders = again.library_directories("tensorflow");
        let twice = folders.iter().filter(|folder| folder.path == Path::new(&expected[0]));
        assert_eq!(twice.count(), 1);
    }

    #[test]
    fn nothing_relative_is_searched() {
        let names = ["VIRTUAL_ENV", "CONDA_PREFIX", "HOME", "XDG_DATA_HOME", "TENSORSERVE_LIB_DIR"];
        for value in ["", ".", "lib", "../lib"] {
            let environment = with(&names.map(|name| (name, value)));
            for folder in environment.library_directories("tensorflow") {
                let is_known = ["/opt/ts/", "/usr/"].iter().any(|p| folder.path.starts_with(p));
                assert!(is_known, "{value:?}: {}", folder.path.display());
            }
            let mistake = environment.wrong_library_directory();
            assert_eq!(mistake.is_some(), !value.is_empty(), "{value:?}: {mistake:?}");
        }
        assert_eq!(
            with(&[("HOME", "/home/ana")]).user_library_directory(),
            Some("/home/ana/.local/share/tensorserve/lib".into())
        );
    }

    #[test]
    fn the_runtime_is_quiet_by_default() {
        assert_eq!(with(&[]).runtime_log_level(None), Some(3));
        assert_eq!(with(&[]).runtime_log_level(Some("debug")), Some(1));
        assert_eq!(with(&[("RUST_LOG", "trace")]).runtime_log_level(None), Some(0));
        assert_eq!(with(&[("TF_CPP_MIN_LOG_LEVEL", "1")]).runtime_log_level(None), None);
    }
}
