//! `tensorserve auth`: adds and lists the users and keys of `auth_file`.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::table::columns;
use super::{print_line, print_note, print_text};
use crate::config::AuthConfig;
use crate::config::environment::Environment;
use tensorserve_auth::file::{self, CredentialKind};
use tensorserve_auth::secret::{PasswordHash, new_key};
use tensorserve_auth::{Authenticator, Role as OurRole};
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

/// The default file of users and keys.
const DEFAULT_FILE: &str = "auth.toml";

/// The minimum length of a password.
const MIN_PASSWORD_BYTES: usize = 8;

#[derive(Subcommand)]
pub(super) enum Commands {
    /// Add a user; the password is read from the terminal or from stdin
    AddUser(Add),
    /// Add an API key and print it; it cannot be shown again
    AddKey(Add),
    /// List the users and API keys of a file
    List(FileArgument),
    /// Check a file as the server does, and print what is wrong with it
    Check(FileArgument),
    /// Print the hash of a password, for use in a file that is edited by hand
    Hash,
}

#[derive(Args)]
pub(super) struct Add {
    /// Name of the user or API key
    #[arg(value_name = "NAME")]
    name: String,
    /// Role: infer (run models), metrics (read metrics) or admin (everything); repeatable
    #[arg(long, value_name = "ROLE", required = true, value_enum)]
    role: Vec<RoleArgument>,
    #[command(flatten)]
    place: FileArgument,
}

#[derive(Args)]
pub(super) struct FileArgument {
    /// File of users and API keys; created if it does not exist [default: TENSORSERVE_AUTH_FILE, or
    /// auth.toml]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum RoleArgument {
    Infer,
    Metrics,
    Admin,
}

impl RoleArgument {
    fn ours(self) -> OurRole {
        match self {
            RoleArgument::Infer => OurRole::Infer,
            RoleArgument::Metrics => OurRole::Metrics,
            RoleArgument::Admin => OurRole::Admin,
        }
    }
}

impl FileArgument {
    fn path(&self, environment: &Environment) -> PathBuf {
        let named = || environment.get("TENSORSERVE_AUTH_FILE").map(PathBuf::from);
        self.file.clone().or_else(named).unwrap_or_else(|| DEFAULT_FILE.into())
    }
}

pub(super) fn run(command: &Commands, environment: &Environment) -> Result<ExitCode> {
    match command {
        Commands::AddUser(add) => {
            let path = add.place.path(environment);
            file::add_user(&path, &add.name, &password()?, &roles(add))?;
            print_next_steps(&format!("added {} to {}", add.name, path.display()), &path);
        }
        Commands::AddKey(add) => {
            let (path, key) = (add.place.path(environment), new_key()?);
            file::add_key(&path, &add.name, &key, &roles(add))?;
            print_line(&key);
            let path_shown = path.display();
            let done =
                format!("added the hash of the key to {path_shown}; the key is printed only once");
            print_next_steps(&done, &path);
        }
        Commands::List(place) => list(&place.path(environment))?,
        Commands::Check(place) => {
            let path = place.path(environment);
            drop(Authenticator::new(&AuthConfig::File(path.clone()))?);
            print_line(&format!("{}: {} users and keys", path.display(), file::list(&path)?.len()));
        }
        Commands::Hash => print_line(&PasswordHash::of(&password()?)?.to_string()),
    }
    Ok(ExitCode::SUCCESS)
}

fn roles(add: &Add) -> Vec<OurRole> {
    add.role.iter().map(|role| role.ours()).collect()
}

/// Prints what was done and the next steps on stderr, so that scripts read only the key.
fn print_next_steps(done: &str, path: &Path) {
    print_note(done);
    print_note(&format!(
        "a running server reloads this file; start one with --auth-file {}",
        path.display()
    ));
}

fn list(path: &Path) -> Result<()> {
    let mut rows = vec![["NAME", "KIND", "ROLES"].map(str::to_owned).to_vec()];
    for entry in file::list(path)? {
        let kind = match entry.kind {
            CredentialKind::User => "user",
            CredentialKind::Key => "key",
        };
        rows.push(vec![entry.name, kind.to_owned(), entry.roles.names().join(", ")]);
    }
    print_text(&columns(&rows));
    Ok(())
}

/// A password: from the terminal, entered twice, or from a line of stdin.
fn password() -> Result<String> {
    let stdin = std::io::stdin();
    let read = || -> Result<String> {
        let mut line = String::new();
        let read = stdin.lock().read_line(&mut line);
        read.map_err(|e| Error::invalid("the password cannot be read").with_source(e))?;
        Ok(line.trim_end_matches(['\n', '\r']).to_owned())
    };
    let ask = |prompt: &str| {
        let mut stderr = std::io::stderr();
        let _ = write!(stderr, "{prompt}: ");
        let answer = os::without_echo(read);
        let _ = writeln!(stderr);
        answer
    };
    let password = if stdin.is_terminal() { ask("password")? } else { read()? };
    if password.len() < MIN_PASSWORD_BYTES {
        return Err(Error::invalid(format!(
            "a password must have at least {MIN_PASSWORD_BYTES} bytes"
        )));
    }
    if stdin.is_terminal() && ask("repeat password")? != password {
        return Err(Error::invalid("the passwords differ; nothing was changed"));
    }
    Ok(password)
}
