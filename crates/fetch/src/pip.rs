//! The settings of pip, with which `tensorserve fetch` reaches a package index: its variables and its
//! configuration files, as pip's documentation orders them.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tensorserve_tensor::error::{Code, Error, Result};

/// The index that pip uses if no setting names another one.
const PYPI: &str = "https://pypi.org/simple";
/// pip's own defaults.
const TIMEOUT: Duration = Duration::from_secs(15);
const RETRIES: u32 = 5;

/// How pip reaches its package index.
#[derive(Clone, Debug, PartialEq)]
pub struct PipSettings {
    /// The URLs of the indexes, the first one first. They may contain credentials.
    pub indexes: Vec<String>,
    /// Directories with packages.
    pub directories: Vec<PathBuf>,
    /// CA certificates, PEM, in place of the system's.
    pub certificates: Option<PathBuf>,
    /// A client certificate with its private key, PEM.
    pub client_certificate: Option<PathBuf>,
    /// Hosts, with or without a port, whose certificates are not verified.
    pub trusted_hosts: Vec<String>,
    /// The longest time without a byte.
    pub timeout: Duration,
    /// The number of retries of one request.
    pub retries: u32,
    proxies: Proxies,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Proxies {
    /// pip's own setting, which applies to every host.
    all: Option<String>,
    http: Option<String>,
    https: Option<String>,
    /// Hosts to reach directly.
    bypass: Vec<String>,
}

/// The options of pip's configuration files, by their names with `-`.
type PipOptions = BTreeMap<String, String>;

/// The variables of the environment, by their names.
type EnvironmentVariables = BTreeMap<String, String>;

impl PipSettings {
    /// The settings in these variables of the environment and in pip's files. The file of a Python
    /// environment is in its `prefix`, if the program is installed in one.
    ///
    /// # Errors
    /// If a configuration file cannot be read.
    pub fn new(variables: &EnvironmentVariables, prefix: Option<&Path>) -> Result<Self> {
        let mut options = PipOptions::new();
        for file in files(variables, prefix) {
            match fs::read_to_string(&file) {
                Ok(text) => options.extend(parse(&text)),
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                Err(e) => {
                    let message = format!("{}: {e}", file.display());
                    return Err(Error::new(Code::of_io(&e), message));
                }
            }
        }
        options.extend(of_variables(variables));
        Ok(Self::of(&options, variables))
    }

    fn of(options: &PipOptions, variables: &EnvironmentVariables) -> Self {
        let text =
            |name: &str| options.get(name).map(|value| value.trim()).filter(|v| !v.is_empty());
        let list = |name: &str| -> Vec<String> {
            text(name).into_iter().flat_map(str::split_whitespace).map(str::to_owned).collect()
        };
        let path = |name: &str| text(name).map(PathBuf::from);
        let variable = |names: &[&str]| {
            let mut values = names.iter().filter_map(|name| variables.get(*name));
            values.find(|value| !value.is_empty()).cloned()
        };
        let number = |name: &str| text(name).and_then(|value| value.parse::<f64>().ok());
        let mut indexes = vec![text("index-url").unwrap_or(PYPI).to_owned()];
        indexes.extend(list("extra-index-url"));
        if text("no-index").is_some_and(|value| !matches!(value, "0" | "false" | "no" | "off")) {
            indexes.clear();
        }
        let links = list("find-links");
        let directories = links.iter().map(|link| link.strip_prefix("file://").unwrap_or(link));
        let bundles = ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];
        let seconds = number("timeout").or_else(|| number("default-timeout"));
        PipSettings {
            indexes,
            directories: directories.map(PathBuf::from).filter(|path| path.is_dir()).collect(),
            certificates: path("cert").or_else(|| variable(&bundles).map(PathBuf::from)),
            client_certificate: path("client-cert"),
            trusted_hosts: list("trusted-host"),
            timeout: seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or(TIMEOUT),
            retries: text("retries").and_then(|value| value.parse().ok()).unwrap_or(RETRIES),
            proxies: Proxies {
                all: text("proxy").map(str::to_owned),
                http: variable(&["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]),
                https: variable(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
                bypass: variable(&["no_proxy", "NO_PROXY"])
                    .map_or(Vec::new(), |hosts| hosts.split(',').map(str::to_owned).collect()),
            },
        }
    }

    /// The URL of the proxy for requests to `host`, if there is one.
    #[must_use]
    pub fn proxy(&self, scheme: &str, host: &str) -> Option<&str> {
        let Proxies { all, http, https, bypass } = &self.proxies;
        if all.is_some() {
            return all.as_deref();
        }
        if bypass.iter().any(|entry| covers(entry.trim(), host)) {
            return None;
        }
        if scheme == "https" { https.as_deref() } else { http.as_deref() }
    }
}

/// Whether an entry of NO_PROXY covers `host`: a name covers its subdomains, a network its addresses.
fn covers(entry: &str, host: &str) -> bool {
    if entry == "*" {
        return true;
    }
    if let (Some((network, bits)), Ok(address)) = (entry.split_once('/'), host.parse::<Ipv4Addr>())
    {
        let (Ok(network), Ok(bits @ 0..=32)) = (network.parse::<Ipv4Addr>(), bits.parse::<u32>())
        else {
            return false;
        };
        let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
        return network.to_bits() & mask == address.to_bits() & mask;
    }
    let name = entry.trim_start_matches('*').trim_start_matches('.');
    let name = name.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let host = host.to_ascii_lowercase();
    !name.is_empty() && (host == name || host.ends_with(&format!(".{name}")))
}

/// The options that variables set, such as `index-url` for `PIP_INDEX_URL`.
fn of_variables(variables: &EnvironmentVariables) -> impl Iterator<Item = (String, String)> {
    variables.iter().filter_map(|(name, value)| {
        let option = name.strip_prefix("PIP_")?.to_ascii_lowercase().replace('_', "-");
        Some((option, value.clone()))
    })
}

/// pip's configuration files, the most general first: later ones take precedence.
fn files(variables: &EnvironmentVariables, prefix: Option<&Path>) -> Vec<PathBuf> {
    let named = variables.get("PIP_CONFIG_FILE").map(PathBuf::from);
    if named.as_deref() == Some(Path::new("/dev/null")) {
        return Vec::new();
    }
    let path = |name| variables.get(name).filter(|path| path.starts_with('/')).map(Path::new);
    let system = variables.get("XDG_CONFIG_DIRS").filter(|dirs| !dirs.is_empty());
    let system =
        system.map_or("/etc/xdg", String::as_str).split(':').map(|dir| Path::new(dir).join("pip"));
    let mut folders: Vec<PathBuf> = system.collect();
    folders.push("/etc".into());
    if !named.as_deref().is_some_and(Path::exists) {
        let home = path("HOME");
        folders.extend(home.map(|home| home.join(".pip")));
        let user = path("XDG_CONFIG_HOME").map(Path::to_owned);
        let user = user.or_else(|| Some(home?.join(".config")));
        folders.extend(user.map(|user| user.join("pip")));
    }
    folders.extend(prefix.map(Path::to_owned));
    folders.extend(path("VIRTUAL_ENV").map(Path::to_owned));
    folders.into_iter().map(|folder| folder.join("pip.conf")).chain(named).collect()
}

/// The options of the sections `global` and `install`, which takes precedence.
fn parse(text: &str) -> PipOptions {
    let mut sections: BTreeMap<String, PipOptions> = BTreeMap::new();
    let (mut section, mut option) = (String::new(), None);
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let (true, Some(option)) = (line.starts_with([' ', '\t']), &option) {
            let options = sections.entry(section.clone()).or_default();
            if let Some(value) = options.get_mut(option) {
                value.push('\n');
                value.push_str(trimmed);
            }
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            (section, option) = (name.to_owned(), None);
            continue;
        }
        let Some(end) = trimmed.find(['=', ':']) else {
            continue;
        };
        let (name, value) = (&trimmed[..end], trimmed[end + 1..].trim());
        let name = name.trim().to_ascii_lowercase().replace('_', "-");
        sections.entry(section.clone()).or_default().insert(name.clone(), value.to_owned());
        option = Some(name);
    }
    let mut options = sections.remove("global").unwrap_or_default();
    options.extend(sections.remove("install").unwrap_or_default());
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> PipSettings {
        let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        PipSettings::new(&pairs.collect(), None).expect("readable")
    }

    #[test]
    fn without_settings_it_is_the_public_index() {
        let settings = settings(&[("PIP_CONFIG_FILE", "/dev/null")]);
        assert_eq!(settings.indexes, [PYPI]);
        assert_eq!((settings.retries, settings.timeout), (RETRIES, TIMEOUT));
        assert_eq!(settings.proxy("https", "pypi.org"), None);
    }

    #[test]
    fn files_of_pip_are_read_and_variables_take_precedence() {
        let home = tempfile::tempdir().expect("temporary directory");
        let write = |path: &str, text: &str| {
            let path = home.path().join(path);
            fs::create_dir_all(path.parent().expect("parent")).expect("directory");
            fs::write(path, text).expect("written");
        };
        write(
            ".config/pip/pip.conf",
            "# Mirrors\n[global]\nindex_url = https://ana:secret@mirror.example/simple\n\
             extra-index-url =\n    https://one.example/simple\n    https://two.example/simple\n\
             proxy: http://proxy.example:3128\ntimeout=2.5\n[install]\ntrusted-host = a.example\n\
             [freeze]\ntimeout = 9\n",
        );
        write("environment/pip.conf", "[global]\nretries = 1\nindex-url = https://site.example\n");
        write("named.conf", "[global]\nindex-url = https://named.example\n");
        let path = |name: &str| home.path().join(name).display().to_string();
        let user = [("HOME", path(""))];
        let user = user.each_ref().map(|(name, value)| (*name, value.as_str()));
        let of_user = settings(&user);
        let expected = [
            "https://ana:secret@mirror.example/simple",
            "https://one.example/simple",
            "https://two.example/simple",
        ];
        assert_eq!(of_user.indexes, expected);
        assert_eq!(of_user.proxy("https", "x"), Some("http://proxy.example:3128"));
        assert_eq!(of_user.timeout, Duration::from_millis(2500));
        assert_eq!(of_user.trusted_hosts, ["a.example"]);
        let (environment, named) = (path("environment"), path("named.conf"));
        let of_environment = settings(&[user[0], ("VIRTUAL_ENV", &environment)]);
        assert_eq!(of_environment.indexes[0], "https://site.example");
        assert_eq!(of_environment.retries, 1);
        // A file that is named replaces the user's.
        let of_named = settings(&[user[0], ("PIP_CONFIG_FILE", &named)]);
        assert_eq!(of_named.indexes, ["https://named.example"]);
        let variables = [
            ("PIP_CONFIG_FILE", named.as_str()),
            ("PIP_INDEX_URL", "https://variable.example"),
            ("PIP_RETRIES", "0"),
            ("PIP_CERT", "/ca.pem"),
            ("PIP_DEFAULT_TIMEOUT", "180"),
        ];
        let of_variables = settings(&variables);
        assert_eq!(of_variables.indexes, ["https://variable.example"]);
        assert_eq!((of_variables.retries, of_variables.timeout.as_secs()), (0, 180));
        assert_eq!(of_variables.certificates, Some("/ca.pem".into()));
        let offline =
            [variables[0], ("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", environment.as_str())];
        let of_offline = settings(&offline);
        assert!(of_offline.indexes.is_empty());
        assert_eq!(of_offline.directories, [PathBuf::from(&environment)]);
    }

    #[test]
    fn proxies_are_those_of_the_scheme_and_not_for_some_hosts() {
        let settings = settings(&[
            ("PIP_CONFIG_FILE", "/dev/null"),
            ("HTTPS_PROXY", "http://secure:1"),
            ("http_proxy", "http://plain:2"),
            ("NO_PROXY", "localhost, .internal, example.com:443,10.0.0.0/8"),
        ]);
        assert_eq!(settings.proxy("https", "pypi.org"), Some("http://secure:1"));
        assert_eq!(settings.proxy("http", "pypi.org"), Some("http://plain:2"));
        for direct in ["localhost", "a.internal", "example.com", "files.Example.com", "10.2.3.4"] {
            assert_eq!(settings.proxy("https", direct), None, "{direct}");
        }
        for other in ["myexample.com", "11.0.0.1", "internals"] {
            assert!(settings.proxy("https", other).is_some(), "{other}");
        }
    }
}
