//! What `tensorserve fetch` prints on stderr, and its errors.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::super::print_note;
use super::super::printable::on_one_line;
use tensorserve_tensor::error::{Code, Error};

/// The time between two lines about the progress.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// A bar on a terminal, and lines elsewhere.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    label: String,
    size: u64,
    next_line: Cell<Instant>,
}

impl Progress {
    /// A display for `size` bytes. Lines start with `label`.
    pub(super) fn new(label: &str, size: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| ProgressBar::new(size));
        if let Some(bar) = &bar {
            let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()),
            );
            bar.set_message(on_one_line(label).into_owned());
        }
        let next_line = Cell::new(Instant::now() + LINE_INTERVAL);
        Progress { bar, label: label.to_owned(), size, next_line }
    }

    /// Shows that the first `bytes` are here.
    pub(super) fn is_at(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
            return;
        }
        if Instant::now() >= self.next_line.get() {
            self.next_line.set(Instant::now() + LINE_INTERVAL);
            say(&format!("{}: {} of {}", self.label, megabytes(bytes), megabytes(self.size)));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A size for messages.
pub(super) fn megabytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    if bytes >= 1e9 { format!("{:.1} GB", bytes / 1e9) } else { format!("{:.0} MB", bytes / 1e6) }
}

/// Prints a line about the progress.
pub(super) fn say(text: &str) {
    print_note(text);
}

/// The error of an operation on `path`.
pub(super) fn failed_at(path: &Path, error: &io::Error) -> Error {
    Error::new(Code::of_io(error), format!("{}: {error}", path.display()))
}
