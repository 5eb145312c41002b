//! The environment of the process. Nothing else in the program reads it.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use super::written::{PREFIX, unknown_name, variable};

/// Variables with the prefix that are not settings.
const SPECIAL: [&str; 7] = [
    // The configuration file; it is not a key of itself.
    "TENSORSERVE_CONFIG",
    // A directory to search for libraries: the one in which `make` installs them.
    "TENSORSERVE_LIB_DIR",
    // Set by `make run`: its start time, in nanoseconds since 1970.
    "TENSORSERVE_CALLED_AT",
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

    /// The value of a setting's variable.
    pub(super) fn setting(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(&variable(name)).map(OsString::as_os_str)
    }

    /// The names of SageMaker's variables that are set, sorted.
    pub fn of_sagemaker(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().map(String::as_str).filter(|name| name.starts_with("SAGEMAKER_"))
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
        let cache = self.path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
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
    /// the binary and in its prefix, the directory that a variable names, the installed package.
    /// Never the working directory, whose files may be someone else's: a library that is opened runs.
    pub(super) fn library_directories(&self, package: &str) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        if let Some(home) = self.binary.as_deref().and_then(Path::parent) {
            folders.extend([home.join("lib"), home.to_owned()]);
            let prefix = home.parent().filter(|_| home.ends_with("bin"));
            folders.extend(prefix.map(|prefix| prefix.join("lib")));
        }
        folders.extend(self.path("TENSORSERVE_LIB_DIR"));
        folders.extend(self.python_packages(package));
        folders
    }

    /// The directories in which pip has installed `package`.
    fn python_packages(&self, package: &str) -> Vec<PathBuf> {
        let mut prefixes: Vec<PathBuf> = Vec::new();
        prefixes.extend(self.path("VIRTUAL_ENV"));
        prefixes.extend(self.path("CONDA_PREFIX"));
        prefixes.extend(self.path("HOME").map(|home| home.join(".local")));
        prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
        let mut packages = Vec::new();
        for prefix in prefixes {
            let Ok(entries) = fs::read_dir(prefix.join("lib")) else {
                continue;
            };
            for entry in entries.flatten() {
                if entry.file_name().to_string_lossy().starts_with("python3") {
                    let sites = ["site-packages", "dist-packages"];
                    let here = sites.map(|site| entry.path().join(site).join(package));
                    packages.extend(here.into_iter().filter(|package| package.is_dir()));
                }
            }
        }
        packages
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

    #[test]
    fn the_library_is_searched_next_to_the_binary_first() {
        let directories =
            with(&[("TENSORSERVE_LIB_DIR", "/srv/lib")]).library_directories("tensorflow");
        assert_eq!(directories[0], PathBuf::from("/opt/ts/target/release/lib"));
        assert!(directories.contains(&"/srv/lib".into()));
        let binary = Some("/opt/ts/bin/tensorserve".into());
        let installed = Environment { binary, ..Environment::default() };
        assert!(installed.library_directories("tensorflow").contains(&"/opt/ts/lib".into()));
    }

    #[test]
    fn only_what_belongs_to_the_binary_is_searched() {
        for directory in with(&[]).library_directories("tensorflow") {
            let is_ours = directory.starts_with("/opt/ts/target/release");
            let is_installed = directory.starts_with("/usr");
            assert!(is_ours || is_installed, "{}", directory.display());
        }
    }

    #[test]
    fn the_runtime_is_quiet_by_default() {
        assert_eq!(with(&[]).runtime_log_level(None), Some(3));
        assert_eq!(with(&[]).runtime_log_level(Some("debug")), Some(1));
        assert_eq!(with(&[("RUST_LOG", "trace")]).runtime_log_level(None), Some(0));
        assert_eq!(with(&[("TF_CPP_MIN_LOG_LEVEL", "1")]).runtime_log_level(None), None);
    }
}
