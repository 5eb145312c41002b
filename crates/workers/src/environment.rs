//! The interpreter for a folder of code: the one that is configured or, if the folder has a
//! `requirements.txt`, that of a virtual environment with what the file names.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::config::WorkersConfig;
use tensorserve_tensor::error::{Code, Error, Result};

/// Lines of pip that are told if it fails.
const LAST_LINES: usize = 8;

/// The rest of a longer line is left out.
const LONGEST_LINE: u64 = 2000;

/// The interpreter for the code in folder `code`. Blocks while packages are installed, which may
/// take minutes.
///
/// # Errors
/// With the last lines that pip printed.
pub(super) fn python(config: &WorkersConfig, code: &Path) -> Result<PathBuf> {
    let requirements = code.join("requirements.txt");
    if !requirements.is_file() {
        return Ok(config.python.clone());
    }
    if code.join("lib").is_dir() {
        let file = requirements.display();
        log::warn!("{file} is not installed: the folder lib beside it has what is needed");
        return Ok(config.python.clone());
    }
    log::info!("{}: installing what is not there yet", requirements.display());
    install(config, &requirements).map_err(|e| e.context(requirements.display()))
}

fn install(config: &WorkersConfig, requirements: &Path) -> Result<PathBuf> {
    let failed = |e: io::Error| {
        let message = format!("{} can not be run: {e}", config.python.display());
        Error::precondition(message).with_source(e)
    };
    let (printed, prints) = io::pipe().map_err(failed)?;
    let mut child = Command::new(&config.python)
        .args(["-c", include_str!("../../../python/environment.py")])
        .args([requirements, &config.environments])
        .stdin(Stdio::null())
        .stdout(prints.try_clone().map_err(failed)?)
        .stderr(prints)
        .spawn()
        .map_err(failed)?;
    let mut lines = Lines(BufReader::new(printed));
    let mut last: VecDeque<String> = VecDeque::new();
    while let Some(line) = lines.next().map_err(failed)? {
        log::info!("{}: {line}", requirements.display());
        if last.len() == LAST_LINES {
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
    let message = format!("what it names could not be installed:\n{}", last.join("\n"));
    Err(Error::new(Code::FailedPrecondition, message))
}

/// Lines of bounded length.
struct Lines<R>(BufReader<R>);

impl<R: Read> Lines<R> {
    fn next(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        if self.0.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        if line.last() != Some(&b'\n') {
            self.0.skip_until(b'\n')?;
        }
        Ok(Some(String::from_utf8_lossy(line.trim_ascii_end()).into_owned()))
    }
}
