//! The file of users and keys:
//!
//! ```toml
//! [users.ana]
//! password = "$argon2id$v=19$…"
//! roles = ["admin"]
//!
//! [keys.ci]
//! sha256 = "9f86d081…"
//! roles = ["infer"]
//! ```
//!
//! What is wrong with it is told with its line, and never with a line's text: that is a secret.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use toml::Spanned;

use super::secret::{KeyHash, PasswordHashed};
use super::{Identity, Role, Roles};
use tensorserve_tensor::error::{Code, Error, Result};

/// The largest file that is read: room for some 50,000 keys.
const LARGEST: u64 = 8 << 20;

/// The longest name of a user or key.
const LONGEST_NAME: usize = 128;

/// What somebody shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name and a password.
    User,
    /// A key.
    Key,
}

/// How somebody is known.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Secret {
    Password(PasswordHashed),
    Key(KeyHash),
}

/// Somebody whom the file knows.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) identity: Identity,
    pub(super) secret: Secret,
}

/// What may be told of an entry.
pub struct Listed {
    /// The name of the user or key.
    pub name: String,
    /// Which of both.
    pub kind: Kind,
    /// What they may do.
    pub roles: Roles,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    #[serde(default)]
    users: BTreeMap<Spanned<String>, User>,
    #[serde(default)]
    keys: BTreeMap<Spanned<String>, Key>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct User {
    password: Spanned<String>,
    roles: Vec<Spanned<String>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    sha256: Spanned<String>,
    roles: Vec<Spanned<String>>,
}

/// Reads the file at `path`.
///
/// # Errors
/// With the path, and the line of what is wrong.
pub(super) fn read(path: &Path) -> Result<Vec<Entry>> {
    parse(&text_of(path)?).map_err(|e| e.context(path.display()))
}

fn text_of(path: &Path) -> Result<String> {
    let failed = |e: std::io::Error| {
        let message = format!("{}: {e}", path.display());
        Error::new(Code::of_io(&e), message).with_source(e)
    };
    let size = fs::metadata(path).map_err(failed)?.len();
    if size > LARGEST {
        return Err(Error::invalid(format!("{}: it has {size} bytes", path.display())));
    }
    fs::read_to_string(path).map_err(failed)
}

/// What the file at `path` says, without what is secret.
///
/// # Errors
/// As for a server that reads it.
pub fn list(path: &Path) -> Result<Vec<Listed>> {
    let listed = |entry: Entry| Listed {
        name: entry.identity.name().unwrap_or_default().to_owned(),
        kind: match entry.secret {
            Secret::Password(_) => Kind::User,
            Secret::Key(_) => Kind::Key,
        },
        roles: entry.identity.roles(),
    };
    Ok(read(path)?.into_iter().map(listed).collect())
}

fn parse(text: &str) -> Result<Vec<Entry>> {
    let at = |offset: usize, why: &dyn std::fmt::Display| {
        let before = text.get(..offset).unwrap_or(text);
        Error::invalid(format!("line {}: {why}", before.matches('\n').count() + 1))
    };
    let tables: Tables = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        at(offset, &error.message())
    })?;
    let wrong = |place: &Spanned<String>, why: String| at(place.span().start, &why);
    let mut entries: Vec<Entry> = Vec::new();
    for (name, user) in &tables.users {
        let hash = PasswordHashed::parse(user.password.get_ref());
        let hash = hash.map_err(|why| wrong(&user.password, format!("password: {why}")))?;
        let roles = roles(&user.roles).map_err(|(place, why)| wrong(place, why))?;
        check_name(name.get_ref()).map_err(|why| wrong(name, why))?;
        let identity = Identity::of(name.get_ref(), roles);
        entries.push(Entry { identity, secret: Secret::Password(hash) });
    }
    for (name, key) in &tables.keys {
        let hash = KeyHash::parse(key.sha256.get_ref()).ok_or_else(|| {
            wrong(&key.sha256, "sha256: it must be 64 hexadecimal digits".to_owned())
        })?;
        let roles = roles(&key.roles).map_err(|(place, why)| wrong(place, why))?;
        check_name(name.get_ref()).map_err(|why| wrong(name, why))?;
        if tables.users.contains_key(name) {
            return Err(wrong(name, format!("{:?} is a user already", name.get_ref())));
        }
        let identity = Identity::of(name.get_ref(), roles);
        entries.push(Entry { identity, secret: Secret::Key(hash) });
    }
    if entries.is_empty() {
        return Err(Error::invalid(
            "it has no users and no keys; `tensorserve auth add-key NAME` makes one",
        ));
    }
    Ok(entries)
}

fn roles(names: &[Spanned<String>]) -> Result<Roles, (&Spanned<String>, String)> {
    let mut roles = Vec::new();
    for name in names {
        let role = Role::of(name.get_ref()).ok_or_else(|| {
            (name, format!("{:?} is no role; there are infer, metrics and admin", name.get_ref()))
        })?;
        roles.push(role);
    }
    Ok(Roles::of(&roles))
}

/// A name goes into the log, and a user's stands before a colon.
fn check_name(name: &str) -> Result<(), String> {
    let is_bad = |c: char| c == ':' || c.is_control();
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains(is_bad) {
        return Err(format!(
            "{name:?} can not be a name: it must have 1 to {LONGEST_NAME} bytes, and no colon"
        ));
    }
    Ok(())
}

/// Adds a user with a password to the file at `path`, which is made if it is not there.
///
/// # Errors
/// If the name is taken or can not be one, or the file can not be read or written.
pub fn add_user(path: &Path, name: &str, password: &str, roles: &[Role]) -> Result<()> {
    let hash = PasswordHashed::of(password)?;
    add(path, name, &format!("users.{}", quoted(name)), &format!("password = \"{hash}\""), roles)
}

/// Adds a key to the file at `path`, which is made if it is not there.
///
/// # Errors
/// As [`add_user`].
pub fn add_key(path: &Path, name: &str, key: &str, roles: &[Role]) -> Result<()> {
    let hash = KeyHash::of(key.as_bytes());
    add(path, name, &format!("keys.{}", quoted(name)), &format!("sha256 = \"{hash}\""), roles)
}

/// A name as a key of TOML.
fn quoted(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if !name.is_empty() && name.bytes().all(is_plain) {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

fn add(path: &Path, name: &str, table: &str, secret: &str, roles: &[Role]) -> Result<()> {
    check_name(name).map_err(Error::invalid)?;
    let mut text = match text_of(path) {
        Ok(text) => text,
        Err(error) if error.code() == Code::NotFound => {
            "# Who may use tensorserve, and for what. Secrets are hashes.\n".to_owned()
        }
        Err(error) => return Err(error),
    };
    if parse(&text).is_ok_and(|all| all.iter().any(|e| e.identity.name() == Some(name))) {
        let message = format!("{}: {name:?} is there already", path.display());
        return Err(Error::new(Code::AlreadyExists, message));
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let names: Vec<String> = roles.iter().map(|role| format!("\"{}\"", role.name())).collect();
    let _ = write!(text, "\n[{table}]\n{secret}\nroles = [{}]\n", names.join(", "));
    // A file that was broken before is not made worse.
    parse(&text).map_err(|e| e.context(path.display()))?;
    write(path, &text).map_err(|e| {
        let message = format!("{}: it can not be written: {e}", path.display());
        Error::new(Code::of_io(&e), message).with_source(e)
    })
}

/// Replaces the file in one step, so that a server that watches it never sees half of it.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mode = fs::metadata(path).map_or(0o600, |old| old.permissions().mode());
    let _ = fs::remove_file(&beside);
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(mode & 0o777).open(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn what_is_added_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("auth.toml");
        add_user(&path, "ana", "secret", &[Role::Admin]).unwrap();
        add_key(&path, "ci", "tsk_abc", &[Role::Infer, Role::Metrics]).unwrap();
        add_key(&path, "a \"b\" \\c é", "tsk_def", &[Role::Metrics]).unwrap();
        let listed = list(&path).unwrap();
        let listed: Vec<_> =
            listed.iter().map(|l| (l.name.as_str(), l.kind, l.roles.names())).collect();
        assert_eq!(
            listed,
            [
                ("ana", Kind::User, vec!["admin", "infer", "metrics"]),
                ("a \"b\" \\c é", Kind::Key, vec!["metrics"]),
                ("ci", Kind::Key, vec!["infer", "metrics"]),
            ]
        );
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("secret\"") && !text.contains("tsk_"), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let taken = add_key(&path, "ana", "x", &[Role::Infer]).unwrap_err();
        assert_eq!(taken.code(), Code::AlreadyExists);
        for bad in ["", "a:b", "a\nb", &"x".repeat(129)] {
            assert!(add_key(&path, bad, "x", &[Role::Infer]).is_err(), "{bad:?}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_without_secrets() {
        let key = |body: &str| format!("# a\n\n[keys.ci]\n{body}\n");
        for (text, line, why) in [
            (String::new(), "", "no users and no keys"),
            ("[keys.ci".to_owned(), "line 1: ", ""),
            (key(&format!("sha256 = \"{KEY}\"")), "line 3: ", "roles"),
            (key(&format!("sha256 = \"{KEY}\"\nroles = [\"root\"]")), "line 5: ", "\"root\""),
            (key("sha256 = \"5ecre7\"\nroles = []"), "line 4: ", "64 hexadecimal"),
            (key(&format!("sha256 = \"{KEY}\"\nrole = \"x\"\nroles = []")), "line 5: ", "role"),
            (key("sha256 = 5ecre7\nroles = []"), "line 4: ", ""),
            ("[users.ana]\npassword = \"5ecre7\"\nroles = []".to_owned(), "line 2: ", "no hash"),
            ("[users.\"a:b\"]\npassword = \"x\"\nroles = []".to_owned(), "line 2: ", "no hash"),
            ("[people.x]\n".to_owned(), "line 1: ", "people"),
        ] {
            let error = parse(&text).err().expect(&text);
            let message = error.message();
            assert!(message.starts_with(line) && message.contains(why), "{text:?}: {message}");
            assert!(!message.contains("5ecre7") && !message.contains(KEY), "{message}");
        }
        let twice = format!(
            "[users.a]\npassword = \"{}\"\nroles = []\n[keys.a]\nsha256 = \"{KEY}\"\nroles = []\n",
            PasswordHashed::of("x").unwrap()
        );
        assert!(parse(&twice).err().unwrap().message().starts_with("line 4: \"a\" is a user"));
    }
}
