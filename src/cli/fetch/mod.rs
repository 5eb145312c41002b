//! `tensorserve fetch`: downloads the libraries of the runtimes, for machines without Python.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::PossibleValuesParser;

use self::report::Terminal;
use super::interrupt::{INTERRUPTED, on_stop_signals};
use super::table::columns;
use super::{print_line, print_note, print_text};
use crate::certificates;
use crate::config::environment::Environment;
use tensorserve_fetch::{Fetcher, Installation, Pin, PipSettings, Trust, megabytes};
use tensorserve_os as os;
use tensorserve_tensor::error::{Error, Result};

mod connection;
mod report;

pub(super) const HELP: &str = "\
The libraries come from the Python packages of their publishers. Downloads use the settings of pip: \
index-url, extra-index-url, find-links, proxy, cert, trusted-host, timeout and retries, in PIP_… \
variables and pip.conf, and HTTPS_PROXY, NO_PROXY and SSL_CERT_FILE. Every file must have the SHA-256 \
that this version of tensorserve knows. A download that was interrupted continues in the next run. For \
torch and executorch, a C++ compiler (CXX, or c++, g++, clang++) compiles a small library that connects \
tensorserve to them (the shim), once.

Examples:
  tensorserve fetch tensorflow
  tensorserve fetch tensorflow-gpu onnxruntime
  tensorserve fetch tensorflow --index-url https://mirror.example/simple
  tensorserve fetch tensorflow --dest /opt/tensorserve/lib
  tensorserve fetch torch --from /opt/venv/lib/python3.12/site-packages/torch
  tensorserve fetch --list";

/// What to fetch.
#[derive(Args)]
pub(super) struct Arguments {
    /// Runtimes to fetch; tensorflow-gpu is TensorFlow with the CUDA libraries
    #[arg(value_name = "RUNTIME", required_unless_present_any = ["list", "verify"],
          value_parser = PossibleValuesParser::new(tensorserve_fetch::names()))]
    runtimes: Vec<String>,
    /// Directory that contains the directories of the runtimes [default: ~/.local/share/tensorserve/lib]
    #[arg(long, value_name = "DIR")]
    dest: Option<PathBuf>,
    /// URL of the package index [default: that of pip]
    #[arg(long, value_name = "URL")]
    index_url: Option<String>,
    /// List what can be fetched, and what is installed
    #[arg(long)]
    list: bool,
    /// For torch and executorch: compile the shim for the library of this Python package, and
    /// download nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dest", "index_url", "list", "verify"])]
    from: Option<PathBuf>,
    /// Compare the installed files with their SHA-256, and fetch nothing
    #[arg(long, conflicts_with = "list")]
    verify: bool,
}

pub(super) fn run(arguments: &Arguments, environment: &Environment) -> Result<ExitCode> {
    let compiler = environment.get("CXX");
    if let Some(package) = &arguments.from {
        let [runtime] = &arguments.runtimes[..] else {
            return Err(Error::invalid("--from is for one runtime"));
        };
        return connection::use_package(runtime, package, compiler);
    }
    let folder = folder(arguments, environment)?;
    if arguments.list {
        return list(&folder);
    }
    if arguments.verify {
        return verify(&arguments.runtimes, &folder);
    }
    let pins: Vec<Pin> =
        arguments.runtimes.iter().map(|name| Pin::new(name)).collect::<Result<_>>()?;
    let mut pip = PipSettings::new(&environment.text_of(|_| true), environment.prefix())?;
    if let Some(url) = &arguments.index_url {
        pip.indexes = vec![url.clone()];
    }
    let trust = trust(&pip)?;
    let fetcher = Fetcher::new(pip, trust, &Terminal)?;
    on_signals_exit(&folder)?;
    for pin in &pins {
        fetcher.fetch(pin, &folder, |tree| connection::compile(&pin.runtime, tree, compiler))?;
        let library = Installation::new(pin, &folder).library();
        print_line(&format!("{} is in {}", pin.title, library.display()));
    }
    let searched = environment.library_directories("tensorflow");
    if !searched.iter().any(|known| known.path == folder) {
        let folder = folder.display();
        print_note(&format!(
            "{folder} is not searched by default: set TENSORSERVE_LIB_DIR={folder}"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The directory that contains the directories of the runtimes, an absolute path.
fn folder(arguments: &Arguments, environment: &Environment) -> Result<PathBuf> {
    if let Some(dest) = &arguments.dest {
        let wrong = |e| Error::invalid(format!("--dest {}: {e}", dest.display()));
        return std::path::absolute(dest).map_err(wrong);
    }
    environment.user_library_directory().ok_or_else(|| {
        Error::precondition("HOME is not set: name a directory for the libraries with --dest")
    })
}

/// The certificates that pip's settings name.
fn trust(pip: &PipSettings) -> Result<Trust> {
    let roots = certificates::trusted(pip.certificates.as_deref())?;
    let client = pip.client_certificate.as_deref();
    let client = client.map(|file| certificates::of_client(file, file)).transpose()?;
    Ok(Trust { roots, client })
}

/// What was downloaded stays for the next run.
fn on_signals_exit(folder: &Path) -> Result<()> {
    let folder = folder.display().to_string();
    on_stop_signals(move || {
        print_note(&format!(
            "\ninterrupted: nothing was installed. What was downloaded is kept in {folder}, and the \
             same command continues"
        ));
        os::exit_now(INTERRUPTED.into())
    })
}

fn list(folder: &Path) -> Result<ExitCode> {
    let mut rows =
        vec![["RUNTIME", "LIBRARY", "DOWNLOAD", "UNPACKED", "STATE"].map(str::to_owned).to_vec()];
    for name in tensorserve_fetch::names() {
        let Ok(pin) = Pin::new(name) else {
            let why = "not published for this machine".to_owned();
            rows.push(vec![name.to_owned(), String::new(), String::new(), String::new(), why]);
            continue;
        };
        let installation = Installation::new(&pin, folder);
        let state = match (installation.shortcoming(), installation.begun()) {
            (None, _) => format!("in {}", installation.dest.display()),
            (Some(_), 1..) => format!("begun, {} are here", megabytes(installation.begun())),
            (Some(why), 0) if installation.dest.exists() => format!("incomplete: {why}"),
            (Some(_), 0) => "not installed".to_owned(),
        };
        let sizes = [pin.download(), pin.unpacked].map(megabytes);
        let library = format!("{} {}", pin.runtime, pin.version);
        rows.push([vec![name.to_owned(), library], sizes.to_vec(), vec![state]].concat());
    }
    print_text(&columns(&rows));
    Ok(ExitCode::SUCCESS)
}

/// Verifies `runtimes`, or all that are installed.
fn verify(runtimes: &[String], folder: &Path) -> Result<ExitCode> {
    let mut names = runtimes.to_vec();
    if runtimes.is_empty() {
        names.extend(tensorserve_fetch::names().map(str::to_owned));
    }
    let mut count = 0;
    for name in names {
        let Ok(pin) = Pin::new(&name) else {
            continue;
        };
        let installation = Installation::new(&pin, folder);
        if runtimes.is_empty() && !installation.dest.exists() {
            continue;
        }
        let files = installation.verify()?;
        let dest = installation.dest.display();
        print_line(&format!("{}: {files} files in {dest} match their SHA-256", pin.title));
        count += 1;
    }
    if count == 0 {
        print_line(&format!("nothing is installed in {}", folder.display()));
    }
    Ok(ExitCode::SUCCESS)
}
