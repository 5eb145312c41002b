//! What `tensorserve fetch` prints on stderr.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::super::print_note;
use super::super::printable::on_one_line;
use tensorserve_fetch::{DownloadDisplay, Report, megabytes};

/// The time between two lines about the progress.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Prints remarks, and displays downloads.
pub(super) struct Terminal;

impl Report for Terminal {
    fn say(&self, remark: &str) {
        print_note(remark);
    }

    fn begin(&self, label: &str, size: u64) -> Box<dyn DownloadDisplay> {
        Box::new(Display::new(label, size))
    }
}

/// A bar on a terminal, and lines elsewhere.
struct Display {
    bar: Option<ProgressBar>,
    label: String,
    size: u64,
    next_line: Cell<Instant>,
}

impl Display {
    /// A display for `size` bytes. Lines start with `label`.
    fn new(label: &str, size: u64) -> Self {
        let bar = io::stderr().is_terminal().then(|| ProgressBar::new(size));
        if let Some(bar) = &bar {
            let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or(ProgressStyle::default_bar()),
            );
            bar.set_message(on_one_line(label).into_owned());
        }
        let next_line = Cell::new(Instant::now() + LINE_INTERVAL);
        Display { bar, label: label.to_owned(), size, next_line }
    }
}

impl DownloadDisplay for Display {
    fn is_at(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
            return;
        }
        if Instant::now() >= self.next_line.get() {
            self.next_line.set(Instant::now() + LINE_INTERVAL);
            print_note(&format!(
                "{}: {} of {}",
                self.label,
                megabytes(bytes),
                megabytes(self.size)
            ));
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
