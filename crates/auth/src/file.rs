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
//! priority = "high"
//! ```
//!
//! Errors give the line, but never its text, which may be a secret.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use toml::Spanned;

use super::secret::{KeyHash, PasswordHash};
use super::{Identity, Role, Roles};
use tensorserve_tensor::error::{Code, Error, Result};
use tensorserve_tensor::priority::{Priority, PriorityGrant};

/// The largest size of the file in bytes: enough for some 50,000 keys.
const MAX_FILE_SIZE: u64 = 8 << 20;

/// The longest name of a user or key in bytes.
const MAX_NAME_BYTES: usize = 128;

/// The permissions of a new file: only its owner may read and write it.
const NEW_FILE_MODE: u32 = 0o600;

/// The kind of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    /// A name and a password.
    User,
    /// A key.
    Key,
}

/// The hash of a user's password, or of a key.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum SecretHash {
    Password(PasswordHash),
    Key(KeyHash),
}

/// A user or a key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) identity: Identity,
    pub(super) secret: SecretHash,
}

/// A user or a key, without its secret.
pub struct AccountSummary {
    /// The name of the user or key.
    pub name: String,
    /// Whether it is a user or a key.
    pub kind: CredentialKind,
    /// Its roles.
    pub roles: Roles,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthFile {
    #[serde(default)]
    users: BTreeMap<Spanned<String>, UserTable>,
    #[serde(default)]
    keys: BTreeMap<Spanned<String>, KeyTable>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct UserTable {
    password: Spanned<String>,
    roles: Vec<Spanned<String>>,
    priority: Option<Spanned<String>>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyTable {
    sha256: Spanned<String>,
    roles: Vec<Spanned<String>>,
    priority: Option<Spanned<String>>,
}

/// A mistake in the file.
struct Mistake {
    /// The byte of the text at which it is.
    offset: usize,
    reason: String,
}

impl Mistake {
    fn at(value: &Spanned<String>, reason: impl Into<String>) -> Self {
        Mistake { offset: value.span().start, reason: reason.into() }
    }

    /// The error, with the line in `text`.
    fn error(&self, text: &str) -> Error {
        let before = text.get(..self.offset).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        Error::invalid(format!("line {line}: {}", self.reason))
    }
}

/// Reads the file at `path`.
///
/// # Errors
/// With the path, and the line of a mistake.
pub(super) fn read(path: &Path) -> Result<Vec<Account>> {
    parse(&read_text(path)?).map_err(|e| e.context(path.display()))
}

fn read_text(path: &Path) -> Result<String> {
    let unreadable = |e: std::io::Error| {
        let message = format!("{}: {e}", path.display());
        Error::new(Code::of_io(&e), message).with_source(e)
    };
    let size = fs::metadata(path).map_err(unreadable)?.len();
    if size > MAX_FILE_SIZE {
        return Err(Error::invalid(format!(
            "{}: it has {size} bytes; at most {MAX_FILE_SIZE} are allowed",
            path.display()
        )));
    }
    fs::read_to_string(path).map_err(unreadable)
}

/// The users and keys of the file at `path`, without their secrets.
///
/// # Errors
/// Those of a server that reads the file.
pub fn list(path: &Path) -> Result<Vec<AccountSummary>> {
    Ok(read(path)?.iter().map(summary).collect())
}

fn summary(account: &Account) -> AccountSummary {
    AccountSummary {
        name: account.identity.name().unwrap_or_default().to_owned(),
        kind: match account.secret {
            SecretHash::Password(_) => CredentialKind::User,
            SecretHash::Key(_) => CredentialKind::Key,
        },
        roles: account.identity.roles(),
    }
}

fn parse(text: &str) -> Result<Vec<Account>> {
    let file: AuthFile = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        Mistake { offset, reason: error.message().to_owned() }.error(text)
    })?;
    let accounts = accounts(&file).map_err(|mistake| mistake.error(text))?;
    if accounts.is_empty() {
        return Err(Error::invalid(
            "it has no users and no keys; add one with `tensorserve auth add-key NAME`",
        ));
    }
    Ok(accounts)
}

fn accounts(file: &AuthFile) -> Result<Vec<Account>, Mistake> {
    let mut accounts = Vec::with_capacity(file.users.len() + file.keys.len());
    for (name, user) in &file.users {
        let hash = PasswordHash::parse(user.password.get_ref())
            .map_err(|reason| Mistake::at(&user.password, format!("password: {reason}")))?;
        let identity = identity(name, &user.roles, user.priority.as_ref())?;
        accounts.push(Account { identity, secret: SecretHash::Password(hash) });
    }
    for (name, key) in &file.keys {
        let hash = KeyHash::parse(key.sha256.get_ref())
            .ok_or_else(|| Mistake::at(&key.sha256, "sha256: it must be 64 hexadecimal digits"))?;
        let identity = identity(name, &key.roles, key.priority.as_ref())?;
        if file.users.contains_key(name) {
            let reason = format!("{:?} is already the name of a user", name.get_ref());
            return Err(Mistake::at(name, reason));
        }
        accounts.push(Account { identity, secret: SecretHash::Key(hash) });
    }
    Ok(accounts)
}

fn identity(
    name: &Spanned<String>,
    role_names: &[Spanned<String>],
    priority: Option<&Spanned<String>>,
) -> Result<Identity, Mistake> {
    let mut roles = Vec::with_capacity(role_names.len());
    for role_name in role_names {
        let role = Role::from_name(role_name.get_ref()).ok_or_else(|| {
            let reason =
                format!("{:?} is not a role; these are infer, metrics, admin", role_name.get_ref());
            Mistake::at(role_name, reason)
        })?;
        roles.push(role);
    }
    check_name(name.get_ref()).map_err(|reason| Mistake::at(name, reason))?;
    let identity = Identity::of(name.get_ref(), Roles::of(&roles));
    let Some(priority) = priority else {
        return Ok(identity);
    };
    let highest = Priority::from_name(priority.get_ref()).ok_or_else(|| {
        let reason =
            format!("{:?} is not a priority; these are low, normal, high", priority.get_ref());
        Mistake::at(priority, reason)
    })?;
    Ok(identity.with_priority(PriorityGrant::up_to(highest)))
}

/// Refuses names that cannot be written to the log, or before the colon of Basic credentials.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(is_forbidden_in_name) {
        return Err(format!(
            "{name:?} is not a valid name: it must have 1 to {MAX_NAME_BYTES} bytes, and neither \
             colons nor control characters"
        ));
    }
    Ok(())
}

fn is_forbidden_in_name(character: char) -> bool {
    character == ':' || character.is_control()
}

/// Adds a user with a password to the file at `path`, which is created if it is missing.
///
/// # Errors
/// If the name exists or is invalid, or the file cannot be read or written.
pub fn add_user(path: &Path, name: &str, password: &str, roles: &[Role]) -> Result<()> {
    let hash = PasswordHash::of(password)?;
    let (table, secret) = (format!("users.{}", toml_key(name)), format!("password = \"{hash}\""));
    add(path, name, &table, &secret, roles)
}

/// Adds a key to the file at `path`, which is created if it is missing.
///
/// # Errors
/// Those of [`add_user`].
pub fn add_key(path: &Path, name: &str, key: &str, roles: &[Role]) -> Result<()> {
    let hash = KeyHash::of(key.as_bytes());
    let (table, secret) = (format!("keys.{}", toml_key(name)), format!("sha256 = \"{hash}\""));
    add(path, name, &table, &secret, roles)
}

/// A name as a TOML key, quoted if necessary.
fn toml_key(name: &str) -> String {
    if !name.is_empty() && name.bytes().all(is_bare_key_byte) {
        return name.to_owned();
    }
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Whether TOML allows the byte in a key without quotes.
fn is_bare_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_".contains(&byte)
}

/// Appends a table with a secret and roles to the file.
fn add(path: &Path, name: &str, table: &str, secret: &str, roles: &[Role]) -> Result<()> {
    check_name(name).map_err(Error::invalid)?;
    let mut text = match read_text(path) {
        Ok(text) => text,
        Err(error) if error.code() == Code::NotFound => {
            "# Users and keys of tensorserve, with their roles. Secrets are hashes.\n".to_owned()
        }
        Err(error) => return Err(error),
    };
    let exists = |accounts: Vec<Account>| accounts.iter().any(|a| a.identity.name() == Some(name));
    if parse(&text).is_ok_and(exists) {
        let message = format!("{}: {name:?} exists already", path.display());
        return Err(Error::new(Code::AlreadyExists, message));
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let names: Vec<String> = roles.iter().map(|role| format!("\"{}\"", role.name())).collect();
    let _ = write!(text, "\n[{table}]\n{secret}\nroles = [{}]\n", names.join(", "));
    // A file that is invalid is left alone.
    parse(&text).map_err(|e| e.context(path.display()))?;
    write(path, &text).map_err(|e| {
        let message = format!("{}: it cannot be written: {e}", path.display());
        Error::new(Code::of_io(&e), message).with_source(e)
    })
}

/// Replaces the file atomically, so that a server that watches it never reads half of it.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mode = fs::metadata(path).map_or(NEW_FILE_MODE, |old| old.permissions().mode());
    let _ = fs::remove_file(&temporary);
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(mode & 0o777).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)
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
                ("ana", CredentialKind::User, vec!["admin", "infer", "metrics"]),
                ("a \"b\" \\c é", CredentialKind::Key, vec!["metrics"]),
                ("ci", CredentialKind::Key, vec!["infer", "metrics"]),
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
            (
                "[users.ana]\npassword = \"5ecre7\"\nroles = []".to_owned(),
                "line 2: ",
                "not a password hash",
            ),
            (
                "[users.\"a:b\"]\npassword = \"x\"\nroles = []".to_owned(),
                "line 2: ",
                "not a password hash",
            ),
            ("[people.x]\n".to_owned(), "line 1: ", "people"),
        ] {
            let error = parse(&text).err().expect(&text);
            let message = error.message();
            assert!(message.starts_with(line) && message.contains(why), "{text:?}: {message}");
            assert!(!message.contains("5ecre7") && !message.contains(KEY), "{message}");
        }
        let twice = format!(
            "[users.a]\npassword = \"{}\"\nroles = []\n[keys.a]\nsha256 = \"{KEY}\"\nroles = []\n",
            PasswordHash::of("x").unwrap()
        );
        let error = parse(&twice).err().unwrap();
        assert!(error.message().starts_with("line 4: \"a\" is already the name of a user"));
    }
}
