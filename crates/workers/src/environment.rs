//! Selects the interpreter for a directory of code: the configured one or, if the directory has a
//! `requirements.txt`, that of a virtual environment with these requirements installed.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::config::WorkersConfig;
use crate::leave_directory;
use tensorserve_os::files::open_within;
use tensorserve_tensor::error::{Code, Error, Result};

/// The lines of pip's output that an error quotes.
const QUOTED_LINES: usize = 8;

/// The length at which lines are truncated, in bytes.
const MAX_LINE_BYTES: u64 = 2000;

/// The interpreter for the code in `code`. Blocks while packages are installed, which may take
/// minutes.
///
/// # Errors
/// With the last lines of pip's output, if the installation fails.
pub(super) fn python(config: &WorkersConfig, code: &Path) -> Result<PathBuf> {
    let requirements = code.join("requirements.txt");
    if requirements.symlink_metadata().is_err() {
        return Ok(config.python.clone());
    }
    check_file(code, &requirements)?;
    if code.join("lib").is_dir() {
        let file = requirements.display();
        log::warn!("{file} is not installed: the directory lib next to it is used instead");
        return Ok(config.python.clone());
    }
    log::info!("{}: installing missing packages", requirements.display());
    install(config, &requirements).map_err(|e| e.context(requirements.display()))
}

/// Checks that a file of `code` is a regular one of the model's folder, which has its code in `code/`.
///
/// # Errors
/// If it does not exist, or is something else.
pub(super) fn check_file(code: &Path, file: &Path) -> Result<()> {
    let folder = if code.ends_with("code") { code.parent() } else { None };
    let opened = open_within(folder.unwrap_or(code), file);
    opened.map(drop).map_err(|e| {
        let why = match e.kind() == io::ErrorKind::NotFound {
            true => "file not found".to_owned(),
            false => e.to_string(),
        };
        Error::new(Code::of_io(&e), why).with_source(e).context(file.display())
    })
}

/// Creates the virtual environment, unless it exists, and returns its interpreter.
fn install(config: &WorkersConfig, requirements: &Path) -> Result<PathBuf> {
    let failed = |e: io::Error| {
        let message = format!("{} cannot be run: {e}", config.python.display());
        Error::precondition(message).with_source(e)
    };
    let (output, output_end) = io::pipe().map_err(failed)?;
    let mut child = Command::new(&config.python)
        .args(["-c", concat!(leave_directory!(), include_str!("../../../python/environment.py"))])
        .args([requirements, &config.environments])
        .stdin(Stdio::null())
        .stdout(output_end.try_clone().map_err(failed)?)
        .stderr(output_end)
        .spawn()
        .map_err(failed)?;
    let mut lines = BoundedLines(BufReader::new(output));
    let mut last: VecDeque<String> = VecDeque::new();
    while let Some(line) = lines.next().map_err(failed)? {
        log::info!("{}: {line}", requirements.display());
        if last.len() == QUOTED_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    let status = child.wait().map_err(failed)?;
    if status.success()
        && let Some(python) = last.pop_back()
    {
        return Ok(python.into());
    }
    let last: Vec<String> = last.into();
    let message = format!("its packages could not be installed:\n{}", last.join("\n"));
    Err(Error::new(Code::FailedPrecondition, message))
}

/// Reads lines, and truncates long ones.
struct BoundedLines<R>(BufReader<R>);

impl<R: Read> BoundedLines<R> {
    fn next(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        if self.0.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            self.0.skip_until(b'\n')?;
        }
        Ok(Some(String::from_utf8_lossy(line.trim_ascii_end()).into_owned()))
    }
}
