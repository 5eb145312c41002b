//! The progress bar of downloads, on a terminal.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// What takes longer than this gets a bar.
const DELAY: Duration = Duration::from_millis(700);

/// A progress bar, which is shown once something is downloaded for long.
pub(crate) struct DownloadBar {
    bar: ProgressBar,
    began: Instant,
    is_shown: bool,
}

impl DownloadBar {
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::no_length();
        let template = "downloading {bar:30} {bytes} of {total_bytes}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        DownloadBar { bar, began: Instant::now(), is_shown: std::io::stderr().is_terminal() }
    }

    /// Shows how far the downloads are. Returns whether there are any.
    pub(crate) fn show(&self, done: u64, total: u64) -> bool {
        let is_due = total > 0 && self.is_shown && self.began.elapsed() >= DELAY;
        if is_due {
            self.bar.set_length(total);
            self.bar.set_position(done);
        }
        is_due
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
