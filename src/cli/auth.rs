//! `tensorserve auth`: makes and lists the users and keys of `auth_file`.

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::say;
use super::table::columns;
use crate::config::AuthConfig;
use crate::config::environment::Environment;
use tensorserve_auth::file::{self, CredentialKind};
use tensorserve_auth::secret::{PasswordHash, new_key};
use tensorserve_auth::{Authenticator, Role as OurRole};
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

/// Where users and keys are, unless it is said otherwise.
const FILE: &str = "auth.toml";

/// The shortest password that is taken.
const SHORTEST: usize = 8;

#[derive(Subcommand)]
pub(super) enum Commands {
    /// Add a user; the password is asked for, or read from the standard input
    AddUser(Add),
    /// Add a key for a program, and print it, once
    AddKey(Add),
    /// Show the users and keys of a file
    List(Where),
    /// Check a file as the server would, and say what is wrong with it
    Check(Where),
    /// Print the hash of a password, for a file that is written by hand
    Hash,
}

#[derive(Args)]
pub(super) struct Add {
    /// The name of the user or key
    #[arg(value_name = "NAME")]
    name: String,
    /// What it may do, repeatable: infer (run models), metrics (read them), admin (everything)
    #[arg(long, value_name = "ROLE", required = true, value_enum)]
    role: Vec<Role>,
    #[command(flatten)]
    place: Where,
}

#[derive(Args)]
pub(super) struct Where {
    /// The file; made if it is not there [default: that of TENSORSERVE_AUTH_FILE, or auth.toml]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Role {
    Infer,
    Metrics,
    Admin,
}

impl Role {
    fn ours(self) -> OurRole {
        match self {
            Role::Infer => OurRole::Infer,
            Role::Metrics => OurRole::Metrics,
            Role::Admin => OurRole::Admin,
        }
    }
}

impl Where {
    fn path(&self, environment: &Environment) -> PathBuf {
        let named = || environment.get("TENSORSERVE_AUTH_FILE").map(PathBuf::from);
        self.file.clone().or_else(named).unwrap_or_else(|| FILE.into())
    }
}

pub(super) fn run(command: &Commands, environment: &Environment) -> Result<ExitCode> {
    match command {
        Commands::AddUser(add) => {
            let path = add.place.path(environment);
            file::add_user(&path, &add.name, &password()?, &roles(add))?;
            tell(&format!("{} is in {}", add.name, path.display()), &path);
        }
        Commands::AddKey(add) => {
            let (path, key) = (add.place.path(environment), new_key()?);
            file::add_key(&path, &add.name, &key, &roles(add))?;
            say(&key);
            tell(
                &format!(
                    "the hash of this key is in {}; the key itself is shown only now",
                    path.display()
                ),
                &path,
            );
        }
        Commands::List(place) => list(&place.path(environment))?,
        Commands::Check(place) => {
            let path = place.path(environment);
            drop(Authenticator::new(&AuthConfig::File(path.clone()))?);
            say(&format!("{}: {} users and keys", path.display(), file::list(&path)?.len()));
        }
        Commands::Hash => say(&PasswordHash::of(&password()?)?.to_string()),
    }
    Ok(ExitCode::SUCCESS)
}

fn roles(add: &Add) -> Vec<OurRole> {
    add.role.iter().map(|role| role.ours()).collect()
}

/// Says what was done and how to go on, apart from what a script would read.
fn tell(what: &str, path: &Path) {
    let mut stderr = std::io::stderr();
    let _ = writeln!(stderr, "{what}");
    let _ = writeln!(
        stderr,
        "a running server takes it in a moment; start one with --auth-file {}",
        path.display()
    );
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
    say(columns(&rows).trim_end());
    Ok(())
}

/// A password from who sits there, asked for twice, or from whatever is piped in.
fn password() -> Result<String> {
    let stdin = std::io::stdin();
    let read = || -> Result<String> {
        let mut line = String::new();
        let read = stdin.lock().read_line(&mut line);
        read.map_err(|e| Error::invalid("no password can be read").with_source(e))?;
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
    if password.len() < SHORTEST {
        return Err(Error::invalid(format!("a password must have at least {SHORTEST} bytes")));
    }
    if stdin.is_terminal() && ask("once more")? != password {
        return Err(Error::invalid("these are two passwords; nothing was changed"));
    }
    Ok(password)
}
